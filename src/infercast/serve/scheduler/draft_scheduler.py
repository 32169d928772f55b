"""One step after another where decoding sequences compute drafts beside their next token, as vLLM plans them.

What was computed runs ahead of what is known: with asynchronous scheduling a step is planned as if all drafts of the
one before it were right, and the counts go back when its result tells how many were. A sequence that might have its
last token in the step under way is planned once more, and that step is wasted if it has.
"""

from __future__ import annotations

from typing import cast

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.scheduler.draft_plan import DraftPlan, DraftSequence
from infercast.serve.scheduler.policy import MixingPolicy
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.scheduler.sequence import Plan, Sequence
from infercast.serve.speculation import DraftCounts, Draws, Speculation
from infercast.serve.workload.request import Request

NO_LIMIT = 1 << 40


class DraftScheduler(Scheduler):
    """Decides what each step computes, by the rules of a policy and of how drafts are made."""

    def __init__(
        self,
        policy: MixingPolicy,
        cache: KvCache,
        speculation: Speculation,
        draws: Draws,
        steps_under_way: int = 2,
        max_model_len: int | None = None,
    ) -> None:
        super().__init__(policy, cache, steps_under_way, decode_together=False)
        self._speculation, self._draws = speculation, draws
        self._is_async = not policy.waits_for_tokens
        self._longest = max_model_len or NO_LIMIT
        self._most_tokens = policy.max_num_batched_tokens - speculation.slots_taken * policy.max_num_seqs
        self._pads = speculation.pads_new and not speculation.by_batch
        self._varies = speculation.match < 1.0
        self._in_prompt = self._may_pad = False
        self.counts = DraftCounts(by_accepted=[0] * (1 + speculation.num_drafts))

    def add(self, index: int, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(DraftSequence(index, request, self.cache.path(request), self._num_groups))

    def plan(self) -> Plan | None:
        """Plan the next step, as if all drafts in the steps under way were right; None if nothing can be computed."""
        plan = DraftPlan(1 + self._speculation.num_drafts)
        self._step += 1
        if self._has_states:
            self.cache.new_step()
        self._budget = self._most_tokens
        self._in_prompt = False
        if self._apart:
            self._plan_apart(plan)
        self._may_pad = self._pads and bool(plan.sequences) and not self._in_prompt
        if self.waiting and not plan.num_preempted and not self._is_blocked:
            self._plan_waiting(plan)
        if not plan.sequences:
            return None
        plan.held = self.cache.num_held
        plan.num_drafting = len(plan.sampled)
        plan.num_next = self._speculation.drafts_for(len(plan.sequences))
        if self._is_async:
            for sequence in plan.sampled:
                cast(DraftSequence, sequence).num_drafts = plan.num_next
        return plan

    def most_steps(self, plan: Plan) -> int:
        """Nobody knows what the next one will be."""
        return 1

    def _plan_apart(self, plan: Plan) -> None:
        """Running sequences, in order."""
        running, longest, lookahead = self._apart, self._longest, self._speculation.lookahead
        position = 0
        while position < len(running) and self._budget > 0:
            sequence = cast(DraftSequence, running[position])
            position += 1
            computed, awaited = sequence.num_computed, sequence.num_awaited
            if awaited and computed + 2 - awaited >= sequence.num_last:  # it ends even if no draft is right
                continue
            new_tokens = sequence.num_tokens + sequence.num_drafts + awaited - computed
            if new_tokens > 1:
                new_tokens = self.policy.chunk(new_tokens, self._budget, alone=self._is_alone())
            new_tokens = min(new_tokens, longest - computed - 1)
            if self._is_aligned and new_tokens:
                new_tokens = self._aligned(sequence, computed, new_tokens)
            if not new_tokens:
                continue
            slots = min(computed + new_tokens + lookahead, longest)
            if not self._make_room(sequence, slots - computed, plan):
                return
            self._in_prompt |= sequence.in_prompt
            drafts = computed + new_tokens - sequence.num_tokens - awaited
            self._put_drafts(plan, sequence, new_tokens, max(0, min(drafts, sequence.num_drafts)))

    def _start(self, sequence: Sequence) -> int:
        """Give a sequence its first blocks; returns the tokens it computes, 0 if it has to wait."""
        cache = self.cache
        num_tokens = sequence.num_tokens
        if not cache.may_fit(sequence, num_tokens):
            return 0
        num_cached = cache.longest_prefix(sequence, num_tokens)
        missing = num_tokens - num_cached
        if missing == 1 and self._may_pad:
            # Rather none than one that would keep the others from a graph.
            missing += self._speculation.num_drafts
            if missing > self._budget or num_cached + missing > self._longest:
                return 0
        new_tokens = self.policy.first_chunk(missing, self._budget, alone=self._is_alone())
        if self._is_aligned:
            new_tokens = self._aligned(sequence, num_cached, new_tokens)
        slots = min(num_cached + new_tokens + self._speculation.lookahead, self._longest) - num_cached
        if not new_tokens or not cache.admit(sequence, num_cached, slots, num_tokens, self._most_under_way):
            return 0
        sequence.num_computed = sequence.num_cached = num_cached
        return new_tokens

    def _put(self, plan: Plan, sequence: Sequence, new_tokens: int) -> None:
        """Enter a sequence that starts."""
        assert isinstance(sequence, DraftSequence)
        assert isinstance(plan, DraftPlan)
        if not sequence.accepted:
            sequence.accepted = self._draws.accepted(sequence.index, sequence.num_output)
            if self._varies:
                sequence.drafted = self._draws.drafted(sequence.index, sequence.num_output)
        sequence.is_padded = sequence.num_computed + new_tokens > sequence.num_tokens
        self._put_drafts(plan, sequence, new_tokens, self._speculation.num_drafts if sequence.is_padded else 0)

    def _put_drafts(self, plan: Plan, sequence: DraftSequence, new_tokens: int, drafts: int) -> None:
        """Enter a sequence into the plan and count its tokens as computed; if it caught up, it is sampled for."""
        assert isinstance(plan, DraftPlan)
        computed = sequence.num_computed
        reached = sequence.num_computed = computed + new_tokens
        plan.sequences.append(sequence)
        plan.new_tokens.append(new_tokens)
        plan.computed.append(computed)
        plan.verified.append(drafts)
        plan.num_drafts += drafts
        plan.num_verifying += new_tokens == 1 + drafts
        self._budget -= new_tokens
        self._is_blocked = False
        self.cache.name(sequence, min(reached, sequence.num_tokens))
        sequence.in_prompt = reached < sequence.num_tokens + sequence.num_awaited
        sequence.num_drafts = 0
        if not sequence.in_prompt:
            plan.sampled.append(sequence)
            plan.yielded.append(drafts)
            if self._is_async:
                sequence.num_awaited += 1 + drafts

    def complete(self, plan: Plan) -> list[Sequence]:
        """Take in the tokens that a finished step yields; returns the sequences that are done."""
        assert isinstance(plan, DraftPlan)
        self._under_way.popleft()
        self._is_blocked = False
        done: list[Sequence] = []
        for sequence, drafts in zip(plan.sampled, plan.yielded, strict=True):
            assert isinstance(sequence, DraftSequence)
            if sequence.num_produced == sequence.num_output:  # the step was one too many
                continue
            plan.received.append(sequence)
            if self._take_tokens(sequence, drafts, plan.num_next):
                done.append(sequence)
        if done:
            self._end(done)
        return done

    def _take_tokens(self, sequence: DraftSequence, drafts: int, num_next: int) -> bool:
        """A step yielded one token and the drafts that were right; True if the sequence has all of its tokens."""
        accepted = 0
        if drafts:
            if sequence.num_produced and not sequence.is_padded:
                accepted = min(sequence.accepted[sequence.num_produced], drafts)
            sequence.is_padded = False
            self.counts.num_draft_tokens += drafts
            self.counts.by_accepted[accepted] += 1
        if sequence.num_computed:  # or it gave way meanwhile
            sequence.num_computed -= drafts - accepted
        tokens = min(1 + accepted, sequence.num_output - sequence.num_produced)
        sequence.num_produced += tokens
        sequence.num_tokens += tokens
        is_done = sequence.num_produced == sequence.num_output
        if self._is_async:
            sequence.num_awaited -= drafts - accepted + tokens
            if sequence.length:
                self.cache.name(sequence, sequence.num_computed - sequence.num_awaited)
        elif not is_done:
            sequence.num_drafts = sequence.drafted[sequence.num_produced] if self._varies else num_next
        return is_done

    def _end(self, done: list[Sequence]) -> None:
        """Let go of sequences that have all their tokens."""
        for sequence in done:
            if sequence in self.running:
                del self.running[sequence]
                self._apart.remove(sequence)
            else:  # it gave way in its last step
                self.waiting.remove(sequence)
            self.cache.free(sequence)

    def _preempt(self, plan: Plan) -> Sequence:
        """Whoever gives way loses its drafts."""
        victim = super()._preempt(plan)
        cast(DraftSequence, victim).num_drafts = 0
        return victim
