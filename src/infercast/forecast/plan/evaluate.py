"""Candidates simulated: short runs first, whole ones for the promising, and points around the winner to benchmark.

Work goes to an executor in portions of fixed sizes, so the answer does not depend on the number of workers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from math import inf
from typing import NamedTuple

from infercast.errors import InfercastError
from infercast.forecast.intervals import Intervals, forecast_intervals
from infercast.forecast.plan.candidate import Candidate, Row, Stage, figures_of
from infercast.forecast.plan.executors import Executor, check_time
from infercast.forecast.plan.question import Question, beyond_budget, deployed, own_timer
from infercast.forecast.plan.screening import HOPELESS, Option
from infercast.forecast.result import Forecast, value_of
from infercast.forecast.simulate import simulate_system
from infercast.forecast.slo import Slo, served_headroom
from infercast.forecast.steady import CLEAR, MISSED
from infercast.forecast.system import System, system_of, two_pools
from infercast.lazy_classes import dataclass, field, replace
from infercast.serve import Workload
from infercast.serve.record import Served
from infercast.serve.workload.synthetic import dealt_out, synthetic_workload

CLEARLY = 0.75
"""A run that is to decide its own length is of no interest where its first requests keep so little of a limit ..."""
MISSES = 1.0
"""... or where it misses one by as many standard errors, if the SLO is to hold more likely than not: such odds take
about as much room on the other side."""
MOST_FORECASTS = 8  # Runs that are kept


def evaluate(
    candidate: Candidate, question: Question, *, factor: float = 1.0, intervals: bool = False, medians: bool = True
) -> Row:
    """Simulate the whole workload on a candidate, ``factor`` times as fast; without ``medians`` only for the SLO."""
    question, cost = question.at_rate(factor), question.cost(candidate)
    try:
        forecast, times = _forecast(candidate, question, whole=intervals, medians=medians)
    except _Missed as missed:
        return Row(candidate, Stage.SIMULATED, cost, headroom=missed.room, reason=str(missed))
    except InfercastError as problem:
        return Row(candidate, Stage.REFUSED, cost, reason=str(problem))
    figures = figures_of(forecast, question.slo, times, intervals=intervals)
    if question.least_odds:
        if figures.odds is None and figures.holds:
            figures = figures_of(forecast, question.slo, times, intervals=True)
        figures = replace(figures, asked_odds=question.least_odds)
    cost = question.whole_cost(candidate, figures.drawn)
    beyond = beyond_budget(question, cost, figures.drawn)
    return Row(candidate, Stage.SIMULATED, cost, replace(figures, beyond=beyond), figures.headroom, beyond)


class _Missed(Exception):  # noqa: N818 - an answer and no error
    """A run that misses the SLO so clearly, in its first requests or in its steady part, that no others matter."""

    def __init__(self, room: float, tightest: str) -> None:
        super().__init__(f"misses {tightest} by {100 / room - 100:.0f} %")
        self.room = room


_forecasts: OrderedDict[tuple[Candidate, bool], tuple[Question, Forecast, int]] = OrderedDict()
"""The last runs of this process that kept their SLO: those shown are asked for their intervals later."""


def _forecast(candidate: Candidate, question: Question, *, whole: bool, medians: bool) -> tuple[Forecast, int]:
    """A run of a candidate and how many such parts it has; unless ``whole``, no longer than it takes to reject it."""
    medians = medians and question.workload.open_ended
    known = _forecasts.get((candidate, medians))
    if known is not None and known[0] == question:
        return known[1:]
    system, times, workload = _simulated_part(candidate, question)
    # Whether it could keep up in the long run no longer matters where an SLO is missed.
    least = -inf if whole else CLEARLY if workload.open_ended else 1.0
    check = partial(_check_headroom, question.slo, least)
    rejects = inf if whole else MISSES if question.least_odds > 0.5 else CLEAR
    made = simulate_system(
        system, workload, progress=check_time, slo=question.slo, medians=medians, rejects=rejects, check=check
    )
    forecast = replace(made, facility=question.facility)
    room, tightest = min(
        (limit.seconds / max(value_of(made, limit), 1e-12), limit.name) for limit in question.slo.limits
    )
    if made.steady.stopped == MISSED:
        raise _Missed(room, tightest)
    if room > 1.0:
        _forecasts[candidate, medians] = question, forecast, times
        while len(_forecasts) > MOST_FORECASTS:
            _forecasts.popitem(last=False)
    return forecast, times


def _check_headroom(slo: Slo, least: float, clients: Served) -> None:
    room, tightest = served_headroom(clients, slo)
    if room <= least:
        raise _Missed(room, tightest)


def _simulated_part(candidate: Candidate, question: Question) -> tuple[System, int, Workload]:
    """What is simulated of a candidate, how many of it there are, and the requests of one.

    Replicas with copies that step together are too many to be simulated together: one of them gets its share of the
    requests. All others are simulated behind the engine's load balancer.
    """
    pools = candidate.pools
    units = [deployed(question.shared, pool.unit) for pool in pools]
    timers = [own_timer(question.shared, pool.unit) for pool in pools]
    if len(units) == 1:
        together = 1 if units[0].shares_experts else candidate.replicas
        system, times = system_of(units[0], instances=together, timer=timers[0]), candidate.replicas // together
    else:
        instances = pools[0].replicas, pools[1].replicas
        system, times = two_pools(*units, instances=instances, link=question.link, timers=(timers[0], timers[1])), 1
    return system, times, question.workload if times == 1 else dealt_out(question.workload, times)


SHORT = 200  # Requests of a short simulation
FIRST = 500  # Requests of the first answer
LIKELY = 0.98  # A headroom by the quick estimate from which on the best of other GPUs is looked for
PROMISING = 0.9
"""A headroom in a short simulation from which on the whole workload is simulated. Short runs are mostly too good: of
120 candidates, the lowest of those that then kept their SLO had 1.02."""
CLOSE = 0.88  # A headroom from which on other settings are tried, too ...
MOST_CLOSE = 3  # ... for at most this many kinds of replicas.
PORTION = 4  # Kinds of replicas of one price, the likeliest first, that are simulated before the others


@dataclass
class SimulationStage:
    """Candidates that have been simulated, and the executor for more of them."""

    question: Question
    workers: Executor
    tell: Callable[[str], None]
    rows: dict[Candidate, Row] = field(default_factory=dict)  # The latest result of each candidate
    first: Row | None = None
    """The first that kept the SLO, for as many requests as give an answer at once; counts where no other does."""
    precise: set[Candidate] = field(default_factory=set)
    """Those whose run was as long as that of `simulate`; others end when it is clear whether they keep the SLO."""
    num_left: int = 0  # Candidates that nothing is known of
    doing: str = "a list of candidates"

    def say(self, words: str) -> None:
        """Tell what comes next, how much is left, and the best so far."""
        best, self.doing = self.best() or self.first, words
        left = f"; {self.num_left:,} candidates left" if self.num_left else ""
        self.tell(f"{words}{left}" if best is None else f"{words}{left}; best so far: {best.candidate}")

    def show_first(self, option: Option) -> None:
        """Serve a few requests on the likeliest candidate, to have an answer soon."""
        workload, question = self.question.workload, self.question
        few = replace(workload, requests=workload.requests[:FIRST], drawn=None, open_ended=False)
        row = evaluate(option.candidate, replace(question, workload=few, least_odds=0.0))
        self.first = row if row.holds else None

    @property
    def held(self) -> list[Row]:
        return [row for row in self.rows.values() if row.holds]

    def best(self, rows: Sequence[Row] | None = None) -> Row | None:
        """The best that keeps the SLO, of these; of equals the one with most headroom."""
        value, held = self.question.goal.value, self.held if rows is None else rows
        return min(held, key=lambda row: (value(row), -(row.headroom or 0.0), str(row.candidate)), default=None)

    def screen(self, options: Sequence[Option]) -> list[Option]:
        """Those that a short simulation finds promising, the best first."""
        asked = [option for option in options if option.candidate not in self.rows]
        if asked:
            self.say(f"{len(asked)} short simulations")
        known = [option for option in options if option.candidate in self.rows]
        kept = [(room, each) for each in known if (room := self.rows[each.candidate].headroom or 0.0) >= PROMISING]
        for option, room in zip(
            asked, self.workers.map(partial(short_headroom, question=self.question), asked), strict=True
        ):
            reason = f"a short simulation has a headroom of {room:.2f}"
            self.rows[option.candidate] = Row(option.candidate, Stage.SCREENED, option.cost, None, room, reason)
            if room >= PROMISING:
                kept.append((room, option))
        return [option for _, option in sorted(kept, key=lambda pair: -pair[0])]

    def simulate(self, candidates: Iterable[Candidate], *, medians: bool = False) -> list[Row]:
        asked, goal = list(candidates), self.question.goal
        medians = medians or goal.known is None or goal.rough  # where latencies or energy decide what is best
        done = {each for each, row in self.rows.items() if row.stage in (Stage.SIMULATED, Stage.REFUSED)}
        new = [each for each in dict.fromkeys(asked) if each not in done]
        if new:
            self.say(f"{len(new)} simulations")
        self.precise |= set(new) if medians else set()
        for row in self.workers.map(partial(evaluate, question=self.question, medians=medians), new):
            self.rows[row.candidate] = row
        return [self.rows[each] for each in asked]

    def look_closely(self, candidates: Iterable[Candidate]) -> list[Row]:
        """Simulate these once more for their intervals and odds, each at the rate that was found for it."""
        rate = self.question.rate
        chosen = [(each, (self.rows[each].rate or rate) / rate, each in self.precise) for each in candidates]
        self.say(f"{len(chosen)} intervals")
        for row in self.workers.map(partial(_evaluate_at, question=self.question, intervals=True), chosen):
            self.rows[row.candidate] = replace(row, rate=self.rows[row.candidate].rate)
        return [self.rows[candidate] for candidate, *_ in chosen]


def _evaluate_at(asked: tuple[Candidate, float, bool], question: Question, *, intervals: bool = False) -> Row:
    candidate, factor, medians = asked
    return evaluate(candidate, question, factor=factor, intervals=intervals, medians=medians)


def at_rates(stage: SimulationStage, candidate: Candidate, *factors: float) -> list[Row]:
    """Simulate a candidate at multiples of the question's rate, for its SLO alone."""
    asked = [(candidate, factor, False) for factor in factors]
    return list(stage.workers.map(partial(_evaluate_at, question=stage.question), asked))


