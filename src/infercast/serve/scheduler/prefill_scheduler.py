"""The prefill-first scheduler: steps of prompts or of decoding; also on a pipeline and with a tiered KV cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, cast

from infercast.errors import InputError
from infercast.serve.cache.radix_cache import RadixCache, TieredCache
from infercast.serve.scheduler.admission import (
    PLACE,
    Admission,
    Answer,
    DeclaredSequence,
    DecodeBatch,
    State,
    Timetable,
    by_longest_match,
    state_of,
)
from infercast.serve.scheduler.base import Plan
from infercast.serve.scheduler.policy import PrefillFirst
from infercast.serve.workload.request import Request

# Who decodes, who waits and what is under way where prompts are computed in steps of their own.
#
# The books follow SGLang's: a batch of prompts joins those who decode when the next step is planned, one prompt at
# most
# is cut, and who has ended stays in the batch until the next step of decoding.


class PrefillBooks:
    """Sequences inside an engine, and the steps that compute them."""

    def __init__(
        self, policy: PrefillFirst, cache: RadixCache, steps_under_way: int = 2, max_model_len: int | None = None
    ) -> None:
        self.policy, self.cache = policy, cache
        self.waiting: deque[DeclaredSequence] = deque()
        self.cohort = DecodeBatch(cache, policy.longest_promise)
        self.cut: DeclaredSequence | None = None
        """The prompt that is computed in parts."""
        self.ended: list[DeclaredSequence] = []
        """Who has ended, and is in the batch until decoding goes on."""
        self.ratio = policy.first_ratio
        self.is_full = False
        """Whether prompts are not tried before somebody has left."""
        self.just_left: list[DeclaredSequence] = []
        """Who had to leave since somebody looked, and had its last token in the last step of decoding that ended."""
        self.num_preemptions = 0
        self._is_late = steps_under_way > 1
        """Whether results come when the next step is under way."""
        self._longest = cache.num_blocks * cache.page if max_model_len is None else max_model_len
        self._under_way: deque[Plan] = deque()
        self._joining: Plan | None = None
        """The step of prompts whose sequences will decode from the next one on ..."""
        self._fresh: list[DeclaredSequence] = []
        """... and those that have not yet."""
        self._first_place = self._last_place = 0

    @property
    def running(self) -> list[DeclaredSequence]:
        """Everybody who decodes or is computed in parts."""
        return [*self.cohort.members] if self.cut is None else [*self.cohort.members, self.cut]

    def add(self, index: int, request: Request) -> None:
        """Queue a request."""
        page, num_input = self.cache.page, request.num_input
        room = self.cache.num_blocks * page - -(-num_input // page) * page - page - 1
        # Nobody can ask for more than the model or the cache has room for, whatever was declared.
        longest = min(room, self._longest - 2 - num_input)
        self.waiting.append(DeclaredSequence(index, request, self.cache, longest))

    def start(self, plan: Plan, steps: int = 1) -> list[int]:
        """The step just planned is handed to the GPU so many times; returns the pages held in each.

        All but the last have ended when that one is under way.
        """
        held = [plan.held]
        if steps > 1:
            held += self.cohort.grow(steps - 1)
            self.cohort.done += steps - 1
            self._decay(steps - 1)
        if plan.decodes:
            ending = self.cohort.advance(steps)
            plan.ending = [*ending]
            if steps > 1 and ending:
                self._part(plan)
        if plan.sequences:
            self._joining = plan
        self._under_way.append(plan)
        return held

    def _part(self, plan: Plan) -> None:
        """Of those who have ended in repetitions of a step, tell who did before the last one."""
        steps = self.cohort.steps
        plan.early = [each for each in plan.ending if each.last_step < steps]
        plan.ending = [each for each in plan.ending if each.last_step == steps]
        plan.wasted = len(plan.early)

    def end_early(self, plan: Plan) -> None:
        """The result before the last one has come, in which some ended who are in the last step nevertheless."""
        for sequence in cast("list[DeclaredSequence]", plan.early):
            self._end(sequence)

    def complete(self, plan: Plan) -> list[DeclaredSequence]:
        """Take in the tokens that a finished step yields; returns the sequences that are done."""
        self._under_way.popleft()
        if plan.decodes:
            self.cohort.done += 1
        if not (plan.sampled or plan.ending):
            return []
        done = cast("list[DeclaredSequence]", [*plan.ending])
        for sequence in cast("list[DeclaredSequence]", plan.sampled):
            produced = sequence.num_produced + 1
            if sequence.joined < 0:
                sequence.num_produced = produced
            elif not plan.decodes:  # otherwise the step counts for it as it does for those who decode
                self.cohort.note_first(sequence)
            else:
                produced = self.cohort.produced(sequence)
            if produced < sequence.num_output:
                self.cache.keep(sequence.lease, sequence.prompt_end)
            else:
                self._end(sequence)
                done.append(sequence)
        for sequence in cast("list[DeclaredSequence]", plan.ending):
            self._end(sequence)
        return done

    def _end(self, sequence: DeclaredSequence) -> None:
        """A sequence has all its tokens; the tree keeps what was computed, a step too many included."""
        if sequence.joined >= 0:
            self.cohort.leave(sequence)
            self.ended.append(sequence)
        self.cache.finish(sequence.lease, sequence.num_computed)
        sequence.num_produced = sequence.num_output

    def _merge(self, plan: Plan) -> None:
        """The prompts of the last step decode from now on, but for the one of which a part is missing."""
        self._joining = None
        if plan.decodes and self.ended:
            self.ended.clear()
            self.is_full = False
        was_empty = bool(plan.decodes) or not (self.cohort.members or self.ended)
        sampled = cast("list[DeclaredSequence]", plan.sampled)
        joining = [each for each in sampled if each.num_produced < each.num_output]
        if len(joining) < len(plan.sequences) or was_empty:
            self.is_full = False
        # Beside those who decode, prompts come first in the batch.
        place = self._first_place - len(joining) if plan.decodes else self._last_place
        self._first_place, self._last_place = min(place, self._first_place), self._last_place + len(joining)
        for number, sequence in enumerate(joining):
            sequence.place = place + number
            self.cohort.join(sequence)
            self._fresh.append(sequence)

    def _renumber(self, batch: list[DeclaredSequence]) -> None:
        """Those who decode stand in another order from now on."""
        self._first_place, self._last_place = 0, len(batch)
        for place, sequence in enumerate(batch):
            sequence.place = place

    def _decay(self, steps: int = 1) -> None:
        """The share of answers that is promised becomes less with every step."""
        ratio, decay, least = self.ratio, self.policy.ratio_decay, self.policy.least_ratio
        while steps and ratio != least:
            steps -= 1
            ratio = max(ratio - decay, least)
        self.ratio = ratio

    def _batch(self) -> Iterable[tuple[DeclaredSequence, int]]:
        """Everybody in the batch, in order, with the tokens that are known of each."""
        for each in sorted([*self.cohort.members, *self.ended], key=PLACE):
            yield each, self.cohort.produced(each) if each.joined >= 0 else each.num_produced

    def _shares(self) -> list[float]:
        """What each in the batch is promised."""
        longest, ratio = self.policy.longest_promise, self.ratio
        return [min(each.num_declared - produced, longest) * ratio for each, produced in self._batch()]

    def _states(self) -> list[State]:
        """What each in the batch has left, and holds."""
        return [state_of(*pair, self.ratio) for pair in self._batch()]


# Decoding stands still as long as a step of prompts can be formed. Once no prompt could be added, none is tried again
# before somebody has left.


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


# Prompts first on a pipeline: as many batches as stages, which take their turns in a fixed order.
#
# Each batch has its own sequences, which stay in it, and its own memory of being full. The queue, the cache, the share
# of
# answers that is promised and the prompt that is cut are common to all, so the parts of one prompt go through batches
# that follow each other. When a batch is planned again, its last result has come.


class _Batch:
    """What one of the batches has for itself."""

    def __init__(self, cache: RadixCache, policy: PrefillFirst) -> None:
        self.cohort = DecodeBatch(cache, policy.longest_promise)
        self.ended: list[DeclaredSequence] = []
        self.fresh: list[DeclaredSequence] = []
        self.joining: Plan | None = None
        self.is_full = False
        self.places = (0, 0)
        """The first and the last that anybody in it has had."""

    def num_held(self) -> int:
        """Sequences that hold a place of the engine."""
        joining = [] if self.joining is None else self.joining.sampled
        return len(self.cohort.members) + sum(each.num_produced < each.num_output for each in joining)


class PrefillRing(PrefillScheduler):
    """The same scheduler, with one of several batches at a time."""

    def __init__(
        self, policy: PrefillFirst, cache: RadixCache, num_batches: int, max_model_len: int | None = None
    ) -> None:
        super().__init__(policy, cache, 1, max_model_len)
        self._batches = [_Batch(cache, policy) for _ in range(num_batches)]
        self._turn = -1
        self._turns: deque[int] = deque()
        """Whose steps are under way."""

    @property
    def running(self) -> list[DeclaredSequence]:
        """Everybody who has left the queue and is not known to be done."""
        self._save()
        found: list[DeclaredSequence] = [] if self.cut is None else [self.cut]
        for batch in self._batches:
            found += batch.cohort.members
            joining = [] if batch.joining is None else batch.joining.sampled
            found += [each for each in joining if isinstance(each, DeclaredSequence)]
        return found

    def plan(self) -> Plan | None:
        """Plan the next step of the batch whose turn it is."""
        self._load((self._turn + 1) % len(self._batches))
        plan = super().plan()
        if plan is not None and plan.decodes:
            # Others had their tokens in the step before, so everybody's last one counts.
            plan.fresh = [each for each in self.cohort.members if each.last_step > self.cohort.steps]
        return plan

    def most_steps(self, plan: Plan) -> int:
        """Batches take turns."""
        return 1

    def start(self, plan: Plan, steps: int = 1) -> list[int]:
        """The step just planned is handed to the GPUs."""
        self._turns.append(self._turn)
        return super().start(plan, steps)

    def complete(self, plan: Plan) -> list[DeclaredSequence]:
        """Take in the result of whoever was first."""
        turn = self._turn
        self._load(self._turns.popleft())
        done = super().complete(plan)
        self._load(turn)
        return done

    def _places(self, num_running: int) -> int:
        """Each batch has its share of the sequences that may run."""
        self._save()
        most = self.policy.max_running_requests
        held = sum(batch.num_held() for batch in self._batches) + (self.cut is not None)
        return min(max(1, most // len(self._batches)) - num_running, most - held)

    def _give_way(self, victim: DeclaredSequence) -> None:
        """One loses its pages; when it had its last token is known."""
        super()._give_way(victim)
        self.just_left.clear()

    def _last_under_way(self) -> Plan | None:
        """Nothing of the batch that is planned is."""
        return None

    def _load(self, turn: int) -> None:
        """Another batch is the one that is looked at."""
        self._save()
        batch = self._batches[turn]
        self._turn = turn
        self.cohort, self.ended, self._fresh = batch.cohort, batch.ended, batch.fresh
        self._joining, self.is_full = batch.joining, batch.is_full
        self._first_place, self._last_place = batch.places
        if not (self.cohort.members or self.ended or self._joining):
            self.is_full = False  # nobody can leave who would free it

    def _save(self) -> None:
        if self._turn >= 0:
            batch = self._batches[self._turn]
            batch.joining, batch.is_full = self._joining, self.is_full
            batch.places = (self._first_place, self._last_place)


# Prompts first, with a KV cache whose second tier is in the host's memory.
#
# What a prompt finds there is brought back in the step that computes the rest of it, layer by layer ahead of the
# kernels.
# It needs room on the GPU like new tokens, but none of the tokens of a step.


class TieredAdmission(Admission):
    """What is left of a step of prompts, where some of them are loaded."""

    def __init__(self, policy: PrefillFirst, cache: TieredCache, *others: Any) -> None:
        super().__init__(policy, cache, *others)
        self._tiers = cache
        self.loaded: dict[DeclaredSequence, int] = {}
        """Pages that come from the host, of each prompt that has some."""

    def _of_others(self, sequence: DeclaredSequence, missing: int) -> Answer:
        """As without a tier; what the host has is loaded even if the step turns out to be full."""
        tiers, page, lease = self._tiers, self._page, sequence.lease
        to_load = tiers.num_to_load(lease) * page if sequence.num_computed else 0
        left = min(sequence.num_declared - sequence.num_produced, self._policy.longest_promise)
        needed, in_pages = missing + to_load + left + page, self._in_pages(missing)
        if self._lacks(needed):
            return Answer.NO_ROOM
        if self._of_chunk is None and self.sequences and in_pages >= self._of_step:
            return Answer.STOP
        if sequence.num_computed:
            tiers.hold(lease)
            if self._lacks(needed):
                return Answer.NO_ROOM
            if to_load:
                tiers.load(lease)
        if self._of_chunk is None or in_pages <= self._of_chunk:
            self._add(sequence, missing, missing)
        elif (part := self._of_chunk // page * page) > 0:
            self._add(sequence, part, missing)
        else:
            return Answer.STOP
        if to_load:
            self.loaded[sequence] = to_load // page
        return Answer.NEXT


class TieredScheduler(PrefillScheduler):
    """Decides what each step computes and loads."""

    admission = TieredAdmission

    def __init__(self, policy: PrefillFirst, cache: TieredCache, *others: Any) -> None:
        super().__init__(policy, cache, *others)
        self.tiers = cache
        self.loaded: dict[int, int] = {}
        """Of each request that found some of its tokens in the host's memory when it first started, how many."""
        self.new_loads: list[int] = []
        """Requests of the step just planned some of whose pages are brought back."""
        self.num_queried = self.num_hit = 0
        """Tokens that the GPU did not have, of prompts that started, and those of them that the host had."""

    def plan(self) -> Plan | None:
        """Plan the next step; parts of prompts that are taken in first are not copied to the host yet."""
        self.new_loads = []
        self.tiers.settle()
        self.tiers.takes_parts = True
        plan = super().plan()
        self.tiers.takes_parts = False
        return plan

    def _put(self, plan: Plan, admission: Admission) -> None:
        loaded, page = cast("TieredAdmission", admission).loaded, self.cache.page
        for sequence in admission.sequences:
            if sequence.prompt_end:
                continue
            count = loaded.get(sequence, 0)
            self.num_queried += sequence.num_known - sequence.num_computed + count * page
            self.num_hit += count * page
            if count and not sequence.num_preemptions:
                self.loaded[sequence.index] = count * page
                self.new_loads.append(sequence.index)
        super()._put(plan, admission)
