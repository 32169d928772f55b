"""The answer: what limits a run, the change that helps most for its price, and what breaks first as the load grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from infercast.errors import InfercastError
from infercast.forecast.cost import hourly
from infercast.forecast.diagnosis.causes import (
    LARGE_STEP,
    MOST,
    Cause,
    adding_up,
    causes_of,
    phases_of,
    responses,
    step_share,
    without,
)
from infercast.forecast.diagnosis.changes import ANSWERS, FREE, GPU, GPUS, MIXED, SEATS, TOKENS, Change, changes_of
from infercast.forecast.diagnosis.growth import Binding, bindings
from infercast.forecast.diagnosis.trials import CAPACITY, Aim, Gain, Trials, queued_share
from infercast.forecast.intervals import Intervals
from infercast.forecast.progress import note_cut, time_left
from infercast.forecast.result import Forecast, prices_of
from infercast.forecast.system import System
from infercast.lazy_classes import dataclass
from infercast.shown import ResultMixin

MOST_TRIALS = 8  # Of changes; causes have a few of their own
WORTH = 0.05  # The least gain (a logarithm) that is worth a change of its price


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that was tried."""

    change: Change
    words: str  # As options of the command
    system: System
    gains: tuple[Gain, ...]  # The aim first
    gpus: int
    per_hour: float | None  # Dollars of all GPUs; None where a price is not known

    @property
    def gain(self) -> float:
        return self.gains[0].gain


@dataclass(frozen=True, slots=True, repr=False)
class RunDiagnosis(ResultMixin):
    """What limits a run and what would change that."""

    forecast: Forecast
    aim: Aim
    causes: tuple[Cause, ...]  # The largest first
    remedy: Remedy | None  # The best one of the cheapest kind that helps; None where none does
    tried: tuple[Remedy, ...] | None  # None where nothing was looked for
    breaks: tuple[Binding, ...]
    is_kept: bool  # Whether the SLO holds, so that nothing needs to change
    simulations: int
    is_late: bool = False  # Whether the time limit may have kept changes from being tried

    def _words(self) -> str:
        first = self.causes[0].name if self.causes else "nothing"
        return f"{first} limits {self.aim.name}"


def diagnose_run(
    forecast: Forecast, intervals: Intervals | None = None, *, trials: bool = True, most: int = MOST_TRIALS
) -> RunDiagnosis:
    """Causes, the best change and the limits ahead; without ``trials`` from the run's own counts alone."""
    attempt = Trials(forecast)
    verdict = forecast.verdict
    sure = 0.8  # Odds with which nothing has to change
    kept = verdict is not None and verdict.holds and (verdict.odds or 0.0) >= sure
    causes = causes_of(attempt, intervals, most=3 if trials and time_left() > 0.0 else 0)
    tried: tuple[Remedy, ...] | None = () if kept else None
    if trials and not kept:
        tried = tuple(_tried(attempt, _bounds(attempt, causes, intervals), most))
    best, ahead = best_of(tried or (), attempt), tuple(bindings(forecast))
    is_late = trials and not kept and time_left() <= 0.0
    if is_late:
        note_cut("changes")
    return RunDiagnosis(forecast, attempt.aim, adding_up(causes), best, tried, ahead, kept, attempt.count, is_late)


def bottleneck(forecast: Forecast) -> str:
    """What limits a run, in words, from its own counts: nothing is simulated for it."""
    attempt = Trials(forecast)
    causes = adding_up(causes_of(attempt, None, most=0))
    return causes[0].words(attempt.aim) if causes else "nothing that can be told apart"


def best_of(tried: Sequence[Remedy], trials: Trials) -> Remedy | None:
    """Of the cheapest kind of change that helps, and helps enough if any does, the one that helps most."""
    good = [each for each in tried if each.gain > WORTH and is_fair(each, trials)]
    known = [each for each in good if is_enough(each, trials)] or good
    cost = min((each.change.cost for each in known), default=FREE)
    return max((each for each in known if each.change.cost == cost), key=lambda each: each.gain, default=None)


def is_enough(remedy: Remedy, trials: Trials) -> bool:
    """Whether an SLO's limit holds then, or as much is served as comes."""
    aim, after = trials.aim, trials.value(trials.aim) * remedy.gains[0].ratio
    if aim.limit is not None:
        return after < aim.limit.seconds
    offered = trials.forecast.workload.rate
    return aim.quantity != CAPACITY or offered is None or after > offered


def is_fair(remedy: Remedy, trials: Trials) -> bool:
    """Whether nothing else becomes much worse; what an SLO limits may, as long as it holds."""
    trade = 0.05  # A change makes nothing else worse by more than this, or than what it gains
    for other in remedy.gains[1:]:
        limit = other.aim.limit
        kept = limit is not None and trials.value(other.aim) * other.ratio < limit.seconds
        if not kept and other.gain + other.error < -max(trade, 0.5 * remedy.gain):
            return False
    return True


