"""A scheduler whose KV cache has a second tier in the host's memory.

A waiting request whose beginning is there holds blocks for it and waits for the copy; others may pass it meanwhile, and
it is looked at first in every later step. Who has to wait for a copy of somebody else is passed in the same way. Rules
as in vLLM 0.25 and 0.32 (v1/core/sched/scheduler.py).
"""

from __future__ import annotations

from enum import Enum

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.cache.offload import Offload
from infercast.serve.scheduler.moves import Move, Moves
from infercast.serve.scheduler.policy import FirstCome, MixingPolicy
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.scheduler.sequence import Plan, Sequence


class Outcome(Enum):
    """What became of a request that was looked at."""

    PASSED = 0
    NO_ROOM = 1


class OffloadingScheduler(Scheduler):
    """Decides what each step computes and copies."""

    def __init__(
        self,
        policy: MixingPolicy,
        cache: KvCache,
        steps_under_way: int,
        offload: Offload,
        max_model_len: int | None = None,
        *,
        decode_together: bool = True,
        in_order: bool = False,
    ) -> None:
        super().__init__(policy, cache, steps_under_way, max_model_len, decode_together=decode_together)
        self.moves = Moves(offload, cache.shape, in_order=in_order)
        self._loading: dict[Sequence, bool] = {}
        """Waiting requests that hold blocks, and whether all of them are there."""
        self._num_passed = 0
        """Requests at the head of the queue that others may pass."""
        self._unstored: dict[Sequence, None] = {}
        """Running requests for whose blocks there was no room in the tier."""
        self._leaving: dict[Sequence, Plan] = {}
        """Who gave way, and keeps blocks until the last step has ended that was under way then."""
        self._prompts_only, self._unknown = offload.prompts_only, steps_under_way - 1
        self._holders_first, self._spares, self._stores_ends = (
            offload.holders_first,
            offload.spares_under_way,
            offload.stores_ends,
        )
        self._passed_apart = isinstance(policy, FirstCome) and policy.passed_apart
        self._ended: list[Sequence] = []
        """Who has ended since the last step was planned, where the tier hears of that with the next one."""
        self.loaded: dict[int, int] = {}
        """Of each request that found some of its tokens in the tier when it first started, how many."""

    @property
    def has_moves(self) -> bool:
        """Whether copies are under way or about to be handed over."""
        return self.moves.num_under_way > 0

    @property
    def has_ended(self) -> bool:
        """Whether requests have ended of which the tier hears with the next step."""
        return bool(self._ended)

    def plan(self) -> Plan | None:
        """Plan the next step, and what is copied with it."""
        plan = super().plan()
        if plan is not None:
            if plan.decodes:
                self._store_of_cohort()
            for sequence, new_tokens, computed in zip(plan.sequences, plan.new_tokens, plan.computed, strict=True):
                known = sequence.num_input + sequence.num_produced
                reached = min(computed + new_tokens, known)
                self._store(sequence, min(reached, sequence.num_input) if self._prompts_only else reached)
        if self._ended:
            self._store_of_ended()
        return plan

    def _store_of_ended(self) -> None:
        """What was not stored yet of those who have ended: nothing was computed on their last tokens."""
        for sequence in self._ended:
            reached = sequence.num_input + max(sequence.num_output - 1, 0)
            self.moves.begin_store(sequence, sequence.num_input if self._prompts_only else reached)
        for sequence in self._ended:
            self.moves.forget(sequence)
        self._ended.clear()

    def _store_of_cohort(self) -> None:
        """Blocks of those who decode: what there was no room for before, and answers."""
        if self._prompts_only:
            for sequence in [each for each in self._unstored if each.joined >= 0]:
                self._store(sequence, sequence.num_input)
            return
        for member in self.cohort.members:
            computed = member.num_computed + self.cohort.steps - member.joined
            self._store(member, computed + 1 - self._unknown)

    def _store(self, sequence: Sequence, num_tokens: int) -> None:
        if self.moves.begin_store(sequence, num_tokens):
            self._unstored.pop(sequence, None)
        else:
            self._unstored[sequence] = None

    def end_moves(self, moves: list[Move]) -> None:
        """Copies have ended."""
        for move in moves:
            self.moves.end(move)
            if not move.is_store:
                self._loading[move.sequence] = True
        self._is_blocked = False

    def complete(self, plan: Plan) -> list[Sequence]:
        """Take in the tokens that a finished step yields; who gave way while it ran lets go now."""
        if self._leaving:
            for sequence in [each for each, last in self._leaving.items() if last is plan]:
                del self._leaving[sequence]
                self.policy.give_up(self.cache, sequence)
        return super().complete(plan)

    def _end(self, done: list[Sequence]) -> None:
        if self._stores_ends:
            self._ended += done
        for sequence in done:
            if not self._stores_ends:
                self.moves.forget(sequence)
            self._unstored.pop(sequence, None)
            if sequence not in self.running and sequence in self.waiting:  # it gave way in its last step
                self._num_passed -= self.waiting.index(sequence) < self._num_passed
        super()._end(done)

    def _preempt(self, plan: Plan) -> Sequence:
        """Somebody gives way, and may come back behind those who were passed."""
        victim = super()._preempt(plan)
        if self._passed_apart:
            self.waiting.popleft()
            self.waiting.insert(self._num_passed, victim)
        return victim

    def _plan_cohort(self, plan: Plan) -> bool:
        """Where blocks run out it matters who is where, if not all may give way."""
        cohort, cache = self.cohort, self.cache
        needed = cohort.blocks[(cohort.steps + 1) % cohort.period]
        if self._spares and not self._is_windowed and cache.num_held + needed > cache.num_blocks:
            return False
        return super()._plan_cohort(plan)

    def _may_preempt(self) -> bool:
        return not (self._spares and self._is_under_way(self.policy.victim(reversed(self.running))))

    def _is_under_way(self, sequence: Sequence) -> bool:
        """Whether a step under way computes it, as one that is planned by itself."""
        return any(sequence in group for step in self._under_way for group in (step.sequences, step.left, step.ending))

    def _give_up(self, victim: Sequence) -> None:
        """Blocks that a step under way uses are free when that has ended."""
        if self._is_under_way(victim):
            self._leaving[victim] = self._under_way[-1]
        else:
            super()._give_up(victim)
        self.moves.flush(victim)
        self._unstored.pop(victim, None)

    def _plan_waiting(self, plan: Plan) -> None:
        """Those who wait, in order, until one does not fit; who waits for a copy is passed."""
        if self._holders_first and not self._plan_holders(plan):
            return
        position, waiting, most, is_full = 0, self.waiting, self.policy.max_num_seqs, False
        while position < len(waiting) and self._budget > 0 and len(self.running) < most:
            sequence = waiting[position]
            if (self._settles and sequence.num_under_way) or sequence in self._leaving:
                position += 1
                continue
            answer = self._look_at(sequence)
            if answer is Outcome.PASSED:
                position += 1
                continue
            if answer is Outcome.NO_ROOM:
                is_full = True
                break
            self._begin(plan, position, sequence, answer)
        self._num_passed = max(position, self._num_passed)
        self._is_blocked = is_full and not self.has_moves and not self.moves.tier.counts_lookups

    def _plan_holders(self, plan: Plan) -> bool:
        """Those whose blocks have arrived; False if there is no room for one of them."""
        for sequence in [each for each, has_arrived in self._loading.items() if has_arrived]:
            if self._budget <= 0 or len(self.running) >= self.policy.max_num_seqs:
                return False
            answer = self._look_at(sequence)
            if answer is Outcome.NO_ROOM:
                self._is_blocked = not self.has_moves
                return False
            assert isinstance(answer, int)
            self._begin(plan, self.waiting.index(sequence), sequence, answer)
        return True

    def _begin(self, plan: Plan, position: int, sequence: Sequence, new_tokens: int) -> None:
        """A request leaves the queue for this step."""
        del self.waiting[position]
        self._num_passed -= position < self._num_passed
        self._num_started += 1
        sequence.place = self._num_started
        self.running[sequence] = None
        self._apart.append(sequence)
        plan.started.append(sequence)
        self._put(plan, sequence, new_tokens)

    def _look_at(self, sequence: Sequence) -> int | Outcome:
        """Start a request or begin to load what the tier has of it; returns the tokens that it computes."""
        known = sequence.num_input + sequence.num_produced
        has_arrived = self._loading.get(sequence)
        if has_arrived is not None:
            return self._go_on(sequence, known) if has_arrived else Outcome.PASSED
        cache, promised = self.cache, self.policy.promised_tokens(sequence, known)
        local = cache.longest_prefix(sequence, known)
        found = self.moves.look_up(sequence, local, known)
        if found is None:
            return Outcome.PASSED
        if found:
            if not self._admit(sequence, local, found, promised, self._reserved()):
                return Outcome.NO_ROOM
            self.moves.begin_load(sequence, local, found)
            self._loading[sequence] = False
            sequence.num_computed = local + found
            self._note(sequence, known, local, found)
            return Outcome.PASSED
        new_tokens = self.policy.first_chunk(known - local, self._budget, alone=self._is_alone())
        if not new_tokens or not self._admit(sequence, local, new_tokens, promised):
            return Outcome.NO_ROOM
        sequence.num_computed = local
        self._note(sequence, known, local, 0)
        return new_tokens

    def _note(self, sequence: Sequence, known: int, local: int, found: int) -> None:
        """What a request that starts has found, and where."""
        if local:
            self.moves.reuse(sequence, local)
        self.moves.num_queried += known - local
        self.moves.num_hit += found
        if not sequence.num_preemptions:
            sequence.num_cached = local + found
            if found:
                self.loaded[sequence.index] = found

    def _go_on(self, sequence: Sequence, known: int) -> int | Outcome:
        """A request whose blocks have arrived: others may find them, and the rest of it is computed."""
        cache, computed = self.cache, sequence.num_computed
        if sequence.named * self._block_size < computed:
            cache.name(sequence, computed)
        if computed == known:
            computed = sequence.num_computed = known - 1
        new_tokens = self.policy.first_chunk(known - computed, self._budget, alone=self._is_alone())
        missing = cache.shape.blocks_for(self.policy.promised_tokens(sequence, known)) - sequence.length
        if not new_tokens or missing * self._num_groups > cache.num_free:
            return Outcome.NO_ROOM
        if not cache.grow(sequence, computed + new_tokens):
            return Outcome.NO_ROOM
        del self._loading[sequence]
        return new_tokens

    def _reserved(self) -> int:
        """Blocks that prompts which are under way, and requests that are being loaded, still need."""
        started = [each for each in self._apart if each.num_computed < each.num_input + each.num_produced]
        size = self._block_size
        missing = [
            -(-(each.num_input + each.num_produced) // size) - each.length for each in (*started, *self._loading)
        ]
        return sum(missing) * self._num_groups
