"""From a question to its answer: bounds, quick estimates, short simulations, whole ones, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice, takewhile
from math import exp, inf, log, sqrt
from typing import TypeVar

from infercast.engines.base import engine_named
from infercast.errors import InfercastError
from infercast.forecast.plan.candidate import Candidate, Figures, Row, Stage, format_share
from infercast.forecast.plan.evaluate import (
    FIRST,
    LIKELY,
    SLICE,
    TOGETHER,
    SimulationStage,
    at_rate,
    climb,
    evaluate_at,
    halve,
)
from infercast.forecast.plan.executors import Executor, OutOfTime, Processes, time_limited
from infercast.forecast.plan.question import Nearest, Plan, Question, deployed, model_of
from infercast.forecast.plan.screening import HOPELESS, ReplicaSpec, ScreenedOption, look_at, pool_options, stems_of
from infercast.forecast.progress import note_cut
from infercast.forecast.slo import QUANTITIES, Limit, Slo
from infercast.hardware import load_gpu
from infercast.lazy_classes import dataclass, field, replace
from infercast.units import format_gpus, format_joules, format_seconds, format_watts

NEARLY = 0.9  # Rates above this share of the capacity are limited by it, not by an SLO


def named(row: Row) -> str:
    return str(row.candidate)


def money(cost: float | None) -> str:
    return "an unknown price" if cost is None else f"${cost:,.2f} per hour"


def why_lost(question: Question, best: Row, other: Row | None) -> str:
    if other is None:
        return "Nothing else keeps the SLO within these limits."
    goal, figures, theirs = question.goal, best.figures, other.figures
    assert figures is not None
    if not other.holds:
        return f"{named(other)} lost because it {other.verdict}."
    assert theirs is not None
    mine, its = goal.value(best), goal.value(other)
    room = f"its headroom is {theirs.headroom:.2f}, the winner's {figures.headroom:.2f}"
    if goal.name == "cost":
        more = f"it costs {money(other.cost)}, {format_share(its / mine - 1.0)} more" if its > mine else ""
    elif goal.name == "gpus":
        more = f"it needs {format_gpus(other.gpus)}, the winner {best.gpus}" if its > mine else ""
    elif goal.name == "energy":
        each = f"{format_joules(its)} per output token"
        more = f"it takes {each}, {format_share(its / mine - 1.0)} more" if its > mine else ""
    elif goal.finds_rate:
        more = f"it serves {-its:.3g} requests/s, the winner {-mine:.3g}" if its > mine else ""
    else:
        more = f"it answers in {format_seconds(its)}, the winner in {format_seconds(mine)}" if its > mine else ""
    return f"{named(other)} lost because {more or f'it costs the same and {room}'}{f'; {room}' if more else ''}."


def changes_of(question: Question, best: Row, held: Sequence[Row], most: float | None) -> tuple[str, ...]:
    found = []
    if most is not None and not question.goal.finds_rate:
        capacity = None if best.figures is None else best.figures.capacity
        ends = "it misses the SLO"
        if capacity is not None and most > NEARLY * capacity:
            ends = "requests arrive faster than it can serve them, whatever the headroom of its latencies"
        found.append(f"Above {most:.3g} requests/s {ends}; the question has {question.rate:.3g}.")
    figures = best.figures
    if figures is not None and figures.headroom > 1.0:
        limit = next(limit for limit in question.slo.limits if limit.name == figures.tightest)
        found.append(f"It would keep {figures.tightest} as low as {format_seconds(limit.seconds / figures.headroom)}.")
    if question.objective == "cost" and best.cost:
        mine = {pool.gpu for pool in best.candidate.pools}
        others = dict[str, Row]()
        for row in sorted(held, key=lambda each: (each.cost or 0.0, -(each.headroom or 0.0), str(each.candidate))):
            gpus = {pool.gpu for pool in row.candidate.pools}
            if not gpus & mine and len(gpus) == 1:
                others.setdefault(gpus.pop(), row)
        for gpu, row in others.items():
            assert row.cost is not None
            found.append(
                f"If {gpu} were {format_share(1.0 - best.cost / row.cost)} cheaper, {named(row)} would cost less."
                if row.cost > best.cost
                else f"{named(row)} costs the same."
            )
    return tuple(found)


def why_none(question: Question, rows: Sequence[Row]) -> str:
    tried = [row for row in rows if row.stage is not Stage.REFUSED]
    if not tried:
        reason = rows[0].reason if rows else "no layout is allowed"
        return f"Nothing fits on up to {format_gpus(question.max_gpus)}: {reason}"
    simulated = [row for row in tried if row.stage in (Stage.JUDGED, Stage.SIMULATED)]
    seen = [row for row in simulated if row.figures is not None] or simulated
    within = format_gpus(question.max_gpus) + ("" if question.budget is None else f" and {money(question.budget)}")
    within += "" if question.power_budget is None else f" and {format_watts(question.power_budget)}"
    if seen:
        best = max(seen, key=lambda row: row.headroom or 0.0)
        if best.figures is not None and best.figures.beyond and best.figures.headroom > 1.0:
            return (
                f"No candidate keeps {question.slo} at {question.rate:.3g} requests/s within {within}: {named(best)} "
                f"would, but {best.figures.beyond}."
            )
        return (
            f"No candidate keeps {question.slo} at {question.rate:.3g} requests/s within {within}: the closest, "
            f"{named(best)}, {best.verdict}."
        )
    ruled_out = [row for row in tried if row.stage is Stage.BOUND]
    if len(ruled_out) == len(tried):
        best = max(ruled_out, key=lambda row: row.headroom or 0.0)
        return f"None of these GPUs can do it within {within}; of the best, {best.candidate.gpu}: {best.reason}."
    return f"No candidate keeps up with {question.rate:.3g} requests/s within {within}."


def notes_of(question: Question, rows: Sequence[Row]) -> tuple[str, ...]:
    name = engine_named(question.engines[0]).bounds[2]
    model = model_of(question.model, None, "auto", question.engines[0])
    notes = [*question.left_out, *([model.assumed] if model is not None and model.assumed else [])]
    notes += [f"{name} is {question.model_len:,}; the longest request has {question.longest:,} tokens"]
    if len(question.quantizations) > 1 or question.quantizations[0] is not None:
        notes.append("quantised weights change answers: check quality before you choose them")
    if any(row.figures is not None and row.figures.source in ("typical", "roofline") for row in rows):
        notes.append("some GPUs were never measured: their numbers are rough, as their wide intervals say")
    if any(row.figures is not None and row.figures.source == "published" for row in rows):
        notes.append("some GPUs were not measured here: their numbers rest on published kernels and runs")
    notes += [note for name in question.gpus for note in load_gpu(name).announced_notes]
    if any(row.figures is not None and row.candidate.replicas > TOGETHER for row in rows):
        notes.append(f"of more than {TOGETHER} replicas, {SLICE} are simulated with their share of the requests")
    if question.network is not None and question.max_gpus > 8:
        notes.append(f"engines that span nodes are joined by {question.network}")
    return tuple(notes)


Point = tuple[float, ...]
Each = TypeVar("Each")

FRONT_HEADROOM = 1.1  # A headroom by the quick estimate at which a candidate is simulated for its place on the front
MOST = 3  # Candidates that are simulated for it
SAME = 1.02  # Times that differ by less are the same


def front_of(rows: Sequence[Row], winner: Row | None = None, spent: Callable[[Row], float] | None = None) -> list[Row]:
    """Of rows that keep the SLO, the cheapest first (or by ``spent``, such as energy), the winner among them."""

    def point(row: Row) -> Point:
        figures = row.figures
        assert figures is not None
        first = _money(row.cost, row.gpus) if spent is None else spent(row)
        return first, figures.ttft.p50, 0.0 if figures.tpot is None else figures.tpot.p50

    ordered = sorted(rows, key=lambda row: (point(row)[0], row is not winner, point(row), str(row.candidate)))
    return _undominated(ordered, point, SAME)


def likely_front(options: Sequence[ScreenedOption], best: Row, held: Sequence[Row]) -> list[Candidate]:
    """A few that cost more than the best and are on the front by the quick estimate; what is ``held`` is among them."""
    known = {row.candidate for row in held}

    def point(option: ScreenedOption) -> Point:
        return _money(option.cost, option.candidate.gpus), option.estimate.ttft, option.estimate.tpot

    least = _money(best.cost, best.gpus)
    near = [each for each in options if least < point(each)[0] <= REACH * least]
    sure = [each for each in near if each.candidate in known or each.estimate.headroom >= FRONT_HEADROOM]
    sure.sort(key=lambda each: (point(each), str(each)))
    alike = 0.05  # Points with smaller differences are one
    new = [each for each in _undominated(sure, point, 1.0 + alike) if each.candidate not in known]
    count = min(max(1, MOST + 1 - len(known)), len(new))
    return [new[round((number + 1) * len(new) / count) - 1].candidate for number in range(count)]


def _undominated(ordered: Sequence[Each], point: Callable[[Each], Point], same: float = 1.0) -> list[Each]:
    """Those that none before them, which are no dearer, equals or beats in everything, to within a factor."""
    kept: list[tuple[Point, Each]] = []
    for each in ordered:
        mine = point(each)
        if not any(all(theirs <= own * same for theirs, own in zip(other, mine, strict=True)) for other, _ in kept):
            kept.append((mine, each))
    return [each for _, each in kept]


def _money(cost: float | None, gpus: int) -> float:
    return float(gpus) if cost is None else min(cost, inf)


CLOSEST = 3  # Candidates that are simulated to say how close it is
LOOSER = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # Factors on limits that are tried
SLOWER = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0, 256.0)  # Divisors of the rate that are tried
LARGER = (2, 4, 8, 16)  # Factors on the number of GPUs
LOOKED = 24  # Kinds of replicas that are estimated for it

MostRate = Callable[[SimulationStage, Row], float | None]


def nearest_of(stage: SimulationStage, options: Sequence[ScreenedOption], most_rate: MostRate) -> tuple[Nearest, ...]:
    """The tightest SLO that can be had at this rate, and the rate at which this one can; or what would fit at all."""
    question = stage.question
    slos = (Slo(tuple(_loosened(limit, factor) for limit in question.slo.limits)) for factor in LOOSER)
    ranked = _likeliest(options) or _options_of_first(stage, (replace(question, slo=slo) for slo in slos), 0.0)
    if not ranked:
        return _what_fits(question)
    tried = sorted(stage.simulate(each.candidate for each in ranked[:CLOSEST]), key=lambda row: -(row.headroom or 0.0))
    (best,) = stage.look_closely([tried[0].candidate])
    if best.figures is None:
        return ()
    found = []
    if best.figures.state != "overloaded":
        reached = Slo(tuple(_reached(limit, best.figures) for limit in question.slo.limits))
        found.append(Nearest(best, f"{named(best)} keeps {reached} at this rate, for {_spent(best)}."))
    else:
        slower = _options_of_first(stage, (question.at_rate(1.0 / factor) for factor in SLOWER), 1.0)
        best = stage.simulate([slower[0].candidate])[0] if slower else best
    rate = most_rate(stage, best)
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
    margin = 1.02  # Margin of reported limits
    return limit if value < limit.seconds else _loosened(limit, margin * value / limit.seconds)


def _likeliest(options: Sequence[ScreenedOption]) -> list[ScreenedOption]:
    hopeful = [option for option in options if option.estimate.headroom > 0] or list(options)
    return sorted(hopeful, key=lambda option: (-option.estimate.headroom, option.cost or 0.0, str(option.candidate)))


def _options_of_first(stage: SimulationStage, questions: Iterable[Question], least: float) -> list[ScreenedOption]:
    """What is likeliest to keep the SLO of the first of these questions with estimates above a headroom."""
    for question in questions:
        stems, _ = stems_of(question)
        looked = stage.workers.map(partial(look_at, question=question), stems[:LOOKED])
        options = [option for each in looked for option in each.options if option.estimate.headroom > least]
        if options:
            return _likeliest(options)
    return []


def _what_fits(question: Question) -> tuple[Nearest, ...]:
    for times in LARGER:
        for unit in replace(question, max_gpus=times * question.max_gpus).units():
            try:
                deployed(question.shared, unit)
            except InfercastError:
                continue
            row = Row(unit, Stage.ESTIMATED, question.cost(unit), reason="more GPUs than allowed")
            return (Nearest(row, f"{named(row)} fits: {format_gpus(unit.gpus)} for {money(row.cost)}."),)
    return ()


def _loosened(limit: Limit, factor: float) -> Limit:
    return Limit(limit.quantity, limit.percentile, float(f"{limit.seconds * max(1.0, factor):.3g}"))


WAVE = 16  # Stems that are estimated before the next look at what the best of them would cost
SURE_HEADROOM = 1.25  # A headroom by the quick estimate at which a candidate is all but sure to keep the SLO
ROOMIER = 1.05  # How much more headroom the winner must have in a short simulation with other settings, to try them
REACH = 2.0  # More expensive candidates, relative to the best, are not looked at
NEAR, MANY = 1.6, 12  # By a rough order, this many candidates within this factor of the best are simulated as well
FEW = 6  # Candidates of which the most requests a second are found, or the least latency
MOST_TIMES = 4.0  # Between the ends of a range in which a rate is looked for
TRIES, FINE = 4, 1.06  # Rates that are tried at most, and how close to the rate looked for the last is
NAMED, SAME_RATE = 0.03, 0.995  # How close a rate that is named is to the true one, and a share of it that is the same
CLEAR_ROOM = 0.05  # Room, or lack of it, that half a per cent of the rate does not change, as a logarithm
STEEP = 10.0  # Room that is lost to a rate that is higher by some factor, both as logarithms, at most
SLOWED = 0.97  # A rate that was found is lowered by this factor if the run of `simulate` misses the SLO there


def plan(
    question: Question, workers: Executor | None = None, tell: Callable[[str], None] | None = None,
    time_limit: float | None = None,
) -> Plan:  # fmt: skip
    """The best deployment for a question; ``tell`` is called with each part of the work as it begins.

    The answer does not depend on the executor. After ``time_limit`` seconds, or when Ctrl-C is pressed and something
    was found, it is the best so far, and says what was not looked at.
    """
    search, when = _Search(SimulationStage(question, workers or Processes(1), tell or (lambda _: None))), ""
    try:
        with time_limited(time_limit):
            search.run()
    except OutOfTime:
        when = f"after {time_limit:g} s"
    except KeyboardInterrupt:
        when = "by an interrupt"
        if not search.options:
            raise
    if when:
        note_cut("a search")
    return search.answer(when)


@dataclass
class _Search:
    """What is known so far, at any time enough for an answer."""

    stage: SimulationStage
    options: list[ScreenedOption] = field(default_factory=list)
    others: list[Row] = field(default_factory=list)  # Ruled out by bounds, or refused
    waiting: list[ReplicaSpec] = field(default_factory=list)  # Stems without an estimate
    left: list[ReplicaSpec] = field(default_factory=list)  # Those that cost more than what is all but sure to hold
    sure: dict[str, float] = field(default_factory=dict)  # The value of that, by GPU
    shown: tuple[Row | None, list[Row], Row | None] | None = None  # Winner, front and runner-up, once they are chosen
    most: float | None = None
    nearest: tuple[Nearest, ...] = ()

    def run(self) -> None:
        stage, question = self.stage, self.stage.question
        stage.say(stage.doing)
        self.waiting, self.others = stems_of(question)
        best = self._search()
        # What was left may be better if what was all but sure did not hold.
        while more := [each for each in self.left if best is None or self._least(each) < self._value(best.candidate)]:
            self.left, self.waiting, self.sure = [each for each in self.left if each not in more], more, {}
            best = self._search()
        if best is not None and not question.goal.finds_rate:
            like, short = stage.screen_settings(_like(best.candidate, self.options)), stage.short.get(best.candidate)
            least = ROOMIER * (short or best.headroom or 0.0)
            stage.simulate(each.candidate for each in like if stage.short[each.candidate] > least)
            _rivals(stage, self.options, best)
            stage.simulate(_as_good(question, self.options, best))
            stage.simulate(likely_front(self.options, best, stage.held))
            if _runner_up(stage, best) is None:
                stage.simulate(self._of_another_kind(best.candidate))
        settled = self._settle()
        if settled is not None and settled.rate is not None:
            self._tighten(settled.candidate, settled.rate)
        self._show()
        if (best := stage.best()) is not None:
            stage.say("the most requests per second")
            self.most = _most_rate(stage, best)
        else:
            self.nearest = nearest_of(stage, self.options, _most_rate)

    def _value(self, candidate: Candidate) -> float:
        known = self.stage.question.goal.known
        return 0.0 if known is None else known(self.stage.question, candidate)

    def _of_another_kind(self, best: Candidate) -> list[Candidate]:
        """The best by the quick estimate of what is not like the best: something to hold it against."""
        others = [each for each in self.options if each.candidate.stem != best.stem and each.estimate.headroom > 0]
        others.sort(key=lambda each: (self._value(each.candidate), -each.estimate.headroom, str(each.candidate)))
        return [each.candidate for each in others[:1]]

    def _least(self, stem: ReplicaSpec) -> float:
        return self._value(stem.least)

    def _search(self) -> Row | None:
        """The best of what may cost least, alone and in pools."""
        stage, question = self.stage, self.stage.question
        self._look()
        if question.disaggregate:
            alone = [option for option in self.options if option.candidate.prefill is None]
            self.options = [*alone, *pool_options(question, alone, REACH * min(self.sure.values(), default=inf))]
        _simulate(stage, self.options)
        return self._settle()

    def _look(self) -> None:
        """Estimate stems, those first that may cost least; those that cost more than the best of their GPU are left."""
        stage, question = self.stage, self.stage.question

        def size(stem: ReplicaSpec) -> int:
            return sum(question.max_gpus // unit.layout.gpus for unit in stem.units)

        def is_wanted(stem: ReplicaSpec) -> bool:
            reach = REACH * min(self.sure.values(), default=inf)
            return self._least(stem) <= min(reach, self.sure.get(stem.units[0].gpu, inf))

        self.waiting.sort(key=self._least)
        stage.num_left = sum(map(size, self.waiting))
        first_headroom = 1.5  # One at which it is shown as the first answer if a few requests say so, too
        while self.waiting:
            wave = [*takewhile(is_wanted, self.waiting[:WAVE])]
            if wave:
                stage.say(f"estimates of {wave[0].units[0].gpu}")
            else:
                self.left.append(self.waiting.pop(0))
                stage.num_left -= size(self.left[-1])
            for looked in stage.workers.map(partial(look_at, question=question), wave):
                stem = self.waiting.pop(0)
                stage.num_left -= size(stem)
                self.options += looked.options
                self.others += looked.rows
                sure = [option for option in looked.options if option.estimate.headroom >= SURE_HEADROOM]
                if question.goal.known is not None and sure:
                    gpu, likely = stem.units[0].gpu, [each for each in sure if each.estimate.headroom >= first_headroom]
                    self.sure[gpu] = min(self.sure.get(gpu, inf), *(self._value(each.candidate) for each in sure))
                    if likely:
                        stage.show_first(min(likely, key=lambda each: self._value(each.candidate)))

    def _settle(self) -> Row | None:
        """The best by the run of `simulate`; if that misses the SLO after all, the search goes on."""
        stage = self.stage
        while (best := stage.best()) is not None and not _is_shown(best):
            (found,) = stage.look_closely([best.candidate])
            if not found.holds and found.rate is not None:
                row = at_rate(stage, best.candidate, SLOWED * found.rate / stage.question.rate)
                stage.rows[best.candidate] = replace(row, rate=SLOWED * found.rate)
            elif not found.holds:
                _simulate(stage, self.options)
        return best

    def _tighten(self, candidate: Candidate, rate: float) -> None:
        stage, question = self.stage, self.stage.question
        rate = (1.0 - NAMED / 2) * _named_rate(stage, candidate, rate, NAMED / 2)
        task = partial(evaluate_at, question=question, whole=True)
        (row,) = stage.workers.map(task, [(candidate, rate / question.rate)])
        if row.holds:
            stage.rows[candidate] = replace(row, rate=rate)

    def _show(self) -> None:
        """Choose what is shown, all of it with the figures of `simulate`."""
        while True:
            best, front, runner_up = self.shown = self._chosen()
            rest = [row for row in (best, *front, runner_up) if row is not None and not _is_shown(row)]
            if not rest:
                return
            self.stage.look_closely(dict.fromkeys(row.candidate for row in rest))

    def _chosen(self) -> tuple[Row | None, list[Row], Row | None]:
        stage, goal = self.stage, self.stage.question.goal
        best = stage.best()
        return best, front_of(stage.held, best, goal.value if goal.rough else None), _runner_up(stage, best)

    def answer(self, when: str) -> Plan:
        """The answer as far as it is known; ``when`` a search was cut that did not come to its end."""
        stage, question = self.stage, self.stage.question
        if not stage.held and stage.first is not None and when:
            stage.rows[stage.first.candidate] = stage.first
        best, front, runner_up = self.shown or self._chosen()
        held = stage.held
        for row in [*stage.rows.values()]:
            # What a run that ended early says is said in words: its figures are not those of `simulate`.
            if row is not best and row.stage is Stage.JUDGED and row.figures is not None:
                room, reason = float(f"{row.headroom:.2g}"), f"{row.verdict}, by a shorter run"
                stage.rows[row.candidate] = replace(row, figures=None, headroom=room, reason=reason)
        best, runner_up = (None if row is None else stage.rows[row.candidate] for row in (best, runner_up))
        rows = _ranked(question, stage, self.options, [*self.others, *_unlooked(question, self.left)], best)
        found = Plan(
            question=question, winner=best,
            front=tuple(row for each in front if (row := stage.rows[each.candidate]).figures is not None), rows=rows,
            runner_up=runner_up, why=self._why(rows, best, runner_up, cut=bool(when)),
            changes=() if best is None else changes_of(question, best, held, self.most), nearest=self.nearest,
            notes=notes_of(question, rows), num_candidates=max(_count(question), len(rows)),
        )  # fmt: skip
        return replace(found, cut=self._cut(found, when)) if when else found

    def _why(self, rows: Sequence[Row], best: Row | None, runner_up: Row | None, *, cut: bool) -> str:
        question = self.stage.question
        if cut and (best is None or runner_up is None or runner_up.figures is None):
            kept = f"The search was cut before {'anything' if best is None else 'anything else'} kept the SLO."
            likely = [each for each in self.options if each.estimate.headroom >= SURE_HEADROOM]
            if best is not None or not likely:
                return kept
            least = min(likely, key=lambda each: (self._value(each.candidate), -each.estimate.headroom))
            return f"{kept} By a quick estimate {least.candidate} does, for {money(least.cost)}."
        if best is not None and runner_up is None and self.left:
            return "All others cost more."
        return why_none(question, rows) if best is None else why_lost(question, best, runner_up)

    def _cut(self, found: Plan, when: str) -> str:
        stage = self.stage
        gpus = ", ".join(dict.fromkeys(stem.units[0].gpu for stem in self.waiting))
        unseen = f"{found.num_unseen:,} of {found.num_candidates:,} candidates were not looked at"
        few, winner = "", found.winner
        if winner is not None and winner is stage.first:
            one = f"of the winner one replica has served its share of the first {3 * FIRST} requests, not balanced with"
            few = f"; the winner has served its first {FIRST} requests only"
            few = few if winner.candidate.replicas == 1 else f"; {one} others"
        elif winner is not None and winner.stage is Stage.JUDGED:
            few = "; the winner's run ended when it was clear that it keeps the SLO"
        return (
            f"The search was cut {when}, at {stage.doing}: {unseen}{f' ({gpus})' if gpus else ''}, and "
            f"{found.count(Stage.ESTIMATED):,} have a quick estimate and no simulation{few}."
        )


def _simulate(stage: SimulationStage, options: list[ScreenedOption]) -> None:
    goal, question = stage.question.goal, stage.question
    if goal.known is not None:
        climb(stage, options, partial(goal.known, question))
    elif not goal.finds_rate:
        halve(stage, options, lambda option: option.estimate.end_to_end, FEW)
    else:
        ranked = sorted(options, key=lambda option: (-option.rate, str(option.candidate)))
        for option in islice((each for each in ranked if each.rate > 0), FEW):
            _find_rate(stage, option)


def _find_rate(stage: SimulationStage, option: ScreenedOption) -> None:
    """The largest rate that was found at which an option keeps the SLO; of one like the best, only if it is larger."""
    candidate, question, least, best = option.candidate, stage.question, 0.7 * option.rate, stage.best()
    if best is not None and best.rate is not None and best.candidate.stem == candidate.stem:
        least = max(least, (1.0 + FINE) / 2 * best.rate)

    def ask(now: float) -> float:
        row = at_rate(stage, candidate, exp(now) / question.rate)
        if row.holds:
            stage.rows[candidate] = replace(row, rate=exp(now))
        return _room(row, question.least_odds)

    if (room := ask(log(least))) > 0.0:
        _crossing(ask, log(least), log(2.0 * least), room, TRIES + 1)


def _rivals(stage: SimulationStage, options: Sequence[ScreenedOption], best: Row) -> None:
    """The best of every other GPU, to see what a lower price would change; what costs less has missed the SLO."""
    known, question = stage.question.goal.known, stage.question
    if known is None:
        return
    mine, least = {pool.gpu for pool in best.candidate.pools}, known(question, best.candidate)
    for gpu in question.gpus:
        if gpu not in mine:
            own = [each for each in options if {pool.gpu for pool in each.candidate.pools} == {gpu}]
            near = [each for each in own if least <= known(question, each.candidate) <= REACH * least]
            climb(stage, near, partial(known, question), is_rival=True)


def _as_good(question: Question, options: Sequence[ScreenedOption], best: Row) -> list[Candidate]:
    """Other kinds of replicas that may be better where what is known of the objective is an order and no more."""
    known = question.goal.known
    if known is None or not question.goal.rough:
        return []
    most = NEAR * known(question, best.candidate)
    likely = [each for each in options if each.estimate.headroom >= LIKELY and known(question, each.candidate) <= most]
    likely.sort(key=lambda each: (known(question, each.candidate), -each.estimate.headroom, str(each.candidate)))
    kinds: dict[Candidate, Candidate] = {}
    for option in likely:
        kinds.setdefault(option.candidate.stem, option.candidate)
    return list(kinds.values())[:MANY]


def _most_between(
    stage: SimulationStage, candidate: Candidate, low: float, high: float, row: Row | None = None
) -> float | None:
    """The most requests per second that keep the SLO, between multiples of the rate, within 3 %; None if none do."""
    row = row or at_rate(stage, candidate, low)
    if not row.holds:
        return None
    start = _room(row, stage.question.least_odds)
    task = partial(evaluate_at, question=replace(stage.question, least_odds=0.0))

    def ask(now: float) -> float:
        (found,) = stage.workers.map(task, [(candidate, exp(now))])
        room = start + log(max(found.headroom or 0.0, 1e-12) / (row.headroom or 1.0))
        return room if found.holds else min(room, -log(FINE) / 2)

    return _named_rate(stage, candidate, exp(_crossing(ask, log(low), log(high), start, TRIES)) * stage.question.rate)


def _named_rate(stage: SimulationStage, candidate: Candidate, rate: float, near: float = NAMED) -> float:
    """A rate in three digits: `simulate` keeps the SLO at a share ``near`` below it, and not at as much above it."""
    question, rooms = stage.question, dict[float, float]()

    def room_at(now: float) -> float:
        task = partial(evaluate_at, question=question, whole=True)
        (row,) = stage.workers.map(task, [(candidate, now / question.rate)])
        rooms[now] = _room(row, question.least_odds)
        return rooms[now]

    reach = 1.0
    for _ in range(2 * TRIES):
        rate = float(f"{rate:.3g}")
        below, above = (1.0 - near) * rate, (1.0 + near) * rate
        # What is clear at about the same rate, or beyond it, is not asked again.
        held = any(now >= below * SAME_RATE and room > CLEAR_ROOM for now, room in rooms.items())
        missed = any(now <= above / SAME_RATE and room < -CLEAR_ROOM for now, room in rooms.items())
        if not held and (room := room_at(below)) <= 0.0:
            rate = below / (1.0 + near) * exp(reach * max(room, -1.0) / STEEP)
        elif not missed and (room := room_at(above)) > 0.0:
            rate = above / (1.0 - near) * exp(reach * room / STEEP)
        else:
            break
        most = min((now for now, room in rooms.items() if room <= 0.0), default=inf)
        least = max((now for now, room in rooms.items() if room > 0.0 and now < most), default=0.0)
        is_between = least > 0.0 and most < inf
        if is_between and most > (1.0 + near) * least:
            rate = sqrt(least * most)
        reach = 1.0 if is_between else 2.0 * reach  # odds fall less steeply than room does
    return rate


def _crossing(ask: Callable[[float], float], least: float, most: float, room: float, tries: int) -> float:
    """Where ``room`` for more is used up, between logarithms of rates by the Illinois method, to a factor of `FINE`."""
    near, above, last, is_open = log(FINE) / 2, inf, 0, True
    room = max(room, 1e-9)
    wanted = least + max(room, near)
    for _ in range(tries):
        now = min(max(wanted, least + near), most if is_open else most - near)
        found = ask(now)
        if found > 0.0:
            if now == most:
                return most
            steep = min(max((room - found) / (now - least), 0.3), 20.0)
            above, least, room, last = above / 2 if last > 0 else above, now, found, 1
            wanted = least + room / steep
        else:  # how far it is missed says little where queues grow
            above = room if found == -inf else min(-found, 4.0 * room)
            room, most, last, is_open = room / 2 if last < 0 else room, now, -1, False
        if not is_open:
            wanted = least + (most - least) * room / (room + above)
        if (last > 0 and wanted - least <= near) or (not is_open and most - least <= log(FINE)):
            break
    return wanted


def _room(row: Row, asked: float) -> float:
    """The logarithm of the headroom beyond what has the odds asked for: logarithms are Student's, as in `odds`."""
    odds, room = None if row.figures is None else row.figures.odds, log(max(row.headroom or 0.0, 1e-12))
    if odds is not None and odds > 0.5 and asked > 0.5:
        wanted, has = (2.0 * each - 1.0 for each in (asked, min(odds, 0.9999)))
        room *= 1.0 - wanted / has * ((1.0 - has**2) / (1.0 - wanted**2)) ** 0.5
    return room if row.holds else min(room, -log(FINE) / 2)


