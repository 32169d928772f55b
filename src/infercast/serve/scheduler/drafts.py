"""Speculative decoding in a scheduler: decoding sequences verify drafts together with their next token.

Computed tokens run ahead of known ones: with asynchronous scheduling a step is planned as if all drafts of the previous
one were accepted, and counts are corrected when its result arrives. A sequence that might get its last token in the
in-flight step is scheduled once more; if it does, that step is wasted.
"""

from __future__ import annotations

from typing import cast

from infercast.serve.cache.blocks import Path
from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.cache.radix_cache import RadixCache
from infercast.serve.scheduler.admission import DeclaredSequence, ReservingDecodeBatch
from infercast.serve.scheduler.base import APART, FcfsPolicy, Plan, PrefillFirstPolicy, Sequence
from infercast.serve.speculation import DraftCounts, Draws, Speculation
from infercast.serve.step import DraftShape
from infercast.serve.workload.request import NEVER, Request

# A sequence with drafts, and the plan of a step.


class DraftSequence(Sequence):
    """A request inside an engine with speculative decoding. ``num_tokens`` counts known tokens, ``num_computed`` those
    that will be computed if all in-flight drafts are accepted. With nothing in flight, a decoding sequence has computed
    all but its last known token; any excess is the number of tokens it waits for.
    """

    __slots__ = ("accepted", "drafted", "full_at", "in_prompt", "is_padded", "num_drafts", "num_last", "room")

    def __init__(self, index: int, request: Request, path: Path = (), num_groups: int = 1) -> None:
        super().__init__(index, request, path, num_groups)
        self.num_drafts = 0  # Drafts for its next step
        self.num_last = request.num_input + request.num_output  # Its final number of tokens
        self.room = 0  # Tokens it has KV slots for, including lookahead slots
        self.full_at = 0  # Known tokens at which its next block can enter the prefix cache
        self.in_prompt = False  # True if the last planned step left some of its known tokens uncomputed
        self.is_padded = False  # True if its in-flight drafts are padding
        self.accepted = b""  # By output position: accepted drafts ...
        self.drafted = b""  # ... and, where that varies, proposed drafts.


class DraftPlan(Plan):
    """One step; every sequence is listed."""

    __slots__ = ("has_prompts", "num_next", "num_prompts", "num_running", "num_unsampled", "slots", "verified", "width")

    sequences: list[DraftSequence]  # type: ignore[assignment]

    def __init__(self, width: int, slots: int, budget: int) -> None:
        super().__init__()
        self.budget = budget
        self.verified: list[int] = []  # Drafts of each sequence; -1: in the middle of its prompt, not sampled
        self.num_prompts = 0  # Sequences that compute more than a token and its drafts ...
        self.num_unsampled = 0  # ... and those that are not sampled.
        self.num_next = 0  # Drafts proposed at its end for each of the others
        self.width = width  # Tokens of a sequence with the full number of drafts
        self.slots = slots  # Budget that each sequence takes beyond its tokens
        self.num_running = 0  # Sequences that were already running ...
        self.has_prompts = False  # ... and whether one of these was in the middle of its prompt.

    @property
    def num_sampled(self) -> int:
        return len(self.sequences) - self.num_unsampled

    def take_back(self, sequence: Sequence) -> int:
        """Remove a sequence from the step; returns its tokens, which are back in the budget."""
        place = self.sequences.index(cast("DraftSequence", sequence))
        new_tokens, drafts = super().take_back(sequence), self.verified.pop(place)
        self.budget += self.slots
        self.num_prompts -= new_tokens > 1 + max(drafts, 0)
        self.num_unsampled -= drafts < 0
        return new_tokens

    @property
    def shape(self) -> DraftShape:
        """The step's shape for a timer: verifying sequences first, then prompts."""
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
        # Set the cached properties that every step needs.
        shape.num_sequences, shape.total_computed = count, sum(computed)
        shape.num_tokens = sum(new_tokens) if num_prompts else num_drafts + count
        if not num_prompts:
            shape.prompts, shape.is_decode = [], num_drafts == count * (self.width - 1)
        return shape


