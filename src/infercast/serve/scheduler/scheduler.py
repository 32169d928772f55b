"""The scheduler of engines that mix prompts and decoding in one step, with its running batch."""

from __future__ import annotations

import heapq
from collections import deque
from itertools import accumulate
from operator import attrgetter

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.cache.shape import Reach
from infercast.serve.scheduler.base import APART, ENDING, Group, Plan, Sequence
from infercast.serve.scheduler.policy import MixingPolicy, Prompt
from infercast.serve.workload.request import NEVER, Request

# Sequences that decode in every step, whatever is computed beside them.
#
# A member leaves when its last token is planned, or a step later where the engine cannot tell that it is the last one.
# Members whose layers look back over a window give blocks back as they go on, and those whose answers others may look
# for
# make blocks that can be found.


class Cohort(Group[Sequence]):
    """Running sequences, in the scheduler's order."""

    def __init__(self, cache: KvCache, unknown: int, *, settles: bool = False) -> None:
        super().__init__(cache)
        self._cache = cache
        # For the number of a step modulo the period: members that begin blocks in it, and how many.
        self._begin: list[dict[Sequence, int]] = [{} for _ in range(self.period)]
        self._unknown = unknown
        """Tokens of each member that are computed but, as their values are not known yet, not findable."""
        self._behind = unknown if settles else 0
        """Tokens of each member that are computed, but in a step under way that still reads what is before them."""
        shape = cache.shape
        self._windows = {(window, size) for window, size in zip(shape.windows, shape.sizes, strict=True) if window}
        self.is_windowed = bool(self._windows)
        # Members whose window leaves a block behind in such a step, and those who joined in the last two steps.
        self._leave: list[dict[Sequence, None]] = [{} for _ in range(self.period)]
        self._recent: list[list[Sequence]] = [[], []]
        # The other members: the step in which each is as long as the shortest window, the first one first.
        self._short: list[tuple[int, int, Sequence]] = []
        self._shortest = min([window for window, _ in self._windows], default=0)
        self.answering: dict[Sequence, None] = {}
        """Members whose answers others may look for: their steps make blocks that can be found."""
        # Of these, for the number of a step modulo the block size: those of whom a block is known to be full by it.
        self._fill: list[dict[Sequence, None]] = [{} for _ in range(self._block_size)]
        self.late: dict[Sequence, None] = {}
        """Members whose last token is under way, which the engine does not know: the next step is wasted on them."""
        self._overdue: list[Sequence] = []
        self._named_until = 0

    def last_place(self) -> int:
        """Of the member that started last; -1 without members."""
        return next(reversed(self.members)).place if self.members else -1

    def join(self, sequence: Sequence) -> None:
        """A sequence that has caught up in the step planned last will decode from the next one on."""
        is_last = sequence.place > self.last_place()
        phase = self._enter(sequence)
        if not is_last:
            self.members = dict.fromkeys(sorted(self.members, key=lambda member: member.place))
        for offset, count in self._begun:
            self._begin[(phase + offset) % self.period][sequence] = count
        if self.is_windowed:
            reaches = self.steps + self._shortest - sequence.num_computed
            heapq.heappush(self._short, (reaches, self._num_joined, sequence))
            self._recent[0].append(sequence)
        whole = self.period // self._block_size
        if sequence.shared // whole * whole > sequence.named:
            self.answering[sequence] = None
            filled = self.steps - self._start(sequence)
            self._fill[self._start(sequence) % self._block_size][sequence] = None
            if filled // self._block_size > sequence.named:
                self._overdue.append(sequence)

    def leave(self, sequence: Sequence) -> None:
        """A member gets its own counts back."""
        phase = (sequence.joined + 1 - sequence.num_computed) % self.period
        del self.members[sequence]
        self.late.pop(sequence, None)
        for offset, count in self._begun:
            del self._begin[(phase + offset) % self.period][sequence]
            self.blocks[(phase + offset) % self.period] -= count
        if self.is_windowed:
            for phase in self._leaving_phases(sequence):
                self._leave[phase].pop(sequence, None)
            for recent in self._recent:
                if sequence in recent:
                    recent.remove(sequence)
        if sequence in self.answering:
            del self.answering[sequence]
            self._fill[self._start(sequence) % self._block_size].pop(sequence)
        steps = self.steps - sequence.joined
        if steps:
            sequence.num_under_way += self._behind
        computed = sequence.num_computed = sequence.num_computed + steps
        self.computed -= computed
        sequence.num_promised += steps
        sequence.num_produced = sequence.num_promised - self._unknown
        sequence.num_tokens = computed + (sequence.num_promised < sequence.num_most)
        sequence.joined = APART
        sequence.length = sequence.num_states = -(-computed // self._block_size)
        self._cache.name(sequence, computed - self._unknown)

    def due(self) -> list[Sequence]:
        """Members that begin a block in the next step, in order."""
        begin = self._begin[(self.steps + 1) % self.period]
        return sorted(begin, key=lambda member: member.place)

    def grow(self, steps: int) -> list[int]:
        """Take the blocks of the steps after the next one; returns how many are held in each, while there is room."""
        if self.is_windowed:
            return self.grow_windows(steps, 1)
        cache = self._cache
        before, room = cache.num_held, cache.num_blocks
        held = [*accumulate(self._blocks_needed(steps), initial=before)]
        while held[-1] > room:
            held.pop()
        cache.take(held[-1] - before)
        del held[0]
        return held

    def grow_windows(self, steps: int = 1, ahead: int = 0) -> list[int]:
        """The same where members give blocks back while they go on, for steps after ``ahead`` ones."""
        held: list[int] = []
        cache, first = self._cache, self.steps + ahead + 1
        for step in range(first, first + steps):
            phase = step % self.period
            if self.blocks[phase] > cache.num_free:  # now it matters who gives back before whom
                return held
            self.name_answers(step - 1)
            while self._short and self._short[0][0] <= step:
                self._outgrow(heapq.heappop(self._short)[2])
            moving = {*self._leave[phase], *self._recent[1], *self._recent[0]}
            if moving:
                # What falls out of a window is handed out again in the order in which it did.
                begin = self._begin[phase]
                for member in sorted({*moving, *begin}, key=lambda each: each.place):
                    if member in moving:
                        self._move_on(member, step)
                    if member in begin:
                        cache.take(begin[member])
                self._recent = [[], self._recent[0]]
            else:
                cache.take(self.blocks[phase])
            held.append(cache.num_held)
        return held

    def _outgrow(self, member: Sequence) -> None:
        """A member is about as long as the shortest window, and leaves a block behind now and then from here on."""
        if member.joined >= 0:
            for phase in self._leaving_phases(member):
                self._leave[phase][member] = None

    def _move_on(self, member: Sequence, step: int) -> None:
        """Let a member's windows leave behind what they do not look at in a step."""
        computed = member.num_computed + step - 1 - member.joined
        member.length = member.num_states = -(-computed // self._block_size)
        self._cache.name(member, computed - self._unknown)
        behind = member.num_under_way + (self._behind if member.joined < step - 1 else 0)
        self._cache.slide(member, computed - behind)
        if self._cache.renews:
            self._cache.renew(member, computed + 1 - self._unknown)

    def _leaving_phases(self, sequence: Sequence) -> set[int]:
        """Numbers of steps, modulo the period, in which a block of the member falls out of a window."""
        start = sequence.joined + self._cache.shape.chunked - sequence.num_computed + self._behind
        return {
            ((start + window) % size + offset) % self.period
            for window, size in self._windows
            for offset in range(0, self.period, size)
        }

    def _start(self, member: Sequence) -> int:
        """The step in which its first token would have been known, had it been in every one since."""
        return member.joined - member.num_computed + self._unknown

    def name_answers(self, step: int) -> None:
        """Let others find the blocks of answers that are known to be full when a step is planned, in their order."""
        first, self._named_until = self._named_until + 1, max(self._named_until, step)
        if not self.answering:
            return
        if self._overdue:
            self._name_overdue()
        size, unknown, name = self._block_size, self._unknown, self._cache.name
        for each in range(first, step + 1):
            for member in self._fill[each % size]:
                tokens = each - (member.joined - member.num_computed + unknown)
                if tokens <= member.shared * size:
                    name(member, tokens)

    def _name_overdue(self) -> None:
        """Blocks of members that were full when they joined."""
        size, due = self._block_size, list[tuple[int, int, Sequence, int]]()
        for number, member in enumerate(self._overdue):
            start = self._start(member)
            full = min((self.steps - start) // size, member.shared) if member in self.answering else 0
            due += [(start + block * size, number, member, block * size) for block in range(member.named + 1, full + 1)]
        for _, _, member, tokens in sorted(due, key=lambda each: each[:2]):
            self._cache.name(member, tokens)
        self._overdue.clear()

    def advance(self, steps: int) -> list[Sequence]:
        """Every member computes so many tokens, for which blocks were taken; returns those that have all of theirs."""
        self.steps += steps
        self.computed += steps * len(self.members)
        if self.answering:
            self.name_answers(self.steps)
        for member in [*self.late]:
            self.leave(member)
            member.joined = ENDING
        heap = self._last_steps
        if not heap or heap[0][0] > self.steps:
            return []
        ending = self._due()
        for member in ending:
            if self._unknown and member.num_most > member.num_output:
                self.late[member] = None
                continue
            self.leave(member)
            member.joined = ENDING
        if len(ending) > 1:
            ending.sort(key=lambda member: member.place)
        return ending


# Who runs, who waits and what is under way: the books that a scheduler keeps, whatever it decides.
#
# Sequences that have caught up decode together in a `Cohort`, which counts as one; all others are planned by
# themselves,
# *apart*. A plan is under way from its start to the moment its result is taken in.


PLACE = attrgetter("place")


class Running:
    """Sequences inside an engine, and the steps that compute them."""

    def __init__(self, policy: MixingPolicy, cache: KvCache, steps_under_way: int, *, decode_together: bool) -> None:
        self.policy, self.cache = policy, cache
        self.running: dict[Sequence, None] = {}
        """In the order in which they were started."""
        self.waiting: deque[Sequence] = deque()
        self._block_size, self._num_groups = cache.shape.block_size, cache.num_groups
        self._is_windowed = any(cache.shape.windows)
        self._has_states, self._is_aligned = bool(cache.shape.states), cache.shape.aligned
        # One step under way never sees the difference, two only in windows.
        self._settles = policy.settles and steps_under_way > (1 if self._is_windowed else 2)
        self._deep = steps_under_way > 2
        self._unsure = 0
        """Tokens in front that may be taken back, where an engine goes by what is planned."""
        # With several batches under way, or prompts before everything, sequences do not decode step by step.
        in_turn = policy.steps_between_tokens > 1 or (policy.waits_for_tokens and steps_under_way > 1)
        is_single = policy.decode_tokens == (1, 1)
        self._decode_together = decode_together and is_single and not (self._deep or policy.prompts_first or in_turn)
        self.cohort = Cohort(cache, steps_under_way - 1, settles=self._settles)
        self._apart: list[Sequence] = []
        """Running sequences that are planned by themselves, in order."""
        self.just_left: list[Sequence] = []
        """Who has left the cohort since somebody looked: they had a token in the last step that has ended."""
        self._under_way: deque[Plan] = deque()
        self._is_blocked = False
        """Whether the first in the queue cannot start before something changes."""

    def start(self, plan: Plan, steps: int = 1) -> list[int]:
        """The step just planned is handed to the GPU so many times; returns the blocks held in each.

        There may be fewer of them, where blocks run out. All but the last have ended when that one is under way.
        """
        held = [plan.held]
        if steps > 1:
            held += self.cohort.grow(steps - 1)
        if plan.decodes:
            plan.ending = self.cohort.advance(len(held))
        if plan.sequences:
            self._is_blocked = False
            if self._decode_together:
                self._join(plan.sampled)
        self._under_way.append(plan)
        return held

    def complete(self, plan: Plan) -> list[Sequence]:
        """Take in the tokens that a finished step yields; returns the sequences that are done."""
        self._under_way.popleft()
        if not (plan.sequences or plan.left):
            if plan.ending:
                self._end(plan.ending)
            return plan.ending
        self._is_blocked = False
        if self._settles:
            for sequence, new_tokens in zip(plan.sequences, plan.new_tokens, strict=True):
                sequence.num_under_way -= new_tokens
            for sequence in plan.left:
                sequence.num_under_way -= 1
        done = plan.ending
        sampled, yielded = plan.sampled, plan.yielded
        if plan.left:
            sampled, yielded = [*plan.left, *sampled], [1 for _ in plan.left] + yielded
        for sequence, num_tokens in zip(sampled, yielded, strict=True):
            # Members of the cohort do not count along. Others may have been in a step too many, planned before the last
            # token was known.
            if sequence.joined != APART or sequence.num_produced == sequence.num_output:
                continue
            sequence.num_produced += num_tokens
            if self.policy.waits_for_tokens:
                sequence.num_tokens += num_tokens
            if sequence.length:
                known = sequence.num_computed - (sequence.num_promised - sequence.num_produced)
                self.cache.name(sequence, known)
            if sequence.num_produced == sequence.num_output:
                done = [*done, sequence]
        if done:
            self._end(sorted(done, key=PLACE) if len(done) > 1 else done)
        return done

    def _end(self, done: list[Sequence]) -> None:
        """Let go of sequences that have all their tokens."""
        for sequence in done:
            # Nothing was computed on its last token, so all that was is known; a step too many does not count.
            known = sequence.num_input + sequence.num_output - 1
            self.cache.name(sequence, sequence.num_computed if sequence.num_computed < known else known)
            if sequence in self.running:
                del self.running[sequence]
                if sequence in self._apart:
                    self._apart.remove(sequence)
            elif sequence in self.waiting:  # it gave way in its last step
                self.waiting.remove(sequence)
            self.cache.free(sequence)
        self._is_blocked = False

    def _join(self, sampled: list[Sequence]) -> None:
        """Who has caught up decodes with the others from now on, unless somebody before it has not."""
        joining = {sequence for sequence in sampled if sequence.num_promised < sequence.num_output}
        for sequence in self._apart:
            if sequence in joining:
                self.cohort.join(sequence)
            elif sequence.num_computed < sequence.num_tokens:
                break
        self._apart = [sequence for sequence in self._apart if sequence.joined < 0]

    def _leave_cohort(self, member: Sequence) -> None:
        if member.joined < self.cohort.steps:
            self.just_left.append(member)
            if self._under_way:
                last = self._under_way[-1]
                last.left.append(member)
                if member in self.cohort.late:  # it is one of those who left
                    last.ending = [each for each in last.ending if each is not member]
        self.cohort.leave(member)

    def _give_up(self, victim: Sequence) -> None:
        """The blocks of one who gives way can be handed out."""
        self.policy.give_up(self.cache, victim)

    def _disband(self) -> None:
        """Every member is planned by itself, for once."""
        self.cohort.name_answers(self.cohort.steps)
        members = [*self.cohort.members]
        for member in members:
            self._leave_cohort(member)
        self._apart = sorted([*members, *self._apart], key=PLACE)

    def _is_interleaved(self) -> bool:
        """Whether somebody who is planned alone comes before a member."""
        for sequence in self._apart:
            if sequence.num_computed < sequence.num_tokens:
                return sequence.place < self.cohort.last_place()
        return False


# There is no prefill phase and no decode phase: each sequence has ``num_computed`` tokens that catch up with its
# ``num_tokens``. Chunked prefill, prefix hits and recomputing after preemption are all the same rule. Sequences that
# have
# caught up decode together in a `Cohort`, which counts as one; whoever has not, or cannot go along with the others in
# a
# step, is planned by itself.


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
