"""Where a simulation stands: the clock, the GPU, the steps under way, and whether sequences decode in step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple, Protocol

from infercast.engine.step import HostCost, StepEstimate, StepShape, StepTimer
from infercast.serve.convoy import Convoy
from infercast.serve.first_use import NOTHING_NEW, FirstUses
from infercast.serve.record import Record
from infercast.serve.scheduler import Plan, Scheduler, Sequence
from infercast.serve.source import Source
from infercast.serve.timeline import Span, Timeline


class Flight(NamedTuple):
    """A step under way."""

    sampled: list[Sequence]
    """Those that produce a token at its end."""
    end: float
    """When the GPU is done with it."""
    host: HostCost
    num_steady: int = 0
    """In a convoy: those of ``sampled`` that produced a token in the step before too ..."""
    first: SequenceOf[Sequence] = ()
    """... and those that did not."""
    done: SequenceOf[Sequence] = ()
    """In a convoy: those whose last token this is."""


Outcome = tuple[list[Sequence], int, SequenceOf[Sequence], SequenceOf[Sequence]]
"""Who is sampled; in a convoy also how many of them are steady, who is not, and who is done, as in `Flight`."""


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
    ) -> None:
        self.scheduler = scheduler
        self.clients = clients
        self.record = record
        self.timer = timer
        self.steps_under_way = steps_under_way
        self.first_uses = first_uses
        self.watch = watch
        self.timeline = Timeline()
        self.step_seconds = 0.0
        """How long a step of decoding took last."""
        self.under_way: deque[Flight] = deque()
        self.convoy: Convoy | None = None
        """The decoding sequences, while they all decode in step."""
        self.prompts: list[Sequence] = []
        """Beside a convoy: running sequences that have not caught up yet, seldom more than one."""
        self.is_blocked = False
        """Whether the first in the queue cannot start before some sequence ends."""

    def is_alone(self) -> bool:
        """Whether no prompt can be computed beside the convoy."""
        scheduler = self.scheduler
        if self.prompts or len(scheduler.running) > scheduler.limits.max_num_batched_tokens:
            return False
        return not scheduler.waiting or self.is_blocked or len(scheduler.running) >= scheduler.limits.max_num_seqs

    def start(self, plan: Plan, shape: StepShape, estimate: StepEstimate, outcome: Outcome) -> None:
        """Hand a planned step to the GPU."""
        news = NOTHING_NEW if self.first_uses is None else self.first_uses.meet(shape)
        span = self.timeline.launch(estimate.host, estimate.gpu_seconds[0], news)
        self.under_way.append(Flight(outcome[0], span.end, estimate.host, *outcome[1:]))
        if plan.started:
            self.record.start(plan.started, span.start)
        cache = self.scheduler.cache
        held = [cache.num_blocks - cache.num_free]
        phase = self.record.decoding if shape.is_decode else self.record.prefilling
        phase.add(shape, estimate, [span.seconds], len(self.scheduler.waiting), held)
        if self.watch is not None:
            self.watch.step(plan, shape, estimate, span, held)

    def finish(self) -> None:
        """Wait for the oldest step under way and take its result in."""
        flight = self.under_way.popleft()
        self.take_in(flight, self.timeline.take_in(flight.end, flight.host))

    def take_in(self, flight: Flight, time: float) -> None:
        """The result of a step is there: tokens leave, and sequences that have all of theirs end."""
        if self.convoy is None:
            done: SequenceOf[Sequence] = self.scheduler.complete(flight.sampled)
            self.record.tokens(time, flight.sampled, 0, flight.sampled, done)
        else:
            done = flight.done
            self.record.tokens(time, flight.sampled, flight.num_steady, flight.first, done)
            if done:
                self.scheduler.release(done)
        if done:
            self.is_blocked = False
            for _ in done:
                self.clients.answer(self.record.last_end)
