"""A deployment that might be the answer: what runs where, how often, and with which settings."""

from __future__ import annotations

from enum import Enum
from typing import Any

from infercast.engines.base import DEFAULT_ENGINE, engine_named
from infercast.forecast.diagnosis.diagnose import bottleneck
from infercast.forecast.intervals import Intervals, forecast_intervals
from infercast.forecast.result import Forecast, counted, judge, tightest
from infercast.forecast.slo import Percentiles, Slo, attainment
from infercast.lazy_classes import dataclass, replace
from infercast.models.layout import ParallelLayout
from infercast.shown import ReprMixin


@dataclass(frozen=True, slots=True)
class PowerDraw:
    gpu_watts: float  # Of the boards, on average
    wall_watts: float  # With servers and building, on average
    peak_watts: float  # Of the servers at the wall, without the building, with every GPU in the step that draws most
    joules_per_output_token: float  # Of the boards ...
    wall_joules_per_output_token: float  # ... and with servers and building.
    usd_per_hour: float | None  # Of electricity; None without a price
    grams_co2_per_million_output_tokens: float | None  # None without a factor of the grid
    low: float  # The ends of the 80 % interval of the boards' joules, as factors
    high: float
    source: str  # What the power of the GPUs is known from


@dataclass(frozen=True, slots=True)
class Figures:
    ttft: Percentiles
    tpot: Percentiles | None
    end_to_end: Percentiles
    output_tokens_per_second: float
    requests_per_second: float
    attainment: float  # The share of requests that keep every limit of the SLO
    goodput: float  # Requests a second that do
    headroom: float  # The smallest limit / forecast; above 1 the SLO holds
    tightest: str  # The limit that it is the headroom of, such as ``ttft_p99``
    state: str  # ``stable``, ``backlogged`` or ``overloaded``
    capacity: float | None  # Requests a second that can be served, where it is known
    busy: float  # Share of the time in which the busiest replica computes
    kv_peak: float  # Most of the KV cache that was in use at a time
    bottleneck: str
    source: str  # What the weakest of the estimates that count rests on
    intervals: Intervals | None = None  # 80 % intervals of latencies and rates, if computed
    odds: float | None = None  # The probability that the SLO holds; None where there are no intervals
    asked_odds: float = 0.0
    drawn: PowerDraw | None = None  # None where the power of its GPUs is not known
    beyond: str = ""  # The budget that it exceeds, in words; empty if none

    @property
    def holds(self) -> bool:
        """Whether the SLO holds in the forecast's own numbers, with the required odds, and within the budgets."""
        is_steady = self.state not in ("overloaded", "filling")
        kept = is_steady and self.headroom > 1.0 and (self.odds or 0.0) >= self.asked_odds
        return kept and not self.beyond


def figures_of(forecast: Forecast, slo: Slo, times: float = 1, *, intervals: bool = False) -> Figures:
    room, limit = tightest(forecast, slo)
    bands = forecast_intervals(forecast) if intervals else None
    capacity, share = forecast.state.capacity, attainment(forecast.clients, slo, counted(forecast))
    return Figures(
        ttft=forecast.ttft, tpot=forecast.tpot, end_to_end=forecast.end_to_end,
        output_tokens_per_second=times * forecast.output_tokens_per_second,
        requests_per_second=times * forecast.requests_per_second, attainment=share,
        goodput=times * share * forecast.requests_per_second, headroom=room, tightest=limit, state=forecast.state.word,
        capacity=None if capacity is None else times * capacity, busy=max(load.busy for load in forecast.engines),
        kv_peak=forecast.kv_usage.peak, bottleneck=bottleneck(forecast), source=forecast.source, intervals=bands,
        odds=None if bands is None else judge(forecast, slo, bands).odds, drawn=power_draw_of(forecast, times),
    )  # fmt: skip


def power_draw_of(forecast: Forecast, times: float = 1) -> PowerDraw | None:
    """Power of ``times`` equal forecasts; None where the power of a GPU is not known."""
    energy, wall = forecast.energy, forecast.wall
    if energy is None or wall is None:
        return None
    return PowerDraw(
        gpu_watts=times * wall.gpu_watts, wall_watts=times * wall.watts, peak_watts=times * wall.peak_watts / wall.pue,
        joules_per_output_token=energy.joules_per_output_token,
        wall_joules_per_output_token=wall.joules_per_output_token,
        usd_per_hour=None if wall.usd_per_hour is None else times * wall.usd_per_hour,
        grams_co2_per_million_output_tokens=wall.grams_co2_per_million_output_tokens, low=energy.low / energy.joules,
        high=energy.high / energy.joules, source=energy.source,
    )  # fmt: skip


Settings = tuple[tuple[str, Any], ...]  # Names and values, in order of names, so that equal ones are equal

ONE_GPU = ParallelLayout()
ACCEPTANCE = "acceptance"
DRAFTS = (ACCEPTANCE, "speculative_config")  # Settings of speculative decoding; the first is ours alone


