"""Measured rows as operators, and the checks that a table must pass before anything is learned from it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from infercast.errors import FileFormatError, UnknownNameError
from infercast.hardware import load_gpu
from infercast.ops import Op
from infercast.ops.op import BYTES
from infercast.predict.roofline import Roofline

Array = npt.NDArray[Any]
LEFT_OUT = ("trtllm",)  # Engines without estimates, except for families that no other engine has


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured rows of one operator type that differ in array sizes only."""

    family: str
    gpu: str
    engine: str
    dtype: str
    kernel: str  # Name of the kernel where the table has one, else empty
    group: Array  # For each row, what must stay together in a split
    op: Op
    seconds: Array
    index: Array
    other_seconds: Array | None = None
    """Seconds of other kernels that were timed together with it, as they are estimated, less what physics counts to it
    and was not timed; None: of none."""

    @property
    def own(self) -> Array:
        """Seconds that are left for the kernel itself, never less than a small part of all."""
        others = 0.0 if self.other_seconds is None else self.other_seconds
        return np.maximum(self.seconds - others, LEAST * self.seconds)

    def whole(self, own: Array) -> Array:
        """Seconds of everything that was timed, where the kernel itself takes ``own``."""
        return own if self.other_seconds is None else own + self.other_seconds


def rows_of(
    part: Any,
    family: str,
    dtype: str,
    op: Op,
    group: Array | str | int,
    kernel: str = "",
    *,
    engine: str = "",
    time: tuple[str, float] = ("latency_us", 1e-6),
    other_seconds: Array | None = None,
) -> Rows:
    """Rows of a table that are one operator: ``time`` is a column and its unit, a ``group`` may be that of all rows."""
    seconds, gpu, index = np.asarray(part[time[0]]) * time[1], np.asarray(part["gpu"])[0], np.asarray(part["index"])
    engine = engine or np.asarray(part["engine"])[0]
    groups = np.full(len(seconds), group) if isinstance(group, str | int) else group
    return Rows(family, gpu, engine, dtype, kernel, groups, op, seconds, index, other_seconds)


LEAST = 0.05  # Of what was timed, that the kernel itself takes at least, whatever its neighbours are estimated to take


# What a table must be before anything is learned from it: each fault is named with its file, column and first row.

NAMES = ("gpu", "engine", "dtype", "kv_dtype", "kernel", "routing", "op")
LARGEST = 2**53  # Sizes up to here are the same number as integers and as floats
AT_MOST = {"kv_heads": "heads", "topk": "experts", "ep": "experts", "tp": "inter"}
ROUTINGS = re.compile(r"uniform|balanced|power_law_\d+(\.\d+)?")
TOO_FAST, TOO_SLOW = 30.0, 300.0
"""No kernel beats the roofline by this factor, and no GPU's median kernel is so much slower: the unit is another."""


def read_parquet(path: Path, columns: Iterable[str], hint: str = "") -> pandas.DataFrame:
    """A parquet file that has these columns, with its row numbers as ``index``."""
    try:
        table = pandas.read_parquet(path)
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as problem:
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise FileFormatError(path, f"cannot be read as parquet: {reason}") from None
    for name in columns:
        if name not in table:
            raise FileFormatError(path, f"lacks the column {name!r}{hint}")
    return table.assign(index=np.arange(len(table)))


