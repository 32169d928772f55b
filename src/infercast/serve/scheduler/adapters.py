"""No more different LoRA adapters in a step than an engine has room for: who asks for another one is passed by others.

As in vLLM: a request that waits is left where it is if the adapters of those who run, and of those who start before it
in the step, fill all slots and its own is not among them.
"""

from __future__ import annotations

from typing import Any

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.scheduler.base import Plan, Sequence
from infercast.serve.scheduler.policy import FirstCome, MixingPolicy
from infercast.serve.scheduler.priority import ByPriority, PriorityScheduler
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.workload.request import Request


class _Bounded(Scheduler):
    """Any scheduler whose steps have at most so many adapters."""

    max_adapters = 1

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_step: set[int | None] = set()
        self._passed: dict[Sequence, None] = {}
        """Who was passed for want of a slot, at the front of the queue."""

    def _sequence(self, index: int, request: Request) -> Sequence:
        sequence = super()._sequence(index, request)
        sequence.adapter = request.adapter
        self._is_blocked = False  # it may pass those who wait for a slot
        return sequence

    def plan(self) -> Plan | None:
        """A slot may be free as soon as somebody's last token is under way."""
        if self._passed:
            self._is_blocked = False
        plan = super().plan()
        if plan is not None:
            planned = (*(self.cohort.members if plan.decodes else ()), *plan.sequences)
            plan.has_adapters = any(each.adapter is not None for each in planned)
        return plan

    def _plan_waiting(self, plan: Plan) -> None:
        planned = [*(self.cohort.members if plan.decodes else ()), *plan.sequences]
        self._in_step = {each.adapter for each in planned} - {None}
        super()._plan_waiting(plan)

    def most_steps(self, plan: Plan) -> int:
        """As long as somebody waits for a slot, who ends matters."""
        return 1 if self._passed else super().most_steps(plan)

    def _is_passed(self, sequence: Sequence) -> bool:
        adapter = sequence.adapter
        if adapter is not None and adapter not in self._in_step and len(self._in_step) >= self.max_adapters:
            self._passed[sequence] = None
            return True
        return super()._is_passed(sequence)

    def _start(self, sequence: Sequence) -> int:
        new_tokens = super()._start(sequence)
        if new_tokens:
            self._passed.pop(sequence, None)
            if sequence.adapter is not None:
                self._in_step.add(sequence.adapter)
        return new_tokens


class AdapterScheduler(_Bounded):
    """In order of arrival."""

    def _preempt(self, plan: Plan) -> Sequence:
        """Who gives way may come back after those who were passed before."""
        victim = super()._preempt(plan)
        if self._passed and isinstance(self.policy, FirstCome) and self.policy.passed_apart:
            self.waiting.popleft()
            self.waiting.insert(len(self._passed), victim)
        return victim


class PriorityAdapterScheduler(_Bounded, PriorityScheduler):
    """In order of priority."""


def adapter_scheduler(
    policy: MixingPolicy,
    cache: KvCache,
    steps_under_way: int,
    max_adapters: int,
    max_model_len: int | None = None,
    *,
    decode_together: bool,
) -> Scheduler:
    """The scheduler that a policy asks for, bounded."""
    found: _Bounded
    if isinstance(policy, ByPriority):
        found = PriorityAdapterScheduler(policy, cache, steps_under_way, max_model_len, decode_together=decode_together)
    else:
        found = AdapterScheduler(policy, cache, steps_under_way, max_model_len, decode_together=decode_together)
    found.max_adapters = max_adapters
    return found
