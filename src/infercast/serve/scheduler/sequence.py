"""A request inside the engine, and the step that a scheduler plans for some of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from infercast.serve.cache.holding import Holding
from infercast.serve.step import StepShape
from infercast.serve.workload.request import Request


@dataclass(slots=True, eq=False)
class Sequence:
    """A request inside the engine."""

    index: int
    request: Request
    holding: Holding
    num_tokens: int
    """The prompt and every token sampled so far, or being sampled in a step under way, that will be computed on."""
    num_computed: int = 0
    num_promised: int = 0
    """Tokens that finished steps and steps under way produce."""
    num_produced: int = 0
    """Tokens that finished steps have produced."""
    num_cached: int = 0
    """Prompt tokens found in the prefix cache when the sequence was last started."""
    num_preemptions: int = 0
    last_token: float = math.nan
    num_under_way: int = 0
    """Tokens in steps under way, where the scheduler has to know."""
    not_before: int = 0
    """The first step that may compute its next token."""
    place: int = 0
    """Its place among those who decode in a convoy."""
    joined: int = 0
    """The step after which it decoded in a convoy; what is above holds for the end of that step."""


@dataclass(slots=True)
class Plan:
    """What one step computes."""

    sequences: list[Sequence] = field(default_factory=list)
    new_tokens: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    """Those that left the queue for this step."""
    sampled: list[Sequence] = field(default_factory=list)
    """Those that produce a token at its end."""
    num_preempted: int = 0

    @property
    def shape(self) -> StepShape:
        """What a step timer needs to know."""
        return StepShape(self.new_tokens, self.computed, len(self.sampled))
