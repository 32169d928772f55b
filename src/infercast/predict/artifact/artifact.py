"""The file that a fit leaves behind: a few dozen forests and where they come from. Numpy alone reads it.

An artefact is a zip of arrays (``.npz``) with a JSON header that lists its models. It holds no code and nothing is
unpickled. Forests are read when they are first asked for.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from infercast.errors import FileFormatError, InputError
from infercast.predict.artifact.archive import Archive
from infercast.predict.artifact.features import KERNELS, Inputs
from infercast.predict.artifact.forest import Array, Forest
from infercast.predict.artifact.manifest import check_manifest, write_manifest
from infercast.predict.families import FAMILIES

SCHEMA = 2
UNREADABLE = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    NotImplementedError,
    struct.error,
    zlib.error,
)
"""What reading a zip of arrays raises where it is cut short or overwritten."""
POOLED = "*"
"""In place of a GPU's name: a model of several GPUs, for those that were never measured."""


class Entry(NamedTuple):
    """One learned residual: of which kernels, on which GPU, and how far to trust it."""

    family: str
    gpu: str
    engine: str
    variant: str
    """Dtype, kernel or whatever else splits a family; empty where nothing does."""
    rows: int
    offset: float
    """Added to the forest's shrunken answer."""
    shrink: float
    """How much of the forest's answer is believed: 1 on the GPU it was fitted on."""
    low: float
    high: float
    """10th and 90th percentile of log(measured / predicted) on rows that were held out."""
    held_out_error: float
    """Mean absolute error of latency on those rows, as a fraction."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What a predictor looks a model up by."""
        return self.family, self.gpu, self.engine, self.variant


class Artifact:
    """Models by key, and the provenance of the whole."""

    def __init__(
        self,
        path: Path,
        arrays: Archive | dict[str, Array],
        header: dict[str, Any],
        entries: dict[tuple[str, str, str, str], tuple[int, Entry]],
        open_beside: Callable[[str], Artifact | None] = lambda _: None,
    ):
        """``open_beside`` opens another archive of the same fit by its name, if there is one."""
        self.path = path
        self._open_beside = open_beside
        self._beside: dict[str, Artifact | None] = {}
        self._arrays = arrays
        self.header = header
        self._entries = entries
        self._forests: dict[int, Forest] = {}

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All models of this archive."""
        return tuple(entry for _, entry in self._entries.values())

    def entries_of(self, family: str) -> tuple[Entry, ...]:
        """All models of the archive that holds a family."""
        beside = self._holding(family)
        return self.entries if beside is None else (*self.entries, *beside.entries)

    def _holding(self, family: str) -> Artifact | None:
        """The archive beside this one that holds a family's models, opened when it is first asked for."""
        archive = FAMILIES[family].archive if family in FAMILIES else ""
        if archive and archive not in self._beside:
            self._beside[archive] = self._open_beside(archive)
        return self._beside.get(archive)

    def find(self, family: str, gpu: str, engine: str, variant: str) -> tuple[Entry, Forest] | None:
        """The model of exactly these kernels on this GPU, if there is one."""
        found = self._entries.get((family, gpu, engine, variant))
        if found is None:
            beside = self._holding(family)
            return None if beside is None else beside.find(family, gpu, engine, variant)
        number, entry = found
        if number not in self._forests:
            self._forests[number] = self._read_forest(number)
        return entry, self._forests[number]

    def with_models(self, models: Sequence[tuple[Entry, Forest]]) -> Artifact:
        """The same with models that were fitted since, which take the place of those with the same key."""
        entries, forests = dict(self._entries), dict(self._forests)
        for number, (entry, forest) in enumerate(models, start=1):
            entries[entry.key], forests[-number] = (-number, entry), forest
        extended = Artifact(self.path, self._arrays, self.header, entries, self._open_beside)
        extended._forests = forests
        return extended

    def fitted_groups(self, family: str = "") -> Array:
        """Hashes of the groups of rows that the archive that holds a ``family`` was fitted on; empty: this one."""
        beside = self._holding(family) if family else None
        if beside is not None:
            return beside.fitted_groups()
        try:
            return np.asarray(self._arrays["groups"])
        except UNREADABLE as problem:
            raise FileFormatError(self.path, f"is damaged: its list of groups cannot be read ({problem})") from None

    def _read_forest(self, number: int) -> Forest:
        arrays = self._arrays
        try:
            lengths = arrays[f"{number}/border_counts"]
            borders = np.split(arrays[f"{number}/borders"], np.cumsum(lengths)[:-1])
            return Forest(
                tuple(borders),
                arrays[f"{number}/features"],
                arrays[f"{number}/bins"],
                arrays[f"{number}/leaves"].astype(np.float32),
                float(arrays[f"{number}/bias"]),
            )
        except UNREADABLE as problem:
            raise FileFormatError(self.path, f"is damaged: model {number} cannot be read ({problem})") from None


