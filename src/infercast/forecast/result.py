"""The result of a simulated run: what clients saw, its cost, energy and verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import ceil, inf, isfinite, log, log10
from typing import Any, TypeVar

import numpy as np

from infercast.engines.base import Deployment
from infercast.forecast.cost import Cost, GpuPrice, Tariff, around, cost_at, hourly
from infercast.forecast.energy import Energy, Facility, FacilityEnergy, energy_of, facility_energy
from infercast.forecast.fleet import OutageRun, outages_of
from infercast.forecast.intervals import Band, Intervals, forecast_intervals
from infercast.forecast.run import GroupRun, PoolRun, SimulatedRun, drafts_of, groups_of
from infercast.forecast.slo import (
    FRACTIONS,
    NAMES,
    QUANTITIES,
    Array,
    Limit,
    Percentiles,
    Slo,
    attainment,
    keeps,
    latency_of,
    parse_slo,
    quantile,
)
from infercast.forecast.steady import room_for
from infercast.forecast.system import DECODE, PREFILL
from infercast.forecast.uncertainty import EIGHTY, odds_within, slower_by
from infercast.lazy_classes import NamedTuple, dataclass, field, replace
from infercast.models.lower import attention_calls, head_calls, token_calls
from infercast.ops import Call
from infercast.predict.roofline import pipe_limits
from infercast.serve.workload.request import Request
from infercast.shown import PlottableResult, ResultMixin, renderers
from infercast.units import MILLI, format_figure, format_many, format_odds, format_percent, format_seconds


class BestThroughput(NamedTuple):
    requests_per_second: float
    output_tokens_per_second: float
    limited_by: str  # The resource that is always busy then: ``dram``, ``tensor``, ``link``, ...
    busy: dict[str, float]  # Share of the time that each resource is
    batch: int  # Sequences of a replica at one time
    role: str  # Of two pools the one that limits
    share: float  # Of these output tokens that the run has


def best_throughput(run: SimulatedRun) -> BestThroughput | None:
    """None where stages of a pipeline have different GPUs."""
    if any(pool.deployment.gpu.stages for pool in run.pools):
        return None
    outputs = float(np.mean([request.num_output for request in run.workload.requests]))
    accepted = drafts.counts.acceptance_length if (drafts := drafts_of(run)) else 1.0
    found = min((_best_of(pool, run.workload.requests, accepted) for pool in run.pools), key=lambda each: each[0])
    rate, busy, batch, role = found
    limited_by = max(busy, key=lambda name: busy[name])
    share = run.output_tokens_per_second / (rate * outputs)
    return BestThroughput(rate, rate * outputs, limited_by, busy, batch, role, share)


def _best_of(pool: PoolRun, requests: tuple[Request, ...], accepted: float) -> tuple[float, dict[str, float], int, str]:
    """Requests a second of all replicas, how busy each resource is, the batch, and the role of the pool."""
    deployment, replica, count = pool.deployment, pool.pool.replica, len(pool.records)
    cached = np.sum([record.num_cached for record in pool.records], axis=0)
    inputs, outputs = (np.array([getattr(each, name) for each in requests]) for name in ("num_input", "num_output"))
    computed = np.zeros_like(inputs) if pool.role == DECODE else np.maximum(inputs - cached, 1)
    later = np.zeros_like(outputs) if pool.role == PREFILL else outputs - 1  # the prompt's own step gives the first
    # Shared prefixes may leave room for more than that.
    batch = max(room_for(replica, requests), round(pool.running.peak / count), 1)
    finished = batch * accepted / max(float(later.mean()), accepted)  # Requests a step
    tokens = finished * float((computed + later).mean())
    calls = [*token_calls(deployment.model, deployment.layout, max(1, round(tokens)))]
    calls += head_calls(deployment.model, deployment.layout, max(1, round(finished * float(later.mean() + 1.0))))
    spent, sampled = _seconds(deployment, calls), 512  # sequences whose attention is added up, or multiples of it
    if later.any():
        spent += _attention(deployment, *_decoding(inputs, later, min(batch, sampled)), batch)
    if computed.any():
        sample = np.linspace(0, inputs.size - 1, min(inputs.size, sampled)).astype(int)
        spent += _attention(deployment, computed[sample], inputs[sample], finished)
    longest = max(spent.values()) / deployment.layout.pipeline
    busy = {name: seconds / max(spent.values()) for name, seconds in spent.items() if seconds}
    return count * finished / longest, busy, batch, pool.role


def _decoding(inputs: Array, later: Array, count: int) -> tuple[Array, Array]:
    """Sequences as they are found while they decode: the longer the likelier, at any point of their answers."""
    total = np.cumsum(later)
    found = np.searchsorted(total, (np.arange(count) + 0.5) / count * total[-1])
    done = np.arange(count) * 0.6180339887498949 % 1.0 * later[found]
    return np.ones(count, dtype=int), inputs[found] + done.astype(int) + 1


def _attention(deployment: Deployment, queries: Array, keys: Array, sequences: float) -> Any:
    """Attention of this many sequences like these."""
    calls = attention_calls(deployment.model, deployment.layout, queries, keys)
    return _seconds(deployment, calls, sequences / queries.size)


def _seconds(deployment: Deployment, calls: Iterable[Call], times: float = 1.0) -> Any:
    """Seconds that each resource of a GPU is busy at least."""
    spent: Any = Counter()
    for call in calls:
        for name, seconds in pipe_limits(call.op, deployment.gpu).items():
            spent[name] += float(np.sum(seconds)) * float(call.count) * times
    return spent


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JudgedLimit:
    """One limit, and its forecast in seconds."""

    limit: Limit
    value: float | None  # None where no request has such a latency; the limit holds then
    interval: tuple[float, float] | None
    odds: float | None  # None where the run shows no steady latencies

    @property
    def headroom(self) -> float | None:
        """Limit / forecast: above 1 it holds."""
        return None if self.value is None else self.limit.seconds / self.value


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(ResultMixin):
    """The verdict on an SLO."""

    slo: Slo
    limits: tuple[JudgedLimit, ...]
    holds: bool  # In the forecast's own numbers
    odds: float | None  # The probability that all limits hold; None where the run shows no steady latencies
    headroom: float | None  # The smallest limit / forecast, a factor; None where no request has any of the latencies
    attainment: float  # The share of requests that keep every limit themselves
    goodput: float  # Requests per second that do

    def _words(self) -> str:
        word = "holds" if self.holds else "fails"
        return f"{self.slo} {word}, odds {format_odds(self.odds)}, attainment {format_percent(self.attainment)}"


def judge(forecast: SimulatedRun, slo: Slo | str, intervals: Intervals | None = None) -> Verdict:
    """Judge by an SLO. One GPU and one host cause all errors, so the least likely limit decides."""
    slo = parse_slo(slo) if isinstance(slo, str) else slo
    intervals = intervals or forecast_intervals(forecast)
    share, least = attainment(forecast.clients, slo, counted(forecast)), headroom(forecast, slo)
    limits = tuple(_judged(forecast, limit, intervals) for limit in slo.limits)
    return Verdict(
        slo=slo, limits=limits, holds=forecast.state.is_steady and least > 1.0,
        odds=min(each.odds or 0.0 for each in limits) if forecast.state.is_steady else None,
        headroom=least if isfinite(least) else None, attainment=share, goodput=share * forecast.requests_per_second,
    )  # fmt: skip


def _judged(forecast: SimulatedRun, limit: Limit, intervals: Intervals) -> JudgedLimit:
    value = value_of(forecast, limit)
    if value == inf:
        return JudgedLimit(limit, None, None, 0.0)
    ends = interval_of(forecast, limit, intervals)
    if not forecast.state.is_steady or ends is None:
        return JudgedLimit(limit, value or None, ends, 1.0 if forecast.state.is_steady else None)
    slower = slower_by([pool.deployment for pool in forecast.pools], forecast.workload)
    return JudgedLimit(limit, value or None, ends, chance_below(limit.seconds, value, *ends, slower=slower))


def holds(forecast: SimulatedRun, slo: Slo) -> bool:
    """Whether all limits hold in the forecast's own numbers; none does for long where more and more requests wait."""
    return forecast.state.is_steady and headroom(forecast, slo) > 1.0