def _tried(trials: Trials, bounds: Sequence[tuple[float, Change]], most: int) -> list[Remedy]:
    """The changes that may help, of the cheapest kind first, until one does and no other may help more."""
    found: list[Remedy] = []
    best: Remedy | None = None
    nearly = 0.9  # Changes that may gain hardly more than the best so far are not tried
    for cost in (FREE, ANSWERS, GPUS):
        left = sorted((each for each in bounds if each[1].cost == cost), key=lambda pair: -pair[0])
        for bound, change in left[:most]:
            if time_left() <= 0.0 or (best is not None and best.gain > nearly * bound):
                break
            if (remedy := try_change(trials, change)) is not None:
                found.append(remedy)
                best = best_of(found, trials)
        if best is not None and is_enough(best, trials):
            break
    most_again = 3  # Longer trials of the best change
    before: Remedy | None = None
    for _ in range(most_again):
        if best is None or time_left() <= 0.0:
            break
        if not trials.can_grow_for(best.gains[0], None if before is None else before.gains[0]):
            break
        again = try_change(trials, best.change)
        found = [each for each in found if each is not best] + ([again] if again else [])
        before, best = best, best_of(found, trials)
    return found


def try_change(trials: Trials, change: Change) -> Remedy | None:
    """A change, tried; None where the engine refuses it."""
    before = trials.forecast
    try:
        system, gains = trials.change(change)
    except InfercastError:
        return None
    prices = {gpu: price for _, gpu, price in prices_of(before)}
    counts = [(pool.gpus, prices.get(pool.deployment.gpu.name)) for pool in system.pools]
    return Remedy(change, change.words(before.system), system, tuple(gains), system.gpus, hourly(counts))


def _bounds(trials: Trials, causes: Sequence[Cause], intervals: Intervals | None) -> list[tuple[float, Change]]:
    """Changes with what they may gain at most, by the causes that they ease; those that may gain nothing are left."""
    effects = {
        kind: max(each.effect for each in causes if each.kind == kind) for kind in {each.kind for each in causes}
    }
    response, _ = responses(trials, intervals)
    phases = phases_of(trials)
    whole = sum(each.gpu_seconds for each in phases) or 1.0

    def by_kernels(change: Change) -> float:
        parts = [family.seconds for phase in phases for family in phase.families
                 if not change.families or family.family in change.families]  # fmt: skip
        return -log(1.0 - min(without(change.shorter * sum(parts) / whole, response), MOST))

    found = []
    for change in changes_of(trials.forecast):
        bound = sum(effects.get(kind, 0.0) for kind in change.eases if kind not in (GPU, TOKENS))
        bound += by_kernels(change) if GPU in change.eases else 0.0
        if next(iter(change.values), "") in trials.forecast.deployment.engine.bounds[:2]:
            bound = _of_size(trials, change, effects)
        if MIXED in change.values:
            bound = _of_mixed_steps(trials, change)
        if bound > WORTH / 2:
            found.append((bound, change))
    return found


def _of_size(trials: Trials, change: Change, effects: Mapping[str, float]) -> float:
    """What larger or smaller steps may gain: larger ones for prompts that wait, smaller ones for those beside them."""
    forecast, value = trials.forecast, next(iter(change.values.values()))
    settings, is_tokens = forecast.deployment.settings, TOKENS in change.eases
    now = settings.max_num_batched_tokens if is_tokens else settings.max_num_seqs
    large = max(step_share(pool) for pool in forecast.pools)
    if value > now:
        return large * queued_share(forecast) if is_tokens and large > LARGE_STEP else effects.get(SEATS, 0.0)
    if trials.aim.quantity != "tpot":
        return 0.0
    share = _with_prompts(forecast)
    tail = trials.aim.percentile is not None and trials.aim.percentile > 50
    if is_tokens:
        return share * (1.0 + tail) if large * now / value > LARGE_STEP else 0.0
    return effects.get(GPU, 0.0) if forecast.running.peak > value * len(forecast.pools[-1].records) else 0.0


def _with_prompts(forecast: Forecast) -> float:
    """The share of time that is spent in steps with prompts."""
    prompts = sum(each.seconds for each in forecast.phases if each.name == "prefill")
    return prompts / max(sum(each.seconds for each in forecast.phases), 1e-12)


def _of_mixed_steps(trials: Trials, change: Change) -> float:
    """Answers that go on beside prompts, or prompts that need not take them along: what was tried gains up to twice."""
    share, often = _with_prompts(trials.forecast), 0.25
    helps = change.values[MIXED] is (trials.aim.quantity == "tpot")
    return 2.0 * share if helps and share > often else 0.0
