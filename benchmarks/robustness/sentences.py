"""List every sentence that a command, the page or an error can print, by file and line, to be read as a whole.

    python benchmarks/robustness/sentences.py [--least 3] [WORD ...]

Texts of the code (less docstrings) and of its data files, with `{}` in place of values; only those with a WORD, if any.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "infercast"
DATA = ("commands", "flag_sentences", "glossary", "options", "quantities", "sentences", "fields", "refused_models")


def of_code(path: Path) -> Iterator[tuple[int, str]]:
    """Texts that are no docstrings, whole where they are written in several parts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = {
        id(each.body[0].value)
        for each in ast.walk(tree)
        if isinstance(each, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and each.body
        and isinstance(each.body[0], ast.Expr)
    }
    silent |= {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for each in ast.walk(tree):
        if isinstance(each, ast.JoinedStr):
            silent |= {id(part) for part in ast.walk(each) if part is not each and isinstance(part, ast.Constant)}
    for each in ast.walk(tree):
        if id(each) in silent:
            continue
        if isinstance(each, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in each.values]
            yield each.lineno, "".join(map(str, parts))
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.lineno, each.value


def of_data(value: Any) -> Iterator[str]:
    """Texts of a data file, however deep."""
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from of_data(each)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="List the sentences of answers and errors.")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--least", type=int, default=3, help="words of the shortest that is listed")
    asked = parser.parse_args()
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix == ".py":
            found = of_code(path)
        elif path.stem in DATA and path.suffix in (".toml", ".json"):
            read = tomllib.loads if path.suffix == ".toml" else json.loads
            found = ((0, text) for text in of_data(read(path.read_text(encoding="utf-8"))))
        else:
            continue
        for line, text in found:
            told = " ".join(text.split())
            is_long = len(re.findall(r"[A-Za-z]{2,}", told)) >= asked.least and " " in told
            if is_long and (not asked.words or any(word in told for word in asked.words)):
                print(f"{path.relative_to(SOURCE)}:{line}: {told}")


if __name__ == "__main__":
    main()
