"""Routed experts: two grouped matrix products and the small kernels around them.

The tokens that each expert receives follow from the routing; every expert pads them to whole tiles. A tile multiplies
and waits for its operands from L2 in turn (these kernels hide little of it), the weights of the experts hit stream
from DRAM, and a soft maximum of the two is the time of a product. Constants were fitted to Triton kernels in bf16 on
A100, L40S, H100 and H200; they are not hardware facts, and other kernel families differ by what a learner adds.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.kernels import by_kernels
from infercast.ops import MoE
from infercast.ops.dtypes import bytes_of
from infercast.predict.physics.formats import as_run, multiplying
from infercast.predict.physics.terms import Array, Physics, columns, fill, log2, miss_share, soft_max

Pair = tuple[Array, Array]

# fmt: off
FEATURES = (
    "tensor_share", "l2_share", "dram_share", "between_share", "launch_share", "log_rows_per_expert",
    "log_experts_hit", "hit_share", "log_tokens", "log_inter", "log_hidden", "log_experts", "topk",
    "tile", "log_padding", "log_waves_up", "log_waves_down", "fill_up", "fill_down",
    "log_weights_over_l2", "log_inner_over_l2", "skew", "weight_bytes_per_value", "bytes_per_value",
    "local_share", "inter_alignment", "matrices",
)
# fmt: on

# How a kernel's name in the tables says its family, first match first.
KERNEL_FAMILIES = {name: name for name in ("marlin", "trtllm", "cutlass", "triton")} | {"vllm_fused_moe": "triton"}

TILE_ROWS = np.array([16, 32, 64, 128])
TILE_COLUMNS = np.array([64, 64, 128, 128])
TENSOR_EFFICIENCY, FEED_EFFICIENCY, DRAM_EFFICIENCY, BETWEEN_EFFICIENCY = 0.745, 1.07, 0.86, 0.86
TILE_LATENCY = 5.5e-7
WAVE_ROUNDING = 0.05
OVERLAP = 3.6
LAUNCHES, PER_EXPERT = 35e-6, 5e-9
# Triton vectorises loads only of rows whose length is a multiple of 16. On Blackwell engines run other kernels as well.
MISALIGNED = {
    **dict.fromkeys(("pascal", "volta", "turing", "ampere", "ampere-ga10x", "ada", "hopper", "blackwell-rtx"), 4.0),
    "blackwell": 2.0,
}
# A power law's share below which rounding leaves an expert without a token.
ROUNDED_AWAY = 0.36
# Experts are taken in this many equal classes, from the least to the most loaded.
CLASSES = 24
_RANK = (np.arange(CLASSES) + 0.5) / CLASSES


@cache
def standard_deviations() -> Array:
    """How many standard deviations each class of experts is off the mean."""
    from statistics import NormalDist  # noqa: PLC0415 - models without experts need no decimals and fractions

    return np.array([NormalDist().inv_cdf(rank) for rank in _RANK])


class _Routed(NamedTuple):
    """Where the tokens of each kernel went."""

    tokens: Array
    rows: Array
    hit: Array
    blocks: Array
    mean: Array
    skew: Array


class _Product(NamedTuple):
    """Seconds of a grouped product and of its busiest SM's parts, and its rounds of tiles."""

    seconds: Array
    tensor: Array
    cache: Array
    rounds: Array


def kernel_family(kernel: str) -> str:
    """The family of a kernel named in the tables, or ``other``."""
    return next((family for part, family in KERNEL_FAMILIES.items() if part in kernel), "other")


def expert_loads(op: MoE, tokens: Array) -> tuple[Array, Array]:
    """For each class of experts: the tokens of an expert, and the probability that it gets any."""
    mean = (tokens * op.topk / op.experts)[:, None]
    if op.routing == "balanced":
        loads = np.repeat(mean, CLASSES, axis=1)
        return loads, np.minimum(loads, 1.0)
    if op.routing.startswith("power_law_"):
        # As the tables' collector draws it: a bounded Pareto law, scaled to the number of routed tokens.
        power = 1.0 - float(op.routing.removeprefix("power_law_"))
        power = power if abs(power) > 1e-6 else 1e-6
        low = np.where(mean > 1.0, 1.0, 0.01)
        high = np.where(mean > 1.0, np.maximum(0.8 * tokens[:, None], 1.01), 2.0)
        loads = ((high**power - low**power) * _RANK + low**power) ** (1.0 / power)
        for _ in range(3):  # no expert can get a token twice: cap, and hand the excess to the others
            loads = np.minimum(loads * (mean / loads.mean(axis=1, keepdims=True)), tokens[:, None])
        return loads, loads**3 / (loads**3 + ROUNDED_AWAY**3)
    loads = np.maximum(mean + np.sqrt(mean) * standard_deviations(), 0.0)
    loads = loads * (mean / loads.mean(axis=1, keepdims=True))
    hit = -np.expm1(tokens * np.log1p(-min(op.topk / op.experts, 1 - 1e-9)))
    return loads, np.repeat(hit[:, None], CLASSES, axis=1)


