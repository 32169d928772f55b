"""The scheduler of speculative decoding: decoding sequences verify drafts together with their next token."""

from __future__ import annotations

from typing import cast

from infercast.serve.cache.allocation import Path
from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.scheduler.base import Plan, Sequence
from infercast.serve.scheduler.policy import MixingPolicy
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.speculation import DraftCounts, Draws, Speculation
from infercast.serve.step import DraftShape
from infercast.serve.workload.request import NEVER, Request

# A sequence with drafts, and the step that a scheduler plans for some of them.


class DraftSequence(Sequence):
    """A request inside an engine that drafts.

    ``num_tokens`` are those that are known, ``num_computed`` those that will be if all drafts under way are right. One
    that decodes has computed all but its last known token when nothing of it is under way; so whatever is computed
    beyond that says how many tokens it waits for.
    """

    __slots__ = ("accepted", "drafted", "full_at", "in_prompt", "is_padded", "num_drafts", "num_last", "room")

    def __init__(self, index: int, request: Request, path: Path = (), num_groups: int = 1) -> None:
        super().__init__(index, request, path, num_groups)
        self.num_drafts = 0
        """Drafts that it has for its next step."""
        self.num_last = request.num_input + request.num_output
        """Tokens that it has when it is done."""
        self.room = 0
        """Tokens that it has slots for, those looked ahead among them."""
        self.full_at = 0
        """Known tokens at which the next of its blocks can be found."""
        self.in_prompt = False
        """Whether the step planned last left some of its known tokens."""
        self.is_padded = False
        """Whether its drafts under way are dummies."""
        self.accepted = b""
        """By the number of tokens produced: how many drafts are right ..."""
        self.drafted = b""
        """... and, where that differs, how many there are."""


class DraftPlan(Plan):
    """What one step computes; every sequence is named."""

    __slots__ = ("num_next", "num_prompts", "num_unsampled", "received", "verified", "width")

    sequences: list[DraftSequence]  # type: ignore[assignment]

    def __init__(self, width: int) -> None:
        super().__init__()
        self.verified: list[int] = []
        """Drafts of each sequence; -1: it is in the middle of its prompt, and not sampled for."""
        self.num_prompts = 0
        """Sequences of which more is computed than a token and its drafts ..."""
        self.num_unsampled = 0
        """... and those that are not sampled for."""
        self.num_next = 0
        """Drafts that are made for each of the others at its end."""
        self.width = width
        """Tokens of a sequence with all the drafts there may be."""
        self.received: list[Sequence] = []
        """Those that got tokens, once its result is taken in."""

    @property
    def num_sampled(self) -> int:
        """Sequences that are sampled for."""
        return len(self.sequences) - self.num_unsampled

    @property
    def num_yielded(self) -> int:
        """Sequences that got tokens."""
        return len(self.received)

    @property
    def shape(self) -> DraftShape:
        """What a step timer needs to know; those that verify first, then prompts."""
        new_tokens, computed, verified = self.new_tokens, self.computed, self.verified
        count, num_prompts, num_sampled = len(new_tokens), self.num_prompts, self.num_sampled
        if 0 < num_prompts < count:
            ordered = sorted(zip(new_tokens, computed, verified, strict=True), key=lambda row: row[0] > 1 + row[2])
            new_tokens, computed = [row[0] for row in ordered], [row[1] for row in ordered]
        num_drafts = sum(verified) + self.num_unsampled
        shape = DraftShape(
            new_tokens, computed, num_drafts + num_sampled, count - num_prompts, num_drafts, self.width, num_sampled,
            self.num_next,
        )  # fmt: skip
        # What is asked in every step, told at once.
        shape.num_sequences, shape.total_computed = count, sum(computed)
        shape.num_tokens = sum(new_tokens) if num_prompts else num_drafts + count
        if not num_prompts:
            shape.prompts, shape.is_decode = [], num_drafts == count * (self.width - 1)
        return shape


# What becomes of drafts: who runs with them, what a step has yielded, and who is done.
#
# When the result of a step is there, whatever was computed for drafts that are wrong is taken back.


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
        cast("DraftSequence", victim).num_drafts = 0
        return victim


