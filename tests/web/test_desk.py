"""Who waits for whom: workers that are shared in turn, equal questions asked once, and jobs that can be ended."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from infercast.web import answers
from infercast.web import workers as module
from infercast.web.worker import line_of, reply_to
from infercast.web.workers import (
    CANCELLED,
    DONE,
    QUEUED,
    BusyError,
    Jobs,
    Reply,
    RequestCoalescer,
    TooLongError,
    Worker,
    Workers,
)


class Slow(Worker):
    """A worker without a process, that answers when it is told to."""

    asked: list[str]
    gate: asyncio.Event

    def __init__(self) -> None:
        self.answers = 0
        self.dead = False

    @classmethod
    async def start(cls, folder: str) -> "Slow":
        return cls()

    async def ask(self, name: str, document: Mapping[str, Any], seconds: float, tell: Any = None) -> Reply:
        Slow.asked.append(str(document.get("who", name)))
        if tell is not None:
            tell("at it")
        await Slow.gate.wait()
        return Reply(True, json.dumps(document).encode())

    @property
    def is_alive(self) -> bool:
        return not self.dead

    async def kill(self) -> None:
        self.dead = True


@pytest.fixture(autouse=True)
def _slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real" not in request.keywords:
        Slow.asked = []
        monkeypatch.setattr(module, "Worker", Slow)
        monkeypatch.setattr("infercast.web.workers.Worker", Slow)


def run(test: Callable[[], Any]) -> None:
    async def whole() -> None:
        Slow.gate = asyncio.Event()
        async with asyncio.timeout(60):
            await test()

    asyncio.run(whole())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_clients_take_turns() -> None:
    async def test() -> None:
        workers = Workers(1)
        clients = ["a", "a", "a", "b", "c", "b"]
        asked = [
            asyncio.create_task(workers.ask("memory", {"who": f"{client}{number}"}, 1.0, client))
            for number, client in enumerate(clients)
        ]
        await settle()
        assert workers.num_waiting == 5
        Slow.gate.set()
        await asyncio.gather(*asked)
        assert Slow.asked == ["a0", "a1", "b3", "c4", "a2", "b5"]
        assert workers.num_waiting == 0
        await workers.close()

    run(test)


def test_a_full_queue_refuses_and_who_leaves_gives_up_his_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 2)

    async def test() -> None:
        workers = Workers(1)
        first, second, third = (asyncio.create_task(workers.ask("memory", {"who": who}, 1.0)) for who in "123")
        await settle()
        with pytest.raises(BusyError):
            await workers.ask("memory", {"who": "4"}, 1.0)
        second.cancel()
        await settle()
        fifth = asyncio.create_task(workers.ask("memory", {"who": "5"}, 1.0))
        await settle()
        Slow.gate.set()
        await asyncio.gather(first, third, fifth)
        assert Slow.asked == ["1", "3", "5"]
        await workers.close()

    run(test)


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)

    async def test() -> None:
        workers = Workers(1)
        first = asyncio.create_task(workers.ask("memory", {"who": "1"}, 1.0))
        await settle()
        with pytest.raises(BusyError):
            await workers.ask("memory", {"who": "2"}, 1.0)
        Slow.gate.set()
        await first
        await workers.ask("memory", {"who": "3"}, 1.0)
        await workers.close()

    run(test)


def test_equal_questions_are_asked_once_and_answers_are_kept() -> None:
    async def test() -> None:
        desk = RequestCoalescer(Workers(1))
        asked = [asyncio.create_task(desk.ask("memory", {"who": "x"})) for _ in range(5)]
        await settle()
        Slow.gate.set()
        assert len({reply.body for reply in await asyncio.gather(*asked)}) == 1
        await desk.ask("memory", {"who": "x"})
        assert Slow.asked == ["x"]
        await desk.workers.close()

    run(test)


def test_nothing_of_a_dropped_config_is_shared_or_kept() -> None:
    async def test() -> None:
        desk = RequestCoalescer(Workers(1))
        Slow.gate.set()
        for document in ({"config": {"a": 1}}, {"state": {"config": {"a": 1}}}):
            await asyncio.gather(*(desk.ask("memory", document) for _ in range(3)))
        assert len(Slow.asked) == 6
        assert not desk._kept
        assert not desk._under_way
        await desk.workers.close()

    run(test)


def test_what_nobody_wants_any_more_is_not_asked() -> None:
    async def test() -> None:
        desk = RequestCoalescer(Workers(1))
        running = asyncio.create_task(desk.ask("memory", {"who": "running"}))
        await settle()
        left, shared, stays = (
            asyncio.create_task(desk.ask("memory", {"who": who})) for who in ("left", "shared", "shared")
        )
        await settle()
        for task in (running, left, shared):
            task.cancel()
        await settle()
        Slow.gate.set()
        assert json.loads((await stays).body) == {"who": "shared"}
        await settle()
        assert Slow.asked == ["running", "shared"]
        # What a worker was at is answered and kept, though nobody waits for it any more.
        assert not desk._under_way
        assert (await desk.ask("memory", {"who": "running"})).ok
        assert Slow.asked == ["running", "shared"]
        await desk.close()
        await desk.workers.close()

    run(test)


def test_nobody_joins_a_question_that_is_given_up() -> None:
    async def test() -> None:
        desk = RequestCoalescer(Workers(1))
        running = asyncio.create_task(desk.ask("memory", {"who": "running"}))
        await settle()
        left = asyncio.create_task(desk.ask("memory", {"who": "x"}))
        await settle()
        left.cancel()
        await asyncio.sleep(0)
        again = asyncio.create_task(desk.ask("memory", {"who": "x"}))
        await settle()
        Slow.gate.set()
        assert (await again).ok
        await running
        await desk.workers.close()

    run(test)


def test_jobs_wait_run_and_end() -> None:
    async def test() -> None:
        jobs = Jobs("/", 1)
        first, second, third = (jobs.start("plan", {"who": who}) for who in "123")
        await settle()
        assert (first.says, first.steps, second.state) == ("at it", 1, QUEUED)
        jobs.cancel(second)
        Slow.gate.set()
        await settle()
        assert [each.state for each in (first, second, third)] == [DONE, CANCELLED, DONE]
        assert json.loads(first.body())["result"] == {"who": "1"}
        assert Slow.asked == ["1", "3"]
        assert jobs.get(third.id) is third
        assert jobs.get("unknown") is None
        assert len({job.id for job in (first, second, third)}) == 3
        await jobs.close()

    run(test)


def test_too_many_jobs_are_refused_and_old_ones_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infercast.web.workers.MOST_QUEUED", 2)

    async def test() -> None:
        jobs = Jobs("/", 1)
        first = jobs.start("plan", {})
        await settle()
        for _ in range(2):
            jobs.start("plan", {})
        with pytest.raises(BusyError):
            jobs.start("plan", {})
        Slow.gate.set()
        await settle()
        monkeypatch.setattr("infercast.web.workers.KEPT_SECONDS", -1.0)
        assert jobs.get(first.id) is None
        await jobs.close()

    run(test)


def _no_memory(*_: Any) -> Any:
    raise MemoryError


def test_a_worker_without_memory_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(answers.QUESTIONS, "memory", _no_memory)
    body = line_of(*reply_to("memory", {}, print))[1:-1]

    class Full(Slow):
        async def ask(self, name: str, document: Mapping[str, Any], seconds: float, tell: Any = None) -> Reply:
            return Reply(False, body)

    async def test() -> None:
        workers = Workers(1)
        full = Full()
        workers._free = [full]
        assert not (await workers.ask("memory", {}, 1.0)).ok
        assert full.dead
        Slow.gate.set()
        assert (await workers.ask("memory", {}, 1.0)).ok
        await workers.close()

    run(test)


@pytest.mark.real
def test_a_worker_that_takes_too_long_is_killed_and_replaced() -> None:
    """Also one that is in the middle of a simulation, and one whose asker has gone."""
    long = {"state": {"num_requests": 5000, "data_parallel_size": 32, "output_len": "4000", "concurrency": 2000}}

    async def test() -> None:
        workers = Workers(1)
        assert (await workers.ask("memory", {}, 60.0)).ok
        with pytest.raises(TooLongError):
            await workers.ask("simulate", long, 0.5)
        reply = await workers.ask("memory", {"state": {"model": "llama-3.3-70b"}}, 60.0)
        assert json.loads(reply.body)["memory"]["model"] == "llama-3.3-70b"
        (idle,) = workers._free
        assert idle is not None
        await workers.close()
        assert not idle.is_alive

    run(test)
