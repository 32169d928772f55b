"""Engines that follow a clock: requests come and leave while they serve, and tokens are handed out when due.

The engines are those of a simulation, loop by loop. A turn is taken once the clock has reached it, when every request
that it could see has come. The tokens of a step are known before they are due, so they leave on time.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, NamedTuple, cast

from infercast.serve.fleet.pool import Pool, RunningPool, next_pool
from infercast.serve.fleet.two_pools import Link, PoolTransfers, Wire, receiving
from infercast.serve.loop import Replica
from infercast.serve.record import Record
from infercast.serve.scheduler.base import Plan, PrefillFirstPolicy, Sequence
from infercast.serve.simulation import AnyLoop, check_workload, clients_of, loop_of
from infercast.serve.workload.clients import ArrivalQueue, Clients
from infercast.serve.workload.request import Request, Workload

MOST_STEPS = 4096  # Whose ends are kept


class Tokens(NamedTuple):
    """Tokens of one request that leave together."""

    request: int
    number: int
    is_last: bool


class Emission(NamedTuple):
    """The tokens of a step, and when they reach their clients."""

    time: float
    number: int
    engine: int
    tokens: list[Tokens]


Emit = Callable[[float, int, list[Tokens]], None]  # Called with a time, the number of an engine and its tokens


class LiveRecord(Record):
    """What one engine did, with the tokens of each step as they leave; requests are not known before."""

    def __init__(self, replica: Replica, emit: Emit) -> None:
        first_room = 1024  # Requests that there is room for at first
        super().__init__(first_room, replica.num_blocks, replica.token_path_seconds, replica.token_turn_seconds)
        self.step_sizes: deque[int] = deque(maxlen=MOST_STEPS)  # Tokens of steps since somebody looked
        self._forgets = isinstance(replica.policy, PrefillFirstPolicy)
        self._emit, self.number = emit, 0
        self._produced: dict[int, int] = {}
        self._decoding: deque[list[Sequence]] = deque()  # Of each step in flight, the members of the decode batch

    def make_room(self, count: int) -> None:
        if count > self.sent_at.size:
            self.grow(max(count, 2 * self.sent_at.size))

    def observe(self, scheduler: Any, plan: Plan) -> None:
        """A step was launched; its plan does not name the decode batch."""
        cohort = scheduler.cohort
        members = [each for each in cohort.members if each.joined < cohort.steps] if plan.decodes else []
        self._decoding.append([*members, *(each for each in plan.ending if each not in cohort.members)])
        self.step_sizes.append(plan.decodes + sum(plan.new_tokens))

    def start(self, sequences: SequenceOf[Sequence], time: float) -> None:
        super().start(sequences, time)
        self._produced |= {each.index: 0 for each in sequences if not each.num_preemptions}

    def tokens(
        self, end: float, num_sampled: int, others: SequenceOf[Sequence], done: SequenceOf[Sequence],
        left: SequenceOf[Sequence] = (), apart: bool = False,
    ) -> None:  # fmt: skip
        """A step is processed; its tokens leave, and those of sequences that were retracted meanwhile do not."""
        time = self.last_end = end + (self.token_path_seconds + self.token_turn_seconds * num_sampled)
        if len(self.ends) == MOST_STEPS:
            if self.before_write is not None:
                self.before_write()
            self.ends, self.stretches = array("d"), []
        self.ends.append(end)
        self.stretches += (1, num_sampled, 0)
        found: list[Tokens] = []
        last = {each.index for each in done}
        staying = (each for each in self._decoding.popleft() if not self._forgets or each.joined >= 0)
        for sequence in dict.fromkeys([*staying, *others, *done]):
            index = sequence.index
            if (before := self._produced.get(index)) is None:  # its client has left
                continue
            is_last = index in last
            # Members of a decode batch keep no counts; drafts may bring several at once.
            now = sequence.num_output if is_last else min(max(sequence.num_produced, before + 1), sequence.num_output)
            if now > before or is_last:
                found.append(Tokens(index, now - before, is_last))
            if not before:
                self.first_token[index] = time
            self._produced[index] = now
            if is_last:
                self.last_token[index] = time
                self.forget(index)
        self._emit(time, self.number, found)

    def forget(self, index: int) -> None:
        self._produced.pop(index, None)


class LiveSystem:
    """Replicas behind a router, or a prefill and a decode pool, driven by a clock outside."""

    def __init__(
        self, pool: Pool, decode: Pool | None = None, link: Link | None = None,
        sequence_bytes: Callable[[int], float] = float,
    ) -> None:  # fmt: skip
        self.frontend = cast("Clients", clients_of(pool.replicas[0], Workload(()), pool.servers))
        self.num_requests = 0
        self._checked = pool.replicas[0] if decode is None else decode.replicas[0]
        self._due: list[Emission] = []
        self._num_emitted = 0
        self._whole: dict[int, Request] = {}  # With two pools: requests that the first has, as the second will see them
        self._size = sequence_bytes
        emit = self._emit if decode is None else lambda time, engine, tokens: None
        self.pools = [RunningPool(pool, 0, self.frontend, loop_for=partial(self._loop, emit))]
        self._wire: Wire | None = None
        if decode is not None and link is not None:
            self._transfers = PoolTransfers(self._whole)
            second = RunningPool(
                decode, 0, self._transfers, turned_into=receiving, loop_for=partial(self._loop, self._emit)
            )
            self.pools.append(second)
            self._wire = Wire(link, len(self.pools[0].engines))
        for number, record in enumerate(self.records):
            record.number = number
        self.frontend.listen([engine.record for engine in self.pools[0].engines])

    def _loop(self, emit: Emit, replica: Replica, inbox: ArrivalQueue) -> AnyLoop:
        record = LiveRecord(replica, emit)
        return loop_of(replica, inbox, record, jump=False, observe=record.observe)

    @property
    def records(self) -> list[LiveRecord]:
        """Of the engines that answer."""
        return [cast("LiveRecord", engine.record) for engine in self.pools[-1].engines]

    def submit(self, request: Request, now: float) -> int:
        """Send a request; refused if the engine would refuse it."""
        check_workload(self._checked, Workload((request,)))
        index = self.num_requests
        self.num_requests += 1
        for pool in self.pools:
            for engine in pool.engines:
                cast("LiveRecord", engine.record).make_room(self.num_requests)
        if self._wire is not None:
            self._whole[index] = request
            request = replace(request, num_output=1, declared=None, stops=False)
        self.frontend.put(index, request, now)
        return index

    def abort(self, index: int, now: float) -> int:
        """The client of a request has left; returns the number of the engine that answers, the first if none did."""
        self._whole.pop(index, None)
        engines = [] if self.frontend.drop(index) else [pool.abort(index, now) for pool in self.pools]
        for record in self.records:
            record.forget(index)
        for emission in self._due:
            emission.tokens[:] = [each for each in emission.tokens if each.request != index]
        return (engines and engines[-1]) or 0

    @property
    def next_event(self) -> float:
        """When something happens next, if nothing is sent before."""
        waiting = self._wire.next_ready if self._wire is not None else inf
        clocks = [pool.furthest_behind for pool in self.pools]
        arrivals = [pool.next_delivery for pool in self.pools]
        return min([*clocks, *arrivals, waiting, self._due[0].time if self._due else inf])

    def advance(self, now: float) -> list[Emission]:
        """Everything up to a moment; returns the tokens that have reached their clients by then, in order."""
        going_on = True
        while going_on:  # an API server's turns depend on the steps before them
            self.frontend.move_to(min([now, *[pool.furthest_behind for pool in self.pools]]))
            going_on = self._take_turn(now)
        found = []
        while self._due and self._due[0].time <= now:
            found.append(heapq.heappop(self._due))
        return found

    def _take_turn(self, now: float) -> bool:
        """The next turn of an engine or the next transfer, if that is not after ``now``."""
        ready = self._wire.next_ready if self._wire is not None else inf
        pool = next_pool(self.pools, min(now, ready))
        clock = inf if pool is None else pool.furthest_behind
        if self._wire is not None and ready <= clock and ready <= now:
            index, (_, _, received) = self._wire.send()
            if index in self._whole:
                self._transfers.put(index, received)
            return True
        if pool is None or clock > now:
            return False
        engine = pool.next_engine()
        if engine.outstanding:  # else its last client has left
            for index, time in pool.take_turn(engine):
                if pool is not self.pools[-1] and self._wire is not None and index in self._whole:
                    self._wire.put(engine.number, index, time, self._size(self._whole[index].num_input))
        return True

    def _emit(self, time: float, engine: int, tokens: list[Tokens]) -> None:
        if tokens:
            self._num_emitted += 1
            heapq.heappush(self._due, Emission(time, self._num_emitted, engine, tokens))
