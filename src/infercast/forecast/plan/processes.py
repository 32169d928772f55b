"""Candidates judged in processes of this machine: same answers in the same order, whoever finishes first."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from hashlib import sha256
from multiprocessing import current_process, get_context
from pathlib import Path
from typing import Any, TypeVar

from infercast.errors import InfercastError, InputError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

TRIES = 3
"""How often work is begun whose worker failed or was killed."""
PIECES_A_WORKER = 8
"""So many pieces for each worker, so that none waits long for the last one."""
MOST_IN_A_PIECE = 16
MOST_FUNCTIONS = 4
"""So many does a worker keep: a search goes back and forth between a few."""


class WorkerError(InfercastError):
    """Work that no worker brought to an end."""


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes:
    """So many worker processes, started with the first work and kept until `close`."""

    def __init__(
        self, workers: int, progress: Callable[[int, int], None] | None = None, *, patience: float = 0.0
    ) -> None:
        """``progress`` is told how many items of how many are done; the first seconds of work are done here."""
        if workers < 1:
            raise InputError(f"workers must be at least 1, not {workers}")
        self.width = 1 if current_process().daemon else workers  # workers of another pool may not start their own
        self._progress, self._patience, self._spent = progress, patience, 0.0
        self._pool: ProcessPoolExecutor | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def map(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """What the function makes of each item, in the order of the items."""
        every, done = list(items), 0
        while done < len(every) and self._is_here(len(every) - done):
            start = time.perf_counter()
            answer = function(every[done])
            self._spent += time.perf_counter() - start
            done += 1
            self._tell(done, len(every))
            yield answer
        if done == len(every):
            return
        path = self._written(function)
        try:
            yield from self._map(path, pieces_of(every[done:], self.width), done)
        except BaseException:  # also Ctrl-C, and a reader that wants no more
            self._kill()
            raise

    def _is_here(self, left: int) -> bool:
        """Whether the next item is for this process: another one would take longer to start."""
        return self.width == 1 or (self._pool is None and (left < 2 or self._spent < self._patience))

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def _written(self, function: Callable[[Any], Any]) -> str:
        """A file of the function: a question with a day of requests is large, and each worker needs it once."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="infercast-")
        content = pickle.dumps(function)
        path = Path(self._folder.name) / sha256(content).hexdigest()
        if not path.exists():
            path.write_bytes(content)
        return str(path)

    def _map(self, path: str, pieces: Sequence[Sequence[Any]], done: int) -> Iterator[Any]:
        answers: dict[int, list[Any]] = {}
        failures: dict[int, int] = {}
        total = done + sum(map(len, pieces))
        left, told, breaks = set(range(len(pieces))), 0, 0
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
                    self._tell(done, total)
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
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


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
        while len(_functions) > MOST_FUNCTIONS:
            _functions.popitem(last=False)
    return [_functions[path](item) for item in items]
