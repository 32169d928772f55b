"""What an artefact was fitted on, in a file beside it that people can read: ``kernels.toml`` for ``kernels.npz``.

Loading compares it with the archive and with the code, and refuses what does not fit together: a forest that is fed
with other numbers than it learned from answers all the same, and is wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from infercast.errors import FileFormatError
from infercast.predict.artifact.features import Inputs

AGAIN = "fit it again with `infercast fit`"
STAMP = "python benchmarks/regression/stamp.py"
NOT_RECORDED = "not recorded"


def manifest_path(archive: Path) -> Path:
    """Where an archive's manifest is."""
    return archive.with_suffix(".toml")


def contents_hash(listed: bytes) -> str:
    """Of an archive's own list of its arrays with their sizes and checksums; those are checked as arrays are read."""
    return hashlib.sha256(listed).hexdigest()


def check_manifest(archive: Path, listed: bytes, inputs: Inputs) -> None:
    """Raise FileFormatError unless an archive is the one of its manifest, and fitted to what this code computes."""
    path = manifest_path(archive)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileFormatError(archive, f"has no manifest {path.name} beside it; copy it along, or {AGAIN}") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise FileFormatError(path, f"cannot be read: {getattr(problem, 'strerror', None) or problem}") from None
    # What is compared comes first; the rest is for people, and takes long to read.
    head = _parsed(path, text.partition("\n[")[0])
    if head["kind"] != inputs.kind:
        raise FileFormatError(archive, f"holds {head['kind']}, where {inputs.kind} are needed")
    if head["archive_sha256"] != contents_hash(listed):
        raise FileFormatError(archive, f"is not the archive that {path.name} describes; take both from one fit")
    if head["features_sha256"] != inputs.features_hash:
        difference = _difference(_parsed(path, text).get("features", {}), inputs.features)
        raise FileFormatError(archive, f"was fitted on other features than this version computes{difference}; {AGAIN}")
    is_written_alike = inputs.source_hash in ("", head["source_sha256"])
    if not is_written_alike and head["physics_sha256"] != inputs.physics_hash:
        raise FileFormatError(
            archive,
            f"was fitted to other physics than that of {', '.join(inputs.sources)}; {AGAIN}, or run {STAMP} "
            "if predictions stay what they were",
        )


def write_manifest(
    archive: Path, listed: bytes, inputs: Inputs, models: Sequence[Any], origin: Mapping[str, Any] | None = None
) -> None:
    """Write down what an archive was fitted on; ``origin``: when, by which revision and versions, on what tables."""
    origin = origin or {}
    sets = {" ".join(part for part in model.key if part): inputs.set_of(*model.key) for model in models}
    lines = [
        f"# What {archive.name} was fitted on. Loading refuses an archive or a source that does not fit to it.",
        f"kind = {_text(inputs.kind)}",
        f"archive_sha256 = {_text(contents_hash(listed))}  # of its list of arrays, sizes and checksums",
        f"features_sha256 = {_text(inputs.features_hash)}",
        *_stamps(inputs),
        *(f"{name} = {_text(str(origin.get(name, NOT_RECORDED)))}" for name in ("date", "revision")),
        *_section("versions", origin.get("versions", {})),
        *_section("tables", origin.get("tables", {})),
        *_section("features", {name: list(inputs.features[name]) for name in sorted(set(sets.values()))}),
        *_section("models", sets),
    ]
    _replace(manifest_path(archive), lines)


def stamp(archive: Path, inputs: Inputs) -> bool:
    """Say in a manifest that the sources as they are now mean the same; False if it says so already."""
    path = manifest_path(archive)
    lines = path.read_text(encoding="utf-8").splitlines()
    new = {line.partition(" = ")[0]: line for line in _stamps(inputs)}
    stamped = [new.get(line.partition(" = ")[0], line) for line in lines]
    if stamped != lines:
        _replace(path, stamped)
    return stamped != lines


def read_manifest(archive: Path) -> dict[str, Any]:
    """All of it."""
    path = manifest_path(archive)
    return _parsed(path, path.read_text(encoding="utf-8"))


def _stamps(inputs: Inputs) -> Iterator[str]:
    what = ", ".join(inputs.sources)
    yield f"physics_sha256 = {_text(inputs.physics_hash)}  # of what {what} do"
    yield f"source_sha256 = {_text(inputs.source_hash)}  # of how they are written"


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        values = tomllib.loads(text)
        for name in ("kind", "archive_sha256", "features_sha256", "physics_sha256", "source_sha256"):
            if not isinstance(values[name], str):
                raise TypeError(f"{name} must be text")
    except (tomllib.TOMLDecodeError, TypeError) as problem:
        raise FileFormatError(path, f"is not a manifest: {problem}") from None
    except KeyError as missing:
        raise FileFormatError(path, f"is not a manifest: it lacks {missing.args[0]}") from None
    return values


def _difference(fitted: Any, computed: Mapping[str, Sequence[str]]) -> str:
    """The first name that differs, for people."""
    for name, features in fitted.items():
        now = computed.get(name, ())
        for place in range(max(len(features), len(now))):
            pair = [each[place] if place < len(each) else "nothing" for each in (features, now)]
            if pair[0] != pair[1]:
                return f" ({name}, number {place + 1}: {pair[0]} then, {pair[1]} now)"
    return ""


def _section(name: str, values: Mapping[str, Any]) -> list[str]:
    return ["", f"[{name}]", *(f"{_text(key)} = {_text(value)}" for key, value in values.items())]


def _text(value: Any) -> str:
    """A string or a list of strings: JSON's way of writing them is TOML's too."""
    return json.dumps(value, ensure_ascii=False)


def _replace(path: Path, lines: Sequence[str]) -> None:
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    os.replace(temporary, path)