def headroom(forecast: SimulatedRun, slo: Slo) -> float:
    return tightest(forecast, slo)[0]


def tightest(forecast: SimulatedRun, slo: Slo) -> tuple[float, str]:
    """The smallest limit / forecast (above 1 all limits hold), and the name of that limit."""
    return min((limit.seconds / max(value_of(forecast, limit), 1e-12), limit.name) for limit in slo.limits)


def chance_below(limit: float, value: float, low: float, high: float, *, slower: float = 0.0) -> float:
    """The probability of at most ``limit``: 80 % lie in ``low`` to ``high``, around a middle ``slower`` than it."""
    room, longer = log(limit / value), log(high / value)
    middle = longer * slower / (EIGHTY + slower)
    beyond = room - middle
    return float(odds_within(beyond, longer - middle if beyond >= 0 else middle - log(low / value)))


def value_of(forecast: SimulatedRun, limit: Limit) -> float:
    """The forecast of a limited quantity in seconds; 0 where no request has it."""
    summary: Percentiles | None = getattr(forecast, QUANTITIES[limit.quantity])
    if summary is None:
        return 0.0
    name, failed = limit.name.partition("_")[2], forecast.clients.failed
    if failed.any() and limit.percentile is not None:  # who left kept no limit
        values = np.where(failed, inf, latency_of(forecast.clients, limit.quantity))[counted(forecast)]
        values = np.sort(values[~np.isnan(values)])
        return float(values[ceil(limit.percentile / 100 * (values.size - 1))])
    if name in NAMES:
        return float(getattr(summary, name))
    values = latency_of(forecast.clients, limit.quantity)[counted(forecast)]
    return quantile(values[~np.isnan(values)], (limit.percentile or 0.0) / 100)


