"""80 % intervals around a forecast, and where they come from.

A run is simulated again with GPU times at the upper ends of their intervals, and once more with host times at theirs.
By how much a result moves each time (as a logarithm) and, for a percentile, what chance adds, are added in squares and
taken as half the width of its interval. Its middle is that of `odds`: its ends have odds of 10 and 90 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, hypot, inf
from typing import TYPE_CHECKING

import numpy as np

from infercast.forecast import uncertainty
from infercast.forecast.run import Outcome, SimulatedRun
from infercast.forecast.slo import NAMES, Array, Percentiles, quantile
from infercast.forecast.system import System, busiest
from infercast.lazy_classes import NamedTuple, dataclass, field, replace
from infercast.serve import Replica, Workload
from infercast.serve.record import ServedRequests
from infercast.serve.step import ChangedTimer, HostCost, StepEstimate, StepTimer, estimated
from infercast.serve.workload.api_server import ServerCosts
from infercast.shown import ResultMixin
from infercast.units import format_seconds

if TYPE_CHECKING:
    from infercast.serve.scheduler.encoder import Encoder
    from infercast.serve.workload.request import Image

LEVEL = 0.8
LEAST_REQUESTS, MOST_REQUESTS, EACH_PRESENT = 192, 512, 24
"""A longer run responds as its first requests do: so many for each in the system at one time, within these bounds."""
MOST_STEP_BY_STEP = 64  # The same where no stretch of steps can be jumped over, which takes ten times as long
ENDED = 0.9  # Requests of which this share has ended before others stop coming are as in a run that goes on
CALIBRATED = 1.2  # How far a run is off after a benchmark of its deployment, in differences of two runs: an assumption


def slowed_timer(timer: StepTimer, prompts: float, decodes: float, host: float) -> StepTimer:
    """A step timer with scaled answers; only what the clock needs is scaled."""

    def slow(estimate: StepEstimate, has_prompts: bool) -> StepEstimate:
        gpu_seconds, varying, costs, rows, slowed_share, target, throttled = estimate
        if (factor := prompts if has_prompts else decodes) != 1.0:
            gpu_seconds, throttled = [factor * seconds for seconds in gpu_seconds], factor * throttled
        if host != 1.0:
            costs = HostCost(*[host * seconds for seconds in costs])
        return estimated((gpu_seconds, varying, costs, rows, slowed_share, target, throttled))

    return ChangedTimer(timer, slow)


def slowed(
    replica: Replica, *, prompts: float = 1.0, decodes: float = 1.0, host: float = 1.0, path: float = 0.0
) -> Replica:
    """The same engine with scaled times, at the same state of its first uses; requests take ``path`` seconds longer."""
    return replace(
        replica, timer=slowed_timer(replica.timer, prompts, decodes, host),
        request_path_seconds=max(host * replica.request_path_seconds + path, 0.0),
        request_token_seconds=host * replica.request_token_seconds,
        server=ServerCosts(*[host * each for each in replica.server]),
        token_path_seconds=host * replica.token_path_seconds, token_turn_seconds=host * replica.token_turn_seconds,
        wake_up_seconds=host * replica.wake_up_seconds,
        first_uses=None if replica.first_uses is None else replica.first_uses.copy(),
        encoder=None if replica.encoder is None else slowed_encoder(replica.encoder, prompts, host),
    )  # fmt: skip


def slowed_encoder(encoder: Encoder, kernels: float, host: float) -> Encoder:
    """The same encoder of images with scaled times; its kernels wait for a host that takes as long to launch them."""

    def cost(images: Sequence[Image]) -> tuple[float, float]:
        seconds, launching = encoder.cost(images)
        return max(kernels * seconds if seconds > launching else seconds, host * launching), host * launching

    return encoder._replace(
        cost=cost, request_seconds=host * encoder.request_seconds, pixel_seconds=host * encoder.pixel_seconds
    )


class Band(NamedTuple):
    """The ends of the 80 % interval of a latency's mean and percentiles, in seconds."""

    low: Percentiles
    high: Percentiles


class Widths(NamedTuple):
    """Half the widths of intervals, as logarithms, by what may be off."""

    gpu: Array
    host: Array
    luck: Array
    link: Array | float = 0.0

    @property
    def combined(self) -> Array:
        return np.asarray(np.sqrt(sum(np.square(each) for each in self)))


class Rests(NamedTuple):
    """Parts of half the width of a median's interval, each alone as a share of the median."""

    kernels: float  # Estimates of kernels, and what steps have beyond them
    host: float  # The machine's CPU
    release: float  # That its costs are those of another release; 0 where they were measured
    luck: float  # Another draw of the same load
    whole: float  # All of them together
    probed: float  # The whole, had the host's speed been measured (`infercast measure --host`) ...
    calibrated: float  # ... or one benchmark of the deployment been taken (`infercast calibrate`).


