"""How a matrix product is cut: the best of a few tiles and split-K factors.

A product is planned twice at once: *warm* as in the tables, which repeat a few weight matrices, and *cold* as in an
engine, which comes back to a layer's weights after all others. Only the DRAM seconds differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from infercast.predict.physics.gemm_machine import PER_COL, PER_ROW, TILES, Machine, Tile
from infercast.predict.physics.numbers import Doubles, Floats, Kit, Number
from infercast.predict.physics.terms import Array

# The tables rotate six weight copies, warm only when all fit in L2; a model has more than any cache holds.
TABLE_COPIES, MANY_COPIES = 6.0, 1000.0
# A split of ``k`` leaves several steps.
SHORTEST_SPLIT, MOST_SPLITS = 256.0, 16.0

# Candidates whose seconds differ in this many low bits at most are equal, by the bytes of a float.
TIE_BITS = {4: 8, 8: 24}
TIE = 1 + 2.0 ** (TIE_BITS[8] - 52)
CLEARLY = 1 - 2.0**-13
"""What is shorter by this factor is so whatever rounding does."""
NUMBER = 2 * len(TILES) - 1
"""Bits that hold a candidate's number: a tile, or a tile with a split."""

Pipes = tuple[Number, Number, Number, Number, Number]
"""Seconds of tensor cores, L2 and latency; how many times longer DRAM takes so few blocks; seconds of storing."""
Traffic = tuple[Number, Number]
"""Share of a product's bytes that come from DRAM, and seconds that all take with all of the bandwidth."""
Plan = tuple[Tile, Number, Number, Pipes, Number]
"""The tile, split and rounds that are fastest if pipes overlap perfectly; its pipes; seconds to add up partial sums."""


class Shapes:
    """Products, and what no tile changes: bytes moved once, steps over ``k``, tiles along each side."""

    __slots__ = ("across", "along", "cold", "k", "latency", "m", "moved", "n", "outputs", "warm", "weights")

    def __init__(self, m: Number, n: Number, k: Number, a: Machine, x: Kit) -> None:
        self.m, self.n, self.k = m, n, k
        self.outputs = m * n
        self.weights = n * k * a.weight_bytes
        activations = m * k * a.input_bytes + self.outputs * a.output_bytes
        self.moved = self.weights + activations
        self.latency = x.ceil(k * a.steps_per_k) * a.step
        self.across: Sequence[Number] = [x.ceil(m * each) for each in PER_ROW]
        self.along: Sequence[Number] = [x.ceil(n * each) for each in PER_COL]
        self.warm = self._traffic(a, x, self.weights * (a.copies_margin * TABLE_COPIES) + activations)
        self.cold = self._traffic(a, x, self.weights * (a.copies_margin * MANY_COPIES) + activations)

    def _traffic(self, a: Machine, x: Kit, working_set: Number) -> Traffic:
        miss = x.miss_share(working_set, a.cache, a.miss_sharpness)
        return miss, self.moved * (miss * a.miss_byte + a.warm_byte)

    def part(self, some: Array) -> Shapes:
        """Some of an array of products."""
        part = object.__new__(Shapes)
        for name in Shapes.__slots__:
            value = getattr(self, name)
            is_one = isinstance(value, np.ndarray)
            setattr(part, name, value.take(some) if is_one else tuple(each.take(some) for each in value))
        return part


def pipes_of(a: Machine, x: Kit, tile: Tile, rounds: Number, k: Number, latency: Number) -> Pipes:
    """For rounds of this tile, each over so much of ``k`` and at least so long."""
    busiest = x.ceil(rounds) * a.whole
    busiest += rounds * a.part
    busiest = x.at_least_one(busiest)
    tensor = busiest * k
    tensor *= tile.flop
    throttled = tensor * tensor
    throttled *= a.slower
    throttled /= tensor + a.throttle_after
    throttled += tensor
    l2 = rounds * k
    l2 *= tile.l2
    return throttled, l2, busiest * latency, x.at_least_one(a.drawn / rounds), busiest * tile.store


