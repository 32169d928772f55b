"""The loop of a plain run of a prefill-first engine (SGLang), as `infercast.serve.plain` is that of the other kind.

Prompts share nothing, so its radix tree stays empty: the cache is a number of pages that are blank, or could be
evicted. Prompts are admitted by the scheduler, steps have no plans otherwise. Times and totals have the same bits as
those of `Loop` with `PrefillScheduler`. If a request is retracted, the run is `NotPlain`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple, cast

from infercast.serve.loop import Loop, worth_timing
from infercast.serve.plain import OBEYED, NotPlain, RepeatedStep
from infercast.serve.record import MOST_NOTED_ENDS, Numbers
from infercast.serve.scheduler.admission import DeclaredSequence
from infercast.serve.scheduler.base import Plan
from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler
from infercast.serve.step import StepEstimate

Sequences = list[DeclaredSequence]


class BatchInFlight(NamedTuple):
    end: float
    process: float  # Seconds to process its result
    num_tokens: int
    prompts: Sequences | None  # What a step of prompts samples; None: it decodes
    ending: Sequences  # Those that get their last token
    fresh: Sequences  # Those that have not decoded before


OBEYED_HERE = OBEYED | {
    *("max_running_requests", "chunked_prefill_size", "max_prefill_tokens", "order", "max_prompts", "rules"),
    *("first_ratio", "least_ratio", "ratio_decay", "max_reserved_output", "ignores_end"),
    *("retraction_headroom", "parts_answers"),  # of requests that are retracted, and of prompts that share
    *("evicts_missing", "spares_page", "skips_ending", "reserves_fixed", "refreshes_waiting", "retries_alone"),
    *("clears_ended", "counts_rows", "stops_when_spent"),
    *("sorts_drafts", "keeps_answers", "copies_paths", "counts_once"),  # of drafts, and of pages on the host
}
"""As in `infercast.serve.plain`, with the fields of the policy's rules."""