class Sensitivity(NamedTuple):
    """By how much results grow (as logarithms, in the order of `results_of`) where a part's times do, by each unit."""

    gpu: Array
    host: Array
    link: Array | float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class Intervals(ResultMixin):
    """What a run's results lie within, four times out of five."""

    ttft: Band
    tpot: Band | None
    inter_token: Band | None
    end_to_end: Band
    output_tokens_per_second: tuple[float, float]  # Lower and upper end, in output tokens per second
    requests_per_second: tuple[float, float]  # Lower and upper end, in requests per second
    rests: dict[str, Rests] = field(default_factory=dict)  # What the intervals of the medians of both latencies rest on
    sensitivity: Sensitivity | None = field(default=None, compare=False)
    """What the runs with slower parts showed; None without such runs."""

    def _words(self) -> str:
        low, high = self.ttft.low.p50, self.ttft.high.p50
        rates = "{:,.0f} to {:,.0f}".format(*self.output_tokens_per_second)
        return f"TTFT p50 {format_seconds(low)} to {format_seconds(high)}, {rates} output tokens/s (80 %)"


def system_half_widths(
    system: System, workload: Workload, uncertainties: Sequence[uncertainty.Uncertainty],
    results: Callable[[ServedRequests], Array], chance: Array, served: ServedRequests | None = None,
) -> Widths:  # fmt: skip
    """How far results may be off, as logarithms: all replicas of all pools alike, the link by itself."""
    most = MOST_REQUESTS if jumps_over(system) else MOST_STEP_BY_STEP
    if served is not None and jumps_over(system):
        most = int(max(LEAST_REQUESTS, min(EACH_PRESENT * uncertainty.in_system(served), most)))
    workload = replace(workload, requests=workload.requests[:most])
    most = len(workload.requests)
    counted = 0 if served is None else _num_before_end(served, most)
    is_warm = all(pool.replica.first_uses is None for pool in system.pools)
    before = served.first(counted) if served is not None and is_warm and counted > most / 2 else None

    def run(link: float = 1.0, **end: bool) -> Array:
        both = zip(system.pools, uncertainties, strict=True)
        pools = tuple(pool.of(longer(pool.replica, about, **end)) for pool, about in both)
        wire = system.wire
        if wire is not None:
            wire = replace(wire, sending=wire.sending / link, receiving=wire.receiving / link)
        clients = system._replace(pools=pools, wire=wire).serve(workload).clients
        return np.log(results(clients if before is None else clients.first(counted)))

    base = run() if before is None else np.log(results(before))
    by_link = 0.0 if system.wire is None else run(link=exp(uncertainty.EIGHTY * uncertainty.LINK_SPREAD)) - base
    return Widths(_filled(run(gpu=True) - base), _filled(run(host=True) - base), chance, _filled(by_link))


def _filled(moved: Array | float) -> Array:
    """A latency that later requests have and the first ones do not is taken to move like the one that moves most."""
    return np.where(np.isnan(moved), np.nanmax(np.abs(moved)), moved)


def _num_before_end(served: ServedRequests, count: int) -> int:
    """How many of the first ``count`` requests hardly see whether others come after these."""
    if count == served.sent_at.size:
        return count
    stayed = quantile(served.end_to_end[:count], ENDED)
    return int(np.count_nonzero(served.sent_at[:count] <= served.sent_at[count - 1] - stayed))


def half_widths(
    replica: Replica, known: uncertainty.Uncertainty, results: Callable[[Replica], Array], chance: Array
) -> Widths:
    """The same of one replica; ``results`` runs it and sums up what came out."""
    base = np.log(results(longer(replica, known)))
    by_gpu, by_host = (np.log(results(longer(replica, known, **{end: True}))) - base for end in ("gpu", "host"))
    return Widths(by_gpu, by_host, chance)


def longer(replica: Replica, about: uncertainty.Uncertainty, *, gpu: bool = False, host: bool = False) -> Replica:
    """A replica at the upper end of its GPU's interval, or of its host's."""
    return slowed(
        replica, prompts=exp(about.prompts) if gpu else 1.0, decodes=exp(about.decodes) if gpu else 1.0,
        host=exp(about.host) if host else 1.0, path=about.path if host else 0.0,
    )  # fmt: skip


