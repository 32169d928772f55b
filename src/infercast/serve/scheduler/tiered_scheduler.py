"""Prompts first, with a KV cache whose second tier is in the host's memory.

What a prompt finds there is brought back in the step that computes the rest of it, layer by layer ahead of the kernels.
It needs room on the GPU like new tokens, but none of the tokens of a step.
"""

from __future__ import annotations

from typing import Any, cast

from infercast.serve.cache.tiered_cache import TieredCache
from infercast.serve.scheduler.admission import Admission, Answer
from infercast.serve.scheduler.decode_batch import DeclaredSequence
from infercast.serve.scheduler.prefill_first import PrefillFirst
from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler
from infercast.serve.scheduler.sequence import Plan


class TieredAdmission(Admission):
    """What is left of a step of prompts, where some of them are loaded."""

    def __init__(self, policy: PrefillFirst, cache: TieredCache, *others: Any) -> None:
        super().__init__(policy, cache, *others)
        self._tiers = cache
        self.loaded: dict[DeclaredSequence, int] = {}
        """Pages that come from the host, of each prompt that has some."""

    def _of_others(self, sequence: DeclaredSequence, missing: int) -> Answer:
        """As without a tier; what the host has is loaded even if the step turns out to be full."""
        tiers, page, lease = self._tiers, self._page, sequence.lease
        to_load = tiers.num_to_load(lease) * page if sequence.num_computed else 0
        left = min(sequence.num_declared - sequence.num_produced, self._policy.longest_promise)
        needed, in_pages = missing + to_load + left + page, self._in_pages(missing)
        if self._lacks(needed):
            return Answer.NO_ROOM
        if self._of_chunk is None and self.sequences and in_pages >= self._of_step:
            return Answer.STOP
        if sequence.num_computed:
            tiers.hold(lease)
            if self._lacks(needed):
                return Answer.NO_ROOM
            if to_load:
                tiers.load(lease)
        if self._of_chunk is None or in_pages <= self._of_chunk:
            self._add(sequence, missing, missing)
        elif (part := self._of_chunk // page * page) > 0:
            self._add(sequence, part, missing)
        else:
            return Answer.STOP
        if to_load:
            self.loaded[sequence] = to_load // page
        return Answer.NEXT


class TieredScheduler(PrefillScheduler):
    """Decides what each step computes and loads."""

    admission = TieredAdmission

    def __init__(self, policy: PrefillFirst, cache: TieredCache, *others: Any) -> None:
        super().__init__(policy, cache, *others)
        self.tiers = cache
        self.loaded: dict[int, int] = {}
        """Of each request that found some of its tokens in the host's memory when it first started, how many."""
        self.new_loads: list[int] = []
        """Requests of the step just planned some of whose pages are brought back."""
        self.num_queried = self.num_hit = 0
        """Tokens that the GPU did not have, of prompts that started, and those of them that the host had."""

    def plan(self) -> Plan | None:
        """Plan the next step; parts of prompts that are taken in first are not copied to the host yet."""
        self.new_loads = []
        self.tiers.settle()
        self.tiers.takes_parts = True
        plan = super().plan()
        self.tiers.takes_parts = False
        return plan

    def _put(self, plan: Plan, admission: Admission) -> None:
        loaded, page = cast(TieredAdmission, admission).loaded, self.cache.page
        for sequence in admission.sequences:
            if sequence.prompt_end:
                continue
            count = loaded.get(sequence, 0)
            self.num_queried += sequence.num_known - sequence.num_computed + count * page
            self.num_hit += count * page
            if count and not sequence.num_preemptions:
                self.loaded[sequence.index] = count * page
                self.new_loads.append(sequence.index)
        super()._put(plan, admission)
