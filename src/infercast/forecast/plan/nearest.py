"""The nearest question that has an answer, where one has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from infercast.errors import InfercastError
from infercast.forecast.plan.bounds import lengths_of
from infercast.forecast.plan.deployed import deployed
from infercast.forecast.plan.question import Question
from infercast.forecast.plan.result import Figures, Nearest, Row, Stage
from infercast.forecast.plan.rounds import Rounds
from infercast.forecast.plan.space import Option, look_at, stems_of
from infercast.forecast.plan.words import money, named
from infercast.forecast.slo import QUANTITIES, Limit, Slo
from infercast.units import format_gpus, format_watts

CLOSEST = 3
"""Candidates that are simulated to say how close it is."""
LOOSER = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Limits are tried at so many times what was asked for."""
SLOWER = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0, 256.0)
"""Rates are, at so many parts of it."""
LARGER = (2, 4, 8, 16)
"""Numbers of GPUs are, too."""
LOOKED = 24
"""Kinds of replicas that are estimated for it."""
MARGIN = 1.02
"""Limits that just do are written with so much room."""

MostRate = Callable[[Rounds, Row], float | None]


def nearest_of(rounds: Rounds, options: Sequence[Option], most_rate: MostRate) -> tuple[Nearest, ...]:
    """The tightest SLO that can be had at this rate, and the rate at which this one can; or what would fit at all."""
    question = rounds.question
    ranked = _likeliest(options) or _with_looser_limits(rounds)
    if not ranked:
        return _what_fits(question)
    tried = sorted(rounds.simulate(each.candidate for each in ranked[:CLOSEST]), key=lambda row: -(row.headroom or 0.0))
    (best,) = rounds.look_closely([tried[0].candidate])
    if best.figures is None:
        return ()
    found = []
    if best.figures.state != "overloaded":
        reached = Slo(tuple(_reached(limit, best.figures) for limit in question.slo.limits))
        found.append(Nearest(best, f"{named(best)} keeps {reached} at this rate, for {_spent(best)}."))
    else:
        slower = _at_lower_rates(rounds)
        best = rounds.simulate([slower[0].candidate])[0] if slower else best
    rate = most_rate(rounds, best)
    if rate is not None:
        words = f"{named(best)} keeps this SLO up to {rate:.3g} requests/s, for {_spent(best)}."
        found.append(Nearest(best, words))
    return tuple(found)


def _spent(row: Row) -> str:
    """Money, and power where that is what is short."""
    figures = row.figures
    if figures is None or figures.drawn is None or not figures.beyond:
        return money(row.cost)
    return f"{money(row.cost)} and {format_watts(figures.drawn.peak_watts)}"


def _reached(limit: Limit, figures: Figures) -> Limit:
    """The limit, or what is kept in its place, in three digits."""
    summary = getattr(figures, QUANTITIES[limit.quantity])
    value = getattr(summary, limit.name.partition("_")[2], limit.seconds / figures.headroom)
    return limit if value < limit.seconds else _loosened(limit, MARGIN * value / limit.seconds)


def _at_lower_rates(rounds: Rounds) -> list[Option]:
    """What is likeliest to keep the SLO at the least lowered rate."""
    for factor in SLOWER:
        slower = rounds.question.at_rate(1.0 / factor)
        stems, _ = stems_of(slower, lengths_of(slower))
        looked = rounds.workers.map(partial(look_at, question=slower), stems[:LOOKED])
        options = [option for each in looked for option in each.options if option.guess.headroom > 1.0]
        if options:
            return _likeliest(options)
    return []


def _likeliest(options: Sequence[Option]) -> list[Option]:
    hopeful = [option for option in options if option.guess.headroom > 0] or list(options)
    return sorted(hopeful, key=lambda option: (-option.guess.headroom, option.cost or 0.0, str(option.candidate)))


def _with_looser_limits(rounds: Rounds) -> list[Option]:
    """What is likeliest to keep the least loosened limits that bounds allow."""
    question = rounds.question
    for factor in LOOSER:
        looser = replace(question, slo=Slo(tuple(_loosened(limit, factor) for limit in question.slo.limits)))
        stems, _ = stems_of(looser, lengths_of(looser))
        looked = rounds.workers.map(partial(look_at, question=looser), stems[:LOOKED])
        options = [option for each in looked for option in each.options]
        if any(option.guess.headroom > 0 for option in options):
            return _likeliest(options)
    return []


def _what_fits(question: Question) -> tuple[Nearest, ...]:
    """The smallest number of GPUs on which the model fits at all."""
    for times in LARGER:
        larger = replace(question, max_gpus=times * question.max_gpus)
        for unit in larger.units():
            try:
                deployed(question.site, unit)
            except InfercastError:
                continue
            row = Row(unit, Stage.ESTIMATED, question.cost(unit), reason="more GPUs than allowed")
            return (Nearest(row, f"{named(row)} fits: {format_gpus(unit.gpus)} for {money(row.cost)}."),)
    return ()


def _loosened(limit: Limit, factor: float) -> Limit:
    """A limit that is so many times as long, if that is longer, in three digits."""
    return Limit(limit.quantity, limit.percentile, float(f"{limit.seconds * max(1.0, factor):.3g}"))
