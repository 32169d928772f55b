"""The numbers of a forecast and their intervals, each declared once for JSON, terminal, page and comparison."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from infercast import units
from infercast.forecast.intervals import LEVEL, Band, Intervals
from infercast.forecast.result import Forecast
from infercast.forecast.run import EngineLoad, MeanAndPeak, PoolRun
from infercast.forecast.slo import NAMES, Percentiles
from infercast.report.terminal import Facts, Grid, Group, Printable, Section

if TYPE_CHECKING:
    from infercast.forecast.layouts import LayoutCost

    Judged: TypeAlias = Forecast | LayoutCost

T_contra = TypeVar("T_contra", contravariant=True)

LENGTHS = re.compile(r" \([^)]*\)")  # ranges of lengths in the description of a workload
TITLE = "80 % intervals, from how far kernels, host and release may be off, and from chance"
PARTS = {"kernels": "kernels", "host": "your host", "release": "the release", "luck": "luck"}
LEAST = 0.005  # parts below this are left out
EVIDENCE = {
    "probed": "your host's speed, by `infercast measure --host`",
    "calibrated": "one benchmark, by `infercast calibrate`",
}


class Quantity(NamedTuple, Generic[T_contra]):
    """One number of a forecast, of a pool or of a replica."""

    key: str  # In JSON
    label: str  # For people, before the bare number
    of: Callable[[T_contra], Any]  # The number, or a `MeanAndPeak`, of what has it
    write: Callable[[Any], str]
    unit: str = ""
    row: str | None = None  # The name of its row where the unit says what it is
    matters: Callable[[T_contra], bool] | None = (
        None  # Whether tables show it, where not for being there; JSON always does
    )
    interval: str | None = None  # The field of `Intervals` that belongs to it
    in_points: bool = False  # A share: changes are in percentage points

    def is_shown(self, owner: T_contra) -> bool:
        return self.of(owner) is not None if self.matters is None else self.matters(owner)

    def data(self, owner: T_contra) -> Any:
        value = self.of(owner)
        return {"mean": value.mean, "peak": value.peak} if isinstance(value, MeanAndPeak) else value

    def facts(self, owner: T_contra) -> list[tuple[str, str]]:
        value = self.of(owner)
        if not self.is_shown(owner):
            return []
        if isinstance(value, MeanAndPeak):
            words = f"{self.write(value.mean)}{self.unit} on average, {self.write(value.peak)} at most"
        else:
            words = f"{self.write(value)}{self.unit}"
        return [(self.label if self.row is None else self.row, words)]

    def written(self, value: float | None) -> str:
        return "-" if value is None else self.write(value)

    def compared(self, owner: T_contra) -> tuple[str, float | None]:
        """The name and the number that two runs are compared by: the peak of a level."""
        value = self.of(owner)
        return (f"{self.label} at most", value.peak) if isinstance(value, MeanAndPeak) else (self.label, value)


def tenths(value: float) -> str:
    """Sequences or requests: whole numbers without decimals."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _of_part(
    part: Callable[[Judged], T_contra | None], *quantities: Quantity[T_contra]
) -> tuple[Quantity[Judged], ...]:
    """Quantities of a part of a forecast, which only matter where it has that part."""

    def whole(quantity: Quantity[Any]) -> Quantity[Judged]:
        return quantity._replace(
            of=lambda run: None if (found := part(run)) is None else quantity.of(found),
            matters=lambda run: (found := part(run)) is not None and quantity.is_shown(found),
        )

    return tuple(map(whole, quantities))


