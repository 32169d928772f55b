"""YAML of plain data: mappings, lists, strings, numbers and switches, the same bytes for the same data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PLAIN = re.compile(r"(?:--?)?[A-Za-z_/.][A-Za-z0-9_./@-]*(?: [A-Za-z0-9_./@-]+)*")
"""Strings that need no quotes ..."""
WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", ".inf", ".nan"}
"""... unless they mean something else."""


def yaml_text(*documents: Any, comment: str = "") -> str:
    """Documents below a comment."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return head + "---\n".join("".join(f"{line}\n" for line in _lines(each, "")) for each in documents)


def _lines(value: Any, indent: str) -> Iterator[str]:
    """The lines of a collection."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _entry(f"{indent}{_scalar(str(key))}:", each, indent)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            if isinstance(each, Mapping) and each:
                first, *rest = _lines(each, f"{indent}  ")
                yield f"{indent}- {first.lstrip()}"
                yield from rest
            else:
                yield from _entry(f"{indent}-", each, indent)
    else:
        yield f"{indent}{_scalar(value)}"


def _entry(head: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, str) and "\n" in value:
        yield f"{head} |{'' if value.endswith(chr(10)) else '-'}"
        yield from (f"{indent}  {line}".rstrip() for line in value.rstrip("\n").split("\n"))
    elif isinstance(value, (Mapping, list, tuple)) and value:
        yield head
        yield from _lines(value, f"{indent}  ")
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, str):
        if PLAIN.fullmatch(value) is not None and value.lower() not in WORDS:
            return value
        if '"' in value and "'" not in value and "\\" not in value and value.isprintable():
            return f"'{value}'"
        return json.dumps(value, ensure_ascii=False)
    return "{}" if isinstance(value, Mapping) else "[]"
