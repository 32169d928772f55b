"""Where a simulation stands: the clock, the GPU, and the steps under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf

from infercast.engine.step import StepTimer
from infercast.serve.clients import Clients
from infercast.serve.record import Record
from infercast.serve.scheduler import Plan, Scheduler, Sequence


class State:
    """What the loop and its shortcut share."""

    def __init__(
        self, scheduler: Scheduler, clients: Clients, record: Record, timer: StepTimer, steps_under_way: int
    ) -> None:
        self.scheduler = scheduler
        self.clients = clients
        self.record = record
        self.timer = timer
        self.steps_under_way = steps_under_way
        self.clock = 0.0
        """Now, as the scheduler sees it."""
        self.gpu_free = 0.0
        """When the last planned step ends."""
        self.under_way: deque[tuple[Plan, float]] = deque()
        """Planned steps and when they end."""
        self.last_plan: Plan | None = None

    def start(self, plan: Plan) -> None:
        """Hand a planned step to the GPU."""
        shape = plan.shape
        estimate = self.timer(shape)
        start = max(self.clock, self.gpu_free)
        self.gpu_free = start + float(estimate.seconds[0])
        self.under_way.append((plan, self.gpu_free))
        self.last_plan = plan
        self.record.start(plan.started, start)
        usage = self.scheduler.cache.usage
        self.record.steps(shape, estimate, running=len(plan.sequences), waiting=len(self.scheduler.waiting), kv=usage)

    def finish(self) -> SequenceOf[Sequence]:
        """Wait for the oldest step under way; returns the sequences that it completes."""
        plan, self.clock = self.under_way.popleft()
        done = self.scheduler.complete(plan)
        self.record.tokens(plan, self.clock, done)
        return done
