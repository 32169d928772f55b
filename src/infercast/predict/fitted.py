"""Fitted models: gradient-boosted trees in plain numpy, the archive that holds them, and its manifest."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from infercast.errors import FileFormatError, InputError
from infercast.lazy_classes import NamedTuple, dataclass
from infercast.predict.families import FAMILIES

Array = npt.NDArray[Any]
CHUNK = 32_768
MANY = 2000  # Rows from which on trees are compared one after the other


@dataclass(frozen=True)
class Forest:
    """A sum of oblivious trees: all nodes of one level ask the same question, so a leaf's index is the answers as bits.
    For a few rows bits are looked up; many go tree by tree, in chunks that stay in the processor's cache.
    """

    features: Array  # (trees, depth) which feature a level looks at
    borders: Array  # (trees, depth), float32: a level answers yes if the feature is above; infinite: no
    leaves: Array  # (trees, 2^depth) what each tree adds; at most 256 leaves
    bias: float

    def predict(self, features: Array) -> Array:
        values = np.asarray(features, dtype=np.float32)
        rows = len(values)
        if rows == 1:
            return np.array([self.predict_one(values[0])])
        total = np.empty(rows)
        for start in range(0, rows, CHUNK):
            columns = np.ascontiguousarray(values[start : start + CHUNK].T)
            many = columns.shape[1] >= MANY
            total[start : start + CHUNK] = self._ask([*columns]) if many else self._look_up([*columns])
        return total

    def predict_one(self, values: Sequence[float] | Array) -> float:
        asked, borders, leaves, first_leaves = self._for_one
        places = np.packbits(np.array(values, np.float32).take(asked) > borders) + first_leaves
        return self.bias + float(np.add.reduce(leaves.take(places)))

    def leaf_numbers(self, features: Array) -> Array:
        """(rows, trees) which leaf each tree picks."""
        return self._leaf_numbers([*np.asarray(features, dtype=np.float32).T])

    def _leaf_numbers(self, columns: Sequence[Array]) -> Array:
        index = np.zeros((columns[0].size, self._tables[0][2].shape[1]), dtype=np.uint8)
        for feature, borders, bits in self._tables:
            index |= bits.take(borders.searchsorted(columns[feature]), axis=0)
        return index[:, : len(self.leaves)]

    def _look_up(self, columns: Sequence[Array]) -> Array:
        trees, leaves = self.leaves.shape
        places = self._leaf_numbers(columns) + np.arange(0, trees * leaves, leaves, dtype=np.intp)
        return np.asarray(self.bias + self.leaves.take(places).sum(axis=1, dtype=np.float64))

    def _ask(self, columns: Sequence[Array]) -> Array:
        rows = columns[0].size
        index, answers = np.empty(rows, dtype=np.uint8), np.empty(rows, dtype=np.bool_)
        added, total = np.empty(rows), np.full(rows, self.bias)
        for features, borders, leaves in zip(self.features.tolist(), self.borders, self.leaves, strict=True):
            index.fill(0)
            for level in range(len(features) - 1, -1, -1):
                np.greater(columns[features[level]], borders[level, ...], out=answers)
                np.add(index, index, out=index)
                np.bitwise_or(index, answers.view(np.uint8), out=index)
            np.take(leaves.astype(np.float64), index, out=added, mode="clip")
            total += added
        return total

    @cached_property
    def _for_one(self) -> tuple[Array, Array, Array, Array]:
        """What `predict_one` needs: features and borders of 8 levels a tree, highest bit first; where leaves start."""
        trees, leaves = self.leaves.shape
        missing = ((0, 0), (8 - self.features.shape[1], 0))
        asked = np.pad(self.features[:, ::-1].astype(np.intp), missing).ravel()
        above = np.pad(self.borders[:, ::-1], missing, constant_values=np.inf).ravel()
        return asked, above, self.leaves.ravel().astype(np.float64), np.arange(0, trees * leaves, leaves, dtype=np.intp)

    @cached_property
    def _tables(self) -> list[tuple[int, Array, Array]]:
        """For each feature that is used: its number, its borders, and the bits (a byte a tree) it sets between them."""
        trees, depth = self.features.shape
        features, values = self.features.ravel(), self.borders.ravel()
        # Questions by feature and border: each different one sets bits in a row, below an empty row a feature.
        order = np.lexsort((values, features))
        asked, borders = features[order], values[order]
        is_next = np.concatenate(([False], asked[1:] != asked[:-1]))
        is_new = is_next | np.concatenate(([True], borders[1:] != borders[:-1]))
        rows = np.cumsum(is_new) + np.cumsum(is_next)
        bits = np.zeros((rows[-1] + 1, -(-trees // 8) * 8), dtype=np.uint8)
        # No two levels of a tree set the same bit, so adding is as good as or.
        np.add.at(bits.reshape(-1), rows * bits.shape[1] + order // depth, (1 << (order % depth)).astype(np.uint8))
        words = bits.view(np.uint64)
        firsts = np.flatnonzero(np.concatenate(([True], is_next[1:])))
        tables = []
        for first, end in zip(firsts.tolist(), [*firsts[1:].tolist(), len(order)], strict=True):
            mine = slice(rows[first] - 1, rows[end - 1] + 1)
            np.bitwise_or.accumulate(words[mine], axis=0, out=words[mine])
            tables.append((int(asked[first]), borders[first:end][is_new[first:end]], bits[mine]))
        return tables


def silent_forest(bias: float = 0.0) -> Forest:
    """One tree that asks nothing and adds nothing to a value."""
    features, borders = np.zeros((1, 1), dtype=np.uint8), np.full((1, 1), np.inf, dtype=np.float32)
    return Forest(features, borders, np.zeros((1, 2), dtype=np.float32), bias)


PACKAGE = Path(__file__).parents[1]
FEATURES = {name: names for family in FAMILIES.values() for name, names in family.features.items()}


@dataclass(frozen=True)
class Inputs:
    """What the models of an archive are fed with."""

    kind: str
    features: Mapping[str, tuple[str, ...]]  # Sets of features by name
    sources: tuple[str, ...]  # Files of the package that compute them, or that say what they are computed from

    @cached_property
    def source_hash(self) -> str:
        """Of the sources as they are written; empty where only compiled ones are installed. Takes a millisecond."""
        files = [path for pattern in self.sources for path in sorted(PACKAGE.glob(pattern))]
        # Line ends are git's business.
        parts = [f"{file.name}\n".encode() + file.read_bytes().replace(b"\r\n", b"\n") for file in files]
        return hashlib.sha256(b"".join(parts)).hexdigest() if any(file.suffix == ".py" for file in files) else ""


KERNELS = Inputs(
    "kernels",
    FEATURES,
    (
        *("predict/array_api.py", "predict/families/*.py"),
        *("data/architectures.toml", "data/all_reduce.toml", "data/kernels.toml", "data/physics.json"),
    ),
)


# What an artefact was fitted on, in a readable file next to it: ``kernels.json`` for ``kernels.npz``.
#
# Loading compares it with the archive and with the code, and refuses what does not fit together: a forest that is fed
# with other numbers than it learned from answers all the same, and is wrong.

AGAIN = "fit it again with `infercast fit`"
STAMP = "python benchmarks/regression/stamp.py"
COMPARED = {"kind": str, "archive_sha256": str, "source_sha256": str, "features": dict}


def manifest_path(archive: Path) -> Path:
    return archive.with_suffix(".json")


def open_arrays(path: Path) -> NpzFile:
    """The arrays of a file by name, each read and checked when it is asked for."""
    return NpzFile(io.BytesIO(path.read_bytes()))


def contents_hash(arrays: NpzFile) -> str:
    """Of an archive's own list of its arrays with their sizes and checksums."""
    assert arrays.zip is not None  # as long as it is open
    listed = "\n".join([f"{each.filename} {each.file_size} {each.CRC}" for each in arrays.zip.infolist()])
    return hashlib.sha256(listed.encode()).hexdigest()


