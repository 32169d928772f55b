"""Kernel times on a grid of sizes: tables by tokens and rows, and attention surfaces with log-linear interpolation."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from itertools import chain, product
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
from numpy._core._multiarray_umath import __cpu_features__  # type: ignore[import-not-found]

from infercast.hardware import Gpu
from infercast.ops import Call, Op
from infercast.ops.op import Quantity
from infercast.predict.board_power import THROTTLED, weight_of
from infercast.predict.estimate import ADDED_SHARE, BESIDE_SECONDS, SHARED_SECONDS, SLOWED_SECONDS, SLOWED_SHARE
from infercast.predict.roofline import Predictor

Table = npt.NDArray[Any]

MOST_KNOWN, LARGEST_KNOWN = 4096, 4096  # Grids of kernels whose times are kept, and the most points of one
_known: dict[tuple[object, ...], tuple[Quantity, Predictor, Gpu]] = {}


def grid_seconds(predictor: Predictor, op: Op, gpu: Gpu) -> Quantity:
    """Seconds of a kernel at all sizes of a grid, timed once: layouts of one model have most kernels in common."""
    values = [getattr(op, name) for name in type(op).__dataclass_fields__]  # type: ignore[attr-defined]
    if [each for each in values if isinstance(each, np.ndarray) and each.size > LARGEST_KNOWN]:
        return predictor.seconds(op, gpu)
    sizes = [(each.shape, each.tobytes()) if isinstance(each, np.ndarray) else each for each in values]
    key = (id(predictor), id(gpu), type(op), *sizes)  # both are kept below, so that no others take their ids
    if (found := _known.get(key)) is None:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        shelf = _shelf_of(predictor, gpu)
        seconds = predictor.seconds(op, gpu) if shelf is None else shelf.seconds(predictor, op, gpu)
        found = _known[key] = seconds, predictor, gpu
    return found[0]


# What outlives a process: times of grids by all that they follow from, in a file for each predictor and GPU.

Read = Callable[[str], bytes]  # The file of a name ...
Write = Callable[[str, bytes], None]  # ... and a new one


class Shelf:
    """Seconds of grids of one predictor on one GPU, by digests of their operators."""

    def __init__(self, name: str, content: bytes = b"") -> None:
        self.name, self.has_grown, at = name, False, 0
        self.grids: dict[str, tuple[list[int], bytes]] = {}
        check, _, rest = content.partition(b"\n")
        if not rest or check != b"%d" % crc32(rest):  # there is none, or it is damaged
            return
        index, _, numbers = rest.partition(b"\n")
        for grid, *shape in json.loads(index):
            self.grids[grid] = shape, numbers[at : at + 8 * math.prod(shape)]
            at += 8 * math.prod(shape)

    @property
    def content(self) -> bytes:
        index = json.dumps([[grid, *shape] for grid, (shape, _) in self.grids.items()]).encode()
        rest = b"\n".join([index, b"".join([numbers for _, numbers in self.grids.values()])])
        return b"%d\n%b" % (crc32(rest), rest)

    def seconds(self, predictor: Predictor, op: Op, gpu: Gpu) -> Quantity:
        digest = _digest(op)
        if digest in self.grids:
            shape, numbers = self.grids[digest]
            return np.frombuffer(bytearray(numbers)).reshape(shape)
        seconds = predictor.seconds(op, gpu)
        if digest and isinstance(seconds, np.ndarray) and seconds.dtype == np.float64:
            self.grids[digest], self.has_grown = ([*seconds.shape], seconds.tobytes()), True
        return seconds


_shelves: dict[object, tuple[Shelf, Predictor, Gpu]] = {}  # Those of this command ...
_kept: list[tuple[object, Read, Write]] = []  # ... and how they are kept, if they are


@contextmanager
def kept_by(about: object, read: Read, write: Write) -> Iterator[None]:
    """Keep times of grids; ``about``: what they follow from beside predictor, GPU and operator."""
    _kept[:] = [(about, read, write)]
    try:
        yield
    finally:
        write_shelves()
        _kept.clear()
        _shelves.clear()


def write_shelves(most: int = 4 * 2**20) -> None:
    """With those that others have written meanwhile, unless that is more than a number of bytes."""
    for (_, read, write), (shelf, _, _) in product(_kept, _shelves.values()):
        if shelf.has_grown and shelf.name:
            both = Shelf(shelf.name, read(shelf.name)).grids | shelf.grids
            shelf.grids = both if sum(len(each) for _, each in both.values()) <= most else shelf.grids
            write(shelf.name, shelf.content)
            shelf.has_grown = False


def _shelf_of(predictor: Predictor, gpu: Gpu) -> Shelf | None:
    content, key = getattr(predictor, "content", ""), (id(predictor), id(gpu))
    if not content or not _kept:
        return None
    if key not in _shelves:
        # The last bits depend on how a processor computes exponentials.
        name = _digest([_kept[0][0], content, gpu, np.__version__, __cpu_features__])
        _shelves[key] = Shelf(name, _kept[0][1](name) if name else b""), predictor, gpu
    return _shelves[key][0]


def _digest(value: object) -> str:
    """Of plain values, arrays, and dataclasses of such; empty of others."""
    try:
        return sha256(json.dumps(value, default=_plain).encode()).hexdigest()
    except (TypeError, ValueError):
        return ""


def _plain(value: Any) -> object:
    if isinstance(value, np.ndarray):
        return [value.shape, value.dtype.str, value.tobytes().hex()]
    if hasattr(value, "__dataclass_fields__"):
        return [type(value).__name__, *((name, getattr(value, name)) for name in value.__dataclass_fields__)]
    return {**value} if isinstance(value, Mapping) else [type(value).__name__, *sorted(value)]


DENSE, SPACING = 128, 32  # For costly estimates: every size up to the first, and every n-th beyond


def sequence_kernels(
    calls_of: Callable[[Table, Table], list[Call]], *, has_images: bool = False
) -> tuple[dict[str, str], dict[str, int]]:
    """The family of each attention kernel, and its launches per step; the last is an encoder's of images."""
    families: dict[str, str] = {}
    launches: dict[str, int] = {}
    for batch in (np.array([1, 2]), np.array([1]), np.array([2])):
        counts = Counter[str]()
        for call in calls_of(batch, batch):
            families.setdefault(call.name, call.op.family)
            counts[call.name] += call.count
        launches |= {name: count for name, count in counts.items() if count > launches.get(name, 0)}
    if has_images:
        families["image_encoder"], launches["image_encoder"] = "encoder", 1
    return families, launches


