"""Worker processes and their queues: coalesced requests, cached answers, and long questions as jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
import tempfile
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from infercast.units import json_text
from infercast.web.worker import ANSWER, ERROR, SAYS

MOST_WAITING = 256  # questions that wait for a worker; further ones are refused at once
OUT_OF_MEMORY = b'{"error":{"type":"MemoryError"'  # how the reply of a worker begins that has no memory left
PATIENCE = 60.0
FIXED = ("catalog", "openapi", "api_page")
SECONDS = {**dict.fromkeys(FIXED, 60.0), "memory": 10.0, "simulate": 30.0, "curve": 60.0, "export": 60.0}
"""How long an answer may take; longer ones are for jobs."""
KEPT_ANSWERS, KEPT_BYTES = 256, 32 * 2**20
KINDS = ("plan", "capacity", "energy", "curve", "simulate")
QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
MOST_SECONDS = 1800.0
MOST_JOBS, MOST_QUEUED = 64, 16  # jobs that are remembered, and those of them that wait
KEPT_SECONDS = 900.0  # how long an answer is kept after the last look at it


class Reply(NamedTuple):
    ok: bool
    body: bytes


class BusyError(Exception):
    """Too many questions wait already, or this one waited too long."""


class TooLongError(Exception):
    """A question took longer than it may."""


class Worker:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.answers = 0

    @classmethod
    async def start(cls, folder: str) -> Worker:
        # One thread each, and the same packages as here though the folder is another one.
        paths = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
        told = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "infercast.web.worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=64 * 2**20, cwd=folder,
            env={**os.environ, **told},
        )  # fmt: skip
        return cls(process)

    async def ask(
        self, name: str, document: Mapping[str, Any], seconds: float, tell: Callable[[str], None] | None = None
    ) -> Reply:
        """The reply to a question; a worker that exceeds its time, or is no longer waited for, is killed."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            async with asyncio.timeout(seconds):
                stdin.write(json.dumps({"name": name, "document": document}).encode() + b"\n")
                await stdin.drain()
                while line := await stdout.readline():
                    if line[:1] == SAYS and tell is not None:
                        tell(json.loads(line[1:]))
                    if line[:1] in (ANSWER, ERROR):
                        self.answers += 1
                        return Reply(line[:1] == ANSWER, line[1:-1])
        except TimeoutError:
            await self.kill()
            raise TooLongError from None
        except (asyncio.CancelledError, OSError, ValueError):
            await self.kill()
            raise
        await self.kill()
        failed = {"error": {"type": "InternalError", "message": "the process that was to answer ended"}}
        return Reply(False, json_text(failed).encode())

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    async def kill(self) -> None:
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


class Workers:
    """A fixed number of processes and the queue for them: clients in turn, first come first served within each."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.folder = tempfile.TemporaryDirectory(prefix="infercast-web-")
        self._free: list[Worker | None] = [None] * number
        """Idle ones, the last used one last: it may have kept what is asked for next. None: not started yet."""
        self._waiting: dict[str, deque[asyncio.Future[Worker | None]]] = {}

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def start(self) -> None:
        self._free = [await Worker.start(self.folder.name) for _ in self._free]

    async def ask(
        self, name: str, document: Mapping[str, Any], seconds: float, client: str = "",
        begin: Callable[[], None] = lambda: None,
    ) -> Reply:  # fmt: skip
        """The reply to a question by the next worker that is free; ``begin`` is called when there is one."""
        worker = await self._take(client)
        begin()
        try:
            most_answers = 1000  # questions after which a worker is replaced by a fresh one
            if worker is None or not worker.is_alive or worker.answers >= most_answers:
                if worker is not None:
                    await worker.kill()
                worker = await Worker.start(self.folder.name)
            reply = await worker.ask(name, document, seconds)
            if reply.body.startswith(OUT_OF_MEMORY):
                await worker.kill()  # what it keeps may be what fills it
            return reply
        finally:
            self._give(worker)

    async def _take(self, client: str) -> Worker | None:
        if self._free:
            return self._free.pop()
        if self.num_waiting >= MOST_WAITING:
            raise BusyError
        turn: asyncio.Future[Worker | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            async with asyncio.timeout(PATIENCE):
                return await turn
        except (TimeoutError, asyncio.CancelledError) as problem:
            if turn.done() and not turn.cancelled():
                self._give(turn.result())
            else:
                self._forget(client, turn)
            if isinstance(problem, TimeoutError):
                raise BusyError from None
            raise

    def _give(self, worker: Worker | None) -> None:
        """Hand it to the next client's first question; a client that had a turn goes behind all others."""
        while self._waiting:
            client = next(iter(self._waiting))
            queue = self._waiting.pop(client)
            turn = queue.popleft()
            if queue:
                self._waiting[client] = queue
            if not turn.done():
                turn.set_result(worker)
                return
        self._free.append(worker)

    def _forget(self, client: str, turn: asyncio.Future[Worker | None]) -> None:
        queue = self._waiting.get(client)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[client]

    async def close(self) -> None:
        for worker in self._free:
            if worker is not None:
                await worker.kill()
        self.folder.cleanup()


class InFlight:
    def __init__(self) -> None:
        self.waiting = 0
        self.has_begun = False

    def begin(self) -> None:
        self.has_begun = True


