"""Scheduling by priority: whoever waits is looked at in order of priority, and the least important runner gives way.

As in vLLM with ``--scheduling-policy priority``: the smallest number goes first, and of equals the one that came first.
A request that waits never takes the place of one that runs. Where a running one needs a block and there is none, the
last by priority and arrival of all that run gives way, although the step may have taken it in already.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.scheduler.base import Plan, Sequence
from infercast.serve.scheduler.policy import FirstCome
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.workload.request import Request

RANK = attrgetter("rank")


@dataclass(frozen=True, slots=True)
class ByPriority(FirstCome):
    """As `FirstCome`, but in order of priority."""

    steps_over: bool = False
    """Whether the one after it loses its turn where one that gives way stands before it and had nothing to compute:
    the index into the list of those who run is not moved back then (vLLM 0.25)."""

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """The last by priority, and of equals the last that came."""
        return max(running, key=RANK)


class RankedQueue(deque[Sequence]):
    """Those who wait, in order of rank, however they come."""

    def append(self, sequence: Sequence) -> None:
        """A request has come."""
        if not self or self[-1].rank < sequence.rank:
            super().append(sequence)
        else:
            insort(self, sequence, key=RANK)

    def appendleft(self, sequence: Sequence) -> None:
        """One that ran comes back to its place."""
        self.append(sequence)


class PriorityScheduler(Scheduler):
    """Plans steps by the rules of `ByPriority`.

    As long as there are blocks for everybody the order of those who run does not matter, and they decode together.
    """

    policy: ByPriority

    def __init__(
        self,
        policy: ByPriority,
        cache: KvCache,
        steps_under_way: int = 2,
        max_model_len: int | None = None,
        *,
        decode_together: bool = True,
    ) -> None:
        super().__init__(policy, cache, steps_under_way, max_model_len, decode_together=decode_together)
        self.waiting = RankedQueue()
        self._num_added = 0

    def _sequence(self, index: int, request: Request) -> Sequence:
        sequence = super()._sequence(index, request)
        self._num_added += 1
        sequence.rank = request.priority, self._num_added
        if self.waiting and sequence.rank < self.waiting[0].rank:
            self._is_blocked = False  # another one is the first in the queue now
        return sequence

    def _plan_cohort(self, plan: Plan) -> bool:
        """Together where nobody has to give way."""
        return self._has_room_for_all() and super()._plan_cohort(plan)

    def _has_room_for_all(self) -> bool:
        """Whether there are blocks for whatever those who run may compute in a step."""
        cohort, size = self.cohort, self._block_size
        needed = cohort.blocks[(cohort.steps + 1) % cohort.period]
        for sequence in self._apart:
            most = min(sequence.num_tokens - sequence.num_computed, self.policy.max_num_batched_tokens)
            needed += self._num_groups * max(0, -(-(sequence.num_computed + most) // size) - sequence.length)
        return needed <= self.cache.num_free

    def _plan_apart(self, plan: Plan) -> None:
        """Running sequences that are planned by themselves, in order, some of which give way after their turn."""
        order, alone = [*self.running], {*self._apart}
        position = 0
        while position < len(order) and self._budget > 0:
            sequence = order[position]
            new_tokens = self._next_tokens(sequence) if sequence in alone else 0
            if new_tokens:
                reach = self._move_on(sequence, new_tokens)
                while not self.cache.grow(sequence, sequence.num_computed + new_tokens, reach):
                    victim = self._preempt(plan)
                    place = order.index(victim)
                    del order[place]
                    if victim in plan.sequences:
                        self._take_back(plan, victim)
                        position -= 1
                    elif place < position and not self.policy.steps_over:
                        position -= 1
                    if victim is sequence:
                        return
                self._put(plan, sequence, new_tokens)
            position += 1

    def _take_back(self, plan: Plan, victim: Sequence) -> None:
        """A sequence that the step had taken in is not in it after all."""
        place = plan.sequences.index(victim)
        del plan.sequences[place], plan.computed[place]
        new_tokens = plan.new_tokens.pop(place)
        self._budget += new_tokens
        if self._settles:
            victim.num_under_way -= new_tokens
        if victim in plan.sampled:
            place = plan.sampled.index(victim)
            del plan.sampled[place]
            yields = plan.yielded.pop(place)
            if victim in plan.thrown_away:
                plan.thrown_away.remove(victim)
            if not self.policy.waits_for_tokens:
                goes_on = victim.num_promised < victim.num_most or self._deep
                victim.num_tokens -= yields if goes_on else yields - 1
            victim.num_promised -= yields