def fuse_prefill_decode(prompts: float, decodes: float, launches: int, padded: float) -> float:
    """`infercast.predict.estimate.together` for plain numbers, on which numpy is slow."""
    if not prompts or not decodes:  # each has its own kernel
        return prompts + decodes
    if padded:
        return prompts + max(decodes, padded)
    long = prompts / (prompts + SLOWED_SECONDS * launches)
    prompts *= 1.0 + SLOWED_SHARE * long * (decodes / (decodes + BESIDE_SECONDS * launches))
    longer, shorter = (prompts, decodes) if prompts > decodes else (decodes, prompts)
    return longer + ADDED_SHARE * max(shorter - SHARED_SECONDS * launches, 0.0)


def weighted_sum(counts: Mapping[int, float], table: Table) -> Table:
    return np.asarray(np.array([*counts.values()]) @ table[[*counts]]) if counts else np.zeros(table.shape[1])


def products_of(calls: list[Call]) -> Table:
    """FLOP of a step's GEMMs, by power: narrow formats count half."""
    throttled = (call for call in calls if call.op.family in THROTTLED)
    return np.asarray(sum(call.count * call.op.flops * weight_of(call.op.compute_dtype) for call in throttled))


def sparse_sizes(most: int, padded_to: tuple[int, ...]) -> Table:
    """Sizes to estimate: those that graphs pad to (or every small one), and a regular grid beyond."""
    small = padded_to or range(1, DENSE + 1)
    first = small[-1] // SPACING * SPACING + SPACING
    return np.array(sorted({*small, *range(first, most + SPACING, SPACING)}))


Array = npt.NDArray[Any]
Timing = Callable[..., Array]
"""(queries, keys), each (batches, sequences), to (batches, kernels) seconds; a third array has multiplicities."""
SHORTEST = 16
FINE, COARSE, ROUGH = 2.0, 1.0, 0.5
STEPS_AN_OCTAVE = 8
ROWS_AT_ONCE = 8  # Numbers of sequences timed together: a run that meets one meets its neighbours
LEAST_CACHED = 64
PAGE = 512  # Lengths cached at once, and the maximum steps per lookup