class RequestCoalescer:
    """Takes questions to the workers: equal ones under way share one answer, and answers are kept."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self._kept: OrderedDict[str, Reply] = OrderedDict()
        self._under_way: dict[str, tuple[InFlight, asyncio.Task[Reply]]] = {}
        self._tasks: set[asyncio.Task[Reply]] = set()

    async def ask(self, name: str, document: Mapping[str, Any], client: str = "") -> Reply:
        """The reply to a question. Nothing of a dropped config.json is kept or shared."""
        if has_config(document):
            return await self._wait(*self._start(name, document, client))
        key = json.dumps([name, document], sort_keys=True)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if key not in self._under_way:
            flight, task = self._under_way[key] = self._start(name, document, client)
            task.add_done_callback(lambda done: self._land(key, flight, done))
        return await self._wait(*self._under_way[key], key)

    def _start(self, name: str, document: Mapping[str, Any], client: str) -> tuple[InFlight, asyncio.Task[Reply]]:
        flight = InFlight()
        task = asyncio.create_task(self.workers.ask(name, document, SECONDS[name], client, flight.begin))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return flight, task

    async def _wait(self, flight: InFlight, task: asyncio.Task[Reply], key: str | None = None) -> Reply:
        """Wait for an answer. A question that no worker has begun is cancelled when the last waiter leaves."""
        flight.waiting += 1
        try:
            return await asyncio.shield(task)
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.has_begun:
                task.cancel()
                if key is not None and self._under_way.get(key, (None,))[0] is flight:
                    del self._under_way[key]  # no one joins a cancelled question

    def _land(self, key: str, flight: InFlight, task: asyncio.Task[Reply]) -> None:
        if self._under_way.get(key, (None,))[0] is flight:
            del self._under_way[key]
        if not task.cancelled() and task.exception() is None:
            self._keep(key, task.result())

    def _forget(self, task: asyncio.Task[Reply]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # those who waited have heard of it

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _keep(self, key: str, reply: Reply) -> None:
        if not reply.ok or len(reply.body) > KEPT_BYTES // 8:
            return
        self._kept[key] = reply
        while len(self._kept) > KEPT_ANSWERS or sum(len(each.body) for each in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)


def has_config(document: Mapping[str, Any]) -> bool:
    several = document.get("states")
    states = [document.get("state"), *(several if isinstance(several, list) else ())]
    return document.get("config") is not None or any(
        isinstance(state, Mapping) and state.get("config") is not None for state in states
    )


@dataclass(slots=True)
class Job:
    id: str
    kind: str
    document: Mapping[str, Any]
    state: str = QUEUED
    says: str = ""
    steps: int = 0
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    looked_at: float = field(default_factory=time.monotonic)
    reply: Reply | None = None
    task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.state in (DONE, FAILED, CANCELLED)

    def body(self) -> bytes:
        seconds = (self.ended or time.monotonic()) - self.started
        told: dict[str, Any] = {"id": self.id, "kind": self.kind, "state": self.state, "says": self.says}
        text = json_text({**told, "steps": self.steps, "seconds": round(seconds, 3)}).encode()
        if self.reply is None:
            return text
        rest = b', "result": ' + self.reply.body if self.reply.ok else b", " + self.reply.body[1:-1]
        return text[:-1] + rest + b"}"


class Jobs:
    def __init__(self, folder: str, number: int) -> None:
        self.folder = folder
        self._slots = asyncio.Semaphore(number)
        self._jobs: OrderedDict[str, Job] = OrderedDict()

    def start(self, kind: str, document: Mapping[str, Any]) -> Job:
        """A job for a question; its name cannot be guessed."""
        self._tidy()
        queued = sum(job.state == QUEUED for job in self._jobs.values())
        if queued >= MOST_QUEUED or len(self._jobs) >= MOST_JOBS:
            raise BusyError
        job = Job(secrets.token_urlsafe(16), kind, document)
        self._jobs[job.id] = job
        job.task = asyncio.create_task(self._run(job))
        return job

    def get(self, name: str) -> Job | None:
        self._tidy()
        job = self._jobs.get(name)
        if job is not None:
            job.looked_at = time.monotonic()
        return job

    def cancel(self, job: Job) -> None:
        if not job.is_over and job.task is not None:
            job.state = CANCELLED
            job.task.cancel()

    async def _run(self, job: Job) -> None:
        def on_progress(words: str) -> None:
            job.says, job.steps = words, job.steps + 1

        try:
            async with self._slots:
                job.state, job.started = RUNNING, time.monotonic()
                worker = await Worker.start(self.folder)
                try:
                    job.reply = await worker.ask(job.kind, job.document, MOST_SECONDS, on_progress)
                finally:
                    await worker.kill()
            job.state = DONE if job.reply.ok else FAILED
        except TooLongError:
            told = {"error": {"type": "TooLongError", "message": f"the job took longer than {MOST_SECONDS:g} s"}}
            job.state, job.reply = FAILED, Reply(False, json_text(told).encode())
        except asyncio.CancelledError:
            job.state = CANCELLED
        finally:
            job.ended, job.document = time.monotonic(), {}

    def _tidy(self) -> None:
        """Forget what was over long ago, and the oldest of what is over where there are too many."""
        now = time.monotonic()
        over = [job for job in self._jobs.values() if job.is_over]
        for place, job in enumerate(over):
            is_one_too_many = len(over) - place > MOST_JOBS // 2
            if is_one_too_many or now - max(job.looked_at, job.ended or 0.0) > KEPT_SECONDS:
                del self._jobs[job.id]

    async def close(self) -> None:
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for job in self._jobs.values():
            self.cancel(job)
        await asyncio.gather(*tasks, return_exceptions=True)
