"""Routed experts: two grouped matrix products and the small kernels around them.

The tokens that each expert receives follow from the routing; every expert pads them to whole tiles. A tile multiplies
and waits for its operands from L2 in turn (these kernels hide little of it), the weights of the experts hit stream
from DRAM, and a soft maximum of the two is the time of a product. Kernels differ in their tiles and constants
(expert_styles.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.kernels import facts_of
from infercast.ops import MoE
from infercast.ops.dtypes import bytes_of
from infercast.predict.physics.either import Kit, Number, Plain, kit_of
from infercast.predict.physics.expert_routing import WHOLE, route
from infercast.predict.physics.expert_styles import REFERENCE_CLOCK, TRITON, Style, style_of
from infercast.predict.physics.formats import as_run, multiplying
from infercast.predict.physics.terms import Physics

# fmt: off
FEATURES = (
    "tensor_share", "l2_share", "dram_share", "between_share", "launch_share", "log_rows_per_expert",
    "log_experts_hit", "hit_share", "log_tokens", "log_inter", "log_hidden", "log_experts", "topk",
    "tile", "log_padding", "log_waves_up", "log_waves_down", "fill_up", "fill_down",
    "log_weights_over_l2", "log_inner_over_l2", "skew", "weight_bytes_per_value", "bytes_per_value",
    "local_share", "inter_alignment", "matrices",
)
# fmt: on


class _Tile(NamedTuple):
    """A tile: how many lie across both products, and seconds to multiply one and to feed it in each."""

    rows: int
    across: tuple[int, int]
    multiply: tuple[float, float]
    feed: tuple[float, float]


class _Cut(NamedTuple):
    """Both products by one tile but for their weights: seconds of the busiest SM in each, and what they are made of."""

    up: Number
    down: Number
    tensor: Number
    cache: Number
    rounds_up: Number
    rounds_down: Number
    padded: Number
    """Rows with the padding of the last tiles."""


class Experts:
    """The routed experts of a layer on one GPU, however many tokens there are."""

    def __init__(self, op: MoE, gpu: Gpu) -> None:
        self.gpu, self.op, self.style = gpu, (op := as_run(op, gpu)), style_of(op.kernel)
        self.activation, self.weight = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
        up = (op.matrices - 1) * op.inter
        products = (up, op.hidden), (op.hidden, op.inter)
        # Width, depth, bytes of a weight, bytes of a row that goes in and comes out.
        self.products = [(*each, self.weight, each[1] * self.activation + each[0] * 2) for each in products]
        self.tiles = [_tile(op, gpu, self.style, *tile, products) for tile in self.style.tiles]
        self.heights = np.array([float(rows) for rows, _ in self.style.tiles])
        self.inner_bytes = (2 * up + 2 * op.inter + 2 * op.hidden) * 2
        self.stream_rate = gpu.dram_bandwidth * self.style.dram
        self.launch = self.style.launch(op, gpu)
        self.sizes = *Plain.logs(op.inter, op.hidden, op.experts), op.topk
        self.formats = self.weight, self.activation, op.num_local / op.experts, op.inter & -op.inter, op.matrices

    def physics(self, tokens: Number, *, engine: bool = False) -> Physics:
        """So many tokens. In a table small weights may still be in L2 from the last call; in an ``engine`` never.

        Features are always as in the tables.
        """
        x, op, l2_bytes = kit_of(tokens), self.op, self.gpu.l2_bytes
        rows, hit, by_height, most_loaded = route(op, tokens, self.heights, x)
        weights, inner = hit * op.matrices * op.hidden * op.inter * self.weight, rows * self.inner_bytes
        cuts = [self._cut(tile, blocks, x) for tile, blocks in zip(self.tiles, by_height, strict=True)]
        launch = x.like(rows, self.launch)
        if self.style.pair:
            launch = launch + self.style.sort(tokens * op.topk, x)
        fixed = between(op, self.gpu, tokens, rows, x, self.style), launch
        missed = x.miss_share(weights + 0.3 * inner, l2_bytes), x.miss_share(inner, l2_bytes)
        seconds, terms, tile = self._fastest(cuts, rows, hit, missed, fixed)
        cut, mean = x.pick(tile, cuts), tokens * op.topk / op.experts
        features = x.columns(
            *[term / seconds for term in terms.values()],
            *x.logs(mean, hit),
            hit / op.num_local,
            x.log2(tokens),
            *self.sizes,
            tile,
            *x.logs(cut.padded / x.larger(rows, 1e-9), cut.rounds_up, cut.rounds_down),
            *(x.fill(cut.rounds_up, 1), x.fill(cut.rounds_down, 1)),
            *x.logs(weights / l2_bytes, inner / l2_bytes),
            most_loaded / x.larger(mean, 1e-9),
            *self.formats,
        )
        if not engine:
            return Physics(seconds, terms, features)
        tabled = seconds
        seconds, terms, _ = self._fastest(cuts, rows, hit, (1.0, missed[1]), fixed)
        return Physics(seconds, terms, features, tabled / seconds)

    def _cut(self, tile: _Tile, blocks: Number, x: Kit) -> _Cut:
        """So many row blocks by one tile."""
        ceil, sms, (rows, across, multiply, feed) = x.ceil, self.gpu.sms, tile
        rounds_up, rounds_down = blocks * across[0] / sms, blocks * across[1] / sms
        up = rounds_up + self.style.rounding * (ceil(rounds_up) - rounds_up)
        down = rounds_down + self.style.rounding * (ceil(rounds_down) - rounds_down)
        tensor_up, tensor_down, cache_up, cache_down = (
            up * multiply[0],
            down * multiply[1],
            up * feed[0],
            down * feed[1],
        )
        tensor, cache = tensor_up + tensor_down, cache_up + cache_down
        if self.style.is_fed_ahead:
            busy = x.larger(tensor_up, cache_up), x.larger(tensor_down, cache_down)
        else:
            busy = tensor_up + cache_up, tensor_down + cache_down
        return _Cut(*busy, tensor, cache, rounds_up, rounds_down, blocks * rows)

    def _fastest(
        self, cuts: list[_Cut], rows: Number, hit: Number, missed: tuple[Number, Number], fixed: tuple[Number, Number]
    ) -> tuple[Number, dict[str, Number], Number]:
        """Seconds, their terms and the best tile, if these shares of the weights and of the inner traffic miss L2."""
        x, (weights_missed, inner_missed), (between_seconds, launch) = kit_of(rows), missed, fixed
        first, second = [
            (hit * width * depth * weight * weights_missed + rows * row_bytes * inner_missed) / self.stream_rate + 1e-12
            for width, depth, weight, row_bytes in self.products
        ]
        soft_pair, overlap, best, tile = x.soft_pair, self.style.overlap, x.like(rows, inf), x.like(rows, 0)
        for number, (up, down, *_) in enumerate(cuts):
            if x.any(up + down < best):  # a soft maximum is never below what it is of
                seconds = soft_pair(overlap, up, first) + soft_pair(overlap, down, second)
                is_better = seconds < best
                best, tile = x.where(is_better, seconds, best), x.where(is_better, number, tile)
        cut = x.pick(tile, cuts)
        terms = {"tensor": cut.tensor, "l2": cut.cache, "dram": first + second}
        return launch + between_seconds + best, {**terms, "between": between_seconds, "launch": launch}, tile


def _tile(op: MoE, gpu: Gpu, style: Style, rows: int, cols: int, products: Sequence[tuple[int, int]]) -> _Tile:
    """On products of these widths and depths."""
    activation, weight = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
    peak = multiplying(op, gpu) * gpu.sustained_fraction**0.5 * style.rate(op, gpu, op.kernel)
    slower = facts_of(gpu).misaligned_experts if op.inter % 16 else 1.0
    per_value, step = gpu.l2_bandwidth / gpu.sms * style.feed, style.step * REFERENCE_CLOCK / gpu.boost_clock
    each = [
        (
            ceil(width / cols),
            2.0 * rows * cols * (ceil(depth / 64) * 64) / (peak / gpu.sms * style.tensor)
            + style.latency
            + step * ceil(depth / 128),
            (rows * activation + cols * weight) * depth / per_value * slower,
        )
        for width, depth in products
    ]
    return _Tile(rows, *zip(*each, strict=True))


def between(op: MoE, gpu: Gpu, tokens: Number, rows: Number, x: Kit, style: Style = TRITON) -> Number:
    """Activation, quantising and the weighted sum: traffic between the products, from L2 while it fits.

    Kernels that take all pairs of tokens and experts write zeros for those of other GPUs and go through them again
    (vLLM 0.24, fused_moe.py: an expert's number of -1; Marlin clears the second product's output alone).
    """
    has_others = style.takes_all and op.num_local < op.experts and not op.routing.endswith(WHOLE)
    others = x.larger(tokens * op.topk - rows, 0.0) if has_others else 0.0
    up = (op.matrices - 1) * op.inter * 2
    traffic = (rows + others) * (up + op.inter * 2 + op.hidden * 4) + tokens * op.hidden * 4
    traffic = traffic + others * (op.hidden * 2 + (0 if op.kernel == "marlin" else up))
    if bytes_of(op.dtype) < 2:
        traffic = traffic + tokens * op.hidden * 3 + (rows + others) * op.inter
    missed = x.miss_share(traffic, gpu.l2_bytes / 2)
    return traffic * (missed / gpu.dram_bandwidth + (1 - missed) / (gpu.l2_bandwidth / 2)) / style.between
