"""Who is told of a run while it goes on: of its progress, of plans, and of every step."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any, Protocol

from infercast.serve.scheduler.sequence import Plan
from infercast.serve.step import StepEstimate, StepShape
from infercast.serve.timeline import Span

Progress = Callable[[int, float], None]
"""Told how many requests have been sent, and the simulated seconds."""
Observer = Callable[[Any, Plan], None]
"""Told of the scheduler, and of what it has planned."""
TELL_EVERY = 1024
"""Requests between two tellings of progress."""


class Watcher(Protocol):
    """Told of every step when it is handed to the GPU, one by one or in stretches of decoding."""

    def step(self, plan: Plan, shape: StepShape, estimate: StepEstimate, span: Span, held: SequenceOf[int]) -> None:
        """One step, and the KV blocks held in it; the plan does not name those that decode together."""

    def stretch(self, shape: StepShape, estimate: StepEstimate, ends: SequenceOf[float], held: SequenceOf[int]) -> None:
        """Steps of one decoding batch in a row, when the GPU is done with each, and the KV blocks held in it; the
        estimate may hold more.
        """