RESULTS: tuple[Quantity[Forecast], ...] = (
    Quantity("output_tokens_per_s", "output tokens/s", lambda run: run.output_tokens_per_second, units.format_figure,
             " output tokens/s", "throughput", interval="output_tokens_per_second"),
    Quantity("output_tokens_per_s_per_gpu", "output tokens/s per GPU", lambda run: run.output_tokens_per_second_a_gpu,
             units.format_figure, " output tokens/s per GPU", "", lambda run: run.gpus > 1),
    Quantity("requests_per_s", "requests/s", lambda run: run.requests_per_second, "{:,.2f}".format, " requests/s", "",
             interval="requests_per_second"),
)  # fmt: skip
PROMISES = _of_part(
    lambda run: run.verdict,
    Quantity("slo_attainment", "SLO attainment", lambda verdict: verdict.attainment, units.format_percent,
             " of requests keep every limit", "attainment", in_points=True),
    Quantity("goodput_requests_per_s", "goodput, requests/s", lambda verdict: verdict.goodput, "{:,.2f}".format,
             " requests/s that keep every limit", "goodput"),
    Quantity("slo_odds", "SLO odds", lambda verdict: verdict.odds, units.format_odds, " that all limits hold", "odds",
             lambda verdict: True, in_points=True),
    Quantity("slo_headroom", "SLO headroom", lambda verdict: verdict.headroom, "{:,.2f}".format,
             " x, the least limit / forecast", "headroom"),
)  # fmt: skip
COSTS = _of_part(
    lambda run: run.cost,
    Quantity("usd_per_hour", "$ per hour", lambda cost: cost.per_hour, units.format_dollars, " per hour", "cost"),
    Quantity("usd_per_request", "$ per request", lambda cost: cost.per_request, units.format_dollars, " per request",
             ""),
    Quantity("usd_per_million_output_tokens", "$/M output tokens", lambda cost: cost.per_million_output_tokens,
             units.format_dollars, " per million output tokens, all cost charged to output", ""),
    Quantity("usd_per_million_input_tokens", "$/M input tokens", lambda cost: cost.per_million_input_tokens,
             units.format_dollars, " per million input tokens, all cost charged to input", ""),
    Quantity("usd_per_million_tokens", "$/M tokens", lambda cost: cost.per_million_tokens, units.format_dollars,
             " per million tokens, input and output alike", ""),
)  # fmt: skip
ENERGIES = _of_part(
    lambda run: run.energy,
    Quantity("watts_per_gpu", "watts per GPU", lambda energy: energy.mean_watts, units.format_watts,
             " per GPU on average", "GPU power"),
    Quantity("peak_watts_per_gpu", "peak watts per GPU", lambda energy: energy.peak_watts, units.format_watts,
             " per GPU in the step that draws most", ""),
    Quantity("joules_per_output_token", "J/output token", lambda energy: energy.joules_per_output_token,
             units.format_joules, " per output token", "GPU energy"),
    Quantity("joules_per_token", "J/token", lambda energy: energy.joules_per_token, units.format_joules,
             " per token, input and output alike", ""),
    Quantity("joules_per_request", "J/request", lambda energy: energy.joules_per_request, units.format_joules,
             " per request", ""),
    Quantity("watt_hours_per_million_output_tokens", "Wh/M output tokens",
             lambda energy: energy.watt_hours_per_million_output_tokens, "{:,.0f}".format,
             " Wh per million output tokens", ""),
) + _of_part(
    lambda run: run.wall,
    Quantity("wall_watts", "watts at the wall", lambda wall: wall.watts, units.format_watts, " on average",
             "at the wall"),
    Quantity("wall_joules_per_output_token", "J/output token at the wall", lambda wall: wall.joules_per_output_token,
             units.format_joules, " per output token", ""),
    Quantity("wall_watt_hours_per_million_output_tokens", "Wh/M output tokens at the wall",
             lambda wall: wall.watt_hours_per_million_output_tokens, "{:,.0f}".format,
             " Wh per million output tokens", ""),
    Quantity("usd_electricity_per_hour", "$ electricity per hour", lambda wall: wall.usd_per_hour, units.format_dollars,
             " per hour", "electricity"),
    Quantity("usd_electricity_per_million_output_tokens", "$ electricity/M output tokens",
             lambda wall: wall.usd_per_million_output_tokens, units.format_dollars, " per million output tokens", ""),
    Quantity("grams_co2_per_million_output_tokens", "g CO2/M output tokens",
             lambda wall: wall.grams_co2_per_million_output_tokens, units.format_grams,
             " CO2 per million output tokens", "carbon"),
)  # fmt: skip
LOADS: tuple[Quantity[Forecast | PoolRun], ...] = (
    Quantity("running", "running", lambda run: run.running, tenths, " sequences"),
    Quantity("waiting", "waiting", lambda run: run.waiting, tenths, " requests"),
    Quantity("kv_usage", "KV cache use", lambda run: run.kv_usage, units.format_percent),
    Quantity("prefix_hit_rate", "prefix cache", lambda run: run.prefix_hit_rate, units.format_percent,
             " of prompt tokens found", matters=lambda run: run.prefix_hit_rate > 0),
    Quantity("tier_hit_rate", "found in host memory", lambda run: run.tier_hit_rate, units.format_percent,
             matters=lambda run: False),
    Quantity("preemptions", "preemptions", lambda run: run.num_preemptions, "{:,}".format,
             ": the KV cache ran full", matters=lambda run: run.num_preemptions > 0),
)  # fmt: skip
OF_ENGINES: tuple[Quantity[EngineLoad], ...] = (
    Quantity("requests", "requests", lambda load: load.requests, "{:,}".format),
    Quantity("busy", "busy", lambda load: load.busy, units.format_percent),
    Quantity("running", "running", lambda load: load.running, "{:,.1f}".format),
    Quantity("kv_peak", "KV cache peak", lambda load: load.kv_peak, units.format_percent),
    Quantity("prefix_hit_rate", "found in cache", lambda load: load.prefix_hit_rate, units.format_percent),
    Quantity("preemptions", "preemptions", lambda load: load.num_preemptions, "{:,}".format),
)
"""Of a whole forecast, with an SLO, with a known GPU price, and with known GPU power (with servers and building); of a
forecast and of each of its pools; and of each replica."""


