"""Routed experts of one layer as one fused operator: token routing, kernel styles, physics, and the family record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from math import ceil, inf
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from infercast.bundled import read_data
from infercast.hardware import Gpu
from infercast.hardware.load import by_kernels, facts_of
from infercast.ops import MoE
from infercast.ops.op import Quantity, bytes_of, tensor_rate_of
from infercast.predict.array_api import Array, Kit, Number, Physics, Plain, kit_of
from infercast.predict.families import family as common
from infercast.predict.families.gemm import as_run, is_widened, multiplying
from infercast.predict.identity import ANY, KernelProfile

REFERENCE_CLOCK, CLOCK_FREE = 1.83e9, 0.45
"""The clock that launches belong to, and the share of them that does not scale with it."""


class Style(common.Constants):
    """How one kernel multiplies the groups of rows of routed experts; what its source says is in data/kernels.toml."""

    def launch(self, op: MoE, gpu: Gpu) -> float:
        """Seconds that do not depend on the tokens."""
        by_clock = CLOCK_FREE + (1 - CLOCK_FREE) * REFERENCE_CLOCK / gpu.boost_clock if self.is_clocked else 1.0
        experts = self.per_expert * op.experts + self.per_local_expert * op.num_local
        return float(self.launches * by_clock + experts)

    def sort(self, pairs: Number, x: Kit) -> Number:
        """Seconds to put pairs in the order of their experts; one thread block sorts up to 1,024."""
        return pairs * self.pair + x.where(pairs > 1024, self.sorting, 0.0)

    def rate(self, op: MoE, gpu: Gpu) -> float:
        """Share of the tensor cores' peak that such a product can reach by its format and instruction."""
        if self.mma == "sync":
            return facts_of(gpu).mma_sync
        return self.block_scaled if op.dtype == "fp8_block" else self.widened if is_widened(op) else 1.0


STYLES = {name: Style(**vars(each), mma="") for name, each in common.constants("experts").items()}
TRITON = STYLES["triton"]


@cache
def style_of(kernel: str, stored: str = "", architecture: str = "") -> Style:
    """How a kernel (data/kernels.toml, experts) multiplies; Triton's where nothing is known of it. Constants that were
    fitted to a format on an architecture come before those of all chips.
    """
    if own := STYLES.get(f"{stored}/{kernel} {architecture}"):
        return own
    facts = _facts().get(kernel, {"style": "triton"})
    named = {name: facts[name] for name in ("launches", "per_expert", "pair", "sorting", "mma") if name in facts}
    return Style(**vars(STYLES[facts["style"]]) | named)


@cache
def _facts() -> dict[str, dict[str, Any]]:
    facts: dict[str, dict[str, Any]] = read_data("kernels.toml")["experts"]
    return facts


ROUNDED_AWAY = 0.36  # A power law's share below which rounding leaves an expert without a token
CLASSES = 24  # Experts are taken in this many equal classes, from the least to the most loaded
_RANK = (np.arange(CLASSES) + 0.5) / CLASSES
DRAWS = 16  # How often a power law's loads are drawn to find those of the heaviest GPU
EPLB = "/eplb"  # After a power law, before the number of copies: engines balance the experts
WHOLE = "/whole"
"""At the end of a routing: a GPU multiplies all pairs of every token that has one of its experts, not only its own."""
SEEN = "/seen"  # There: a GPU is given the tokens that have one of its experts, and no others


class RoutedTokens(NamedTuple):
    """Where the tokens of each kernel went."""

    rows: Number
    hit: Number  # Experts that get any
    blocks: list[Number]  # Row blocks, for each height of a tile
    most: Number  # Tokens of the most loaded expert


@cache
def standard_deviations() -> Array:
    """How many standard deviations each class of experts is off the mean."""
    from statistics import NormalDist  # noqa: PLC0415 - models without experts need no decimals and fractions

    return np.array([NormalDist().inv_cdf(rank) for rank in _RANK])


def route(op: MoE, tokens: Number, heights: Array, x: Kit) -> RoutedTokens:
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
    return RoutedTokens(rows, hit, blocks, x.last(loads))  # classes are in rising order


def _of_tokens_seen(op: MoE, tokens: Number, rows: Number, x: Kit) -> Number:
    """Number of (token, expert) pairs on this GPU; deterministic under balanced routing, otherwise the expectation."""
    if op.routing.startswith("balanced"):
        return x.smaller(rows * op.topk, tokens * op.topk)
    share = x.smaller(rows / (tokens * op.topk), 1 - 1e-9)
    return x.larger(-x.expm1(op.topk * x.log1p(-share)) * tokens * op.topk, rows)


