"""The answer: what limits a run, the change that helps most for its price, and what breaks first as the load grows.

A run waits for *causes*, each of which is the share of what matters that is gone where that part takes no time. Kernels
and the host are judged by how results grew in runs where they were slower (`Intervals.sensitivity`). What requests
queue for is judged by trials without it, and only where the run counts say that it may bind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, log

from infercast.errors import InfercastError
from infercast.forecast.cost import hourly
from infercast.forecast.diagnosis import changes
from infercast.forecast.diagnosis.growth import Binding, bindings, most_running, server_share
from infercast.forecast.diagnosis.trials import CAPACITY, WAITING, Aim, Gain, Trials, queued_share
from infercast.forecast.intervals import Intervals, slowed
from infercast.forecast.kernels import Phase
from infercast.forecast.parallel import on_all_cores
from infercast.forecast.progress import note_cut, time_left
from infercast.forecast.result import Forecast, prices_of
from infercast.forecast.run import PoolRun
from infercast.forecast.system import System
from infercast.lazy_classes import NamedTuple, dataclass
from infercast.serve import Replica
from infercast.serve.scheduler.base import FcfsPolicy
from infercast.serve.workload.api_server import ServerCosts
from infercast.shown import ResultMixin
from infercast.units import format_percent

FULL = 0.95  # Share of seats or of KV blocks from which on they may bind
LARGE_STEP = 0.4  # Share of the token budget that a step with prompts has from which on the budget may bind
BOUNDS = {"dram": "memory bandwidth", "tensor": "tensor cores", "link": "the link between GPUs"}
WAITED = 0.2  # Share from which on what a trial shows comes before the kernels
LEAST = 0.02  # Parts of a smaller share are not told
MOST = 0.995
PARTS = (
    changes.GPU, changes.HOST, changes.PREFILL, changes.DECODE, changes.LINK,
)  # What takes its time; all else keeps requests waiting  # fmt: skip


class Cause(NamedTuple):
    kind: str  # One of the words of `changes`
    name: str
    share: float  # Of what matters, that is gone without it
    detail: str = ""  # What bounds kernels
    tried: bool = False  # Whether a trial says so, not a slope
    family: str = ""  # Of kernels

    @property
    def effect(self) -> float:
        return -log(1.0 - min(max(self.share, 0.0), MOST))

    def words(self, aim: Aim) -> str:
        """``gemm in decode steps, bound by memory bandwidth: 66.4 % of TPOT p50``."""
        bound = f", bound by {BOUNDS.get(self.detail, self.detail)}" if self.family and self.detail else ""
        if not aim.is_rate:
            return f"{self.name}{bound}: {format_percent(self.share)} of {aim.name}"
        if self.tried:
            return f"{self.name}: {format_percent(1.0 / (1.0 - self.share) - 1.0)} more {aim.name} without that"
        return f"{self.name}{bound}: {format_percent(self.share)} of the time"


def causes_of(trials: Trials, intervals: Intervals | None, *, most: int) -> list[Cause]:
    """All that matter, the largest first; with no trial allowed (``most``), the share of waiting stands for one."""
    found = [*_of_two_pools(trials)] or [
        each._replace(share=_of_host(trials, each.share, most > 0)) if each.kind == changes.HOST else each
        for each in _kernels(trials, intervals)
    ]
    suspects = [*_relaxations(trials)]
    if not most:
        waits = [Cause(kind, name, _waiting(trials, kind)) for kind, name, _ in suspects[:1]]
        found += [each for each in waits if each.share >= LEAST]
    for kind, name, relaxed in suspects[:most]:
        if kind == changes.BURSTS and any(each.tried and each.share > WAITED for each in found):
            continue  # a queue before something else
        try:
            gains = relaxed()
        except InfercastError:  # the engine would refuse it
            continue
        if gains > log(1.0 + LEAST):
            found.append(Cause(kind, name, 1.0 - exp(-gains), tried=True))
        elif kind in (changes.SEATS, changes.KV):
            found.append(Cause(kind, name, 0.0, "more would not help", tried=True))
    largest = min(max((each.share for each in found), default=0.0), 1.0)
    # What keeps requests waiting says more than that the rest takes its time.
    return sorted(found, key=lambda each: (each.kind in PARTS or each.share <= max(WAITED, largest / 2), -each.effect))


def adding_up(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """The same with shares of the whole: of what the trials before leave, and parts that are no more than all of it."""
    left, shares = 1.0, dict[Cause, float]()
    for each in causes:
        if each.tried:
            shares[each] = left * each.share
            left -= shares[each]
    ratio = left / max(sum(each.share for each in causes if not each.tried), left, 1e-12)
    return tuple(each._replace(share=shares.get(each, ratio * each.share)) for each in causes)


def _waiting(trials: Trials, kind: str) -> float:
    """The share of what matters that is spent waiting: of stages for each other, or of requests in queues."""
    forecast = trials.forecast
    if kind == changes.STAGES:
        phases = forecast.pools[-1].phases
        return sum(each.host_bound_seconds for each in phases) / sum(each.whole for each in phases)
    if trials.aim.quantity == "tpot":  # who waits for a first token has none to wait between
        return 0.0
    before = 1.0 if trials.aim.quantity == "ttft" else forecast.ttft.mean / forecast.end_to_end.mean
    return queued_share(forecast) * before


def phases_of(trials: Trials) -> Sequence[Phase]:
    """The steps that what matters is made of."""
    forecast, aim = trials.forecast, trials.aim
    if aim.quantity == "ttft":
        pools = forecast.pools[:1]
        return [each for pool in pools for each in pool.phases if each.name == "prefill"] or forecast.phases
    return forecast.pools[-1].phases if aim.quantity == "tpot" else forecast.phases


def responses(trials: Trials, intervals: Intervals | None) -> tuple[float, float]:
    """By how much what matters grows with the times of kernels and of the host; as logarithms, by each unit."""
    known, phases = None if intervals is None else intervals.sensitivity, phases_of(trials)
    if known is not None and trials.aim.quantity != "capacity":
        sign = -1.0 if trials.aim.is_rate else 1.0
        gpu, host = (float(sign * each[trials.aim.place]) for each in (known.gpu, known.host))
        if gpu + host > 0:  # not so where no request has it
            return max(gpu, 0.0), max(host, 0.0)
    whole = sum(each.whole for each in phases)
    waits = sum(each.host_bound_seconds for each in phases if each.waits_for == "host")
    return 1.0 - waits / whole, waits / whole


def _kernels(trials: Trials, intervals: Intervals | None) -> Iterator[Cause]:
    phases, (gpu, host) = phases_of(trials), responses(trials, intervals)
    whole = sum(each.gpu_seconds for each in phases) or 1.0
    if host >= LEAST:
        yield Cause(changes.HOST, "the host's CPU", host)
    for phase in phases:
        words = "steps with prompts" if phase.name == "prefill" else "decode steps"
        for family in phase.families:
            share = gpu * family.seconds / whole
            if share >= LEAST:
                yield Cause(changes.GPU, f"{family.family} in {words}", share, family.bound, family=family.family)


def _of_host(trials: Trials, response: float, may_try: bool) -> float:
    """It may hide a GPU that is as slow: then a slower host costs more than none at all would save."""
    phases = phases_of(trials)
    waits = sum(each.host_bound_seconds for each in phases) / sum(each.whole for each in phases)
    if response <= max(WAITED, 1.5 * waits):
        return response
    largest = 0.5  # A part that may not be the largest is not worth a run
    if not may_try or response < largest:
        return waits
    free = _with(trials.forecast.system, lambda each: slowed(each, host=1e-3))
    return min(response, 1.0 - exp(-max(trials.gains(free)[0].gain, 0.0)))


def without(part: float, response: float) -> float:
    """The share of a result that is gone where a part of all times is, and the result grows so much with them."""
    return response * part if response <= 1.0 else 1.0 - (1.0 - min(part, MOST)) ** response


def _of_two_pools(trials: Trials) -> Iterator[Cause]:
    link = trials.forecast.link
    if link is None or trials.aim.quantity != "ttft":
        return
    parts = {
        (changes.LINK, f"the link ({link.name})"): link.wait.mean + link.transfer.mean,
        (changes.PREFILL, "the prefill pool"): link.prompt.mean,
        (changes.DECODE, "the decode pool"): link.first_step.mean,
    }
    for (kind, name), seconds in parts.items():
        if (share := seconds / trials.forecast.ttft.mean) >= LEAST:
            yield Cause(kind, name, min(share, MOST))


def _relaxations(trials: Trials) -> Iterator[tuple[str, str, Callable[[], float]]]:
    """What counts say may bind, those first that bind hardest, and what goes without it gains."""
    forecast, system = trials.forecast, trials.forecast.system
    pool, waits, queued = forecast.pools[-1], forecast.waiting.peak > 0, queued_share(forecast)
    replica, deployment, requests = pool.pool.replica, pool.deployment, forecast.workload.requests

    def gained(changed: System) -> float:
        return trials.gains(changed)[0].gain

    def relaxed(**values: object) -> float:
        return gained(_with(system, lambda each: replace(each, **values)))  # type: ignore[arg-type]

    adapters = {request.adapter for request in requests} - {None}
    if replica.max_adapters is not None and len(adapters) > replica.max_adapters and replica.stages is None:
        name = f"adapter slots, {replica.max_adapters} for {len(adapters)} adapters"
        yield changes.SLOTS, name, lambda: relaxed(max_adapters=1 << 30)
    if waits and (pool.kv_usage.peak >= FULL or pool.num_preemptions):
        name = f"KV cache, {format_percent(min(pool.kv_usage.peak, 1.0))} full"
        yield changes.KV, name, lambda: relaxed(num_blocks=8 * replica.num_blocks)
    seats, name = most_running(pool), deployment.engine.bounds[1]
    if waits and deployment.asked is not None and max(each.running.peak for each in pool.records) >= FULL * seats:
        more = changes.Change((changes.SEATS,), {name: max(4 * seats, changes.USUAL_SEATS)})
        yield changes.SEATS, f"{name} {seats}, all in use", lambda: gained(more.applied(system))
    if (stages := replica.stages) is not None:
        yield (
            changes.STAGES,
            "other pipeline stages",
            lambda: gained(_with(system, lambda each: _at_once(each, len(stages)))),
        )
    shared = forecast.workload.has("prefix")
    if shared and not replica.prefix_caching:
        yield (
            changes.REUSE,
            "prompts that are computed again, without a prefix cache",
            lambda: relaxed(prefix_caching=True),
        )
    if len(forecast.pools[0].records) > 1 and (waits or shared or queued > WAITING / 3):
        better = next(each for each in (*changes.WITH_PREFIXES * shared, *changes.ROUTERS) if each != forecast.router)
        name = f"the load balancer ({forecast.router})"
        yield changes.ROUTER, name, lambda: gained(changes.Change((changes.ROUTER,), router=better).applied(system))
    busy = 0.5  # Share of its time from which on an API server may be waited for
    if server_share(forecast) > busy:
        yield changes.SERVERS, "the API server", lambda: relaxed(server=ServerCosts())
    is_open = forecast.workload.concurrency is None and not forecast.workload.in_turns
    if trials.aim.quantity == "ttft" and is_open and queued > WAITING:
        yield changes.BURSTS, "bursts of arrivals", lambda: trials.gains(system, spread=True)[0].gain


def step_share(pool: PoolRun) -> float:
    """The tokens of an average step with prompts, as a share of the most that a step may have."""
    record = max(pool.records, key=lambda each: each.prefilling.steps)
    steps = record.prefilling.steps
    return record.prefilling.tokens / steps / pool.deployment.settings.max_num_batched_tokens if steps else 0.0


def _with(system: System, change: Callable[[Replica], Replica]) -> System:
    return system._replace(pools=tuple(pool.of(change(pool.replica)) for pool in system.pools))


def _at_once(replica: Replica, stages: int) -> Replica:
    """A pipeline with all stages at work on every step at once."""
    policy = replica.policy
    if isinstance(policy, FcfsPolicy):
        policy = replace(policy, decode_stride=1)
    faster = slowed(replica, prompts=1 / stages, decodes=1 / stages)
    return replace(faster, policy=policy, stages=None, steps_under_way=2, stages_in_turn=False)


MOST_TRIALS = 8  # Of changes; causes have a few of their own
WORTH = 0.05  # The least gain (a logarithm) that is worth a change of its price


@dataclass(frozen=True, slots=True)
class Remedy:
    change: changes.Change
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
    attempt, trials = Trials(forecast), trials and not forecast.system.is_fleet
    verdict = forecast.verdict
    sure = 0.8  # Odds with which nothing has to change
    kept = verdict is not None and verdict.holds and (verdict.odds or 0.0) >= sure
    causes = causes_of(attempt, intervals, most=3 if trials and time_left() > 0.0 else 0)
    tried: tuple[Remedy, ...] | None = () if kept else None
    if trials and not kept:
        tried = tuple(_tried(attempt, _bounds(attempt, causes, intervals), most))
    best, ahead = best_of(tried or (), attempt), tuple(bindings(forecast, may_simulate=trials and time_left() > 0.0))
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
    cost = min((each.change.cost for each in known), default=changes.FREE)
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


def _tried(trials: Trials, bounds: Sequence[tuple[float, changes.Change]], most: int) -> list[Remedy]:
    """The changes that may help, of the cheapest kind first, until one does and no other may help more."""
    found: list[Remedy] = []
    best: Remedy | None = None
    nearly = 0.9  # Changes that may gain hardly more than the best so far are not tried
    for cost in (changes.FREE, changes.ANSWERS, changes.GPUS):
        left = sorted((each for each in bounds if each[1].cost == cost), key=lambda pair: -pair[0])[:most]
        gained = on_all_cores(trials.outcome, [change for _, change in left])
        for bound, change in left:
            if time_left() <= 0.0 or (best is not None and best.gain > nearly * bound):
                break
            if (gains := next(gained)) is None:
                continue
            trials.learn(change, gains)
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


def try_change(trials: Trials, change: changes.Change) -> Remedy | None:
    before = trials.forecast
    try:
        system, gains = trials.change(change)
    except InfercastError:
        return None
    prices = {gpu: price for _, gpu, price in prices_of(before)}
    counts = [(pool.gpus, prices.get(pool.deployment.gpu.name)) for pool in system.pools]
    return Remedy(change, change.words(before.system), system, tuple(gains), system.gpus, hourly(counts))


def _bounds(trials: Trials, causes: Sequence[Cause], intervals: Intervals | None) -> list[tuple[float, changes.Change]]:
    """Changes with what they may gain at most, by the causes that they ease; those that may gain nothing are left."""
    effects = {
        kind: max(each.effect for each in causes if each.kind == kind) for kind in {each.kind for each in causes}
    }
    response, _ = responses(trials, intervals)
    phases = phases_of(trials)
    whole = sum(each.gpu_seconds for each in phases) or 1.0

    def by_kernels(change: changes.Change) -> float:
        parts = [family.seconds for phase in phases for family in phase.families
                 if not change.families or family.family in change.families]  # fmt: skip
        return -log(1.0 - min(without(change.shorter * sum(parts) / whole, response), MOST))

    found = []
    for change in changes.changes_of(trials.forecast):
        bound = sum(effects.get(kind, 0.0) for kind in change.eases if kind not in (changes.GPU, changes.TOKENS))
        bound += by_kernels(change) if changes.GPU in change.eases else 0.0
        if next(iter(change.values), "") in trials.forecast.deployment.engine.bounds[:2]:
            bound = _of_size(trials, change, effects)
        if changes.MIXED in change.values:
            share, often = _with_prompts(trials.forecast), 0.25
            helps = change.values[changes.MIXED] is (trials.aim.quantity == "tpot")
            bound = 2.0 * share if helps and share > often else 0.0
        if bound > WORTH / 2:
            found.append((bound, change))
    return found


def _of_size(trials: Trials, change: changes.Change, effects: Mapping[str, float]) -> float:
    """What steps of other sizes may gain: larger ones for waiting prompts, smaller ones for decoding in them."""
    forecast, value = trials.forecast, next(iter(change.values.values()))
    settings, is_tokens = forecast.deployment.settings, changes.TOKENS in change.eases
    now = settings.max_num_batched_tokens if is_tokens else settings.max_num_seqs
    large = max(step_share(pool) for pool in forecast.pools)
    if value > now:
        return large * queued_share(forecast) if is_tokens and large > LARGE_STEP else effects.get(changes.SEATS, 0.0)
    if trials.aim.quantity != "tpot":
        return 0.0
    share = _with_prompts(forecast)
    tail = trials.aim.percentile is not None and trials.aim.percentile > 50
    if is_tokens:
        return share * (1.0 + tail) if large * now / value > LARGE_STEP else 0.0
    return effects.get(changes.GPU, 0.0) if forecast.running.peak > value * len(forecast.pools[-1].records) else 0.0


def _with_prompts(forecast: Forecast) -> float:
    """The share of time that is spent in steps with prompts."""
    prompts = sum(each.seconds for each in forecast.phases if each.name == "prefill")
    return prompts / max(sum(each.seconds for each in forecast.phases), 1e-12)