class PlainPrefillLoop:
    """One engine as far as it has come, in the place of ``loop`` and with its parts."""

    def __init__(self, loop: Loop, scheduler: PrefillScheduler) -> None:
        self.loop, self.record, self.timer, self.timeline = loop, loop.record, loop.timer, loop.timeline
        self.clients = loop.clients
        self.scheduler, self.cache, self.batch = scheduler, scheduler.cache, scheduler.batch
        self.cohort, policy, self.rules = scheduler.cohort, scheduler.policy, scheduler.policy.rules
        self.most_tokens = min(policy.max_num_batched_tokens, policy.max_prefill_tokens - 1)
        self.flying: BatchInFlight | None = None
        self.step_seconds = 1e-6  # Duration of the last decode step
        self.fresh: Sequences = []  # Those that have not decoded yet
        self.skipped: Sequences = []  # Those whose last token is in flight, and that have left the batch

    def events(self) -> Iterator[float]:
        """As those of `Loop`, or `NotPlain`."""
        clients, timeline, record = self.clients, self.timeline, self.record
        batch, scheduler = self.batch, self.scheduler
        while True:
            if clients.wait_for_answers:  # or there are several engines
                yield timeline.clock
            if len(record.ends) >= MOST_NOTED_ENDS:
                record.write()
            arrival = clients.next_arrival
            if arrival is not None and arrival <= timeline.clock:
                arrival = self.loop.admit_arrivals(scheduler.add)
            if self.rules.clears_ended and (batch.ended or not self.cohort.members):
                batch.ended, batch.is_full = [], False
            if (scheduler.cut is not None or (scheduler.waiting and not batch.is_full)) and self._compute():
                continue
            if self._can_decode():
                ahead = self._look_ahead(arrival)
                if ahead is None:
                    continue
                if clients.wait_for_answers:  # a client may still send a request that arrives earlier
                    record.ahead = ahead.repeated[2], ahead.numbers[0], ahead.numbers[0]
                    yield ahead.repeated[2][-1]
                    record.ahead = None
                self._repeat(ahead)
            elif self.flying is not None:
                step, self.flying = self.flying, None
                self._complete_step(step, timeline.take_in(step.end, step.process))
            elif not scheduler.can_retry_now:
                scheduler.ratio = scheduler.ratio if scheduler.waiting else scheduler.policy.first_ratio
                if arrival is None:
                    record.close(0)
                    return
                timeline.sleep_until(arrival + self.loop.wake_up_seconds)

    def _compute(self) -> bool:
        """Launch a step of prompts, which decode from the next one on; False: none can be started."""
        timeline, scheduler, record, batch, cohort = self.timeline, self.scheduler, self.record, self.batch, self.cohort
        sampled = started = self._all_that_wait()
        if sampled:
            prefills = [(each.num_input, 0) for each in sampled]
        elif scheduler.plan_prompts(plan := Plan()):
            prefills, sampled, started = plan.prefills, cast("Sequences", plan.sampled), cast("Sequences", plan.started)
        else:
            return False
        count, tokens, before, ending = len(prefills), 0, 0, list[DeclaredSequence]()
        for new, computed in prefills:
            tokens += new
            before += computed
        estimate = self.timer.compute(prefills, count, 0, 0, list)
        if tokens > count:
            estimate = self.loop.conditions.meet(estimate, timeline.clock, timeline.gpu_free)
        numbers = count, len(scheduler.waiting), tokens, before, count
        start = self._launch(numbers, estimate, len(sampled), sampled, ending)
        for sequence in started:
            record.started_at[sequence.index] = start
        if scheduler.cut is not None or not (cohort.members or batch.ended):
            batch.is_full = False
        for sequence in sampled:
            sequence.place = batch.last_place
            batch.last_place += 1
            cohort.join(sequence)
            (ending if sequence.num_output == 1 else self.fresh).append(sequence)
        return True

    def _all_that_wait(self) -> Sequences:
        """All requests that wait, if they can start as a whole, with room for whatever any other may produce."""
        scheduler, cohort, num_ended, page = self.scheduler, self.cohort, len(self.batch.ended), self.cache.page
        policy, waiting, tokens = scheduler.policy, scheduler.waiting, 0
        for sequence in waiting:
            tokens += -(-sequence.num_input // page) * page
            if tokens > self.most_tokens:
                return []
        count, most = len(waiting), policy.max_running_requests - len(cohort.members) - num_ended
        most = most if policy.max_prompts is None else min(most, policy.max_prompts)
        reserved = cohort.num_declared + (num_ended + count) * policy.max_reserved_output + (1 + count) * page
        if scheduler.cut is not None or count > most or reserved + tokens >= self.cache.num_blank * page:
            return []
        started = [*waiting]
        waiting.clear()
        for sequence in started:
            sequence.num_computed = sequence.prompt_end = sequence.num_input
            sequence.num_promised, sequence.lease.num_pages = 1, -(-sequence.num_input // page)
        self.cache.num_blank -= tokens // page
        return started

    def _can_decode(self) -> bool:
        """Take the pages of a step of decoding; False if there is none, or none before other requests have ended."""
        batch, cohort = self.batch, self.cohort
        if batch.ended:
            batch.ended, batch.is_full = [], False
        if cohort.num_ended and self.rules.skips_ending:
            self.skipped = cohort.ending()
            for sequence in self.skipped:
                cohort.leave(sequence)
                batch.is_full = False
        needed = cohort.blocks[(cohort.steps + 1) % self.cache.page]
        if needed > self.cache.num_blank:
            if self.skipped:
                return False
            raise NotPlain
        self.cache.num_blank -= needed
        return bool(cohort.members)

    def _look_ahead(self, arrival: float | None) -> RepeatedStep | None:
        """Time a step of decoding alone, repeated until the batch changes; None if it was launched once."""
        timeline, before, steps, scheduler, cohort = self.timeline, self.flying, 1, self.scheduler, self.cohort
        count, waiting, cache = len(cohort.members), scheduler.waiting, self.cache
        if before is not None and not (timeline.slept or cohort.num_ended or (waiting and not self.batch.is_full)):
            is_next = before.prompts is None and before.ending and (waiting or self.clients.sends_at_once)
            steps = 1 if is_next else cohort.steps_left() + (not self.rules.skips_ending)
            steps = worth_timing(steps, arrival, timeline.clock, self.step_seconds)
        numbers, held = (count, len(waiting), count, cohort.computed, count), cache.num_blocks - cache.num_blank
        estimate = self.timer.decode(count, cohort.computed, cohort.contexts, steps)
        if before is None or len(estimate.gpu_seconds) == 1:
            scheduler.decay(1)
            self._launch(numbers, estimate, count - cohort.num_ended, None, cohort.advance(1))
            return None
        repeated = timeline.repeat(estimate.host, estimate.gpu_seconds, before.process)
        self._complete_step(before, repeated[2][0])
        steps = 1 + cohort.steps_with_room(len(estimate.gpu_seconds) - 1)
        if steps < len(estimate.gpu_seconds):
            seconds, ends, clocks = repeated
            repeated = seconds[:steps], ends[:steps], clocks[:steps]
        return tuple.__new__(RepeatedStep, (numbers, estimate, repeated, held, (0, 0)))

    def _repeat(self, ahead: RepeatedStep) -> None:
        """Launch the same step again and again, until a request comes."""
        numbers, estimate, (seconds, ends, clocks), held, _ = ahead
        timeline, record, count, arrival = self.timeline, self.record, numbers[0], self.clients.next_arrival
        if arrival is not None and arrival <= clocks[-1]:
            steps = 1 + bisect_left(clocks, arrival)
            seconds, clocks = seconds[:steps], clocks[:steps]
        steps, cohort = len(seconds), self.cohort
        record.decoding.note(numbers, estimate, seconds, [held, *cohort.grow(steps - 1)])
        self.step_seconds, timeline.clock, timeline.gpu_free = seconds[-1], clocks[-1], ends[steps - 1]
        self.scheduler.decay(steps)
        cohort.done += steps - 1
        ending, times, fresh, self.fresh = cohort.advance(steps), clocks[1:], self.fresh, []
        if times and (fresh or record.decoded_at != record.last_end):
            record.tokens(times[0], count, fresh, ())
            fresh = []
            del times[0]
        record.steady_tokens(count, times)
        early = [each for each in ending if each.last_step < cohort.steps] if ending else ending
        if early:
            ending = [each for each in ending if each.last_step == cohort.steps]
            self._end(early)
        flying = ends[steps - 1], estimate.host.process, count - len(early), None, ending, fresh
        self.flying = tuple.__new__(BatchInFlight, flying)

    def _launch(
        self, numbers: Numbers, estimate: StepEstimate, tokens: int, prompts: Sequences | None, ending: Sequences
    ) -> float:
        """A single step, and the result of the one before; returns when it starts."""
        record, host, fresh = self.record, estimate.host, list[DeclaredSequence]()
        if prompts is None:
            fresh, self.fresh = self.fresh, fresh
        span = self.timeline.launch(host, estimate.gpu_seconds[0])
        phase = record.prefilling if numbers[2] > numbers[0] else record.decoding
        phase.note(numbers, estimate, [span.seconds], [self.cache.num_blocks - self.cache.num_blank])
        flying = span.end, host.process, tokens, prompts, ending, fresh
        before, self.flying = self.flying, tuple.__new__(BatchInFlight, flying)
        if before is not None:
            self._complete_step(before, self.timeline.take_in(before.end, before.process))
        return span.start

    def _complete_step(self, step: BatchInFlight, end: float) -> None:
        _, _, count, prompts, ending, fresh = step
        if prompts is None:
            self.cohort.done += 1
            self.record.tokens(end, count, fresh, ())
        else:
            for sequence in prompts:
                if sequence.joined >= 0:
                    self.cohort.note_first(sequence)
            self.record.tokens(end, count, prompts, (), (), True)
        if ending:
            self._end(ending)

    def _end(self, ending: Sequences) -> None:
        """Clients have their last tokens, and pages are free."""
        record, time = self.record, self.record.last_end
        for sequence in ending:
            if sequence.joined >= 0:
                self.cohort.leave(sequence)
                self.batch.ended.append(sequence)
            self.cache.num_blank += sequence.lease.num_pages
            sequence.num_produced = sequence.num_output
            record.last_token[sequence.index] = time
            record.num_output[sequence.index] = sequence.num_output
            self.clients.answer(time, sequence.index)
        self.skipped = []
