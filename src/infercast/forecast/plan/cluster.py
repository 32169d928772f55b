"""Candidates judged on the machines of a Ray cluster, which have infercast installed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from infercast.errors import InfercastError, InputError
from infercast.forecast.plan.processes import TRIES, WorkerError, pieces_of

Item = TypeVar("Item")
Answer = TypeVar("Answer")

PATIENCE = 5.0
"""Seconds in which a cluster's address has to answer."""
LOCAL = "local"
"""In place of an address: a cluster of this machine alone, for the time of the command."""


class RayCluster:
    """All processors of a Ray cluster; Ray does work again whose worker or machine was lost."""

    def __init__(self, address: str, progress: Callable[[int, int], None] | None = None) -> None:
        """``address`` is one of Ray's, such as ``auto``, ``ray://host:10001`` or ``host:6379``, or ``local``."""
        try:
            import ray  # noqa: PLC0415 - most do without
        except ImportError:
            raise InputError(
                f"a Ray cluster ({address}) needs the package ray: pip install 'infercast[ray]'; --workers N takes "
                "processes of this machine"
            ) from None
        self._ray, self._progress = ray, progress
        _check_reachable(address)
        quiet = {"log_to_driver": False, "include_dashboard": False} if address == LOCAL else {"log_to_driver": False}
        try:
            ray.init(address=address, logging_level="error", ignore_reinit_error=True, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as problem:
            reason = str(problem).strip().splitlines()[0]
            raise InputError(f"no Ray cluster answers at {address!r}: {reason}") from None
        self.width = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def map(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """What the function makes of each item, in the order of the items."""
        every, ray = list(items), self._ray
        work = ray.remote(_work).options(max_retries=TRIES - 1, retry_exceptions=[OSError, MemoryError])
        shared = ray.put(function)
        pieces = pieces_of(every, self.width)
        waiting = [work.remote(shared, piece) for piece in pieces]
        sizes = dict(zip(waiting, map(len, pieces), strict=True))
        unfinished, done = list(waiting), 0
        try:
            for reference in waiting:
                while reference in unfinished:
                    finished, unfinished = ray.wait(unfinished, num_returns=1)
                    done += sum(sizes[each] for each in finished)
                    if self._progress is not None:
                        self._progress(done, len(every))
                yield from self._answer(reference)
        finally:
            for reference in unfinished:
                ray.cancel(reference)

    def _answer(self, reference: Any) -> Sequence[Any]:
        ray = self._ray
        try:
            answers: Sequence[Any] = ray.get(reference)
        except ray.exceptions.RayTaskError as problem:
            # What the function itself raised, as it would have been raised here.
            raise (problem.cause if isinstance(problem.cause, InfercastError) else problem) from None
        except ray.exceptions.RayError as problem:
            reason = str(problem).strip().splitlines()[0]
            raise WorkerError(f"Ray lost the workers of one piece of work {TRIES} times: {reason}") from None
        return answers

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise InputError(f"no Ray cluster answers at {address!r}: {reason}") from None


def _work(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [function(item) for item in items]
