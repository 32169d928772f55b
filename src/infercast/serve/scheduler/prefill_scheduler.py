"""The prefill-first scheduler (SGLang), with separate prefill and decode steps.

Decoding stalls as long as a prefill step can be formed. A prefill batch joins the decode batch when the next step is
planned, at most one prompt is chunked, and a finished sequence stays in the batch until the next decode step. Once no
prompt could be added, none is tried again until a sequence has left.

A pipeline has one batch per stage, which take turns in a fixed order. Each keeps its own sequences and its own full
flag. The queue, the cache, the reserved share of outputs and the chunked prompt are common to all, so the chunks of a
prompt go through consecutive batches. When a batch is planned again, its last result has been processed.

A prompt's hits in the cache's host pages, if any, are loaded in the step that computes the rest of it, layer by layer
ahead of the kernels. They need room on the GPU like new tokens, but do not count towards the step's token limits.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from itertools import islice
from math import fsum
from typing import TYPE_CHECKING, cast

from infercast.errors import InputError
from infercast.serve.cache.radix_cache import RadixCache
from infercast.serve.scheduler.admission import (
    MOST_SORTED,
    PLACE,
    Admission,
    AdmissionOutcome,
    DeclaredSequence,
    EosFreeForecast,
    ReservingDecodeBatch,
    State,
    by_longest_match,
    state_of,
)
from infercast.serve.scheduler.base import RANK, AdapterLimit, Plan, PrefillFirstPolicy
from infercast.serve.scheduler.drafts import DraftBatch, DraftPlan
from infercast.serve.workload.request import Request

if TYPE_CHECKING:
    from infercast.serve.scheduler.encoder import EncoderCache


class RankedQueue(deque[DeclaredSequence]):
    """Waiting sequences in rank order."""

    def append(self, sequence: DeclaredSequence) -> None:
        if not self or self[-1].rank < sequence.rank:
            super().append(sequence)
        else:
            insort(self, sequence, key=RANK)

    def appendleft(self, sequence: DeclaredSequence) -> None:
        """A preempted sequence returns to its place by rank."""
        self.append(sequence)


class Batch:
    def __init__(self, cohort: ReservingDecodeBatch) -> None:
        self.cohort = cohort
        self.ended: list[DeclaredSequence] = []  # Finished sequences, which stay in the batch until decoding continues
        self.joining: Plan | None = None  # The prefill step whose sequences decode from the next step on ...
        self.fresh: list[DeclaredSequence] = []  # ... and those that have not decoded yet.
        self.is_full = False  # True if prompts are not tried until a sequence has left
        self.first_place = self.last_place = 0

    def started(self) -> list[DeclaredSequence]:
        """Sequences that decode, or will from the next step on."""
        joining = [] if self.joining is None else cast("list[DeclaredSequence]", self.joining.sampled)
        return [*self.cohort.members, *joining]


class PrefillScheduler:
    def __init__(
        self, policy: PrefillFirstPolicy, cache: RadixCache, steps_under_way: int = 2, max_model_len: int | None = None,
        *, num_batches: int = 1, drafts: DraftBatch | None = None, max_adapters: int | None = None,
    ) -> None:  # fmt: skip
        """``drafts``: the decode batch of an engine with speculative decoding, which has one."""
        self.policy, self.cache, self.drafts = policy, cache, drafts
        self.encoder: EncoderCache | None = None
        self.adapters = None if max_adapters is None else AdapterLimit(max_adapters, counts_base=True)
        cache.evicts_missing, cache.parts_answers = policy.rules.evicts_missing, policy.rules.parts_answers
        if cache.host is not None:
            cache.host.copies_paths, cache.host.counts_once = policy.rules.copies_paths, policy.rules.counts_once
        self.waiting: deque[DeclaredSequence] = deque() if policy.priorities is None else RankedQueue()
        self._num_queued = 0
        self._preempts = policy.priorities is not None and policy.priorities.preempts
        self.cut: DeclaredSequence | None = None  # The chunked prompt
        self.ratio = policy.first_ratio
        self.left_batch: list[DeclaredSequence] = []
        """Sequences retracted since the last check; their last token was in the last completed decode step."""
        self.num_preemptions = 0
        self._batches = [Batch(drafts or ReservingDecodeBatch(cache, policy)) for _ in range(num_batches)]
        self._turn = -1
        self.batch = self._batches[0]  # The batch being planned, or processed
        self._is_ring = num_batches > 1
        self._is_late = steps_under_way > 1 and not self._is_ring
        """True if results arrive only while the next step is in flight."""
        self._longest = cache.num_blocks * cache.page if max_model_len is None else max_model_len
        self._under_way: deque[tuple[Plan, Batch]] = deque()
        self._num_tries = 0

    @property
    def cohort(self) -> ReservingDecodeBatch:
        return self.batch.cohort

    @property
    def running(self) -> list[DeclaredSequence]:
        """Sequences that decode or are prefilled in chunks; in a pipeline, all that are not known to be done."""
        found = [*self.batch.cohort.members]
        if self._is_ring:
            found = [each for batch in self._batches for each in batch.started()]
        return found if self.cut is None else [*found, self.cut]

    def add(self, index: int, request: Request) -> None:
        page, num_input = self.cache.page, request.num_input
        room = self.cache.num_blocks * page - -(-num_input // page) * page - page - 1
        # Whatever was declared, the model or the cache limits the output.
        sequence = DeclaredSequence(index, request, self.cache, min(room, self._longest - 2 - num_input))
        sequence.adapter = request.adapter
        if request.images and self.encoder is not None:
            self.encoder.images[index] = request.images
        self._queue(sequence, request.priority)

    def _queue(self, sequence: DeclaredSequence, priority: int = 0) -> None:
        """Append a sequence to the queue; one that comes back keeps its priority."""
        if self.policy.priorities is not None:
            self._num_queued += 1
            first = sequence.rank[0] if sequence.num_preemptions else priority * self.policy.priorities.sign
            sequence.rank = first, self._num_queued
        self.waiting.append(sequence)

    # One step.

    def plan(self) -> Plan | None:
        """Plan the next step without the results of in-flight steps; None if nothing can be scheduled."""
        plan, host = Plan() if self.drafts is None else self.drafts.new_plan(), self.cache.host
        if self._is_ring:  # the next batch in turn
            self._turn = (self._turn + 1) % len(self._batches)
            self.batch = batch = self._batches[self._turn]
            if not (batch.cohort.members or batch.ended or batch.joining):
                batch.is_full = False  # no sequence is left whose end would reset it
        if host is not None:
            self.cache.settle()
        if self.cut is not None:
            self.cache.keep(self.cut.lease, self.cut.num_computed, is_part=True)
        batch, rules = self.batch, self.policy.rules
        if batch.joining is not None:
            self._merge(batch.joining)
        if rules.clears_ended and (batch.ended or not batch.cohort.members):
            batch.ended.clear()
            batch.is_full = False
        if self.policy.tries_always or self._preempts:
            batch.is_full = False
        may_start = self.cut is not None or (self.waiting and not batch.is_full)
        if not (may_start and self.plan_prompts(plan)):
            self._plan_decoding(plan)
        if plan.decodes or plan.sequences:
            plan.held = self.cache.num_held
            if self.adapters is not None:
                decoding = batch.cohort.members if plan.decodes else ()
                plan.has_adapters = any(each.adapter is not None for each in (*plan.sequences, *decoding))
            if self._is_ring and plan.decodes:
                # Other batches had their tokens in the previous step, so every sequence's own last token time counts.
                plan.fresh = [each for each in batch.cohort.members if each.last_step > batch.cohort.steps]
            return plan
        if not (self._under_way or self.waiting or self.running):
            self.ratio = self.policy.first_ratio
        return None

    @property
    def can_retry_now(self) -> bool:
        """True if a waiting request may start now that finished ones are known."""
        return bool(self.waiting) and not self.batch.is_full  # set by every prompt that did not fit

    def most_steps(self, plan: Plan) -> int:
        """How many times the step just planned can be repeated before a known change."""
        if self._is_ring or plan.sequences or plan.wasted:
            return 1
        if self.waiting and (self.policy.tries_always or self._preempts or not self.batch.is_full):
            return 1
        # A sequence with its last token is in one more step, which is otherwise the same.
        return self.batch.cohort.steps_left() + (self._is_late and not self.policy.rules.skips_ending)

    def plan_prompts(self, plan: Plan) -> bool:
        """Plan a prefill step, if one can be formed, with the decode batch in mixed chunks."""
        batch, cohort = self.batch, self.batch.cohort
        num_running = len(cohort.members) + len(batch.ended)
        places = self._places(num_running)
        if places <= 0 and self.cut is None and not self._preempts:
            batch.is_full = True
            return False
        admission = self._admit(plan, num_running, places)
        if not admission.sequences:
            return False
        self.cut = admission.cut
        self._schedule_prompts(plan, admission)
        plan.is_apart = True
        if self.drafts is not None:
            self.drafts.prefill(cast("DraftPlan", plan))
        if self.policy.mixed_chunk:
            skips = self.policy.rules.skips_ending
            if skips and ((self._is_late and self._skip_ending()) or batch.ended):
                batch.is_full = False
            batch.ended.clear()
            if cohort.members and (not skips or self._has_room()):
                plan.is_apart = False
                self._decode(plan)
        return True

    def _skip_ending(self) -> bool:
        """Take sequences with their last token in flight out of the decode batch, if there are any."""
        ending = self.batch.cohort.ending()
        if self.drafts is not None:  # otherwise the batch knows that the last token is in flight
            in_flight = self._under_way[-1][0].sequences if self._under_way else []
            ending = [each for each in ending if each in in_flight]
        for sequence in ending:
            self.batch.cohort.leave(sequence)
        return bool(ending)

    def _has_room(self) -> bool:
        """True if there are pages for a decode step, after evictions."""
        needed = self.batch.cohort.blocks_due()
        self.cache.make_room(needed * self.cache.page)
        return self.cache.num_blank >= needed

    def _places(self, num_running: int) -> int:
        """Free slots for prompts in a step: finished sequences still occupy one, and a chunked prompt has its own."""
        most = self.policy.max_running_requests
        cut = self.cut is not None and not self.policy.rules.counts_rows
        if not self._is_ring:
            return most - max(num_running, len(self.batch.cohort.members) + cut)
        # Each batch has its share of max_running_requests.
        started = [each for batch in self._batches for each in batch.started()]
        held = sum(each.joined >= 0 or each.num_produced < each.num_output for each in started)
        return min(max(1, most // len(self._batches)) - num_running, most - held - cut)

    def _admit(self, plan: Plan, num_running: int, places: int) -> Admission:
        preempted: list[DeclaredSequence] = []
        skipped: list[DeclaredSequence] = []
        batch, rules, adapters = self.batch, self.policy.rules, self.adapters
        admission = self._new_admission(num_running)
        if adapters is not None:
            adapters.begin([*batch.cohort.members, *admission.sequences])
        while self.waiting:
            if adapters is not None:
                if not adapters.has_slot(self.waiting[0]):
                    skipped.append(self.waiting.popleft())
                    continue
                adapters.add(self.waiting[0])
            count = len(admission.sequences)
            if rules.stops_when_spent and admission.state() is AdmissionOutcome.STOP:
                break
            if count >= places:
                batch.is_full = True
            if batch.is_full:
                found = self._preempt(admission, self.waiting[0]) if self._preempts else []
                if not found:
                    break
                preempted += found
                places += len(found)
                num_running -= len(found)
            answer = admission.ask(self.waiting[0])
            if len(admission.sequences) > count:
                self.waiting.popleft()
            if answer is AdmissionOutcome.NO_ROOM:
                batch.is_full = not rules.retries_alone or bool(admission.sequences or num_running)
            if answer is not AdmissionOutcome.NEXT:
                break
        self.waiting.extendleft(reversed(skipped))
        for sequence in preempted:
            self._queue(sequence)
        plan.num_preempted += len(preempted)
        self.num_preemptions += len(preempted)
        return admission

    def _new_admission(self, num_running: int) -> Admission:
        """The budget of a prefill step, less the next chunk of the chunked prompt; the queue is in order."""
        if self.policy.order == "longest_match":
            self.waiting = by_longest_match(self.waiting, self.cache)
        batch = self.batch
        if self.policy.rules.refreshes_waiting:
            self._refresh()
        longest, reserved = self.policy.max_reserved_output, batch.cohort.reserved(self.ratio)
        asked = 0
        for each in batch.ended:
            asked += min(each.num_declared - each.num_produced, longest)
        promised = fsum(self._shares()) if reserved is None else reserved + asked * self.ratio
        timed = self.policy.ignores_end and not self.cache.caching
        timetable = EosFreeForecast(self._states, self.ratio) if timed else None
        admission = Admission(self.policy, self.cache, num_running, promised, self._shares, timetable)
        if self.cut is not None:
            admission.go_on(self.cut)
        return admission

    def _preempt(self, admission: Admission, sequence: DeclaredSequence) -> list[DeclaredSequence]:
        """Make the last running sequences give way to one of better priority, if that leaves it room; returns them."""
        assert self.policy.priorities is not None
        batch, longest = self.batch, self.policy.max_reserved_output
        shares = dict(zip(sorted([*batch.cohort.members, *batch.ended], key=PLACE), self._shares(), strict=True))
        missing, victims = sequence.num_tried + min(sequence.num_declared, longest) - admission.room(), []
        for each in sorted(batch.cohort.members, key=lambda each: (-each.rank[0], -each.rank[1])):
            if each.rank[0] - sequence.rank[0] <= self.policy.priorities.threshold:
                break
            victims.append(each)
            missing -= shares[each]
            if missing <= 0:
                break
        if missing > 0:
            return []
        staying = len(shares)
        for each in sorted(victims, key=PLACE):
            admission.give_back(shares[each])
            staying -= 1
            self._give_way(each)
            self.cache.make_room(self.policy.retraction_headroom * staying)
        return victims

    def _refresh(self) -> None:
        """Now and then, cached prefixes of the first waiting requests count as accessed, the next one's last."""
        is_aware = self.policy.order == "longest_match" and len(self.waiting) <= MOST_SORTED
        if is_aware or not (self.waiting and self.cache.caching):
            return
        refreshed_every = 32
        if self._num_tries % refreshed_every == 0:
            for sequence in [*islice(self.waiting, MOST_SORTED)][::-1]:
                self.cache.match(sequence.lease, sequence.num_known)
        self._num_tries += 1

    def _schedule_prompts(self, plan: Plan, admission: Admission) -> None:
        """Add prompts to the plan, allocate their pages and count their tokens as computed."""
        cache, page = self.cache, self.cache.page
        if cache.host is not None:
            for sequence in admission.sequences:
                if not sequence.prompt_end:
                    missing = sequence.num_known - sequence.num_computed
                    found = admission.loaded.get(sequence, 0) * page
                    cache.host.note_start(sequence.index, missing, found, is_first=not sequence.num_preemptions)
        plan.sequences, plan.new_tokens = [*admission.sequences], admission.new_tokens
        plan.computed = [sequence.num_computed for sequence in admission.sequences]
        if self.encoder is not None:
            self.encoder.encode_all(plan)
        new_tokens = sum(admission.new_tokens)
        cache.make_room(new_tokens if page == 1 else new_tokens + len(admission.sequences) * page)
        for sequence, count in zip(admission.sequences, admission.new_tokens, strict=True):
            if not sequence.prompt_end:
                plan.started.append(sequence)
                sequence.num_cached = sequence.num_computed
                sequence.prompt_end = sequence.num_input + sequence.num_produced
            sequence.num_computed += count
            pages = -(-sequence.num_computed // page)
            cache.num_blank -= pages - sequence.lease.num_pages
            sequence.lease.num_pages = pages
            if sequence is not admission.cut:
                sequence.num_promised += 1
                plan.sampled.append(sequence)
        plan.num_cut = admission.cut is not None
        if cache.num_blank < 0:
            raise self._out_of_memory(f"{new_tokens:,} tokens of prompts")

    def _out_of_memory(self, what: str) -> InputError:
        """The failure of an over-committed engine; it cannot happen with one batch and no mixed chunks."""
        return InputError(
            f"the engine runs out of KV cache for {what} beside {len(self.running):,} running requests and would stop "
            "or abort one; lower chunked_prefill_size or max_running_requests, or give the cache more memory"
        )

    def _plan_decoding(self, plan: Plan) -> None:
        batch, cohort = self.batch, self.batch.cohort
        if batch.ended:
            batch.ended.clear()
            batch.is_full = False
        has_ending = self.policy.rules.skips_ending and self._is_late and self._skip_ending()
        if has_ending:
            batch.is_full = False
        if not cohort.members:
            return
        if not self._has_room():
            if has_ending:
                return
            self._retract(plan)
        else:
            self.decay()
        self._decode(plan)

    def _decode(self, plan: Plan) -> None:
        """A token for each member, some of which may have finished without the engine knowing."""
        batch, cohort = self.batch, self.batch.cohort
        if self.drafts is not None:
            self.drafts.verify(cast("DraftPlan", plan))
            batch.fresh.clear()
        else:
            plan.decodes = len(cohort.members)
            self.cache.take_for_decoding(cohort.blocks_due(), plan.decodes)
        if self.cache.num_blank < 0:
            raise self._out_of_memory(f"the next tokens of {len(cohort.members):,} requests")
        plan.decode_context, plan.contexts = cohort.computed, cohort.contexts
        plan.wasted = cohort.num_ended
        if batch.fresh:
            plan.fresh = [each for each in batch.fresh if each.joined >= 0 and each.last_step > each.joined]
            batch.fresh.clear()

    def _retract(self, plan: Plan) -> None:
        """Retract sequences with the fewest output tokens (with drafts the last of the batch) until there is room."""
        cohort, cache, headroom = self.cohort, self.cache, self.policy.retraction_headroom
        staying = cohort.in_order()
        if self.drafts is None or self.policy.rules.sorts_drafts:
            staying.sort(key=lambda each: (cohort.produced(each), -each.num_input), reverse=True)
        while len(staying) > 1:
            victim = staying.pop()
            self._give_way(victim)
            self._queue(victim)
            self.num_preemptions += 1
            plan.num_preempted += 1
            cache.make_room(headroom * len(staying))
            cache.make_room(cohort.blocks_due() * cache.page)
            if cache.num_blank >= cohort.blocks_due():
                break
        self.batch.first_place, self.batch.last_place = 0, len(staying)
        for place, sequence in enumerate(staying):
            sequence.place = place
        self.batch.is_full = False
        room = cohort.num_produced() + headroom * len(staying)
        self.ratio = min(1.0, room / (cohort.num_declared + 1))

    def _give_way(self, victim: DeclaredSequence) -> None:
        """Retract a sequence: free its pages and discard its in-flight tokens."""
        cohort = self.cohort
        if not self._is_ring:  # in a ring, nothing of the batch being planned is in flight
            if self._under_way:
                self._under_way[-1][0].forget(victim, was_decoding=victim.joined < cohort.steps)
            if cohort.done > victim.since:
                self.left_batch.append(victim)
        cohort.leave(victim)
        self.cache.drop(victim.lease)
        victim.num_promised = victim.num_produced
        victim.num_tried = victim.prompt_end
        victim.num_computed = victim.prompt_end = 0
        victim.num_preemptions += 1

    def abort(self, index: int) -> int:
        """Drop a request that its client has left, or end it with its first token; returns tokens computed for it."""
        computed = 0
        queued = next((each for each in self.waiting if each.index == index), None)
        if queued is not None:
            self.waiting.remove(queued)
            return 0
        planned = self.batch
        for batch in self._batches:
            found = next((each for each in batch.cohort.members if each.index == index), None)
            if found is not None and found not in batch.cohort.ending():
                self.batch = batch
                computed = found.num_computed + batch.cohort.steps - found.joined - found.num_cached
                self._give_way(found)
                batch.is_full = False
        self.batch = planned
        prompts = [self.cut] if self.cut is not None else []
        prompts += [each for plan, _ in self._under_way for each in cast("list[DeclaredSequence]", plan.sampled)]
        for each in prompts:
            if each.index == index and each.joined < 0:
                each.num_output = each.num_produced + 1
                computed = each.num_computed - each.num_cached
        return max(0, computed)

    def _merge(self, plan: Plan) -> None:
        """The last step's prompts decode from now on, except a chunked one with tokens left."""
        batch = self.batch
        batch.joining = None
        if plan.decodes and batch.ended:
            batch.ended.clear()
            batch.is_full = False
        was_empty = bool(plan.decodes) or not (batch.cohort.members or batch.ended)
        sampled = cast("list[DeclaredSequence]", plan.sampled)
        joining = [each for each in sampled if each.num_produced < each.num_output]
        if len(joining) < len(plan.sequences) or was_empty:
            batch.is_full = False
        # In a mixed step, prompts come first in the batch.
        place = batch.first_place - len(joining) if plan.decodes else batch.last_place
        batch.first_place, batch.last_place = min(place, batch.first_place), batch.last_place + len(joining)
        for number, sequence in enumerate(joining):
            sequence.place = place + number
            batch.cohort.join(sequence)
            batch.fresh.append(sequence)

    def decay(self, steps: int = 1) -> None:
        """Decay the reserved share of outputs, once per decode step."""
        ratio, decay, least = self.ratio, self.policy.ratio_decay, self.policy.least_ratio
        while steps and ratio != least:
            steps -= 1
            lower = ratio - decay
            ratio = lower if lower > least else least
        self.ratio = ratio

    def _in_batch(self) -> list[tuple[DeclaredSequence, int]]:
        """All sequences in the batch, in order, with the output tokens known of each."""
        batch, done = self.batch, self.batch.cohort.done
        return [
            (each, each.num_produced + (done - each.since if each.joined >= 0 else 0))
            for each in sorted([*batch.cohort.members, *batch.ended], key=PLACE)
        ]

    def _shares(self) -> list[float]:
        longest, ratio, knows_ends = self.policy.max_reserved_output, self.ratio, self.batch.cohort.knows_ends
        return [
            min(each.num_declared - produced, longest) * (1.0 if knows_ends and each.ignores_end else ratio)
            for each, produced in self._in_batch()
        ]

    def _states(self) -> list[State]:
        """Remaining and held tokens of each sequence in the batch."""
        return [state_of(*pair, self.ratio) for pair in self._in_batch()]

    # In-flight steps.

    def start(self, plan: Plan, steps: int = 1) -> list[int]:
        """Launch the step just planned this many times, all but the last completed; returns the pages held in each."""
        held, cohort = [plan.held], self.batch.cohort
        if steps > 1:
            held += cohort.grow(steps - 1)
            cohort.done += steps - 1
            self.decay(steps - 1)
        if plan.decodes:
            ending = cohort.advance(steps)
            plan.ending = [*ending]
            if steps > 1 and ending:  # some finished before the last repetition
                plan.early = [each for each in ending if each.last_step < cohort.steps]
                plan.ending = [each for each in ending if each.last_step == cohort.steps]
                plan.wasted = len(plan.early)
        if plan.is_apart or (plan.sequences and plan.decodes):
            self.batch.joining = plan
        self._under_way.append((plan, self.batch))
        return held

    def end_early(self, plan: Plan) -> None:
        """The second to last result has arrived; some sequences finished in it but are in the last step too."""
        for sequence in cast("list[DeclaredSequence]", plan.early):
            self._end(sequence)

    def complete(self, plan: Plan) -> list[DeclaredSequence]:
        """Process a completed step; returns the sequences that are done."""
        planned = self.batch
        _, self.batch = self._under_way.popleft()
        done = self._take_tokens(plan)
        self.batch = planned
        return done

    def _take_tokens(self, plan: Plan) -> list[DeclaredSequence]:
        cohort = self.batch.cohort
        if self.drafts is not None and not plan.is_apart:
            done = self.drafts.receive(cast("DraftPlan", plan))
            for sequence in done:
                self._end(sequence)
            return done
        if plan.decodes:
            cohort.done += 1
        if not (plan.sampled or plan.ending):
            return []
        done = cast("list[DeclaredSequence]", [*plan.ending])
        for sequence in cast("list[DeclaredSequence]", plan.sampled):
            produced = sequence.num_produced + 1
            if sequence.joined < 0:
                sequence.num_produced = produced
            elif not plan.decodes:  # otherwise the step counts for it as for the decode batch
                cohort.note_first(sequence)
            else:
                produced = cohort.produced(sequence)
            if produced < sequence.num_output:
                self.cache.keep(sequence.lease, sequence.prompt_end)
            else:
                self._end(sequence)
                done.append(sequence)
        for sequence in cast("list[DeclaredSequence]", plan.ending):
            self._end(sequence)
        return done

    def _end(self, sequence: DeclaredSequence) -> None:
        """Finish a sequence; the radix tree keeps what was computed, including a step too many."""
        if sequence.joined >= 0:
            self.batch.cohort.leave(sequence)
            self.batch.ended.append(sequence)
        most = sequence.num_input + sequence.num_output if self.policy.rules.keeps_answers else sequence.num_computed
        self.cache.finish(sequence.lease, min(most, sequence.num_computed))
        if self.drafts is None:  # the last drafts may be beyond the end
            sequence.num_produced = sequence.num_output
