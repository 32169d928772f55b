"""Predicted against measured: what trying launch configurations on a GPU says about their ranking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from infercast.engines.expert_launches import FILE_KEYS, Configuration
from infercast.forecast.tune.advice import TunedShape, runnable
from infercast.hardware import Gpu
from infercast.predict.physics.expert_launch import time_tiles
from infercast.predict.physics.expert_tiles import tiles_of

CLEAR = 0.03
"""A measured gain below this is chance: two runs of one configuration lay up to 2.6 % apart in our trial."""
Row = Mapping[str, Any]
"""A measured run: the layer's sizes, ``configuration`` (None: the engine's choice), ``ran`` and ``latency_us``."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One configuration of one shape."""

    configuration: Configuration
    rank: int | None
    """Its place in the ranking, from 1; 0 is the engine's own choice, None one that was drawn by lot."""
    predicted: float
    measured: float | None
    """Seconds; None if it did not run."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One shape: what its ranking is worth."""

    shape: TunedShape
    tried: tuple[Tried, ...]
    noise: float
    """How far two measurements of the default lie apart, as a share."""

    @property
    def default(self) -> Tried:
        """What the engine runs."""
        return next(each for each in self.tried if each.rank == 0)

    @property
    def ran(self) -> list[Tried]:
        """All that ran."""
        return [each for each in self.tried if each.measured is not None]

    @property
    def best_ranked(self) -> Tried:
        """The fastest of those that the ranking proposed, the default among them: what a user ends with."""
        return min((each for each in self.ran if each.rank is not None), key=lambda each: each.measured or np.inf)

    @property
    def recommended(self) -> Tried:
        """The fastest that was proposed, if it is clearly faster than the default."""
        return self.best_ranked if self.speedup > 1.0 + max(self.noise, CLEAR) else self.default

    @property
    def speedup(self) -> float:
        """Of the best of the ranked over the default, as measured."""
        return (self.default.measured or np.nan) / (self.best_ranked.measured or np.nan)

    @property
    def first_speedup(self) -> float | None:
        """Of the first of the ranking alone, untried, as measured; None if it did not run."""
        first = next((each for each in self.tried if each.rank == 1), None)
        return None if first is None or not first.measured else (self.default.measured or np.nan) / first.measured

    @property
    def rank_correlation(self) -> float:
        """Spearman's, of predicted and measured times."""
        ran = self.ran
        return spearman([each.predicted for each in ran], [each.measured or 0.0 for each in ran])


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlation of ranks."""
    if len(first) < 3:
        return float("nan")
    ranks = np.array([np.argsort(np.argsort(values)) for values in (first, second)], dtype=np.float64)
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def drawn(shape: TunedShape, gpu: Gpu, count: int, seed: int = 0) -> list[Configuration]:
    """Configurations that can run, by lot: to see what a ranking misses."""
    tiles, _ = runnable(shape.op, gpu)
    generator = np.random.default_rng(seed)
    return [Configuration(*tiles.one(int(number))) for number in generator.permutation(len(tiles.rows))[:count]]


def layer_of(shape: TunedShape) -> dict[str, Any]:
    """The sizes that a trial measures."""
    op = shape.op
    sizes = {"tokens": shape.tokens, "hidden": op.hidden, "inter": op.inter, "experts": op.num_local, "topk": op.topk}
    return sizes | {"dtype": op.dtype, "routing": op.routing}


def judge(shape: TunedShape, gpu: Gpu, rows: Iterable[Row], others: Sequence[Configuration] = ()) -> Trial | None:
    """Put a shape's measured rows beside what was predicted; None if the default did not run."""
    layer = layer_of(shape)
    own = [row for row in rows if all(row[name] == value for name, value in layer.items())]
    usual = [row for row in own if row["configuration"] is None]
    if not usual:
        return None
    seconds = {_configuration(row["configuration"]): 1e-6 * row["latency_us"] for row in own if row["configuration"]}
    times = [1e-6 * row["latency_us"] for row in usual]
    running = _configuration(usual[0]["ran"]) if "ran" in usual[0] else shape.default.configuration
    asked = [(each.configuration, rank) for rank, each in enumerate(shape.best, start=1)]
    known = {configuration for configuration, _ in asked}
    lots = [(each, None) for each in others if each not in known]
    tried = [Tried(running, 0, _seconds(shape, gpu, running), float(np.mean(times)))]
    tried += [Tried(each, rank, _seconds(shape, gpu, each), seconds.get(each)) for each, rank in [*asked, *lots]]
    return Trial(shape, tuple(tried), max(times) / min(times) - 1.0)


def _configuration(values: Mapping[str, int]) -> Configuration:
    return Configuration(*(int(values.get(name, 0)) for name in FILE_KEYS))


def _seconds(shape: TunedShape, gpu: Gpu, configuration: Configuration) -> float:
    op = replace(shape.op, tokens=shape.tokens)
    return float(time_tiles(op, gpu, tiles_of([configuration])).seconds[0])
