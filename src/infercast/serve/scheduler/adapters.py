"""No more different LoRA adapters in a step than an engine has room for: who asks for another one is passed by others.

As in vLLM: a request that waits is left where it is if the adapters of those who run, and of those who start before it
in the step, fill all slots and its own is not among them.
"""

from __future__ import annotations

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.scheduler.policy import MixingPolicy
from infercast.serve.scheduler.priority import ByPriority, PriorityScheduler
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.scheduler.sequence import Plan, Sequence
from infercast.serve.workload.request import Request


class _Bounded(Scheduler):
    """Any scheduler whose steps have at most so many adapters."""

    max_adapters = 1
    _in_step: set[int]

    def _sequence(self, index: int, request: Request) -> Sequence:
        sequence = super()._sequence(index, request)
        sequence.adapter = request.adapter
        self._is_blocked = False  # it may pass those who wait for a slot
        return sequence

    def _plan_waiting(self, plan: Plan) -> None:
        self._in_step = {each.adapter for each in self.running if each.adapter is not None}
        super()._plan_waiting(plan)
        if not plan.started and self.waiting:
            self._is_blocked = not self._has_states

    def _is_passed(self, sequence: Sequence) -> bool:
        adapter = sequence.adapter
        if adapter is not None and adapter not in self._in_step and len(self._in_step) >= self.max_adapters:
            return True
        return super()._is_passed(sequence)

    def _start(self, sequence: Sequence) -> int:
        new_tokens = super()._start(sequence)
        if new_tokens and sequence.adapter is not None:
            self._in_step.add(sequence.adapter)
        return new_tokens


class AdapterScheduler(_Bounded):
    """In order of arrival."""


class PriorityAdapterScheduler(_Bounded, PriorityScheduler):
    """In order of priority."""


def adapter_scheduler(
    policy: MixingPolicy, cache: KvCache, steps_under_way: int, max_adapters: int, *, decode_together: bool
) -> Scheduler:
    """The scheduler that a policy asks for, bounded."""
    found: _Bounded
    if isinstance(policy, ByPriority):
        found = PriorityAdapterScheduler(policy, cache, steps_under_way, decode_together=decode_together)
    else:
        found = AdapterScheduler(policy, cache, steps_under_way, decode_together=decode_together)
    found.max_adapters = max_adapters
    return found
