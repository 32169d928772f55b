"""Candidates judged in processes of this machine: same answers in the same order, whoever finishes first."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from infercast.errors import InfercastError, InputError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

TRIES = 3
"""How often work is begun whose worker failed or was killed."""
PIECES_A_WORKER = 4
"""So many pieces for each worker, so that none waits long for the last one."""
MOST_IN_A_PIECE = 16


class WorkerError(InfercastError):
    """Work that no worker brought to an end."""


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes:
    """So many worker processes, started with the first work and kept until `close`."""

    def __init__(self, workers: int, progress: Callable[[int, int], None] | None = None) -> None:
        """``progress`` is told how many items of how many are done."""
        if workers < 1:
            raise InputError(f"workers must be at least 1, not {workers}")
        self.width = workers
        self._progress = progress
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """What the function makes of each item, in the order of the items."""
        every = list(items)
        if self.width == 1 or len(every) < 2:
            yield from map(function, every)
            return
        with tempfile.TemporaryDirectory(prefix="infercast-") as folder:
            # A question with a day of requests is large, so it is written down once and read once by each worker.
            path = Path(folder) / "function"
            path.write_bytes(pickle.dumps(function))
            try:
                yield from self._map(str(path), pieces_of(every, self.width), len(every))
            except BaseException:  # also Ctrl-C, and a reader that wants no more
                self._kill()
                raise

    def _map(self, path: str, pieces: Sequence[Sequence[Any]], total: int) -> Iterator[Any]:
        answers: dict[int, list[Any]] = {}
        failures: dict[int, int] = {}
        left, told, done, breaks = set(range(len(pieces))), 0, 0, 0
        running: dict[Future[list[Any]], int] = {}
        while left or told < len(pieces):
            while told in answers:
                yield from answers.pop(told)
                told += 1
            if not left:
                continue
            for number in sorted(left - set(running.values())):
                running[self._start().submit(_work, path, pieces[number])] = number
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            broken = False
            for future in finished:
                number = running.pop(future)
                problem = future.exception()
                if problem is None:
                    answers[number] = future.result()
                    left.discard(number)
                    done, breaks = done + len(pieces[number]), 0
                    if self._progress is not None:
                        self._progress(done, total)
                elif isinstance(problem, BrokenProcessPool):
                    broken = True
                else:
                    failures[number] = failures.get(number, 0) + 1
                    if isinstance(problem, InfercastError) or failures[number] == TRIES:
                        raise problem
            if broken:
                # A killed worker takes the pool with it. What others were doing is done again, too: it gives the same.
                breaks += 1
                self._kill()
                running.clear()
                if breaks == TRIES:
                    first = pieces[min(left)][0]
                    raise WorkerError(
                        f"worker processes ended {TRIES} times without an answer, the next would have been about "
                        f"{first}; is there enough memory? --workers 1 does without them"
                    )

    def _start(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Threads and locks of this process would not survive a fork.
            self._pool = ProcessPoolExecutor(self.width, get_context("spawn"), initializer=_leave_interrupts_to_parent)
        return self._pool

    def _kill(self) -> None:
        """End all workers now, in the middle of their work."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        workers = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()

    def close(self) -> None:
        """End all workers."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def pieces_of(items: Sequence[Item], workers: int) -> list[Sequence[Item]]:
    """Items in pieces that keep so many workers busy to the end."""
    size = min(MOST_IN_A_PIECE, max(1, len(items) // (PIECES_A_WORKER * workers)))
    return [items[start : start + size] for start in range(0, len(items), size)]


def _leave_interrupts_to_parent() -> None:
    """Ctrl-C goes to all processes of a terminal; who began the work ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_functions: OrderedDict[str, Callable[[Any], Any]] = OrderedDict()
"""Of a worker: the last functions that it was given, with what they remember."""


def _work(path: str, items: Sequence[Any]) -> list[Any]:
    """In a worker: read the function once, and apply it."""
    if path not in _functions:
        _functions[path] = pickle.loads(Path(path).read_bytes())
        while len(_functions) > 2:
            _functions.popitem(last=False)
    return [_functions[path](item) for item in items]
