"""Kernel times by the GPU's own clock: run launches under the profiler and cut its record at marker kernels.

The record has the start, length, name and grid of every kernel, so caches can be emptied between two launches without
being timed, and each row knows which kernels ran. The gap between kernels is not in these times: an engine's step adds
it for each kernel.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infercast.measure.case import Launch
from infercast.measure.workspace import Workspace

MARKER = "spin_kernel"
PAUSE_CYCLES = 4_000_000
"""About two milliseconds."""
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as it ran."""

    name: str
    grid: str
    block: str
    microseconds: float


Sections = list[list[Kernel]]


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
    return cut(event for event in events if event.get("cat") in GPU_WORK)


def cut(events: Any) -> Sections:
    """Kernels between one marker and the next, in the order they ran."""
    sections: Sections = []
    for event in sorted(events, key=lambda event: event["ts"]):
        if MARKER in event["name"]:
            sections.append([])
        elif sections:
            details = event.get("args", {})
            kernel = Kernel(event["name"], _size(details, "grid"), _size(details, "block"), float(event["dur"]))
            sections[-1].append(kernel)
    return sections[:-1]


def _size(details: dict[str, Any], name: str) -> str:
    return "x".join(map(str, details.get(name, ())))


@dataclass(frozen=True, slots=True)
class Timing:
    """Repeated runs of one launch."""

    cold: Sections
    """Its own operands not in L2; at the power limit where that is what it runs into."""
    warm: Sections
    """The same launch again at once."""
    burst: Sections
    """Cold and after a pause."""


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

    sections = record(work)
    timings = []
    for number in range(len(launches)):
        own = sections[3 * repeats * number : 3 * repeats * (number + 1)]
        timings.append(Timing(own[0::3], own[1::3], own[0::3]))
    return timings


def time_sustained(launches: Sequence[Launch], repeats: int, heat: Callable[[], None]) -> list[Timing]:
    """Each launch among the others without a pause, after ``heat`` has brought the chip to its power limit.

    Rounds go through all launches in turn, so each is measured in the company that a step of an engine gives it. A
    last round takes each after a pause, cold and warm.
    """

    def work() -> None:
        heat()
        for _ in range(repeats):
            for launch in launches:
                launch.touch()
                mark()
                launch()
                mark()
        for launch in launches:
            launch.touch()
            torch.cuda._sleep(PAUSE_CYCLES)
            mark()
            launch()
            mark()
            launch()
            mark()

    sections = record(work)
    # The pause is made of the same kernel as a marker, so it opens a section of its own.
    hot, rest = sections[: 2 * len(launches) * repeats], sections[2 * len(launches) * repeats :]
    timings = []
    for number in range(len(launches)):
        own = rest[4 * number : 4 * number + 4]
        timings.append(Timing(hot[2 * number :: 2 * len(launches)], [own[2]], [own[1]]))
    return timings
