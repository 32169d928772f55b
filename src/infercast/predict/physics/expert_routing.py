"""Where the tokens of a layer go: how many each expert of a GPU receives, and the row blocks that they fill."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from infercast.ops import MoE
from infercast.predict.physics.either import Kit, Number
from infercast.predict.physics.terms import Array

ROUNDED_AWAY = 0.36
"""A power law's share below which rounding leaves an expert without a token."""
CLASSES = 24
"""Experts are taken in this many equal classes, from the least to the most loaded."""
_RANK = (np.arange(CLASSES) + 0.5) / CLASSES


class Routed(NamedTuple):
    """Where the tokens of each kernel went."""

    rows: Number
    hit: Number
    """Experts that get any."""
    blocks: list[Number]
    """Row blocks, for each height of a tile."""
    most: Number
    """Tokens of the most loaded expert."""


@cache
def standard_deviations() -> Array:
    """How many standard deviations each class of experts is off the mean."""
    from statistics import NormalDist  # noqa: PLC0415 - models without experts need no decimals and fractions

    return np.array([NormalDist().inv_cdf(rank) for rank in _RANK])


def route(op: MoE, tokens: Number, heights: Array, x: Kit) -> Routed:
    """Spread tokens over the experts of this GPU, and cut each expert's into blocks of these heights."""
    loads, chance, chances = _loads(op, tokens, x)
    of_class = op.num_local / CLASSES
    rows, expected = x.total(loads) * of_class, chances * of_class
    most = x.smaller(rows, op.num_local)
    hit = x.clip(expected, x.smaller(op.topk * op.num_local / op.experts, most), most)
    tiles = np.maximum(np.ceil(loads[..., None] / heights - 1e-9), 1.0)
    tiles *= x.along(chance * x.along(hit / expected))
    blocks = [x.larger(each * of_class, 1.0) for each in x.apart(np.add.reduce(tiles, axis=-2))]
    return Routed(rows, hit, blocks, x.last(loads))  # classes are in rising order


def _loads(op: MoE, tokens: Number, x: Kit) -> tuple[Array, Number, Number]:
    """Tokens of an expert of each class, the probability that it gets any, and the sum of that over the classes.

    Where all classes have the same probability it is one number.
    """
    mean = tokens * op.topk / op.experts
    if op.routing == "balanced":
        chance = x.smaller(mean, 1.0)
        return np.repeat(x.along(mean), CLASSES, axis=-1), x.along(chance), CLASSES * chance
    if op.routing.startswith("power_law_"):
        loads = _power_law(1.0 - float(op.routing.removeprefix("power_law_")), x.along(mean), x.along(tokens))
        chance = loads**3 / (loads**3 + ROUNDED_AWAY**3)
        return loads, chance, x.total(chance)
    loads = np.maximum(x.along(mean) + x.along(x.sqrt(mean)) * standard_deviations(), 0.0)
    loads *= x.along(mean / (x.total(loads) / CLASSES))
    chance = -x.expm1(tokens * x.log1p(-min(op.topk / op.experts, 1 - 1e-9)))
    return loads, x.along(chance), CLASSES * chance


def _power_law(power: float, mean: Array, tokens: Array) -> Array:
    """As the tables' collector draws it: a bounded Pareto law, scaled to the number of routed tokens."""
    power = power if abs(power) > 1e-6 else 1e-6
    low = np.where(mean > 1.0, 1.0, 0.01)
    high = np.where(mean > 1.0, np.maximum(0.8 * tokens, 1.01), 2.0)
    loads = ((high**power - low**power) * _RANK + low**power) ** (1.0 / power)
    for _ in range(3):  # no expert can get a token twice: cap, and hand the excess to the others
        loads = np.minimum(loads * (mean / loads.mean(axis=-1, keepdims=True)), tokens)
    return loads
