"""The loop of an engine's host thread: take in requests, plan and launch a step, take in a result.

Like vLLM's engine core, it keeps up to two steps under way when scheduling is asynchronous: the next one is planned
when the result before the one that runs has been taken in, so a request that arrives during a step joins the one
after the next. A step that can be repeated is, as one turn of the loop, until something changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple, Protocol

from infercast.serve.conditions import Conditions
from infercast.serve.first_use import NOTHING_NEW, FirstUses
from infercast.serve.record import Record
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.scheduler.sequence import Plan
from infercast.serve.step import StepEstimate, StepShape, StepTimer, groups_of
from infercast.serve.timeline import Span, Timeline
from infercast.serve.workload.source import Source

Progress = Callable[[int, float], None]
"""Told how many requests have been sent, and the simulated seconds."""
Observer = Callable[[Scheduler, Plan], None]

TELL_EVERY = 1024
"""Requests between two tellings of progress."""
MOST_STEPS = 512
"""Steps that are timed at once where nothing tells when the next request comes."""


class UnderWay(NamedTuple):
    """A step that the GPU has not finished."""

    end: float
    """When it will."""
    process: float
    """What the host needs to take its result in."""
    plan: Plan | None
    """None: nobody could be computed, but in a pipeline the step takes its place all the same."""


class Started(NamedTuple):
    """A step that was just handed to the GPU."""

    plan: Plan
    shape: StepShape | None
    numbers: tuple[int, int, int, int, int]
    """Sequences in it, sequences that wait, tokens, context and sampled rows."""
    estimate: StepEstimate
    span: Span
    held: int
    """KV blocks."""


class Watcher(Protocol):
    """Told of every step when it is handed to the GPU, one by one or in stretches of decoding."""

    def step(self, plan: Plan, shape: StepShape, estimate: StepEstimate, span: Span, held: SequenceOf[int]) -> None:
        """One step, and the KV blocks held in it; the plan does not name those that decode together."""

    def stretch(self, shape: StepShape, estimate: StepEstimate, ends: SequenceOf[float], held: SequenceOf[int]) -> None:
        """Steps of one decoding batch in a row, when the GPU is done with each, and the KV blocks held in it; the
        estimate may hold more.
        """


class Loop:
    """One engine while it runs."""

    def __init__(
        self,
        scheduler: Scheduler,
        clients: Source,
        record: Record,
        timer: StepTimer,
        steps_under_way: int,
        *,
        timeline: Timeline | None = None,
        conditions: Conditions | None = None,
        first_uses: FirstUses | None = None,
        wake_up_seconds: float = 0.0,
        jump: bool = True,
        keeps_pace: bool = False,
        observe: Observer | None = None,
        progress: Progress | None = None,
        watch: Watcher | None = None,
    ) -> None:
        """``keeps_pace``: where requests wait but none can be computed, an empty step takes its place (pipelines)."""
        self.scheduler, self.clients, self.record = scheduler, clients, record
        self.timer, self.steps_under_way = groups_of(timer), steps_under_way
        self.timeline, self.conditions = timeline or Timeline(), conditions or Conditions()
        self.first_uses, self.wake_up_seconds = first_uses, wake_up_seconds
        self.jump, self.keeps_pace = jump, keeps_pace
        self.observe, self.progress, self.watch = observe, progress, watch
        self.under_way: deque[UnderWay] = deque()
        self.is_ahead = False
        """Whether the clock told last is one that steps would get to if no request came before."""
        self._step_seconds = 1e-6
        """How long a step of decoding took last."""

    def turns(self) -> Iterator[float]:
        """Turn by turn: the clock before each, and an end when no client will send again.

        Whoever drives several engines gives the next turn to the one whose clock is furthest behind.
        """
        scheduler, places = self.scheduler, self.steps_under_way
        while True:
            yield self.timeline.clock
            arrival = self._take_in_requests()
            plan = scheduler.plan()
            if scheduler.just_left:
                self.record.note_last_tokens(scheduler.just_left)
                scheduler.just_left.clear()
            if plan is None:
                if not self._is_idle(arrival):
                    continue
                self.record.close(scheduler.num_preemptions)
                return
            repeats = scheduler.most_repeats(plan) if self.jump else 0
            step = self._start(plan, self._worth_timing(repeats, arrival) if repeats else 1)
            if len(self.under_way) == places:
                has_ended = self._finish()
                if repeats and not (has_ended and self._may_change()):
                    yield from self._repeat(plan, step)
                    continue
            self._note(step, [step.span.seconds], [step.held])

    def _take_in_requests(self) -> float | None:
        """Queue the requests that have arrived; returns when the next one will."""
        clients, clock = self.clients, self.timeline.clock
        while (arrival := clients.next_arrival) is not None and arrival <= clock:
            index, request, sent = clients.pop()
            self.scheduler.add(index, request)
            self.record.sent_at[index] = sent
            if self.progress is not None and index % TELL_EVERY == 0:
                self.progress(index, clock)
        return arrival

    def _is_idle(self, arrival: float | None) -> bool:
        """Nothing can be computed: wait for a result or a request. True if none is to come."""
        scheduler, has_work = self.scheduler, bool(self.under_way)
        if self.keeps_pace and (scheduler.running or scheduler.waiting):
            self.under_way.append(UnderWay(0.0, 0.0, None))
            if len(self.under_way) == self.steps_under_way:
                self._finish()
        elif has_work:
            self._finish()
        elif arrival is None:
            return True
        else:
            self.timeline.sleep_until(arrival + self.wake_up_seconds)
        return False

    def _start(self, plan: Plan, steps: int) -> Started:
        """Time a planned step, and so many in a row, and hand it to the GPU."""
        scheduler, timeline, context = self.scheduler, self.timeline, plan.decode_context
        numbers = (plan.decodes, len(scheduler.waiting), plan.decodes, context, plan.decodes)
        shape = plan.shape if self.watch is not None or self.first_uses is not None else None
        if plan.sequences:
            tokens, total = plan.decodes + sum(plan.new_tokens), context + sum(plan.computed)
            numbers = (plan.num_sequences, len(scheduler.waiting), tokens, total, plan.num_sampled)
            estimate = self.timer.compute(plan.beside, len(plan.sampled), plan.decodes, context, plan.contexts)
            if numbers[2] > numbers[0]:
                estimate = self.conditions.meet(estimate, timeline.clock, timeline.gpu_free)
        else:
            estimate = self.timer.decode(plan.decodes, context, plan.contexts, steps)
        scheduler.start(plan)
        news = NOTHING_NEW if self.first_uses is None or shape is None else self.first_uses.meet(shape)
        span = timeline.launch(estimate.host, estimate.gpu_seconds[0], news, plan)
        self.under_way.append(UnderWay(span.end, estimate.host.process, plan))
        if plan.started:
            self.record.start(plan.started, span.start)
        if self.observe is not None:
            self.observe(scheduler, plan)
        return Started(plan, shape, numbers, estimate, span, scheduler.cache.num_held)

    def _worth_timing(self, repeats: int, arrival: float | None) -> int:
        """Steps until the batch changes or, by the length of the last step, the next request comes."""
        before = self.under_way[0].plan if self.under_way else None
        if before is not None and before.ending and self._may_change():
            return 1
        steps = repeats + 1 if repeats < MOST_STEPS else MOST_STEPS
        if arrival is not None:
            coming = 2 + int(1.1 * (arrival - self.timeline.clock) / self._step_seconds)
            steps = coming if coming < steps else steps
        return steps

    def _may_change(self) -> bool:
        """Whether the end of a request may let another one start."""
        return bool(self.scheduler.waiting) or self.clients.wait_for_answers

    def _repeat(self, plan: Plan, step: Started) -> Iterator[float]:
        """The same step again and again, before the next request comes; it may still be sent until the clock told."""
        timeline, under_way, estimate = self.timeline, self.under_way, step.estimate
        seconds: list[float] = []
        held: list[int] = []
        if len(estimate.gpu_seconds) > 1:
            host, gpu_seconds = estimate.host, estimate.gpu_seconds[1:]
            seconds, ends, clocks = timeline.run_ahead(host, gpu_seconds, under_way, self.steps_under_way)
            self.is_ahead = True
            yield clocks[-1]
            self.is_ahead = False
            steps = self._before_arrival(clocks)
            held = self.scheduler.repeat(plan, steps) if steps else held
        steps = len(held)
        self._note(step, [step.span.seconds, *seconds[:steps]], [step.held, *held], ends[:steps] if steps else ())
        if not steps:
            return
        self._step_seconds = seconds[steps - 1]
        timeline.jump(clocks[steps - 1], ends[steps - 1])
        last = UnderWay(ends[steps - 1], estimate.host.process, plan)
        if under_way:  # whose result is taken in while the first repetition runs
            self.record.steady_tokens(plan.decodes, clocks[:steps])
            under_way[0] = last
        else:
            self.record.steady_tokens(plan.decodes, clocks[: steps - 1])
            self._take_in(last, clocks[steps - 1])

    def _before_arrival(self, clocks: list[float]) -> int:
        """Of repetitions after which the host is free at these times, those that are planned before a request comes."""
        arrival = self.clients.next_arrival
        if arrival is None:
            return len(clocks)
        if arrival <= self.timeline.clock:
            return 0
        return min(len(clocks), 1 + bisect_left(clocks, arrival))

    def _note(self, step: Started, seconds: list[float], held: list[int], further_ends: SequenceOf[float] = ()) -> None:
        """Write down a step and its repetitions."""
        numbers, estimate = step.numbers, step.estimate
        phase = self.record.prefilling if numbers[2] > numbers[0] else self.record.decoding
        phase.note(numbers, estimate, seconds, held)
        if self.watch is not None and step.shape is not None:
            if further_ends:
                self.watch.stretch(step.shape, estimate, [step.span.end, *further_ends], held)
            else:
                self.watch.step(step.plan, step.shape, estimate, step.span, held)

    def _finish(self) -> bool:
        """Wait for the oldest step under way and take its result in; whether a request has ended with it."""
        step = self.under_way.popleft()
        if step.plan is None:
            return False
        return self._take_in(step, self.timeline.take_in(step.end, step.process))

    def _take_in(self, step: UnderWay, time: float) -> bool:
        """The result of a step is there: tokens leave, and sequences that have all of theirs end."""
        plan = step.plan
        assert plan is not None
        done = self.scheduler.complete(plan)
        self.record.tokens(time, plan.num_sampled, plan.sampled, done, plan.left)
        for _ in done:
            self.clients.answer(self.record.last_end)
        return bool(done)