# What was computed runs ahead of what is known: with asynchronous scheduling a step is planned as if all drafts of the
# one before it were right, and the counts go back when its result tells how many were. A sequence that might have its
# last token in the step under way is planned once more, and that step is wasted if it has.


class DraftScheduler(DraftBooks):
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
        super().__init__(policy, cache, speculation, steps_under_way, max_model_len)
        self._draws = draws
        self._most_tokens = speculation.budget(policy.max_num_batched_tokens, policy.max_num_seqs)
        self._slots = speculation.slots_taken if speculation.slots_by_step else 0
        self._lookahead = speculation.lookahead
        self._pads = speculation.pads_new and not speculation.by_batch
        self._in_prompt = self._may_pad = self._has_running = False
        # A step that is never cut: its drafts fit any threshold.
        self._uncut = policy.chunk(1 + speculation.num_drafts, NEVER, alone=False) == 1 + speculation.num_drafts
        self._next_drafts = speculation.num_drafts if self._is_async else 0
        """Places for drafts that are not known when a step is planned."""

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
        if self.waiting and not plan.num_preempted and not self._is_blocked:
            self._may_pad = self._pads and not self._in_prompt
            self._has_running = bool(plan.sequences)
            self._plan_waiting(plan)
        if not plan.sequences:
            return None
        plan.held = self.cache.num_held
        plan.num_next = num_next = self._speculation.drafts_for(len(plan.sequences))
        if self._is_async and self._speculation.by_batch:
            for sequence, drafts in zip(plan.sequences, plan.verified, strict=True):
                if drafts >= 0:
                    sequence.num_drafts = num_next
        return plan

    def _plan_apart(self, plan: Plan) -> None:
        """Running sequences, in order."""
        assert isinstance(plan, DraftPlan)
        running, sequences = cast("list[DraftSequence]", self._apart), plan.sequences
        may_hurry = self._uncut and not (self._is_windowed or self._has_states or self._slots)
        lookahead, longest, position = self._lookahead, self._longest, 0
        while position < len(running) and self._budget > 0:
            sequence = running[position]
            position += 1
            computed, known, drafts = sequence.num_computed, sequence.num_tokens, sequence.num_drafts
            if computed >= known and known + 1 >= sequence.num_input + sequence.num_most:  # even if no draft is right
                continue
            new_tokens = 1 + drafts
            slots = computed + new_tokens + lookahead
            # Most decode with all their drafts, and have blocks for them.
            if (
                may_hurry
                and not sequence.in_prompt
                and new_tokens <= self._budget
                and slots < longest
                and (slots <= sequence.room or self._grow(sequence, slots))
            ):
                if known >= sequence.full_at:
                    self._name(sequence, known)
                sequence.num_computed = computed + new_tokens
                sequences.append(sequence)
                plan.new_tokens.append(new_tokens)
                plan.computed.append(computed)
                plan.verified.append(drafts)
                self._budget -= new_tokens
            elif not self._plan_one(plan, sequence):
                return

    def _grow(self, sequence: DraftSequence, slots: int) -> bool:
        """Blocks for so many tokens, if there are any."""
        has_room = self.cache.grow(sequence, slots)
        sequence.room = sequence.length * self._block_size
        return has_room

    def _plan_one(self, plan: DraftPlan, sequence: DraftSequence) -> bool:
        """A running sequence that is cut, in its prompt or short of blocks; False if it had to give way itself."""
        computed, longest = sequence.num_computed, self._longest
        missing = max(1, sequence.num_tokens - computed)
        new_tokens = missing + sequence.num_drafts
        if new_tokens > 1:
            new_tokens = self.policy.chunk(new_tokens, self._budget, alone=self._is_alone())
        new_tokens = min(new_tokens, longest - computed - 1)
        if self._is_aligned and new_tokens:
            new_tokens = self._aligned(sequence, computed, new_tokens)
        new_tokens = self._readable(sequence.num_tokens - computed, new_tokens)
        if not new_tokens:
            return True
        slots = min(computed + new_tokens + self._lookahead, longest)
        if not self._make_room(sequence, new_tokens, plan, slots - computed - new_tokens):
            return False
        self._in_prompt |= sequence.in_prompt
        self._put_drafts(plan, sequence, new_tokens, new_tokens - missing)
        return True

    def _start(self, sequence: Sequence) -> int:
        """Give a sequence its first blocks; returns the tokens it computes, 0 if it has to wait."""
        cache, num_tokens = self.cache, sequence.num_tokens
        promised = self.policy.promised_tokens(sequence, num_tokens)
        if not cache.may_fit(sequence, promised):
            return 0
        num_cached = cache.longest_prefix(sequence, num_tokens)
        missing = num_tokens - num_cached
        if missing == 1 and self._may_pad:
            missing += self._padding(num_cached)
            if missing > self._budget or num_cached + missing > self._longest:
                return 0
        new_tokens = self.policy.first_chunk(missing, self._budget, alone=self._is_alone())
        if self._is_aligned:
            new_tokens = self._aligned(sequence, num_cached, new_tokens)
        new_tokens = self._readable(num_tokens - num_cached, new_tokens)
        slots = min(num_cached + new_tokens + self._lookahead, self._longest) - num_cached
        if not new_tokens:
            return 0
        reach = self._reach(sequence, num_cached, new_tokens) if self._is_aligned else None
        if not self._admit(sequence, num_cached, slots, promised, reach=reach):
            return 0
        sequence.num_computed = sequence.num_cached = num_cached
        return new_tokens

    def _readable(self, missing: int, new_tokens: int) -> int:
        """Fewer tokens of a prompt, if the next step has to have as many as whoever drafts reads ahead."""
        left = missing - new_tokens
        ahead = self._speculation.read_ahead
        return max(0, new_tokens - (ahead - left)) if 0 < left < ahead else new_tokens

    def _padding(self, num_cached: int) -> int:
        """Dummy drafts of a start with one token, which would keep the others from a graph without them."""
        drafts, is_first = self._speculation.num_drafts, not self._has_running
        if not self._speculation.pads_first:
            return 0 if is_first else drafts
        has_room = num_cached + 1 + drafts + 1 <= self._longest
        return drafts if has_room and (num_cached or not is_first) else 0

    def _put(self, plan: Plan, sequence: Sequence, new_tokens: int) -> None:
        """Enter a sequence that starts."""
        assert isinstance(sequence, DraftSequence)
        assert isinstance(plan, DraftPlan)
        if not sequence.accepted:
            sequence.accepted = self._draws.accepted(sequence.index, sequence.num_output)
            if self._varies:
                sequence.drafted = self._draws.drafted(sequence.index, sequence.num_output)
        drafts = sequence.num_computed + new_tokens - sequence.num_tokens
        sequence.is_padded = drafts > 0
        self._put_drafts(plan, sequence, new_tokens, drafts)

    def _put_drafts(self, plan: DraftPlan, sequence: DraftSequence, new_tokens: int, drafts: int) -> None:
        """Enter a sequence into the plan and count its tokens as computed; ``drafts`` below 0: so much is left."""
        computed, known = sequence.num_computed, sequence.num_tokens
        reached = sequence.num_computed = computed + new_tokens
        plan.sequences.append(sequence)
        plan.new_tokens.append(new_tokens)
        plan.computed.append(computed)
        plan.verified.append(max(drafts, -1))
        plan.num_prompts += new_tokens > 1 + max(drafts, 0)
        plan.num_unsampled += drafts < 0
        self._budget -= new_tokens + self._slots
        self._is_blocked = False
        if self._settles:
            sequence.num_under_way += new_tokens
        self._name(sequence, min(reached, known))
        if self.cache.renews:
            self.cache.renew(sequence, min(reached, known))
        sequence.room = sequence.length * self._block_size
        sequence.in_prompt = drafts < 0
        sequence.num_drafts = self._next_drafts if drafts >= 0 else 0