def read_checked(path: Path, columns: tuple[str, ...], extra_dtypes: Iterable[str] = ()) -> pandas.DataFrame:
    """A parquet file as a table of known names and of numbers that can be sizes and latencies."""
    needed = ("gpu", "engine", "latency_us", *columns)
    table = read_parquet(path, needed, f"; it needs {', '.join(needed)}")
    if table.empty:
        raise FileFormatError(path, "has no rows")
    for name in NAMES:
        if name in table:
            table[name] = _names(path, table[name], needed=name in ("gpu", "engine", *columns))
    if "dtype" in columns:  # engines without estimates have formats of their own
        table = table[~table.engine.isin(LEFT_OUT)].reset_index(drop=True)
    may_be_zero = ("window", "kv_len")
    for name in columns:
        if name not in NAMES:
            column = table[name]
            values = _numbers(path, column)
            least = 0 if column.name in may_be_zero else 1
            wrong = ~((values >= least) & (values <= LARGEST) & (values == np.floor(values)))
            _refuse(path, str(column.name), values, wrong, f"must be a whole number of at least {least}")
            table[name] = column.astype(np.int64)
    for name, bound in AT_MOST.items():
        if name in columns:
            _refuse(path, name, table[name], (table[name] > table[bound]).to_numpy(), f"must be at most {bound!r}")
    latency = _numbers(path, table.latency_us)
    _refuse(path, "latency_us", latency, ~(np.isfinite(latency) & (latency > 0)), "must be above 0")
    _check_known(path, table, columns, {*BYTES, *extra_dtypes})
    return table


def _names(path: Path, column: pandas.Series, *, needed: bool) -> pandas.Series:
    if needed:
        _refuse(path, str(column.name), column.to_numpy(), column.isna().to_numpy(), "must be a name")
    return column.astype(object).where(column.notna(), "").astype(str)


def _numbers(path: Path, column: pandas.Series) -> Array:
    values: Array = pandas.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    _refuse(path, str(column.name), column.to_numpy(), np.isnan(values), "must be a number")
    return values


def _check_known(path: Path, table: pandas.DataFrame, columns: tuple[str, ...], dtypes: set[str]) -> None:
    for name in table.gpu.unique():
        try:
            load_gpu(name)
        except UnknownNameError as problem:
            _refuse(path, "gpu", table.gpu.to_numpy(), (table.gpu == name).to_numpy(), str(problem), show=False)
    collectives = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "all_to_all")
    known: Mapping[str, Any] = {"dtype": dtypes, "kv_dtype": BYTES, "op": collectives}
    for column, names in known.items():
        if column in columns:
            for name in sorted(set(table[column]) - set(names)):
                unknown = str(UnknownNameError(column, name, names))
                _refuse(path, column, table[column].to_numpy(), (table[column] == name).to_numpy(), unknown, show=False)
    if "routing" in columns:
        fits = table.routing.str.fullmatch(ROUTINGS.pattern).to_numpy(dtype=bool)
        _refuse(path, "routing", table.routing.to_numpy(), ~fits, "must be uniform, balanced or power_law_NUMBER")


def _refuse(path: Path, column: str, values: Any, wrong: Array, problem: str, *, show: bool = True) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        found = f", not {values[row]!s}" if show else ""
        raise FileFormatError(path, f"row {row}, column {column!r}: {problem}{found}")


def in_microseconds(path: Path, parts: Iterable[Rows]) -> Iterator[Rows]:
    roofline, first = Roofline(), dict[tuple[str, str], int]()
    ratios: dict[tuple[str, str], list[Array]] = defaultdict(list)
    for rows in parts:
        ratio = rows.seconds / np.ravel(roofline.seconds(rows.op, load_gpu(rows.gpu)))
        if (ratio < 1 / TOO_FAST).any():
            at = int(np.argmin(np.where(ratio < 1 / TOO_FAST, rows.index, np.iinfo(np.int64).max)))
            raise FileFormatError(
                path,
                f"row {rows.index[at]}, column 'latency_us': {rows.seconds[at] * 1e6:.3g} us is {1 / ratio[at]:.0f} "
                f"times less than {rows.gpu} can do; is it in milliseconds or seconds?",
            )
        ratios[rows.gpu, rows.engine].append(ratio)
        first[rows.gpu, rows.engine] = min(first.get((rows.gpu, rows.engine), LARGEST), int(rows.index.min()))
        yield rows
    for (gpu, engine), found in ratios.items():
        middle = float(np.median(np.concatenate(found)))
        if middle > TOO_SLOW:
            raise FileFormatError(
                path,
                f"row {first[gpu, engine]}, column 'latency_us': the rows of {gpu} and {engine} are {middle:.0f} times "
                "slower than the GPU could be; are they in nanoseconds?",
            )
