"""The processes that answer: a few that are kept, and that everyone waits for in turn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from infercast.web.worker import ANSWER, ERROR, SAYS

LONGEST_LINE = 64 * 2**20
MOST_WAITING = 256
"""Questions that wait for a worker; further ones are refused at once."""
MOST_ANSWERS = 1000
"""After so many a worker is replaced by a fresh one."""
OUT_OF_MEMORY = b'{"error":{"type":"MemoryError"'
"""How the reply of a worker begins that has no memory left."""
PATIENCE = 60.0
"""Seconds that a question waits for its turn."""


class Reply(NamedTuple):
    """What came of a question, as JSON."""

    ok: bool
    body: bytes


class BusyError(Exception):
    """Too many questions wait already, or this one waited too long."""


class TooLongError(Exception):
    """A question took longer than it may."""


class Worker:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.answers = 0

    @classmethod
    async def start(cls, folder: str) -> Worker:
        """A fresh one, in an empty folder."""
        # One thread each, and the same packages as here though the folder is another one.
        paths = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
        told = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "infercast.web.worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LONGEST_LINE, cwd=folder,
            env={**os.environ, **told},
        )  # fmt: skip
        return cls(process)

    async def ask(
        self, name: str, document: Mapping[str, Any], seconds: float, tell: Callable[[str], None] | None = None
    ) -> Reply:
        """The reply to a question; a worker that takes longer than it may, or whose asker is gone, is dead after it."""
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
        return Reply(False, json.dumps(failed).encode())

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.returncode is None

    async def kill(self) -> None:
        """End it, whatever it is at."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


class Workers:
    """A fixed number of processes, and those who wait for one: each client in turn, first come first served within."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.folder = tempfile.TemporaryDirectory(prefix="infercast-web-")
        self._free: list[Worker | None] = [None] * number
        """Idle ones, the last used one last: it may have kept what is asked for next. None: not started yet."""
        self._waiting: dict[str, deque[asyncio.Future[Worker | None]]] = {}

    @property
    def num_waiting(self) -> int:
        """Questions that have no worker yet."""
        return sum(map(len, self._waiting.values()))

    async def start(self) -> None:
        """Start all of them."""
        self._free = [await Worker.start(self.folder.name) for _ in self._free]

    async def ask(
        self,
        name: str,
        document: Mapping[str, Any],
        seconds: float,
        client: str = "",
        begin: Callable[[], None] = lambda: None,
    ) -> Reply:
        """The reply to a question by the next worker that is free; ``begin`` is called when there is one."""
        worker = await self._take(client)
        begin()
        try:
            if worker is None or not worker.is_alive or worker.answers >= MOST_ANSWERS:
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
        """A free worker, when it is this client's turn."""
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
        """Let the first of the next client have it; who had a turn stands behind all other clients."""
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
        """End all of them."""
        for worker in self._free:
            if worker is not None:
                await worker.kill()
        self.folder.cleanup()
