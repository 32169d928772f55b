"""What the loop of an engine asks of whoever plans its steps."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as SequenceOf
from typing import Any, Protocol

from infercast.serve.scheduler.sequence import Plan, Sequence
from infercast.serve.workload.request import Request


class Planner(Protocol):
    """Decides what each step computes."""

    num_preemptions: int
    cache: Any
    """The blocks that it hands out."""
    just_left: Any
    """Sequences that have left those who decode together since somebody looked, and had a token with them last."""

    @property
    def waiting(self) -> Collection[Sequence]:
        """Who has not started."""

    @property
    def running(self) -> Collection[Sequence]:
        """Who has."""

    def add(self, index: int, request: Request) -> None:
        """Queue a request."""

    def plan(self) -> Plan | None:
        """Plan the next step; None if nothing can be computed."""

    @property
    def tries_again(self) -> bool:
        """Whether it may plan a step at once where it could not plan one."""

    def most_steps(self, plan: Plan) -> int:
        """How often in a row the step just planned can be computed before something changes that is known of."""

    def steps_with_room(self, steps: int) -> int:
        """Of the steps after the next one, those for which there are blocks."""

    def start(self, plan: Plan, steps: int = 1) -> list[int]:
        """The step just planned is handed to the GPU so many times; returns the blocks held in each."""

    def end_early(self, plan: Plan) -> None:
        """Let go of those who had their last token in a repetition of a step before the last."""

    def complete(self, plan: Plan) -> SequenceOf[Sequence]:
        """Take in the tokens that a finished step yields; returns the sequences that are done."""