def short_headroom(option: Option, question: Question) -> float:
    """The headroom that the first requests see: quick, and mostly too good, as the queue begins empty."""
    try:
        system, _, workload = _simulated_part(option.candidate, question)
        served = system.serve(replace(workload, requests=workload.requests[:SHORT], drawn=None)).clients
        return served_headroom(served, question.slo)[0]
    except InfercastError:
        return 0.0


def climb(
    stage: SimulationStage, options: Sequence[Option], value: Callable[[Candidate], float], *, is_rival: bool = False
) -> None:
    """Go up from the lowest value that is not hopeless to the first at which a candidate keeps the SLO.

    At each value one candidate of every kind is simulated, first shortly; kinds that come close, with other settings.
    """

    def one_holds(promising: Sequence[Option]) -> bool:
        return any(stage.simulate([option.candidate], medians=not is_rival)[0].holds for option in promising)

    least = LIKELY if is_rival else HOPELESS
    hopeful = [option for option in options if option.estimate.headroom >= least]
    hopeful.sort(key=lambda option: (value(option.candidate), -option.estimate.headroom, str(option.candidate)))
    for _, group in groupby(hopeful, key=lambda option: value(option.candidate)):
        kinds: dict[Candidate, list[Option]] = {}
        for option in group:
            kinds.setdefault(option.candidate.stem, []).append(option)
        ones, promising = [each[0] for each in kinds.values()], list[Option]()
        for first in range(0, len(ones), PORTION):
            found = stage.screen(ones[first : first + PORTION])
            if one_holds(found):
                return
            promising += found
        close = [option.candidate for option in promising if (stage.rows[option.candidate].headroom or 0.0) >= CLOSE]
        others = [option for each in close[:MOST_CLOSE] for option in kinds[each.stem][1:]]
        if one_holds(stage.screen(others)):
            return


