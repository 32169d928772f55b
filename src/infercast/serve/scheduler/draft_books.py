"""What becomes of drafts: who runs with them, what a step has yielded, and who is done.

When the result of a step is there, whatever was computed for drafts that are wrong is taken back.
"""

from __future__ import annotations

from typing import cast

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.scheduler.draft_plan import DraftPlan, DraftSequence
from infercast.serve.scheduler.policy import MixingPolicy
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.scheduler.sequence import Plan, Sequence
from infercast.serve.speculation import DraftCounts, Speculation
from infercast.serve.workload.request import Request


class DraftBooks(Scheduler):
    """Sequences with drafts, and the results of their steps."""

    def __init__(
        self,
        policy: MixingPolicy,
        cache: KvCache,
        speculation: Speculation,
        steps_under_way: int,
        max_model_len: int | None = None,
    ) -> None:
        super().__init__(policy, cache, steps_under_way, max_model_len, decode_together=False)
        self._speculation = speculation
        self._is_async = not policy.waits_for_tokens
        self._varies = speculation.match < 1.0
        self._unsure = 0 if policy.settles else speculation.num_drafts
        self._unsettled = max(0, speculation.read_ahead - 1)
        self.counts = DraftCounts(by_accepted=[0] * (1 + speculation.num_drafts))

    def _sequence(self, index: int, request: Request) -> Sequence:
        return DraftSequence(index, request, self.cache.path(request), self._num_groups)

    def _known(self, sequence: Sequence) -> int:
        """All its tokens."""
        return sequence.num_tokens

    def most_steps(self, plan: Plan) -> int:
        """Nobody knows what the next one will be."""
        return 1

    def complete(self, plan: Plan) -> list[Sequence]:
        """Take in the tokens that a finished step yields; returns the sequences that are done."""
        assert isinstance(plan, DraftPlan)
        self._settle(plan)
        done: list[Sequence] = []
        received, counts, is_async, most = plan.received, self.counts.by_accepted, self._is_async, plan.width - 1
        may_hurry, num_drafts = not self._varies, 0
        for sequence, drafts in zip(plan.sequences, plan.verified, strict=True):
            known, last = sequence.num_tokens, sequence.num_last
            if drafts < 0 or known == last:  # in the second case the step was one too many
                continue
            received.append(sequence)
            accepted = 0
            if drafts:
                if drafts == most and may_hurry and not sequence.is_padded:
                    accepted = sequence.accepted[known - sequence.num_input]
                else:
                    accepted = self._num_accepted(sequence, drafts)
                counts[accepted] += 1
                num_drafts += drafts
                if sequence.num_computed:  # or it gave way meanwhile
                    sequence.num_computed -= drafts - accepted
            known += 1 + accepted
            sequence.num_tokens = known = known if known < last else last
            if is_async:
                if known > sequence.full_at and sequence.length:
                    self._name(sequence, known - 1)
            elif known < last:
                sequence.num_drafts = sequence.drafted[known - sequence.num_input] if self._varies else plan.num_next
            if known == last:
                done.append(sequence)
        self.counts.num_draft_tokens += num_drafts
        if done:
            self._end(done)
        return done

    def _settle(self, plan: DraftPlan) -> None:
        """A step is not under way any more."""
        self._under_way.popleft()
        self._is_blocked = False
        if self._settles:
            for sequence, new_tokens in zip(plan.sequences, plan.new_tokens, strict=True):
                sequence.num_under_way -= new_tokens

    def _num_accepted(self, sequence: DraftSequence, drafts: int) -> int:
        """How many drafts are right where some were cut, or are dummies, or there may be none in their places."""
        if sequence.is_padded:
            sequence.is_padded = False
            return 0
        place = sequence.num_tokens - sequence.num_input
        if self._varies and self._is_async:
            # Nothing was found for some of the places, which are not counted as drafts.
            found = min(drafts, sequence.drafted[place])
            self.counts.num_draft_tokens -= drafts - found
            drafts = found
        return min(sequence.accepted[place], drafts)

    def _end(self, done: list[Sequence]) -> None:
        """Let go of sequences that have all their tokens."""
        for sequence in done:
            if sequence in self.running:
                del self.running[sequence]
                self._apart.remove(sequence)
            else:  # it gave way in its last step
                self.waiting.remove(sequence)
            self.cache.free(sequence)

    def _name(self, sequence: DraftSequence, num_tokens: int) -> None:
        """Let others find what so many tokens fill; nothing more is full before there are tokens for another block."""
        final, size = max(0, num_tokens - self._unsettled), self._block_size
        self.cache.name(sequence, final)
        self._is_blocked = False
        sequence.full_at = (final // size + 1) * size + self._unsettled

    def _preempt(self, plan: Plan) -> Sequence:
        """Whoever gives way loses its drafts."""
        victim = super()._preempt(plan)
        cast(DraftSequence, victim).num_drafts = 0
        return victim
