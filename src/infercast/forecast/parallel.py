"""Independent runs of one question on all cores of this machine, with the results of one core.

Processes are forked, so that nothing is loaded or sent but what a run gave; where that is not safe (other systems than
Linux, threads of a notebook or a server) or not worth it, runs follow each other in this process.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from infercast.forecast.progress import clock, set_clock, share_of_time

Item = TypeVar("Item")
Answer = TypeVar("Answer")

PATIENCE = 1.0  # Seconds that runs take in this process before others are forked
_work: list[Callable[[int], Any]] = []  # What processes do that are forked now


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def may_fork() -> bool:
    return sys.platform == "linux" and threading.active_count() == 1 and not _work


def on_all_cores(function: Callable[[Item], Answer], items: Sequence[Item], *, later: float = 0.0) -> Iterator[Answer]:
    """What the function makes of each item, in their order; answers of other processes are pickled. Each item has its
    share of the time left, with as much for each of ``later`` ones.
    """
    width, start, done = min(processors(), len(items)), clock(), 0

    def work(place: int, together: int = 1) -> Answer:
        left = len(items) - place + later
        with share_of_time(min(1.0, together / left)):
            return function(items[place])

    while done < len(items):
        rest = len(items) - done
        if width > 1 and rest > 1 and done and clock() - start > PATIENCE and may_fork():
            yield from _forked(lambda place: work(place, width), range(done, len(items)), min(width, rest))
            return
        yield work(done)
        done += 1


def _forked(work: Callable[[int], Answer], places: range, width: int) -> Iterator[Answer]:
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - most questions are over before
    from multiprocessing import get_context, util  # noqa: PLC0415

    from infercast.engines.tables import write_shelves  # noqa: PLC0415

    def begin(now: float) -> None:
        set_clock(now)
        util.Finalize(None, write_shelves, exitpriority=0)

    _work.append(work)
    try:
        with ProcessPoolExecutor(width, get_context("fork"), begin, (clock(),)) as pool:
            for answer, now in pool.map(_at, places):
                set_clock(now)
                yield answer
    finally:
        _work.clear()


def _at(place: int) -> tuple[Any, float]:
    return _work[0](place), clock()
