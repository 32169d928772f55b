"""Rows of a table: a batch of cases built, timed cold, warm or at the power limit, and written down."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from infercast.measure.case import Case, Launch
from infercast.measure.device import State
from infercast.measure.names import short_name, tile_of
from infercast.measure.sections import LostRecordError, Sections, Timing
from infercast.measure.table import Row

REPEATS, MORE_REPEATS = 4, 12
ROUNDS = 3
"""Of heavy kernels at the power limit."""
STEADY = 0.01
"""Standard error of the mean, over the median, above which a case is repeated more often."""
DISTURBED = 1.5
"""A run that takes so many times the median is left out."""
HEAVY_FLOPS = 5e10
"""Products of this size run into the power limit when nothing but products runs."""
HEAT_SECONDS = 0.25
COOL_SECONDS = 1.5
"""How long the chip may take to get back to its full clock after heavy kernels, before anything else is measured."""


class Bench(Protocol):
    """Builds and times kernels."""

    def build(self, case: Case) -> Launch:
        """A kernel ready to run."""

    def time(self, launches: Sequence[Launch], repeats: int) -> list[Timing]:
        """Cold and warm."""

    def time_sustained(self, launches: Sequence[Launch], repeats: int, heat_seconds: float) -> list[Timing]:
        """Among each other at the power limit."""

    def repeat_for(self, launch: Launch, seconds: float, each: float) -> float:
        """On and on for so long; returns how many seconds one launch took."""

    def details(self, case: Case) -> dict[str, Any]:
        """What else is known of a case's kernel."""


class Watch(Protocol):
    """Looks at clocks and power meanwhile."""

    def since(self, start: float) -> State:
        """The chip since ``start`` (of ``time.monotonic``)."""

    def wait_until_cool(self, most: float) -> None:
        """Return when the power limit no longer holds the clock back, or after so many seconds."""


@dataclass
class Tally:
    """What became of the cases so far."""

    tried: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """Cases that this machine cannot run, by the reason."""

    def skip(self, case: Case, problem: Exception) -> None:
        """Count a case that cannot be measured."""
        first_line = (str(problem).splitlines() or [""])[0][:120]
        kind = "" if isinstance(problem, NotImplementedError | ImportError) else type(problem).__name__ + " "
        reason = f"{case.family}: {kind}{first_line}"
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


def is_heavy(case: Case) -> bool:
    """Whether a kernel runs into the power limit: such kernels are measured apart from others."""
    return case.flops >= HEAVY_FLOPS


def measure_batch(cases: Sequence[Case], bench: Bench, monitor: Watch, tally: Tally, deadline: float) -> list[Row]:
    """Rows of those cases that this machine can run and that could be built (compiled) before the deadline."""
    ready: list[tuple[Case, Launch]] = []
    for case in cases:
        if time.monotonic() > deadline:
            break
        tally.tried += 1
        try:
            launch = bench.build(case)
            launch()
            ready.append((case, launch))
        except Exception as problem:  # of every kind where a package's version, the chip or its memory is not up to it
            tally.skip(case, problem)
    if not ready:
        return []
    start = time.monotonic()
    try:
        if is_heavy(cases[0]):
            timings = bench.time_sustained([launch for _, launch in ready], ROUNDS, HEAT_SECONDS)
            start += HEAT_SECONDS
        else:
            monitor.wait_until_cool(COOL_SECONDS)
            start = time.monotonic()
            timings = _time_light([launch for _, launch in ready], bench)
    except LostRecordError as problem:
        for case, _ in ready:
            tally.skip(case, problem)
        return []
    state = monitor.since(start)
    rows = []
    for (case, launch), timing in zip(ready, timings, strict=True):
        if timing.is_whole:
            chip = {"sm_mhz": state.sm_mhz, "watts": state.watts, "capped": state.capped}
            rows.append(_row(case, launch.engine, timing) | chip | _details(case, bench))
        else:
            tally.skip(case, LostRecordError("the profiler saw no kernel in one of the runs"))
    return rows


def _details(case: Case, bench: Bench) -> dict[str, Any]:
    """What else is known, nothing where another version of the engine does not tell."""
    try:
        return bench.details(case)
    except Exception:
        return {}


def _time_light(launches: Sequence[Launch], bench: Bench) -> list[Timing]:
    """A few runs of each, more of those whose runs differ."""
    timings = bench.time(launches, REPEATS)
    unsteady = [number for number, timing in enumerate(timings) if _error(_totals(timing.cold)) > STEADY]
    if unsteady:
        again = bench.time([launches[number] for number in unsteady], MORE_REPEATS)
        for number, timing in zip(unsteady, again, strict=True):
            timings[number] = timing
    return timings


def _row(case: Case, engine: str, timing: Timing) -> Row:
    kernels = timing.cold[-1]
    main = max(kernels, key=lambda kernel: kernel.microseconds)
    cold = _totals(timing.cold)
    return {
        "key": case.key,
        "family": case.family,
        "engine": engine,
        **case.shape,
        "latency_us": round(_typical(cold), 3),
        "burst_us": round(_typical(_totals(timing.burst)), 3),
        "warm_us": round(_typical(_totals(timing.warm)), 3),
        "error": round(_error(cold), 4),
        "repeats": len(cold),
        "kernels": len(kernels),
        "kernel": short_name(main.name),
        "kernel_us": round(main.microseconds, 3),
        "grid": main.grid,
        "block": main.block,
        "tile": tile_of(main.name),
        "split_k": any("splitK" in kernel.name for kernel in kernels),
    }


def _totals(sections: Sections) -> npt.NDArray[np.float64]:
    """Microseconds of each run, all its kernels together."""
    return np.array([sum(kernel.microseconds for kernel in kernels) for kernels in sections])


def _typical(totals: npt.NDArray[np.float64]) -> float:
    """The mean, as of a model's many layers, without runs that something disturbed."""
    return float(np.mean(totals[totals <= DISTURBED * np.median(totals)]))


def _error(totals: npt.NDArray[np.float64]) -> float:
    """Standard error of the mean over the median."""
    return float(np.std(totals, ddof=1) / np.sqrt(len(totals)) / max(np.median(totals), 1e-9))
