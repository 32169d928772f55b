"""Executors of a search: in this process, in worker processes, on a Ray cluster, and resumed from a file.

Tasks are pure functions of an item, so it does not matter where they run or in which order. A file of answers has one
line of JSON for each, under a hash of the function with its arguments (a question), the item (a candidate), and this
package's own files; it may serve many questions. A torn last line is cut off, and its work is done again.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from contextvars import ContextVar
from enum import Enum
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from math import inf
from multiprocessing import current_process, get_context
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from infercast.bundled import DATA
from infercast.errors import InfercastError, InputError, missing, require
from infercast.forecast.parallel import processors
from infercast.lazy_classes import fields, is_dataclass

Item = TypeVar("Item")
Answer = TypeVar("Answer")

TRIES = 3  # Attempts at a task after its worker failed or was killed
OUT_OF_WORKERS = (
    f"worker processes ended {TRIES} times without an answer, the next would have been about {{item}}; is there enough "
    "memory? --workers 1 does without them"
)


class WorkerError(InfercastError):
    """Work that no worker brought to an end."""


class OutOfTime(Exception):  # noqa: N818 - a reason to answer now and no error
    """A search has taken as long as it may."""


_deadline: ContextVar[float] = ContextVar("deadline", default=inf)


@contextmanager
def time_limited(seconds: float | None) -> Iterator[None]:
    """Within it, work in this process and waits for others end with `OutOfTime` after some seconds."""
    require(seconds is None or 0 < seconds < inf, "time_limit", "be seconds above 0", seconds)
    before = _deadline.set(inf if seconds is None else time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(before)


def check_time(*_: object) -> None:
    """Raise `OutOfTime` if it is late; a simulation calls this with its progress."""
    if time.monotonic() > _deadline.get():
        raise OutOfTime


def seconds_left() -> float | None:
    longest_wait = 1e6  # Seconds that a lock can be waited for on every system
    return None if _deadline.get() == inf else min(max(0.0, _deadline.get() - time.monotonic()), longest_wait)


class Processes:
    def __init__(
        self, workers: int, progress: Callable[[int, int], None] | None = None, *, patience: float = 0.0
    ) -> None:
        """``progress`` is called with finished and all items; for ``patience`` seconds tasks run in this process."""
        require(workers >= 1, "workers", "be at least 1", workers)
        self.width = 1 if current_process().daemon else workers  # workers of another pool may not start their own
        self._tell, self._patience, self._spent = progress or (lambda *_: None), patience, 0.0
        self._pool: ProcessPoolExecutor | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def map(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        every, done = list(items), 0
        # Here as long as another process would take longer to start.
        while done < len(every) and (
            self.width == 1 or (self._pool is None and (len(every) - done < 2 or self._spent < self._patience))
        ):
            check_time()
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
        total, at, failures = done + sum(map(len, pieces)), 0, 0
        futures = [self._start().submit(_work, path, piece) for piece in pieces]
        while at < len(pieces):
            try:
                answers = futures[at].result(seconds_left())
            except TimeoutError:
                raise OutOfTime from None
            except InfercastError:
                raise
            except Exception as problem:
                failures += 1
                broken = isinstance(problem, BrokenProcessPool)
                if broken:
                    self._kill()
                if failures == TRIES:
                    raise WorkerError(OUT_OF_WORKERS.format(item=pieces[at][0])) if broken else problem from None
                # A killed worker takes the pool with it: what others were doing is done again, too.
                for number in range(at, len(pieces)) if broken else (at,):
                    future = futures[number]
                    if future.cancelled() or not future.done() or future.exception() is not None:
                        futures[number] = self._start().submit(_work, path, pieces[number])
                continue
            at, failures, done = at + 1, 0, done + len(answers)
            self._tell(done, total)
            yield from answers

    def _start(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Threads and locks of this process would not survive a fork. Ctrl-C goes to all processes of a terminal:
            # the parent ends the workers.
            ignored = signal.signal, (signal.SIGINT, signal.SIG_IGN)
            self._pool = ProcessPoolExecutor(self.width, get_context("spawn"), *ignored)
        return self._pool

    def _kill(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        workers = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def pieces_of(items: Sequence[Item], workers: int) -> list[Sequence[Item]]:
    pieces_a_worker = 8  # Pieces per worker, so that none waits long for the last one
    most_in_a_piece = 16
    size = min(most_in_a_piece, max(1, len(items) // (pieces_a_worker * workers)))
    return [items[start : start + size] for start in range(0, len(items), size)]


_functions: OrderedDict[str, Callable[[Any], Any]] = OrderedDict()  # A worker's last functions, with what they remember


def _work(path: str, items: Sequence[Any]) -> list[Any]:
    if path not in _functions:
        _functions[path] = pickle.loads(Path(path).read_bytes())
        most_functions = 4  # Functions that a worker keeps: a search alternates between a few
        while len(_functions) > most_functions:
            _functions.popitem(last=False)
    return _apply(_functions[path], items)


def _apply(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [function(item) for item in items]


class Executor(Protocol):
    @property
    def width(self) -> int:
        """How many items it works on at the same time; a search hands over that many, or more, at once."""

    def map(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """What the function makes of each item, in the order of the items; both can be pickled."""


TYPE = "type"  # The key under which a record says what it is


def to_plain(value: Any) -> Any:
    """Records and collections as plain data, functions and other things by name: the same in every process."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Enum):
        return {TYPE: _name(type(value)), "name": value.name}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    names = getattr(value, "_fields", None) if isinstance(value, tuple) else None
    if is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value)]
    if names is not None:
        return {TYPE: _name(type(value)), **{name: to_plain(getattr(value, name)) for name in names}}
    if isinstance(value, tuple | list):
        return [to_plain(each) for each in value]
    return _others(value)


