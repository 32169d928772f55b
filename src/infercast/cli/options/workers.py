"""Options that say who does the work of a search, and where its answers are kept."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from infercast.forecast.plan.executors import executor_for
from infercast.forecast.plan.workers import Executor

of_work = partial(typer.Option, rich_help_panel="Who does the work")

Workers = Annotated[
    int | None,
    of_work("--workers", metavar="N", help="Processes of this machine; default: one a processor when it takes long."),
]
Ray = Annotated[
    str | None,
    of_work("--ray", metavar="ADDRESS", help="A Ray cluster: auto, HOST:PORT, ray://HOST:PORT, or local."),
]
Resume = Annotated[
    Path | None,
    of_work("--resume", metavar="FILE", help="Keep answers in this file (JSON lines), and use those that it has."),
]


class Working:
    """Who judges candidates."""

    workers: Workers = None
    ray: Ray = None
    resume: Resume = None


def workers_of(
    given: dict[str, Any], progress: Callable[[int, int], None] | None = None
) -> AbstractContextManager[Executor]:
    """Those that the options of a command ask for, for the time of its work."""
    return executor_for(workers=given["workers"], ray=given["ray"], resume=given["resume"], progress=progress)
