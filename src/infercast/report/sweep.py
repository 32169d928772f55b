"""Sweeps over loads, settings, power limits and clients, as tables, plain data and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import nan
from textwrap import fill
from typing import TYPE_CHECKING, Any

from infercast.forecast.result import Forecast
from infercast.forecast.slo import Percentiles
from infercast.forecast.speculation import BreakEven, LoadPoint, drafts_of
from infercast.forecast.sweep import CONCURRENCY, POWER, RATE, Edge, Point, Savings, Sweep, drawn, joules_of
from infercast.report.caveats import caveat_section, caveats_of
from infercast.report.deployment import draft_run_dict, drafting_dict, drafting_words
from infercast.report.files import csv_lines
from infercast.report.quantities import ENERGIES, milliseconds
from infercast.report.terminal import Chart, Column, FittingTable, Series, TextCharts, facts, paragraph, section, styled
from infercast.units import (
    MILLI,
    format_dollars,
    format_joules,
    format_odds,
    format_percent,
    format_seconds,
    format_watts,
)

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


LATENCIES = ("ttft", "tpot", "inter_token", "end_to_end")


def sweep_dict(sweep: Sweep) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "title": sweep.title,
        "workload": sweep.workload,
        "axis": sweep.axis.name,
        "slo": None if sweep.slo is None else str(sweep.slo),
        "usd_per_gpu_hour": None if sweep.price is None else sweep.price.per_hour,
        "light_ttft_p50_ms": None if sweep.light_ttft is None else sweep.light_ttft / MILLI,
        "knee": _edge_dict(sweep.knee),
        "slo_holds_up_to": _edge_dict(sweep.promise),
        "saturation_requests_per_s": sweep.capacity,
        "caveats": caveats_of(point.forecast for point in sweep.simulated if point.forecast is not None),
        "points": [_point_dict(point) for point in sweep.points],
    }


def _edge_dict(edge: Edge | None) -> dict[str, Any] | None:
    return None if edge is None else {"value": edge.value, "reached": edge.reached}


def _point_dict(point: Point) -> dict[str, Any]:
    run = point.forecast
    found: dict[str, Any] = {"value": point.label if point.number is None else point.number}
    found |= {"fits": run is not None, "problem": point.problem or None}
    found |= {"state": None if run is None else run.state.word, "gpus": None if run is None else run.gpus}
    for field in LATENCIES:
        found[f"{field}_ms"] = None if run is None else milliseconds(getattr(run, field))
    return found | {
        "output_tokens_per_s": None if run is None else run.output_tokens_per_second,
        "requests_per_s": None if run is None else run.requests_per_second,
        "goodput_requests_per_s": point.goodput,
        "slo_attainment": point.attainment,
        "slo_holds": point.holds,
        "slo_headroom": point.headroom,
        "usd_per_hour": point.per_hour,
        "usd_per_million_output_tokens": point.per_million_output_tokens,
        **{each.key: None if run is None else each.data(run) for each in ENERGIES},
    }


def sweep_rows(sweep: Sweep) -> Iterator[str]:
    """The same as CSV: a line a value, latencies in milliseconds."""
    flat = [_flat(_point_dict(point)) for point in sweep.points]
    columns = {"value": sweep.axis.name, **{name: name for name in max(flat, key=len) if name != "value"}}
    yield from csv_lines(columns.values(), ([row.get(name) for name in columns] for row in flat))


def _flat(found: dict[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            rows |= {f"{name.removesuffix('_ms')}_{which}_ms": each for which, each in value.items()}
        elif not (value is None and name.endswith("_ms")):
            rows[name] = value
    return rows


NARROW = 78
WORTH = 0.01
"""A saving below this share is not worth a setting."""
SAVINGS_LATENCIES = (("TTFT p99", "ttft", "p99"), ("TPOT p95", "tpot", "p95"))


def unit_of(found: Savings) -> str:
    """Of the values that were tried."""
    return "W" if found.name == POWER else "MHz"


def render_savings(found: Savings) -> list[RenderableType]:
    """The values side by side, two charts, and the answer."""
    what = "power limits" if found.name == POWER else "clocks"
    return [
        styled(f"{found.title}: {found.workload}"),
        section(f"Energy under {what}", FittingTable(_columns(found), found.points)),
        TextCharts(_charts(found)),
        section("Answer", styled(fill(sentence_of(found), NARROW))),
        *([] if found.slo is None else [section("Held against", facts(_promise_rows(found)))]),
    ]


def _promise_rows(found: Savings) -> list[tuple[str, str]]:
    rows = [("SLO", str(found.slo))]
    return rows if found.odds is None else [*rows, ("odds", f"{format_odds(found.odds)} that the best value keeps it")]


def sentence_of(found: Savings) -> str:
    """Which value saves most, how much, and what users see of it."""
    best, free, unit = found.best, found.free, unit_of(found)
    limit = "power limit" if found.name == POWER else "clock"
    if best is None:
        promise = "" if found.slo is None else f" within the SLO{_as_sure(found)}"
        return f"No {limit} that was tried serves these requests{promise}, nor does the GPU without one."
    if best is free or found.saved < WORTH:
        kept = "" if found.slo is None else f" that keeps the SLO{_as_sure(found)}"
        return (
            f"Leave the {limit} at {_label(free)} {unit}, its own, where an output token takes "
            f"{format_joules(joules_of(free))} at the wall: no lower one{kept} saves as much as 1 %."
        )
    moved = [
        f"{name} goes from {format_seconds(before)} to {format_seconds(after)}"
        for name, field, which in SAVINGS_LATENCIES
        if (before := _savings_latency(free, field, which)) and (after := _savings_latency(best, field, which))
    ]
    promise = "" if found.slo is None else f", within the SLO (odds {format_odds(found.odds)})"
    return (
        f"A {limit} of {_label(best)} {unit} saves {format_percent(found.saved)} of the energy at the wall: "
        f"{format_joules(joules_of(free))} becomes {format_joules(joules_of(best))} per output token"
        f"{promise}; {', '.join(moved)}."
    )


def _as_sure(found: Savings) -> str:
    return f" with odds of {format_odds(found.least_odds)}" if found.least_odds else ""


def _label(point: Point) -> str:
    return f"{point.number:g}"


def _savings_latency(point: Point, field: str, which: str) -> float:
    """Seconds; not a number where there are none."""
    values = getattr(point.forecast, field)
    return nan if values is None else float(getattr(values, which))


def _columns(found: Savings) -> list[Column]:
    columns = [
        Column(unit_of(found), _label),
        Column("W/GPU", lambda point: format_watts(drawn(point)[0].mean_watts)),
        *(Column(name, _cell(field, which), 0 if field == "tpot" else 1) for name, field, which in SAVINGS_LATENCIES),
        Column("tokens/s", lambda point: f"{point.forecast.output_tokens_per_second:,.0f}", 2),
        Column("J/output", lambda point: format_joules(drawn(point)[0].joules_per_output_token)),
        Column("at the wall", lambda point: format_joules(joules_of(point))),
        Column("saved", lambda point: format_percent(1.0 - joules_of(point) / joules_of(found.free))),
    ]
    if found.slo is not None:
        columns.append(Column("in SLO", lambda point: format_percent(point.attainment), 1))
        columns.append(Column("holds", lambda point: "yes" if point.holds else "no"))
    columns.append(Column("", lambda point: "best" if point is found.best else ""))
    return columns


def _cell(field: str, which: str) -> Callable[[Point], str]:
    return lambda point: format_seconds(_savings_latency(point, field, which))


def _charts(found: Savings) -> list[Chart]:
    """Energy of an output token, and the latency that grows."""
    positions = [float(point.number or 0.0) for point in found.points]
    labels = [_label(point) for point in found.points]
    boards = [drawn(point)[0].joules_per_output_token for point in found.points]
    wall = [joules_of(point) for point in found.points]
    energy = [Series("at the wall", "x", wall), Series("GPU boards", "o", boards)]
    tpot = [Series(name, mark, [_savings_latency(point, "tpot", name) for point in found.points])
            for name, mark in (("p50", "o"), ("p95", "x"))]  # fmt: skip
    limits = [] if found.slo is None else [each for each in found.slo.limits if each.quantity == "tpot"]
    limit = min((each.seconds for each in limits), default=None)
    return [
        Chart("J/output token", positions, labels, energy, format_joules, from_zero=True),
        Chart("TPOT", positions, labels, tpot, format_seconds, limit=limit),
    ]


def savings_dict(found: Savings) -> dict[str, Any]:
    """The same as plain data."""
    best = found.best
    return {
        "title": found.title,
        "workload": found.workload,
        "axis": found.name,
        "slo": None if found.slo is None else str(found.slo),
        "own_value": found.free.number,
        "best_value": None if best is None else best.number,
        "best_slo_odds": found.odds,
        "saved_share": found.saved,
        "answer": sentence_of(found),
        "points": [_savings_point_dict(found, point) for point in found.points],
    }


def _savings_point_dict(found: Savings, point: Point) -> dict[str, Any]:
    run = point.forecast
    assert run is not None
    return {
        "value": point.number,
        "state": run.state.word,
        "ttft_ms": milliseconds(run.ttft),
        "tpot_ms": milliseconds(run.tpot),
        "output_tokens_per_s": run.output_tokens_per_second,
        "slo_attainment": point.attainment,
        "slo_holds": point.holds,
        "slo_headroom": point.headroom,
        "saved_share": 1.0 - joules_of(point) / joules_of(found.free),
        **{each.key: each.data(run) for each in ENERGIES},
    }


def savings_rows(found: Savings) -> Iterator[str]:
    """The same as CSV: a line a value, latencies in milliseconds."""
    rows = [_flat_savings_point(_savings_point_dict(found, point)) for point in found.points]
    columns = max((list(row) for row in rows), key=len)
    yield from csv_lines([found.name, *columns[1:]], ([row.get(name) for name in columns] for row in rows))


def _flat_savings_point(fields: dict[str, Any]) -> dict[str, Any]:
    """Percentiles of latencies as fields of their own."""
    rows: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            rows |= {f"{name.removesuffix('_ms')}_{which}_ms": each for which, each in value.items()}
        else:
            rows[name] = value
    return rows


def render_break_even(found: BreakEven) -> list[RenderableType]:
    """A row a load, two charts, and the answer."""
    return [
        styled(f"{found.title}: {found.workload}"),
        styled(drafting_words(found.drafting)),
        section("With and without drafts", FittingTable(SPECULATION_COLUMNS, found.points)),
        TextCharts(_break_even_charts(found)),
        section("Where it stops paying", styled(found.sentence, style="bold")),
        caveat_section(_caveats(found)),
    ]


def _caveats(found: BreakEven) -> list[str]:
    return caveats_of(run for point in found.points for run in (point.drafted, point.plain))


def _tpot(forecast: Forecast) -> str:
    return "-" if forecast.tpot is None else format_seconds(forecast.tpot.p50)


def _length(point: LoadPoint) -> str:
    found = drafts_of(point.drafted)
    return "-" if found is None else f"{found.counts.acceptance_length:.2f}"


SPECULATION_COLUMNS = [
    Column("clients", lambda point: f"{point.clients:,}"),
    Column("tokens/s without", lambda point: f"{point.plain.output_tokens_per_second:,.0f}"),
    Column("with", lambda point: f"{point.drafted.output_tokens_per_second:,.0f}"),
    Column("times", lambda point: f"{point.speed_up:.2f}"),
    Column("TPOT p50 without", lambda point: _tpot(point.plain)),
    Column("with", lambda point: _tpot(point.drafted)),
    Column("TTFT p50 without", lambda point: format_seconds(point.plain.ttft.p50), 2),
    Column("with", lambda point: format_seconds(point.drafted.ttft.p50), 2),
    Column("accepted length", _length, 3),
]


def _break_even_charts(found: BreakEven) -> list[Chart]:
    """How many times as much is served, and TPOT of both."""
    positions = range(len(found.points))
    labels = [f"{point.clients:,}" for point in found.points]
    nothing = float("nan")
    tpot = [
        [nothing if run.tpot is None else run.tpot.p50 for run in runs]
        for runs in ([point.plain for point in found.points], [point.drafted for point in found.points])
    ]
    return [
        Chart(
            "tokens/s with drafts / without, by clients", positions, labels,
            [Series("", "o", [point.speed_up for point in found.points])], "{:.2f}".format, 1.0, "pays above",
            from_zero=True,
        ),
        Chart(
            "TPOT p50, by clients", positions, labels,
            [Series("without", "o", tpot[0]), Series("with", "+", tpot[1])], format_seconds,
        ),
    ]  # fmt: skip


def break_even_dict(found: BreakEven) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "title": found.title,
        "workload": found.workload,
        "speculation": drafting_dict(found.drafting),
        "break_even_clients": found.clients,
        "sentence": found.sentence,
        "caveats": _caveats(found),
        "points": [
            {
                "clients": point.clients,
                "speed_up": point.speed_up,
                "tpot_ratio": point.tpot_ratio,
                **{
                    name: {
                        "output_tokens_per_s": run.output_tokens_per_second,
                        "requests_per_s": run.requests_per_second,
                        "tpot_p50_ms": None if run.tpot is None else run.tpot.p50 / MILLI,
                        "ttft_p50_ms": run.ttft.p50 / MILLI,
                    }
                    for name, run in (("without", point.plain), ("with", point.drafted))
                },
                "drafts": draft_run_dict(drafts_of(point.drafted)),
            }
            for point in found.points
        ],
    }