def check_manifest(archive: Path, arrays: NpzFile, inputs: Inputs) -> None:
    """Raise FileFormatError unless an archive is the one of its manifest, and fitted to what this code computes."""
    path, known = manifest_path(archive), read_manifest(archive)
    if known["kind"] != inputs.kind:
        raise FileFormatError(archive, f"holds {known['kind']}, where {inputs.kind} are needed")
    if known["archive_sha256"] != contents_hash(arrays):
        raise FileFormatError(archive, f"is not the archive that {path.name} describes; take both from one fit")
    if difference := _difference(known["features"], inputs.features):
        raise FileFormatError(archive, f"was fitted on other features than this version computes{difference}; {AGAIN}")
    if inputs.source_hash not in ("", known["source_sha256"]):
        raise FileFormatError(
            archive,
            f"was fitted to other physics than that of {', '.join(inputs.sources)}; {AGAIN}, or run {STAMP} "
            "if predictions stay what they were",
        )


def write_manifest(archive: Path, arrays: NpzFile, inputs: Inputs, origin: Mapping[str, Any] | None = None) -> None:
    """Write down what an archive was fitted on; ``origin``: when, by which revision and versions, on what tables."""
    document = {
        "about": f"What {archive.name} was fitted on. Loading refuses an archive or a source that does not fit to it.",
        "kind": inputs.kind, "archive_sha256": contents_hash(arrays), "source_sha256": inputs.source_hash,
        "sources": inputs.sources,
    }  # fmt: skip
    write_document(manifest_path(archive), {**document, **(origin or {}), "features": inputs.features})


