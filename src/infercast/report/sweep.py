"""Sweeps over loads, settings, power limits and clients, and a day of traffic, as tables, plain data and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from math import isnan, log2, nan
from textwrap import fill
from typing import Any

from infercast.forecast.autoscaling import PolicyDay
from infercast.forecast.day import DayPlan, autoscaler_row, clock
from infercast.forecast.energy import Energy
from infercast.forecast.progress import time_left
from infercast.forecast.result import Forecast
from infercast.forecast.run import drafts_of
from infercast.forecast.sweep import (
    CONCURRENCY,
    POWER,
    RATE,
    BreakEven,
    Edge,
    LoadPoint,
    Point,
    Savings,
    Sweep,
    drawn,
    find_intervals,
    joules_of,
)
from infercast.report.caveats import brief_doubts, caveat_section, caveats_of
from infercast.report.deployment import draft_run_dict, drafting_dict, drafting_words
from infercast.report.diagnosis import counted_dict, counted_rows, diagnosis_of, diagnosis_rows, next_words
from infercast.report.files import csv_lines, one_level
from infercast.report.quantities import ENERGIES, LENGTHS, format_ends, milliseconds
from infercast.report.terminal import (
    SCREEN,
    Chart,
    Facts,
    Field,
    FittingTable,
    Grid,
    Paragraph,
    Printable,
    Renderers,
    Section,
    Series,
    TextCharts,
    any_has,
    at,
    in_ms,
    named_first,
    pick,
    record,
    styled,
)
from infercast.units import (
    format_dollars,
    format_figure,
    format_joules,
    format_many,
    format_odds,
    format_percent,
    format_seconds,
    format_watts,
)

UNITS = {RATE: "requests/s", CONCURRENCY: "clients"}
SHORT = {RATE: "rate", CONCURRENCY: "clients"}
SHOWN = (("TTFT", "ttft"), ("TPOT", "tpot"))
MARKS = {"p50": "o", "p95": "+", "p99": "x"}
MOST_POINTS, DRAWN = 20, 9  # points on one screen, and up to how many there is room for charts
MORE = "--full (all charts, caveats), --plot FILE, --csv FILE, --json; `simulate` has all intervals of a row"
WORTH = 0.01  # a saving below this share is not worth a setting
SAVINGS_LATENCIES = {"TTFT p99": "forecast.ttft.p99", "TPOT p95": "forecast.tpot.p95"}
SPECULATION_FIELDS: tuple[Field[LoadPoint], ...] = (
    Field("", lambda point: point.clients, "clients", "{:,}".format),
    Field("", lambda point: point.plain.output_tokens_per_second, "tokens/s without", format_figure),
    Field("", lambda point: point.drafted.output_tokens_per_second, "with", format_figure),
    Field("", lambda point: point.speed_up, "times", "{:.2f}".format),
    Field("", lambda point: point.plain.tpot.p50 if point.plain.tpot else None, "TPOT p50 without", format_seconds),
    Field("", lambda point: point.drafted.tpot.p50 if point.drafted.tpot else None, "with", format_seconds),
    Field("", lambda point: point.plain.ttft.p50, "TTFT p50 without", format_seconds, 2),
    Field("", lambda point: point.drafted.ttft.p50, "with", format_seconds, 2),
    Field("", lambda point: _accepted(point.drafted), "accepted length", "{:.2f}".format, 3),
)
DAY = 24.0  # hours


def _accepted(forecast: Forecast) -> float | None:
    drafts = drafts_of(forecast)
    return drafts and drafts.counts.acceptance_length


def _per_day(value: float | None, day: PolicyDay) -> float | None:
    """What traffic of any length would take in a day of it."""
    return None if value is None else value * DAY / day.hours


POLICY_FIELDS: tuple[Field[PolicyDay], ...] = (
    Field("", lambda day: day.policy, "policy"),
    Field("replicas_min", lambda day: float(day.ready.min()), "least", "{:.0f}".format, 2),
    Field("replicas_mean", lambda day: float(day.paid.mean()), "mean", "{:.2f}".format),
    Field("replicas_max", lambda day: float(day.paid.max()), "most", "{:.0f}".format),
    Field("gpu_hours", lambda day: day.gpu_hours, "GPU hours", "{:,.1f}".format),
    Field("", lambda day: day.cost, "cost", format_dollars),
    Field("", lambda day: day.wall_kwh, "kWh", "{:,.1f}".format, 1),
    Field("usd_per_day", lambda day: _per_day(day.cost, day)),
    Field("gpu_kwh_per_day", lambda day: _per_day(day.gpu_kwh, day)),
    Field("wall_kwh_per_day", lambda day: _per_day(day.wall_kwh, day)),
    Field("usd_electricity_per_day", lambda day: _per_day(day.usd_electricity, day)),
    Field("minutes_out_of_slo", lambda day: day.minutes_out, "minutes out", "{:,.0f}".format),
    Field("requests_in_slo", lambda day: day.requests_in, "requests in SLO", format_percent),
    Field("", lambda day: float(day.use_of_limits.max()), "worst minute", "{:,.2f} x limit".format, 3),
)


def render_sweep(sweep: Sweep) -> list[Printable]:
    name = name_of(sweep)
    parts: list[Printable] = [styled(f"{sweep.title}: {sweep.workload}")]
    parts.append(Section(f"Along {name}", FittingTable(columns_of(sweep), sweep.simulated)))
    refused = [f"{point.label}: {point.problem}" for point in sweep.points if point.problem]
    parts += [Paragraph(sentence, style="dim") for sentence in refused + overload_notes(sweep)]
    if sweep.axis.across is not None:
        parts += map_tables(sweep)
    elif len(sweep.simulated) > 1:
        parts.append(TextCharts(charts_of(sweep)))
    if rows := summary_rows(sweep):
        parts.append(Section("Where it bends" if sweep.axis.is_load else "Best values", Facts(rows)))
    if found := caveats_of(point.forecast for point in sweep.simulated if point.forecast is not None):
        parts.append(caveat_section(found))
    return parts


def brief_sweep(sweep: Sweep) -> list[Printable]:
    """One screen: the rows, latencies as charts where there is room, where it bends, and what to doubt."""
    points = sweep.simulated
    step = -(-len(points) // MOST_POINTS) if points else 1
    title = f"{sweep.title}: {LENGTHS.sub('', sweep.workload)}" + ("" if sweep.slo is None else f"\nSLO {sweep.slo}")
    shown = [FittingTable(columns_of(sweep), points[::step])] if sweep.axis.across is None else map_tables(sweep)[:3]
    parts: list[Printable] = [Paragraph(title, SCREEN), *shown]
    refused = [f"{point.label}: {point.problem}" for point in sweep.points if point.problem]
    parts += [Paragraph(sentence, SCREEN, style="dim") for sentence in refused + overload_notes(sweep)]
    if 1 < len(points) <= DRAWN and sweep.axis.across is None:
        parts.append(TextCharts(charts_of(sweep)[:2]))
    rows = [row for row in summary_rows(sweep) if row[0] not in ("SLO", "price")]
    if runs := [point.forecast for point in points if point.forecast is not None]:
        last = next((run for run in reversed(runs) if run.state.is_steady), runs[-1])
        found = diagnosis_of(last if sweep.slo is None else last.promised(sweep.slo), None)
        rows += [*diagnosis_rows(found)[:2], ("next", next_words(found))]
        host_doubt = "host times are another machine's; `infercast measure --host` or `calibrate` fits them to yours"
        rows += named_first("doubt", [*brief_doubts(last.source, "", None), host_doubt][:2])
    if not find_intervals(sweep):  # What changes bring is asked first
        rows.append(("intervals", "the time limit left no time for all of them; a longer --time-limit does"))
    return [*parts, Section("Where it bends" if sweep.axis.is_load else "Best values", Facts([*rows, ("more", MORE)]))]


def name_of(sweep: Sweep) -> str:
    second = "" if sweep.axis.across is None else f" and {sweep.axis.across.name}"
    return UNITS.get(sweep.axis.name, sweep.axis.name) + second


def maps_of(sweep: Sweep) -> list[tuple[Field[Any], list[list[Point]]]]:
    """Of two settings: what is worth a table, and the points of each value of the first along the second."""
    assert sweep.axis.across is not None
    width = len(sweep.axis.across.values)
    rows = [list(sweep.points[begin : begin + width]) for begin in range(0, len(sweep.points), width)]
    titles = ("TTFT p50", "TPOT p50", "tokens/s", "in SLO", "$/M out", "J/out")
    return [(each, rows) for each in columns_of(sweep) if each.title in titles]


def map_tables(sweep: Sweep) -> list[Printable]:
    first, second = sweep.axis, sweep.axis.across
    assert second is not None
    columns = [f"{first.name} \\ {second.name}", *second.own_labels]
    return [
        Section(
            str(field.title),
            Grid(columns, [[label, *map(field.cell, row)] for label, row in zip(first.own_labels, rows, strict=True)]),
        )
        for field, rows in maps_of(sweep)
    ]


def overload_notes(sweep: Sweep) -> list[str]:
    if not any(point.is_overloaded for point in sweep.points):
        return []
    return [
        "In overloaded rows, latencies and the share in SLO only reflect how long the run was: the queue keeps growing."
    ]


LATENCY_FIELDS: tuple[Field[Forecast], ...] = (
    Field("ttft_ms", lambda run: run.ttft, data=milliseconds),
    Field("tpot_ms", lambda run: run.tpot, data=milliseconds),
)
RUN_FIELDS: tuple[Field[Forecast], ...] = (
    Field("state", lambda run: run.state.word), Field("gpus", lambda run: run.gpus), *LATENCY_FIELDS,
    Field("inter_token_ms", lambda run: run.inter_token, data=milliseconds),
    Field("end_to_end_ms", lambda run: run.end_to_end, data=milliseconds),
    Field("", lambda run: run.ttft.p50, "TTFT p50", format_seconds),
    Field("", lambda run: run.ttft.p95, "TTFT p95", format_seconds, 5),
    Field("", lambda run: run.ttft.p99, "TTFT p99", format_seconds),
)  # fmt: skip
FURTHER_RUN_FIELDS: tuple[Field[Forecast], ...] = (
    Field("", lambda run: run.tpot.p50 if run.tpot else None, "TPOT p50", format_seconds),
    Field("", lambda run: run.tpot.p95 if run.tpot else None, "TPOT p95", format_seconds, 5),
    Field("", lambda run: run.tpot.p99 if run.tpot else None, "TPOT p99", format_seconds, 4),
    Field("output_tokens_per_s", lambda run: run.output_tokens_per_second, "tokens/s", format_figure),
)
SAVED_RUN_FIELDS: tuple[Field[Forecast], ...] = (
    Field("state", lambda run: run.state.word),
    Field("", lambda run: run.energy.mean_watts if run.energy else None, "W/GPU", format_watts),
    *LATENCY_FIELDS,
    Field("", lambda run: run.ttft.p99, "TTFT p99", format_seconds, 1),
    Field("", lambda run: run.tpot.p95 if run.tpot else None, "TPOT p95", format_seconds),
    Field("output_tokens_per_s", lambda run: run.output_tokens_per_second, "tokens/s", format_figure, 2),
    Field("", lambda run: run.energy.joules_per_output_token if run.energy else None, "J/output", format_joules),
)
ENERGY_FIELDS: tuple[Field[Forecast], ...] = tuple(Field(each.key, each.data) for each in ENERGIES)


def _of_runs(fields: Iterable[Field[Forecast]]) -> Iterator[Field[Point]]:
    return (each.within(lambda point: point.forecast) for each in fields)


def _energy_of(point: Point) -> Energy | None:
    return point.forecast.energy if point.forecast else None


def point_fields(sweep: Sweep) -> list[Field[Point]]:
    """A point of the sweep; narrow terminals leave out the percentiles between the median and p99."""

    def ttft_ends(point: Point) -> tuple[float, float] | None:
        forecast = point.forecast
        if forecast is None or not forecast.state.is_steady:
            return None
        if time_left() <= 0.0 and not forecast.has_kept("intervals"):
            return None
        ttft = forecast.intervals.ttft
        return ttft.low.p99, ttft.high.p99

    def judged(points: Sequence[Point]) -> bool:
        return sweep.slo is not None

    is_drawn: Callable[[Sequence[Point]], bool] = any_has(_energy_of)
    return [
        Field("value", lambda point: point.label if point.number is None else point.number),
        Field("", lambda point: point.label, SHORT.get(sweep.axis.name, sweep.axis.name)),
        Field("fits", lambda point: point.forecast is not None),
        Field("problem", lambda point: point.problem or None),
        *_of_runs(RUN_FIELDS),
        Field("", ttft_ends, "80 % of it", format_ends, 1),
        *_of_runs(FURTHER_RUN_FIELDS),
        Field("requests_per_s", lambda point: point.forecast.requests_per_second if point.forecast else None,
              "requests/s", "{:,.2f}".format, 6, matters=lambda _: sweep.axis.name != RATE),
        Field("goodput_requests_per_s", lambda point: point.goodput, "goodput", "{:,.2f}".format, 3, matters=judged),
        Field("slo_attainment", lambda point: point.attainment, "in SLO", format_percent, 1, matters=judged),
        Field("slo_holds", lambda point: point.holds),
        Field("slo_headroom", lambda point: point.headroom),
        Field("usd_per_hour", lambda point: point.per_hour),
        Field("usd_per_million_output_tokens", lambda point: point.per_million_output_tokens, "$/M out",
              format_dollars, 2, matters=any_has(lambda point: point.per_hour)),
        *_of_runs(ENERGY_FIELDS),
        Field("", lambda point: one.mean_watts if (one := _energy_of(point)) else None, "W/GPU", format_watts, 7,
              matters=is_drawn),
        Field("", lambda point: one.joules_per_output_token if (one := _energy_of(point)) else None, "J/out",
              format_joules, 4, matters=is_drawn),
        Field("", lambda point: point.forecast.state.word if point.forecast else None, "state", rank=2),
    ]  # fmt: skip


def columns_of(sweep: Sweep) -> list[Field[Point]]:
    return [each for each in point_fields(sweep) if each.is_column(sweep.simulated)]


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
        lines = [Series(name, mark, _numbers(points, f"forecast.{field}.{name}")) for name, mark in MARKS.items()]
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


def _numbers(points: Iterable[Any], path: str) -> list[float]:
    """What is at a path of each point; not a number where there is nothing."""
    return [nan if (value := at(path)(point)) is None else float(value) for point in points]


def _limit(sweep: Sweep, field: str) -> dict[str, Any]:
    limits = [] if sweep.slo is None else [each for each in sweep.slo.limits if each.quantity == field]
    if not limits:
        return {}
    tightest = min(limits, key=lambda each: each.seconds)
    return {"limit": tightest.seconds, "limit_name": f"{tightest.name.partition('_')[2]} limit"}


def _short_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def summary_rows(sweep: Sweep) -> list[tuple[str, str]]:
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
    if edge.fails_at is not None:
        return f"up to {edge.value:g} {unit}, not at {edge.fails_at:g}; a longer --time-limit says where between"
    return f"up to {edge.value:g} {unit}" + ("" if edge.reached else ", the largest here, or more")


def _best(sweep: Sweep) -> list[tuple[str, str]]:
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


def sweep_dict(sweep: Sweep) -> dict[str, Any]:
    fields = point_fields(sweep)
    return {
        **pick(sweep, "title workload axis=axis.name"),
        "axes": {each.name: list(each.own_labels) for each in (sweep.axis, sweep.axis.across) if each is not None},
        "slo": sweep.slo and str(sweep.slo), "usd_per_gpu_hour": sweep.price and sweep.price.per_hour,
        "light_ttft_p50_ms": sweep.light_ttft and in_ms(sweep.light_ttft), "knee": sweep.knee and asdict(sweep.knee),
        "slo_holds_up_to": sweep.promise and asdict(sweep.promise), "saturation_requests_per_s": sweep.capacity,
        "caveats": caveats_of(point.forecast for point in sweep.simulated if point.forecast is not None),
        "points": [record(fields, point) for point in sweep.points],
    }  # fmt: skip


def sweep_rows(sweep: Sweep) -> Iterator[str]:
    yield from _csv(sweep.points, point_fields(sweep), sweep.axis.name)


def _csv(points: Iterable[Point], fields: list[Field[Point]], name: str) -> Iterator[str]:
    """A line for each point, percentiles of latencies in columns of their own; the first column goes by ``name``."""
    rows = [one_level(record(fields, point)) for point in points]
    keys = max(rows, key=len)
    yield from csv_lines(
        [name if key == "value" else key for key in keys], ([row.get(key) for key in keys] for row in rows)
    )


def unit_of(found: Savings) -> str:
    return "W" if found.name == POWER else "MHz"


def render_savings(found: Savings) -> list[Printable]:
    what = "power limits" if found.name == POWER else "clocks"
    held = [("SLO", str(found.slo))]
    if found.odds is not None:
        held.append(("odds", f"{format_odds(found.odds)} that the best value keeps it"))
    return [
        styled(f"{found.title}: {found.workload}"),
        Section(f"Energy under {what}", FittingTable(saving_fields(found), found.points)),
        TextCharts(_charts(found)),
        Section("Answer", styled(fill(sentence_of(found), 78))),
        *([] if found.slo is None else [Section("Held against", Facts(held))]),
        Facts(counted_rows((found.best or found.free).forecast, _next_saving(found))),
    ]


def _next_saving(found: Savings) -> str:
    if found.best is None or found.best is found.free or found.saved < WORTH:
        return "nothing to set; `infercast simulate --slo` says what limits it"
    flag = "-pl" if found.name == POWER else "-lgc"
    return f"nvidia-smi {flag} {_label(found.best)} on every GPU"


def sentence_of(found: Savings) -> str:
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
        for name, path in SAVINGS_LATENCIES.items()
        if (before := at(path)(free)) and (after := at(path)(best))
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


def saving_fields(found: Savings) -> list[Field[Point]]:
    def judged(points: Sequence[Point]) -> bool:
        return found.slo is not None

    def saved(point: Point) -> float:
        return 1.0 - joules_of(point) / joules_of(found.free)

    return [
        Field("value", lambda point: point.number, unit_of(found), "{:g}".format), *_of_runs(SAVED_RUN_FIELDS),
        Field("", joules_of, "at the wall", format_joules), Field("", saved, "saved", format_percent),
        Field("slo_attainment", lambda point: point.attainment, "in SLO", format_percent, 1, matters=judged),
        Field("slo_holds", lambda point: point.holds, "holds", lambda holds: "yes" if holds else "no", matters=judged),
        Field("slo_odds", lambda point: point.odds, "odds", format_odds, 1, matters=judged),
        Field("slo_headroom", lambda point: point.headroom), Field("saved_share", saved), *_of_runs(ENERGY_FIELDS),
        Field("", lambda point: "best" if point is found.best else "", ""),
    ]  # fmt: skip


def _charts(found: Savings) -> list[Chart]:
    positions = [float(point.number or 0.0) for point in found.points]
    labels = [_label(point) for point in found.points]
    boards = [drawn(point)[0].joules_per_output_token for point in found.points]
    wall = [joules_of(point) for point in found.points]
    energy = [Series("at the wall", "x", wall), Series("GPU boards", "o", boards)]
    marks = (("p50", "o"), ("p95", "x"))
    tpot = [Series(name, mark, _numbers(found.points, f"forecast.tpot.{name}")) for name, mark in marks]
    limits = () if found.slo is None else found.slo.limits
    limit = min((each.seconds for each in limits if each.quantity == "tpot"), default=None)
    return [
        Chart("J/output token", positions, labels, energy, format_joules, from_zero=True),
        Chart("TPOT", positions, labels, tpot, format_seconds, limit=limit),
    ]


def savings_dict(found: Savings) -> dict[str, Any]:
    fields = saving_fields(found)
    return {
        **pick(found, "title workload axis=name"), "slo": found.slo and str(found.slo),
        **pick(found, "own_value=free.number best_value=best.number best_slo_odds=odds saved_share=saved"),
        "answer": sentence_of(found), **counted_dict((found.best or found.free).forecast, _next_saving(found)),
        "points": [record(fields, point) for point in found.points],
    }  # fmt: skip


def savings_rows(found: Savings) -> Iterator[str]:
    yield from _csv(found.points, saving_fields(found), found.name)


def render_break_even(found: BreakEven) -> list[Printable]:
    return [
        styled(f"{found.title}: {found.workload}"), styled(drafting_words(found.drafting)),
        Section("With and without drafts", FittingTable(SPECULATION_FIELDS, found.points)),
        TextCharts(break_even_charts(found)), Section("Where it stops paying", styled(found.sentence, style="bold")),
        Facts(counted_rows(_best_run(found), _next_drafts(found))), caveat_section(_caveats(found)),
    ]  # fmt: skip


def _best_run(found: BreakEven) -> Forecast:
    best = max(found.points, key=lambda point: point.speed_up)
    return best.drafted if best.speed_up > 1.0 else best.plain


def _next_drafts(found: BreakEven) -> str:
    if max(point.speed_up for point in found.points) <= 1.0:
        return "leave speculative decoding out"
    if found.clients is None:
        return "measure the acceptance of your own requests, and give it with --acceptance"
    return f"draft where fewer than {found.clients:,.0f} requests run at the same time, and not above"


def _caveats(found: BreakEven) -> list[str]:
    return caveats_of(run for point in found.points for run in (point.drafted, point.plain))


def break_even_charts(found: BreakEven) -> list[Chart]:
    positions = [log2(point.clients) for point in found.points]
    labels = [f"{point.clients:,}" for point in found.points]
    tpot = [_numbers(found.points, f"{run}.tpot.p50") for run in ("plain", "drafted")]
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
    return {
        **pick(found, "title workload"), "speculation": drafting_dict(found.drafting),
        **pick(found, "break_even_clients=clients sentence"), **counted_dict(_best_run(found), _next_drafts(found)),
        "caveats": _caveats(found),
        "points": [
            {
                **pick(point, "clients speed_up tpot_ratio"),
                "without": _run_dict(point.plain),
                "with": _run_dict(point.drafted),
                "drafts": draft_run_dict(drafts_of(point.drafted)),
            }
            for point in found.points
        ],
    }  # fmt: skip


def _run_dict(run: Forecast) -> dict[str, Any]:
    rates = pick(run, "output_tokens_per_s=output_tokens_per_second requests_per_s=requests_per_second")
    return {**rates, "tpot_p50_ms": run.tpot and in_ms(run.tpot.p50), "ttft_p50_ms": in_ms(run.ttft.p50)}


def day_caveats(plan: DayPlan) -> list[str]:
    """What to know of the forecasts of one replica; that it is full at the highest load is meant to be."""
    return caveats_of(level.forecast for level in plan.curve.levels if level.forecast.saturation is None)


def day_dict(plan: DayPlan) -> dict[str, Any]:
    traffic, rules = plan.traffic, "interval_s=interval up_delay_s=up_delay down_delay_s=down_delay"
    return {
        **pick(plan.deployment, "model=model.name gpu=gpu.name gpus_per_replica=layout.gpus"),
        "traffic": traffic.description, "requests": int(traffic.arrivals.size), "window_s": traffic.window,
        "requests_per_s": (traffic.counts / traffic.window).tolist(), "slo": str(plan.slo),
        "goal": pick(plan.goal, "share of"), "smallest_fixed_fleet": plan.smallest_fleet,
        "policies": {day.policy: _policy_dict(plan, day) for day in plan.policies},
        "scheduled_by_hour": list(plan.hours),
        "autoscaler": pick(plan.autoscaler, f"measure target {rules} min_replicas=least max_replicas=most"),
        "start_up_s": {**plan.start._asdict(), "all": plan.start.seconds}, "replica": _replica_dict(plan),
        "usd_per_gpu_hour": plan.price and plan.price.per_hour, "check": plan.check and plan.check._asdict(),
        **({} if plan.outages is None else {"outages": plan.outages._asdict()}), "caveats": day_caveats(plan),
        **counted_dict(_fullest_run(plan), NEXT_OF_DAY),
    }  # fmt: skip


def _replica_dict(plan: DayPlan) -> dict[str, Any]:
    curve, service = plan.curve, plan.service
    return {
        "requests_per_s_at_most": curve.full_rate, "requests_per_s_at_slo": curve.rate_at(plan.most_kept),
        "requests_in_it_at_slo": plan.most_kept, "fixed_ms": in_ms(service.fixed),
        "ms_per_input_token": in_ms(service.per_input), "ms_per_output_token": in_ms(service.per_output),
        "load_curve": [
            {
                **pick(level, "requests_in_it=in_system requests_per_s=rate"),
                "ttft_p99_ms": in_ms(level.forecast.ttft.p99),
                "tpot_p99_ms": level.forecast.tpot and in_ms(level.forecast.tpot.p99),
            }
            for level in curve.levels
        ],
    }  # fmt: skip


def _policy_dict(plan: DayPlan, day: PolicyDay) -> dict[str, Any]:
    counts = {"replicas": day.ready.tolist(), "replicas_paid": day.paid.tolist()}
    return {"reaches_goal": day.keeps(plan.goal), **record(POLICY_FIELDS, day), **counts}


def day_rows(plan: DayPlan) -> Iterator[str]:
    names = ["start_s", "requests"]
    columns: list[list[Any]] = [
        [place * plan.traffic.window for place in range(plan.traffic.num_windows)],
        plan.traffic.counts.tolist(),
    ]
    for day in plan.policies:
        names += [f"{day.policy}_{name}" for name in ("replicas", "replicas_paid", "slo_attainment", "chance_out")]
        attained = [None if isnan(value) else value for value in day.attained.tolist()]
        columns += [day.ready.tolist(), day.paid.tolist(), attained, day.chance_out.tolist()]
    yield from csv_lines(names, zip(*columns, strict=True))


def autoscaler_rows(plan: DayPlan) -> Iterator[str]:
    row = autoscaler_row(plan)
    yield from csv_lines(row, [[f"{value:.6g}" if isinstance(value, float) else value for value in row.values()]])


def render_day(plan: DayPlan) -> list[Printable]:
    return [
        styled(f"{title_of(plan)}: {plan.traffic.description}"),
        Section("Policies", FittingTable(POLICY_FIELDS, plan.policies)), styled(answer_of(plan)),
        TextCharts(day_charts(plan), columns=1), Section("One replica", Facts(replica_rows(plan))),
        Section("Rests on", Facts(basis_rows(plan))), Facts(counted_rows(_fullest_run(plan), NEXT_OF_DAY)),
        caveat_section(day_caveats(plan)),
    ]  # fmt: skip


NEXT_OF_DAY = "--export-autoscaler FILE writes the rules of the autoscaler"


def _fullest_run(plan: DayPlan) -> Forecast:
    """Of one replica as full as the SLO lets it be."""
    first, *fuller = plan.curve.levels
    fullest = [first, *(each for each in fuller if each.in_system <= plan.most_kept)][-1]
    return fullest.forecast.promised(plan.slo)


def title_of(plan: DayPlan) -> str:
    deployment = plan.deployment
    return f"{deployment.model.name}, replicas of {deployment.layout.gpus} x {deployment.gpu.name}"


def answer_of(plan: DayPlan) -> str:
    fixed = plan.policies[0]
    cost = "" if fixed.cost is None else f", {format_dollars(fixed.cost)} {_how_long(fixed)}"
    count = plan.smallest_fleet
    words = f"The smallest fixed fleet for {plan.goal} is {format_many(count, 'replica')}{cost}."
    if (failures := plan.outages) is not None:
        names = (failures.meanwhile, "while one is down"), (failures.otherwise, "otherwise")
        kept = ", ".join(f"{format_percent(share)} {name}" for share, name in names if share is not None)
        words += f" Replicas are down {format_percent(failures.down_share)} of the time; within the SLO are {kept}."
        words += f" Without failures {failures.fleet_without} would do."
    reaching = [each for each in plan.policies if each.keeps(plan.goal)]
    best = min(reaching, key=lambda each: each.gpu_hours, default=fixed)
    if best is not fixed:
        saved = 1.0 - best.gpu_hours / fixed.gpu_hours
        words += f" {best.policy.capitalize()} replicas reach the goal with {format_percent(saved)} fewer GPU hours."
    failing = [each.policy for each in plan.policies if not each.keeps(plan.goal)]
    return words + (f" Not reached by: {', '.join(failing)}." if failing else "")


def _how_long(day: PolicyDay) -> str:
    return "per day" if abs(day.hours - DAY) < 1.0 else f"for the {format_figure(day.hours)} hours of the trace"


def day_charts(plan: DayPlan, most: int = 144) -> list[Chart]:
    positions = [middle / 3600.0 for middle in plan.traffic.middles(most)]
    each = plan.traffic.num_windows * plan.traffic.window / len(positions)
    apart = max(1, round(len(positions) / 8))  # labels
    labels = [clock(place * each) if place % apart == 0 else "" for place in range(len(positions))]
    rates = plan.traffic.means(plan.traffic.counts / plan.traffic.window, most)
    marked = zip(plan.policies, ("-", "s", "a"), strict=True)
    replicas = [Series(day.policy, mark, plan.traffic.means(day.ready, most)) for day, mark in marked]
    return [
        Chart("traffic", positions, labels, [Series("requests/s", "o", rates)], "{:.3g}".format, from_zero=True),
        Chart("replicas", positions, labels, replicas, "{:.3g}".format, joined=False, from_zero=True),
    ]


def replica_rows(plan: DayPlan) -> list[tuple[str, str]]:
    curve, service, most = plan.curve, plan.service, plan.most_kept
    each = f"{service.per_input * 1e3:.3g} ms per input token, {service.per_output * 1e3:.3g} ms per output token"
    ttft, tpot = (curve.percentile(name, "p99", most) for name in ("ttft", "tpot"))
    return [
        ("SLO", f"{plan.slo}; goal {plan.goal}"),
        ("at the SLO", f"{curve.rate_at(most):.3g} requests/s with {most:,.0f} requests at a time: TTFT p99 "
         f"{format_seconds(ttft)}, TPOT p99 {format_seconds(tpot)}"),
        ("at most", f"{curve.full_rate:.3g} requests/s"),
        ("a request", f"{each}, plus {service.fixed * 1e3:.3g} ms, on a full replica"),
        ("start", plan.start.sentence),
    ]  # fmt: skip


def basis_rows(plan: DayPlan) -> list[tuple[str, str]]:
    rules = plan.autoscaler
    unit = "requests in each replica" if rules.measure == "queue" else "of a replica's largest rate"
    limits = f"{rules.least} to {'any number of' if rules.most is None else rules.most} replicas"
    rows = [
        ("method", f"a replica simulated at {len(plan.curve.levels)} loads, then the day in steps of 10 s"),
        ("autoscaler", f"target {rules.target:g} {unit}, looks every {rules.interval:g} s, up after "
         f"{rules.up_delay:g} s, down after {rules.down_delay:g} s, {limits}"),
        ("timetable", f"by hour, from this day itself: {' '.join(map(str, plan.hours))}"),
    ]  # fmt: skip
    none = "none: skipped, too many requests at once, or replicas that share experts"
    rows.append(("check", none if plan.check is None else plan.check.sentence))
    rows.append(("price", "not known; give --price-per-gpu-hour" if plan.price is None else plan.price.description))
    return rows + energy_rows(plan)


def energy_rows(plan: DayPlan) -> list[tuple[str, str]]:
    if any(day.wall_kwh is None for day in plan.policies):
        return []
    drawn = ", ".join(f"{day.policy} {day.gpu_kwh:,.1f}" for day in plan.policies)
    rows = [("kWh", f"at the wall, of servers and building; of the GPU boards alone: {drawn}")]
    electricity = {day.policy: day.usd_electricity for day in plan.policies if day.usd_electricity is not None}
    if len(electricity) == len(plan.policies):
        costs = ", ".join(f"{policy} {format_dollars(dollars)}" for policy, dollars in electricity.items())
        rows.append(("electricity", f"{costs} {_how_long(plan.policies[0])}"))
    return rows


RENDERERS = {
    "DayPlan": Renderers(day_dict, render_day, rows="policies", csv=day_rows),
    "Savings": Renderers(savings_dict, render_savings, rows="points", csv=savings_rows),
    "Sweep": Renderers(sweep_dict, render_sweep, rows="points", csv=sweep_rows, brief=brief_sweep),
}