def _is_shown(row: Row) -> bool:
    """Whether it has all that is shown of a candidate."""
    return row.stage is Stage.SIMULATED and row.figures is not None and row.figures.intervals is not None


def _most_rate(stage: SimulationStage, row: Row) -> float | None:
    """Up to which rate a candidate keeps the SLO; for one that does not keep it, the rate that it would keep."""
    if stage.question.goal.finds_rate:
        return row.rate
    if row.holds:
        capacity = row.figures.capacity if row.figures is not None else None
        most = MOST_TIMES**3 if capacity is None else max(1.02, capacity / stage.question.rate)
        return _most_between(stage, row.candidate, 1.0, most, row)
    for times in range(1, 6):
        if (rate := _most_between(stage, row.candidate, MOST_TIMES**-times, MOST_TIMES ** (1 - times))) is not None:
            return rate
    return None


def _like(candidate: Candidate, options: Sequence[ScreenedOption]) -> list[ScreenedOption]:
    """The same with other settings: they cost as much, and one may keep more room."""
    same = [each for each in options if each.candidate.stem == candidate.stem and each.candidate.gpus == candidate.gpus]
    least = NEARLY * max((each.estimate.headroom for each in same if each.candidate == candidate), default=0.0)
    return [each for each in same if each.estimate.headroom >= max(HOPELESS, least)]


