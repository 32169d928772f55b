"""Simulations, the short ones first: who comes out of a round goes on to the next.

All functions hand their work to an executor in portions of fixed sizes, so that the answer does not depend on how many
workers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from math import inf

from infercast.errors import InfercastError
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.deployed import own_timer
from infercast.forecast.plan.evaluate import evaluate, evaluate_closely, short_headroom
from infercast.forecast.plan.question import Question
from infercast.forecast.plan.result import Row, Stage
from infercast.forecast.plan.space import HOPELESS, Option
from infercast.forecast.plan.workers import Executor

SHORT = 200
"""Requests of a short simulation."""
PROMISING = 0.9
"""A headroom in a short simulation from which on the whole workload is simulated. Short runs are mostly too good: of
120 candidates, the lowest of those that then kept their SLO had 1.02."""
CLOSE = 0.88
"""A headroom from which on other settings may make up for what is missing ..."""
MOST_CLOSE = 3
"""... of so many kinds of replicas."""
PAIR = 2
"""Candidates whose whole simulations are asked for at once, where the first that holds ends the search."""


@dataclass
class Rounds:
    """What has been simulated, and how to simulate more."""

    question: Question
    workers: Executor
    tell: Callable[[str], None] | None = None
    rows: dict[Candidate, Row] = field(default_factory=dict)
    """The last word on each candidate."""

    def screen(self, options: Sequence[Option]) -> list[Option]:
        """Those that a short simulation finds promising, the best first."""
        asked = [option for option in options if option.candidate not in self.rows]
        if asked:
            self._say(f"{len(asked)} short simulations")
        known = [option for option in options if option.candidate in self.rows]
        kept = [(room, each) for each in known if (room := self.rows[each.candidate].headroom or 0.0) >= PROMISING]
        for option, room in zip(asked, self.workers.map(partial(short, question=self.question), asked), strict=True):
            reason = f"a short simulation has a headroom of {room:.2f}"
            self.rows[option.candidate] = Row(option.candidate, Stage.SCREENED, option.cost, None, room, reason)
            if room >= PROMISING:
                kept.append((room, option))
        return [option for _, option in sorted(kept, key=lambda pair: -pair[0])]

    def simulate(self, candidates: Iterable[Candidate]) -> list[Row]:
        """The whole workload on each of them."""
        asked = list(candidates)
        new = [each for each in dict.fromkeys(asked) if not self._is_done(each)]
        if new:
            self._say(f"{len(new)} simulations")
        for row in self.workers.map(partial(evaluate, question=self.question), new):
            self.rows[row.candidate] = row
        return [self.rows[each] for each in asked]

    def look_closely(self, candidates: Iterable[Candidate]) -> list[Row]:
        """Simulate these once more for their intervals and odds, each at the rate that was found for it."""
        chosen = [(each, self.rows[each].rate) for each in candidates]
        self._say(f"{len(chosen)} intervals")
        rows = self.workers.map(partial(closely, question=self.question), chosen)
        for (candidate, rate), row in zip(chosen, rows, strict=True):
            self.rows[candidate] = replace(row, rate=rate)
        return [self.rows[candidate] for candidate, _ in chosen]

    def _is_done(self, candidate: Candidate) -> bool:
        row = self.rows.get(candidate)
        return row is not None and row.stage in (Stage.SIMULATED, Stage.REFUSED)

    def _say(self, what: str) -> None:
        if self.tell is not None:
            self.tell(what)


def closely(asked: tuple[Candidate, float | None], question: Question) -> Row:
    """A candidate with intervals, at a rate of its own if there is one."""
    candidate, rate = asked
    return evaluate_closely(candidate, question if rate is None else question.at_rate(rate / question.rate))


def at_rate(asked: tuple[Candidate, float], question: Question) -> Row:
    """A candidate whose requests come so many times as fast."""
    candidate, factor = asked
    return evaluate(candidate, question.at_rate(factor), medians=False)


def short(option: Option, question: Question) -> float:
    """The headroom of a short simulation."""
    candidate = option.candidate
    try:
        timers = [own_timer(question.site, pool.unit) for pool in candidate.pools]
        return short_headroom(question, candidate, timers, SHORT)
    except InfercastError:
        return 0.0


def climb(
    rounds: Rounds, options: Sequence[Option], value: Callable[[Candidate], float], hopeless: float = HOPELESS
) -> float:
    """Go up from the lowest value that is not hopeless to the first at which a candidate keeps the SLO; returns it.

    At each value one candidate of every kind is simulated, first shortly; kinds that come close, with other settings.
    """
    hopeful = [option for option in options if option.guess.headroom >= hopeless]
    hopeful.sort(key=lambda option: (value(option.candidate), -option.guess.headroom, str(option.candidate)))
    for level, group in groupby(hopeful, key=lambda option: value(option.candidate)):
        kinds: dict[Candidate, list[Option]] = {}
        for option in group:
            kinds.setdefault(option.candidate.stem, []).append(option)
        promising = rounds.screen([each[0] for each in kinds.values()])
        if _first_that_holds(rounds, promising):
            return level
        close = [option.candidate for option in promising if _room(rounds, option) >= CLOSE]
        others = [option for each in close[:MOST_CLOSE] for option in kinds[each.stem][1:]]
        if _first_that_holds(rounds, rounds.screen(others)):
            return level
    return inf


def _first_that_holds(rounds: Rounds, options: Sequence[Option]) -> bool:
    """Simulate one pair after the other until one of them keeps the SLO."""
    for first in range(0, len(options), PAIR):
        found = rounds.simulate(option.candidate for option in options[first : first + PAIR])
        if any(row.holds for row in found):
            return True
    return False


def _room(rounds: Rounds, option: Option) -> float:
    return rounds.rows[option.candidate].headroom or 0.0


def halve(rounds: Rounds, options: Sequence[Option], value: Callable[[Option], float], most: int) -> None:
    """Screen the likeliest by a value that only a simulation knows, and simulate the better half of them."""
    hopeful = [option for option in options if option.guess.headroom >= HOPELESS]
    hopeful.sort(key=lambda option: (value(option), -option.guess.headroom, str(option.candidate)))
    best = hopeful[: 2 * most]
    promising = {option.candidate for option in rounds.screen(best)}
    rounds.simulate([option.candidate for option in best if option.candidate in promising][:most])
