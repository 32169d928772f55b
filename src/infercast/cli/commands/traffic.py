"""``infercast traffic``: what a trace holds, and the synthetic workload that fits it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from infercast.cli.options import with_options
from infercast.cli.outputs import Form, print_result
from infercast.forecast.option_table import Option
from infercast.forecast.traffic import TrafficSummary, describe_traffic
from infercast.report.terminal import Chart, Facts, Printable, Section, Series, TextCharts
from infercast.units import format_figure, format_percent, format_seconds


@with_options(Option("file", Path, "A trace, in any form that --trace takes.", ..., argument=True))
def command(*, file: Path, form: Form, **_: Any) -> None:
    print_result(form, traffic_dict, render_traffic, describe_traffic(file))


def traffic_dict(found: TrafficSummary) -> dict[str, Any]:
    sessions = None if found.sessions is None else found.sessions._asdict()
    lengths = {name: asdict(getattr(found, name)) for name in ("input_tokens", "output_tokens")}
    options = {name.replace("-", "_"): value for name, value in found.options}
    return {**found._asdict(), **lengths, "rate": found.rate, "sessions": sessions, "options": options}


def render_traffic(found: TrafficSummary) -> list[Printable]:
    def lengths(name: str) -> str:
        each = getattr(found, name)
        return f"mean {each.mean:,.0f}, p50 {each.p50:,.0f}, p90 {each.p90:,.0f}, p99 {each.p99:,.0f} tokens"

    sessions = found.sessions
    pauses = "" if sessions is None else format_seconds(sessions.pause_s)
    words = "none" if sessions is None else f"{sessions.number:,} of {sessions.turns:.1f} turns, median pause {pauses}"
    peak = format_figure(max(found.rates, default=0.0))
    facts = [
        ("trace", found.description),
        ("rate", f"{found.rate:.4g} requests/s on average, {peak} in the busiest {len(found.rates)}th of its time"),
        ("gaps", f"coefficient of variation {found.gap_cv:.2f}; Poisson arrivals have 1"),
        ("prompts", lengths("input_tokens")), ("answers", lengths("output_tokens")),
        ("reuse", f"{format_percent(found.reuse)} of prompt tokens begin an earlier prompt or its answer"),
        ("sessions", words), ("fitted", found.command),
    ]  # fmt: skip
    sections: list[Printable] = [Section("Traffic", Facts(facts))]
    if found.rates:
        places = [(number + 0.5) * found.span_s / len(found.rates) for number in range(len(found.rates))]
        labels = [format_seconds(place) for place in places]
        series = [Series("requests/s", "o", found.rates)]
        chart = Chart("Requests per second", places, labels, series, format_figure, from_zero=True)
        sections.append(TextCharts([chart], columns=1))
    return sections