def _runner_up(stage: SimulationStage, best: Row | None) -> Row | None:
    """The best of another kind: another GPU, layout or format."""
    if best is None:
        return None
    others = [row for row in stage.rows.values() if row.candidate.stem != best.candidate.stem]
    simulated = [row for row in others if row.stage in (Stage.JUDGED, Stage.SIMULATED)]
    closest = max(simulated, key=lambda row: (row.headroom or 0.0, str(row.candidate)), default=None)
    return stage.best([row for row in others if row.holds]) or closest


def _unlooked(question: Question, stems: Sequence[ReplicaSpec]) -> list[Row]:
    """Stems that cost too much however well they do."""
    costs = [(stem.least, question.cost(stem.least)) for stem in stems]
    words = (format_gpus(each.gpus) if cost is None else f"{cost:,.2f} per hour" for each, cost in costs)
    reasons = (f"takes at least {each}, more than others" for each in words)
    return [Row(each, Stage.BOUND, cost, reason=why) for (each, cost), why in zip(costs, reasons, strict=True)]


def _ranked(
    question: Question, stage: SimulationStage, options: Sequence[ScreenedOption], others: Sequence[Row],
    best: Row | None,
) -> tuple[Row, ...]:  # fmt: skip
    rows = dict(stage.rows)
    for option in options:
        if option.candidate not in rows:
            room = option.estimate.headroom
            reason = "a quick estimate says that it cannot keep up" if not room else _said(question, option, best)
            rows[option.candidate] = Row(option.candidate, Stage.ESTIMATED, option.cost, headroom=room, reason=reason)
    goal, order = question.goal, [*Stage][::-1]

    def place(row: Row) -> tuple[bool, int, float, float, str]:
        value = goal.value(row) if row.holds else 0.0
        return not row.holds, order.index(row.stage), value, -(row.headroom or 0.0), str(row.candidate)

    return tuple(sorted([*rows.values(), *others], key=place))


def _said(question: Question, option: ScreenedOption, best: Row | None) -> str:
    room, known = option.estimate.headroom, question.goal.known
    if best is not None and known is not None and known(question, option.candidate) > question.goal.value(best):
        return f"takes more than the best; a quick estimate has a headroom of {room:.2f}"
    return f"a quick estimate has a headroom of {room:.2f}"


def _count(question: Question) -> int:
    return sum(max(1, question.max_gpus // unit.layout.gpus) for unit in question.units())
