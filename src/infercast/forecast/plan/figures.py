"""What a plan says of a simulated candidate: latencies, rates, SLO, bottleneck and energy."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.forecast.explain.kernels import Phase, host_bound_share
from infercast.forecast.intervals import Intervals, forecast_intervals
from infercast.forecast.result import Forecast
from infercast.forecast.slo import Percentiles, Slo, attainment
from infercast.forecast.verdict import counted, odds, value_of
from infercast.units import format_percent

FULL = 0.95
"""Share of the KV cache from which on it is what limits."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What all GPUs of a candidate draw."""

    gpu_watts: float
    """Of the boards, on average."""
    wall_watts: float
    """With servers and building, on average."""
    peak_watts: float
    """Of the servers at the wall, without the building, while every GPU is in its step that draws most."""
    joules_per_output_token: float
    """Of the boards ..."""
    wall_joules_per_output_token: float
    """... and with servers and building."""
    usd_per_hour: float | None
    """Of electricity; None without a price."""
    grams_co2_per_million_output_tokens: float | None
    """None without a factor of the grid."""
    low: float
    """The ends of the 80 % interval of the boards' joules, as factors."""
    high: float
    source: str
    """What the power of the GPUs is known from."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What users of a candidate would see; times in seconds, rates a second."""

    ttft: Percentiles
    tpot: Percentiles | None
    end_to_end: Percentiles
    output_tokens_per_second: float
    requests_per_second: float
    attainment: float
    """The share of requests that keep every limit of the SLO."""
    goodput: float
    """Requests a second that do."""
    headroom: float
    """The smallest limit / forecast; above 1 the SLO holds."""
    tightest: str
    """The limit that it is the headroom of, such as ``ttft_p99``."""
    state: str
    """``stable``, ``backlogged`` or ``overloaded``."""
    capacity: float | None
    """Requests a second that can be served, where it is known."""
    busy: float
    """Share of the time in which the busiest replica computes."""
    kv_peak: float
    """Most of the KV cache that was in use at a time."""
    bottleneck: str
    """What limits it, in words."""
    source: str
    """What the weakest of the estimates that count rests on."""
    intervals: Intervals | None = None
    """80 % intervals of latencies and rates; None where nobody asked."""
    odds: float | None = None
    """The probability that the SLO holds; None where there are no intervals."""
    asked_odds: float = 0.0
    """What that has to be at least."""
    drawn: Drawn | None = None
    """What all its GPUs draw; None where their power is not known."""
    beyond: str = ""
    """Which budget it breaks, in words; empty if none."""

    @property
    def holds(self) -> bool:
        """Whether the SLO does, by the forecast's own numbers, as surely as it is asked for, and within the budgets."""
        is_steady = self.state not in ("overloaded", "filling")
        kept = is_steady and self.headroom > 1.0 and (self.odds or 0.0) >= self.asked_odds
        return kept and not self.beyond


def figures_of(forecast: Forecast, slo: Slo, times: int = 1, *, intervals: bool = False) -> Figures:
    """What a plan says of a forecast, of which there are so ``many`` side by side."""
    rooms = {limit.name: limit.seconds / max(value_of(forecast, limit), 1e-12) for limit in slo.limits}
    tightest = min(rooms, key=lambda name: rooms[name])
    bands = forecast_intervals(forecast) if intervals else None
    capacity, share = forecast.state.capacity, attainment(forecast.clients, slo, counted(forecast))
    return Figures(
        ttft=forecast.ttft,
        tpot=forecast.tpot,
        end_to_end=forecast.end_to_end,
        output_tokens_per_second=times * forecast.output_tokens_per_second,
        requests_per_second=times * forecast.requests_per_second,
        attainment=share,
        goodput=times * share * forecast.requests_per_second,
        headroom=rooms[tightest],
        tightest=tightest,
        state=forecast.state.word,
        capacity=None if capacity is None else times * capacity,
        busy=max(load.busy for load in forecast.engines),
        kv_peak=forecast.kv_usage.peak,
        bottleneck=bottleneck(forecast),
        source=forecast.source,
        intervals=bands,
        odds=None if bands is None else odds(forecast, slo, bands),
        drawn=drawn_of(forecast, times),
    )


def bottleneck(forecast: Forecast) -> str:
    if forecast.saturation is not None:
        return f"more arrives than can be served: {forecast.saturation.capacity:.3g} requests/s"
    if forecast.kv_usage.peak >= FULL and forecast.waiting.peak > 0:
        return f"the KV cache: {format_percent(forecast.kv_usage.peak)} in use at most"
    share = host_bound_share(forecast.phases)
    if share > 0.5:
        return f"the host: GPUs wait for it in {format_percent(share)} of the time of steps"
    longest = max(forecast.phases, key=lambda phase: phase.whole)
    return _largest(longest)


def _largest(phase: Phase) -> str:
    family = max(phase.families, key=lambda each: each.seconds)
    steps = "steps with prompts" if phase.name == "prefill" else "steps that decode"
    held = f", bound by {family.bound}" if family.bound else ""
    return f"{family.family} in {steps}: {format_percent(family.share)} of their GPU time{held}"


def drawn_of(forecast: Forecast, times: int = 1) -> Drawn | None:
    """What a forecast draws, of which there are so many side by side; None where the power of a GPU is not known."""
    energy, wall = forecast.energy, forecast.wall
    if energy is None or wall is None:
        return None
    return Drawn(
        gpu_watts=times * wall.gpu_watts,
        wall_watts=times * wall.watts,
        peak_watts=times * wall.peak_watts / wall.pue,
        joules_per_output_token=energy.joules_per_output_token,
        wall_joules_per_output_token=wall.joules_per_output_token,
        usd_per_hour=None if wall.usd_per_hour is None else times * wall.usd_per_hour,
        grams_co2_per_million_output_tokens=wall.grams_co2_per_million_output_tokens,
        low=energy.low / energy.joules,
        high=energy.high / energy.joules,
        source=energy.source,
    )
