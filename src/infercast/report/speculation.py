"""Up to which load speculative decoding pays, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infercast.forecast.break_even import BreakEven, LoadPoint
from infercast.forecast.result import Forecast
from infercast.forecast.speculation import drafts_of
from infercast.report.caveats import caveat_section, caveats_of
from infercast.report.drafts import draft_run_dict, drafting_dict, drafting_words
from infercast.report.fitting import Column, FittingTable
from infercast.report.layout import section, styled
from infercast.report.text_chart import Chart, Series, TextCharts
from infercast.units import MILLI, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


def render_break_even(found: BreakEven) -> list[RenderableType]:
    """A row a load, two charts, and the answer."""
    return [
        styled(f"{found.title}: {found.workload}"),
        styled(drafting_words(found.drafting)),
        section("With and without drafts", FittingTable(COLUMNS, found.points)),
        TextCharts(charts_of(found)),
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


COLUMNS = [
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


def charts_of(found: BreakEven) -> list[Chart]:
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