class DecodeSurface:
    """Seconds of each attention kernel for a decode batch; integer mean lengths are cached in pages, others linear."""

    def __init__(self, time: Timing, max_sequences: int, max_keys: int) -> None:
        self._time = time
        self._counts = _counts(max_sequences)
        self._lengths = _grid(SHORTEST, max(max_keys, 2 * SHORTEST), FINE)
        self._log_lengths = np.log(self._lengths)
        self._log_counts: list[float] = np.log(self._counts).tolist()
        self._rows: dict[int, Array] = {}
        self._curves: dict[int, Array] = {}
        self._pages: dict[tuple[int, int], list[list[float]]] = {}

    def __call__(self, num_sequences: int, total_keys: int, steps: int = 1) -> list[list[float]]:
        """Seconds of each kernel in this step and the next ones, as many as requested or as the page has."""
        length, rest = divmod(total_keys, num_sequences)
        number, start = divmod(length, PAGE)
        page = self._pages.get((num_sequences, number))
        if page is None:
            page = self._pages[num_sequences, number] = self._make_page(num_sequences, number)
        end = start + steps if start + steps < PAGE else PAGE
        if not rest:
            return [column[start:end] for column in page]
        share, places, found = rest / num_sequences, range(start, end), list[list[float]]()
        for column in page:
            found += [[column[at] + share * (column[at + 1] - column[at]) for at in places]]
        return found

    def next_step(self, num_sequences: int, total_keys: int) -> list[float]:
        return [*chain.from_iterable(self(num_sequences, total_keys))]

    def _make_page(self, num_sequences: int, number: int) -> list[list[float]]:
        curve = self._curves.get(num_sequences)
        if curve is None:
            # Logarithms of the seconds of each kernel (columns) at each length of the grid, between two rows of it.
            points = _points(self._log_counts, num_sequences)
            curve = self._curves[num_sequences] = np.asarray(sum(share * self._row(number) for number, share in points))
        return [np.exp(np.interp(_log_page(number), self._log_lengths, column)).tolist() for column in curve.T]

    def _row(self, number: int) -> Array:
        """The grid at one number of sequences, timed with its neighbours on first use."""
        if number not in self._rows:
            first = number - number % ROWS_AT_ONCE
            counts = self._counts[first : first + ROWS_AT_ONCE]
            keys, sequences = np.tile(self._lengths, counts.size), np.repeat(counts, self._lengths.size)
            seconds = self._time(np.ones((1, 1), dtype=np.int64), keys[:, None], sequences[:, None])
            self._rows |= enumerate(_safe_log(seconds).reshape(counts.size, self._lengths.size, -1), start=first)
        return self._rows[number]


@lru_cache(maxsize=1024)
def _log_page(number: int) -> Array:
    """Logarithms of the whole lengths of a page and the one after."""
    return np.asarray(np.log(np.maximum(np.arange(number * PAGE, (number + 1) * PAGE + 1), 1)))