def _loads(op: MoE, tokens: Number, x: Kit) -> tuple[Array, Number, Number]:
    """Tokens of an expert of each class, the probability that it gets any, and the sum of that over the classes."""
    mean = tokens * op.topk / op.experts
    routing = op.routing.removesuffix(WHOLE).removesuffix(SEEN)
    if routing == "balanced":
        chance = x.smaller(mean, 1.0)
        return np.repeat(x.along(mean), CLASSES, axis=-1), x.along(chance), CLASSES * chance
    if routing.startswith("power_law_"):
        exponent, _, copies = routing.removeprefix("power_law_").partition(EPLB)
        power = 1.0 - float(exponent)
        if op.num_local < op.experts:
            loads = _on_heaviest(power, op, tokens, int(copies) if copies else None)
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


def _on_heaviest(power: float, op: MoE, tokens: Array, copies: int | None) -> Array:
    """The same on the GPU with the most tokens of all that experts are spread over: the collector times that one.
    AIConfigurator, collector/helper.py: it gives the first GPU the group of experts with the largest sum.
    """
    layout = op.experts, op.num_local, op.topk, copies
    each = [_heaviest(power, *layout, float(count)) for count in tokens.ravel()]
    return np.array(each).reshape(*tokens.shape, CLASSES)


@lru_cache(maxsize=16384)
def _heaviest(power: float, experts: int, local: int, topk: int, copies: int | None, tokens: float) -> Array:
    """Tokens of an expert of each class in the heaviest of equal groups, or of balanced ones, averaged over draws."""
    groups, mean = max(experts // local, 1), tokens * topk / (drawn := experts - (copies or 0))
    power = power if abs(power) > 1e-6 else 1e-6
    low, high = (1.0, max(0.8 * tokens, 1.01)) if mean > 1.0 else (0.01, 2.0)
    ranks = np.random.default_rng(drawn).random((DRAWS, groups * local if copies is None else drawn))
    loads = ((high**power - low**power) * ranks + low**power) ** (1.0 / power)
    for _ in range(3):
        loads = np.minimum(loads * (mean / loads.mean(axis=-1, keepdims=True)), tokens)
    grouped = loads.reshape(DRAWS, groups, local) if copies is None else balanced_groups(loads, copies, groups)
    heaviest = grouped[np.arange(DRAWS), grouped.sum(axis=-1).argmax(axis=-1)]
    ordered = np.sort(heaviest, axis=-1).mean(axis=0)
    # Each expert fills as many classes as it has a share in all of them.
    return np.asarray(np.repeat(ordered, CLASSES).reshape(CLASSES, local).mean(axis=-1))


def balanced_groups(loads: Array, copies: int, groups: int) -> Array:
    """As DeepSeek's EPLB: copies of what has most for a copy, then from the largest on to the lightest with room."""
    rows, held, owners = np.arange(len(loads)), np.ones_like(loads), list(np.indices(loads.shape)[1].T)
    for _ in range(copies):
        owners.append((loads / held).argmax(axis=-1))
        held[rows, owners[-1]] += 1
    each = np.take_along_axis(loads / held, np.array(owners).T, axis=-1)
    found = np.zeros((len(loads), groups, len(owners) // groups))
    filled, sums = np.zeros((len(loads), groups), dtype=int), np.zeros((len(loads), groups))
    for load in np.sort(each, axis=-1).T[::-1]:
        to = rows, np.where(filled < found.shape[-1], sums, np.inf).argmin(axis=-1)
        found[(*to, filled[to])] = load
        filled[to] += 1
        sums[to] += load
    return found


class _Tile(NamedTuple):
    """A tile: how many lie across both products, and seconds to multiply one and to feed it in each."""

    rows: int
    across: tuple[int, int]
    multiply: tuple[float, float]
    feed: tuple[float, float]
    alone: tuple[float, float]  # Seconds of one that waits for each of its steps, where an SM goes on with others


class _Cut(NamedTuple):
    """Both products by one tile but for their weights: seconds of the busiest SM in each, and what they are made of."""

    up: Number
    down: Number
    tensor: Number
    cache: Number
    rounds_up: Number
    rounds_down: Number
    padded: Number  # Rows with the padding of the last tiles


class ExpertPhysics:
    """Routed experts: two grouped matrix products and the small kernels around them. The tokens that each expert
    receives follow from the routing; every expert pads them to whole tiles. A tile multiplies and waits for its
    operands from L2 in turn (these kernels hide little of it), the weights of the experts hit stream from DRAM, and a
    soft maximum of the two is the time of a product.
    """

    def __init__(self, op: MoE, gpu: Gpu) -> None:
        self.gpu, self.op = gpu, (op := as_run(op, gpu))
        self.style = style_of(op.kernel, stored_format(op), gpu.kernels)
        self.activation, self.weight = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
        up = (op.matrices - 1) * op.inter
        products = (up, op.hidden), (op.hidden, op.inter)
        # Width, depth, bytes of a weight, bytes of a row that goes in and comes out.
        self.products = [(*each, self.weight, each[1] * self.activation + each[0] * 2) for each in products]
        self.tiles = [_tile(op, gpu, self.style, *tile, products=products) for tile in self.style.tiles]
        self.heights = np.array([float(rows) for rows, *_ in self.style.tiles])
        self.inner_bytes = (2 * up + 2 * op.inter + 2 * op.hidden) * 2
        self.stream_rate = gpu.dram_bandwidth * self.style.dram
        self.launch = self.style.launch(op, gpu)
        self.sizes = *Plain.logs(op.inter, op.hidden, op.experts), op.topk
        self.formats = self.weight, self.activation, op.num_local / op.experts, op.inter & -op.inter, op.matrices

    def physics(self, tokens: Number, *, engine: bool = False) -> Physics:
        """By tokens. In a table small weights may still be in L2; features are always as in the tables."""
        x, op, l2_bytes = kit_of(tokens), self.op, self.gpu.l2_bytes
        rows, hit, by_height, most_loaded = route(op, tokens, self.heights, x)
        weights, inner = hit * op.matrices * op.hidden * op.inter * self.weight, rows * self.inner_bytes
        cuts = [self._cut(tile, blocks, x) for tile, blocks in zip(self.tiles, by_height, strict=True)]
        if self.style.by_tokens:
            cuts = [x.pick(x.where(tokens <= op.num_local, 0, 1), cuts)]
        launch = x.like(rows, self.launch)
        if self.style.pair:
            launch = launch + self.style.sort(tokens * op.topk, x)
        fixed = between(op, self.gpu, tokens, rows, x, self.style), launch
        missed = x.miss_share(weights + 0.3 * inner, l2_bytes), x.miss_share(inner, l2_bytes)
        seconds, terms, tile = self._fastest(cuts, rows, hit, missed, fixed)
        cut, mean = x.pick(tile, cuts), tokens * op.topk / op.experts
        features = x.columns(
            *[term / seconds for term in terms.values()], *x.logs(mean, hit), hit / op.num_local, x.log2(tokens),
            *self.sizes, tile, *x.logs(cut.padded / x.larger(rows, 1e-9), cut.rounds_up, cut.rounds_down),
            *(x.fill(cut.rounds_up, 1), x.fill(cut.rounds_down, 1)), *x.logs(weights / l2_bytes, inner / l2_bytes),
            most_loaded / x.larger(mean, 1e-9), *self.formats,
        )  # fmt: skip
        if not engine:
            return Physics(seconds, terms, features)
        tabled = seconds
        seconds, terms, _ = self._fastest(cuts, rows, hit, (1.0, missed[1]), fixed)
        return Physics(seconds, terms, features, tabled / seconds)

    def _cut(self, tile: _Tile, blocks: Number, x: Kit) -> _Cut:
        ceil, sms, (rows, across, multiply, feed, alone) = x.ceil, self.gpu.sms, tile
        rounds_up, rounds_down = blocks * across[0] / sms, blocks * across[1] / sms
        up = rounds_up + self.style.rounding * (ceil(rounds_up) - rounds_up)
        down = rounds_down + self.style.rounding * (ceil(rounds_down) - rounds_down)
        tensor_up, tensor_down, cache_up, cache_down = (
            up * multiply[0], down * multiply[1], up * feed[0], down * feed[1],
        )  # fmt: skip
        tensor, cache = tensor_up + tensor_down, cache_up + cache_down
        if self.style.is_fed_ahead:
            busy = x.larger(tensor_up, cache_up), x.larger(tensor_down, cache_down)
        else:
            busy = tensor_up + cache_up, tensor_down + cache_down
        if held := self.style.resident:
            turns = ceil(rounds_up / held), ceil(rounds_down / held)
            busy = x.larger(busy[0], turns[0] * alone[0]), x.larger(busy[1], turns[1] * alone[1])
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


def _tile(
    op: MoE, gpu: Gpu, style: Style, rows: int, cols: int, deep: int = 128, *, products: Sequence[tuple[int, int]]
) -> _Tile:
    activation, weight = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
    peak = multiplying(op, gpu) * gpu.sustained_fraction**0.5 * style.rate(op, gpu)
    slower = (style.misaligned / weight or facts_of(gpu).misaligned_experts) if op.inter % ALIGN else 1.0
    per_value, step = gpu.l2_bandwidth / gpu.sms * style.feed, style.step * REFERENCE_CLOCK / gpu.boost_clock
    each = []
    for width, depth in products:
        multiply = 2.0 * rows * cols * (ceil(depth / 64) * 64) / (peak / gpu.sms * style.tensor)
        steps = step * ceil(depth / deep)
        feed = (rows * activation + cols * weight) * depth / per_value * slower
        one = multiply if style.resident else multiply + style.latency + steps
        each.append((ceil(width / cols), one, feed, style.latency + steps))
    return _Tile(rows, *zip(*each, strict=True))


def between(op: MoE, gpu: Gpu, tokens: Number, rows: Number, x: Kit, style: Style = TRITON) -> Number:
    """Activation, quantising and the weighted sum: traffic between the products, from L2 while it fits. Kernels that
    take all pairs of tokens and experts write zeros for those of other GPUs and go through them again (vLLM 0.24,
    fused_moe.py: an expert's number of -1; Marlin clears the second product's output alone).
    """
    has_others = style.takes_all and op.num_local < op.experts and not op.routing.endswith(WHOLE)
    if op.routing.endswith(SEEN):
        tokens = _of_tokens_seen(op, tokens, rows, x) / op.topk
    others = x.larger(tokens * op.topk - rows, 0.0) if has_others else 0.0
    up = (op.matrices - 1) * op.inter * 2
    traffic = (rows + others) * (up + op.inter * 2 + op.hidden * 4) + tokens * op.hidden * 4
    traffic = traffic + others * (op.hidden * 2 + (0 if op.kernel == "marlin" else up))
    if bytes_of(op.dtype) < 2:
        traffic = traffic + tokens * op.hidden * 3 + (rows + others) * op.inter
    missed = x.miss_share(traffic, gpu.l2_bytes / 2)
    return traffic * (missed / gpu.dram_bandwidth + (1 - missed) / (gpu.l2_bandwidth / 2)) / style.between


TILES = (16, 32, 64, 128)
NARROWEST, ALIGN = 256, 16
"""Width of our sweep's narrowest experts; what rows are a multiple of where Triton loads many values at once."""
SAME_KERNEL = {"marlin": "int4/marlin"}
"""A kernel that multiplies all its formats alike, and the format with most tables: Marlin's experts were measured
in ten layouts of experts as int4, as mxfp4 in one that has 896 of them, and in no other format."""
OTHERWISE = "triton"  # The kernel of formats that an engine has no other for


def expert_kernel(op: MoE, gpu: Gpu, profile: KernelProfile) -> str:
    if op.kernel or gpu.kernels not in profile.experts:
        return op.kernel or OTHERWISE
    stored = stored_format(op)
    whole = by_kernels(profile.experts, gpu).get(stored, OTHERWISE)
    return profile.spread_experts.get(gpu.kernels, {}).get(stored, whole) if op.num_local < op.experts else whole


def stored_format(op: MoE) -> str:
    stored = op.weight_dtype or op.dtype
    if (stored, op.dtype) == ("mxfp4", "fp8"):
        return "mxfp4_a8"
    return "bf16" if stored == "fp16" else stored


def _variants(op: MoE, gpu: Gpu, profile: KernelProfile) -> tuple[str, ...]:
    library, stored = expert_kernel(op, gpu, profile), stored_format(op)
    same = [SAME_KERNEL[library]] if library in SAME_KERNEL else []
    # Where a kernel is named, nothing measured of another stands for it.
    others = [] if op.kernel else [f"{stored}/triton", f"{op.dtype}/triton", "bf16/triton"]
    if op.dtype == stored and bytes_of(stored) < 1 and style_of(library).is_fed_ahead:
        others = others[:1]  # what Triton's lose in 16 bits says nothing of tuned products in four
    return tuple(dict.fromkeys((*same, f"{stored}/{library}", *others)))


def is_swept(op: MoE) -> bool:
    """Whether rows are loaded as those of our sweep are: many values at once. Published tables have others in 16 bits.
    Triton loads rows value by value that are no multiple of 16 long: experts of 88 take 1.7 times as long as those of
    176 for 64 tokens (vLLM 0.24 on an H200).
    """
    return op.inter % ALIGN == 0 or bytes_of(op.weight_dtype or op.dtype) < 2


def is_beyond(op: MoE) -> bool:
    """Whether experts are narrower than those of our sweep (aligned ones come out 11 % low) or loaded otherwise."""
    return op.inter < NARROWEST or op.inter % ALIGN != 0


def _is_measured(op: MoE, gpu: Gpu) -> bool:
    """No table has such rows in fp8 by Triton."""
    return op.inter % ALIGN == 0 or gpu.kernels != "hopper" or stored_format(op) not in ("fp8", "fp8_block")


def _named(op: MoE, variant: str) -> MoE:
    kernel = variant.partition("/")[2]
    return op if op.kernel or kernel == ANY else replace(op, kernel=kernel)


def _pipes(op: MoE, gpu: Gpu) -> common.Pipes:
    """Rows of each expert padded to a tile (by half a tile on average), against the weights of the experts that are
    hit.
    """
    rate = gpu.dense_flops(tensor_rate_of(op.dtype))
    hit = np.maximum(op.experts_hit, 1e-9)
    padded = np.maximum(op.routed_rows / hit + TILES[0] / 2, TILES[0])
    flops = 2.0 * op.matrices * op.hidden * op.inter * hit * padded
    return {"tensor": flops / rate, "dram": common.dram_seconds(op, gpu)}


def _work(op: MoE, tokens: Any) -> tuple[Quantity, Quantity]:
    per_expert, local = op.matrices * op.hidden * op.inter, op.num_local
    hit = local * (1.0 - (1.0 - op.topk / op.experts) ** tokens)
    flops = 2.0 * per_expert * (tokens * (op.topk * local / op.experts))
    return flops, per_expert * bytes_of(op.weight_dtype or op.dtype) * hit


def _ceiling_shape(op: MoE, gpu: Gpu) -> list[Any]:
    hit = np.maximum(np.ravel(op.experts_hit), 1.0)
    rows = np.ravel(op.routed_rows) / hit
    blocks = hit * np.ceil(rows / TILES[-1]) * np.ceil(op.inter / TILES[-1])
    return [np.log2(rows), np.log2(hit), np.log2(op.inter), np.log2(op.hidden), np.log2(blocks / gpu.sms)]


def _build(values: common.Values) -> MoE:
    formats = {name: values[name] for name in _FORMATS}
    return MoE(values["tokens"], **common.wholes(values, *_SIZES), **formats)


_SIZES, _FORMATS = ("hidden", "inter", "experts", "topk"), {"dtype": "bf16", "weight_dtype": None}
EXPERTS = common.Family(
    name="moe",
    op=MoE,
    shapes={
        "moe": common.Shape(("tokens", *_SIZES), _FORMATS, _build, (*_SIZES, *_FORMATS), lambda by: float(by["tokens"]))
    },
    step_sizes=("tokens",),
    sizes=lambda op: common.floats(op.tokens),
    size_of_one=lambda op: common.lone(op.tokens) if op.routing == "uniform" else None,
    kind=lambda op: (op.kernel, op.dtype, op.weight_dtype, op.num_local < op.experts, op.inter % ALIGN, is_beyond(op)),
    core=ExpertPhysics,
    named=_named,
    core_key=attrgetter("hidden", "inter", "experts", "topk", "num_local", "matrices", "routing", "kernel"),
    features={"moe": common.feature_names("moe")},
    shares=("tensor", "l2", "dram", "between", "launch"),
    pipes=_pipes,
    # Everything between the parts of the kernel may stay on the chip.
    limits=lambda op, gpu: common.product_limits(op, gpu, op.weight_bytes + 4.0 * op.hidden * np.asarray(op.tokens)),
    work=_work,
    throttled=("moe",),
    variants=_variants,
    is_swept=is_swept,
    is_beyond=is_beyond,
    is_measured=_is_measured,
    table=lambda op, gpu, profile: f"moe {expert_kernel(op, gpu, profile)}",
    # Kernels other than those that the physics was fitted to lie between -0.17 and 1.36 of it.
    interval=(-0.4, 0.9),
    spread={"moe": 6.7},
    typical=lambda op: (
        f"moe/{op.weight_dtype or op.dtype}",
        "moe narrow" if bytes_of(op.weight_dtype or op.dtype) < 1 else "moe",
    ),
    ceiling=common.Ceiling(
        features=("log_rows", "log_experts", "log_inter", "log_hidden", "log_rounds"),
        shape=_ceiling_shape,
        variant=lambda op: op.weight_dtype or op.dtype,
    ),
)
