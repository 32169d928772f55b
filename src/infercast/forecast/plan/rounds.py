"""Simulations, the short ones first: who comes out of a round goes on to the next.

All functions hand their work to an executor in portions of fixed sizes, so that the answer does not depend on how many
workers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from math import inf

from infercast.errors import InfercastError
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.deployed import own_timer, shared_timer
from infercast.forecast.plan.evaluate import evaluate, short_headroom
from infercast.forecast.plan.question import Question
from infercast.forecast.plan.result import Row, Stage
from infercast.forecast.plan.space import HOPELESS, Option
from infercast.forecast.plan.workers import Executor

SHORT = 200
"""Requests of a short simulation."""
PROMISING = 0.85
"""A headroom in a short simulation from which on the whole workload is simulated: short runs are mostly too good."""
AT_ONCE = 4
"""Candidates of a portion."""
OF_A_KIND = 2
"""Candidates of a portion that differ in settings alone."""


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
        self._say(f"{len(asked)} short simulations")
        kept = []
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
        self._say(f"{len(new)} simulations")
        for row in self.workers.map(partial(evaluate, question=self.question), new):
            self.rows[row.candidate] = row
        return [self.rows[each] for each in asked]

    def _is_done(self, candidate: Candidate) -> bool:
        row = self.rows.get(candidate)
        return row is not None and row.stage in (Stage.SIMULATED, Stage.REFUSED)

    def _say(self, what: str) -> None:
        if self.tell is not None:
            self.tell(what)


def short(option: Option, question: Question) -> float:
    """The headroom of a short simulation, by the step timer that the candidate shares with others."""
    candidate, site = option.candidate, question.site
    try:
        if candidate.prefill is None:
            timers = [shared_timer(site, option.siblings)]
        else:
            timers = [own_timer(site, pool.unit) for pool in candidate.pools]
        return short_headroom(question, candidate, timers, SHORT)
    except InfercastError:
        return 0.0


def climb(rounds: Rounds, options: Sequence[Option], value: Callable[[Candidate], float]) -> float:
    """Go up from the lowest value that is not hopeless to the first at which a candidate keeps the SLO; returns it.

    At each value the likeliest candidates are simulated, first shortly; where they come close, so are others like them.
    """
    hopeful = [option for option in options if option.guess.headroom >= HOPELESS]
    hopeful.sort(key=lambda option: (value(option.candidate), -option.guess.headroom, str(option.candidate)))
    for level, group in groupby(hopeful, key=lambda option: value(option.candidate)):
        waiting = list(group)
        for _ in range(2):
            chosen = _diverse(waiting)
            waiting = [option for option in waiting if option not in chosen]
            promising = rounds.screen(chosen)
            found = rounds.simulate(option.candidate for option in promising)
            if any(row.holds for row in found):
                return level
            if not promising:
                break
    return inf


def _diverse(options: Sequence[Option]) -> list[Option]:
    """The first of them, not too many of one kind."""
    counts: dict[Candidate, int] = {}
    chosen = []
    for option in options:
        stem = option.candidate.stem
        counts[stem] = counts.get(stem, 0) + 1
        if counts[stem] <= OF_A_KIND:
            chosen.append(option)
    return list(islice(chosen, AT_ONCE))


def halve(rounds: Rounds, options: Sequence[Option], value: Callable[[Option], float], most: int) -> None:
    """Screen the likeliest by a value that only a simulation knows, and simulate the better half of them."""
    hopeful = [option for option in options if option.guess.headroom >= HOPELESS]
    hopeful.sort(key=lambda option: (value(option), -option.guess.headroom, str(option.candidate)))
    best = hopeful[: 2 * most]
    promising = {option.candidate for option in rounds.screen(best)}
    rounds.simulate([option.candidate for option in best if option.candidate in promising][:most])
