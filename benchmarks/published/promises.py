"""How often promises hold ("TTFT p95 stays below 1.2 times its forecast"), and the order of configurations.

    python benchmarks/published/promises.py [RUNS.json.gz ...] [--plot PLOT.svg] [--json]

Counted over measured runs, by default those that come with the package.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.cli.outputs import print_json
from infercast.forecast.uncertainty import odds_within
from infercast.lab.validate.compare import FEWEST_RANKED, Comparison, RunComparison, rank_correlation, validate
from infercast.lab.validate.measured import read_measured, shipped_runs
from infercast.report.files import write_whole
from infercast.report.terminal import Grid, Printable, Section, show
from infercast.units import format_percent

Array = npt.NDArray[Any]
LIMITS = np.linspace(0.6, 1.7, 45)  # What is promised, as multiples of the forecast: latencies below, rates above
BUCKETS = 10
FEWEST = 20  # of fewer promises the share that held says nothing


@dataclass(frozen=True, slots=True)
class Promises:
    odds: Array
    held: Array


@dataclass(frozen=True, slots=True)
class Bucket:
    """Promises with odds between two tenths."""

    low: float
    high: float
    count: int
    odds: float | None  # The mean of what was said; None where there is no promise
    held: float | None

    @property
    def off(self) -> float | None:
        """How much more often promises held than was said; None where they are too few."""
        if self.odds is None or self.held is None or self.count < FEWEST:
            return None
        return self.held - self.odds


def promises_of(pair: Comparison, slower: float, *, is_rate: bool = False) -> Promises:
    assert pair.half_width is not None
    rooms, error = np.log(LIMITS), float(np.log(pair.measured / pair.predicted))
    if is_rate:
        return Promises(odds_within(-rooms, pair.half_width, slower), error >= rooms)
    return Promises(odds_within(rooms, pair.half_width, slower), error <= rooms)


def joined_promises(promises: Iterable[Promises]) -> Promises:
    every = list(promises)
    if not every:
        return Promises(np.empty(0), np.empty(0, dtype=bool))
    return Promises(np.concatenate([each.odds for each in every]), np.concatenate([each.held for each in every]))


def both(first: Promises, second: Promises) -> Promises:
    """The promise that two limits hold: as likely as the less likely one, for what slows a run slows all."""
    odds = np.minimum(first.odds[:, None], second.odds[None, :])
    return Promises(odds.ravel(), (first.held[:, None] & second.held[None, :]).ravel())


def reliability(promises: Promises) -> tuple[Bucket, ...]:
    numbers = np.minimum((promises.odds * BUCKETS).astype(int), BUCKETS - 1)
    buckets = []
    for number in range(BUCKETS):
        chosen = numbers == number
        count = int(chosen.sum())
        odds, held = (float(values[chosen].mean()) if count else None for values in (promises.odds, promises.held))
        buckets.append(Bucket(number / BUCKETS, (number + 1) / BUCKETS, count, odds, held))
    return tuple(buckets)


def worst_of(buckets: Iterable[Bucket]) -> float | None:
    """The largest distance between what was said and what came true; None where no bucket has enough promises."""
    return max((abs(bucket.off) for bucket in buckets if bucket.off is not None), default=None)


LATENCIES = ("ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p95")
RATE = "output_tokens_per_second"
RANKED = (RATE, "ttft_p50", "ttft_p99", "tpot_p50")


@dataclass(frozen=True, slots=True)
class Reliability:
    about: str
    values: int
    buckets: tuple[Bucket, ...]

    @property
    def worst(self) -> float | None:
        return worst_of(self.buckets)


class Order(NamedTuple):
    """Spearman's rank correlations of measured and forecast values of one quantity."""

    quantity: str
    of_one_load: float | None  # Engines that had the same requests: the mean over loads, weighted by engines
    loads: int
    of_all: float | None  # All runs on one GPU, whatever they served