class PromptSurface:
    def __init__(self, time: Timing, max_tokens: int, max_keys: int) -> None:
        self._time = time
        most_prompts = 64
        self._counts = _grid(1, most_prompts, ROUGH)
        self._lengths = _grid(2, max(max_tokens, 4), FINE)
        self._cached = np.concatenate(([0], _grid(LEAST_CACHED, max(max_keys, 2 * LEAST_CACHED), COARSE)))
        logarithms = (np.log(self._counts), np.log(self._lengths), np.log(self._cached + LEAST_CACHED))
        self._axes: list[list[float]] = [axis.tolist() for axis in logarithms]
        self._columns: dict[tuple[int, int], list[list[float]]] = {}
        self._whole: dict[int, list[float]] = {}

    def __call__(self, prompts: Sequence[tuple[int, int]]) -> list[float]:
        """Seconds of each kernel for (new, computed) tokens, as equal prompts with the same tokens and token pairs."""
        if len(prompts) == 1 and not prompts[0][1]:
            return self._whole.get(prompts[0][0]) or self._time_whole(prompts[0][0])
        total = sum([new for new, _ in prompts])
        length = sum([new * new for new, _ in prompts]) / total  # the token-weighted mean prompt length
        cached = sum([new * computed for new, computed in prompts]) / total
        by_count, by_length, by_cached = self._axes
        columns, lines = _points(by_cached, cached + LEAST_CACHED), _points(by_length, length)
        corners: list[tuple[float, list[float]]] = []
        for number, table_share in _points(by_count, total / length):
            tables = [(self._column(number, column), share) for column, share in columns]
            for line, row_share in lines:
                corners += [(table_share * row_share * share, table[line]) for table, share in tables]
        if len(corners[0][1]) == 1:
            return [math.exp(sum([share * corner[0] for share, corner in corners]))]
        kernels = range(len(corners[0][1]))
        return [math.exp(sum([share * corner[kernel] for share, corner in corners])) for kernel in kernels]

    def _time_whole(self, length: int) -> list[float]:
        """One prompt without cached tokens: the most frequent case, on an edge of the grid."""
        table, axis, where = self._column(0, 0), self._axes[1], math.log(length)
        below = min(max(bisect_right(axis, where) - 1, 0), len(axis) - 2)
        share = min(max((where - axis[below]) / (axis[below + 1] - axis[below]), 0.0), 1.0)
        pairs = zip(table[below], table[below + 1], strict=True)
        known = self._whole[length] = [math.exp((1.0 - share) * low + share * high) for low, high in pairs]
        return known

    def _column(self, number: int, column: int) -> list[list[float]]:
        """Log seconds by length and kernel for one number of prompts and of cached tokens, timed on first use."""
        found = self._columns.get((number, column))
        if found is None:
            count, before = int(self._counts[number]), self._cached[column]
            seconds = self._time(_repeat(self._lengths, count), _repeat(self._lengths + before, count))
            found = self._columns[number, column] = _safe_log(seconds).tolist()
        return found


def in_parts(tables: Sequence[Table], calls: Sequence[Call], number: int, *thresholds: int) -> Sequence[Table]:
    """Seconds of kernels (columns) by tokens (rows); large steps run as parts that hide each other's exchanges."""
    if number < 2:
        return tables
    exchanges, found = np.array([call.name in ("experts_dispatch", "experts_combine") for call in calls]), []
    for table, least in zip(tables, thresholds, strict=True):
        tokens = np.arange(len(table))
        parts = number * table[-(-tokens // number)]
        exchanged = parts @ exchanges
        shown = np.maximum(0.0, 2.0 * exchanged - parts.sum(axis=1)) / np.maximum(exchanged, 1e-12)
        parts[:, exchanges] *= shown[:, None]
        found.append(np.where((tokens >= least)[:, None], parts, table))
    return found


def _counts(most: int) -> Array:
    """Every small number of sequences, and eight per octave beyond: GPU occupancy is not a smooth function of it."""
    counts, step = [*range(1, min(most, 2 * STEPS_AN_OCTAVE) + 1)], 2
    while counts[-1] < most:
        counts.append(counts[-1] + step)
        step *= 2 if counts[-1] == 2 * STEPS_AN_OCTAVE * step else 1
    return np.array(counts)


def _points(axis: list[float], value: float) -> tuple[tuple[int, float], ...]:
    """The grid points around a value on a log axis, with weights; one if it is on a point or off the axis."""
    where = math.log(value)
    below = bisect_right(axis, where) - 1
    if below < 0:
        return ((0, 1.0),)
    if below + 1 >= len(axis) or axis[below] == where:
        return ((min(below, len(axis) - 1), 1.0),)
    share = (where - axis[below]) / (axis[below + 1] - axis[below])
    return (below, 1.0 - share), (below + 1, share)


def _repeat(lengths: Array, count: int) -> Array:
    return np.broadcast_to(lengths[:, None], (lengths.size, count))


def _safe_log(seconds: Array) -> Array:
    return np.asarray(np.log(np.maximum(seconds, 1e-12)))


def _grid(first: int, last: int, density: float) -> Array:
    """Integers from ``first`` to ``last`` or just beyond, ``density`` per octave, independent of ``last``."""
    octaves = math.log2(max(last, first + 1) / first)
    points = first * np.exp2(np.arange(1 + math.ceil(octaves * density)) / density)
    return np.asarray(sorted(set(np.rint(points).astype(np.int64).tolist())))
