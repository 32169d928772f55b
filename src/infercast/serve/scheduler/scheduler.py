"""One step after another, planned by an engine's policy.

There is no prefill phase and no decode phase: each sequence has ``num_computed`` tokens that catch up with its
``num_tokens``. Chunked prefill, prefix hits and recomputing after preemption are all the same rule. Sequences that have
caught up decode together in a `Cohort`, which counts as one; whoever has not, or cannot go along with the others in a
step, is planned by itself.
"""

from __future__ import annotations

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.cache.shape import Reach
from infercast.serve.scheduler.alignment import Prompt
from infercast.serve.scheduler.policy import MixingPolicy
from infercast.serve.scheduler.running import Running
from infercast.serve.scheduler.sequence import Plan, Sequence
from infercast.serve.workload.request import NEVER, Request


class Scheduler(Running):
    """Decides what each step computes, by the rules of a policy."""

    def __init__(
        self,
        policy: MixingPolicy,
        cache: KvCache,
        steps_under_way: int = 2,
        max_model_len: int | None = None,
        *,
        decode_together: bool = True,
    ) -> None:
        """Without ``decode_together`` every plan names all of its sequences."""
        super().__init__(policy, cache, steps_under_way, decode_together=decode_together)
        self._longest = max_model_len or NEVER
        self._watermark = policy.kept_free(cache.num_blocks)
        self.num_preemptions = 0
        self._step = self._num_started = self._budget = 0
        self._most_under_way = policy.max_num_batched_tokens * (steps_under_way if policy.settles else 1)

    def add(self, index: int, request: Request) -> None:
        """Queue a request."""
        sequence = self._sequence(index, request)
        # Whatever it asks for, it ends with the longest length.
        sequence.num_most = min(sequence.num_most, max(self._longest - sequence.num_input, sequence.num_output))
        self.waiting.append(sequence)

    def _sequence(self, index: int, request: Request) -> Sequence:
        return Sequence(index, request, self.cache.path(request), self._num_groups)

    def plan(self) -> Plan | None:
        """Plan the next step, assuming that the steps under way end as planned; None if nothing can be computed."""
        plan = Plan()
        self._step += 1
        if self._has_states:
            self.cache.new_step()
        self._budget = self.policy.max_num_batched_tokens
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
        return plan if plan.decodes or plan.sequences else None

    @property
    def tries_again(self) -> bool:
        """Something has to change before."""
        return False

    def most_steps(self, plan: Plan) -> int:
        """How often in a row the step just planned can be computed before something changes that is known of."""
        if plan.sequences or plan.num_preempted or plan.wasted or self._apart:
            return 1
        can_start = self.waiting and self._budget > 0 and len(self.running) < self.policy.max_num_seqs
        if can_start and (not self._is_blocked or self._is_windowed or self.cohort.answering):
            return 1
        return self.cohort.steps_left()

    def steps_with_room(self, steps: int) -> int:
        """Of the steps after the next one, those for which there are blocks."""
        return self.cohort.steps_with_room(steps)

    def end_early(self, plan: Plan) -> None:
        """Nobody does: a step is repeated until the first has its last token."""

    def _plan_apart(self, plan: Plan) -> None:
        """Running sequences that are planned by themselves, in order."""
        position = 0
        while position < len(self._apart) and self._budget > 0:
            sequence = self._apart[position]
            position += 1
            if not (new_tokens := self._next_tokens(sequence)):
                continue
            if not self._make_room(sequence, new_tokens, plan):
                break
            self._put(plan, sequence, new_tokens)

    def _next_tokens(self, sequence: Sequence) -> int:
        """Tokens that a running sequence computes in the step that is being planned; 0: none."""
        missing = sequence.num_tokens - sequence.num_computed
        if missing == 0 or self._step < sequence.not_before:  # its last token is being sampled right now
            return 0
        if self._deep and self._is_last_under_way(sequence):
            return 0
        if missing > 1:
            missing = self.policy.chunk(missing, self._budget, alone=self._is_alone())
            return self._aligned(sequence, sequence.num_computed, missing) if self._is_aligned else missing
        return min(self.policy.decode_tokens[0], self._budget) if sequence.num_promised else missing

    def _plan_cohort(self, plan: Plan) -> bool:
        """A token of each member, for which the last of all give way if they must; False where order matters."""
        cohort, cache = self.cohort, self.cache
        if len(cohort.members) > self._budget or (self._apart and self._is_interleaved()):
            return False
        if self._is_windowed:
            if not cohort.grow_windows():
                return False
            self._is_blocked = False
        else:
            needed = cohort.blocks[(cohort.steps + 1) % cohort.period]
            if not needed or cache.num_held + needed <= cache.num_blocks:
                cache.take(needed)
            else:
                self._take_in_order(plan)
        if cohort.answering:
            cohort.name_answers(cohort.steps + 1)
            self._is_blocked = False
        plan.decodes = count = len(cohort.members)
        plan.decode_context, plan.contexts = cohort.computed, cohort.contexts
        plan.wasted = len(cohort.late)
        self._budget -= count
        return True

    def _take_in_order(self, plan: Plan) -> None:
        """Blocks for the members that begin one, as long as there are any or somebody behind them gives way."""
        cache, due, served = self.cache, self.cohort.due(), 0
        while served < len(due):
            count = min(cache.num_free // self._num_groups, len(due) - served)
            cache.take(count * self._num_groups)
            served += count
            if served < len(due) and self._preempt(plan) is due[served]:
                return
            while due[-1].joined < 0:  # it gave way itself
                due.pop()

    def _is_alone(self) -> bool:
        return len(self.running) + len(self.waiting) == 1

    def _is_last_under_way(self, sequence: Sequence) -> bool:
        """Whether all its tokens but one are known, and that one is being sampled.

        With more than one of them under way an engine cannot tell, and plans a token too many.
        """
        under_way = sequence.num_promised - sequence.num_produced
        last = sequence.num_input + sequence.num_most
        return under_way > 0 and sequence.num_computed + 2 - under_way >= last

    def _make_room(self, sequence: Sequence, new_tokens: int, plan: Plan, ahead: int = 0) -> bool:
        """Blocks for the new tokens and some ahead of them, for which others give way until there are enough."""
        reach = self._move_on(sequence, new_tokens)
        while not self.cache.grow(sequence, sequence.num_computed + new_tokens + ahead, reach):
            if not self._may_preempt() or self._preempt(plan) is sequence:
                return False
        return True

    def _may_preempt(self) -> bool:
        """Whether it is of use that somebody gives way."""
        return True

    def _move_on(self, sequence: Sequence, new_tokens: int) -> Reach | None:
        """Let its windows leave behind what no step looks at; tells what states have to know of the next."""
        computed = sequence.num_computed
        if self._is_windowed:
            self.cache.slide(sequence, computed - sequence.num_under_way, self._unsure)
        return self._reach(sequence, computed, new_tokens) if self._is_aligned else None

    def _preempt(self, plan: Plan) -> Sequence:
        """Somebody gives way, and will compute its tokens again, before anyone else who waits."""
        victim = self.policy.victim(reversed(self.running))
        del self.running[victim]
        if victim.joined >= 0:
            self._leave_cohort(victim)
        elif victim in self._apart:
            self._apart.remove(victim)
        self._give_up(victim)
        victim.num_computed = 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        plan.num_preempted += 1
        self._is_blocked = False
        self.waiting.appendleft(victim)
        return victim

    def _plan_waiting(self, plan: Plan) -> None:
        """Then those who wait, in order, until one does not fit."""
        position, waiting, most = 0, self.waiting, self.policy.max_num_seqs
        while position < len(waiting) and self._budget > 0 and len(self.running) < most:
            sequence = waiting[position]
            if self._is_passed(sequence):
                position += 1
                continue
            new_tokens = self._start(sequence)
            if not new_tokens:
                # The next step may have room for a whole block, and states of this one can be relied on then.
                self._is_blocked = not self._has_states
                return
            del waiting[position]
            self._num_started += 1
            sequence.place = self._num_started
            self.running[sequence] = None
            self._apart.append(sequence)
            plan.started.append(sequence)
            self._put(plan, sequence, new_tokens)

    def _is_passed(self, sequence: Sequence) -> bool:
        """Whether others may pass it in the queue: it gave way and is still in a step."""
        return self._settles and sequence.num_under_way > 0

    def _start(self, sequence: Sequence) -> int:
        """Give a sequence its first blocks; returns the tokens it computes, 0 if it has to wait."""
        cache = self.cache
        num_tokens = sequence.num_input + sequence.num_produced
        promised = self.policy.promised_tokens(sequence, num_tokens)
        if not cache.may_fit(sequence, promised):
            return 0
        num_cached = cache.longest_prefix(sequence, num_tokens)
        new_tokens = self.policy.first_chunk(num_tokens - num_cached, self._budget, alone=self._is_alone())
        if self._is_aligned:
            new_tokens = self._aligned(sequence, num_cached, new_tokens)
        if not new_tokens:
            return 0
        reach = self._reach(sequence, num_cached, new_tokens) if self._is_aligned else None
        if not self._admit(sequence, num_cached, new_tokens, promised, reach=reach):
            return 0
        sequence.num_computed = sequence.num_cached = num_cached
        return new_tokens

    def _admit(
        self,
        sequence: Sequence,
        num_cached: int,
        new_tokens: int,
        promised: int,
        reserved: int = 0,
        reach: Reach | None = None,
    ) -> bool:
        """Blocks for the first tokens of a sequence, and some left free where others run."""
        spare = self._watermark if self.running else 0
        most = self._most_under_way
        return self.cache.admit(sequence, num_cached, new_tokens, promised, most, reserved, spare, reach)

    def _known(self, sequence: Sequence) -> int:
        """Tokens of a sequence's prompt and answer that are known."""
        return sequence.num_input + sequence.num_produced

    def _aligned(self, sequence: Sequence, computed: int, new_tokens: int) -> int:
        """Fewer tokens of a prompt, so that the step ends where its state can be found again."""
        known = self._known(sequence)
        prompt = Prompt(computed, sequence.num_input, known, sequence.junction * self._block_size)
        return self.policy.align(prompt, new_tokens, self.cache.ends, starts=sequence not in self.running)

    def _reach(self, sequence: Sequence, computed: int, new_tokens: int) -> Reach:
        """What aligned states have to know of a step."""
        return Reach(computed, computed + new_tokens, max(sequence.num_input, self._known(sequence) - 1))

    def _put(self, plan: Plan, sequence: Sequence, new_tokens: int) -> None:
        """Enter a sequence into the plan and count its tokens as computed; if it caught up, it samples a token."""
        computed = sequence.num_computed
        reached = computed + new_tokens
        samples = reached >= sequence.num_tokens
        if samples:
            # All that is computed stays, but for drafts that were wrong.
            is_decoding = sequence.num_promised > 0 and sequence.num_tokens - computed == 1
            yields = min(self.policy.decode_tokens[1], new_tokens) if is_decoding else 1
            yields = min(yields, sequence.num_output - sequence.num_promised) if yields > 1 else 1
            reached = sequence.num_tokens - 1 + yields
        sequence.num_computed = reached
        plan.sequences.append(sequence)
        plan.new_tokens.append(new_tokens)
        plan.computed.append(computed)
        self._budget -= new_tokens
        self._is_blocked = False  # its window may have moved on, and it may fill what another one looks for
        # Others may find a full block already while it is computed, but not before its last token is known.
        known = sequence.num_input + sequence.num_produced
        known = reached if reached < known else known
        self.cache.name(sequence, known)
        if self.cache.renews:
            self.cache.renew(sequence, known)
        if self._settles:
            sequence.num_under_way += new_tokens
        if samples:
            plan.sampled.append(sequence)
            if sequence.num_promised >= sequence.num_output:
                plan.thrown_away.append(sequence)
            plan.yielded.append(yields)
            sequence.num_promised += yields
            sequence.not_before = self._step + self.policy.steps_between_tokens
            if not self.policy.waits_for_tokens:
                goes_on = sequence.num_promised < sequence.num_most or self._deep
                sequence.num_tokens += yields if goes_on else yields - 1
