"""Where a simulation stands: the clock, the GPU, and the steps under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from infercast.engine.step import HostCost, StepTimer
from infercast.serve.clients import Clients
from infercast.serve.first_use import NOTHING_NEW, FirstUses
from infercast.serve.record import Record
from infercast.serve.scheduler import Plan, Scheduler, Sequence
from infercast.serve.timeline import Timeline


class Flight(NamedTuple):
    """A step under way: what it computes, when the GPU is done with it, and what it costs the host."""

    plan: Plan
    end: float
    host: HostCost


class State:
    """What the loop and its shortcut share."""

    def __init__(
        self,
        scheduler: Scheduler,
        clients: Clients,
        record: Record,
        timer: StepTimer,
        steps_under_way: int,
        first_uses: FirstUses | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.clients = clients
        self.record = record
        self.timer = timer
        self.steps_under_way = steps_under_way
        self.first_uses = first_uses
        self.timeline = Timeline()
        self.under_way: deque[Flight] = deque()
        self.last_plan: Plan | None = None

    def start(self, plan: Plan) -> None:
        """Hand a planned step to the GPU."""
        shape = plan.shape
        estimate = self.timer(shape)
        news = NOTHING_NEW if self.first_uses is None else self.first_uses.meet(shape)
        span = self.timeline.launch(estimate.host, float(estimate.gpu_seconds[0]), news)
        self.under_way.append(Flight(plan, span.end, estimate.host))
        self.last_plan = plan
        self.record.start(plan.started, span.start)
        self.record.steps(
            shape,
            estimate,
            [span.seconds],
            running=len(plan.sequences),
            waiting=len(self.scheduler.waiting),
            kv=[self.scheduler.cache.usage],
        )

    def finish(self) -> SequenceOf[Sequence]:
        """Wait for the oldest step under way; returns the sequences that it completes."""
        flight = self.under_way.popleft()
        time = self.timeline.take_in(flight.end, flight.host)
        done = self.scheduler.complete(flight.plan)
        self.record.tokens(flight.plan, time, done)
        return done
