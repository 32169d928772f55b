"""The profiler's record cut into sections: what ran between one marker kernel and the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MARKER = "spin_kernel"
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as it ran."""

    name: str
    grid: str
    block: str
    microseconds: float


Sections = list[list[Kernel]]


class LostRecordError(RuntimeError):
    """The profiler's record is not whole."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Repeated runs of one launch."""

    cold: Sections
    """Its own operands not in L2; at the power limit where that is what it runs into."""
    warm: Sections
    """The same launch again at once."""
    burst: Sections
    """Cold and after a pause."""

    @property
    def is_whole(self) -> bool:
        """Whether the record has at least one kernel of every run."""
        return all(kernels for sections in (self.cold, self.warm, self.burst) for kernels in sections)


def cut(events: Iterable[dict[str, Any]]) -> Sections:
    """Kernels between one marker and the next, in the order they ran."""
    sections: Sections = []
    work = (event for event in events if event.get("cat") in GPU_WORK)
    for event in sorted(work, key=lambda event: float(event["ts"])):
        if MARKER in event["name"]:
            sections.append([])
        elif sections:
            details = event.get("args", {})
            kernel = Kernel(event["name"], _size(details, "grid"), _size(details, "block"), float(event["dur"]))
            sections[-1].append(kernel)
    return sections[:-1]


def _size(details: dict[str, Any], name: str) -> str:
    return "x".join(map(str, details.get(name, ())))


def split_light(sections: Sections, launches: int, repeats: int) -> list[Timing]:
    """Three sections a run: cold, warm, and the emptying of caches for the next run."""
    _check(sections, 3 * repeats * launches)
    timings = []
    for number in range(launches):
        own = sections[3 * repeats * number : 3 * repeats * (number + 1)]
        timings.append(Timing(own[0::3], own[1::3], own[0::3]))
    return timings


def split_sustained(sections: Sections, launches: int, repeats: int, bursts: int) -> list[Timing]:
    """Rounds of two sections a launch (the run, the touching of inputs), then ``bursts`` rounds of four after a pause.

    The pause is made of the same kernel as a marker, so it opens a section of its own.
    """
    rounds = 2 * launches * repeats
    _check(sections, rounds + 4 * launches * bursts)
    hot, rest = sections[:rounds], sections[rounds : rounds + 4 * launches * bursts]
    timings = []
    for number in range(launches):
        own = range(4 * number, len(rest), 4 * launches)
        burst, warm = ([rest[place + offset] for place in own] for offset in (1, 2))
        timings.append(Timing(hot[2 * number :: 2 * launches], warm, burst))
    return timings


def _check(sections: Sections, expected: int) -> None:
    """A record with a marker too few would give every later kernel the time of another."""
    if len(sections) < expected:
        raise LostRecordError(f"the profiler lost {expected - len(sections)} of {expected} sections of its record")