def load_artifact(path: Path, inputs: Inputs = KERNELS, *, checked: bool = True) -> Artifact:
    """Open an artefact and read its header; ``checked`` against its manifest and what this code computes.

    A fit of families that have archives of their own writes nothing else: those are opened without a main one.
    """

    def open_beside(archive: str) -> Artifact | None:
        beside = path_beside(path, archive)
        return load_artifact(beside, inputs.of(archive), checked=checked) if beside.exists() else None

    if not path.exists() and any(path_beside(path, archive).exists() for archive in inputs.beside):
        return Artifact(path, {"groups": np.zeros(0, dtype=np.int64)}, {}, {}, open_beside)
    try:
        arrays = Archive(path.read_bytes())
        header = json.loads(arrays["header"].tobytes().decode("utf-8"))
        version = header["schema"]
        if version != SCHEMA:
            raise FileFormatError(path, f"has schema {version}, this version reads schema {SCHEMA}; fit it again")
        listed = [Entry(**values) for values in header["models"]]
    except OSError as problem:
        raise FileFormatError(path, f"cannot be read: {problem.strerror or problem}") from None
    except (*UNREADABLE, AttributeError, TypeError) as problem:
        if isinstance(problem, FileFormatError):
            raise
        raise FileFormatError(path, f"is not an infercast artefact or is damaged: {problem}") from None
    if checked:
        check_manifest(path, arrays.listed, inputs)
    entries = {entry.key: (number, entry) for number, entry in enumerate(listed)}
    return Artifact(path, arrays, header, entries, open_beside)


def path_beside(path: Path, archive: str) -> Path:
    """Where the models of families are that have an archive of their own: ``kernels-recurrent.npz``."""
    return path.with_stem(f"{path.stem}-{archive}") if archive else path


def save_artifact(
    path: Path,
    models: Sequence[tuple[Entry, Forest]],
    provenance: dict[str, Any],
    groups: Array,
    *,
    inputs: Inputs = KERNELS,
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write an artefact under a temporary name and move it into place, then its manifest with its ``origin``.

    ``groups`` are the hashes of all groups of rows that were fitted on, so that nobody scores it on them unawares.
    """
    header = {"schema": SCHEMA, **provenance, "models": [entry._asdict() for entry, _ in models]}
    arrays: dict[str, Any] = {"header": np.frombuffer(json.dumps(header, sort_keys=True).encode(), dtype=np.uint8)}
    arrays["groups"] = np.sort(groups)
    for number, (_, forest) in enumerate(models):
        arrays[f"{number}/border_counts"] = np.array([len(borders) for borders in forest.borders])
        arrays[f"{number}/borders"] = np.concatenate([*forest.borders, np.empty(0, dtype=np.float32)])
        arrays[f"{number}/features"] = forest.features
        arrays[f"{number}/bins"] = forest.bins
        # Leaves are corrections of a fraction of a percent to a few percent each: half precision is far finer.
        arrays[f"{number}/leaves"] = forest.leaves.astype(np.float16)
        arrays[f"{number}/bias"] = np.array(forest.bias)
    temporary = path.with_name(f"{path.name}.part.npz")
    try:
        np.savez_compressed(temporary, **arrays)
        os.replace(temporary, path)
        write_manifest(path, Archive(path.read_bytes()).listed, inputs, [entry for entry, _ in models], origin)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {problem.strerror or problem}") from None
