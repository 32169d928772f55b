"""The shape around a forecast: chosen on measured runs so that promises hold as often as they say.

    python benchmarks/accuracy/fit_odds.py [--published runs.csv]

Shapes have the 80 % intervals that forecasts carry: Student's t of some degrees of freedom (infinitely many: the normal
distribution), whose middle under load is slower than the forecast by a part of a standard deviation. The most likely
one is chosen with every engine left out in turn (of published runs, every GPU), and the promises about the one left out
are scored: the mean logarithm of the odds of what came true, and how far buckets are off. Needs SciPy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.forecast.uncertainty import EIGHTY, is_at_once
from infercast.lab.validate.compare import validate
from infercast.lab.validate.measured import read_measured, shipped_runs
from published.compare import compare_published
from published.promises import LATENCIES, LIMITS, RATE, Promises, reliability, worst_of
from published.report import LATENCIES as PUBLISHED
from published.table import read_published

FREEDOMS = (np.inf, 10, 5, 4, 3, 2.5, 2, 1.5)
SLOWER = tuple(np.arange(0, 0.61, 0.05).round(2).tolist())
SURE = 1e-4
"""Odds are not taken to be nearer to 0 or 1 in the score, so that it is finite."""


class Shape(NamedTuple):
    """A distribution: degrees of freedom, and how much slower the middle is, of static batches and under load."""

    freedom: float
    static: float = 0.0
    loaded: float = 0.0


class Values(NamedTuple):
    """Measured numbers as logarithms over the forecast, a rate with its sign turned round."""

    group: np.ndarray
    loaded: np.ndarray
    is_rate: np.ndarray
    errors: np.ndarray
    half_widths: np.ndarray

    def of(self, chosen: np.ndarray) -> Values:
        return Values(*(each[chosen] for each in self))

    def deviations(self, rooms: np.ndarray, shape: Shape) -> np.ndarray:
        """In half widths from the middle."""
        middle = np.where(self.loaded, shape.loaded, shape.static) / EIGHTY
        return rooms / self.half_widths[:, None] - middle[:, None]

    def likelihood(self, shape: Shape) -> float:
        """Mean logarithm of the density of what was measured."""
        ends = distribution(shape).ppf(0.9)
        densities = distribution(shape).logpdf(ends * self.deviations(self.errors[:, None], shape)[:, 0])
        return float(np.mean(densities + np.log(ends / self.half_widths)))

    def promises(self, shape: Shape) -> Promises:
        rooms = np.where(self.is_rate[:, None], -np.log(LIMITS), np.log(LIMITS))
        odds = distribution(shape).cdf(distribution(shape).ppf(0.9) * self.deviations(rooms, shape))
        return Promises(odds, self.errors[:, None] <= rooms)


def distribution(shape: Shape) -> stats.rv_continuous:
    return stats.norm() if np.isinf(shape.freedom) else stats.t(shape.freedom)


def values_of(rows: Iterable[tuple[str, bool, str, object]]) -> Values:
    """Of group, whether under load, name and comparison of each number."""
    kept = [(group, loaded, name, pair) for group, loaded, name, pair in rows if pair is not None]
    sides = np.array([(pair.measured, pair.predicted, pair.half_width) for *_, pair in kept])
    rates = np.array([name == RATE for _, _, name, _ in kept])
    errors = np.log(sides[:, 0] / sides[:, 1]) * np.where(rates, -1, 1)
    groups, loaded = np.array([row[0] for row in kept]), np.array([row[1] for row in kept])
    return Values(groups, loaded, rates, errors, sides[:, 2])


def scored(promises: Promises) -> tuple[float, float]:
    """Mean logarithm of the odds of what came true, its sign turned round, and the worst bucket in points."""
    odds = np.clip(np.where(promises.held, promises.odds, 1 - promises.odds), SURE, 1)
    worst = worst_of(reliability(Promises(promises.odds.ravel(), promises.held.ravel())))
    return float(-np.log(odds).mean()), 100 * (worst or 0.0)


def try_shapes(title: str, values: Values, shapes: list[Shape]) -> None:
    """Print the shape that all choose, and the score with each group left out."""
    odds, held = (np.zeros((values.errors.size, LIMITS.size)) for _ in range(2))
    chosen = []
    for group in np.unique(values.group):
        own = values.group == group
        others = values.of(~own)
        chosen.append(max(shapes, key=others.likelihood))
        kept = values.of(own).promises(chosen[-1])
        odds[own], held[own] = kept.odds, kept.held
    best = max(shapes, key=values.likelihood)
    parts = [("all", np.ones_like(values.loaded)), ("static", ~values.loaded), ("loaded", values.loaded)]
    worst = ", ".join(
        f"{name} {scored(Promises(odds[rows], held[rows].astype(bool)))[1]:.1f}" for name, rows in parts if rows.any()
    )
    score = scored(Promises(odds, held.astype(bool)))[0]
    print(f"{title:34} {best}: left out {score:.4f}, points off: {worst}; chosen by {len(set(chosen))} shapes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=Path)
    asked = parser.parse_args()
    runs = validate([read_measured(path) for path in shipped_runs()]).runs
    values = values_of(
        (run.file, not run.parts.is_static, name, getattr(run, name)) for run in runs for name in (*LATENCIES, RATE)
    )
    print(f"{values.errors.size} values of {len(runs)} runs")
    try_shapes("log-normal", values, [Shape(np.inf)])
    try_shapes("Student's t", values, [Shape(freedom) for freedom in FREEDOMS])
    try_shapes("and slower", values, [Shape(freedom, slow, slow) for freedom in FREEDOMS for slow in SLOWER])
    try_shapes("and slower under load", values, [Shape(freedom, 0, slow) for freedom in FREEDOMS for slow in SLOWER])
    try_shapes("t of 2, slower under load", values, [Shape(2, 0, slow) for slow in SLOWER])
    if asked.published is not None:
        compared = compare_published(read_published(asked.published))
        values = values_of(
            (each.run.gpu, not is_at_once(each.run.workload), name, getattr(each, name))
            for each in compared
            for name in (*PUBLISHED, RATE)
        )
        print(f"{values.errors.size} values of {len(compared)} published runs, by GPU")
        try_shapes("log-normal", values, [Shape(np.inf)])
        try_shapes("Student's t", values, [Shape(freedom) for freedom in FREEDOMS])
        try_shapes("and slower", values, [Shape(freedom, slow, slow) for freedom in FREEDOMS for slow in SLOWER])
        try_shapes("t of 2, slower under load", values, [Shape(2, 0, slow) for slow in SLOWER])
        try_shapes("t of 2, slower", values, [Shape(2, slow, slow) for slow in SLOWER])


if __name__ == "__main__":
    main()