def counted(forecast: SimulatedRun) -> Array:
    sent, window = forecast.clients.sent_at, forecast.window
    return np.ones(sent.size, dtype=bool) if window is None else (sent >= window[0]) & (sent <= window[1])


def interval_of(forecast: SimulatedRun, limit: Limit, intervals: Intervals) -> tuple[float, float] | None:
    """The 80 % interval of what is limited, as wide as its neighbours'; None where no request has such a latency."""
    summary: Percentiles | None = getattr(forecast, QUANTITIES[limit.quantity])
    band: Band | None = getattr(intervals, QUANTITIES[limit.quantity])
    if summary is None or band is None:
        return None
    value = value_of(forecast, limit)
    if limit.percentile is None:
        return band.low.mean, band.high.mean
    shares = [np.log(np.array(ends.values[1:]) / summary.values[1:]) for ends in (band.low, band.high)]
    # Between the percentiles of `FRACTIONS`, by the logarithm of the share of requests above.
    tails = [-log10(1.0 - fraction) for fraction in FRACTIONS]
    asked = inf if limit.percentile >= 100 else -log10(1.0 - limit.percentile / 100)
    below, above = (float(np.interp(asked, tails, each)) for each in shares)
    return value * float(np.exp(below)), value * float(np.exp(above))


class AgainstApi(NamedTuple):
    usd_per_hour: float  # Of the API, for these requests
    break_even: float  # Requests per second from which serving them oneself costs less