def reliability_of(runs: Sequence[RunComparison]) -> tuple[Reliability, ...]:
    """Of all promises, those of static batches, those under load, and those of two limits that must hold together."""
    static = [run for run in runs if run.parts is not None and run.parts.is_static]
    loaded = [run for run in runs if run.parts is not None and not run.parts.is_static]
    groups = (("all", runs), ("static", static), ("under load", loaded))
    # Most SLOs limit these two.
    limits = [(run.ttft_p99, run.tpot_p95, run.slower) for run in runs if run.tpot_p95 is not None]
    pairs = [both(promises_of(first, slower), promises_of(later, slower)) for first, later, slower in limits]
    found = [reliability_in(promises_in(members, LATENCIES), name) for name, members in groups]
    return (*found, reliability_in(pairs, "two limits"))


def reliability_in(promises: Sequence[Promises], name: str) -> Reliability:
    return Reliability(name, len(promises), reliability(joined_promises(promises)))


def promises_in(runs: Iterable[Any], latencies: Sequence[str]) -> list[Promises]:
    """Of runs with a `Comparison` for each of these names, those about its interval."""
    return [
        promises_of(pair, run.slower, is_rate=name == RATE)
        for run in runs
        for name in (*latencies, RATE)
        if (pair := getattr(run, name)) is not None and pair.half_width is not None
    ]


def orders_of(runs: Sequence[RunComparison]) -> tuple[Order, ...]:
    """Whether what is measured to be better is forecast to be, by each quantity."""
    return tuple(_order(runs, name) for name in RANKED)


def _order(runs: Sequence[RunComparison], name: str) -> Order:
    by_load: dict[str, list[Comparison]] = {}
    pairs = [(run.label, pair) for run in runs if (pair := getattr(run, name)) is not None]
    for label, pair in pairs:
        by_load.setdefault(label, []).append(pair)
    ranked = [(len(members), _correlation(members)) for members in by_load.values() if len(members) >= FEWEST_RANKED]
    known = [(count, order) for count, order in ranked if order is not None]
    mean = float(np.average([order for _, order in known], weights=[count for count, _ in known])) if known else None
    return Order(name, mean, len(known), _correlation([pair for _, pair in pairs]))


def _correlation(pairs: Sequence[Comparison]) -> float | None:
    measured, predicted = (np.array([getattr(pair, side) for pair in pairs]) for side in ("measured", "predicted"))
    return rank_correlation(measured, predicted)


PANEL, MARGIN, TOP, BOTTOM = 220, 52, 34, 48  # pixels: the side of a panel, the space to its left, above and below
TOLERANCE = 0.1  # the grey band: ten points to either side
STYLE = (
    "text{font:12px sans-serif;fill:#333}.title{font-weight:bold}.grid{stroke:#ddd}.exact{stroke:#888}"
    ".band{fill:#eee}.line{fill:none;stroke:#1f6fb4;stroke-width:1.5}.point{fill:#1f6fb4;fill-opacity:.8}"
)


def render_reliability(groups: Sequence[Reliability]) -> Printable:
    columns = ["odds", *(name for group in groups for name in (group.about, "said", "held"))]
    rows = []
    for position, bucket in enumerate(groups[0].buckets):
        cells = []
        for each in (group.buckets[position] for group in groups):
            cells += [f"{each.count:,}", _percent(each.odds), _percent(each.held)]
        rows.append((f"{100 * bucket.low:.0f} to {100 * bucket.high:.0f} %", *cells))
    worst = ("furthest off", *(cell for group in groups for cell in ("", "", _percent(group.worst))))
    return Section("Promises: how often they held, by the odds that were said", Grid(columns, [*rows, worst]))


def reliability_dict(group: Reliability) -> dict[str, Any]:
    buckets = [{**asdict(bucket), "off": bucket.off} for bucket in group.buckets]
    return {"values": group.values, "worst": group.worst, "buckets": buckets}


