"""The one who does the work, as a user asks for it: here, in processes, on a Ray cluster, and with what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from infercast.errors import InputError
from infercast.forecast.plan.cluster import RayCluster
from infercast.forecast.plan.processes import Processes, processors
from infercast.forecast.plan.resume import Resumed
from infercast.forecast.plan.workers import Executor

MOST_BY_DEFAULT = 8
"""Processes that are started unasked; each needs a second to start and some 200 MB."""

PATIENCE = 5.0
"""Seconds of work before they are."""


@contextmanager
def executor_for(
    *,
    workers: int | None = None,
    ray: str | None = None,
    resume: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Executor]:
    """For the time of a search; ``workers`` of None are as many as there are processors, up to eight.

    These come to help when the work has taken a few seconds: most searches are done before.
    """
    if ray is not None and workers is not None:
        raise InputError(f"--workers {workers} is for processes of this machine; --ray {ray} has workers of its own")
    executor: Processes | RayCluster
    if ray is not None:
        executor = RayCluster(ray, progress)
    elif workers is None:
        executor = Processes(min(processors(), MOST_BY_DEFAULT), progress, patience=PATIENCE)
    else:
        executor = Processes(workers, progress)
    with closing(executor):
        yield executor if resume is None else Resumed(executor, resume)
