"""Progress of a simulation or a search, and the time that it may take.

Progress is one line that is rewritten, on a terminal or below the cell of a notebook. A time limit never changes what a
run of some length says: it decides how long the run becomes, in steps that do not depend on the machine.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from itertools import count
from math import inf
from typing import Any

from infercast.errors import InputError, require
from infercast.serve.loop import Progress
from infercast.units import format_seconds

EVERY = 0.1  # Seconds between two lines
CELLS = 24  # Of the bar
OVER = 0.01  # A share of the time that is left in seconds, below which nothing is begun any more
SPARE = 0.8  # Of the time that is left, what a run is planned for that is begun again with fewer requests
FEWEST_MORE = 0.2  # A run does not go on for a smaller share of further requests than this
VARIABLE = "INFERCAST_TIME_LIMIT"
SLOWEST = 3  # A busy machine may take so many times as long by the clock on the wall
_ends: ContextVar[tuple[float, float]] = ContextVar("ends", default=(inf, inf))  # Of work, and on the wall
_cuts: list[str] = []
_elsewhere = 0.0  # Seconds that other processes worked for this one


def clock() -> float:
    """Seconds of work. Those of an idle machine are seconds; a busy one gives the same answers, and later."""
    return time.process_time() + _elsewhere


def set_clock(seconds: float) -> None:
    """Go on from here, if that is later: so far a process came that works for this one, or for which this one works."""
    global _elsewhere  # noqa: PLW0603 - as there is one clock
    _elsewhere += max(0.0, seconds - clock())


def usual_limit(default: float) -> float:
    """Seconds that an answer may take for which no time is asked: another default may be set for a machine."""
    text = os.environ.get(VARIABLE)
    try:
        return float(text) if text else default
    except ValueError:
        raise InputError(f"{VARIABLE} must be seconds, not {text!r}") from None


@contextmanager
def time_budget(seconds: float | None) -> Iterator[None]:
    """Within it, answers are refined for this many seconds, or for as long as it takes; never longer than around it."""
    require(seconds is None or 0 < seconds < inf, "time_limit", "be seconds above 0", seconds)
    before = work, wall = _ends.get()
    if seconds is not None:
        _ends.set((min(work, clock() + seconds), min(wall, time.monotonic() + SLOWEST * seconds)))
    try:
        yield
    finally:
        _ends.set(before)


@contextmanager
def share_of_time(share: float) -> Iterator[None]:
    """Within it, answers are refined for this share of the time that is left."""
    left = time_left()
    with time_budget(None if left == inf else max(share * left, 1e-6)):
        yield


def time_left() -> float:
    """Seconds in which an answer may still be refined; infinite without a limit."""
    work, wall = _ends.get()
    # What is left on the wall counts where other work of the machine took most of what has gone by.
    return inf if work == inf else min(work - clock(), (wall - time.monotonic()) / (SLOWEST - 1))


def note_cut(what: str) -> None:
    """Note that the time limit ended something: with more time, or on another machine, the answer would be another."""
    _cuts.append(what)


def was_cut() -> bool:
    """Whether it ended anything in this process."""
    return bool(_cuts)


class Pace:
    """How far a run may go in the time that is left, by what its requests have taken so far."""

    def __init__(self) -> None:
        self._began, self._left = clock(), time_left()
        self.is_late = False  # Whether a run was kept shorter than it should be

    def affordable(self, count: int, wanted: int, *, again: bool = False) -> int:
        """Requests that a run of ``count`` may go on to, or ``again`` from its start; ``count`` if it is late. Halves
        of what is wanted are tried, so it stops at one of few lengths that are the same on every machine.
        """
        left = time_left()
        if left == inf:
            return wanted
        each, more = (clock() - self._began) / count, wanted - count
        while each * (more + count * again) > left:
            self.is_late, more = True, more // 2
            if more < FEWEST_MORE * count:
                return count
        return count + more

    def is_late_for(self, count: int, others: int) -> bool:
        """Whether this many other requests, by what ``count`` took, leave less than half of the time that is left."""
        left = time_left()
        return left < inf and (clock() - self._began) / count * others > left / 2

    def instead(self, count: int, sent: int, least: int) -> int:
        """Requests of a run that there is time for, in place of one of ``count`` that has ``sent`` some: by halves."""
        gone, fitting = clock() - self._began, count
        # What has gone by is lost to a shorter run, so one that nearly fits goes on.
        while gone * fitting > (self._left if fitting == count else SPARE * (self._left - gone)) * sent:
            if fitting < 2 * least:
                break
            fitting //= 2
        return fitting


@contextmanager
def request_progress(asked: Progress | bool | None, total: int) -> Iterator[Progress | None]:
    """The caller's own function, or a progress bar of ``total`` requests for True."""
    if not asked or not isinstance(asked, bool):
        yield asked or None
        return
    line, start = StatusLine(), time.monotonic()

    def on_progress(sent: int, simulated: float) -> None:
        done = min(1.0, sent / total)
        bar = "#" * round(CELLS * done)
        speed = simulated / max(time.monotonic() - start, 1e-9)
        times = f"{format_seconds(simulated)} simulated, {speed:,.0f} x real time"
        line.write(f"[{bar:<{CELLS}}] {sent:,} of {total:,} requests, {times}")

    try:
        on_progress(0, 0.0)
        yield on_progress
    finally:
        line.clear()


@contextmanager
def stage_progress(asked: Callable[[str], None] | bool | None) -> Iterator[Callable[[str], None]]:
    if not asked or not isinstance(asked, bool):
        yield asked or (lambda _: None)
        return
    line, number = StatusLine(), count(1)
    try:
        yield lambda words: line.write(f"{next(number)}: {words}", now=True)
    finally:
        line.clear()


class StatusLine:
    """One line of text: an output of a notebook, or the last line of a terminal; nothing in a pipe."""

    def __init__(self) -> None:
        self._display = _notebook_display()
        self._handle: Any = None
        self._written, self._width = -EVERY, 0

    def write(self, text: str, *, now: bool = False) -> None:
        """Show this in place of what was there, at most ten times a second unless it must be ``now``."""
        if not now and time.monotonic() - self._written < EVERY:
            return
        self._written = time.monotonic()
        if self._display is not None:
            self._in_notebook(text)
        elif sys.stderr.isatty():
            print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(text)

    def clear(self) -> None:
        if self._handle is not None:
            self._in_notebook("")
        elif self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)

    def _in_notebook(self, text: str) -> None:
        bundle = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _notebook_display() -> Any:
    if "ipykernel" not in sys.modules:
        return None
    try:
        return import_module("IPython.display").display
    except ImportError:
        return None