def _product(op: MoE, gpu: Gpu, blocks: Array, width: int, depth: int, dram: Array) -> _Product:
    """One grouped product, for every tile size."""
    activation, weight = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
    peak = multiplying(op, gpu) * gpu.sustained_fraction**0.5
    rounds = blocks * np.ceil(width / TILE_COLUMNS) / gpu.sms
    waves = rounds + WAVE_ROUNDING * (np.ceil(rounds) - rounds)
    multiply = 2.0 * TILE_ROWS * TILE_COLUMNS * (np.ceil(depth / 64) * 64) / (peak / gpu.sms * TENSOR_EFFICIENCY)
    narrow = by_kernels(MISALIGNED, gpu)
    operands = (TILE_ROWS * activation + TILE_COLUMNS * weight) * depth
    feed = operands / (gpu.l2_bandwidth / gpu.sms * FEED_EFFICIENCY) * (narrow if op.inter % 16 else 1.0)
    tensor, cache = waves * (multiply + TILE_LATENCY), waves * feed
    seconds = soft_max(OVERLAP, tensor + cache, np.broadcast_to(dram[:, None], cache.shape))
    return _Product(seconds, tensor, cache, rounds)


def between(op: MoE, gpu: Gpu, tokens: Array, rows: Array) -> Array:
    """Activation, quantising and the weighted sum: traffic between the products, from L2 while it fits."""
    traffic = rows * ((op.matrices - 1) * op.inter * 2 + op.inter * 2 + op.hidden * 4) + tokens * op.hidden * 4
    if bytes_of(op.dtype) < 2:
        traffic = traffic + tokens * op.hidden * 3 + rows * op.inter
    missed = miss_share(traffic, gpu.l2_bytes / 2)
    per_byte = missed / gpu.dram_bandwidth + (1 - missed) / (gpu.l2_bandwidth / 2)
    return np.asarray(traffic * per_byte / BETWEEN_EFFICIENCY)


def _route(op: MoE, tokens: Array) -> _Routed:
    """Spread the tokens over the experts of this GPU."""
    loads, chance = expert_loads(op, tokens)
    of_class = op.num_local / CLASSES
    rows = loads.sum(axis=1) * of_class
    expected = chance.sum(axis=1) * of_class
    most = np.minimum(rows, op.num_local)
    hit = np.clip(expected, np.minimum(op.topk * op.num_local / op.experts, most), most)
    chance = chance * (hit / expected)[:, None]
    tiles = np.maximum(np.ceil(loads[:, :, None] / TILE_ROWS - 1e-9), 1.0)
    blocks = np.maximum((chance[:, :, None] * tiles).sum(axis=1) * of_class, 1.0)
    mean = tokens * op.topk / op.experts
    return _Routed(tokens, rows, hit, blocks, mean, loads.max(axis=1) / np.maximum(mean, 1e-9))


def moe(op: MoE, gpu: Gpu, *, warm: bool = True) -> Physics:
    """Price the routed experts of a layer.

    ``warm`` says that small weights may still be in L2 from the last call, as in the tables; between the other layers
    of a model they never are.
    """
    op = as_run(op, gpu)
    routed = _route(op, np.atleast_1d(np.asarray(op.tokens, dtype=np.float64)))
    rows, hit, blocks = routed.rows, routed.hit, routed.blocks
    activation, weight = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
    up = (op.matrices - 1) * op.inter
    weights = hit * op.matrices * op.hidden * op.inter * weight
    inner = rows * (2 * up + 2 * op.inter + 2 * op.hidden) * 2
    weights_missed = miss_share(weights + 0.3 * inner, gpu.l2_bytes) if warm else np.ones_like(weights)
    inner_missed = miss_share(inner, gpu.l2_bytes)

    def stream(width: int, depth: int) -> Array:
        moved = hit * width * depth * weight * weights_missed + rows * (depth * activation + width * 2) * inner_missed
        return np.asarray(moved / (gpu.dram_bandwidth * DRAM_EFFICIENCY) + 1e-12)

    first, second = stream(up, op.hidden), stream(op.hidden, op.inter)
    products = _product(op, gpu, blocks, up, op.hidden, first), _product(op, gpu, blocks, op.hidden, op.inter, second)
    tile = (products[0].seconds + products[1].seconds).argmin(axis=1)
    pick = np.arange(len(tile)), tile
    both, tensor, cache = ((one + other)[pick] for one, other in zip(products[0][:3], products[1][:3], strict=True))
    inner_seconds = between(op, gpu, routed.tokens, rows)
    launch = LAUNCHES * (0.45 + 0.55 * 1.83e9 / gpu.boost_clock) + PER_EXPERT * op.experts + 0.0 * rows
    terms = {"tensor": tensor, "l2": cache, "dram": first + second, "between": inner_seconds, "launch": launch}
    seconds = launch + inner_seconds + both
    rounds = products[0].rounds[pick], products[1].rounds[pick]
    sizes = weights / gpu.l2_bytes, inner / gpu.l2_bytes
    return Physics(seconds, terms, _features(op, routed, pick, terms, seconds, rounds, sizes))


def _features(
    op: MoE, routed: _Routed, pick: Pair, terms: dict[str, Array], seconds: Array, rounds: Pair, sizes: Pair
) -> Array:
    """What a learner may know, in the order of ``FEATURES``."""
    padding = routed.blocks[pick] * TILE_ROWS[pick[1]] / np.maximum(routed.rows, 1e-9)
    return columns(
        *(term / seconds for term in terms.values()),
        *(log2(value) for value in (routed.mean, routed.hit)),
        routed.hit / op.num_local,
        *(log2(value) for value in (routed.tokens, op.inter, op.hidden, op.experts)),
        *(op.topk, pick[1], log2(padding)),
        *(log2(part) for part in rounds),
        *(fill(part, 1) for part in rounds),
        *(log2(size) for size in sizes),
        *(routed.skew, bytes_of(op.weight_dtype or op.dtype), bytes_of(op.dtype)),
        *(op.num_local / op.experts, op.inter & -op.inter, op.matrices),
    )
