"""The sweep itself: batches of cases, most useful first, kept as they come, until all is done or the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infercast.measure.case import Case
from infercast.measure.device import Monitor, describe, gpu_name, require_gpu
from infercast.measure.engines import choose_engine
from infercast.measure.floors import measure_floors
from infercast.measure.isolated import FAMILIES as ISOLATED
from infercast.measure.isolated import measure_isolated
from infercast.measure.meta import Meta, check_engine
from infercast.measure.plan import sweep_cases
from infercast.measure.plan.anchors import anchor_cases
from infercast.measure.power import measure_power
from infercast.measure.prepare import prepare
from infercast.measure.rows import Bench, Tally, Watch, is_heavy, measure_batch
from infercast.measure.table import Store, require_pandas

BATCH = 150
Progress = Callable[[int, int, float], None]
"""Told how many cases are done, of how many, and after how many seconds."""


@dataclass
class Sweep:
    """What a sweep did."""

    gpu: str
    folder: Path
    engine: str
    """Whose kernels were preferred."""
    rows: int = 0
    """Measured this time."""
    left: int = 0
    """Cases that there was no time for."""
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    tables: dict[str, int] = field(default_factory=dict)
    """Rows by table, of earlier times too."""


def run_sweep(
    out: Path,
    *,
    minutes: float,
    families: Sequence[str] | None = None,
    engine: str | None = None,
    progress: Progress | None = None,
    anchors: int = 0,
) -> Sweep:
    """Measure until all is done or the time is up; takes up where an earlier sweep into ``out`` ended.

    ``anchors``: no sweep, but so many of the shapes of each kernel that tell most of it.
    """
    cases = [case for case in anchor_cases(anchors) if not families or case.family in families]
    cases = cases if anchors else sweep_cases(families)
    require_gpu()
    require_pandas()
    chosen = choose_engine(engine)
    result = Sweep(gpu_name(), out / gpu_name(), chosen)
    store = Store(result.folder)
    check_engine(store.folder, chosen)
    done = store.done()
    waiting = [case for case in cases if case.key not in done]
    begin = time.monotonic()
    deadline = begin + 60 * minutes
    monitor = Monitor()
    try:
        if not anchors:
            prepare(waiting, chosen, deadline)
        meta = Meta(store.folder, {"gpu": result.gpu, **describe(), "kernels": chosen}, monitor.since(0.0))
        shared = [case for case in waiting if case.family not in ISOLATED]
        apart = [case for case in waiting if case.family in ISOLATED]
        try:
            result.left = len(waiting)
            if apart:
                result.rows += measure_isolated(apart, store, result.tally, chosen, deadline)
                result.left = len(waiting) - result.tally.tried
            if shared:
                _measure_here(shared, () if anchors else cases, store, monitor, result, deadline, progress)
        finally:
            result.seconds = time.monotonic() - begin
            meta.finish(result.seconds, len(done) + result.rows, result.tally.skipped, monitor.since(begin))
    finally:
        monitor.stop()
    result.tables = store.write_tables()
    return result


def open_bench() -> Bench:
    """The GPU at hand."""
    from infercast.measure.kernels import GpuBench  # noqa: PLC0415 - needs PyTorch

    return GpuBench()


def _measure_here(
    waiting: Sequence[Case],
    cases: Sequence[Case],
    store: Store,
    monitor: Monitor,
    result: Sweep,
    deadline: float,
    progress: Progress | None,
) -> None:
    """What breaks no process: kernels, launches that do nothing where probes are asked for, power."""
    bench = open_bench()
    if any(case.family == "probe" for case in waiting):
        measure_floors(store)
    _measure(waiting, store, bench, monitor, result, deadline, progress)
    measure_power([case for case in cases if case.family not in (*ISOLATED, "probe")], store, bench, monitor, deadline)


def _measure(
    cases: Sequence[Case],
    store: Store,
    bench: Bench,
    monitor: Watch,
    result: Sweep,
    deadline: float,
    progress: Progress | None,
) -> None:
    """Batch by batch into the store."""
    begin = time.monotonic()
    before = result.tally.tried
    for batch in batches(cases):
        now = time.monotonic()
        if now > deadline:
            return
        if progress is not None:
            progress(result.tally.tried - before, len(cases), now - begin)
        rows = measure_batch(batch, bench, monitor, result.tally, deadline)
        store.append([{"gpu": result.gpu, **row} for row in rows])
        result.rows += len(rows)
        result.left = before + len(cases) - result.tally.tried


def batches(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Cases in their order, light and heavy ones never in one batch: a hot chip runs light kernels slower."""
    waiting: dict[bool, list[Case]] = {False: [], True: []}
    for case in cases:
        heavy = is_heavy(case)
        waiting[heavy].append(case)
        if len(waiting[heavy]) == BATCH:
            yield waiting[heavy]
            waiting[heavy] = []
    yield from (rest for rest in waiting.values() if rest)