def _others(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {TYPE: "dict", "items": [[to_plain(key), to_plain(each)] for key, each in value.items()]}
    if isinstance(value, partial):
        return {TYPE: "partial", "of": _name(value.func), "given": to_plain([value.args, value.keywords])}
    if isinstance(value, set | frozenset):
        return {TYPE: "set", "items": sorted(map(repr, value))}
    return {TYPE: "named", "name": _name(value if callable(value) else type(value))}


def from_plain(value: Any) -> Any:
    """The record again; only types of this package are made, and lists are tuples."""
    if isinstance(value, list):
        return tuple(from_plain(each) for each in value)
    if not isinstance(value, dict):
        return value
    kind = value[TYPE]
    if kind == "dict":
        return {from_plain(key): from_plain(each) for key, each in value["items"]}
    found = _type(kind)
    if issubclass(found, Enum):
        return found[value["name"]]
    return found(**{name: from_plain(each) for name, each in value.items() if name != TYPE})


def _type(name: str) -> type:
    module, _, qualified = name.partition(":")
    found = getattr(import_module(module), qualified, None) if module.startswith("infercast.") else None
    if not isinstance(found, type) or not (is_dataclass(found) or issubclass(found, Enum) or hasattr(found, "_fields")):
        raise ValueError(f"{name!r} is no record of infercast")
    return found


def _name(value: Any) -> str:
    return f"{value.__module__}:{value.__qualname__}"


PATIENCE = 5.0  # Seconds in which a cluster's address has to answer


class RayCluster:
    """All processors of a Ray cluster; Ray repeats tasks of lost workers and machines."""

    def __init__(self, address: str, progress: Callable[[int, int], None] | None = None) -> None:
        """``address`` is one of Ray's, such as ``auto``, ``ray://host:10001`` or ``host:6379``, or ``local``."""
        try:
            import ray  # noqa: PLC0415 - most do without
        except ImportError:
            raise missing(f"a Ray cluster ({address}; --workers N takes processes of this machine)", "ray") from None
        self._ray, self._tell = ray, progress or (lambda *_: None)
        _check_reachable(address)
        local = "local"  # In place of an address: a cluster of this machine alone, for the time of the command
        quiet = {"log_to_driver": False, "include_dashboard": False} if address == local else {"log_to_driver": False}
        try:
            ray.init(address=address, logging_level="error", ignore_reinit_error=True, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as problem:
            reason = str(problem).strip().splitlines()[0]
            raise InputError(f"no Ray cluster answers at {address!r}: {reason}") from None
        self.width = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def map(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        every, ray = list(items), self._ray
        work = ray.remote(_apply).options(max_retries=TRIES - 1, retry_exceptions=[OSError, MemoryError])
        shared = ray.put(function)
        pieces = pieces_of(every, self.width)
        waiting = [work.remote(shared, piece) for piece in pieces]
        sizes = dict(zip(waiting, map(len, pieces), strict=True))
        unfinished, done = list(waiting), 0
        try:
            for reference in waiting:
                while reference in unfinished:
                    finished, unfinished = ray.wait(unfinished, num_returns=1, timeout=seconds_left())
                    check_time()
                    done += sum(sizes[each] for each in finished)
                    self._tell(done, len(every))
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


KINDS = (".py", ".toml", ".json", ".npz")  # Files that answers hang on: code, GPUs, models, engines and what was fitted


class Resumed:
    """An executor that does not do again what a file has the answer of."""

    def __init__(self, executor: Executor, path: Path) -> None:
        self._executor, self._path = executor, path
        self._known = _read(path)
        self.num_known = len(self._known)  # Answers that the file had

    @property
    def width(self) -> int:
        return self._executor.width

    def map(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        every = list(items)
        asked = _digest([_package(), to_plain(function)])
        keys = [_digest([asked, to_plain(item)]) for item in every]
        missing = {key: item for key, item in zip(keys, every, strict=True) if key not in self._known}
        made = self._executor.map(function, list(missing.values()))
        order = iter(missing)
        for key in keys:
            while key not in self._known:
                self._keep(next(order), next(made))
            yield from_plain(self._known[key])

    def _keep(self, key: str, answer: Any) -> None:
        self._known[key] = plain = to_plain(answer)
        try:
            with self._path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(json.dumps({"key": key, "answer": plain}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise InputError(f"{self._path} cannot be written: {problem.strerror or problem}") from None


def _digest(plain: Any) -> str:
    return sha256(json.dumps(plain, separators=(",", ":")).encode()).hexdigest()[:32]


@cache
def _package() -> str:
    """A hash of code and data: other ones may give other answers."""
    found, root = sha256(), DATA.parent
    for path in sorted(each for each in root.rglob("*") if each.suffix in KINDS and each.is_file()):
        found.update(path.relative_to(root).as_posix().encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def _read(path: Path) -> dict[str, Any]:
    """Answers by key. A last line without an end is cut off, so that the next one begins a line of its own."""
    if not path.exists():
        if not path.parent.is_dir():
            raise InputError(f"--resume {path} needs the folder {path.parent}, which does not exist")
        return {}
    try:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        known = [_entry(path, number, line) for number, line in enumerate(whole.splitlines(), 1)]
        if len(whole) < len(content):
            os.truncate(path, len(whole))
    except OSError as problem:
        raise InputError(f"--resume {path} cannot be read: {problem.strerror or problem}") from None
    return dict(known)


def _entry(path: Path, number: int, line: bytes) -> tuple[str, Any]:
    try:
        entry = json.loads(line)
        return entry["key"], entry["answer"]
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"--resume {path}, line {number} is no answer of an earlier search; name another file, or one that does "
            "not exist yet"
        ) from None


@contextmanager
def executor_for(
    *, workers: int | None = None, ray: str | None = None, resume: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Executor]:  # fmt: skip
    """For the time of a search; by default one worker per processor, up to eight, once it has taken a few seconds."""
    if ray is not None and workers is not None:
        raise InputError(f"--workers {workers} is for processes of this machine; --ray {ray} has workers of its own")
    executor: Processes | RayCluster
    if ray is not None:
        executor = RayCluster(ray, progress)
    elif workers is None:
        most_by_default = 8  # Processes that are started unasked; each needs a second to start and some 200 MB
        executor = Processes(min(processors(), most_by_default), progress, patience=PATIENCE)
    else:
        executor = Processes(workers, progress)
    with closing(executor):
        yield executor if resume is None else Resumed(executor, resume)
