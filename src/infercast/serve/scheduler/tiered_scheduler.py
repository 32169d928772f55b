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
        to_load = self._tiers.num_to_load(sequence.lease) * self._page if sequence.num_computed else 0
        self._offset += to_load
        count = len(self.sequences)
        answer = super()._of_others(sequence, missing)
        self._offset -= to_load
        if to_load and len(self.sequences) > count:
            self.loaded[sequence] = self._tiers.load(sequence.lease)
        return answer


class TieredScheduler(PrefillScheduler):
    """Decides what each step computes and loads."""

    admission = TieredAdmission

    def __init__(self, policy: PrefillFirst, cache: TieredCache, *others: Any) -> None:
        super().__init__(policy, cache, *others)
        self.tiers = cache
        self.loaded: dict[int, int] = {}
        """Of each request that found some of its tokens in the host's memory when it first started, how many."""
        self.num_to_load = 0
        """Pages that are brought back with the step just planned."""
        self.new_loads: list[int] = []
        """Whose they are."""
        self.num_queried = self.num_hit = 0
        """Tokens that the GPU did not have, of prompts that started, and those of them that the host had."""

    def plan(self) -> Plan | None:
        """Plan the next step; parts of prompts that are taken in first are not copied to the host yet."""
        self.num_to_load, self.new_loads = 0, []
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
            self.num_to_load += count
            self.num_queried += sequence.num_known - sequence.num_computed + count * page
            self.num_hit += count * page
            if count and not sequence.num_preemptions:
                self.loaded[sequence.index] = count * page
                self.new_loads.append(sequence.index)
        super()._put(plan, admission)
