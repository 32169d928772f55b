"""The process that measures kernels which may break it: a few cases at a time, each noted before it is tried."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from infercast.measure.case import Case, Launch
from infercast.measure.device import Monitor, require_gpu
from infercast.measure.engines import choose_engine
from infercast.measure.isolated import kind_of
from infercast.measure.journal import Journal
from infercast.measure.plan import sweep_cases
from infercast.measure.rows import Bench, Tally, Watch, is_heavy, measure_batch
from infercast.measure.sections import Timing
from infercast.measure.table import Store

BATCH = 16
"""Cases that are timed and kept together."""
BROKEN = 3
"""Exit code where a kernel has broken the GPU's context."""


class JournalBench:
    """Another bench, which tells a journal what it is at and ends the process when the GPU no longer answers."""

    def __init__(self, bench: Bench, journal: Journal) -> None:
        self._bench, self._journal = bench, journal
        self._keys: list[str] = []

    def build(self, case: Case) -> Launch:
        """Built and run once, so that an error is this case's and not the next one's."""
        self._journal.at([case.key], "building")
        try:
            launch = self._bench.build(case)
            launch()
            require_gpu().cuda.synchronize()
        except Exception as problem:
            self._journal.skip(case, problem)
            self._check(problem)
            raise
        self._keys.append(case.key)
        return launch

    def _check(self, problem: Exception) -> None:
        """A context that is broken stays broken."""
        try:
            require_gpu().cuda.synchronize()
        except RuntimeError:
            self._journal.give_up((str(problem).splitlines() or [""])[0][:120])
            os._exit(BROKEN)

    def time(self, launches: Sequence[Launch], repeats: int) -> list[Timing]:
        """Cold and warm."""
        self._journal.at(self._keys, "timing")
        return self._bench.time(launches, repeats)

    def time_sustained(self, launches: Sequence[Launch], repeats: int, heat_seconds: float) -> list[Timing]:
        """Among each other at the power limit."""
        self._journal.at(self._keys, "timing")
        return self._bench.time_sustained(launches, repeats, heat_seconds)

    def repeat_for(self, launch: Launch, seconds: float, each: float) -> float:
        """On and on for so long."""
        return self._bench.repeat_for(launch, seconds, each)

    def details(self, case: Case) -> dict[str, object]:
        """What else is known of a case's kernel."""
        return self._bench.details(case)

    def forget(self) -> None:
        """The batch is kept."""
        self._keys = []


def measure_kinds(
    cases: Sequence[Case], store: Store, bench: JournalBench, monitor: Watch, journal: Journal, deadline: float
) -> None:
    """One kind of kernel after the other; each gets its share of the time that is left."""
    kinds = [list(own) for _, own in groupby(cases, key=kind_of)]
    for number, own in enumerate(kinds):
        now = time.monotonic()
        until = min(deadline, now + (deadline - now) / (len(kinds) - number) + 2.0)
        for batch in _batches(own):
            if time.monotonic() > until:
                break
            bench.forget()
            try:
                rows = measure_batch(batch, bench, monitor, Tally(), until)
            except RuntimeError as problem:  # a kernel has broken the GPU's context
                journal.give_up((str(problem).splitlines() or [""])[0][:120])
                os._exit(BROKEN)
            store.append([{"gpu": store.folder.name, **row} for row in rows])


def _batches(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Few cases each, light and heavy ones apart."""
    for heavy in (False, True):
        own = [case for case in cases if is_heavy(case) == heavy]
        yield from (own[start : start + BATCH] for start in range(0, len(own), BATCH))


def main(folder: str, engine: str, waiting: str, journal: str, seconds: str) -> None:
    """Measure the cases whose keys are in a file, for so long."""
    faulthandler.enable()
    deadline = time.monotonic() + float(seconds)
    choose_engine(engine)
    keys = json.loads(Path(waiting).read_text(encoding="utf-8"))
    known = {case.key: case for case in sweep_cases(sorted({key.partition(" ")[0] for key in keys}))}
    from infercast.measure.kernels import GpuBench  # noqa: PLC0415 - needs PyTorch

    monitor, notes = Monitor(), Journal(Path(journal))
    try:
        bench = JournalBench(GpuBench(), notes)
        measure_kinds([known[key] for key in keys], Store(Path(folder)), bench, monitor, notes, deadline)
    finally:
        monitor.stop()


if __name__ == "__main__":
    main(*sys.argv[1:6])
