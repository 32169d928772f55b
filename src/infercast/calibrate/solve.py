"""The most likely factors of some results, and how sure they are.

Logarithms of results are taken to be those of the simulation with the right factors, but for three things: what one run
differs from another by (factors of its own, which are the same for all that it says), what a simulation gets wrong of
each quantity, and luck. Before anything is seen, factors are what intervals say: 1, with their widths. The most likely
point is found by linearising (Gauss and Newton), its uncertainty by the curvature there (Laplace).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.calibrate.replay import PATH_SCALE, Point, Replay
from infercast.forecast.intervals.uncertainty import EIGHTY

Array = npt.NDArray[Any]

ALIKE = 0.5
"""Correlation of the errors of GPU times with prompts and without."""
LEAST_SPREAD = 0.01
"""No GPU time is known better than this before it was measured."""
PATH_SPREADS = 0.9, 1.3
"""Standard deviation of `Point.path`, for tokens from the same program, and for text over HTTP. An assumption."""
WRONG = {
    "ttft": {"mean": 0.05, "p50": 0.05, "p90": 0.1, "p95": 0.1, "p99": 0.15},
    "tpot": {"mean": 0.015, "p50": 0.015},
    "itl": {"mean": 0.02, "p50": 0.03},
    "e2e": {"mean": 0.02, "p50": 0.02},
}
WRONG_RATE = 0.02
"""What a simulation gets wrong, beyond factors, as standard deviations of logarithms."""
OTHER_LENGTHS = 3.0
"""So many times as much where lengths are known by their means alone: lognormal lengths in place of equal ones move the
mean TTFT of Llama 3.1 8B by -5, 0 and 21 % at 4, 12 and 24 requests/s, and its mean TPOT by 0, 0 and 6."""
OF_A_RUN = np.array([0.02, 0.008, 0.004])
OF_A_RUN_PATH = 0.0005
"""What one run's own factors differ by from another's: three logarithms, and seconds. Like the rest, chosen so that one
run of a measured deployment tells other rates well (benchmarks/accuracy/calibrate.py); little hangs on any of them."""
MOST_ROUNDS = 3
NEAR = 0.25
"""Enough is known when a step is shorter than this share of what stays unknown."""
MOST_MOVE = np.array([0.4, 0.3, 0.3, 1.5])
"""The longest step, since slopes hold nearby only."""


class Solution(NamedTuple):
    """The most likely point and what is left unknown."""

    point: Point
    covariance: Array
    before: Array
    """The same before anything was seen."""

    @property
    def spreads(self) -> Array:
        """Standard deviations."""
        return np.asarray(np.sqrt(np.diag(self.covariance)))


def solve(replays: Sequence[Replay], prior: Array) -> Solution:
    """Find the point that results and what was known before agree on best."""
    weights = np.linalg.inv(prior)
    point = np.zeros(4)
    values = [replay.estimated for replay in replays]
    covariance = prior
    for _ in range(MOST_ROUNDS):
        slopes = [replay.slopes(Point(*point), each) for replay, each in zip(replays, values, strict=True)]
        inverses = [_inverse(replay, slope, Point(*point)) for replay, slope in zip(replays, slopes, strict=True)]
        off = [replay.measured - each for replay, each in zip(replays, values, strict=True)]
        curvature = weights + sum(slope.T @ inverse @ slope for slope, inverse in zip(slopes, inverses, strict=True))
        pull = (
            sum(slope.T @ inverse @ each for slope, inverse, each in zip(slopes, inverses, off, strict=True))
            - weights @ point
        )
        covariance = np.linalg.inv(curvature)
        move = covariance @ pull
        move /= max(1.0, float(np.max(np.abs(move) / MOST_MOVE)))
        if np.all(np.abs(move) < NEAR * np.sqrt(np.diag(covariance))):
            break
        point, values = _advance(replays, point, move, (weights, inverses, off))
    return Solution(Point(*point.tolist()), covariance, prior)


def _advance(
    replays: Sequence[Replay], point: Array, move: Array, known: tuple[Array, list[Array], list[Array]]
) -> tuple[Array, list[Array]]:
    """The point after a step, halved until it is better than where it began."""
    weights, inverses, off = known
    start = point @ weights @ point + sum(each @ inverse @ each for each, inverse in zip(off, inverses, strict=True))
    for _ in range(4):
        there = point + move
        values = [replay.at(Point(*there)) for replay in replays]
        left = [replay.measured - each for replay, each in zip(replays, values, strict=True)]
        cost = there @ weights @ there + sum(
            each @ inverse @ each for each, inverse in zip(left, inverses, strict=True)
        )
        if cost <= start:
            return there, values
        move = move / 2
    return point, [replay.measured - each for replay, each in zip(replays, off, strict=True)]


def _inverse(replay: Replay, slopes: Array, point: Point) -> Array:
    """Of the covariance of what one result is off by with the right factors."""
    own = np.append(OF_A_RUN, OF_A_RUN_PATH / point.seconds_a_unit)
    return np.linalg.inv((slopes * own**2) @ slopes.T + np.diag(_wrong(replay) ** 2 + replay.chance**2))


def _wrong(replay: Replay) -> Array:
    found = []
    for name in replay.names:
        latency, _, statistic = name.partition("_")
        wrong = WRONG[latency][statistic] if latency in WRONG else WRONG_RATE
        found.append(wrong)
    return np.array(found) * (OTHER_LENGTHS if replay.result.means_only else 1.0)


def prior_of(replays: Sequence[Replay], *, over_http: bool) -> Array:
    """The covariance of what is looked for before anything was seen: intervals as they are without results."""
    about = np.array([replay.unknown()[:3] for replay in replays]).max(axis=0) / EIGHTY
    prompts, decodes = np.maximum(about[:2], LEAST_SPREAD)
    spreads = np.array([about[2], prompts, decodes, PATH_SPREADS[over_http]])
    alike = np.eye(4)
    alike[1, 2] = alike[2, 1] = ALIKE
    return np.asarray(alike * np.outer(spreads, spreads))


def path_spread(unit: float) -> float:
    """Seconds that a standard deviation of `Point.path` stands for around 0."""
    return PATH_SCALE * float(np.sinh(unit))
