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
from typing import Protocol

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

Numbers = tuple[int, int, int, int, int]
"""Of a step: sequences in it, sequences that wait, tokens, context and sampled rows."""

TELL_EVERY = 1024
"""Requests between two tellings of progress."""
MOST_STEPS = 512
"""Steps that are timed at once where nothing tells when the next request comes."""


class Step:
    """A step that was handed to the GPU, or the last of several that repeat it."""

    __slots__ = ("end", "estimate", "held", "numbers", "plan", "process", "shape", "span")

    def __init__(self, plan: Plan, numbers: Numbers, estimate: StepEstimate, span: Span, held: int) -> None:
        self.plan, self.numbers, self.estimate, self.span = plan, numbers, estimate, span
        self.held = held
        """KV blocks."""
        self.end = span.end
        """When the GPU is done with it."""
        self.process = estimate.host.process
        """What the host needs to take its result in."""
        self.shape: StepShape | None = None
        """The same as the numbers, where somebody asked for it."""


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
        self.under_way: deque[Step | None] = deque()
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
                if len(step.estimate.gpu_seconds) > 1 and not (has_ended and self._may_change()):
                    yield from self._repeat(step)
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
            self.under_way.append(None)
            if len(self.under_way) == self.steps_under_way:
                self._finish()
        elif has_work:
            self._finish()
        elif arrival is None:
            return True
        else:
            self.timeline.sleep_until(arrival + self.wake_up_seconds)
        return False

    def _start(self, plan: Plan, steps: int) -> Step:
        """Time a planned step, and so many in a row, and hand it to the GPU."""
        scheduler, timeline, decodes, context = self.scheduler, self.timeline, plan.decodes, plan.decode_context
        shape = plan.shape if self.watch is not None or self.first_uses is not None else None
        if plan.sequences:
            sampled, tokens = len(plan.sampled), decodes + sum(plan.new_tokens)
            sequences, total = decodes + len(plan.sequences), context + sum(plan.computed)
            numbers = (sequences, len(scheduler.waiting), tokens, total, decodes + sampled)
            estimate = self.timer.compute(plan.beside, sampled, decodes, context, plan.contexts)
            if tokens > sequences:
                estimate = self.conditions.meet(estimate, timeline.clock, timeline.gpu_free)
        else:
            numbers = (decodes, len(scheduler.waiting), decodes, context, decodes)
            estimate = self.timer.decode(decodes, context, plan.contexts, steps)
        scheduler.start(plan)
        news = NOTHING_NEW if self.first_uses is None or shape is None else self.first_uses.meet(shape)
        span = timeline.launch(estimate.host, estimate.gpu_seconds[0], news, plan)
        step = Step(plan, numbers, estimate, span, scheduler.cache.num_held)
        step.shape = shape
        self.under_way.append(step)
        if plan.started:
            self.record.start(plan.started, span.start)
        if self.observe is not None:
            self.observe(scheduler, plan)
        return step

    def _worth_timing(self, repeats: int, arrival: float | None) -> int:
        """Steps until the batch changes or, by the length of the last step, the next request comes."""
        before = self.under_way[0] if self.under_way else None
        if before is not None and before.plan.ending and self._may_change():
            return 1
        steps = repeats + 1 if repeats < MOST_STEPS else MOST_STEPS
        if arrival is not None:
            coming = 2 + int(1.1 * (arrival - self.timeline.clock) / self._step_seconds)
            steps = coming if coming < steps else steps
        return steps

    def _may_change(self) -> bool:
        """Whether the end of a request may let another one start."""
        return bool(self.scheduler.waiting) or self.clients.wait_for_answers

    def _repeat(self, step: Step) -> Iterator[float]:
        """The same step again and again, before the next request comes; it may still be sent until the clock told."""
        timeline, plan, estimate = self.timeline, step.plan, step.estimate
        held: list[int] = []
        if steps := self.scheduler.cohort.steps_with_room(len(estimate.gpu_seconds) - 1):
            is_under_way, gpu_seconds = bool(self.under_way), estimate.gpu_seconds[1 : steps + 1]
            seconds, ends, clocks = timeline.repeat(estimate.host, gpu_seconds, ahead=is_under_way)
            self.is_ahead = True
            yield clocks[-1]
            self.is_ahead = False
            steps = self._before_arrival(clocks)
            held = self.scheduler.repeat(plan, steps) if steps else held
        if not held:
            self._note(step, [step.span.seconds], [step.held])
            return
        if (steps := len(held)) < len(seconds):
            seconds, ends, clocks = seconds[:steps], ends[:steps], clocks[:steps]
        self._note(step, [step.span.seconds, *seconds], [step.held, *held], ends)
        self._step_seconds = seconds[-1]
        step.end = ends[-1]
        timeline.jump(clocks[-1], ends[-1])
        if is_under_way:  # its result is taken in while the first repetition runs, and so on
            self.record.steady_tokens(plan.decodes, clocks)
        else:
            self.record.steady_tokens(plan.decodes, clocks[:-1])
            self._take_in(step, clocks[-1])

    def _before_arrival(self, clocks: list[float]) -> int:
        """Of repetitions after which the host is free at these times, those that are planned before a request comes."""
        arrival = self.clients.next_arrival
        if arrival is None:
            return len(clocks)
        if arrival <= self.timeline.clock:
            return 0
        return min(len(clocks), 1 + bisect_left(clocks, arrival))

    def _note(self, step: Step, seconds: list[float], held: list[int], further_ends: SequenceOf[float] = ()) -> None:
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
        return step is not None and self._take_in(step, self.timeline.take_in(step.end, step.process))

    def _take_in(self, step: Step, time: float) -> bool:
        """The result of a step is there: tokens leave, and sequences that have all of theirs end."""
        plan = step.plan
        done = self.scheduler.complete(plan)
        self.record.tokens(time, plan.decodes + len(plan.sampled), plan.sampled, done, plan.left)
        for _ in done:
            self.clients.answer(self.record.last_end)
        return bool(done)
