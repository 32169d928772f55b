"""Questions that take long: each in a process of its own, with progress, and killed when nobody wants it any more."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infercast.web.workers import BusyError, Reply, TooLongError, Worker

KINDS = ("plan", "capacity", "energy", "curve", "simulate")
QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
MOST_SECONDS = 1800.0
MOST_JOBS, MOST_QUEUED = 64, 16
"""Jobs that are remembered, and those of them that wait."""
KEPT_SECONDS = 900.0
"""How long an answer is kept after the last look at it."""


@dataclass(slots=True)
class Job:
    """One question."""

    id: str
    kind: str
    document: Mapping[str, Any]
    state: str = QUEUED
    says: str = ""
    """What it is at."""
    steps: int = 0
    """Parts of the work that were begun."""
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    looked_at: float = field(default_factory=time.monotonic)
    reply: Reply | None = None
    task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.state in (DONE, FAILED, CANCELLED)

    def body(self, with_result: bool = True) -> bytes:
        """The job as JSON, with its answer when there is one."""
        seconds = (self.ended or time.monotonic()) - self.started
        told: dict[str, Any] = {"id": self.id, "kind": self.kind, "state": self.state, "says": self.says}
        text = json.dumps({**told, "steps": self.steps, "seconds": round(seconds, 3)}).encode()
        if self.reply is None or not with_result:
            return text
        rest = b', "result": ' + self.reply.body if self.reply.ok else b", " + self.reply.body[1:-1]
        return text[:-1] + rest + b"}"


class Jobs:
    """All of them; so many run at a time."""

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
        """One of them by its name."""
        self._tidy()
        job = self._jobs.get(name)
        if job is not None:
            job.looked_at = time.monotonic()
        return job

    def cancel(self, job: Job) -> None:
        """End a job and its process."""
        if not job.is_over and job.task is not None:
            job.state = CANCELLED
            job.task.cancel()

    async def _run(self, job: Job) -> None:
        def tell(words: str) -> None:
            job.says, job.steps = words, job.steps + 1

        try:
            async with self._slots:
                job.state, job.started = RUNNING, time.monotonic()
                worker = await Worker.start(self.folder)
                try:
                    job.reply = await worker.ask(job.kind, job.document, MOST_SECONDS, tell)
                finally:
                    await worker.kill()
            job.state = DONE if job.reply.ok else FAILED
        except TooLongError:
            told = {"error": {"type": "TooLongError", "message": f"the job took longer than {MOST_SECONDS:g} s"}}
            job.state, job.reply = FAILED, Reply(False, json.dumps(told).encode())
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
        """End all of them."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for job in self._jobs.values():
            self.cancel(job)
        await asyncio.gather(*tasks, return_exceptions=True)
