"""The scheduler of engines that mix prefill and decode in one step (vLLM), with a token budget per step.

There is no prefill phase and no decode phase: each sequence has ``num_computed`` tokens that catch up with its
``num_tokens``. Chunked prefill, prefix hits and recomputation after preemption are all the same rule. Sequences that
have caught up decode together in a `DecodeBatch`, counted as one; all others are scheduled individually (*apart*). A
plan is in flight from its start until its result is processed.

Features are components: the policy has limits, order and victims, `AdapterLimit` which requests may run together,
`PrefillInterval` which steps compute prompts, `Drafts` how many tokens a sequence takes and keeps, `HostOffload` the
blocks in host memory.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from infercast.serve.cache.blocks import Reach
from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.scheduler.base import (
    APART,
    ENDING,
    RANK,
    AdapterLimit,
    FcfsPolicy,
    Plan,
    PrefillInterval,
    Prompt,
    Sequence,
)
from infercast.serve.scheduler.cohort import DecodeBatch
from infercast.serve.workload.request import NEVER, Request

if TYPE_CHECKING:
    from infercast.serve.scheduler.drafts import DraftPlan, Drafts, DraftSequence
    from infercast.serve.scheduler.encoder import EncoderCache
    from infercast.serve.scheduler.offloading import HostOffload, KvTransfer

PLACE = attrgetter("place")
SKIPPED = -1  # Returned instead of a token count: the request stays in the queue, and those behind it may start


class Scheduler:
    can_retry_now = False  # It cannot plan again until a result or a request arrives

    def __init__(
        self, policy: FcfsPolicy, cache: KvCache, steps_under_way: int = 2, max_model_len: int | None = None, *,
        decode_together: bool = True, max_adapters: int | None = None, drafts: Drafts | None = None,
        offload: HostOffload | None = None, encoder: EncoderCache | None = None,
    ) -> None:  # fmt: skip
        """Without ``decode_together`` every plan lists all of its sequences."""
        self.policy, self.cache, self.drafts, self.offload, self.encoder = policy, cache, drafts, offload, encoder
        self.adapters = None if max_adapters is None else AdapterLimit(max_adapters)
        self.running: dict[Sequence, None] = {}  # In start order
        self.waiting: deque[Sequence] = deque()  # By rank, if there are priorities
        self._num_skipped = 0  # Requests at the head of the queue that others may overtake
        self.left_batch: list[Sequence] = []
        """Sequences removed from the decode batch since the last check; their last token was in the last completed
        step."""
        self.num_preemptions = 0
        self.preempted = Counter[int]()  # How often, by the index of the request
        self._apart: list[Sequence] = []  # Individually scheduled running sequences, in order
        self._under_way: deque[Plan] = deque()
        self._is_blocked = False  # True if the head of the queue cannot start until something changes
        self._step = self._num_started = self._num_added = 0
        self.longest = max_model_len or NEVER
        self._watermark = policy.kept_free(cache.num_blocks)
        self._most_under_way = policy.max_num_batched_tokens * (steps_under_way if policy.frees_on_completion else 1)
        self._block_size, self._num_groups = cache.shape.block_size, cache.num_groups
        self._budget, self._steps_under_way = policy.step_tokens, steps_under_way
        self.interval = PrefillInterval(policy) if policy.prefill_interval > 1 else None
        # One step under way never sees the difference, two only in windows.
        self._frees_on_completion = policy.frees_on_completion and steps_under_way > 2 - any(cache.shape.windows)
        # With several batches in flight, or prefill first, sequences do not decode in every step.
        in_turn = policy.decode_stride > 1 or (policy.waits_for_tokens and steps_under_way > 1)
        is_mixed = steps_under_way > 2 or policy.prompts_first or in_turn
        self._decode_together = decode_together and drafts is None and not is_mixed
        self.cohort = DecodeBatch(cache, steps_under_way - 1, frees_on_completion=self._frees_on_completion)

    def add(self, index: int, request: Request) -> None:
        kind = Sequence if self.drafts is None else self.drafts.sequence_kind
        sequence = kind(index, request, self.cache.path(request), self._num_groups)
        room = self.longest - sequence.num_input
        if sequence.num_most > room:  # whatever it asks for, it ends with the longest length
            sequence.num_most = min(sequence.num_most, max(room, sequence.num_output))
        if room < 0:  # a server refuses it; what does not fit is not cached
            most, path = self.longest // self._block_size, sequence.path
            sequence.path = tuple((edge, first, min(end, most)) for edge, first, end in path if first < most)
            sequence.shared = min(sequence.shared, most)
        if request.images and self.encoder is not None:
            self.encoder.images[index] = request.images
        if self.policy.by_priority:
            self._num_added += 1
            priority = request.priority if self.policy.order is None else self.policy.order(request)
            sequence.rank = priority, self._num_added
            if self.waiting and sequence.rank < self.waiting[0].rank:
                self._is_blocked = False  # the head of the queue has changed
        if self.adapters is not None:
            sequence.adapter = request.adapter
            self._is_blocked = False  # it may overtake requests that wait for an adapter slot
        if self.policy.by_priority and self.waiting and self.waiting[-1].rank > sequence.rank:
            insort(self.waiting, sequence, key=RANK)
        else:
            self.waiting.append(sequence)

    # One step.

    def plan(self) -> Plan | None:
        """Plan the next step, assuming that the steps under way end as planned; None if nothing can be computed."""
        plan = Plan(self._budget) if self.drafts is None else self.drafts.new_plan()
        self._step += 1
        if self.cache.shape.states:
            self.cache.new_step()
        has_images = self.encoder is not None and self.encoder.begin()
        if has_images or self.drafts is not None or (self.adapters is not None and self._num_skipped):
            self._is_blocked = False  # a slot is free as soon as the last token of a sequence is under way
        if self.interval is not None:
            self._is_blocked = False
            self.interval.begin(len(self.running))
        if self.policy.prompts_first:
            self._plan_waiting(plan)
        if not plan.sequences:
            if self.cohort.members and not self._plan_cohort(plan):
                self._disband()
            if self._apart:
                self._plan_apart(plan)
            if self.waiting and not plan.num_preempted and not self._is_blocked:
                self._plan_waiting(plan)
        plan.held = self.cache.num_held
        is_empty = not (plan.decodes or plan.sequences)
        if self.interval is not None:
            self.interval.close(plan, len(self.waiting) - self._num_skipped)
        if self.drafts is not None and not is_empty:
            self.drafts.close(plan)
        if self.adapters is not None:
            plan.has_adapters = any(each.adapter is not None for each in self._planned(plan))
        if self.offload is not None:
            self.offload.settling.clear()
            self.offload.store(plan, self.cohort)
        return None if is_empty else plan

    def _planned(self, plan: Plan) -> list[Sequence]:
        return [*(self.cohort.members if plan.decodes else ()), *plan.sequences]

    def most_steps(self, plan: Plan) -> int:
        """How many times the step just planned can be repeated before a known change."""
        if plan.sequences or plan.num_preempted or plan.wasted or self._apart:
            return 1
        if self._num_skipped and self.adapters is not None:
            return 1
        can_start = self.waiting and plan.budget > 0 and len(self.running) < self.policy.max_num_seqs
        has_images = self.encoder is not None and self.encoder.images
        if can_start and (not self._is_blocked or self.cohort.is_windowed or self.cohort.answering or has_images):
            return 1
        return self.cohort.steps_left()

    def end_early(self, plan: Plan) -> None:
        """Never needed: a step is repeated only until the first sequence has its last token."""

    # Running sequences.

    def _plan_cohort(self, plan: Plan) -> bool:
        """Schedule a token for each member, preempting if blocks run out; False if order matters."""
        cohort, cache = self.cohort, self.cache
        if len(cohort.members) > plan.budget or (self._apart and self._is_interleaved()):
            return False
        needed = cohort.blocks[(cohort.steps + 1) % cohort.period]
        if self.policy.by_priority and not self._has_room_for_all(needed):
            return False
        if cohort.is_windowed:
            if not cohort.grow_windows():
                return False
            self._is_blocked = False
        elif not needed or cache.num_held + needed <= cache.num_blocks:
            if needed:
                cache.take(needed)
        elif self.offload is not None and self.offload.rules.spares_under_way:
            return False
        else:
            self._take_in_order(plan)
        if cohort.answering:
            cohort.name_answers(cohort.steps + 1)
            self._is_blocked = False
        plan.decodes = count = len(cohort.members)
        plan.decode_context, plan.contexts = cohort.computed, cohort.contexts
        plan.wasted = len(cohort.late)
        plan.budget -= count
        return True

    def _is_interleaved(self) -> bool:
        """True if an individually scheduled sequence precedes a member."""
        for sequence in self._apart:
            if sequence.num_computed < sequence.num_tokens:
                return sequence.place < self.cohort.last_place()
        return False

    def _has_room_for_all(self, needed: int) -> bool:
        """True if there are blocks for the members' ``needed`` and for all individually scheduled sequences."""
        for sequence in self._apart:
            most = min(sequence.num_tokens - sequence.num_computed, self.policy.max_num_batched_tokens)
            missing = -(-(sequence.num_computed + most) // self._block_size) - sequence.length
            needed += self._num_groups * max(0, missing)
        return needed <= self.cache.num_free

    def _take_in_order(self, plan: Plan) -> None:
        """Allocate blocks for members that begin one, preempting from the end if none is free."""
        cache, due, served = self.cache, self.cohort.due(), 0
        while served < len(due):
            count = min(cache.num_free // self._num_groups, len(due) - served)
            cache.take(count * self._num_groups)
            served += count
            if served < len(due) and self._preempt(plan) is due[served]:
                return
            while due[-1].joined < 0:  # preempted itself
                due.pop()

    def _disband(self) -> None:
        """Schedule every member individually in this step."""
        self.cohort.name_answers(self.cohort.steps)
        members = [*self.cohort.members]
        for member in members:
            self._leave_cohort(member)
        self._apart = sorted([*members, *self._apart], key=PLACE)

    def _leave_cohort(self, member: Sequence) -> None:
        if member.joined < self.cohort.steps:
            self.left_batch.append(member)
            if self._under_way:
                last = self._under_way[-1]
                last.left.append(member)
                if member in self.cohort.late:  # already in ``left``
                    last.ending = [each for each in last.ending if each is not member]
        self.cohort.leave(member)

    def _plan_apart(self, plan: Plan) -> None:
        """Schedule the other running sequences in order; by priority, any may be a victim, even one in this step."""
        by_priority, drafts = self.policy.by_priority, self.drafts
        order = [*self.running] if by_priority else self._apart
        alone = {*self._apart} if by_priority else ()
        moves = self.cohort.is_windowed or self.cache.shape.aligned
        is_plain = not (by_priority or drafts or self.encoder or self.interval or moves)
        position = 0
        while position < len(order) and plan.budget > 0:
            if drafts is not None:
                position = drafts.plan_uncut(plan, order, position)
                if position == len(order) or plan.budget <= 0:
                    return
            sequence = order[position]
            if is_plain and (self._step < sequence.not_before or self._goes_on(plan, sequence)):
                position += 1
                continue
            new_tokens = self._next_tokens(plan, sequence) if not by_priority or sequence in alone else 0
            if new_tokens:
                position = self._make_room(plan, order, position, new_tokens)
                if position < 0:
                    return
                if sequence not in self.running:
                    continue  # the next one has taken its place
                if drafts is not None and cast("DraftSequence", sequence).in_prompt:
                    cast("DraftPlan", plan).has_prompts = True
                    if self.offload is not None:
                        self.offload.settling.append(sequence)
                self._schedule(plan, sequence, new_tokens)
            position += 1

    def _goes_on(self, plan: Plan, sequence: Sequence) -> bool:
        """The most frequent case: all its tokens are under way, or it has caught up and has room for one more."""
        reached, known = sequence.num_computed + 1, sequence.num_tokens
        if reached > known or (self._steps_under_way > 2 and self._is_last_under_way(sequence)):
            return True
        if reached < known or sequence.num_input >= self.longest or reached > sequence.length * self._block_size:
            return False
        self._schedule(plan, sequence, 1)
        return True

    def _make_room(self, plan: Plan, order: list[Sequence], position: int, new_tokens: int) -> int:
        """Allocate blocks of a running sequence, preempting if there are none; returns its position, -1: no more."""
        sequence, by_priority = order[position], self.policy.by_priority
        reach, slots = self._move_on(sequence, new_tokens), sequence.num_computed + new_tokens
        slots = slots if self.drafts is None else self.drafts.slots(slots)
        while not self.cache.grow(sequence, slots, reach):
            if self._frees_nothing():
                return -1
            victim = self._preempt(plan)
            if by_priority:
                place = order.index(victim)
                del order[place]
                if victim in plan.sequences:
                    self._take_back(plan, victim)
                    position -= 1
                elif place < position and not self.policy.steps_over:
                    position -= 1
            if victim is sequence:
                return position if by_priority and self.policy.goes_on else -1
        return position

    def _next_tokens(self, plan: Plan, sequence: Sequence) -> int:
        """Tokens a running sequence computes in the step being planned; 0: none."""
        computed = sequence.num_computed
        missing = sequence.num_tokens - computed if self.drafts is None else self.drafts.tokens_wanted(sequence)
        # Its last token may be being sampled right now.
        if missing == 0 or self._step < sequence.not_before:
            return 0
        if self._steps_under_way > 2 and self.drafts is None and self._is_last_under_way(sequence):
            return 0
        if self.interval is not None and self.interval.defers and sequence in self.interval.in_prompt:
            return 0
        if computed + missing >= self.longest and sequence.num_input >= self.longest:  # which a server refuses
            missing = max(0, self.longest - 1 - computed)
        new_tokens = missing
        if missing > 1:
            new_tokens = self.policy.chunk(missing, plan.budget, self._num_requests())
        return max(0, self._ended_well(sequence, computed, new_tokens))

    def _num_requests(self) -> int:
        return len(self.running) + len(self.waiting)

    def _is_last_under_way(self, sequence: Sequence) -> bool:
        """True if one token is left, which is being sampled; with more in flight the engine schedules one too many."""
        under_way = sequence.num_promised - sequence.num_produced
        last = sequence.num_input + sequence.num_most
        return under_way > 0 and sequence.num_computed + 2 - under_way >= last

    def _move_on(self, sequence: Sequence, new_tokens: int) -> Reach | None:
        """Slide its windows past what no step reads; returns what aligned states need to know of the next step."""
        computed = sequence.num_computed
        if self.cohort.is_windowed:
            # The schedule is ahead of what is certain by drafts that may be rejected.
            unsure = 0 if self.drafts is None or self.policy.frees_on_completion else self.drafts.width - 1
            self.cache.slide(sequence, computed - sequence.num_under_way, unsure)
        return self._reach(sequence, computed, new_tokens)

    # Preemption.

    def _frees_nothing(self) -> bool:
        """True if an in-flight step still writes the next victim's blocks, which is then not preempted."""
        if self.offload is None or not self.offload.rules.spares_under_way:
            return False
        return self._is_under_way(self.policy.victim(reversed(self.running)))

    def _is_under_way(self, sequence: Sequence) -> bool:
        """True if an in-flight step computes it outside the decode batch."""
        steps = [(step.sequences, step.left, step.ending, step.late) for step in self._under_way]
        return any(sequence in group for step in steps for group in step)

    def _preempt(self, plan: Plan) -> Sequence:
        """Preempt a sequence: free its blocks, and recompute its tokens later."""
        victim = self.policy.victim(reversed(self.running))
        is_planned = self.policy.by_priority and victim in plan.sequences
        self._drop(victim, plan.new_tokens[plan.sequences.index(victim)] if is_planned else 0)
        victim.num_computed = 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.preempted[victim.index] += 1
        plan.num_preempted += 1
        self._is_blocked = False
        has_skipped = self._num_skipped and (self.adapters is not None or self.offload is not None)
        if self.policy.by_priority:
            insort(self.waiting, victim, key=RANK)
        elif has_skipped and self.policy.skipped_queue_separate:
            self.waiting.insert(self._num_skipped, victim)
        else:
            self.waiting.appendleft(victim)
        return victim

    def _drop(self, victim: Sequence, planned: int = 0, *, is_left: bool = False) -> None:
        """Take a sequence with ``planned`` tokens in this step, or without a client (``is_left``), out of the running
        ones, and free its blocks.
        """
        del self.running[victim]
        if victim.joined >= 0:
            self._leave_cohort(victim)
        elif victim in self._apart:
            self._apart.remove(victim)
        if self.offload is not None and self._is_under_way(victim):
            self.offload.leave(self.cache.detach(victim, done=False), self._under_way[-1], done=False)
        else:
            self.cache.free(victim, done=False)
        if self.offload is not None and not is_left:
            self.offload.preempt(victim)
        if self.drafts is not None:
            self.drafts.preempt(victim, planned)
        if self.interval is not None:
            self.interval.in_prompt.discard(victim)
        if self.encoder is not None:
            self.encoder.release(victim.index)
        self._is_blocked = False

    def abort(self, index: int) -> int:
        """Drop a request that its client has left, also with its last token in flight; returns its computed tokens."""
        found = next((each for each in (*self.running, *self.waiting) if each.index == index), None)
        if found is None:
            return 0
        steps = self.cohort.steps - found.joined if found.joined >= 0 else 0
        reached, computed = found.num_computed + steps, found.num_computed + steps - found.num_cached
        known = reached if steps else found.num_input + found.num_produced
        if found in self.running:
            self._drop(found, is_left=True)
        else:
            self._num_skipped -= self.waiting.index(found) < self._num_skipped
            self.waiting.remove(found)
            if self.offload is not None and self.offload.loading.pop(found, False):
                self.cache.free(found, done=False)
        if found.joined == ENDING:
            for step in self._under_way:
                step.ending = [each for each in step.ending if each is not found]
        if self.offload is not None:
            self.offload.end([found], min(reached, known))
        if self.encoder is not None:
            self.encoder.end(index)
        found.num_output = found.num_most = NEVER  # tokens in flight do not end it
        self._is_blocked = False
        return max(0, computed)

    def _take_back(self, plan: Plan, victim: Sequence) -> None:
        new_tokens = plan.take_back(victim)
        if self.encoder is not None:
            self.encoder.take_back(victim.index)
        if self._frees_on_completion:
            victim.num_under_way -= new_tokens
        if victim in plan.sampled:
            plan.sampled.remove(victim)
            if victim in plan.thrown_away:
                plan.thrown_away.remove(victim)
            if not self.policy.waits_for_tokens:
                victim.num_tokens -= victim.num_promised < victim.num_most or self._steps_under_way > 2
            victim.num_promised -= 1

    # Waiting requests.

    def _plan_waiting(self, plan: Plan) -> None:
        """Admit waiting requests, in order, until one does not fit."""
        if self.adapters is not None:
            self.adapters.begin(self.running if self.policy.counts_running else self._planned(plan))
        if self.drafts is not None:
            cast("DraftPlan", plan).num_running = len(plan.sequences)
        if self.offload is not None and self.offload.rules.holders_first and not self._plan_loaded(plan):
            return
        position, waiting, most = 0, self.waiting, self.policy.max_num_seqs
        while position < len(waiting) and plan.budget > 0 and len(self.running) < most:
            if self.adapters is not None and (position := self.adapters.first(waiting, position)) == len(waiting):
                break
            sequence = waiting[position]
            new_tokens = SKIPPED if self._is_skipped(sequence) else self._start(plan, sequence)
            if new_tokens > 0:
                self._begin(plan, position, sequence, new_tokens)
            elif new_tokens == SKIPPED:
                position += 1
            else:
                # The next step may have room for a whole block, and can then rely on the states of this one.
                self._is_blocked = not self.cache.shape.states and (self.offload is None or self.offload.is_quiet)
                break
        self._num_skipped = max(position, self._num_skipped)

    def _plan_loaded(self, plan: Plan) -> bool:
        """Admit requests loaded from host memory; False if one of them does not fit."""
        assert self.offload is not None
        loaded = [each for each, has_arrived in self.offload.loading.items() if has_arrived]
        for sequence in sorted(loaded, key=RANK) if self.policy.by_priority else loaded:
            if plan.budget <= 0 or len(self.running) >= self.policy.max_num_seqs:
                return False
            if self._is_skipped(sequence):
                continue
            new_tokens = self._start(plan, sequence)
            if not new_tokens:
                self._is_blocked = not self.offload.num_under_way
                return False
            self._begin(plan, self.waiting.index(sequence), sequence, new_tokens)
        return True

    def _is_skipped(self, sequence: Sequence) -> bool:
        """True if others may overtake it: it was preempted and is still in flight, or has no adapter slot."""
        if self._frees_on_completion and sequence.num_under_way > 0:
            return True
        return self.adapters is not None and not self.adapters.has_slot(sequence)

    def _begin(self, plan: Plan, position: int, sequence: Sequence, new_tokens: int) -> None:
        """Move a request from the queue into this step."""
        del self.waiting[position]
        if position < self._num_skipped:
            self._num_skipped -= 1
        self._num_started += 1
        sequence.place = self._num_started
        self.running[sequence] = None
        self._apart.append(sequence)
        plan.started.append(sequence)
        if self.adapters is not None:
            self.adapters.add(sequence)
        if self.drafts is not None:
            self.drafts.start(sequence, new_tokens)
        self._schedule(plan, sequence, new_tokens)

    def _start(self, plan: Plan, sequence: Sequence) -> int:
        """Allocate a sequence's first blocks; returns the tokens it computes, 0 if it has to wait, or `SKIPPED`."""
        cache, offload, known = self.cache, self.offload, sequence.num_input + sequence.num_produced
        if offload is not None and sequence in offload.loading:
            return self._go_on(plan, sequence, known) if offload.loading[sequence] else SKIPPED
        promised = min(self.policy.reserved_tokens(sequence, known), self.longest)
        has_images = self.encoder is not None and sequence.index in self.encoder.images
        if offload is None and not has_images and not cache.may_fit(sequence, promised):
            return 0
        num_cached = cache.longest_prefix(sequence, known)
        if offload is not None and (found := offload.look_up(sequence, num_cached, known)) != 0:
            return SKIPPED if found is None else self._load(sequence, known, promised, num_cached, found)
        new_tokens = self._first_tokens(plan, sequence, known, num_cached)
        slots = num_cached + new_tokens
        slots = slots if self.drafts is None else self.drafts.slots(slots)
        reach = self._reach(sequence, num_cached, new_tokens)
        if new_tokens <= 0:
            return new_tokens
        if not self._admit(sequence, num_cached, slots, promised, reach=reach):
            if self.encoder is not None:
                self.encoder.release(sequence.index)
            return 0
        sequence.num_computed = num_cached
        if offload is None:
            sequence.num_cached = num_cached
        else:
            offload.note_start(sequence, known, num_cached, 0)
        return new_tokens

    def _first_tokens(self, plan: Plan, sequence: Sequence, known: int, computed: int) -> int:
        """Tokens of a request to be admitted; 0: it has to wait."""
        missing = known - computed
        if self.interval is not None and self.interval.defers and missing > 1:
            return 0
        if missing == 1 and self.drafts is not None:
            missing += self.drafts.padding(cast("DraftPlan", plan), computed)
            if missing > 1 and (missing > plan.budget or computed + missing > self.longest):
                return 0
        new_tokens = self.policy.first_chunk(missing, plan.budget, self._num_requests())
        return self._ended_well(sequence, computed, new_tokens)

    def _admit(
        self, sequence: Sequence, num_cached: int, slots: int, promised: int, reserved: int = 0,
        reach: Reach | None = None,
    ) -> bool:  # fmt: skip
        """Allocate blocks for the first ``slots`` tokens, above the watermark if others run."""
        spare = self._watermark if self.running else 0
        new, most = min(slots, self.longest) - num_cached, self._most_under_way
        return self.cache.admit(sequence, num_cached, new, promised, most, reserved, spare, reach)

    def _load(self, sequence: Sequence, known: int, promised: int, num_cached: int, found: int) -> int:
        """Start loading a request's blocks from host memory, if they fit."""
        assert self.offload is not None
        if not self._admit(sequence, num_cached, num_cached + found, promised, self._reserved()):
            return 0
        self.offload.begin_load(sequence, num_cached, found)
        self.offload.note_start(sequence, known, num_cached, found)
        sequence.num_computed = num_cached + found
        return SKIPPED

    def _go_on(self, plan: Plan, sequence: Sequence, known: int) -> int:
        """Resume a request loaded from host memory: share its blocks, and compute the rest."""
        assert self.offload is not None
        cache, computed = self.cache, sequence.num_computed
        if sequence.named * self._block_size < computed and self.drafts is not None:
            self.drafts.name(cast("DraftSequence", sequence), computed)
        elif sequence.named * self._block_size < computed:
            cache.name(sequence, computed)
        if computed == known:
            computed = sequence.num_computed = known - 1
        new_tokens = self._first_tokens(plan, sequence, known, computed)
        slots = computed + new_tokens
        slots = slots if self.drafts is None else self.drafts.slots(slots)
        needed = max(slots, self.policy.reserved_tokens(sequence, known))
        missing = (cache.shape.blocks_for(needed) - sequence.length) * self._num_groups
        if new_tokens <= 0 or missing + (self._watermark if self.running else 0) > cache.num_free:
            return min(0, new_tokens)
        cache.grow(sequence, slots)
        del self.offload.loading[sequence]
        self.offload.settling.append(sequence)
        return new_tokens

    def _reserved(self) -> int:
        """Blocks that chunked prompts and loading requests still need, and one's drafts."""
        assert self.offload is not None
        started = [each for each in self._apart if each.num_computed < each.num_input + each.num_produced]
        counted = dict.fromkeys((*started, *self.offload.loading, *self.offload.settling))
        known = [(each, each.num_input + each.num_produced) for each in counted]
        is_ahead, blocks_for = self.offload.rules.reserves_drafts, self.cache.shape.blocks_for
        more = self.drafts.slots(self.drafts.width) if is_ahead and self.drafts is not None else 0
        missing = sum(max(0, blocks_for(tokens + more) - each.length) for each, tokens in known)
        return (missing + blocks_for(more)) * self._num_groups

    # Tokens of a sequence.

    def _ended_well(self, sequence: Sequence, computed: int, new_tokens: int) -> int:
        """Shorten a chunk to images, states and drafts that it can end with; 0 or `SKIPPED`: none now."""
        if self.cache.shape.aligned and new_tokens:
            known, junction = sequence.num_input + sequence.num_produced, sequence.junction * self._block_size
            prompt = Prompt(computed, sequence.num_input, known, junction)
            starts = sequence not in self.running
            new_tokens = self.policy.align(prompt, new_tokens, self.cache.ends, starts=starts)
        if self.encoder is not None and new_tokens > 0:
            ahead = 0 if self.drafts is None else self.drafts.reads
            new_tokens = (
                self.encoder.reach(sequence.index, computed, new_tokens, ahead) or -self.policy.skips_unreadable
            )
        if self.drafts is None or new_tokens <= 0:
            return new_tokens
        return self.drafts.readable(sequence, computed, new_tokens) or -self.policy.skips_unreadable

    def _reach(self, sequence: Sequence, computed: int, new_tokens: int) -> Reach | None:
        """What aligned states, if there are any, need to know of a step."""
        if not self.cache.shape.aligned:
            return None
        prompt_end = max(sequence.num_input, sequence.num_input + sequence.num_produced - 1)
        return Reach(computed, computed + new_tokens, prompt_end)

    def _schedule(self, plan: Plan, sequence: Sequence, new_tokens: int) -> None:
        """Add a sequence to the plan and count its tokens as computed; if it has caught up, it samples a token."""
        computed = sequence.num_computed
        plan.sequences.append(sequence)
        plan.new_tokens.append(new_tokens)
        plan.computed.append(computed)
        plan.budget -= new_tokens
        self._is_blocked = False  # its window may have moved, and it may fill a block another request can reuse
        if self.encoder is not None:
            self.encoder.take(sequence.index)
        if self._frees_on_completion:
            sequence.num_under_way += new_tokens
        if self.drafts is not None:
            samples = self.drafts.schedule(cast("DraftPlan", plan), cast("DraftSequence", sequence), new_tokens)
        else:
            samples = computed + new_tokens >= sequence.num_tokens
        if self.interval is not None:
            self.interval.schedule(sequence, computed, samples)
        if self.drafts is not None:
            if samples:
                sequence.not_before = self._step + self.policy.decode_stride
            return
        reached = computed + new_tokens
        sequence.num_computed = reached
        # A full block can be shared while it is being computed, but not before its last token is known.
        known = sequence.num_input + sequence.num_produced
        known = reached if reached < known else known
        self.cache.name(sequence, known)
        if self.cache.renews:
            self.cache.renew(sequence, known)
        if samples:
            plan.sampled.append(sequence)
            if sequence.num_promised >= sequence.num_output:
                plan.thrown_away.append(sequence)
            sequence.num_promised += 1
            sequence.not_before = self._step + self.policy.decode_stride
            if not self.policy.waits_for_tokens:
                sequence.num_tokens += sequence.num_promised < sequence.num_most or self._steps_under_way > 2

    # In-flight steps.

    def start(self, plan: Plan, steps: int = 1) -> list[int]:
        """Launch the planned step this many times, all but the last completed, as blocks last; returns those held."""
        held = [plan.held]
        if steps > 1:
            held += self.cohort.grow(steps - 1)
        if plan.decodes:
            plan.late = [*self.cohort.late]
            plan.ending = self.cohort.advance(len(held))
        if plan.sequences:
            self._is_blocked = False
            if self._decode_together:
                self._join(plan.sampled)
        self._under_way.append(plan)
        return held

    def _join(self, sampled: list[Sequence]) -> None:
        """Move sequences that have caught up into the decode batch, up to the first that has not."""
        joining = {sequence for sequence in sampled if sequence.num_promised < sequence.num_output}
        for sequence in self._apart:
            if sequence in joining:
                self.cohort.join(sequence)
            elif sequence.num_computed < sequence.num_tokens:
                break
        self._apart = [sequence for sequence in self._apart if sequence.joined < 0]

    def complete(self, plan: Plan) -> list[Sequence]:
        """Process a completed step; returns the sequences that are done."""
        self._under_way.popleft()
        if self.offload is not None:
            for blocks, is_done in self.offload.leave_after(plan):
                self.cache.free(blocks, done=is_done)
        if not (plan.sequences or plan.left):
            if plan.ending:
                self._end(plan.ending)
            return plan.ending
        self._is_blocked = False
        if self._frees_on_completion:
            for sequence, new_tokens in zip(plan.sequences, plan.new_tokens, strict=True):
                sequence.num_under_way -= new_tokens
            for sequence in plan.left:
                sequence.num_under_way -= 1
        if self.encoder is not None:
            for sequence in plan.sequences:
                if sequence in self.running:
                    self.encoder.release(sequence.index, sequence.num_computed)
        done = self._take_tokens(plan) if self.drafts is None else self.drafts.complete(cast("DraftPlan", plan))
        if done:
            self._end(sorted(done, key=PLACE) if len(done) > 1 else done)
        return done

    def _take_tokens(self, plan: Plan) -> list[Sequence]:
        """Count a token for each sampled sequence; returns those that have all of theirs."""
        done = plan.ending
        for sequence in [*plan.left, *plan.sampled] if plan.left else plan.sampled:
            # Members of the decode batch keep no counts. Others may have been in one step too many, scheduled before
            # the last token was known.
            if sequence.joined != APART or sequence.num_produced == sequence.num_output:
                continue
            sequence.num_produced += 1
            if self.policy.waits_for_tokens:
                sequence.num_tokens += 1
            if sequence.length:
                known = sequence.num_computed - (sequence.num_promised - sequence.num_produced)
                self.cache.name(sequence, known)
            if sequence.num_produced == sequence.num_output:
                done = [*done, sequence]
        return done

    def _end(self, done: list[Sequence]) -> None:
        if self.offload is not None:
            self.offload.end(done)
        for sequence in done:
            if self.encoder is not None:
                self.encoder.end(sequence.index)
            if self.drafts is None:
                # Nothing is computed on its last token, so all computed tokens are known; a step too many does not
                # count.
                known = sequence.num_input + sequence.num_output - 1
                self.cache.name(sequence, sequence.num_computed if sequence.num_computed < known else known)
            if sequence in self.running:
                del self.running[sequence]
                if sequence in self._apart:
                    self._apart.remove(sequence)
            elif sequence in self.waiting:  # preempted in its last step
                self._num_skipped -= self.waiting.index(sequence) < self._num_skipped
                self.waiting.remove(sequence)
            # A step too many, scheduled before its last token was known, may still write its blocks.
            if self.offload is not None and self._is_under_way(sequence):
                self.offload.leave(self.cache.detach(sequence, done=True), self._under_way[-1], done=True)
            else:
                self.cache.free(sequence)
        self._is_blocked = False

    def end_moves(self, moves: list[KvTransfer]) -> None:
        assert self.offload is not None
        self.offload.end_moves(moves)
        for move in moves:
            if not move.is_store and move.sequence.num_output == NEVER:  # its client has left meanwhile
                del self.offload.loading[move.sequence]
                self.cache.free(move.sequence, done=False)
        self._is_blocked = False
