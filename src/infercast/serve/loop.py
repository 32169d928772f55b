"""One engine as it is set up, and its host loop: admit requests, schedule and launch a step, process a result."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any, Protocol, cast

from infercast.lazy_classes import dataclass
from infercast.serve.cache.blocks import KvShape
from infercast.serve.cache.tiers import Offload
from infercast.serve.record import Numbers, Record
from infercast.serve.scheduler.base import Plan, Policy
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.speculation import Speculation
from infercast.serve.step import StepEstimate, StepShape, StepTimer, groups_of
from infercast.serve.timeline import NOTHING_NEW, Repetitions, Span, StagedTimeline, StepNoise, Timeline, WarmupCosts
from infercast.serve.workload.api_server import ServerCosts
from infercast.serve.workload.clients import Source
from infercast.serve.workload.request import Request

if TYPE_CHECKING:
    from infercast.serve.scheduler.drafts import DraftPlan
    from infercast.serve.scheduler.encoder import Encoder
    from infercast.serve.scheduler.offloading import KvTransfer
    from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler
    from infercast.serve.transfers import BlockTransfers, Transfers


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Replica:
    """One engine: step costs, scheduling limits and KV cache size."""

    timer: StepTimer
    policy: Policy
    num_blocks: int
    kv_shape: KvShape = KvShape()
    prefix_caching: bool = True
    sparse_windows: bool = False
    retained_every: int = 0  # Both as in `KvCache`
    steps_under_way: int = 2  # 2: the next step is scheduled while one runs (asynchronous); 1: strictly one at a time
    request_path_seconds: float = 0.0  # From the client's call to the engine's queue
    request_token_seconds: float = 0.0  # Added to that for each prompt token
    server: ServerCosts = ServerCosts()  # Of the thread that takes requests in and sends tokens ...
    num_servers: int = 1  # ... of so many processes
    token_path_seconds: float = 0.0  # From a processed result to the client ...
    token_turn_seconds: float = 0.0  # ... and the time added for each token of the step.
    wake_up_seconds: float = 0.0  # Until an idle engine notices a request; those that arrive meanwhile come with it
    poll_interval: int = 1  # Decode steps between two polls for requests; it polls after every step with prefill, too
    first_uses: WarmupCosts | None = None  # What the engine has warmed up so far, which a run adds to; None: everything
    max_model_len: int | None = None
    max_output: int | None = None  # Tokens of the longest answer; None: as many as requests ask for
    stages: tuple[float, ...] | None = None  # A pipeline: each stage's share of a step's GPU time
    launch_spread: float = 0.0  # Launch-time variation of steps with prefill, as `serve.timeline.LAUNCH_SPREAD`
    settle_seconds: float = 0.0  # Time constant of the GPU clock's response to power; 0: each step is like the first
    stages_in_turn: bool = False  # True if the stages of a pipeline never overlap two steps
    max_adapters: int | None = None  # Distinct LoRA adapters allowed in a step; None: LoRA is off
    speculation: Speculation | None = None  # Speculative decoding; None: off
    offload: Offload | None = None  # The KV cache's host memory tier, if any
    encoder: Encoder | None = None  # Of images
    tells_load: bool = False  # True if the load balancer sees queue and KV cache usage for every model (vLLM 0.27)


# How often an engine looks for new requests: after every step, or after so many steps of decoding.


class AdmissionPoll:
    """Counts decode steps since the last poll. The engine also polls after a step with prefill, and when idle."""

    __slots__ = ("_every", "_steps", "every_step")

    def __init__(self, every: int = 1) -> None:
        self._every, self._steps = every, every
        self.every_step = every <= 1  # Whether it looks after every step, so that nothing has to be counted

    @property
    def steps_left(self) -> int:
        """Decode steps until the next poll, at least 1."""
        return max(1, self._every - self._steps)

    def due(self) -> bool:
        """True when a poll is due, which also restarts the count."""
        if self._steps < self._every:
            return False
        self._steps = 0
        return True

    def decoded(self, steps: int) -> None:
        self._steps += steps

    def poll_next(self) -> None:
        self._steps = self._every


# Callbacks during a run: progress, plans and launched steps.

Progress = Callable[[int, float], None]  # Called with the number of requests sent and the simulated time in seconds
PlanObserver = Callable[[Any, Plan], None]  # Called with the scheduler and the plan it just made
TELL_EVERY = 64  # Requests between two progress callbacks


class StepObserver(Protocol):
    """Receives every launched step, one at a time or as a run of decode steps."""

    def step(self, plan: Plan, shape: StepShape, estimate: StepEstimate, span: Span, held: SequenceOf[int]) -> None:
        """One step and the KV blocks in use; the plan does not list the sequences of the decode batch."""

    def stretch(self, shape: StepShape, estimate: StepEstimate, ends: SequenceOf[float], held: SequenceOf[int]) -> None:
        """Steps of one decode batch: GPU end time and KV blocks in use for each; the estimate may cover more."""


# Like vLLM's engine core, the loop keeps up to two steps in flight with asynchronous scheduling: the next step is
# scheduled once the result before the running step has been processed, so a request that arrives during a step joins
# the one after the next. A repeatable step is repeated in one turn of the loop until something changes.

MOST_STEPS = 512  # Maximum number of steps timed at once when the next arrival is unknown


def worth_timing(steps: int, arrival: float | None, clock: float, step_seconds: float) -> int:
    """How many repetitions to time of those that are possible: roughly, until a request arrives."""
    if arrival is not None:
        coming = 2 + int(1.1 * (arrival - clock) / step_seconds)
        steps = coming if coming < steps else steps
    return steps if steps < MOST_STEPS else MOST_STEPS


class Step:
    """A launched step, possibly repeated, with its estimate."""

    __slots__ = ("end", "ended", "estimate", "has_prompts", "numbers", "plan", "shape")

    def __init__(self, plan: Plan, numbers: Numbers, estimate: StepEstimate, shape: StepShape | None) -> None:
        self.plan, self.numbers, self.estimate = plan, numbers, estimate
        self.has_prompts = False  # True if the step computes more than each sequence's next token and its drafts
        self.shape = shape  # The same as ``numbers`` in full, where an observer or warm-up costs need it
        self.end = 0.0  # When the GPU finishes it, or its last repetition
        self.ended: list[KvTransfer] = []  # GPU-host copies whose completion is seen with this step's result


NO_STEP, NO_NUMBERS, NO_TIME = Plan(), (0, 0, 0, 0, 0), StepEstimate([], [])  # Placeholders for a turn without a step


class Loop:
    def __init__(
        self, replica: Replica, scheduler: Scheduler | PrefillScheduler, clients: Source, record: Record,
        transfers: Transfers | None = None, *, jump: bool = True, observe: PlanObserver | None = None,
        progress: Progress | None = None, watch: StepObserver | None = None,
    ) -> None:  # fmt: skip
        """``transfers``: KV copies to host memory and back; the others as in `simulation.simulate`."""
        stages, self.steps_under_way = replica.stages, replica.steps_under_way
        self.encoder = replica.encoder
        self.scheduler, self.clients, self.record, self.transfers = scheduler, clients, record, transfers
        self.use(replica.timer)
        self._has_drafts = scheduler.drafts is not None
        self.timeline = Timeline() if stages is None else StagedTimeline(stages, in_turn=replica.stages_in_turn)
        self.conditions = StepNoise(replica.settle_seconds, replica.launch_spread)
        self.first_uses, self.wake_up_seconds = replica.first_uses, replica.wake_up_seconds
        self.empty_steps_while_waiting = stages is not None  # If requests wait but none can be scheduled
        self.poll = AdmissionPoll(replica.poll_interval)
        self.jump, self.observe, self.progress, self.watch = jump, observe, progress, watch
        self.under_way: deque[Step] = deque()
        self._step_seconds = 1e-6  # Duration of the last decode step

    def use(self, timer: StepTimer) -> None:
        adapted = getattr(timer, "adapted", None) or timer
        self.timer = groups_of(timer)
        self.adapted = groups_of(adapted)  # The timer for steps with a LoRA adapter, where it differs
        self.time_drafts: tuple[StepTimer, StepTimer] = timer, adapted
        """For steps with drafts: without adapters, and with."""

    def events(self) -> Iterator[float]:
        """Yield the clock before each turn, for drivers of several engines; ends when no client will send again."""
        scheduler, timeline, clients, poll = self.scheduler, self.timeline, self.clients, self.poll
        always, plan_next = poll.every_step, scheduler.plan
        while True:
            yield timeline.clock
            arrival = clients.next_arrival
            if (always or poll.due()) and arrival is not None and arrival <= timeline.clock:
                arrival = self.admit_arrivals(scheduler.add)
            plan = plan_next()
            if scheduler.left_batch:
                self.record.note_last_tokens(scheduler.left_batch)
                scheduler.left_batch.clear()
            if plan is not None:
                step = self._time_mixed_step(plan) if plan.sequences else self._time_decode_steps(plan, arrival)
                if len(step.estimate.gpu_seconds) == 1:
                    self._launch(step)
                    continue
                ahead = self._look_ahead(step)
                if clients.wait_for_answers:  # a client may still send a request that arrives earlier
                    self.record.ahead = ahead[2], plan.decodes, plan.decodes
                    yield ahead[2][-1]
                    self.record.ahead = None
                self._repeat(step, ahead)
            elif self._is_idle(arrival):
                self.record.close(scheduler.num_preemptions)
                if self.transfers is not None:
                    self.record.tier = self.transfers.totals(len(self.record.sent_at))
                return

    def admit_arrivals(self, add: Callable[[int, Request], None]) -> float | None:
        """Queue the requests that have arrived (``add``); returns when the next one will."""
        clients, record, clock = self.clients, self.record, self.timeline.clock
        clients.move_to(clock)
        while (arrival := clients.next_arrival) is not None and arrival <= clock:
            index, request, sent = clients.pop()
            if request is None:
                record.lose(index, sent, self.scheduler.abort(index))
                clients.answer(clock, ~index)
                continue
            add(index, request)
            record.sent_at[index] = sent
            if index >= record.next_mark:
                record.mark(clock)
            if self.progress is not None and index % TELL_EVERY == 0:
                self.progress(index, clock)
        return arrival

    def _is_idle(self, arrival: float | None) -> bool:
        """Nothing can be scheduled: wait for a result or a request. True if none will come."""
        scheduler, has_work = self.scheduler, bool(self.under_way)
        if self.transfers is not None:
            if self.transfers.is_busy:
                self._turn_without_step(cast("BlockTransfers", self.transfers))
                return False
            if arrival is None and scheduler.waiting and not (has_work or scheduler.running):
                self.transfers.check_progress()
        if self.empty_steps_while_waiting and (scheduler.running or scheduler.waiting):
            self.under_way.append(Step(NO_STEP, NO_NUMBERS, NO_TIME, None))
            if len(self.under_way) == self.steps_under_way:
                self._finish()
        elif has_work:
            self._finish()
        elif scheduler.can_retry_now:
            return False
        elif arrival is None:
            return True
        else:
            self.poll.poll_next()
            self.timeline.sleep_until(arrival + self.wake_up_seconds)
        return False

    def _turn_without_step(self, transfers: BlockTransfers) -> None:
        """Copies are under way, and nothing can be computed before some of them have ended."""
        turn = Step(NO_STEP, NO_NUMBERS, NO_TIME, None)
        turn.ended = transfers.empty_turn(self.timeline)
        self.under_way.append(turn)
        if len(self.under_way) == self.steps_under_way:
            self._finish()
        self.timeline.clock += transfers.offload.empty_step_seconds

    def _most_steps(self, plan: Plan, arrival: float | None) -> int:
        """How many repetitions are worth timing: until the batch changes or, roughly, a request arrives."""
        under_way = self.under_way
        if not self.jump or len(under_way) != self.steps_under_way - 1 or self.timeline.slept:
            return 1
        before = under_way[0] if under_way else None
        if self.transfers is not None and (not self.transfers.may_repeat or (before and before.plan is NO_STEP)):
            return 1
        # If a request ends with the previous step, another may start.
        if (
            before
            and (before.plan is NO_STEP or before.plan.ending)
            and (self.scheduler.waiting or self.clients.sends_at_once)
        ):
            return 1
        steps = self.scheduler.most_steps(plan)
        if not self.poll.every_step:
            return worth_timing(min(steps, self.poll.steps_left), None, self.timeline.clock, self._step_seconds)
        return worth_timing(steps, arrival, self.timeline.clock, self._step_seconds)

    def _time_decode_steps(self, plan: Plan, arrival: float | None) -> Step:
        decodes, context, num_waiting = plan.decodes, plan.decode_context, len(self.scheduler.waiting)
        shape = plan.shape if self.watch is not None or self.first_uses is not None else None
        steps = self._most_steps(plan, arrival)
        if self.first_uses is not None and shape is not None and not self.first_uses.knows(shape):
            steps = 1
        timer = self.adapted if plan.has_adapters else self.timer
        estimate = timer.decode(decodes, context, plan.contexts, steps)
        return Step(plan, (decodes, num_waiting, decodes, context, decodes), estimate, shape)

    def _time_mixed_step(self, plan: Plan) -> Step:
        if self._has_drafts:
            return self._time_drafts(cast("DraftPlan", plan))
        decodes, context, sampled = plan.decodes, plan.decode_context, len(plan.sampled) + plan.num_cut
        tokens, total = decodes + sum(plan.new_tokens), context + sum(plan.computed)
        numbers = (decodes + len(plan.sequences), len(self.scheduler.waiting), tokens, total, decodes + sampled)
        timer = self.adapted if plan.has_adapters else self.timer
        estimate = timer.compute(plan.prefills, sampled, decodes, context, plan.contexts)
        if tokens > numbers[0]:
            estimate = self.conditions.meet(estimate, self.timeline.clock, self.timeline.gpu_free)
        shape = plan.shape if self.watch is not None or self.first_uses is not None else None
        step = Step(plan, numbers, self._encoded(estimate) if self.encoder is not None else estimate, shape)
        step.has_prompts = tokens > numbers[0]
        return step

    def _encoded(self, estimate: StepEstimate) -> StepEstimate:
        """The step planned last with the images that it encodes first."""
        cache = self.scheduler.encoder
        if self.encoder is None or cache is None or not cache.planned:
            return estimate
        return self.encoder.encode(cache.planned, estimate)

    def _time_drafts(self, plan: DraftPlan) -> Step:
        shape, count = plan.shape, len(plan.sequences)
        numbers = (count, len(self.scheduler.waiting), shape.num_tokens, shape.total_computed, shape.num_sampled)
        estimate = self.time_drafts[plan.has_adapters](shape)
        if plan.num_prompts:
            estimate = self.conditions.meet(estimate, self.timeline.clock, self.timeline.gpu_free)
        step = Step(plan, numbers, self._encoded(estimate) if self.encoder is not None else estimate, shape)
        step.has_prompts = plan.num_prompts > 0
        return step

    def _launch(self, step: Step) -> None:
        """Launch a step; if the in-flight limit is reached, process the oldest result."""
        plan, shape = step.plan, step.shape
        if self.transfers is not None:
            step.estimate, step.ended = self.transfers.launch(plan, step.estimate, self.timeline)
        estimate = step.estimate
        held = self.scheduler.start(plan)
        news = NOTHING_NEW if self.first_uses is None or shape is None else self.first_uses.meet(shape)
        span = self.timeline.launch(estimate.host, estimate.gpu_seconds[0], news, plan)
        step.end = span.end
        self.under_way.append(step)
        if plan.started:
            self.record.start(plan.started, span.start)
        if step.has_prompts:
            phase = self.record.prefilling
            if not self.poll.every_step:
                self.poll.poll_next()
        else:
            phase = self.record.decoding
            self.poll.decoded(1)
        phase.note(step.numbers, estimate, [span.seconds], held)
        if self.watch is not None and shape is not None:
            self.watch.step(plan, shape, estimate, span, held)
        if self.observe is not None:
            self.observe(self.scheduler, plan)
        if len(self.under_way) == self.steps_under_way:
            self._finish()

    def _look_ahead(self, step: Step) -> Repetitions:
        """Times of the repeated step, as often as there are blocks, each processing the last result."""
        before = self.under_way.popleft() if self.under_way else None
        process, estimate = None if before is None else before.estimate.host.process, step.estimate
        ahead = self.timeline.repeat(estimate.host, estimate.gpu_seconds, process)
        seconds, ends, clocks = ahead
        if before is not None:
            self._complete_step(before, clocks[0])
        count = len(seconds)
        steps = 1 + self.scheduler.cohort.steps_with_room(count - 1)
        return ahead if steps == count else (seconds[:steps], ends[:steps], clocks[:steps])

    def _repeat(self, step: Step, ahead: Repetitions) -> None:
        """Launch the same step repeatedly, or until a request arrives."""
        plan, timeline, record, (seconds, ends, clocks) = step.plan, self.timeline, self.record, ahead
        count, arrival, poll = len(seconds), self.clients.next_arrival, self.poll
        steps = count
        if arrival is not None and arrival <= clocks[-1] and poll.every_step:
            steps = 1 + bisect_left(clocks, arrival)
        held = self.scheduler.start(plan, steps)
        steps = len(held)
        if steps < count:
            seconds, ends, clocks = seconds[:steps], ends[:steps], clocks[:steps]
        if not poll.every_step:
            poll.decoded(steps)
        record.decoding.note(step.numbers, step.estimate, seconds, held)
        if self.watch is not None and step.shape is not None:
            self.watch.stretch(step.shape, step.estimate, ends, held)
        self._step_seconds = seconds[-1]
        timeline.clock, timeline.gpu_free = clock, step.end = clocks[-1], ends[-1]
        is_late = self.steps_under_way > 1
        times = clocks[1:] if is_late else clocks[:-1]
        if plan.early or plan.fresh or record.decoded_at != record.last_end:
            self._complete_repeats(plan, times)
        else:
            record.steady_tokens(plan.decodes, times)
        if is_late:
            self.under_way.append(step)
        else:
            self._complete_step(step, clock)

    def _complete_repeats(self, plan: Plan, times: list[float]) -> None:
        """Results of a repeated step but the last, where some had no token in the step before or have their last."""
        record, count, done = self.record, plan.decodes, plan.early
        if done:
            self.scheduler.end_early(plan)
        if times and (plan.fresh or record.decoded_at != record.last_end):
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
        step, transfers = self.under_way.popleft(), self.transfers
        if step.plan is not NO_STEP:
            end = step.end if transfers is None else transfers.result_at(step.end)
            self._complete_step(step, self.timeline.take_in(end, step.estimate.host.process))
        elif transfers is not None:
            transfers.end(step.ended)

    def _complete_step(self, step: Step, time: float) -> None:
        """The result of a step is there: tokens leave, and sequences that have all of theirs end."""
        plan, record = step.plan, self.record
        done = self.scheduler.complete(plan)
        others, count = plan.sampled, plan.decodes - plan.wasted
        if others:
            count += len(others)
        if plan.fresh:
            others = [*plan.fresh, *others]
        if plan.thrown_away:
            count -= len(plan.thrown_away)
            others = [each for each in others if each not in plan.thrown_away]
        record.tokens(time, count, others, done, plan.left, plan.is_apart)
        for sequence in done:
            self.clients.answer(record.last_end, sequence.index)
        if step.ended and self.transfers is not None:
            self.transfers.end(step.ended)
