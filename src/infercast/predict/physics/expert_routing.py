"""Where the tokens of a layer go: how many each expert of a GPU receives, and the row blocks that they fill."""

from __future__ import annotations

from functools import cache, lru_cache
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
DRAWS = 16
"""How often a power law's loads are drawn to find those of the heaviest GPU."""
WHOLE = "/whole"
"""After a routing's name: a GPU multiplies all pairs of every token that has one of its experts, not only its own."""


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
    if op.routing.endswith(WHOLE):
        all_pairs = _of_tokens_seen(op, tokens, rows, x)
        loads, rows = loads * x.along(all_pairs / x.larger(rows, 1e-9)), all_pairs
    hit = x.clip(expected, x.smaller(op.topk * op.num_local / op.experts, most), most)
    tiles = np.maximum(np.ceil(loads[..., None] / heights - 1e-9), 1.0)
    tiles *= x.along(chance * x.along(hit / expected))
    blocks = [x.larger(each * of_class, 1.0) for each in x.apart(np.add.reduce(tiles, axis=-2))]
    return Routed(rows, hit, blocks, x.last(loads))  # classes are in rising order


def _of_tokens_seen(op: MoE, tokens: Number, rows: Number, x: Kit) -> Number:
    """All pairs of the tokens of which a GPU has so many: in equal shares each token comes once, else by chance."""
    if op.routing.startswith("balanced"):
        return x.smaller(rows * op.topk, tokens * op.topk)
    share = x.smaller(rows / (tokens * op.topk), 1 - 1e-9)
    return x.larger(-x.expm1(op.topk * x.log1p(-share)) * tokens * op.topk, rows)


def _loads(op: MoE, tokens: Number, x: Kit) -> tuple[Array, Number, Number]:
    """Tokens of an expert of each class, the probability that it gets any, and the sum of that over the classes.

    Where all classes have the same probability it is one number.
    """
    mean = tokens * op.topk / op.experts
    routing = op.routing.removesuffix(WHOLE)
    if routing == "balanced":
        chance = x.smaller(mean, 1.0)
        return np.repeat(x.along(mean), CLASSES, axis=-1), x.along(chance), CLASSES * chance
    if routing.startswith("power_law_"):
        power = 1.0 - float(routing.removeprefix("power_law_"))
        if op.num_local < op.experts:
            loads = _on_heaviest(power, op, tokens)
        else:
            loads = _power_law(power, x.along(mean), x.along(tokens))
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


def _on_heaviest(power: float, op: MoE, tokens: Array) -> Array:
    """The same on the GPU with the most tokens of all that experts are spread over: the collector times that one.

    AIConfigurator, collector/helper.py: it gives the first GPU the group of experts with the largest sum.
    """
    layout = op.experts, op.num_local, op.topk
    each = [_heaviest(power, *layout, float(count)) for count in tokens.ravel()]
    return np.array(each).reshape(*tokens.shape, CLASSES)


@lru_cache(maxsize=16384)
def _heaviest(power: float, experts: int, local: int, topk: int, tokens: float) -> Array:
    """Tokens of an expert of each class in the heaviest of equal groups, averaged over several draws."""
    mean, groups = tokens * topk / experts, max(experts // local, 1)
    power = power if abs(power) > 1e-6 else 1e-6
    low, high = (1.0, max(0.8 * tokens, 1.01)) if mean > 1.0 else (0.01, 2.0)
    ranks = np.random.default_rng(experts).random((DRAWS, groups * local))
    loads = ((high**power - low**power) * ranks + low**power) ** (1.0 / power)
    for _ in range(3):
        loads = np.minimum(loads * (mean / loads.mean(axis=-1, keepdims=True)), tokens)
    grouped = loads.reshape(DRAWS, groups, local)
    heaviest = grouped[np.arange(DRAWS), grouped.sum(axis=-1).argmax(axis=-1)]
    ordered = np.sort(heaviest, axis=-1).mean(axis=0)
    # Each expert fills as many classes as it has a share in all of them.
    return np.asarray(np.repeat(ordered, CLASSES).reshape(CLASSES, local).mean(axis=-1))