def choose_one(s: Shapes, a: Machine) -> tuple[Plan, Plan]:
    """The best plan of a single product, warm and cold. In a tie the smaller tile wins.

    The loop spells `pipes_of` out once more: a quarter of an estimate's time is spent here.
    """
    (_, warm), (_, cold), outputs, ceil = s.warm, s.cold, s.outputs, Floats.ceil
    m, all_k, across, along, per_sm, slots = s.m, s.k, s.across, s.along, a.per_sm, a.slots
    whole, part, slower, after, drawn = a.whole, a.part, a.slower, a.throttle_after, a.drawn
    best_warm = best_cold = bar = inf
    plan_warm = plan_cold = (a.tiles[0], 1.0, 0.0, all_k, s.latency, 0.0)
    most = min(all_k // SHORTEST_SPLIT, MOST_SPLITS) if a.splits else 1.0
    for tile in reversed(a.tiles):
        blocks = across[tile.row] * along[tile.col]
        rounds = blocks * per_sm
        l2 = rounds * all_k * tile.l2
        if m <= tile.covered or l2 > bar:
            continue
        split, k, latency, reduce = 1.0, all_k, s.latency, 0.0
        while True:
            longer = drawn / rounds if rounds < drawn else 1.0
            dram, cold_dram = warm * longer, cold * longer
            if dram < best_warm or cold_dram < best_cold:
                busiest = ceil(rounds) * whole + rounds * part
                busiest = busiest if busiest > 1.0 else 1.0
                tensor = busiest * k * tile.flop
                busy = tensor + tensor * tensor * slower / (tensor + after)
                busy = busy if busy > l2 else l2
                busy = busy if busy > busiest * latency else busiest * latency
                added = busiest * tile.store + reduce
                seconds = (dram if dram > busy else busy) + added
                if seconds < best_warm:
                    best_warm, plan_warm = seconds * TIE, (tile, split, rounds, k, latency, reduce)
                seconds = (cold_dram if cold_dram > busy else busy) + added
                if seconds < best_cold:
                    best_cold, plan_cold = seconds * TIE, (tile, split, rounds, k, latency, reduce)
            if split > 1.0 or most <= 1.0 or 2.0 * blocks > slots:
                break
            split = min(slots // blocks, most)
            k = all_k / split
            rounds, latency = rounds * split, ceil(k * a.steps_per_k) * a.step
            reduce = split * outputs * a.reduce_value + a.reduce
        bar = best_warm if best_warm > best_cold else best_cold
    warm_plan = _planned(a, plan_warm)
    return warm_plan, warm_plan if plan_cold == plan_warm else _planned(a, plan_cold)


def _planned(a: Machine, candidate: tuple[Tile, float, float, float, float, float]) -> Plan:
    tile, split, rounds, k, latency, reduce = candidate
    return tile, split, rounds, pipes_of(a, Floats, tile, rounds, k, latency), reduce


def choose_many(s: Shapes, a: Machine, x: type[Doubles]) -> tuple[Array, Array]:
    """Numbers of the best candidates of each product, warm and cold."""
    race = _Race((s.warm[1], s.cold[1]))
    largest = s.m.max(initial=0)
    for number, tile in enumerate(a.tiles):
        if largest > tile.covered:
            rounds = s.across[tile.row] * s.along[tile.col]
            rounds *= a.per_sm
            race.run(number, pipes_of(a, x, tile, rounds, s.k, s.latency))
    if a.splits:
        _try_splits(s, a, x, race)
    warm, cold = race.best
    return warm & NUMBER, cold & NUMBER


def _try_splits(s: Shapes, a: Machine, x: type[Doubles], race: _Race) -> None:
    """Candidates with a split, on products so small that one could help."""
    could = (2 * s.across[-1] * s.along[-1] <= a.slots) & (s.k >= 2 * SHORTEST_SPLIT)
    could &= race.could_lose(s.outputs * (2 * a.reduce_value) + a.reduce)  # what adding up two parts takes
    some = np.flatnonzero(could)
    if not some.size:
        return
    part = s.part(some)
    largest, most = part.m.max(), _most_splits(part)
    inner = _Race((part.warm[1], part.cold[1]), [best.take(some) for best in race.best])
    for number, tile in enumerate(a.tiles, start=len(TILES)):
        if largest > tile.covered:
            blocks = part.across[tile.row] * part.along[tile.col]
            split, k, latency, reduce = _split(part, a, x, blocks, most)
            split *= blocks
            split *= a.per_sm
            inner.run(number, pipes_of(a, x, tile, split, k, latency), reduce)
    for best, better in zip(race.best, inner.best, strict=True):
        best[some] = better


class _Race:
    """The fastest candidates so far, under each traffic.

    Seconds are compared as whole numbers (bits of positive floats sort like their values) whose lowest bits name the
    candidate. So one minimum keeps both, and what differs by rounding alone is a tie, which goes to the lower number.
    """

    def __init__(self, traffics: tuple[Array, ...], best: list[Array] | None = None) -> None:
        self._traffics = traffics
        self._bits = np.dtype(f"i{traffics[0].itemsize}")
        self._mask = np.array(-1 << TIE_BITS[traffics[0].itemsize], dtype=self._bits)
        self.best = best or [np.full(dram.size, np.iinfo(self._bits).max, dtype=self._bits) for dram in traffics]

    def could_lose(self, added: Array) -> Array:
        """Whether a candidate that takes ``added`` beside its traffic could be faster under any of them."""
        could: Array = np.zeros(added.size, dtype=np.bool_)
        for dram, best in zip(self._traffics, self.best, strict=True):
            least = dram + added
            least *= CLEARLY
            could |= (best & self._mask).view(least.dtype) > least
        return could

    def run(self, number: int, pipes: Pipes, reduce: Array | None = None) -> None:
        """Let a candidate take part."""
        tensor, l2, latency, longer, store = pipes
        busy = np.maximum(np.maximum(tensor, l2, out=tensor), latency, out=tensor)
        if reduce is not None:
            store += reduce
        name = np.array(number, dtype=self._bits)
        for dram, best in zip(self._traffics, self.best, strict=True):
            seconds = dram * longer
            np.maximum(seconds, busy, out=seconds)
            seconds += store
            bits = seconds.view(self._bits)
            bits &= self._mask
            bits |= name
            np.minimum(best, bits, out=best)


def _most_splits(s: Shapes) -> Array:
    return np.asarray(np.minimum(np.floor(s.k / SHORTEST_SPLIT), MOST_SPLITS))


def _split(s: Shapes, a: Machine, x: type[Doubles], blocks: Array, most: Array) -> tuple[Array, Array, Array, Array]:
    """A split of ``k`` that fills one round, or 1: parts, ``k`` and latency of each, seconds to add them up."""
    split = x.at_least_one(np.minimum(np.floor(a.slots / blocks), most))
    k = s.k / split
    reduce = split * s.outputs
    reduce *= a.reduce_value
    reduce += a.reduce
    return split, k, x.ceil(k * a.steps_per_k) * a.step, reduce


def plan_of(s: Shapes, a: Machine, x: type[Doubles], which: Array) -> Plan:
    """The candidates with these numbers, once more and together."""
    numbers = (which & (len(TILES) - 1)).astype(np.intp)
    tile = Tile(*(values.take(numbers) for values in a.tile_table))
    blocks = x.ceil(s.m / tile.rows) * x.ceil(s.n / tile.cols)
    rounds = blocks * a.per_sm
    is_split = which >= len(TILES)
    if not is_split.any():
        return tile, 1.0, rounds, pipes_of(a, x, tile, rounds, s.k, s.latency), np.zeros_like(rounds)
    split, _, _, reduce = _split(s, a, x, blocks, _most_splits(s))
    np.copyto(split, 1.0, where=~is_split)
    k = s.k / split
    rounds *= split
    return tile, split, rounds, pipes_of(a, x, tile, rounds, k, x.ceil(k * a.steps_per_k) * a.step), reduce * is_split
