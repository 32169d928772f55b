"""Who asks what: equal questions are asked once, recent answers are kept, and nobody waits for what nobody wants."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from infercast.web.workers import Reply, Workers

FIXED = ("catalog", "openapi", "api_page")
"""Answers that never change."""
SECONDS = {**dict.fromkeys(FIXED, 60.0), "memory": 10.0, "simulate": 30.0, "curve": 60.0, "export": 60.0}
"""How long an answer may take; longer ones are for jobs."""
KEPT_ANSWERS, KEPT_BYTES = 256, 32 * 2**20


class Flight:
    """A question under way, and how many wait for its answer."""

    def __init__(self) -> None:
        self.waiting = 0
        self.has_begun = False

    def begin(self) -> None:
        """A worker is at it: from here on it is answered, wanted or not."""
        self.has_begun = True


class Desk:
    """Takes questions to the workers."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self._kept: OrderedDict[str, Reply] = OrderedDict()
        self._fixed: dict[str, Reply] = {}
        self._under_way: dict[str, tuple[Flight, asyncio.Task[Reply]]] = {}
        self._tasks: set[asyncio.Task[Reply]] = set()

    async def ask(self, name: str, document: Mapping[str, Any], client: str = "") -> Reply:
        """The reply to a question. Nothing of a dropped config.json is kept or shared."""
        if name in FIXED:
            if name not in self._fixed:
                reply = await self.workers.ask(name, {}, SECONDS[name], client)
                if not reply.ok:
                    return reply
                self._fixed[name] = reply
            return self._fixed[name]
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

    def _start(self, name: str, document: Mapping[str, Any], client: str) -> tuple[Flight, asyncio.Task[Reply]]:
        flight = Flight()
        task = asyncio.create_task(self.workers.ask(name, document, SECONDS[name], client, flight.begin))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return flight, task

    async def _wait(self, flight: Flight, task: asyncio.Task[Reply], key: str | None = None) -> Reply:
        """Wait for an answer. Who leaves before a worker is at it takes the question away, if he was the last."""
        flight.waiting += 1
        try:
            return await asyncio.shield(task)
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.has_begun:
                task.cancel()
                if key is not None and self._under_way.get(key, (None,))[0] is flight:
                    del self._under_way[key]  # nobody joins a question that is given up

    def _land(self, key: str, flight: Flight, task: asyncio.Task[Reply]) -> None:
        """An answer has come, whether somebody still waits for it or not."""
        if self._under_way.get(key, (None,))[0] is flight:
            del self._under_way[key]
        if not task.cancelled() and task.exception() is None:
            self._keep(key, task.result())

    def _forget(self, task: asyncio.Task[Reply]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # those who waited have heard of it

    async def close(self) -> None:
        """Give up whatever is under way."""
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
    """Whether a question is about a model of the asker's own."""
    several = document.get("states")
    states = [document.get("state"), *(several if isinstance(several, list) else ())]
    return document.get("config") is not None or any(
        isinstance(state, Mapping) and state.get("config") is not None for state in states
    )