def forecast_intervals(forecast: SimulatedRun) -> Intervals:
    """80 % intervals of latencies and throughput; chance is seen in further draws, or in ranks of given requests."""
    system, served = forecast.system, forecast.clients
    uncertainties = [uncertainty.uncertainty_of(pool.deployment, busiest(pool.records)) for pool in forecast.pools]
    lengths = uncertainty.LENGTHS if jumps_over(system) else uncertainty.LENGTHS_STEP_BY_STEP
    replica = system.pools[-1].replica
    luck: Array | None
    if (window := forecast.window) is not None:
        luck = uncertainty.steady_luck(served, forecast.workload, *window, forecast.steady.sketch)
    else:
        steady = forecast.steady_window if forecast.steady.reached else None
        luck = uncertainty.luck_of(
            forecast.workload, served, replica, lambda other: system.serve(other).clients, lengths, steady
        )
    chance = uncertainty.chance_in(served) if luck is None else luck
    chance = uncertainty.with_pauses(chance, forecast.pools[0].deployment)
    widths = system_half_widths(system, forecast.workload, uncertainties, uncertainty.smoothed_of, chance, served)
    gains = [uncertainty.gains_of(pool.deployment, busiest(pool.records)) for pool in forecast.pools]
    slower = uncertainty.slower_by([pool.deployment for pool in forecast.pools], forecast.workload)
    found = around(
        forecast, widths.combined, uncertainty.Gains(*(max(each) for each in zip(*gains, strict=True))), slower
    )
    medians = {"ttft": 1, "tpot": 1 + len(NAMES)}
    known = {name: at for name, at in medians.items() if getattr(found, name) is not None}
    rests = {name: _rests(widths, at, uncertainties[-1]) for name, at in known.items()}
    return replace(found, rests=rests, sensitivity=_sensitivity(widths, uncertainties))


def _sensitivity(widths: Widths, known: Sequence[uncertainty.Uncertainty]) -> Sensitivity:
    """The first results are those of prompts, which are computed in the first pool."""
    decodes, prompts = known[-1].decodes or inf, known[0].prompts or inf
    slower = np.array([prompts] * len(NAMES) + [decodes] * (widths.gpu.size - len(NAMES)))
    link = np.asarray(widths.link) / (uncertainty.EIGHTY * uncertainty.LINK_SPREAD)
    return Sensitivity(widths.gpu / slower, widths.host / known[-1].host, link)


def _rests(widths: Widths, at: int, about: uncertainty.Uncertainty) -> Rests:
    """The parts of one result's interval; the first results are those of prompts and follow prefill steps."""
    gpu, host, luck, link = (abs(float(np.broadcast_to(each, widths.gpu.shape)[at])) for each in widths)
    step, of_step = (
        (about.prompts, about.by_release.prompts) if at < len(NAMES) else (about.decodes, about.by_release.decodes)
    )
    of_host = about.by_release.host
    kernels, release = hypot(gpu * (1 - of_step) ** 0.5, link), hypot(gpu * of_step**0.5, host * of_host**0.5)
    machine = host * (1 - of_host) ** 0.5
    probed = host * uncertainty.probed_host(about.host) / about.host
    run = uncertainty.RUN_TO_RUN.prompts if at < len(NAMES) else uncertainty.RUN_TO_RUN.decodes
    left_gpu = gpu * min(uncertainty.EIGHTY * CALIBRATED * run / step, 1.0) if step else 0.0
    left_host = host * min(uncertainty.EIGHTY * CALIBRATED * uncertainty.RUN_TO_RUN.host / about.host, 1.0)
    whole = hypot(gpu, host, luck, link)
    narrowed = hypot(gpu, probed, luck, link), hypot(left_gpu, left_host, luck, link)
    return Rests(*(float(np.sinh(part)) for part in (kernels, machine, release, luck, whole, *narrowed)))


def jumps_over(system: System) -> bool:
    """Whether stretches of steps can be jumped over."""
    pool = system.pools[0]
    plain = pool.replica.stages is None and pool.replica.policy.repeats and not pool.engines.lockstep
    return plain or system.wire is not None


def around(forecast: Outcome, widths: Array, gains: uncertainty.Gains | None = None, slower: float = 0.0) -> Intervals:
    """Intervals of these widths, at most ``gains`` shorter, around a slower middle (`odds_within`), ordered by rank."""
    moved, gains = widths * slower / uncertainty.EIGHTY, gains or uncertainty.Gains()
    gained = np.maximum(widths - moved, 0.0)
    times, rate = (slice(0, -1), -1)
    most = np.array([gains.prompts, gains.decodes, gains.decodes, max(gains)])[:, None]
    shorter = np.minimum(gained[times].reshape(4, len(NAMES)), most)
    longer_by = (widths + moved)[times].reshape(4, len(NAMES))

    def band(values: Percentiles | None, number: int) -> Band | None:
        if values is None:
            return None
        ends = np.array(values.values)
        low, high = ends * np.exp(-shorter[number]), ends * np.exp(longer_by[number])
        low[1:], high[1:] = np.maximum.accumulate(low[1:]), np.minimum.accumulate(high[:0:-1])[::-1]
        return Band(Percentiles(*low.tolist()), Percentiles(*high.tolist()))

    ttft, end_to_end = band(forecast.ttft, 0), band(forecast.end_to_end, 3)
    assert ttft is not None
    assert end_to_end is not None
    less, more = exp(-(widths + moved)[rate]), exp(min(gained[rate], max(gains)))
    tokens, requests = forecast.output_tokens_per_second, forecast.requests_per_second
    return Intervals(
        ttft=ttft, tpot=band(forecast.tpot, 1), inter_token=band(forecast.inter_token, 2), end_to_end=end_to_end,
        output_tokens_per_second=(tokens * less, tokens * more), requests_per_second=(requests * less, requests * more),
    )  # fmt: skip