@dataclass(frozen=True, slots=True, repr=False)
class Forecast(PlottableResult, SimulatedRun):
    """The result of a simulated run: what clients saw, and what each pool of replicas did."""

    verdict: Verdict | None = None  # The verdict on its SLO, if it has one (`promised`)
    tariff: Tariff = field(default_factory=Tariff)  # Prices of its cost
    facility: Facility = field(default_factory=Facility)  # Servers, building and grid
    spare: Forecast | None = None  # Where replicas fail: the same with one more
    _kept: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # What `keep` made

    @property
    def cost(self) -> Cost | None:
        """Dollars per hour, request and million tokens; None if a price is not known, or no rate is a steady one."""
        per_hour = per_hour_of(self) if self.state.is_steady else None
        if per_hour is None:
            return None
        inputs = float(np.mean([request.num_input for request in self.workload.requests]))
        rate = self.requests_per_second
        return cost_at(per_hour, rate, rate * inputs, self.output_tokens_per_second)

    @property
    def against_api(self) -> AgainstApi | None:
        """What an API would ask for the same, and when it is worth to serve oneself; None without prices of both."""
        prices, cost = self.tariff.of_api, self.cost
        if prices is None or cost is None:
            return None
        tokens = [(each.num_input, each.num_output) for each in self.workload.requests]
        request = float(np.mean(tokens, axis=0) @ prices)
        return AgainstApi(3600.0 * self.requests_per_second * request, cost.per_hour / 3600.0 / request)

    @property
    def groups(self) -> tuple[GroupRun, ...]:
        """What each kind of replicas did in a fleet, and its price; none where there is one kind."""
        found = groups_of(self) if self.system.is_fleet else ()
        hours = [hourly([(count, price)]) for count, _, price in prices_of(self)]
        return tuple(each._replace(usd_per_hour=price) for each, price in zip(found, hours, strict=False))

    @property
    def outages(self) -> OutageRun | None:
        """What failures of replicas did; None where none may fail."""
        slo, spare = None if self.verdict is None else self.verdict.slo, self.spare
        found = outages_of(self, slo)
        if found is None or slo is None or spare is None:
            return found
        return found._replace(with_spare=attainment(spare.clients, slo), spare_holds=holds(spare, slo))

    @property
    def energy(self) -> Energy | None:
        """Joules of all GPUs, in all and a token; None where their power is not known."""
        return self.keep("energy", lambda: energy_of(self))

    @property
    def best(self) -> BestThroughput | None:
        """What the GPUs could serve of these requests at most; None where stages have different GPUs."""
        return self.keep("best", lambda: best_throughput(self))

    @property
    def intervals(self) -> Intervals:
        """80 % intervals of latencies and rates, which take a few short simulations more."""
        return self.keep("intervals", lambda: forecast_intervals(self))

    @property
    def wall(self) -> FacilityEnergy | None:
        """The same at the wall, with servers and building; None where the power of the GPUs is not known."""
        energy = self.energy
        return None if energy is None else facility_energy(energy, self.system, facility_of(self))

    def has_kept(self, name: str) -> bool:
        return name in self._kept

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """What ``make`` returns, made once for this forecast and copies of it."""
        if name not in self._kept:
            self._kept[name] = make()
        found: T = self._kept[name]
        return found

    def _words(self) -> str:
        each = "" if self.tpot is None else f", TPOT p50 {format_seconds(self.tpot.p50)}"
        return (
            f"{self.title}, {format_many(len(self.workload.requests), 'request')}: TTFT p50 "
            f"{format_seconds(self.ttft.p50)}{each}, {format_figure(self.output_tokens_per_second)} output tokens/s"
        )

    def promised(self, slo: Slo | str, intervals: Intervals | None = None) -> Forecast:
        """The same forecast with the verdict on an SLO such as ``ttft_p99<1s,tpot_p95<40ms``."""
        return replace(self, verdict=judge(self, slo, intervals or self.intervals))

    def to_dict(self, *, intervals: bool = True) -> dict[str, Any]:
        """What ``infercast simulate --json`` prints; 80 % intervals take a few short simulations more."""
        written: dict[str, Any] = renderers().document_of(self, self.intervals if intervals else None)
        return written

    def per_request(self) -> dict[str, Array]:
        """Arrays over requests, in order of arrival: when each was sent, its tokens, latencies, and its replica (of the
        decode pool). TPOT is not a number for an answer of one token. An SLO (`promised`) adds a column of 1 and 0 for
        requests that keep it, a KV cache in host memory one of the tokens that came from there.
        """
        served, requests = self.clients, self.workload.requests
        tiers = [record.tier for record in self.records if record.tier is not None]
        # Sessions, classes and adapters of requests, as far as any have them; -1 where one has none
        found = {}
        for name in ("session", "adapter"):
            values = [getattr(request, name) for request in requests]
            if any(value is not None for value in values):
                found[name] = np.array([-1 if value is None else value for value in values])
        if any(request.slo_class for request in requests):
            found["class"] = np.array([request.slo_class for request in requests])
        return {
            "sent_s": served.sent_at, "input_tokens": np.array([request.num_input for request in requests]),
            "cached_tokens": np.sum([record.num_cached for record in self.records], axis=0),
            **({} if not tiers else {"loaded_tokens": np.sum([tier.num_loaded for tier in tiers], axis=0)}),
            "output_tokens": np.array([request.num_output for request in requests]), "ttft_ms": served.ttft / MILLI,
            "tpot_ms": latency_of(served, "tpot") / MILLI, "end_to_end_ms": served.end_to_end / MILLI,
            "replica": served.engine, **found,
            **({} if self.verdict is None else {"keeps_slo": keeps(served, self.verdict.slo).astype(np.int64)}),
        }  # fmt: skip

    def to_dataframe(self) -> Any:
        """The same as `to_frame` with pandas has."""
        return self.to_frame("pandas")


def prices_of(forecast: Forecast) -> list[tuple[int, str, GpuPrice | None]]:
    """GPUs of each pool (and stage, where they differ), how many, and what an hour of one costs."""
    pools = [(pool.pool.gpus, pool.deployment.gpu) for pool in forecast.pools]
    kinds = [(count // max(1, len(gpu.stages)), each.name) for count, gpu in pools for each in gpu.stages or (gpu,)]
    return [(count, gpu, forecast.tariff.price(gpu, forecast.facility)) for count, gpu in kinds]


def facility_of(forecast: Forecast) -> Facility:
    """The facility as given, with defaults from the list of owned hardware."""
    return around((price for _, _, price in prices_of(forecast)), forecast.facility)


def per_hour_of(forecast: Forecast) -> float | None:
    """Dollars per hour of all GPUs, whatever they serve; None where a price is not known."""
    prices = prices_of(forecast)
    rent = hourly([(count, price) for count, _, price in prices])
    if rent is None:
        return None
    # Owned GPUs cost electricity on top, by their power at the wall; rents include it.
    metered = sum(count for count, _, price in prices if price is not None and price.metered)
    wall = forecast.wall if metered else None
    return rent if wall is None or wall.usd_per_hour is None else rent + wall.usd_per_hour * metered / forecast.gpus
