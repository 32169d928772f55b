"""Progress of a simulation or a search: one line that is rewritten, on a terminal or below the cell of a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from typing import Any

from infercast.serve.loop import Progress
from infercast.units import format_seconds

EVERY = 0.1  # Seconds between two lines
CELLS = 24  # Of the bar


@contextmanager
def request_progress(asked: Progress | bool | None, total: int) -> Iterator[Progress | None]:
    """The caller's own function, or a progress bar of ``total`` requests for True."""
    if not asked or not isinstance(asked, bool):
        yield asked or None
        return
    line, start = StatusLine(), time.monotonic()

    def tell(sent: int, simulated: float) -> None:
        done = min(1.0, sent / total)
        bar = "#" * round(CELLS * done)
        speed = simulated / max(time.monotonic() - start, 1e-9)
        times = f"{format_seconds(simulated)} simulated, {speed:,.0f} x real time"
        line.write(f"[{bar:<{CELLS}}] {sent:,} of {total:,} requests, {times}")

    try:
        tell(0, 0.0)
        yield tell
    finally:
        line.clear()


@contextmanager
def stage_progress(asked: Callable[[str], None] | bool | None) -> Iterator[Callable[[str], None]]:
    """The caller's own function, a numbered line for True, or nothing."""
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
