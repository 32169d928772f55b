"""Intervals around a forecast, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infercast.forecast.intervals.intervals import LEVEL, Band, Intervals
from infercast.forecast.latency import NAMES
from infercast.report.layout import facts, grid, section
from infercast.report.quantities import LATENCIES
from infercast.units import MILLI, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

TITLE = "80 % intervals, from how far kernels, host and release may be off, and from chance"
MEDIANS = {"ttft": "TTFT p50", "tpot": "TPOT p50"}
PARTS = {"kernels": "kernels", "host": "your host", "release": "the release", "luck": "luck"}
LEAST = 0.005
"""Parts below this are left out."""
EVIDENCE = {
    "probed": "your host's speed, by `infercast measure --host`",
    "calibrated": "one benchmark, by `infercast calibrate`",
}


def render_intervals(intervals: Intervals) -> RenderableType:
    """A table for a terminal of 80 columns, and what holds for rates in a line below."""
    from rich.console import Group  # noqa: PLC0415 - JSON needs none of it

    rows = zip(NAMES, *(_cells(getattr(intervals, each.name)) for each in LATENCIES), strict=True)
    table = grid(("", *(each.short for each in LATENCIES)), [list(row) for row in rows])
    rates = ("output tokens/s", format_rates(intervals.output_tokens_per_second))
    return section(TITLE, Group(table, facts([rates, *rest_rows(intervals)])))


def rest_rows(intervals: Intervals) -> list[tuple[str, str]]:
    """What medians' intervals are made of, each part by itself, and what would narrow them."""
    shown = {MEDIANS[name]: rests for name, rests in intervals.rests.items()}
    rows = []
    for title, rests in shown.items():
        parts = ((words, getattr(rests, name)) for name, words in PARTS.items())
        made = ", ".join(f"{words} {_around(part)}" for words, part in parts if part >= LEAST)
        rows.append((title, f"{_around(rests.whole)}: {made}"))
    for name, words in EVIDENCE.items():
        if any(getattr(rests, name) < 0.95 * rests.whole for rests in shown.values()):
            left = ", ".join(f"{title} {_around(getattr(rests, name))}" for title, rests in shown.items())
            rows.append(("would be", f"{left} with {words}"))
    return rows


def _around(part: float) -> str:
    return f"+-{100 * part:.0f} %"


def render_alone(intervals: Intervals) -> list[RenderableType]:
    """Intervals alone, for a notebook."""
    return [render_intervals(intervals)]


def interval_fields(intervals: Intervals | None) -> dict[str, Any]:
    """The same as plain data, to stand beside the numbers that they belong to; nothing without intervals."""
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
    first, last = format_seconds(low), format_seconds(high)
    unit = last.split()[-1]
    return f"{first.removesuffix(f' {unit}')} to {last}"


def format_rates(ends: tuple[float, float]) -> str:
    """Two rates to three digits or more: ``2,207 to 2,233``, ``76.3 to 180``, ``1.64 to 2.05``."""
    low, high = (f"{end:,.{2 if end < 10 else 1 if end < 100 else 0}f}" for end in ends)
    return f"{low} to {high}"


def _cells(band: Band | None) -> list[str]:
    if band is None:
        return ["-"] * len(NAMES)
    return [format_interval(getattr(band.low, name), getattr(band.high, name)) for name in NAMES]


def _milliseconds(band: Band | None) -> dict[str, list[float]] | None:
    """[low, high] of the mean and each percentile."""
    if band is None:
        return None
    return {name: [getattr(band.low, name) / MILLI, getattr(band.high, name) / MILLI] for name in NAMES}