class Drafts:
    """How many tokens a sequence computes and keeps, by policy and drafting method."""

    sequence_kind = DraftSequence

    def __init__(
        self, speculation: Speculation, policy: FcfsPolicy, cache: KvCache, max_model_len: int | None = None,
        draws: Draws | None = None,
    ) -> None:  # fmt: skip
        self.width = 1 + speculation.num_drafts  # Tokens of a sequence with all its drafts
        self._lookahead = speculation.lookahead
        left = speculation.budget(policy.max_num_batched_tokens, policy.max_num_seqs)
        self._budget = min(left, policy.step_tokens)
        self.counts = DraftCounts(by_accepted=[0] * self.width)
        self._speculation, self._draws, self._cache = speculation, draws or Draws(speculation), cache
        self._block_size, self._longest = cache.shape.block_size, max_model_len or NEVER
        self._is_async = not policy.waits_for_tokens
        self._varies = speculation.match < 1.0
        self.reads = max(speculation.read_ahead, speculation.hash_ahead, speculation.drops_block)  # Beyond a chunk
        self._unsettled, self._ahead = max(0, speculation.read_ahead - 1), speculation.hash_ahead
        if self._ahead and cache.num_groups > 1:
            self._unsettled = 0  # keys wait for the tokens after a block, and nothing else does
        self._names_results = speculation.names_results or self._is_async
        self._slots = speculation.slots_taken if speculation.slots_by_step else 0
        # A step that is never cut: its drafts are below any threshold.
        self._uncut = policy.chunk(self.width, NEVER, NEVER) == self.width and not (
            any(cache.shape.windows) or cache.shape.states or self._slots or policy.decode_stride > 1
        )
        self._stale: dict[Sequence, int] = {}
        """Tokens and drafts in flight when a sequence was preempted, which it computes on restart before it samples."""
        self._next_drafts = speculation.num_drafts if self._is_async else 0  # Draft slots unknown when a step is made

    def new_plan(self) -> DraftPlan:
        return DraftPlan(self.width, self._slots, self._budget)

    def plan_uncut(self, plan: Plan, order: list[Sequence], position: int) -> int:
        """Fast path for running sequences that decode with all drafts and have blocks; returns where it ends."""
        assert isinstance(plan, DraftPlan)
        if not self._uncut:
            return position
        sequences, lookahead, longest, budget = plan.sequences, self._lookahead, self._longest, plan.budget
        is_async = self._is_async
        while position < len(order) and budget > 0:
            sequence = cast("DraftSequence", order[position])
            computed, known, drafts = sequence.num_computed, sequence.num_tokens, sequence.num_drafts
            # Otherwise nothing more is needed, or its next token is unknown until an in-flight step completes.
            if computed < known or (is_async and known + 1 < sequence.num_input + sequence.num_most):
                new_tokens = 1 + drafts
                slots = computed + new_tokens + lookahead
                if sequence.in_prompt or new_tokens > budget or slots >= longest:
                    break
                if slots > sequence.room and not self._grow(sequence, slots):
                    break
                if known >= sequence.full_at:
                    self.name(sequence, known)
                sequence.num_computed = computed + new_tokens
                sequences.append(sequence)
                plan.new_tokens.append(new_tokens)
                plan.computed.append(computed)
                plan.verified.append(drafts)
                budget -= new_tokens
            position += 1
        plan.budget = budget
        return position

    def _grow(self, sequence: DraftSequence, slots: int) -> bool:
        has_room = self._cache.grow(sequence, slots)
        sequence.room = sequence.length * self._block_size
        return has_room

    def tokens_wanted(self, sequence: Sequence) -> int:
        """Tokens and drafts of a running sequence, before other limits; 0: it finishes even without drafts."""
        assert isinstance(sequence, DraftSequence)
        computed, known = sequence.num_computed, sequence.num_tokens
        if sequence in self._stale:
            stale = self._stale[sequence]
            is_last = computed + 2 - stale >= sequence.num_input + sequence.num_most
            return 0 if is_last else min(known + stale - computed, self._longest - computed - 1)
        if computed >= known and (not self._is_async or known + 1 >= sequence.num_input + sequence.num_most):
            return 0
        return max(0, min(max(1, known - computed) + sequence.num_drafts, self._longest - computed - 1))

    def slots(self, reached: int) -> int:
        """Tokens that need KV slots when a sequence computes up to ``reached``, including lookahead."""
        return min(reached + self._lookahead, self._longest)

    def readable(self, sequence: Sequence, computed: int, new_tokens: int) -> int:
        """Shorten a chunk, so that the next step has at least as many tokens as the draft model reads ahead."""
        left, ahead = sequence.num_tokens - computed - new_tokens, self._speculation.read_ahead
        return max(0, new_tokens - (ahead - left)) if 0 < left < ahead else new_tokens

    def padding(self, plan: DraftPlan, num_cached: int) -> int:
        """Padding drafts for a one-token start, which would otherwise keep the batch out of a uniform CUDA graph."""
        speculation = self._speculation
        if not speculation.pads_new or speculation.by_batch or plan.has_prompts:
            return 0
        drafts, is_first = speculation.num_drafts, not plan.num_running
        if not speculation.pads_first:
            return 0 if is_first else drafts
        has_room = num_cached + 1 + drafts + 1 <= self._longest
        return drafts if has_room and (num_cached or not is_first) else 0

    def start(self, sequence: Sequence, new_tokens: int) -> None:
        """Start a request, with padding drafts if it computes more tokens than it has."""
        assert isinstance(sequence, DraftSequence)
        if not sequence.accepted:
            sequence.accepted = self._draws.accepted(sequence.index, sequence.num_output)
            if self._varies:
                sequence.drafted = self._draws.drafted(sequence.index, sequence.num_output)
        sequence.is_padded = sequence.num_computed + new_tokens > sequence.num_tokens

    def preempt(self, sequence: Sequence, planned: int) -> None:
        """Preempt a sequence with ``planned`` tokens in this step; in-flight steps may still yield some."""
        assert isinstance(sequence, DraftSequence)
        sequence.num_drafts = 0
        stale = sequence.num_computed - planned - sequence.num_tokens + 1
        if self._is_async and sequence not in self._stale and stale > 0 and not sequence.in_prompt:
            self._stale[sequence] = stale

    def schedule(self, plan: DraftPlan, sequence: DraftSequence, new_tokens: int) -> bool:
        """Count a sequence's tokens as computed, as if all its drafts were accepted; returns whether it samples."""
        known = sequence.num_tokens
        reached = sequence.num_computed = sequence.num_computed + new_tokens
        needed = known + self._stale[sequence] if sequence in self._stale else known
        drafts = reached - max(needed, reached - new_tokens + 1)  # negative: tokens left
        if drafts >= 0:
            self._stale.pop(sequence, None)
        plan.verified.append(max(drafts, -1))
        plan.num_prompts += new_tokens > 1 + max(drafts, 0)
        plan.num_unsampled += drafts < 0
        plan.budget -= plan.slots
        self.name(sequence, min(reached, known))
        if self._cache.renews:
            self._cache.renew(sequence, min(reached, known))
        sequence.room = sequence.length * self._block_size
        sequence.in_prompt = drafts < 0
        sequence.num_drafts = self._next_drafts if drafts >= 0 else 0
        return drafts >= 0

    def close(self, plan: Plan) -> None:
        """Set the number of drafts proposed at the end of a planned step."""
        assert isinstance(plan, DraftPlan)
        plan.num_next = num_next = self._speculation.drafts_for(len(plan.sequences))
        if self._is_async and self._speculation.by_batch:
            for sequence, drafts in zip(plan.sequences, plan.verified, strict=True):
                if drafts >= 0:
                    sequence.num_drafts = num_next

    def complete(self, plan: DraftPlan) -> list[Sequence]:
        """Keep a completed step's accepted drafts and roll back the others; returns the sequences that are done."""
        done: list[Sequence] = []
        received, counts, is_async, most = plan.sampled, self.counts.by_accepted, self._is_async, self.width - 1
        may_hurry, num_drafts, names_results = not self._varies, 0, self._names_results
        if self._stale:
            self._settle(plan)
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
                if sequence.num_computed:  # 0 if preempted meanwhile
                    sequence.num_computed -= drafts - accepted
            known += 1 + accepted
            sequence.num_tokens = known = known if known < last else last
            sequence.num_produced = known - sequence.num_input
            if names_results and known > sequence.full_at and sequence.length and not sequence.in_prompt:
                self.name(sequence, known - 1)
            if not is_async and known < last:
                sequence.num_drafts = sequence.drafted[known - sequence.num_input] if self._varies else plan.num_next
            if known == last:
                done.append(sequence)
        self.counts.num_draft_tokens += num_drafts
        return done

    def _settle(self, plan: DraftPlan) -> None:
        """Discount completed steps of sequences that were preempted while these were in flight."""
        for sequence, drafts in zip(plan.sequences, plan.verified, strict=True):
            if drafts >= 0 and sequence in self._stale:
                self._stale[sequence] -= 1 + drafts
                if self._stale[sequence] <= 0:
                    del self._stale[sequence]

    def _num_accepted(self, sequence: DraftSequence, drafts: int) -> int:
        """Accepted drafts where some were cut, are padding, or were not proposed."""
        if sequence.is_padded:
            sequence.is_padded = False
            return 0
        place = sequence.num_tokens - sequence.num_input
        if self._varies and self._is_async:
            # Slots for which no draft was found do not count as drafts.
            found = min(drafts, sequence.drafted[place])
            self.counts.num_draft_tokens -= drafts - found
            drafts = found
        return min(sequence.accepted[place], drafts)

    def name(self, sequence: DraftSequence, num_tokens: int) -> None:
        """Add the blocks these tokens fill to the prefix cache, and compute when the next one will be full."""
        final, size = max(0, min(num_tokens - self._unsettled, sequence.num_tokens - self._ahead)), self._block_size
        self._cache.name(sequence, final)
        sequence.full_at = (final // size + 1) * size + self._unsettled


class DraftBatch(ReservingDecodeBatch):
    """The decode batch of an engine with steps of prefill or decode (SGLang), with counts of processed results. Slots
    are allocated for two steps, as the last result is not known, and freed when the sequence ends.
    """

    def __init__(
        self, cache: RadixCache, policy: PrefillFirstPolicy, speculation: Speculation, draws: Draws | None = None
    ) -> None:
        super().__init__(cache, policy)
        cache.paired, cache.beyond = int(speculation.drops_block), speculation.num_drafts
        self._ahead, self._width, self._draws = speculation.lookahead, speculation.width, draws or Draws(speculation)
        self.counts = DraftCounts(by_accepted=[0] * (1 + speculation.num_drafts))

    def join(self, sequence: DeclaredSequence) -> None:
        self.members[sequence] = None
        self._count(sequence)
        sequence.joined, sequence.room = self.steps, sequence.num_computed
        sequence.accepted = sequence.accepted or self._draws.accepted(sequence.index, sequence.num_output)

    def note_first(self, member: DeclaredSequence) -> None:
        member.num_produced += 1

    def leave(self, member: DeclaredSequence) -> None:
        del self.members[member]
        self._long.pop(member, None)
        self.num_declared -= member.num_declared
        self._num_fixed -= self.knows_ends and member.ignores_end
        member.joined = APART

    def num_produced(self) -> int:
        return sum([member.num_produced for member in self.members])

    def ending(self) -> list[DeclaredSequence]:
        """Members with one token left by their declared length."""
        return [each for each in self.members if each.num_produced + 1 >= each.num_declared]

    def blocks_due(self) -> int:
        page, ahead = self._block_size, self._ahead
        return sum([max(0, -(-(each.num_computed + ahead) // page) - each.lease.num_pages) for each in self.members])

    def _allocate(self) -> None:
        """Allocate the slots of the next step; the engine evicts as if each sequence began a page."""
        cache, page, missing, pages = self._cache, self._block_size, 0, 0
        for each in self.members:
            room = -(-(each.num_computed + self._ahead) // page) * page
            if room > each.room:
                missing += room - each.room
                pages += room // page - each.lease.num_pages
                each.room, each.lease.num_pages = room, room // page
        if missing:
            cache.make_room(missing + (len(self.members) * page if page > 1 else 0))
            cache.take(pages)

    def new_plan(self) -> DraftPlan:
        return DraftPlan(self._width, 0, 0)

    def prefill(self, plan: DraftPlan) -> None:
        """Complete a prefill step: a draft is proposed after each prompt."""
        plan.num_prompts = len(plan.sequences)
        plan.verified, plan.num_next = [0] * plan.num_prompts, 1

    def verify(self, plan: DraftPlan) -> None:
        """Add all members to a plan, some of which may have finished without the engine knowing."""
        self._allocate()
        order = self.in_order()
        plan.sequences, plan.new_tokens = order, [self._width] * len(order)  # type: ignore[assignment]
        plan.computed = [each.num_computed for each in order]
        plan.verified, plan.num_next = [self._width - 1] * len(order), len(self.counts.by_accepted) - 1

    def receive(self, plan: DraftPlan) -> list[DeclaredSequence]:
        """Take in the accepted drafts of a step and a token after them; returns the sequences that are done."""
        done = []
        for sequence in cast("list[DeclaredSequence]", plan.sequences):
            if not sequence.prompt_end or sequence.num_produced >= sequence.num_output:
                continue  # retracted, or done, when the step was in flight
            plan.sampled.append(sequence)
            accepted = sequence.accepted[sequence.num_produced]
            self.counts.by_accepted[accepted] += 1
            self.counts.num_draft_tokens += len(self.counts.by_accepted) - 1
            sequence.num_produced += 1 + accepted
            sequence.num_computed += 1 + accepted
            if sequence.num_produced >= sequence.num_output:
                done.append(sequence)
        return done
