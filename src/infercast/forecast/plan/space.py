"""All that a question allows, cut down by memory, by bounds and by a quick estimate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from infercast.errors import DoesNotFitError, InfercastError
from infercast.forecast.plan.bounds import Bounds, Lengths, bounds_of, least_replicas, lengths_of, most_headroom
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.deployed import deployed, rough_timer
from infercast.forecast.plan.guess import Engine, Guess, Mix, Steps, guess, mix_of
from infercast.forecast.plan.question import Question
from infercast.forecast.plan.result import Row, Stage
from infercast.units import format_gpus, format_seconds, format_watts

HOPELESS = 0.7
"""A headroom by the quick estimate below which a candidate is not simulated. Of those that kept their SLO in some 120
simulations of three models the lowest had 0.86; pipelines that are nearly full, which are never best, are lower."""
PLENTY = 3.0
"""A headroom from which on nobody asks for more replicas."""
LEAST_RATE, MOST_RATE = 0.01, 1e5
"""Requests a second between which the most that a replica keeps is looked for."""


class Option(NamedTuple):
    """A candidate that may be worth a simulation."""

    candidate: Candidate
    cost: float | None
    guess: Guess
    rate: float = 0.0
    """Requests a second at which the estimate just keeps the SLO, where that is looked for."""


class Stem(NamedTuple):
    """Units that differ in settings alone, and what the best of them cannot beat."""

    units: tuple[Candidate, ...]
    replicas: tuple[int, ...]
    """The least that each unit needs."""

    def least(self, question: Question) -> Candidate:
        """The smallest deployment that might do."""
        replicas, unit = min(zip(self.replicas, self.units, strict=True), key=lambda pair: pair[0])
        return unit.times(replicas)


def stems_of(question: Question, lengths: Lengths) -> tuple[list[Stem], list[Row]]:
    """All units that bounds leave, by what their step times depend on, and those that they rule out."""
    stems: list[Stem] = []
    ruled_out: list[Row] = []
    for _, group in groupby(question.units(), key=lambda unit: unit.stem):
        units, replicas = [], []
        for unit in group:
            bounds = bounds_of(question, unit, lengths)
            count = least_replicas(question, bounds)
            if reason := _impossible(question, unit, count, lengths, bounds):
                room = most_headroom(question, lengths, bounds, bounds)[0]
                cost = question.cost(unit.times(count))
                ruled_out.append(Row(unit.times(count), Stage.BOUND, cost, headroom=room, reason=reason))
            else:
                units.append(unit)
                replicas.append(count)
        if units:
            stems.append(Stem(tuple(units), tuple(replicas)))
    return stems, ruled_out


def _impossible(question: Question, unit: Candidate, replicas: int, lengths: Lengths, bounds: Bounds) -> str:
    """Why no deployment of this kind can be an answer; empty if one may be."""
    headroom, limit = most_headroom(question, lengths, bounds, bounds)
    if headroom <= 1.0:
        return (
            f"{limit} cannot hold: reading the weights or multiplying the prompt alone takes "
            f"{format_seconds(limit.seconds / headroom)}"
        )
    least = unit.times(replicas)
    if question.allows(least) or question.goal.finds_rate:
        return ""
    if least.gpus > question.max_gpus:
        needed = format_gpus(least.gpus)
        return f"{question.rate:.3g} requests/s need at least {needed}, above the {question.max_gpus} allowed"
    if question.power_budget is not None and not question.allows_power(least):
        return f"{format_gpus(least.gpus)} at idle: above the power budget of {format_watts(question.power_budget)}"
    return f"costs at least {question.cost(least):,.2f} per hour, above the budget of {question.budget:,.2f}"


class Looked(NamedTuple):
    """What a quick look at a stem found."""

    options: tuple[Option, ...]
    rows: tuple[Row, ...]
    """Units that do not fit, and numbers of replicas that are hopeless."""


def look_at(stem: Stem, question: Question) -> Looked:
    """Estimate every unit of a stem with every number of replicas that is allowed."""
    rows: list[Row] = []
    fitting: dict[object, tuple[Candidate, int]] = {}
    for unit, least in zip(stem.units, stem.replicas, strict=True):
        try:
            settings = deployed(question.site, unit).settings
        except InfercastError as problem:
            why = "does not fit" if isinstance(problem, DoesNotFitError) else "the engine refuses it"
            rows.append(Row(unit, Stage.REFUSED, question.cost(unit), reason=f"{why}: {problem}"))
        else:
            fitting.setdefault(settings, (unit, least))  # settings that are the engine's own choice anyway come once
    if not fitting:
        return Looked((), tuple(rows))
    options: list[Option] = []
    units = tuple(unit for unit, _ in fitting.values())
    lengths, timer = lengths_of(question), rough_timer(question.site, units)
    mix = mix_of(lengths, _cached(question, lengths))
    steps = Steps(timer, mix)
    for unit, least in fitting.values():
        engine = Engine(deployed(question.site, unit), steps)
        for count in _counts(question, unit, least):
            candidate, rate = unit.times(count), question.rate / count
            made, factor = guess(question.slo, mix, engine, engine, (rate, rate)), 0.0
            if question.goal.finds_rate:
                factor = _most(partial(_keeps, question, mix, engine))
                made = made._replace(headroom=1.0 if factor else 0.0)
            options.append(Option(candidate, question.cost(candidate), made, count * factor))
            if made.headroom > PLENTY:
                break
    return Looked(tuple(options), tuple(rows))


def _most(holds: Callable[[float], bool]) -> float:
    """The largest rate that holds, within 2 %; 0 if hardly any does."""
    low, high = 0.0, LEAST_RATE
    while holds(high) and high < MOST_RATE:
        low, high = high, 2.0 * high
    while low and high / low > 1.02:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _keeps(question: Question, mix: Mix, engine: Engine, rate: float) -> bool:
    return guess(question.slo, mix, engine, engine, (rate, rate)).headroom > 1.0


def _counts(question: Question, unit: Candidate, least: int) -> Sequence[int]:
    """Numbers of replicas to look at; where the rate is looked for, as many as are allowed."""
    most = 0
    while question.allows(unit.times(most + 1)):
        most += 1
    return range(max(1, most), most + 1) if question.goal.finds_rate else range(least, most + 1)


def _cached(question: Question, lengths: Lengths) -> float:
    """Tokens of a prompt that another prompt may have left behind, on average."""
    requests = question.workload.requests
    return sum(each.num_input for each in requests) / len(requests) - float(lengths.new_inputs.mean())
