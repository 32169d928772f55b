"""What a power limit or a clock saves, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import nan
from textwrap import fill
from typing import TYPE_CHECKING, Any

from infercast.forecast.sweep.points import Point
from infercast.forecast.sweep.savings import POWER, Savings, drawn, joules_of
from infercast.report.files import csv_lines
from infercast.report.fitting import Column, FittingTable
from infercast.report.layout import facts, section, styled
from infercast.report.quantities import ENERGIES, milliseconds
from infercast.report.text_chart import Chart, Series, TextCharts
from infercast.units import format_joules, format_odds, format_percent, format_seconds, format_watts

if TYPE_CHECKING:
    from rich.console import RenderableType

NARROW = 78
WORTH = 0.01
"""A saving below this share is not worth a setting."""
LATENCIES = (("TTFT p99", "ttft", "p99"), ("TPOT p95", "tpot", "p95"))


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
        for name, field, which in LATENCIES
        if (before := _latency(free, field, which)) and (after := _latency(best, field, which))
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


def _latency(point: Point, field: str, which: str) -> float:
    """Seconds; not a number where there are none."""
    values = getattr(point.forecast, field)
    return nan if values is None else float(getattr(values, which))


def _columns(found: Savings) -> list[Column]:
    columns = [
        Column(unit_of(found), _label),
        Column("W/GPU", lambda point: format_watts(drawn(point)[0].mean_watts)),
        *(Column(name, _cell(field, which), 0 if field == "tpot" else 1) for name, field, which in LATENCIES),
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
    return lambda point: format_seconds(_latency(point, field, which))


def _charts(found: Savings) -> list[Chart]:
    """Energy of an output token, and the latency that grows."""
    positions = [float(point.number or 0.0) for point in found.points]
    labels = [_label(point) for point in found.points]
    boards = [drawn(point)[0].joules_per_output_token for point in found.points]
    wall = [joules_of(point) for point in found.points]
    energy = [Series("at the wall", "x", wall), Series("GPU boards", "o", boards)]
    tpot = [Series(name, mark, [_latency(point, "tpot", name) for point in found.points])
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
        "points": [_point_dict(found, point) for point in found.points],
    }


def _point_dict(found: Savings, point: Point) -> dict[str, Any]:
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
    rows = [_flat(_point_dict(found, point)) for point in found.points]
    columns = max((list(row) for row in rows), key=len)
    yield from csv_lines([found.name, *columns[1:]], ([row.get(name) for name in columns] for row in rows))


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Percentiles of latencies as fields of their own."""
    rows: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            rows |= {f"{name.removesuffix('_ms')}_{which}_ms": each for which, each in value.items()}
        else:
            rows[name] = value
    return rows
