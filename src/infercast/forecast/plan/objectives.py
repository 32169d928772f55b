"""What is best: one record for each objective. Another one is one more record."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from infercast.forecast.plan.power import rough_joules

if TYPE_CHECKING:
    from infercast.forecast.plan.candidate import Candidate
    from infercast.forecast.plan.question import Question
    from infercast.forecast.plan.result import Row


class Objective(NamedTuple):
    """What to make as small as possible."""

    name: str
    says: str
    """What the winner has, in words: ``costs least``."""
    known: Callable[[Question, Candidate], float] | None
    """Its value as far as it follows from the candidate alone, before anything is timed; None where it does not."""
    value: Callable[[Row], float]
    """Its value of a simulated candidate."""
    finds_rate: bool = False
    """Whether the rate that a candidate can be given is what is looked for."""
    rough: bool = False
    """Whether what is known before anything is timed is no more than an order."""


def _cost(question: Question, candidate: Candidate) -> float:
    cost = question.cost(candidate)
    return inf if cost is None else cost


def _gpus(question: Question, candidate: Candidate) -> float:
    return float(candidate.gpus)


def _cost_of(row: Row) -> float:
    return inf if row.cost is None else row.cost


def _gpus_of(row: Row) -> float:
    return float(row.gpus)


def _joules(question: Question, candidate: Candidate) -> float:
    return rough_joules(question, candidate)


def _joules_of(row: Row) -> float:
    drawn = None if row.figures is None else row.figures.drawn
    return inf if drawn is None else drawn.wall_joules_per_output_token


def _latency_of(row: Row) -> float:
    return inf if row.figures is None else row.figures.end_to_end.mean


def _rate_of(row: Row) -> float:
    return 0.0 if row.rate is None else -row.rate


OBJECTIVES = {
    each.name: each
    for each in (
        Objective("cost", "costs least", _cost, _cost_of),
        Objective("gpus", "needs fewest GPUs", _gpus, _gpus_of),
        Objective("energy", "takes least energy at the wall for each output token", _joules, _joules_of, rough=True),
        Objective("latency", "answers soonest", None, _latency_of),
        Objective("throughput", "serves most requests per second", None, _rate_of, finds_rate=True),
    )
}
