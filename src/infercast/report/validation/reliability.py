"""How often promises held, and the order of configurations, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from infercast.report.layout import grid, section
from infercast.units import format_percent
from infercast.validate.promises import Bucket
from infercast.validate.reliability import Order, Reliability

if TYPE_CHECKING:
    from rich.console import RenderableType

TITLES = {
    "output_tokens_per_second": "tokens/s", "ttft_p50": "TTFT p50", "ttft_p99": "TTFT p99", "tpot_p50": "TPOT p50",
}  # fmt: skip


def render_reliability(groups: Sequence[Reliability]) -> RenderableType:
    """A row for each tenth of the odds, three columns for each group of promises."""
    columns = ["odds", *(name for group in groups for name in (group.about, "said", "held"))]
    rows = []
    for position, bucket in enumerate(groups[0].buckets):
        cells = [cell for group in groups for cell in _cells(group.buckets[position])]
        rows.append((f"{100 * bucket.low:.0f} to {100 * bucket.high:.0f} %", *cells))
    worst = ("furthest off", *(cell for group in groups for cell in ("", "", _share(group.worst))))
    return section("Promises: how often they held, by the odds that were said", grid(columns, [*rows, worst]))


def _cells(bucket: Bucket) -> tuple[str, str, str]:
    return f"{bucket.count:,}", _share(bucket.odds), _share(bucket.held)


def _share(value: float | None) -> str:
    return "-" if value is None else format_percent(value)


def render_orders(orders: Sequence[Order]) -> RenderableType:
    """Rank correlations by quantity."""
    columns = ("ranked by", "engines with one load", "loads", "all runs")
    rows = [
        (TITLES[each.quantity], _number(each.of_one_load), f"{each.loads}", _number(each.of_all)) for each in orders
    ]
    return section("Order of configurations: rank correlation of measured and predicted", grid(columns, rows))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def reliability_dict(group: Reliability) -> dict[str, Any]:
    """The same as plain data; shares are fractions."""
    buckets = [{**asdict(bucket), "off": bucket.off} for bucket in group.buckets]
    return {"values": group.values, "worst": group.worst, "buckets": buckets}


def reliability_groups(groups: Sequence[Reliability]) -> dict[str, Any]:
    """All groups by name."""
    return {group.about.replace(" ", "_"): reliability_dict(group) for group in groups}


def orders_dict(orders: Sequence[Order]) -> dict[str, Any]:
    """Rank correlations by quantity."""
    return {
        each.quantity: {"of_one_load": each.of_one_load, "loads": each.loads, "of_all": each.of_all} for each in orders
    }
