"""Who decodes, who waits and what is under way where prompts are computed in steps of their own.

The books follow SGLang's: a batch of prompts joins those who decode when the next step is planned, one prompt at most
is cut, and who has ended stays in the batch until the next step of decoding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import cast

from infercast.serve.cache.radix_cache import RadixCache
from infercast.serve.scheduler.decode_batch import PLACE, DeclaredSequence, DecodeBatch
from infercast.serve.scheduler.ignored_ends import State, state_of
from infercast.serve.scheduler.prefill_first import PrefillFirst
from infercast.serve.scheduler.sequence import Plan
from infercast.serve.workload.request import Request


class PrefillBooks:
    """Sequences inside an engine, and the steps that compute them."""

    def __init__(
        self, policy: PrefillFirst, cache: RadixCache, steps_under_way: int = 2, max_model_len: int | None = None
    ) -> None:
        self.policy, self.cache = policy, cache
        self.waiting: deque[DeclaredSequence] = deque()
        self.cohort = DecodeBatch(cache, policy.longest_promise)
        self.cut: DeclaredSequence | None = None
        """The prompt that is computed in parts."""
        self.ended: list[DeclaredSequence] = []
        """Who has ended, and is in the batch until decoding goes on."""
        self.ratio = policy.first_ratio
        self.is_full = False
        """Whether prompts are not tried before somebody has left."""
        self.just_left: list[DeclaredSequence] = []
        """Who had to leave since somebody looked, and had its last token in the last step of decoding that ended."""
        self.num_preemptions = 0
        self._is_late = steps_under_way > 1
        """Whether results come when the next step is under way."""
        self._longest = cache.num_blocks * cache.page if max_model_len is None else max_model_len
        self._under_way: deque[Plan] = deque()
        self._joining: Plan | None = None
        """The step of prompts whose sequences will decode from the next one on ..."""
        self._fresh: list[DeclaredSequence] = []
        """... and those that have not yet."""
        self._first_place = self._last_place = 0

    @property
    def running(self) -> list[DeclaredSequence]:
        """Everybody who decodes or is computed in parts."""
        return [*self.cohort.members] if self.cut is None else [*self.cohort.members, self.cut]

    def add(self, index: int, request: Request) -> None:
        """Queue a request."""
        page, num_input = self.cache.page, request.num_input
        room = self.cache.num_blocks * page - -(-num_input // page) * page - page - 1
        # Nobody can ask for more than the model or the cache has room for, whatever was declared.
        longest = min(room, self._longest - 2 - num_input)
        self.waiting.append(DeclaredSequence(index, request, self.cache, longest))

    def start(self, plan: Plan, steps: int = 1) -> list[int]:
        """The step just planned is handed to the GPU so many times; returns the pages held in each.

        All but the last have ended when that one is under way.
        """
        held = [plan.held]
        if steps > 1:
            held += self.cohort.grow(steps - 1)
            self.cohort.done += steps - 1
            self._decay(steps - 1)
        if plan.decodes:
            ending = self.cohort.advance(steps)
            plan.ending = [*ending]
            if steps > 1 and ending:
                self._part(plan)
        if plan.sequences:
            self._joining = plan
        self._under_way.append(plan)
        return held

    def _part(self, plan: Plan) -> None:
        """Of those who have ended in repetitions of a step, tell who did before the last one."""
        steps = self.cohort.steps
        plan.early = [each for each in plan.ending if each.last_step < steps]
        plan.ending = [each for each in plan.ending if each.last_step == steps]
        plan.wasted = len(plan.early)

    def end_early(self, plan: Plan) -> None:
        """The result before the last one has come, in which some ended who are in the last step nevertheless."""
        for sequence in cast(list[DeclaredSequence], plan.early):
            self._end(sequence)

    def complete(self, plan: Plan) -> list[DeclaredSequence]:
        """Take in the tokens that a finished step yields; returns the sequences that are done."""
        self._under_way.popleft()
        if plan.decodes:
            self.cohort.done += 1
        if not (plan.sampled or plan.ending):
            return []
        done = cast(list[DeclaredSequence], [*plan.ending])
        for sequence in cast(list[DeclaredSequence], plan.sampled):
            produced = sequence.num_produced + 1
            if sequence.joined < 0:
                sequence.num_produced = produced
            elif not plan.decodes:  # otherwise the step counts for it as it does for those who decode
                self.cohort.note_first(sequence)
            else:
                produced = self.cohort.produced(sequence)
            if produced < sequence.num_output:
                self.cache.keep(sequence.lease, sequence.prompt_end)
            else:
                self._end(sequence)
                done.append(sequence)
        for sequence in cast(list[DeclaredSequence], plan.ending):
            self._end(sequence)
        return done

    def _end(self, sequence: DeclaredSequence) -> None:
        """A sequence has all its tokens; the tree keeps what was computed, a step too many included."""
        if sequence.joined >= 0:
            self.cohort.leave(sequence)
            self.ended.append(sequence)
        self.cache.finish(sequence.lease, sequence.num_computed)
        sequence.num_produced = sequence.num_output

    def _merge(self, plan: Plan) -> None:
        """The prompts of the last step decode from now on, but for the one of which a part is missing."""
        self._joining = None
        if plan.decodes and self.ended:
            self.ended.clear()
            self.is_full = False
        was_empty = bool(plan.decodes) or not (self.cohort.members or self.ended)
        sampled = cast(list[DeclaredSequence], plan.sampled)
        joining = [each for each in sampled if each.num_produced < each.num_output]
        if len(joining) < len(plan.sequences) or was_empty:
            self.is_full = False
        # Beside those who decode, prompts come first in the batch.
        place = self._first_place - len(joining) if plan.decodes else self._last_place
        self._first_place, self._last_place = min(place, self._first_place), self._last_place + len(joining)
        for number, sequence in enumerate(joining):
            sequence.place = place + number
            self.cohort.join(sequence)
            self._fresh.append(sequence)

    def _renumber(self, batch: list[DeclaredSequence]) -> None:
        """Those who decode stand in another order from now on."""
        self._first_place, self._last_place = 0, len(batch)
        for place, sequence in enumerate(batch):
            sequence.place = place

    def _decay(self, steps: int = 1) -> None:
        """The share of answers that is promised becomes less with every step."""
        ratio, decay, least = self.ratio, self.policy.ratio_decay, self.policy.least_ratio
        while steps and ratio != least:
            steps -= 1
            ratio = max(ratio - decay, least)
        self.ratio = ratio

    def _batch(self) -> Iterable[tuple[DeclaredSequence, int]]:
        """Everybody in the batch, in order, with the tokens that are known of each."""
        for each in sorted([*self.cohort.members, *self.ended], key=PLACE):
            yield each, self.cohort.produced(each) if each.joined >= 0 else each.num_produced

    def _shares(self) -> list[float]:
        """What each in the batch is promised."""
        longest, ratio = self.policy.longest_promise, self.ratio
        return [min(each.num_declared - produced, longest) * ratio for each, produced in self._batch()]

    def _states(self) -> list[State]:
        """What each in the batch has left, and holds."""
        return [state_of(*pair, self.ratio) for pair in self._batch()]
