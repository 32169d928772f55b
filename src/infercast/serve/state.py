"""Where a simulation stands: the clock, the GPU, the steps under way, and whether sequences decode in step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple, Protocol

from infercast.serve.conditions import Conditions
from infercast.serve.convoy import Convoy
from infercast.serve.first_use import NOTHING_NEW, FirstUses
from infercast.serve.record import Record
from infercast.serve.scheduler.scheduler import Plan, Scheduler, Sequence
from infercast.serve.step import StepEstimate, StepShape, StepTimer
from infercast.serve.timeline import Span, Timeline
from infercast.serve.workload.source import Source

Progress = Callable[[int, float], None]
"""Told how many requests have been sent, and the simulated seconds."""

TELL_EVERY = 1024
"""Requests between two tellings of progress."""


class Flight(NamedTuple):
    """A step under way."""

    end: float
    """When the GPU is done with it."""
    process: float
    """What the host needs to take its result in."""
    num_sampled: int
    """How many sequences produce a token at its end."""
    first: SequenceOf[Sequence] = ()
    """Those of them that may not have produced one in the step before; without a convoy, all of them."""
    done: SequenceOf[Sequence] = ()
    """In a convoy: those whose last token this is."""


EMPTY = Flight(0.0, 0.0, 0)
"""A step in which nobody could be computed, which takes a place in a pipeline all the same."""


class Watcher(Protocol):
    """Told of every step when it is handed to the GPU, one by one or in stretches of decoding."""

    def step(self, plan: Plan, shape: StepShape, estimate: StepEstimate, span: Span, held: SequenceOf[int]) -> None:
        """One step, and the KV blocks held in it; the plan leaves those out that decode in a convoy."""

    def stretch(self, shape: StepShape, estimate: StepEstimate, ends: SequenceOf[float], held: SequenceOf[int]) -> None:
        """Steps of one decoding batch in a row, when the GPU is done with each, and the KV blocks held in it; the
        estimate may hold more.
        """


class State:
    """What the loop and its shortcut share."""

    def __init__(
        self,
        scheduler: Scheduler,
        clients: Source,
        record: Record,
        timer: StepTimer,
        steps_under_way: int,
        first_uses: FirstUses | None = None,
        watch: Watcher | None = None,
        conditions: Conditions | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.clients = clients
        self.record = record
        self.timer = timer
        self.steps_under_way = steps_under_way
        self.first_uses = first_uses
        self.watch = watch
        self.timeline = Timeline()
        self.conditions = conditions or Conditions()
        self.step_seconds = 0.0
        """How long a step of decoding took last."""
        self.under_way: deque[Flight] = deque()
        self.convoy: Convoy | None = None
        """The decoding sequences, while they all decode in step."""
        self.prompts: list[Sequence] = []
        """Beside a convoy: running sequences that have not caught up yet, seldom more than one."""
        self.turns_apart = 0
        """Turns since the fast loop was left."""
        self.is_blocked = False
        """Whether the first in the queue cannot start before some sequence ends."""

    def is_alone(self) -> bool:
        """Whether no prompt can be computed beside the convoy."""
        scheduler = self.scheduler
        if self.prompts or len(scheduler.running) > scheduler.limits.max_num_batched_tokens:
            return False
        return not scheduler.waiting or self.is_blocked or len(scheduler.running) >= scheduler.limits.max_num_seqs

    def start(
        self, plan: Plan, shape: StepShape, estimate: StepEstimate, first: list[Sequence], done: list[Sequence]
    ) -> None:
        """Hand a planned step to the GPU; ``first`` and ``done`` as in `Flight`."""
        if not shape.is_decode:
            estimate = self.conditions.meet(estimate, self.timeline.clock, self.timeline.gpu_free)
        news = NOTHING_NEW if self.first_uses is None else self.first_uses.meet(shape)
        span = self.timeline.launch(estimate.host, estimate.gpu_seconds[0], news, plan)
        self.under_way.append(Flight(span.end, estimate.host.process, shape.num_sampled, first, done))
        if plan.started:
            self.record.start(plan.started, span.start)
        held = [self.scheduler.cache.num_held]
        phase = self.record.decoding if shape.is_decode else self.record.prefilling
        phase.add(shape, estimate, [span.seconds], len(self.scheduler.waiting), held)
        if self.watch is not None:
            self.watch.step(plan, shape, estimate, span, held)

    def finish(self) -> None:
        """Wait for the oldest step under way and take its result in."""
        flight = self.under_way.popleft()
        if flight is EMPTY:
            return
        self.take_in(flight, self.timeline.take_in(flight.end, flight.process))

    def take_in(self, flight: Flight, time: float) -> None:
        """The result of a step is there: tokens leave, and sequences that have all of theirs end."""
        _, _, num_sampled, first, done = flight
        if self.convoy is None:
            done = self.scheduler.complete(first)
        elif done:
            self.scheduler.finish(done)
        self.record.tokens(time, num_sampled, first, done)
        if done:
            self.is_blocked = False
            for _ in done:
                self.clients.answer(self.record.last_end)
