"""A sweep, for people."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import TYPE_CHECKING, Any

from infercast.forecast.latency import Percentiles
from infercast.forecast.sweep.axis import CONCURRENCY, RATE
from infercast.forecast.sweep.points import Edge, Point, Sweep
from infercast.report.caveats import caveat_section, caveats_of
from infercast.report.fitting import Column, FittingTable
from infercast.report.layout import facts, paragraph, section, styled
from infercast.report.text_chart import Chart, Series, TextCharts
from infercast.units import format_dollars, format_joules, format_percent, format_seconds, format_watts

if TYPE_CHECKING:
    from rich.console import RenderableType

UNITS = {RATE: "requests/s", CONCURRENCY: "clients"}
SHORT = {RATE: "rate", CONCURRENCY: "clients"}
SHOWN = (("TTFT", "ttft"), ("TPOT", "tpot"))
MARKS = {"p50": "o", "p95": "+", "p99": "x"}


def render_sweep(sweep: Sweep) -> list[RenderableType]:
    """What was swept, a row a value, charts, and where the curve bends."""
    name = UNITS.get(sweep.axis.name, sweep.axis.name)
    parts: list[RenderableType] = [styled(f"{sweep.title}: {sweep.workload}")]
    parts.append(section(f"Along {name}", FittingTable(columns_of(sweep), sweep.simulated)))
    refused = [f"{point.label}: {point.problem}" for point in sweep.points if point.problem]
    parts += [paragraph(sentence, style="dim") for sentence in refused + overload_notes(sweep)]
    if len(sweep.simulated) > 1:
        parts.append(TextCharts(charts_of(sweep)))
    if rows := summary_rows(sweep):
        parts.append(section("Where it bends" if sweep.axis.is_load else "Best values", facts(rows)))
    if found := caveats_of(point.forecast for point in sweep.simulated if point.forecast is not None):
        parts.append(caveat_section(found))
    return parts


def overload_notes(sweep: Sweep) -> list[str]:
    """What to know of rows with a queue that grows without end."""
    if not any(point.is_overloaded for point in sweep.points):
        return []
    return ["Of overloaded rows, latencies and the share in SLO tell how long the run was: the queue grows on."]


def columns_of(sweep: Sweep) -> list[Column]:
    """Wide terminals have all; narrow ones leave out the percentiles between the median and p99."""
    columns = [Column(SHORT.get(sweep.axis.name, sweep.axis.name), lambda point: point.label)]
    for title, field in SHOWN:
        ranks = {"p50": 0, "p95": 5, "p99": 0 if field == "ttft" else 4}
        columns += [Column(f"{title} {which}", _latency(field, which), rank) for which, rank in ranks.items()]
    columns.append(Column("tokens/s", lambda point: f"{point.forecast.output_tokens_per_second:,.0f}"))
    if sweep.axis.name != RATE:
        columns.append(Column("requests/s", lambda point: f"{point.forecast.requests_per_second:,.2f}", 6))
    if sweep.slo is not None:
        columns.append(Column("goodput", lambda point: f"{point.goodput:,.2f}"))
        columns.append(Column("in SLO", lambda point: format_percent(point.attainment), 1))
    if any(point.per_hour is not None for point in sweep.simulated):
        columns.append(Column("$/M out", lambda point: dollars(point.per_million_output_tokens), 3))
    if any(point.forecast.energy is not None for point in sweep.simulated if point.forecast is not None):
        columns.append(Column("W/GPU", lambda point: _drawn(point, "mean_watts", format_watts), 7))
        columns.append(Column("J/out", lambda point: _drawn(point, "joules_per_output_token", format_joules), 3))
    columns.append(Column("state", lambda point: point.forecast.state.word, 2))
    return columns


def _latency(field: str, name: str) -> Callable[[Point], str]:
    def cell(point: Point) -> str:
        values: Percentiles | None = getattr(point.forecast, field)
        return "-" if values is None else format_seconds(getattr(values, name))

    return cell


def _drawn(point: Point, name: str, write: Callable[[float], str]) -> str:
    energy = None if point.forecast is None else point.forecast.energy
    return "-" if energy is None else write(getattr(energy, name))


def dollars(amount: float | None) -> str:
    """An amount, or that none is known."""
    return "-" if amount is None else format_dollars(amount)


def charts_of(sweep: Sweep) -> list[Chart]:
    """Latencies with what was promised of them, what is served, and what it costs or how many keep the promise."""
    points = sweep.simulated
    # Loads stand where they are; values of a setting, often powers of two, at equal distances.
    positions = [float(point.number or 0.0) if sweep.axis.is_load else place for place, point in enumerate(points)]
    labels = [point.label for point in points]

    def chart(title: str, write: Callable[[float], str], *series: Series, **others: Any) -> Chart:
        return Chart(title, positions, labels, series, write, **others)

    charts = []
    for title, field in SHOWN:
        lines = [Series(name, mark, _values(sweep, field, name)) for name, mark in MARKS.items()]
        charts.append(chart(title, format_seconds, *lines, **_limit(sweep, field)))
    served = [point.forecast.requests_per_second for point in points if point.forecast is not None]
    rates = [Series("served", "o", served)]
    if sweep.slo is not None:
        rates.append(Series("in SLO", "x", [point.goodput or 0.0 for point in points]))
    charts.append(chart("requests/s", _short_number, *rates, from_zero=True))
    if sweep.slo is not None:
        shares = [point.attainment or 0.0 for point in points]
        charts.append(chart("requests within the SLO", "{:.0%}".format, Series("", "o", shares), from_zero=True))
    else:
        tokens = [point.forecast.output_tokens_per_second for point in points if point.forecast is not None]
        charts.append(chart("output tokens/s", _short_number, Series("", "o", tokens), from_zero=True))
    return charts


def _values(sweep: Sweep, field: str, name: str) -> list[float]:
    found = [getattr(point.forecast, field) for point in sweep.simulated]
    return [nan if values is None else float(getattr(values, name)) for values in found]


def _limit(sweep: Sweep, field: str) -> dict[str, Any]:
    """The tightest limit on a latency, and its name."""
    limits = [] if sweep.slo is None else [each for each in sweep.slo.limits if each.quantity == field]
    if not limits:
        return {}
    tightest = min(limits, key=lambda each: each.seconds)
    return {"limit": tightest.seconds, "limit_name": f"{tightest.name.partition('_')[2]} limit"}


def _short_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def summary_rows(sweep: Sweep) -> list[tuple[str, str]]:
    """The knee, the promise and saturation; or which value is best at what."""
    rows = _bends(sweep) if sweep.axis.is_load else _best(sweep)
    if sweep.slo is not None:
        rows.append(("SLO", str(sweep.slo)))
    if sweep.price is not None:
        rows.append(("price", sweep.price.description))
    return rows


def _bends(sweep: Sweep) -> list[tuple[str, str]]:
    unit, rows = UNITS[sweep.axis.name], []
    if sweep.knee is not None and sweep.light_ttft is not None:
        twice = format_seconds(2 * sweep.light_ttft)
        rows.append(("knee", f"{_edge(sweep.knee, unit)}: TTFT p50 stays below {twice}, twice that of a light load"))
    if sweep.promise is not None:
        rows.append(("SLO holds", _edge(sweep.promise, unit)))
    if sweep.capacity is not None:
        rows.append(("saturation", f"about {sweep.capacity:.3g} requests/s can be served at most"))
    return rows


def _edge(edge: Edge, unit: str) -> str:
    if edge.value is None:
        return f"below the smallest number of {unit} here"
    return f"up to {edge.value:g} {unit}" + ("" if edge.reached else ", the largest here, or more")


def _best(sweep: Sweep) -> list[tuple[str, str]]:
    """The value with the least of each latency, and with the most goodput or output tokens."""
    points = [point for point in sweep.simulated if not point.is_overloaded]
    if not points:
        return [("none", "requests come faster than any of these can serve")]
    rows = []
    for title, field in SHOWN:
        for name in ("p50", "p99"):
            found = [(float(getattr(values, name)), point.label) for point in points
                     if (values := getattr(point.forecast, field)) is not None]  # fmt: skip
            if found:
                least, label = min(found, key=lambda pair: pair[0])
                rows.append((f"lowest {title} {name}", f"{label} ({format_seconds(least)})"))
    if sweep.slo is not None:
        best = max(points, key=lambda point: (point.goodput or 0.0, point.headroom or 0.0))
        rows.append(("most goodput", f"{best.label} ({best.goodput:,.2f} requests/s)"))
    drawn = [(each.forecast.energy.joules_per_output_token, each.label) for each in points
             if each.forecast is not None and each.forecast.energy is not None]  # fmt: skip
    if drawn:
        least, label = min(drawn, key=lambda pair: pair[0])
        rows.append(("least energy", f"{label} ({format_joules(least)} per output token)"))
    return rows
