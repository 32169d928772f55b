"""Kernel times by the GPU's own clock: run launches under the profiler and cut its record at marker kernels.

The record has the start, length, name and grid of every kernel, so caches can be emptied between two launches without
being timed, and each row knows which kernels ran. The gap between kernels is not in these
times.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from infercast.measure.case import Launch
from infercast.measure.sections import Sections, Timing, cut, split_light, split_sustained
from infercast.measure.workspace import Workspace

PAUSE_CYCLES = 4_000_000
"""About two milliseconds."""
BURSTS = 3
"""Runs of a heavy kernel after a pause."""
QUEUED_SECONDS = 0.05
"""Work that is handed to the GPU at once when a kernel runs on and on."""


def mark() -> None:
    """Cut the record here."""
    torch.cuda._sleep(1)


def record(work: Callable[[], None]) -> Sections:
    """What ran between the marks that ``work`` makes; the part before the first mark is left out."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        work()
        mark()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    return cut(events)


def time_launches(launches: Sequence[Launch], workspace: Workspace, repeats: int) -> list[Timing]:
    """Each launch cold and warm, ``repeats`` times, one launch after the other."""

    def work() -> None:
        for launch in launches:
            for _ in range(repeats):
                workspace.flush()
                launch.touch()
                mark()
                launch()
                mark()
                launch()
                mark()

    return split_light(record(work), len(launches), repeats)


def time_sustained(launches: Sequence[Launch], repeats: int, heat: Callable[[], None]) -> list[Timing]:
    """Each launch among the others without a pause, after ``heat`` has brought the chip to its power limit.

    Rounds go through all launches in turn, so each is measured in the company that a step of an engine gives it. Last
    rounds take each after a pause, cold and warm.
    """

    def work() -> None:
        heat()
        for _ in range(repeats):
            for launch in launches:
                launch.touch()
                mark()
                launch()
                mark()
        for launch in [*launches] * BURSTS:
            launch.touch()
            torch.cuda._sleep(PAUSE_CYCLES)
            mark()
            launch()
            mark()
            launch()
            mark()

    return split_sustained(record(work), len(launches), repeats, BURSTS)


def repeat_for(launch: Launch, seconds: float, each: float) -> float:
    """Launch on and on for so long; returns how many seconds one launch took.

    ``each`` is about how long one takes. It should be longer than launching takes, or the GPU waits for the CPU.
    """
    launch()
    torch.cuda.synchronize()
    batch, launched = max(1, round(QUEUED_SECONDS / each)), 0
    begin = time.perf_counter()
    while (used := time.perf_counter() - begin) < seconds:
        for _ in range(batch):
            launch()
        launched += batch
        torch.cuda.synchronize()
    return used / launched
