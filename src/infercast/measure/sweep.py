"""The sweep itself: batches of cases, timed cold, warm and at the power limit, kept as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from infercast.measure.case import Case, Launch
from infercast.measure.device import Monitor, State, describe, gpu_name, require_gpu
from infercast.measure.names import short_name, tile_of
from infercast.measure.plan import sweep_cases
from infercast.measure.table import Row, Store, write_meta

BATCH = 150
REPEATS, MORE_REPEATS = 4, 12
STEADY = 0.01
"""Standard error of the mean, over the median, above which a case is repeated more often."""
HEAVY_FLOPS = 5e10
"""Products of this size run into the power limit when nothing but products runs."""
HEAT_SECONDS = 0.25
COOL_SECONDS = 1.5
"""How long the chip may take to get back to its full clock after heavy kernels, before anything else is measured."""
PROTOCOL = (
    "kernel times by the GPU's own clock (CUPTI), median of 4 or more runs; latency_us: operands of the kernel cold, "
    "its input as the kernel before leaves it; kernels of 5e10 FLOP and more among others at the power limit "
    "(burst_us: after a pause); warm_us: the same launch again at once"
)


@dataclass
class Sweep:
    """What a sweep did."""

    gpu: str
    rows: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """Cases that this machine cannot run, by the reason."""
    seconds: float = 0.0


def run_sweep(
    out: Path,
    *,
    minutes: float,
    families: Sequence[str] | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Sweep:
    """Measure until all is done or the time is up; takes up where an earlier sweep into ``out`` ended."""
    require_gpu()
    from infercast.measure.kernels import Bench  # noqa: PLC0415 - needs PyTorch

    begin = time.monotonic()
    result = Sweep(gpu_name())
    store = Store(out / result.gpu)
    done = store.done()
    cases = [case for case in sweep_cases(families) if case.key not in done]
    monitor, bench = Monitor(), Bench()
    before = monitor.since(0.0)
    finished = 0
    try:
        for batch in batches(cases):
            used = time.monotonic() - begin
            if used > 60 * minutes:
                break
            if progress is not None:
                progress(finished, len(cases), used)
            rows = [{"gpu": result.gpu, **row} for row in measure_batch(batch, bench, monitor, result)]
            store.append(rows)
            result.rows += len(rows)
            finished += len(batch)
    finally:
        monitor.stop()
    result.seconds = time.monotonic() - begin
    write_meta(store.folder, meta(result, before, monitor.since(begin)))
    return result


def batches(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Cases in their order, light and heavy ones never in one batch: a hot chip runs light kernels slower."""
    waiting: dict[bool, list[Case]] = {False: [], True: []}
    for case in cases:
        heavy = case.flops >= HEAVY_FLOPS
        waiting[heavy].append(case)
        if len(waiting[heavy]) == BATCH:
            yield waiting[heavy]
            waiting[heavy] = []
    yield from (rest for rest in waiting.values() if rest)


def meta(result: Sweep, before: State, during: State) -> dict[str, Any]:
    """What a reader of the table must know."""
    return {
        "gpu": result.gpu,
        **describe(),
        "protocol": PROTOCOL,
        "date": time.strftime("%Y-%m-%d"),
        "minutes": round(result.seconds / 60, 2),
        "rows": result.rows,
        "sm_mhz_before": before.sm_mhz,
        "watts_before": before.watts,
        "celsius_before": before.celsius,
        "sm_mhz_during": during.sm_mhz,
        "watts_during": during.watts,
        "celsius_during": during.celsius,
        "skipped": "; ".join(f"{count} x {reason}" for reason, count in result.skipped.items()),
    }


def measure_batch(cases: Sequence[Case], bench: Any, monitor: Monitor, result: Sweep) -> Iterator[Row]:
    """Rows of those cases that this machine can run."""
    ready: list[tuple[Case, Launch]] = []
    for case in cases:
        try:
            launch = bench.build(case)
            launch()
            ready.append((case, launch))
        except (NotImplementedError, ImportError, RuntimeError, ValueError, AssertionError, KeyError) as problem:
            reason = (
                f"{case.family}: {type(problem).__name__} {str(problem).splitlines()[0][:120] if str(problem) else ''}"
            )
            result.skipped[reason] = result.skipped.get(reason, 0) + 1
    if not ready:
        return
    launches = [launch for _, launch in ready]
    heavy = cases[0].flops >= HEAVY_FLOPS
    if not heavy:
        monitor.wait_until_cool(COOL_SECONDS)
    start = time.monotonic()
    if heavy:
        timings = bench.time_sustained(launches, REPEATS, HEAT_SECONDS)
        start += HEAT_SECONDS
    else:
        timings = bench.time(launches, REPEATS)
    state = monitor.since(start)
    unsteady = [] if heavy else [n for n, timing in enumerate(timings) if _error(_totals(timing.cold)) > STEADY]
    if unsteady:
        again = bench.time([launches[n] for n in unsteady], MORE_REPEATS)
        for number, timing in zip(unsteady, again, strict=True):
            timings[number] = timing
    for (case, launch), timing in zip(ready, timings, strict=True):
        row = _row(case, launch.engine, timing)
        row |= {"sm_mhz": state.sm_mhz, "watts": state.watts, "capped": state.capped}
        yield row | bench.details(case)


def _row(case: Case, engine: str, timing: Any) -> Row:
    kernels = timing.cold[-1]
    main = max(kernels, key=lambda kernel: kernel.microseconds)
    cold = _totals(timing.cold)
    return {
        "key": case.key,
        "family": case.family,
        "engine": engine,
        **case.shape,
        "latency_us": round(float(np.median(cold)), 3),
        "burst_us": round(float(np.median(_totals(timing.burst))), 3),
        "warm_us": round(float(np.median(_totals(timing.warm))), 3),
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


def _totals(sections: Any) -> Any:
    return np.array([sum(kernel.microseconds for kernel in kernels) for kernels in sections])


def _error(totals: Any) -> float:
    """Standard error of the mean over the median."""
    return float(np.std(totals, ddof=1) / np.sqrt(len(totals)) / max(np.median(totals), 1e-9))
