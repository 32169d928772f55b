"""Published readings of board power as numbers: what each row did, how long its loop was, what the meter said.

The meter of these boards gives the mean of the last second. The collector repeats a launch at most 3,000 times, so that
loops of short kernels are over before the meter has seen them alone (`predict.board_power`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.hardware import load_gpu
from infercast.lab.fit.samples import stable_hash
from infercast.predict.board_power import Loops, loops_of
from infercast.predict.identity import DEFAULT_ENGINE, kernel_profile
from infercast.predict.learned import Learned, default_artifact
from power_tables import PowerRows, read_power

Array = npt.NDArray[Any]

ARRAYS = ("parts", "seconds", "lasts", "shape")
KERNEL = -1
"""Where the kernel's number is among what a row is told apart by."""


@dataclass(frozen=True, slots=True)
class Points(Loops):
    """Rows of one family and GPU, with what the meter said."""

    gpu: str
    family: str
    watts: Array
    group: Array

    def part(self, chosen: Array) -> Points:
        """Some of the rows."""
        arrays = (getattr(self, name)[chosen] for name in ARRAYS)
        return Points(*arrays, self.gpu, self.family, self.watts[chosen], self.group[chosen])


def points_of(path: Path, every: int = 1, *, predicted: bool = False) -> list[Points]:
    """All rows of a file, or every so many of them, by family and GPU; with latencies as measured or ``predicted``."""
    found: dict[tuple[str, str], list[tuple[str, Points]]] = defaultdict(list)
    predictor = Learned(default_artifact(), kernel_profile(), as_tabled=True)
    for each in read_power(path, every=every):
        rows = _estimated(each, predictor) if predicted else each
        found[rows.gpu, rows.family].append((_kernel(rows), _points(rows)))
    return [_joined(each) for each in found.values()]


def _estimated(rows: PowerRows, predictor: Learned) -> PowerRows:
    """The same with the time that its kernels are estimated to take."""
    gpu = load_gpu(rows.gpu)
    seconds = (np.ravel(predictor.seconds(op, gpu)) * count for op, count in rows.calls)
    return replace(rows, seconds=np.broadcast_to(sum(seconds), rows.seconds.shape))


def _kernel(rows: PowerRows) -> str:
    """What kernels are put in order by: the default engine's come first."""
    name = "" if rows.family == "recurrent" else rows.kernel  # there the operator tells which kernel it is
    return f"{int(rows.engine != DEFAULT_ENGINE)} {name}"


def _points(rows: PowerRows) -> Points:
    loops = loops_of(rows.family, rows.calls, load_gpu(rows.gpu), rows.seconds, copies=rows.copies)
    prefix = f"{rows.family}|{rows.gpu}|"
    names, where = np.unique(rows.group, return_inverse=True)
    group = np.array([stable_hash(prefix + name) for name in names])[where]
    return Points(*(getattr(loops, name) for name in ARRAYS), rows.gpu, rows.family, rows.watts, group)


def _joined(points: list[tuple[str, Points]]) -> Points:
    kernels = sorted({kernel for kernel, _ in points})
    for kernel, each in points:
        each.shape[:, KERNEL] = kernels.index(kernel)
    arrays = (np.concatenate([getattr(each, name) for _, each in points]) for name in ARRAYS)
    first = points[0][1]
    watts, group = (np.concatenate([getattr(each, name) for _, each in points]) for name in ("watts", "group"))
    return Points(*arrays, first.gpu, first.family, watts, group)


def by_family(points: list[Points]) -> Iterator[tuple[str, dict[str, Points]]]:
    """Families with their rows by GPU."""
    for family in dict.fromkeys(each.family for each in points):
        yield family, {each.gpu: each for each in points if each.family == family}