def halve(stage: SimulationStage, options: Sequence[Option], value: Callable[[Option], float], most: int) -> None:
    """Screen the likeliest by a value that only a simulation knows, and simulate the better half of them."""
    hopeful = [option for option in options if option.estimate.headroom >= HOPELESS]
    hopeful.sort(key=lambda option: (value(option), -option.estimate.headroom, str(option.candidate)))
    best = hopeful[: 2 * most]
    promising = {option.candidate for option in stage.screen(best)}
    stage.simulate([option.candidate for option in best if option.candidate in promising][:most])


SHARES = (0.5, 0.8, 1.0, 1.2)  # Of the question's rate
SECONDS, LEAST, MOST = 60.0, 100, 1000  # Seconds of each rate, and the least and most requests


class Check(NamedTuple):
    """One benchmark, and what it should measure."""

    rate: float
    requests: int
    num_input: int
    num_output: int
    forecast: Forecast  # Of one of ``times`` equal parts, each of which gets its share of the requests
    intervals: Intervals
    times: int = 1


def checks_of(question: Question, candidate: Candidate) -> list[Check]:
    """Benchmarks around the rate of a question; those that a candidate cannot serve are left out.

    A benchmark sends prompts of one length at a rate: so does each forecast, with the mean lengths of the question.
    """
    requests = question.workload.requests
    num_input, num_output = (
        max(1, round(sum(getattr(each, name) for each in requests) / len(requests)))
        for name in ("num_input", "num_output")
    )
    system, times, _ = _simulated_part(candidate, question)
    found = []
    for share in SHARES:
        rate = float(f"{share * question.rate:.3g}")
        count = int(min(MOST, max(LEAST, SECONDS * rate)))
        workload = synthetic_workload(rate=rate, count=count, input_lengths=num_input, output_lengths=num_output)
        try:
            forecast = simulate_system(system, workload if times == 1 else dealt_out(workload, times))
        except InfercastError:
            continue
        found.append(Check(rate, count, num_input, num_output, forecast, forecast_intervals(forecast), times))
    return found
