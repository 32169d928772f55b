"""Bars on a terminal: how far a simulation is and how much faster than life it goes; how many of many are done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from infercast.units import format_seconds

PATIENCE = 2.0
"""Seconds that a run may take before a bar is shown."""


@contextmanager
def simulation_bar(total: int) -> Iterator[Callable[[int, float], None] | None]:
    """What to tell about a run of ``total`` requests: how many were sent, and the simulated time; None if piped."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - most runs are over before a bar would show
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f} requests{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=total, visible=False)
        start = time.monotonic()

        def tell(sent: int, simulated: float) -> None:
            elapsed = time.monotonic() - start
            if elapsed > PATIENCE:
                text = f", {format_seconds(simulated)} simulated, {simulated / elapsed:,.0f} times as fast as life"
                bar.update(task, completed=sent, description=text, visible=True, refresh=True)

        yield tell


@contextmanager
def runs_bar(doing: str, total: int) -> Iterator[Callable[[str], None] | None]:
    """What to tell about many runs: the name of each as it begins; None if piped."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - only where a bar is shown
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda label: bar.update(task, advance=1, description=label)


@contextmanager
def stages_bar() -> Iterator[Callable[[str], None] | None]:
    """What to tell about work of unknown length: what it is at; shown after a while, None if piped."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - only where a bar is shown
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, start = bar.add_task("", total=None, visible=False), time.monotonic()

        def tell(doing: str) -> None:
            bar.update(task, description=doing, visible=time.monotonic() - start > PATIENCE)

        yield tell


def with_counts(
    tell: Callable[[str], None] | None,
) -> tuple[Callable[[str], None] | None, Callable[[int, int], None] | None]:
    """What to tell of each part of the work as it begins, and of how much of it is done; None if nobody listens."""
    if tell is None:
        return None, None
    doing = [""]

    def say(words: str) -> None:
        doing[0] = words
        tell(words)

    return say, lambda done, total: tell(f"{doing[0]}: {done} of {total} done")
