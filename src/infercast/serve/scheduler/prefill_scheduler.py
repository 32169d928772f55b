"""One step after another where a step is prompts or decoding, and prompts go first.

Decoding stands still as long as a step of prompts can be formed. Once no prompt could be added, none is tried again
before somebody has left.
"""

from __future__ import annotations

from infercast.errors import InputError
from infercast.serve.scheduler.admission import Admission, Answer
from infercast.serve.scheduler.decode_batch import DeclaredSequence
from infercast.serve.scheduler.ignored_ends import Timetable
from infercast.serve.scheduler.prefill_books import PrefillBooks
from infercast.serve.scheduler.queue_order import by_longest_match
from infercast.serve.scheduler.sequence import Plan


class PrefillScheduler(PrefillBooks):
    """Decides what each step computes, prompts first."""

    admission: type[Admission] = Admission

    def plan(self) -> Plan | None:
        """Plan the next step without the results of steps under way; None if nothing can be computed."""
        plan = Plan()
        if self.cut is not None:
            self.cache.keep(self.cut.lease, self.cut.num_computed)
        if self._joining is not None:
            self._merge(self._joining)
        if self.policy.tries_always:
            self.is_full = False
        may_start = self.cut is not None or (self.waiting and not self.is_full)
        if not (may_start and self._plan_prompts(plan)):
            self._plan_decoding(plan)
        if plan.decodes or plan.sequences:
            plan.held = self.cache.num_held
            return plan
        if not (self._under_way or self.waiting or self.running):
            self.ratio = self.policy.first_ratio
        return None

    @property
    def tries_again(self) -> bool:
        """Whether somebody waits who may start now that it is known who has left."""
        return bool(self.waiting) and not self.is_full  # which every prompt that did not fit leaves behind

    def most_steps(self, plan: Plan) -> int:
        """How often in a row the step just planned can be computed before something changes that is known of."""
        if plan.sequences or plan.wasted or (self.waiting and (self.policy.tries_always or not self.is_full)):
            return 1
        # Who has its last token is in one step more, which is the same but for that.
        return self.cohort.steps_left() + self._is_late

    def steps_with_room(self, steps: int) -> int:
        """Of the steps after the next one, those for which there are pages."""
        return self.cohort.steps_with_room(steps)

    def _plan_prompts(self, plan: Plan) -> bool:
        """A step of prompts, if one can be formed; those who decode may be beside them."""
        cohort = self.cohort
        num_running = len(cohort.members) + len(self.ended)
        places = self._places(num_running)
        if places <= 0 and self.cut is None:
            self.is_full = True
            return False
        admission = self._admit(num_running, places)
        if not admission.sequences:
            return False
        self.cut = admission.cut
        self._put(plan, admission)
        plan.is_apart = True
        if self.policy.mixed_chunk:
            self.ended.clear()
            if cohort.members:
                plan.is_apart = False
                self._decode(plan)
        return True

    def _places(self, num_running: int) -> int:
        """How many prompts may be in a step: who has ended is in the batch, and who was cut has a place already."""
        most = self.policy.max_running_requests
        return most - max(num_running, len(self.cohort.members) + (self.cut is not None))

    def _admit(self, num_running: int, places: int) -> Admission:
        """Who is computed in a step of prompts."""
        if self.policy.order == "longest_match":
            self.waiting = by_longest_match(self.waiting, self.cache)
        longest, asked = self.policy.longest_promise, self.cohort.still_asked()
        for each in self.ended:
            asked += min(each.num_declared - each.num_produced, longest)
        timed = self.policy.ignores_end and not self.cache.caching
        timetable = Timetable(self._states, self.ratio) if timed else None
        admission = self.admission(self.policy, self.cache, num_running, asked * self.ratio, self._shares, timetable)
        if self.cut is not None:
            admission.go_on(self.cut)
        while self.waiting:
            count = len(admission.sequences)
            if count >= places:
                self.is_full = True
            if self.is_full:
                break
            answer = admission.ask(self.waiting[0])
            if len(admission.sequences) > count:
                self.waiting.popleft()
            if answer is Answer.NO_ROOM:
                self.is_full = True
            if answer is not Answer.NEXT:
                break
        return admission

    def _put(self, plan: Plan, admission: Admission) -> None:
        """Enter prompts into the plan, take their pages and count their tokens as computed."""
        cache, page = self.cache, self.cache.page
        plan.sequences, plan.new_tokens = [*admission.sequences], admission.new_tokens
        plan.computed = [sequence.num_computed for sequence in admission.sequences]
        new_tokens = sum(admission.new_tokens)
        cache.make_room(new_tokens if page == 1 else new_tokens + len(admission.sequences) * page)
        for sequence, count in zip(admission.sequences, admission.new_tokens, strict=True):
            if not sequence.prompt_end:
                plan.started.append(sequence)
                sequence.num_cached = sequence.num_computed
                sequence.prompt_end = sequence.num_known
            sequence.num_computed += count
            pages = -(-sequence.num_computed // page)
            cache.take(pages - sequence.lease.num_pages)
            sequence.lease.num_pages = pages
            if sequence is not admission.cut:
                sequence.num_promised += 1
                plan.sampled.append(sequence)
                plan.yielded.append(1)
        plan.num_cut = admission.cut is not None
        if cache.num_blank < 0:
            raise self._out_of_memory(f"{new_tokens:,} tokens of prompts")

    def _out_of_memory(self, what: str) -> InputError:
        """What an engine that has promised too much ends with; with one batch and nothing mixed it never does."""
        return InputError(
            f"the engine runs out of KV cache for {what} beside {len(self.running):,} running requests and would stop "
            "or abort one; lower chunked_prefill_size or max_running_requests, or give the cache more memory"
        )

    def _plan_decoding(self, plan: Plan) -> None:
        """A token of everybody who decodes; some give way if there is no room for it."""
        cohort, cache = self.cohort, self.cache
        if self.ended:
            self.ended.clear()
            self.is_full = False
        if not cohort.members:
            return
        needed = cohort.blocks_due()
        cache.make_room(needed * cache.page)
        if cache.num_blank < needed:
            self._retract(plan)
        else:
            self._decay()
        self._decode(plan)

    def _decode(self, plan: Plan) -> None:
        """A token of each member, of which some may have ended without the engine knowing."""
        cohort = self.cohort
        plan.decodes = len(cohort.members)
        self.cache.take_for_decoding(cohort.blocks_due(), plan.decodes)
        if self.cache.num_blank < 0:
            raise self._out_of_memory(f"the next tokens of {plan.decodes:,} requests")
        plan.decode_context, plan.contexts = cohort.computed, cohort.contexts
        plan.wasted = cohort.num_ended
        if self._fresh:
            plan.fresh = [each for each in self._fresh if each.joined >= 0 and each.last_step > each.joined]
            self._fresh.clear()

    def _retract(self, plan: Plan) -> None:
        """Who has produced least gives way, and of those who have the longest prompt, until there is room."""
        cohort, cache, headroom = self.cohort, self.cache, self.policy.retraction_headroom
        staying = cohort.in_order()
        staying.sort(key=lambda each: (cohort.produced(each), -each.num_input), reverse=True)
        while len(staying) > 1:
            self._give_way(staying.pop())
            plan.num_preempted += 1
            cache.make_room(headroom * len(staying))
            cache.make_room(cohort.blocks_due() * cache.page)
            if cache.num_blank >= cohort.blocks_due():
                break
        self._renumber(staying)
        self.num_preemptions += plan.num_preempted
        self.is_full = False
        room = cohort.num_produced() + headroom * len(staying)
        self.ratio = min(1.0, room / (cohort.num_declared() + 1))

    def _last_under_way(self) -> Plan | None:
        """The step that those who decode may be in."""
        return self._under_way[-1] if self._under_way else None

    def _give_way(self, victim: DeclaredSequence) -> None:
        """One loses its pages and what is under way of it, and goes to the end of the queue."""
        cohort = self.cohort
        under_way = self._last_under_way()
        if under_way is not None:
            under_way.forget(victim, was_decoding=victim.joined < cohort.steps)
        if cohort.done > victim.since:
            self.just_left.append(victim)
        cohort.leave(victim)
        self.cache.drop(victim.lease)
        victim.num_promised = victim.num_produced
        victim.num_computed = victim.prompt_end = 0
        victim.num_preemptions += 1
        self.waiting.append(victim)
