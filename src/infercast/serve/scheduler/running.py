"""Who runs, who waits and what is under way: the books that a scheduler keeps, whatever it decides.

Sequences that have caught up decode together in a `Cohort`, which counts as one; all others are planned by themselves,
*apart*. A plan is under way from its start to the moment its result is taken in.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.scheduler.cohort import Cohort
from infercast.serve.scheduler.policy import MixingPolicy
from infercast.serve.scheduler.sequence import APART, Plan, Sequence

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
