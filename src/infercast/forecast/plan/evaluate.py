"""Candidates simulated: short runs first, whole ones for the promising, and points around the winner to benchmark."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from math import ceil, inf

from infercast.errors import InfercastError
from infercast.forecast.intervals import Intervals, forecast_intervals
from infercast.forecast.plan.candidate import Candidate, Row, Stage, figures_of
from infercast.forecast.plan.executors import Executor, check_time
from infercast.forecast.plan.question import Question, beyond_budget, deployed, own_timer
from infercast.forecast.plan.screening import HIGH_ODDS, HOPELESS, HOPELESS_ODDS, ScreenedOption
from infercast.forecast.result import Forecast, tightest
from infercast.forecast.simulate import most_requests_per_second, simulate_system
from infercast.forecast.slo import served_headroom
from infercast.forecast.steady import CLEAR, FAR_BEYOND, MISSED
from infercast.forecast.system import System, system_of, two_pools
from infercast.lazy_classes import NamedTuple, dataclass, field, replace
from infercast.serve import Workload
from infercast.serve.record import ServedRequests
from infercast.serve.workload.synthetic import dealt_out, synthetic_workload

CLEARLY = 0.75
"""A run that is to decide its own length is of no interest where its first requests keep so little of a limit ..."""
MISSES = 1.0
"""... or where it misses one by as many standard errors, if the SLO is to hold more likely than not: such odds take
about as much room on the other side."""
TOGETHER, SLICE = 16, 4  # Of a fleet with more replicas than the first, the second are simulated with their share
BEYOND = 1.03  # A multiple of its capacity that no fleet is simulated at, if the SLO is to hold more likely than not
KEPT = 1.15  # A headroom of the first requests with which a run goes on until it is that of `simulate`
MOST_FORECASTS, MOST_CAPACITIES = 8, 4096  # Runs and capacities that are kept


def evaluate(
    candidate: Candidate, question: Question, *, factor: float = 1.0, intervals: bool = False, whole_from: float = 0.0,
    together: int = TOGETHER,
) -> Row:  # fmt: skip
    """Simulate a workload ``factor`` times as fast; below a first headroom of ``whole_from`` only to judge the SLO."""
    asked, question, cost = question, question.at_rate(factor), question.cost(candidate)
    try:
        forecast, times, stage = _forecast(candidate, question, -inf if intervals else whole_from, asked, together)
    except _Missed as missed:
        return Row(candidate, Stage.JUDGED, cost, headroom=float(f"{missed.room:.2g}"), reason=str(missed))
    except InfercastError as problem:
        return Row(candidate, Stage.REFUSED, cost, reason=str(problem))
    figures = figures_of(forecast, question.slo, times, intervals=intervals)
    if question.least_odds:
        if figures.odds is None and figures.holds:
            figures = figures_of(forecast, question.slo, times, intervals=True)
        figures = replace(figures, asked_odds=question.least_odds)
    cost = question.whole_cost(candidate, figures.drawn)
    beyond = beyond_budget(question, cost, figures.drawn)
    return Row(candidate, stage, cost, replace(figures, beyond=beyond), figures.headroom, beyond)


class _Missed(Exception):  # noqa: N818 - an answer and no error
    """A run that misses the SLO so clearly, in its first requests or in its steady part, that no others matter."""

    def __init__(self, room: float, tightest: str) -> None:
        super().__init__(f"misses {tightest} by about {100 / room - 100:.2g} %")
        self.room = room


_forecasts: OrderedDict[Candidate, tuple[Question, Forecast, float, Stage]] = OrderedDict()
"""The last runs of this process that kept their SLO: those shown are asked for their intervals later."""
_capacities: dict[Candidate, tuple[Question, float]] = {}  # What a replica serves at most, at whichever rate


def _forecast(
    candidate: Candidate, question: Question, whole_from: float, asked: Question, together: int
) -> tuple[Forecast, float, Stage]:
    """A run of a candidate, how many such parts it has, and how far it came; for a negative headroom always whole."""
    known = _forecasts.get(candidate)
    if known is not None and known[0] == question and (known[3] is Stage.SIMULATED or whole_from > 0.0):
        return known[1:]
    system, times, workload = _simulated_part(candidate, question, together)
    # Whether it could keep up in the long run no longer matters where an SLO is missed.
    least = -inf if whole_from < 0.0 else CLEARLY if workload.open_ended else 1.0
    rejects = inf if whole_from < 0.0 else MISSES if question.least_odds > 0.5 else CLEAR
    rooms: list[float] = []  # The first decides whether a run is whole, since its next lengths follow from each other

    def check(clients: ServedRequests) -> None:
        room, limit = served_headroom(clients, question.slo)
        if room <= least:
            raise _Missed(room, limit)
        rooms.append(room if workload.open_ended else inf)

    def is_whole() -> bool:
        return rooms[0] >= whole_from

    def capacity() -> float:
        # Replicas that wait for nobody serve as much together as each alone.
        unit, count = (candidate.unit, candidate.replicas / times) if candidate.prefill is None else (candidate, 1.0)
        return count * _capacity_of(unit, asked, workload, system if count == 1.0 else None)

    rate = workload.rate if candidate.replicas > 1 and candidate.prefill is None and whole_from >= 0.0 else None
    if rate is not None and rate > (BEYOND if question.least_odds > 0.5 else FAR_BEYOND) * capacity():
        raise _Missed(capacity() / rate, "the rate")
    run = partial(simulate_system, system, workload, progress=check_time, slo=question.slo, check=check)
    made = run(capacity=capacity, medians=is_whole, rejects=rejects)
    forecast = replace(made, facility=question.facility)
    room, limit = tightest(made, question.slo)
    if made.steady.stopped == MISSED:
        raise _Missed(room, limit)
    stage = Stage.SIMULATED if is_whole() else Stage.JUDGED
    if room > 1.0:
        _forecasts[candidate] = question, forecast, times, stage
        while len(_forecasts) > MOST_FORECASTS:
            _forecasts.popitem(last=False)
    return forecast, times, stage


def _capacity_of(unit: Candidate, question: Question, workload: Workload, system: System | None = None) -> float:
    before = _capacities.get(unit)
    if before is None or before[0] != question:
        one = system or _simulated_part(unit, question)[0]
        before = _capacities[unit] = question, most_requests_per_second(one, workload)
        if len(_capacities) > MOST_CAPACITIES:
            _capacities.clear()
    return before[1]


def _simulated_part(
    candidate: Candidate, question: Question, together: int = TOGETHER
) -> tuple[System, float, Workload]:
    """What is simulated of a candidate, how many of it there are, and the requests of one. Replicas with copies that
    step together are too many: one of them gets its share. Of others up to ``together`` are simulated behind the
    engine's load balancer.
    """
    pools = candidate.pools
    units = [deployed(question.shared, pool.unit) for pool in pools]
    timers = [own_timer(question.shared, pool.unit) for pool in pools]
    if len(units) == 1:
        count = 1 if units[0].shares_experts else candidate.replicas
        if count > together and question.workload.rate is not None and (question.workload.open_ended or together == 1):
            part = min(SLICE, together)
            return (
                system_of(units[0], instances=part, timer=timers[0]),
                count / part,
                question.at_rate(part / count).workload,
            )
        system, times = system_of(units[0], instances=count, timer=timers[0]), candidate.replicas // count
    else:
        instances = pools[0].replicas, pools[1].replicas
        system, times = two_pools(*units, instances=instances, link=question.link, timers=(timers[0], timers[1])), 1
    return system, times, question.workload if times == 1 else dealt_out(question.workload, times)


SHORT = 200  # Requests of a short simulation
FIRST = 500  # Requests of the first answer
LIKELY = 0.98  # A headroom by the quick estimate from which on the best of other GPUs is looked for
PROMISING, PROMISING_ODDS = 0.9, 1.0
"""Headrooms in a short simulation from which on the whole workload is simulated, the second for odds above 0.5. Short
runs are mostly too good: of 120 candidates, the lowest of those that then kept their SLO had 1.02."""
SURE = 1.25  # One with which a candidate is simulated before others are looked at
LEFT = 0.95  # A headroom below which a candidate is left if others lead to expect it; of settings, a share of the best
PORTION = 4  # Kinds of replicas of one price, the likeliest first, that are looked at before the others


@dataclass
class SimulationStage:
    question: Question
    workers: Executor
    tell: Callable[[str], None]
    rows: dict[Candidate, Row] = field(default_factory=dict)  # The latest result of each candidate
    short: dict[Candidate, float] = field(default_factory=dict)  # Headrooms in short simulations
    first: Row | None = None  # The first that kept the SLO, of requests for an answer at once; counts if no other does
    tried_first: set[str] = field(default_factory=set)  # Kinds of GPU on which it was looked for
    num_left: int = 0  # Candidates that nothing is known of
    doing: str = "a list of candidates"

    def say(self, words: str) -> None:
        best, self.doing = self.best() or self.first, words
        left = f"; {self.num_left:,} candidates left" if self.num_left else ""
        self.tell(f"{words}{left}" if best is None else f"{words}{left}; best so far: {best.candidate}")

    def show_first(self, option: ScreenedOption) -> None:
        """Serve a few requests on the likeliest candidate, to have an answer soon; for a large fleet on each GPU."""
        first, candidate, value = self.first, option.candidate, self.question.goal.known
        if self.tried_first:
            if first is None or first.candidate.replicas <= TOGETHER or candidate.gpu in self.tried_first:
                return
            if value is None or value(self.question, candidate) > value(self.question, first.candidate):
                return
        self.tried_first.add(candidate.gpu)
        found = first_of(candidate, self.question)
        self.first = self.best([row for row in (first, found) if row is not None])

    @property
    def held(self) -> list[Row]:
        return [row for row in self.rows.values() if row.holds]

    def best(self, rows: Sequence[Row] | None = None) -> Row | None:
        """The best that keeps the SLO, of these; of equals the one with most headroom."""
        value, held = self.question.goal.value, self.held if rows is None else rows
        return min(held, key=lambda row: (value(row), -(row.headroom or 0.0), str(row.candidate)), default=None)

    def screen(self, options: Sequence[ScreenedOption]) -> list[ScreenedOption]:
        """Those that a short simulation finds promising, the best first."""
        asked = [option for option in options if option.candidate not in self.short]
        if asked:
            self.say(f"{len(asked)} short simulations")
        rooms = self.workers.map(partial(headroom_of, question=self.question), [each.candidate for each in asked])
        for (candidate, cost, *_), room in zip(asked, rooms, strict=True):
            self.short[candidate] = room
            reason = f"a short simulation has a headroom of {room:.2f}"
            self.rows.setdefault(candidate, Row(candidate, Stage.SCREENED, cost, None, room, reason))
        least = PROMISING if self.question.least_odds <= 0.5 else PROMISING_ODDS
        return self.ranked(option for option in options if self.short[option.candidate] >= least)

    def screen_settings(self, options: Sequence[ScreenedOption]) -> list[ScreenedOption]:
        """The same of settings: first one of those with equal estimates, a few others if it is about as good as any."""
        ones = {option.estimate: option for option in reversed(options)}
        found = self.screen([*ones.values()])
        least = LEFT * max((self.short[each.candidate] for each in ones.values()), default=0.0)
        more = [option for option in options if self.short[ones[option.estimate].candidate] >= least]
        return self.ranked([*found, *self.screen(more[: 2 * PORTION])])

    def ranked(self, options: Iterable[ScreenedOption]) -> list[ScreenedOption]:
        return sorted(dict.fromkeys(options), key=lambda option: -self.short[option.candidate])

    def simulate(self, candidates: Iterable[Candidate]) -> list[Row]:
        asked, goal = list(candidates), self.question.goal
        # Where latencies or energy decide what is best, all runs are whole.
        task = partial(evaluate, question=self.question, whole_from=0.0 if goal.known is None or goal.rough else KEPT)
        done = (Stage.JUDGED, Stage.SIMULATED, Stage.REFUSED)
        new = [each for each in dict.fromkeys(asked) if each not in self.rows or self.rows[each].stage not in done]
        if new:
            self.say(f"{len(new)} simulations")
        for row in self.workers.map(task, new):
            self.rows[row.candidate] = row
        return [self.rows[each] for each in asked]

    def one_holds(self, options: Iterable[ScreenedOption]) -> bool:
        """Simulate those with the best short simulations until one keeps the SLO, or the others are too far behind."""
        kept = [(row.headroom or 0.0) / short for row in self.held if (short := self.short.get(row.candidate))]
        missed = list[float]()  # What is left of the headroom of a short simulation; first as much as of what kept it
        close = 0.1  # Odds that are closer to those asked for are computed from a whole run
        for option in self.ranked(options):
            short = self.short[option.candidate]
            if max(missed or kept, default=inf) * short < LEFT:
                return False
            (row,) = self.simulate([option.candidate])
            odds = None if row.figures is None else row.figures.odds
            if row.stage is Stage.JUDGED and odds is not None and abs(odds - self.question.least_odds) < close:
                (row,) = self.look_closely([option.candidate])
            if row.holds:
                return True
            missed.append((row.headroom or 0.0) / max(short, 1e-12))
        return False

    def look_closely(self, candidates: Iterable[Candidate]) -> list[Row]:
        """Simulate these as `simulate` would, with intervals and odds, each at the rate that was found for it."""
        rate = self.question.rate
        chosen = [(each, (self.rows[each].rate or rate) / rate) for each in candidates]
        self.say(f"{len(chosen)} intervals")
        for row in self.workers.map(partial(evaluate_at, question=self.question, whole=True), chosen):
            self.rows[row.candidate] = replace(row, rate=self.rows[row.candidate].rate)
        return [self.rows[candidate] for candidate, _ in chosen]


def evaluate_at(asked: tuple[Candidate, float], question: Question, *, whole: bool = False) -> Row:
    """A candidate at a multiple of the rate, for the SLO alone or by the ``whole`` run of `simulate`."""
    candidate, factor = asked
    return evaluate(candidate, question, factor=factor, intervals=whole, whole_from=inf)


def at_rate(stage: SimulationStage, candidate: Candidate, factor: float) -> Row:
    (row,) = stage.workers.map(partial(evaluate_at, question=stage.question), [(candidate, factor)])
    return row


def first_of(candidate: Candidate, question: Question) -> Row | None:
    """About the least replicas that hold by the first requests, one replica with its share of them by itself."""
    workload, least, held, tries = question.workload, 0.0, None, 4
    while tries and question.allows(candidate):
        requests = workload.requests[: FIRST * min(3, candidate.replicas)]
        few = replace(workload, requests=requests, drawn=None, open_ended=False)
        row, tries = evaluate(candidate, replace(question, workload=few), intervals=True, together=1), tries - 1
        if row.figures is None:
            break
        held = row if row.holds else held
        needed = candidate.replicas * question.rate / (row.figures.capacity or inf)
        least = max(least, needed, 0.0 if row.holds else candidate.replicas)
        count = ceil(1.15 * least) if held is None else ceil((least * held.candidate.replicas) ** 0.5)
        if held is not None and (not least or count >= held.candidate.replicas):
            break
        candidate = candidate.times(count)
    return held


def headroom_of(candidate: Candidate, question: Question) -> float:
    """The headroom that the first requests see of one replica: quick, and mostly too good, as queues begin empty."""
    is_fleet = candidate.replicas > SLICE and candidate.prefill is None and question.workload.rate is not None
    rate = question.rate / candidate.replicas
    balanced = 1.2  # Times the headroom of a replica by itself: a fleet's next request goes to the least busy
    try:
        system, _, workload = _simulated_part(candidate, question, 1 if is_fleet else TOGETHER)
        if is_fleet and (room := _capacity_of(candidate.unit, question, workload, system) / rate) < 1 / BEYOND:
            return room
        few = replace(workload, requests=workload.requests[: 2 * FIRST if is_fleet else SHORT], drawn=None)
        room = served_headroom(system.serve(few).clients, question.slo)[0]
        return balanced * room if is_fleet else room
    except InfercastError:
        return 0.0


def climb(
    stage: SimulationStage, options: Sequence[ScreenedOption], value: Callable[[Candidate], float], *,
    is_rival: bool = False,
) -> None:  # fmt: skip
    """Go up to the first value at which a candidate keeps the SLO: one of every kind shortly, then the best kinds."""
    least = LIKELY if is_rival else HOPELESS_ODDS if stage.question.least_odds >= HIGH_ODDS else HOPELESS
    hopeful = [option for option in options if option.estimate.headroom >= least]
    hopeful.sort(key=lambda option: (value(option.candidate), -option.estimate.headroom, str(option.candidate)))
    most_close = 3  # Kinds of replicas of one price of which other settings are tried, too
    for _, group in groupby(hopeful, key=lambda option: value(option.candidate)):
        kinds: dict[Candidate, list[ScreenedOption]] = {}
        for option in group:
            kinds.setdefault(option.candidate.stem, []).append(option)
        ones, promising = [each[0] for each in kinds.values()], list[ScreenedOption]()
        for first in range(0, len(ones), PORTION):
            found = stage.screen(ones[first : first + PORTION])
            if found and stage.short[found[0].candidate] < SURE:
                found += stage.screen_settings(kinds[found[0].candidate.stem])
            promising += found
            if stage.one_holds(option for option in promising if stage.short[option.candidate] >= SURE):
                return
        best = dict.fromkeys(option.candidate.stem for option in stage.ranked(promising)[:most_close])
        if stage.one_holds([*promising, *(each for stem in best for each in stage.screen_settings(kinds[stem]))]):
            return


def halve(
    stage: SimulationStage, options: Sequence[ScreenedOption], value: Callable[[ScreenedOption], float], most: int
) -> None:
    """Screen the likeliest by a value that only a simulation knows, and simulate the better half of them."""
    hopeful = [option for option in options if option.estimate.headroom >= HOPELESS]
    hopeful.sort(key=lambda option: (value(option), -option.estimate.headroom, str(option.candidate)))
    best = hopeful[: 2 * most]
    promising = {option.candidate for option in stage.screen(best)}
    stage.simulate([option.candidate for option in best if option.candidate in promising][:most])


SECONDS, LEAST, MOST = 60.0, 100, 1000  # Seconds of each rate, and the least and most requests


class BenchmarkCheck(NamedTuple):
    rate: float
    requests: int
    num_input: int
    num_output: int
    forecast: Forecast  # Of one of ``times`` equal parts, each of which gets its share of the requests
    intervals: Intervals
    times: float = 1


def checks_of(question: Question, candidate: Candidate) -> list[BenchmarkCheck]:
    """Benchmarks around the rate of a question that a candidate can serve, of the question's mean lengths."""
    requests = question.workload.requests
    num_input, num_output = (
        max(1, round(sum(getattr(each, name) for each in requests) / len(requests)))
        for name in ("num_input", "num_output")
    )
    system, times, _ = _simulated_part(candidate, question)
    found = []
    shares = (0.5, 0.8, 1.0, 1.2)  # Of the question's rate
    for share in shares:
        rate = float(f"{share * question.rate:.3g}")
        count = int(min(MOST, max(LEAST, SECONDS * rate)))
        part, lengths = max(1, round(count / times)), {"input_lengths": num_input, "output_lengths": num_output}
        try:
            forecast = simulate_system(system, synthetic_workload(rate=rate / times, count=part, **lengths))
        except InfercastError:
            continue
        found.append(BenchmarkCheck(rate, count, num_input, num_output, forecast, forecast_intervals(forecast), times))
    return found