def reliability_svg(groups: Sequence[Reliability]) -> str:
    """A panel for each group of promises: what was said to the right, what came true upwards."""
    width, height = len(groups) * (PANEL + MARGIN) + 20, TOP + PANEL + BOTTOM
    panels = "\n".join(_panel(group, MARGIN + number * (PANEL + MARGIN)) for number, group in enumerate(groups))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="Share of promises that held, by the odds that were said">\n<style>{STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{panels}\n</svg>\n'
    )


def _panel(group: Reliability, left: float) -> str:
    def point(said: float, held: float) -> str:
        return f"{left + PANEL * said:.1f},{TOP + PANEL * (1 - held):.1f}"

    worst = "" if group.worst is None else f": at most {100 * group.worst:.1f} points off"
    band = [(0.0, 0.0), (0.0, TOLERANCE), (1 - TOLERANCE, 1.0), (1.0, 1.0), (1.0, 1 - TOLERANCE), (TOLERANCE, 0.0)]
    known = [bucket for bucket in group.buckets if bucket.off is not None]
    places = [(bucket, point(bucket.odds or 0.0, bucket.held or 0.0)) for bucket in known]
    most = max((bucket.count for bucket in known), default=1)
    marks = [
        f'<circle class="point" cx="{(place := text.split(","))[0]}" cy="{place[1]}" '
        f'r="{3 + 5 * sqrt(bucket.count / most):.1f}"><title>{bucket.count:,} promises: said '
        f"{100 * (bucket.odds or 0.0):.1f} %, held {100 * (bucket.held or 0.0):.1f} %</title></circle>"
        for bucket, text in places
    ]
    return "\n".join(
        [
            f'<text class="title" x="{left}" y="20">{escape(group.about + worst)}</text>',
            f'<polygon class="band" points="{" ".join(point(*corner) for corner in band)}"/>',
            *_axes(left),
            f'<polyline class="exact" points="{point(0, 0)} {point(1, 1)}"/>',
            f'<polyline class="line" points="{" ".join(text for _, text in places)}"/>',
            *marks,
            f'<text x="{left}" y="{TOP + PANEL + 38}">odds that were said (buckets of {FEWEST} or more)</text>',
        ]
    )


def _axes(left: float) -> list[str]:
    found = []
    for number in range(0, 101, 20):
        across, down = left + PANEL * number / 100, TOP + PANEL * (1 - number / 100)
        found += [
            f'<path class="grid" d="M{across:.1f} {TOP}V{TOP + PANEL}M{left} {down:.1f}H{left + PANEL}"/>',
            f'<text x="{across:.1f}" y="{TOP + PANEL + 18}" text-anchor="middle">{number}</text>',
            f'<text x="{left - 6}" y="{down + 4:.1f}" text-anchor="end">{number} %</text>',
        ]
    return found


def _percent(share: float | None) -> str:
    return "-" if share is None else format_percent(share)


def render_orders(orders: Sequence[Order]) -> Printable:
    columns = ("ranked by", "engines with one load", "loads", "all runs")
    rows = [
        (
            each.quantity,
            *("-" if value is None else f"{value:.3f}" for value in (each.of_one_load, each.loads, each.of_all)),
        )
        for each in orders
    ]
    return Section("Order of configurations: rank correlation of measured and predicted", Grid(columns, rows))


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    runs = validate([read_measured(path) for path in given.files or shipped_runs()]).runs
    groups, orders = reliability_of(runs), orders_of(runs)
    if given.plot is not None:
        write_whole(given.plot, [reliability_svg(groups)])
    if given.json:
        counted = {each.about.replace(" ", "_"): reliability_dict(each) for each in groups}
        print_json({"reliability": counted, "rank_correlation": {each.quantity: each._asdict() for each in orders}})
    else:
        show(render_reliability(groups), render_orders(orders))


if __name__ == "__main__":
    main()
