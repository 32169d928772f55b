"""The loop of an engine's host thread: take in requests, plan and launch a step, take in a result.

Like vLLM's engine core, it keeps up to two steps under way when scheduling is asynchronous: the next one is planned
when the result before the one that runs has been taken in, so a request that arrives during a step joins the one
after the next. A step that can be repeated is, as one turn of the loop, until something changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator

from infercast.serve.conditions import Conditions
from infercast.serve.first_use import NOTHING_NEW, FirstUses
from infercast.serve.looks import Looks
from infercast.serve.record import Record
from infercast.serve.scheduler.planner import Planner
from infercast.serve.scheduler.sequence import Plan
from infercast.serve.step import StepEstimate, StepShape, StepTimer, groups_of
from infercast.serve.timeline import Repetitions, Timeline
from infercast.serve.watching import TELL_EVERY, Observer, Progress, Watcher
from infercast.serve.workload.source import Source

Numbers = tuple[int, int, int, int, int]
"""Of a step: sequences in it, sequences that wait, tokens, context and sampled rows."""

MOST_STEPS = 512
"""Steps that are timed at once where nothing tells when the next request comes."""


class Step:
    """A step that is handed to the GPU, perhaps several times in a row: what it computes, and what that takes."""

    __slots__ = ("end", "estimate", "numbers", "plan", "shape")

    def __init__(self, plan: Plan, numbers: Numbers, estimate: StepEstimate, shape: StepShape | None) -> None:
        self.plan, self.numbers, self.estimate = plan, numbers, estimate
        self.shape = shape
        """The same as the numbers, where somebody asks for it."""
        self.end = 0.0
        """When the GPU is done with it, or with the last of them."""


class Loop:
    """One engine while it runs."""

    def __init__(
        self,
        scheduler: Planner,
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
        looks_every: int = 1,
        observe: Observer | None = None,
        progress: Progress | None = None,
        watch: Watcher | None = None,
    ) -> None:
        """``keeps_pace``: where requests wait but none can be computed, an empty step takes its place (pipelines).
        ``looks_every``: steps of decoding between two looks for requests.
        """
        self.scheduler, self.clients, self.record = scheduler, clients, record
        self.timer, self.steps_under_way = groups_of(timer), steps_under_way
        self.time_step = timer
        self.adapted = groups_of(getattr(timer, "adapted", None) or timer)
        """The same for steps in which a sequence has a LoRA adapter, where that makes a difference."""
        self.timeline, self.conditions = timeline or Timeline(), conditions or Conditions()
        self.first_uses, self.wake_up_seconds = first_uses, wake_up_seconds
        self.jump, self.keeps_pace, self.looks = jump, keeps_pace, Looks(looks_every)
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
        scheduler, timeline, clients, looks = self.scheduler, self.timeline, self.clients, self.looks
        while True:
            yield timeline.clock
            arrival = clients.next_arrival
            if (looks.is_always or looks.is_due()) and arrival is not None and arrival <= timeline.clock:
                arrival = self._take_in_requests()
            plan = scheduler.plan()
            if scheduler.just_left:
                self.record.note_last_tokens(scheduler.just_left)
                scheduler.just_left.clear()
            if plan is not None:
                step = self._time_beside(plan) if plan.sequences else self._time_decodes(plan, arrival)
                if len(step.estimate.gpu_seconds) == 1:
                    self._launch(step)
                    continue
                ahead = self._look_ahead(step)
                if clients.wait_for_answers:  # somebody may still send a request that comes before
                    self.is_ahead = True
                    yield ahead[2][-1]
                    self.is_ahead = False
                self._repeat(step, ahead)
            elif self._is_idle(arrival):
                self.record.close(scheduler.num_preemptions)
                return

    def _take_in_requests(self) -> float | None:
        """Queue the requests that have arrived; returns when the next one will."""
        clients, clock = self.clients, self.timeline.clock
        while (arrival := clients.next_arrival) is not None and arrival <= clock:
            index, request, sent = clients.pop()
            self.scheduler.add(index, request)
            self.record.sent_at[index] = sent
            self.record.mark(index, clock)
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
        elif scheduler.tries_again:
            return False
        elif arrival is None:
            return True
        else:
            self.looks.hurry()
            self.timeline.sleep_until(arrival + self.wake_up_seconds)
        return False

    def _most_steps(self, plan: Plan, arrival: float | None) -> int:
        """How often in a row it is worth to time a step: until the batch changes or, about, a request comes."""
        under_way = self.under_way
        if not self.jump or len(under_way) != self.steps_under_way - 1 or self.timeline.slept:
            return 1
        before = under_way[0] if under_way else None
        # Where a request ends with the step before, another one may start.
        if before and before.plan.ending and (self.scheduler.waiting or self.clients.sends_at_once):
            return 1
        steps = self.scheduler.most_steps(plan)
        if not self.looks.is_always:
            steps = min(steps, self.looks.steps_left)
        elif arrival is not None:
            coming = 2 + int(1.1 * (arrival - self.timeline.clock) / self._step_seconds)
            steps = coming if coming < steps else steps
        return steps if steps < MOST_STEPS else MOST_STEPS

    def _time_decodes(self, plan: Plan, arrival: float | None) -> Step:
        """What a step of decoding takes, and the same steps after it."""
        decodes, context, num_waiting = plan.decodes, plan.decode_context, len(self.scheduler.waiting)
        shape = plan.shape if self.watch is not None or self.first_uses is not None else None
        steps = self._most_steps(plan, arrival)
        if self.first_uses is not None and shape is not None and not self.first_uses.knows(shape):
            steps = 1
        timer = self.adapted if plan.has_adapters else self.timer
        estimate = timer.decode(decodes, context, plan.contexts, steps)
        return Step(plan, (decodes, num_waiting, decodes, context, decodes), estimate, shape)

    def _time_beside(self, plan: Plan) -> Step:
        """What a step takes in which others are computed beside those that decode together."""
        decodes, context, sampled = plan.decodes, plan.decode_context, len(plan.sampled) + plan.num_cut
        tokens, total = decodes + sum(plan.new_tokens), context + sum(plan.computed)
        numbers = (decodes + len(plan.sequences), len(self.scheduler.waiting), tokens, total, decodes + sampled)
        timer = self.adapted if plan.has_adapters else self.timer
        estimate = timer.compute(plan.beside, sampled, decodes, context, plan.contexts)
        if tokens > numbers[0]:
            estimate = self.conditions.meet(estimate, self.timeline.clock, self.timeline.gpu_free)
        shape = plan.shape if self.watch is not None or self.first_uses is not None else None
        return Step(plan, numbers, estimate, shape)

    def _launch(self, step: Step) -> None:
        """Hand a step to the GPU, and take in the oldest result if as many are under way as may be."""
        plan, estimate, shape = step.plan, step.estimate, step.shape
        held = self.scheduler.start(plan)
        news = NOTHING_NEW if self.first_uses is None or shape is None else self.first_uses.meet(shape)
        span = self.timeline.launch(estimate.host, estimate.gpu_seconds[0], news, plan)
        step.end = span.end
        self.under_way.append(step)
        if plan.started:
            self.record.start(plan.started, span.start)
        if self._has_prompts(step):
            phase = self.record.prefilling
            self.looks.hurry()
        else:
            phase = self.record.decoding
            self.looks.decoded(1)
        phase.note(step.numbers, estimate, [span.seconds], held)
        if self.watch is not None and shape is not None:
            self.watch.step(plan, shape, estimate, span, held)
        if self.observe is not None:
            self.observe(self.scheduler, plan)
        if len(self.under_way) == self.steps_under_way:
            self._finish()

    def _has_prompts(self, step: Step) -> bool:
        """Whether it computes more than the next token of each sequence."""
        return step.numbers[2] > step.numbers[0]

    def _look_ahead(self, step: Step) -> Repetitions:
        """The same step again and again, as far as there are blocks for it.

        The result of the step before is taken in while the first one runs, and so on.
        """
        before = self.under_way.popleft() if self.under_way else None
        process = None if before is None else before.estimate.host.process
        ahead = self.timeline.repeat(step.estimate.host, step.estimate.gpu_seconds, process)
        if before is not None:
            self._take_in(before, ahead[2][0])
        seconds, ends, clocks = ahead
        steps = 1 + self.scheduler.steps_with_room(len(seconds) - 1)
        return ahead if steps == len(seconds) else (seconds[:steps], ends[:steps], clocks[:steps])

    def _repeat(self, step: Step, ahead: Repetitions) -> None:
        """Hand the same step to the GPU so many times, or until a request comes."""
        plan, timeline, record, (seconds, ends, clocks) = step.plan, self.timeline, self.record, ahead
        steps, arrival = len(seconds), self.clients.next_arrival
        if self.looks.is_always and arrival is not None and arrival <= clocks[-1]:
            steps = min(steps, 1 + bisect_left(clocks, arrival))
        held = self.scheduler.start(plan, steps)
        if len(held) < len(seconds):
            steps = len(held)
            seconds, ends, clocks = seconds[:steps], ends[:steps], clocks[:steps]
        self.looks.decoded(steps)
        record.decoding.note(step.numbers, step.estimate, seconds, held)
        if self.watch is not None and step.shape is not None:
            self.watch.stretch(step.shape, step.estimate, ends, held)
        self._step_seconds, step.end = seconds[-1], ends[-1]
        timeline.clock, timeline.gpu_free = clocks[-1], ends[-1]
        if self.steps_under_way > 1:
            self._take_in_all(plan, clocks[1:])
            self.under_way.append(step)
        else:
            self._take_in_all(plan, clocks[:-1])
            self._take_in(step, clocks[-1])

    def _take_in_all(self, plan: Plan, times: list[float]) -> None:
        """The results of the same step again and again, all but the last one."""
        record, count, done = self.record, plan.decodes, plan.early
        if done:
            self.scheduler.end_early(plan)
        if times and (plan.fresh or record.was_interrupted):
            record.tokens(times[0], count, plan.fresh, done if len(times) == 1 else ())
            plan.fresh = ()
            del times[0]
        if done and times:
            record.steady_tokens(count, times[:-1])
            record.tokens(times[-1], count, (), done)
        else:
            record.steady_tokens(count, times)
        for sequence in done:
            self.clients.answer(record.last_end, sequence.index)

    def _finish(self) -> None:
        """Wait for the oldest step under way and take its result in."""
        step = self.under_way.popleft()
        if step is not None:
            self._take_in(step, self.timeline.take_in(step.end, step.estimate.host.process))

    def _take_in(self, step: Step, time: float) -> None:
        """The result of a step is there: tokens leave, and sequences that have all of theirs end."""
        plan = step.plan
        done = self.scheduler.complete(plan)
        others = [*plan.fresh, *plan.sampled] if plan.fresh else plan.sampled
        if plan.thrown_away:
            others = [each for each in others if each not in plan.thrown_away]
        self.record.tokens(time, plan.num_yielded, others, done, plan.left, apart=plan.is_apart)
        for sequence in done:
            self.clients.answer(self.record.last_end, sequence.index)