class Latency(NamedTuple):
    name: str  # Its field; in JSON with ``_ms``
    title: str
    short: str  # The same for a narrow column


LATENCIES = (
    Latency("ttft", "time to first token (TTFT)", "TTFT"), Latency("tpot", "time per output token (TPOT)", "TPOT"),
    Latency("inter_token", "inter-token latency", "inter-token"), Latency("end_to_end", "end to end", "end to end"),
)  # fmt: skip
LINK_PARTS = (
    Latency("prompt", "  prompt on the prefill pool", "  prompt"),
    Latency("wait", "  waiting for the link", "  waiting for the link"),
    Latency("transfer", "  on the link", "  on the link"),
    Latency("first_step", "  to the first token", "  to the first token"),
)  # What the time to first token of two pools is made of


def latencies_of(
    forecast: Forecast, intervals: Intervals | None = None
) -> list[tuple[Latency, Percentiles | None, Band | None]]:
    """Every latency with its interval, those of the link below the one that they are parts of."""
    rows: list[tuple[Latency, Percentiles | None, Band | None]] = []
    for latency in LATENCIES:
        band = None if intervals is None else getattr(intervals, latency.name)
        rows.append((latency, getattr(forecast, latency.name), band))
        if latency is LATENCIES[0] and forecast.link is not None:
            rows += [(part, getattr(forecast.link, part.name), None) for part in LINK_PARTS]
    return rows


def milliseconds(values: Percentiles | None) -> dict[str, float] | None:
    return None if values is None else {name: getattr(values, name) / units.MILLI for name in NAMES}


def render_intervals(intervals: Intervals) -> Printable:
    """A table for a terminal of 80 columns, and what holds for rates in a line below."""
    rows = zip(NAMES, *(_cells(getattr(intervals, each.name)) for each in LATENCIES), strict=True)
    table = Grid(("", *(each.short for each in LATENCIES)), [list(row) for row in rows])
    rates = ("output tokens/s", format_rates(intervals.output_tokens_per_second))
    return Section(TITLE, Group(table, Facts([rates, *rest_rows(intervals)])))


def rest_rows(intervals: Intervals) -> list[tuple[str, str]]:
    """What medians' intervals are made of, each part by itself, and what would narrow them."""
    shown = {f"{name.upper()} p50": rests for name, rests in intervals.rests.items()}
    rows = []
    for title, rests in shown.items():
        parts = ((words, getattr(rests, name)) for name, words in PARTS.items())
        made = ", ".join(f"{words} {around(part)}" for words, part in parts if part >= LEAST)
        rows.append((title, f"{around(rests.whole)}: {made}"))
    for name, words in EVIDENCE.items():
        if any(getattr(rests, name) < 0.95 * rests.whole for rests in shown.values()):
            left = ", ".join(f"{title} {around(getattr(rests, name))}" for title, rests in shown.items())
            rows.append(("would be", f"{left} with {words}"))
    return rows


def around(part: float) -> str:
    return f"+-{100 * part:.0f} %"


def interval_fields(intervals: Intervals | None) -> dict[str, Any]:
    """As plain data; empty without intervals."""
    if intervals is None:
        return {}
    return {
        "interval_level": LEVEL,
        **{f"{each.name}_ms_interval": _milliseconds(getattr(intervals, each.name)) for each in LATENCIES},
        "output_tokens_per_s_interval": list(intervals.output_tokens_per_second),
        "requests_per_s_interval": list(intervals.requests_per_second),
        "interval_rests_on": {f"{name}_p50": rests._asdict() for name, rests in intervals.rests.items()},
    }


def format_interval(low: float, high: float) -> str:
    """Two times with one unit if they share it: ``27.9 to 36.2 ms``."""
    first, last = units.format_seconds(low), units.format_seconds(high)
    unit = last.split()[-1]
    return f"{first.removesuffix(f' {unit}')} to {last}"


def ends_ms(ends: tuple[float, float]) -> list[float]:
    return [end / units.MILLI for end in ends]


def format_ends(ends: tuple[float, float]) -> str:
    return format_interval(*ends)


def format_band(band: Band, name: str = "p99") -> str:
    return format_interval(getattr(band.low, name), getattr(band.high, name))


def format_rates(ends: tuple[float, float]) -> str:
    """Two rates to three digits or more: ``2,207 to 2,233``, ``76.3 to 180``, ``1.64 to 2.05``."""
    low, high = map(units.format_figure, ends)
    return f"{low} to {high}"


def _cells(band: Band | None) -> list[str]:
    return ["-"] * len(NAMES) if band is None else [format_band(band, name) for name in NAMES]


def _milliseconds(band: Band | None) -> dict[str, list[float]] | None:
    """[low, high] of the mean and each percentile."""
    if band is None:
        return None
    return {name: [getattr(band.low, name) / units.MILLI, getattr(band.high, name) / units.MILLI] for name in NAMES}