def read_manifest(archive: Path) -> dict[str, Any]:
    path = manifest_path(archive)
    try:
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        wrong = [name for name, kind in COMPARED.items() if not isinstance(known[name], kind)]
    except FileNotFoundError:
        raise FileFormatError(archive, f"has no manifest {path.name} beside it; copy it along, or {AGAIN}") from None
    except OSError as problem:
        raise FileFormatError(path, f"cannot be read: {problem.strerror or problem}") from None
    except KeyError as missing:
        raise FileFormatError(path, f"is not a manifest: it lacks {missing.args[0]}") from None
    except (ValueError, TypeError, RecursionError) as problem:
        raise FileFormatError(path, f"is not a manifest: {problem}") from None
    if wrong:
        raise FileFormatError(path, f"is not a manifest: {wrong[0]} is of another kind")
    return known


def _difference(fitted: Any, computed: Mapping[str, Sequence[str]]) -> str:
    for name, features in fitted.items():
        now = computed.get(name, ())
        for place in range(max(len(features), len(now))):
            pair = [each[place] if place < len(each) else "nothing" for each in (features, now)]
            if pair[0] != pair[1]:
                return f" ({name}, number {place + 1}: {pair[0]} then, {pair[1]} now)"
    return ""


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


SCHEMA, FOREST = 3, ("features", "borders", "leaves", "bias")  # Arrays of a forest in an archive
UNREADABLE = (OSError, EOFError, KeyError, ValueError, NotImplementedError, BadZipFile, zlib.error)
"""What reading a zip of arrays raises where it is cut short or overwritten."""
POOLED = "*"  # In place of a GPU's name: a model of several GPUs, for those that were never measured