@dataclass(frozen=True, slots=True)
class Candidate:
    """Equal replicas of one deployment; with ``prefill`` they decode what that pool has computed the prompts of."""

    engine: str  # With its version, such as ``vllm@0.25``
    gpu: str  # A bundled name or a file
    layout: ParallelLayout = ONE_GPU  # Of one replica; its ``data`` copies share experts, where a model has any
    replicas: int = 1
    quantization: str | None = None  # None: as the checkpoint has it
    kv_cache_dtype: str = "auto"
    settings: Settings = ()  # Of the engine, by its own names, where they are not its choice
    power_limit: float | None = None  # Watts that each GPU's board may draw; None: as many as it takes
    prefill: Candidate | None = None

    @property
    def pools(self) -> tuple[Candidate, ...]:
        """What computes prompts and what decodes, or the one pool that does both."""
        return (self,) if self.prefill is None else (self.prefill, replace(self, prefill=None))

    @property
    def gpus(self) -> int:
        return sum(pool.replicas * pool.layout.gpus for pool in self.pools)

    @property
    def stem(self) -> Candidate:
        """What step times depend on: the same for all numbers of replicas and all settings."""
        prefill = None if self.prefill is None else self.prefill.stem
        return replace(self, replicas=1, settings=(), prefill=prefill)

    @property
    def unit(self) -> Candidate:
        prefill = None if self.prefill is None else self.prefill.unit
        return replace(self, replicas=1, prefill=prefill)

    def times(self, replicas: int) -> Candidate:
        return replace(self, replicas=replicas)

    def with_settings(self, **values: Any) -> Candidate:
        merged = {**dict(self.settings), **values}
        return replace(self, settings=tuple(sorted((key, each) for key, each in merged.items() if each is not None)))

    def options(self) -> dict[str, Any]:
        """Flags of the command of one replica, less the engine's own choices; True is a flag without a value."""
        settings = {name: value for name, value in self.settings if name != ACCEPTANCE}  # the engine finds out
        return engine_named(self.engine).options(self.layout, self.quantization, self.kv_cache_dtype, settings)

    @property
    def formats(self) -> str:
        """Formats of weights and, if it is not the weights' own choice, of keys and values."""
        keys = "" if self.kv_cache_dtype == "auto" else f", KV {self.kv_cache_dtype}"
        return f"{self.quantization or 'as published'}{keys}"

    def __str__(self) -> str:
        if self.prefill is not None:
            return f"prefill {self.prefill} + decode {replace(self, prefill=None)}"
        unsaid = (engine_named(self.engine).bounds[2], *DRAFTS)  # which all candidates of a question have in common
        words = {False: "off", True: "on"}
        settings = "".join(
            f", {name} {words[value] if isinstance(value, bool) else value}"
            for name, value in self.settings
            if name not in unsaid
        )
        by = "" if self.engine == DEFAULT_ENGINE else f" by {self.engine}"
        held = "" if self.power_limit is None else f" at {self.power_limit:g} W"
        return f"{self.replicas} x {self.layout} on {self.gpu}{held}{by} ({self.formats}{settings})"


class Stage(Enum):
    REFUSED = "refused"  # It does not fit, or the engine would not start it
    BOUND = "bound"  # No hardware of this kind can keep the promise, or not for less than what is known to keep it
    ESTIMATED = "estimated"  # A quick estimate placed it behind others
    SCREENED = "screened"  # A short simulation placed it behind others
    JUDGED = "judged"  # A simulation ended when it was clear whether it keeps the SLO
    SIMULATED = "simulated"  # With the figures of `simulate`


@dataclass(frozen=True, slots=True, repr=False)
class Row(ReprMixin):
    """One candidate and what became of it."""

    candidate: Candidate
    stage: Stage
    cost: float | None = None  # Money an hour; None where a price is not known
    figures: Figures | None = None  # Of a simulation, short or whole
    headroom: float | None = None  # As the last stage has it: a bound from above, an estimate or a simulation
    reason: str = ""  # Why it is not the winner; empty for the winner
    rate: float | None = None  # Requests a second that it serves within the SLO, where throughput was the objective

    def _words(self) -> str:
        return f"{self.candidate}: {self.stage.value}"

    @property
    def gpus(self) -> int:
        return self.candidate.gpus

    @property
    def holds(self) -> bool:
        """Whether a simulation was long enough to tell, and the SLO held."""
        return self.stage in (Stage.JUDGED, Stage.SIMULATED) and self.figures is not None and self.figures.holds

    @property
    def verdict(self) -> str:
        """The result in a few words that follow its name."""
        figures = self.figures
        if self.holds or figures is None:
            return self.reason or "keeps the SLO"
        if figures.state in ("overloaded", "filling"):
            return f"is {figures.state} at this rate" if figures.state == "overloaded" else "is still filling up"
        if figures.headroom <= 1.0:
            return f"misses {figures.tightest} by {format_share(1.0 / figures.headroom - 1.0)}"
        if figures.beyond:
            return figures.beyond
        return f"keeps the SLO with a probability of only {format_share(figures.odds or 0.0)}"


def format_share(share: float) -> str:
    return f"{100.0 * share:.0f} %" if share >= 0.005 else "less than 1 %"
