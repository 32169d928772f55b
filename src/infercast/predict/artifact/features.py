"""What learned models are fed with: the names of their features, and the source that computes them."""

from __future__ import annotations

import ast
import hashlib
import json
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from infercast.predict.families import FAMILIES
from infercast.predict.families.family import Family

PACKAGE = Path(__file__).parents[2]

FEATURES = {name: names for family in FAMILIES.values() for name, names in family.features.items()}


@dataclass(frozen=True)
class Inputs:
    """What all models of an artefact are fed with."""

    kind: str
    features: dict[str, tuple[str, ...]]
    """Sets of features by name ..."""
    set_of: Callable[[str, str, str, str], str]
    """... and the one that a model has, by its family, GPU, engine and variant."""
    sources: tuple[str, ...]
    """Files of the package that compute them, or that say what they are computed from."""
    beside: Mapping[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """Sets of features of the archives beside the main one, by their names."""

    def of(self, archive: str) -> Inputs:
        """What the models of an archive are fed with; an empty name is the main one's."""
        return replace(self, features=self.beside.get(archive, {})) if archive else self

    @property
    def features_hash(self) -> str:
        """Of all names."""
        return hashlib.sha256(json.dumps({**self.features}, sort_keys=True).encode()).hexdigest()

    @property
    def source_hash(self) -> str:
        """Of the sources as they are written; empty where only compiled ones are installed. Takes a millisecond."""
        return _source_hash(self.sources)

    @property
    def physics_hash(self) -> str:
        """Of what the sources do: comments, docstrings and formatting do not count. Takes a tenth of a second."""
        return _physics_hash(self.sources)


def _set_of(family: str, gpu: str, engine: str, variant: str) -> str:
    chosen = FAMILIES[family].feature_set
    return family if chosen is None else chosen(gpu, engine, variant)


_SOURCES = (
    *("predict/physics/*.py", "predict/families/*.py"),
    *("data/architectures.toml", "data/all_reduce.toml", "data/kernels.toml"),
)


def inputs_of(
    kind: str,
    named: Callable[[Family], Mapping[str, tuple[str, ...]]],
    set_of: Callable[[str, str, str, str], str],
    sources: tuple[str, ...],
) -> Inputs:
    """What models of all families are fed with, archive by archive; ``named`` are a family's sets of features."""
    archives: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    for family in FAMILIES.values():
        archives[family.archive].update(named(family))
    return Inputs(kind, archives.pop(""), set_of, sources, dict(archives))


KERNELS = inputs_of("kernels", lambda family: family.features, _set_of, _SOURCES)


def _files(sources: tuple[str, ...]) -> Iterator[Path]:
    for pattern in sources:
        yield from sorted(PACKAGE.glob(pattern))


@lru_cache
def _source_hash(sources: tuple[str, ...]) -> str:
    files = list(_files(sources))
    # Line ends are git's business.
    parts = [f"{file.name}\n".encode() + file.read_bytes().replace(b"\r\n", b"\n") for file in files]
    return hashlib.sha256(b"".join(parts)).hexdigest() if any(file.suffix == ".py" for file in files) else ""


@lru_cache
def _physics_hash(sources: tuple[str, ...]) -> str:
    parts = [f"{file.name}\n{_meaning(file.read_text(encoding='utf-8'), file.suffix)}" for file in _files(sources)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _meaning(text: str, suffix: str) -> str:
    return code_of(text) if suffix == ".py" else json.dumps(tomllib.loads(text), sort_keys=True)


def code_of(source: str) -> str:
    """What a module does, as text that is the same however it is written down and whichever Python reads it."""
    return _text(ast.parse(source))


def _text(node: Any) -> str:
    """A syntax tree without strings that stand alone, positions, and fields that some versions of Python leave out."""
    if isinstance(node, list):
        kept = [each for each in node if not _is_docstring(each)]
        return f"[{','.join(map(_text, kept))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []) and name != "kind")
    return f"{type(node).__name__}({','.join(f'{name}={_text(value)}' for name, value in fields)})"


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