class Entry(NamedTuple):
    """One learned residual: of which kernels, on which GPU, and how far to trust it."""

    family: str
    gpu: str
    engine: str
    variant: str  # Dtype, kernel or whatever else splits a family; empty where nothing does
    rows: int
    offset: float  # Added to the forest's shrunken answer
    shrink: float  # How much of the forest's answer is believed: 1 on the GPU it was fitted on
    low: float
    high: float  # 10th and 90th percentile of log(measured / predicted) on rows that were held out
    held_out_error: float  # Mean absolute error of latency on those rows, as a fraction
    near: Mapping[str, tuple[float, float]] = {}
    """Of several GPUs' models, both ends for GPUs of an architecture that is among them, by the name of its kernels."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.family, self.gpu, self.engine, self.variant

    def on(self, architecture: str) -> Entry:
        low, high = self.near.get(architecture, (self.low, self.high))
        return self._replace(low=low, high=high)


class Artifact:
    """The file that a fit leaves: arrays (``.npz``) with a JSON header; no code, and forests are read on demand."""

    def __init__(
        self, path: Path, arrays: Mapping[str, Array], header: dict[str, Any],
        entries: dict[tuple[str, str, str, str], tuple[int, Entry]],
    ):  # fmt: skip
        self.path = path
        self._arrays = arrays
        self.header = header
        self._entries = entries
        self._forests: dict[int, Forest] = {}

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(entry for _, entry in self._entries.values())

    def find(self, family: str, gpu: str, engine: str, variant: str) -> tuple[Entry, Forest] | None:
        """The model of exactly these kernels on this GPU, if there is one."""
        found = self._entries.get((family, gpu, engine, variant))
        if found is None:
            return None
        number, entry = found
        if number not in self._forests:
            self._forests[number] = self._read_forest(number)
        return entry, self._forests[number]

    def with_models(self, models: Sequence[tuple[Entry, Forest]]) -> Artifact:
        """The same with models that were fitted since, which take the place of those with the same key."""
        entries, forests = dict(self._entries), dict(self._forests)
        for number, (entry, forest) in enumerate(models, start=1):
            entries[entry.key], forests[-number] = (-number, entry), forest
        extended = Artifact(self.path, self._arrays, self.header, entries)
        extended._forests = forests
        return extended

    @property
    def fitted_groups(self) -> Array:
        try:
            return np.asarray(self._arrays["groups"])
        except UNREADABLE as problem:
            raise FileFormatError(self.path, f"is damaged: its list of groups cannot be read ({problem})") from None

    def _read_forest(self, number: int) -> Forest:
        arrays = self._arrays
        try:
            features, borders, leaves, bias = (arrays[f"{number}/{name}"] for name in FOREST)
            return Forest(features, borders, leaves.astype(np.float32), float(bias))
        except UNREADABLE as problem:
            raise FileFormatError(self.path, f"is damaged: model {number} cannot be read ({problem})") from None


def load_artifact(path: Path, inputs: Inputs = KERNELS, *, checked: bool = True) -> Artifact:
    try:
        arrays = open_arrays(path)
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
        check_manifest(path, arrays, inputs)
    return Artifact(path, arrays, header, {entry.key: (number, entry) for number, entry in enumerate(listed)})


def save_artifact(
    path: Path, models: Sequence[tuple[Entry, Forest]], provenance: dict[str, Any], groups: Array, *,
    inputs: Inputs = KERNELS, origin: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write an artefact and its manifest, whole or not at all; ``groups``: hashes of the rows that were fitted on."""
    header = {"schema": SCHEMA, **provenance, "models": [entry._asdict() for entry, _ in models]}
    arrays: dict[str, Any] = {"header": np.frombuffer(json.dumps(header, sort_keys=True).encode(), dtype=np.uint8)}
    arrays["groups"] = np.sort(groups)
    for number, (_, forest) in enumerate(models):
        # Leaves are corrections of a fraction of a percent to a few percent each: half precision is far finer.
        parts = forest.features, forest.borders, forest.leaves.astype(np.float16), np.array(forest.bias)
        arrays |= {f"{number}/{name}": part for name, part in zip(FOREST, parts, strict=True)}
    temporary = path.with_name(f"{path.name}.part.npz")
    try:
        np.savez_compressed(temporary, **arrays)
        os.replace(temporary, path)
        write_manifest(path, open_arrays(path), inputs, origin)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {problem.strerror or problem}") from None
