"""From a question to its answer: bounds, quick estimates, short simulations, whole ones, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf

from infercast.forecast.plan.bounds import lengths_of
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.front import front_of, likely_front
from infercast.forecast.plan.nearest import nearest_of
from infercast.forecast.plan.pools import pool_options
from infercast.forecast.plan.question import Question
from infercast.forecast.plan.result import Nearest, Plan, Row, Stage
from infercast.forecast.plan.rounds import Rounds, at_rate, climb, halve
from infercast.forecast.plan.space import HOPELESS, Option, Stem, look_at, stems_of
from infercast.forecast.plan.words import changes_of, notes_of, why_lost, why_none
from infercast.forecast.plan.workers import Executor, Serial
from infercast.units import format_gpus

WAVE = 16
"""Stems that are estimated before the next look at what the best of them would cost."""
SURE = 1.25
"""A headroom by the quick estimate at which a candidate is all but sure to keep the SLO."""
LIKELY = 0.98
"""A headroom by the quick estimate from which on the best of other GPUs is looked for."""
REACH = 2.0
"""Candidates that cost more than so many times the best are not looked at: nobody wants them on a front."""
NEAR, MANY = 1.6, 12
"""Candidates within this factor of the best, by an order that is rough, are simulated as well; so many of them."""
FEW = 6
"""Candidates of which the most requests a second are found, or the least latency."""
TRISECTIONS = 3
MOST_TIMES = 4.0
"""Rates beyond so many times the one that is asked for are not looked at."""


def plan(question: Question, workers: Executor | None = None, tell: Callable[[str], None] | None = None) -> Plan:
    """The best deployment for a question; ``tell`` is told of each part of the work as it begins.

    The answer does not depend on who does the work, nor on how many of them.
    """
    rounds = Rounds(question, workers or Serial(), tell)
    stems, ruled_out = stems_of(question, lengths_of(question))
    options, refused, left = _look(rounds, stems)
    if question.disaggregate:
        options += pool_options(question, options)
    _simulate(rounds, options)
    best = _best(rounds)
    if best is not None and not question.goal.finds_rate:
        _rivals(rounds, options, best)
        rounds.simulate(_as_good(question, options, best))
        rounds.simulate([*_like(best.candidate, options), *likely_front(options, REACH * _price(best))])
        best = _best(rounds)
    held = [row for row in rounds.rows.values() if row.holds]
    spent = question.goal.value if question.goal.rough else None
    front, runner_up = front_of(held, best, spent), _runner_up(rounds, best)
    closely = dict.fromkeys(row.candidate for row in (*([best] if best else []), *front, *_some(runner_up)))
    rounds.look_closely(closely)
    best, runner_up = _again(rounds, best), _again(rounds, runner_up)
    most = None if best is None else _most_rate(rounds, best)
    nearest: tuple[Nearest, ...] = () if best is not None else nearest_of(rounds, options, _most_rate)
    rows = _ranked(question, rounds, options, [*refused, *ruled_out, *_unlooked(question, left)], best)
    return Plan(
        question=question,
        winner=best,
        front=tuple(rounds.rows[row.candidate] for row in front),
        rows=rows,
        runner_up=runner_up,
        why=why_none(question, rows) if best is None else why_lost(question, best, runner_up),
        changes=() if best is None else changes_of(question, best, [rounds.rows[row.candidate] for row in held], most),
        nearest=nearest,
        notes=notes_of(question, rows),
        num_candidates=max(_count(question), len(rows)),
    )


def _look(rounds: Rounds, stems: list[Stem]) -> tuple[list[Option], list[Row], list[Stem]]:
    """Estimate stems, those first that may cost least, until the rest cost too much; returns the rest, too."""
    question, known = rounds.question, rounds.question.goal.known
    options: list[Option] = []
    refused: list[Row] = []

    def least(stem: Stem) -> float:
        return 0.0 if known is None else known(question, stem.least(question))

    waiting, best = sorted(stems, key=least), inf
    while waiting and least(waiting[0]) <= REACH * best:
        wave, waiting = waiting[:WAVE], waiting[WAVE:]
        if rounds.tell is not None:
            rounds.tell(f"estimates of {wave[0].units[0].gpu}")
        for looked in rounds.workers.map(partial(look_at, question=question), wave):
            options += looked.options
            refused += looked.rows
        if known is not None:
            sure = (option.candidate for option in options if option.guess.headroom >= SURE)
            best = min((known(question, each) for each in sure), default=inf)
    return options, refused, waiting


def _simulate(rounds: Rounds, options: list[Option]) -> None:
    """Simulate what may be best."""
    goal, question = rounds.question.goal, rounds.question
    if goal.known is not None:
        climb(rounds, options, partial(goal.known, question))
    elif not goal.finds_rate:
        halve(rounds, options, lambda option: option.guess.end_to_end, FEW)
    else:
        ranked = sorted(options, key=lambda option: (-option.rate, str(option.candidate)))
        for option in islice((each for each in ranked if each.rate > 0), FEW):
            factor = option.rate / question.rate
            rate = _bisect(rounds, option.candidate, 0.7 * factor, 1.4 * factor)
            if rate is not None:
                asked = [(option.candidate, rate / question.rate)]
                (row,) = rounds.workers.map(partial(at_rate, question=question), asked)
                rounds.rows[option.candidate] = replace(row, rate=rate)


def _rivals(rounds: Rounds, options: Sequence[Option], best: Row) -> None:
    """The best of every other kind of GPU, as far as the quick estimate tells: what a lower price would change."""
    known, question = rounds.question.goal.known, rounds.question
    if known is None:
        return
    mine, most = {pool.gpu for pool in best.candidate.pools}, REACH * question.goal.value(best)
    for gpu in question.gpus:
        if gpu not in mine:
            own = [each for each in options if {pool.gpu for pool in each.candidate.pools} == {gpu}]
            near = [each for each in own if known(question, each.candidate) <= most]
            climb(rounds, near, partial(known, question), LIKELY)


def _as_good(question: Question, options: Sequence[Option], best: Row) -> list[Candidate]:
    """Other kinds of replicas that may be better where what is known of the objective is an order and no more."""
    known = question.goal.known
    if known is None or not question.goal.rough:
        return []
    most = NEAR * known(question, best.candidate)
    likely = [each for each in options if each.guess.headroom >= LIKELY and known(question, each.candidate) <= most]
    likely.sort(key=lambda each: (known(question, each.candidate), -each.guess.headroom, str(each.candidate)))
    kinds: dict[Candidate, Candidate] = {}
    for option in likely:
        kinds.setdefault(option.candidate.stem, option.candidate)
    return list(kinds.values())[:MANY]


def _bisect(rounds: Rounds, candidate: Candidate, low: float, high: float, *, known: bool = False) -> float | None:
    """The most requests a second that keep the SLO, between these multiples of the rate; None if not even the least.

    ``known``: the least is known to. Two rates are asked for at once, so that two workers have something to do.
    """

    def hold(*factors: float) -> list[bool]:
        asked = [(candidate, factor) for factor in factors]
        return [row.holds for row in rounds.workers.map(partial(at_rate, question=rounds.question), asked)]

    if not known and not all(hold(low)):
        return None
    for _ in range(TRISECTIONS):
        third = (high / low) ** (1 / 3)
        first, second = hold(low * third, low * third * third)
        edges = [low, low * third, low * third * third, high]
        part = 0 if not first else 1 if not second else 2
        low, high = edges[part], edges[part + 1]
    return low * rounds.question.rate


def _most_rate(rounds: Rounds, row: Row) -> float | None:
    """Up to which rate a candidate keeps the SLO; for one that does not keep it, the rate that it would keep."""
    if rounds.question.goal.finds_rate:
        return row.rate
    if row.holds:
        capacity = row.figures.capacity if row.figures is not None else None
        most = MOST_TIMES if capacity is None else max(1.02, min(MOST_TIMES, capacity / rounds.question.rate))
        return _bisect(rounds, row.candidate, 1.0, most, known=True)
    low = 1.0
    while low > 1e-3:
        low /= MOST_TIMES
        if (rate := _bisect(rounds, row.candidate, low, MOST_TIMES * low)) is not None:
            return rate
    return None


def _best(rounds: Rounds) -> Row | None:
    """The best that keeps the SLO; of equals the one with most headroom."""
    goal = rounds.question.goal
    held = [row for row in rounds.rows.values() if row.holds]
    return min(held, key=lambda row: (goal.value(row), -(row.headroom or 0.0), str(row.candidate)), default=None)


def _like(candidate: Candidate, options: Sequence[Option]) -> list[Candidate]:
    """The same with other settings: they cost as much, and one may keep more room."""
    same = [each.candidate for each in options if each.guess.headroom >= HOPELESS]
    return [each for each in same if each.stem == candidate.stem and _sizes(each) == _sizes(candidate)]


def _sizes(candidate: Candidate) -> list[int]:
    return [pool.replicas for pool in candidate.pools]


def _runner_up(rounds: Rounds, best: Row | None) -> Row | None:
    """The best of another kind: another GPU, layout or format."""
    if best is None:
        return None
    goal, kind = rounds.question.goal, best.candidate.stem
    others = [row for row in rounds.rows.values() if row.holds and row.candidate.stem != kind]
    if not others:
        others = [row for row in rounds.rows.values() if row.stage is Stage.SIMULATED and row.candidate.stem != kind]
        return max(others, key=lambda row: (row.headroom or 0.0, str(row.candidate)), default=None)
    return min(others, key=lambda row: (goal.value(row), -(row.headroom or 0.0), str(row.candidate)))


def _again(rounds: Rounds, row: Row | None) -> Row | None:
    return None if row is None else rounds.rows[row.candidate]


def _some(row: Row | None) -> list[Row]:
    return [] if row is None else [row]


def _price(row: Row) -> float:
    return inf if row.cost is None else row.cost


def _unlooked(question: Question, stems: Sequence[Stem]) -> list[Row]:
    """Stems that cost too much however well they do."""
    rows = []
    for stem in stems:
        least = stem.least(question)
        cost = question.cost(least)
        words = format_gpus(least.gpus) if cost is None else f"{cost:,.2f} per hour"
        rows.append(Row(least, Stage.BOUND, cost, reason=f"takes at least {words}, far more than the best"))
    return rows


def _ranked(
    question: Question, rounds: Rounds, options: Sequence[Option], others: Sequence[Row], best: Row | None
) -> tuple[Row, ...]:
    """Every row, best first."""
    rows = dict(rounds.rows)
    for option in options:
        if option.candidate not in rows:
            room = option.guess.headroom
            reason = "a quick estimate says that it cannot keep up" if not room else _said(question, option, best)
            rows[option.candidate] = Row(option.candidate, Stage.ESTIMATED, option.cost, headroom=room, reason=reason)
    goal, order = question.goal, [*Stage][::-1]

    def place(row: Row) -> tuple[bool, int, float, float, str]:
        value = goal.value(row) if row.holds else 0.0
        return not row.holds, order.index(row.stage), value, -(row.headroom or 0.0), str(row.candidate)

    return tuple(sorted([*rows.values(), *others], key=place))


def _said(question: Question, option: Option, best: Row | None) -> str:
    """Why a candidate that was only estimated was not simulated."""
    room, known = option.guess.headroom, question.goal.known
    if best is not None and known is not None and known(question, option.candidate) > question.goal.value(best):
        return f"takes more than the best; a quick estimate has a headroom of {room:.2f}"
    return f"a quick estimate has a headroom of {room:.2f}"


def _count(question: Question) -> int:
    """All that the question allows: every unit with every number of replicas."""
    return sum(max(1, question.max_gpus // unit.layout.gpus) for unit in question.units())
