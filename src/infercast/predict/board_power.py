"""Board power while kernels run: what a board draws idle, and the energy of the work that a kernel does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from math import log
from typing import Any, NamedTuple

import numpy as np

from infercast.bundled import read_data
from infercast.hardware import Gpu, load_gpu
from infercast.ops import Collective, Gemm, MoE, Op
from infercast.ops.op import Quantity, tensor_rate_of
from infercast.predict.families import FAMILIES

# What is known of a board's power: metered ones as they are, others scaled by their datasheets.
#
# Of two boards that are alike in a thing, both have it in the same measure:
#
# - idle and active power go with silicon x clock on one side, with the TDP on the other: their geometric mean; boards
# - energy of an operation goes with TDP / (tensor rate x what is left of the clock under load): boards are built so
# that
# - energy of a byte goes with that to the power of `BYTES_FOLLOW`, because part of it is the memory's own, which is
# alike


REFERENCE = "h200-sxm"
"""The board that others are scaled from: its joules were counted."""
BYTES_FOLLOW = 0.7
GDDR_PICOJOULES = 30.0
GDDR_IDLE = 0.6
"""What a board with GDDR idles at, as a share of what one with stacked memory would: published runs of an RTX 5060 Ti,
a 5070 Ti and a 5090 draw 5, 12 and 18 % less than without it."""
MOST_WORK = 4.0
"""Chips without tensor cores spend far more on an operation, but not on a byte."""
PICO = 1e-12
SIBLINGS = {"blackwell": ("b200-sxm",), "blackwell-ultra": ("b200-sxm",), "hopper": ("h200-sxm", "h100-sxm")}
"""Architectures of which boards were metered; of several the one with the nearest bandwidth is taken."""
SPREAD = {"sibling": 0.12, "unseen": 0.2, "typical": 0.25}
"""Standard deviation of the logarithm of a run's power, where a board was not metered."""


@dataclass(frozen=True, slots=True)
class Board:
    """One board at the clock that it runs at while nothing holds it back; energies in joules."""

    idle_watts: float
    active_watts: float
    flop: float
    dram: float
    l2: float
    spread: float
    source: str


@cache
def energy_data() -> dict[str, Any]:
    return read_data("energy.toml")


def board_of(gpu: Gpu, known: str | None = None) -> Board:
    """What is known of a GPU's board; ``known``: scaled from that one, whatever else is known."""
    boards = energy_data()["boards"]
    if known is None and gpu.name in boards:
        return _read(gpu.name, boards[gpu.name].get("source", "measured"))
    sibling = _sibling(gpu)
    base = known or sibling or REFERENCE
    source = "sibling" if base == sibling else "unseen" if gpu.vendor == "NVIDIA" else "typical"
    return _scaled(_read(base, source), load_gpu(base), gpu)


def _sibling(gpu: Gpu) -> str | None:
    names = SIBLINGS.get(gpu.architecture, ())
    return min(names, key=lambda name: abs(log(load_gpu(name).dram_bandwidth / gpu.dram_bandwidth)), default=None)


def _read(name: str, source: str) -> Board:
    boards = energy_data()["boards"]
    row: dict[str, float] = {**boards.get(boards[name].get("base"), {}), **boards[name]}
    return Board(
        idle_watts=row["idle_watts"],
        active_watts=row["active_watts"],
        flop=row["flop"] * PICO,
        dram=row["dram"] * PICO,
        l2=row["l2"] * PICO,
        spread=SPREAD.get(source, row["spread"]),
        source=source,
    )


def _scaled(board: Board, known: Gpu, gpu: Gpu) -> Board:
    """A board as another GPU would have it."""
    chip = (_silicon(gpu) * gpu.boost_clock) / (_silicon(known) * known.boost_clock)
    power = (chip * gpu.tdp / known.tdp) ** 0.5
    work = _fed(gpu) / _fed(known)
    pins = GDDR_PICOJOULES * PICO * ((gpu.memory == "gddr") - (known.memory == "gddr"))
    moved = min(work, MOST_WORK) ** BYTES_FOLLOW
    rest = GDDR_IDLE ** ((gpu.memory == "gddr") - (known.memory == "gddr"))
    return Board(
        idle_watts=board.idle_watts * power * rest,
        active_watts=board.active_watts * power,
        flop=board.flop * work,
        dram=board.dram * moved + pins,
        l2=board.l2 * moved,
        spread=board.spread,
        source=board.source,
    )


def _silicon(gpu: Gpu) -> float:
    """Square millimetres of its multiprocessors with their share of the die."""
    return float(energy_data()["silicon"][gpu.architecture]) * gpu.sms


def _fed(gpu: Gpu) -> float:
    """Joules of TDP for each operation of the tensor cores."""
    return float(gpu.tdp / (max(gpu.whole_tensor_flops, gpu.dense_flops("bf16")) * gpu.sustained_fraction**0.5))


# What a kernel does that costs energy: operations, bytes, and multiprocessors kept busy.


BLOCK_BYTES = 32 * 1024
BLOCK_FLOPS = 4.0e6
"""What a multiprocessor has at least to do while it is counted as busy: bytes that it moves, or operations."""
TILE_ROWS = 16
"""Rows of the smallest tile of kernels for experts."""
COLLECTIVE_SHARE = 0.15
"""Of the multiprocessors, those that carry a collective: 16 to 32 of NCCL's channels."""


class Work(NamedTuple):
    """Of one launch; arrays of shapes give arrays."""

    flops: Quantity
    bytes: Quantity


def work_of(op: Op) -> Work:
    if isinstance(op, Collective):
        return Work(op.flops, 2.0 * op.link_bytes)
    moved = op.bytes_read + op.bytes_written
    return Work(_tiled_flops(op), moved + _others_bytes(op)) if isinstance(op, MoE) else Work(op.flops, moved)


def _tiled_flops(op: MoE) -> Quantity:
    """Operations of whole tiles: an expert of few rows multiplies `TILE_ROWS`, one of many half a tile more than its.

    Small batches cost little by it in 16 bits, where weights are most of the energy, and as much as the weights in 4.
    """
    hit = np.maximum(op.experts_hit, 1e-9)
    rows = hit * np.maximum(TILE_ROWS, op.routed_rows / hit + TILE_ROWS / 2)
    tiled: Quantity = op.flops * rows / np.maximum(op.routed_rows, 1e-9)
    return tiled


def _others_bytes(op: MoE) -> Quantity:
    """Experts of other GPUs: kernels that take all pairs of tokens and experts write zeros for those and read them."""
    if op.num_local >= op.experts:
        return 0.0
    others: Quantity = np.maximum(op.tokens * op.topk - op.routed_rows, 0.0)
    first = (op.matrices - 1) * op.inter * 2
    return others * (2 * first + 2 * op.inter + 6 * op.hidden)


def occupied(op: Op, work: Work, sms: int) -> Quantity:
    """Share of the multiprocessors that a launch keeps busy, from 0 to 1."""
    if isinstance(op, Collective):
        return COLLECTIVE_SHARE
    blocks: Any = np.maximum(work.bytes / BLOCK_BYTES, work.flops / BLOCK_FLOPS) / sms
    share: Quantity = np.minimum(blocks, 1.0)
    return share


# Board power while kernels run: what a board draws idle, and the energy of the work that a kernel does.
#
#
# Energies add up over the kernels of a step. A board that would draw more than its limit lowers its clock until it does
# not: work then takes longer at a lower voltage, so that it costs less energy. How long work takes is the timing
# model's to say; here seconds are given.


HELD = 0.987
"""Share of its limit that a board holds while the limit binds: 691 of 700 W and 986 of 1,000 W."""
BURST = 1.41
"""Times the TDP, the most that a board draws in bursts of milliseconds, before the limit binds."""
FLOP_EXPONENT, BYTE_EXPONENT = 0.8, 0.4
"""Powers of the clock that the energies of an operation and of a byte go with: the voltage falls with the clock."""
ACTIVE_EXPONENT = 1.8
IDLE_FIXED = 0.64
"""Share of idle power that stays at the lowest clock: 77 of 120 W on an H200."""
LEAST_CLOCK = 0.15
"""The lowest share of its clock that a board falls to."""


@dataclass(frozen=True, slots=True)
class BoardPower:
    """What one GPU draws, in watts, and what work costs on it, in joules."""

    idle_watts: float
    """A program holds the GPU and its clocks are up, but nothing runs."""
    static_watts: float
    """The same while kernels run, whatever they do."""
    limit_watts: float
    """What the board may draw."""
    source: str
    """Where the numbers come from: one of `predict.estimate.SOURCES`."""
    spread: float
    """Standard deviation of the logarithm of the power of a run."""
    active_watts: float
    """On top while a kernel fills all multiprocessors."""
    flop: float
    """Joules of a 16-bit operation of a product."""
    dram: float
    """Joules of a byte of memory."""
    l2: float
    """Joules of a byte that is still in L2."""
    burst_watts: float
    """The most that the board draws for milliseconds."""
    sms: int
    formats: Mapping[str, float] = field(hash=False)
    """Operations of other formats as shares of a 16-bit one."""
    families: Mapping[str, Mapping[str, float]] = field(hash=False)
    """What an operation (``flop``) or a byte (``byte``) of a family costs more than one of a product."""
    clock: float = 1.0
    """Share of the unhindered clock that the numbers are for."""

    @property
    def held_watts(self) -> float:
        return HELD * self.limit_watts

    def dynamic_joules(self, op: Op, seconds: Quantity, *, warm: Quantity = 0.0) -> Quantity:
        """Energy of one launch above static power; arrays of shapes give arrays.

        ``warm``: share of its bytes that are still in L2, as in a table that repeats one kernel; in an engine none are.
        """
        work, more = work_of(op), self.families.get(op.family, {})
        share = self.formats.get(tensor_rate_of(op.compute_dtype), 1.0) * more.get("flop", 1.0)
        byte = (self.dram + (self.l2 - self.dram) * warm) * more.get("byte", 1.0)
        busy = self.active_watts * occupied(op, work, self.sms) * seconds
        most = (self.burst_watts - self.static_watts) * seconds
        joules = np.minimum(work.flops * (self.flop * share) + work.bytes * byte + busy, most)
        return joules if isinstance(joules, np.ndarray) and joules.ndim else float(joules)

    def watts(self, op: Op, seconds: Quantity, *, warm: Quantity = 0.0) -> Quantity:
        """Mean board power of a kernel that is launched again and again."""
        power = self.static_watts + self.dynamic_joules(op, seconds, warm=warm) / seconds
        held = np.minimum(self.held_watts, power)
        return held if isinstance(held, np.ndarray) and held.ndim else float(held)

    def at_clock(self, fraction: float) -> BoardPower:
        """The same board at a share of its clock: its voltage, and with it the energy of work, falls too."""
        change = fraction / self.clock
        idle = IDLE_FIXED + (1.0 - IDLE_FIXED) * change**ACTIVE_EXPONENT
        return replace(
            self,
            idle_watts=self.idle_watts * idle,
            static_watts=self.static_watts * idle,
            active_watts=self.active_watts * change**ACTIVE_EXPONENT,
            flop=self.flop * change**FLOP_EXPONENT,
            dram=self.dram * change**BYTE_EXPONENT,
            l2=self.l2 * change**FLOP_EXPONENT,
            clock=fraction,
        )


def board_power(gpu: Gpu, limit_watts: float | None = None, *, known: str | None = None) -> BoardPower:
    """What is known of a GPU's power; ``limit_watts``: what its board may draw, if not its TDP.

    ``known``: the GPU that it is to be scaled from, to see how good that is.
    """
    board, data = board_of(gpu, known), energy_data()
    return BoardPower(
        idle_watts=board.idle_watts,
        static_watts=board.idle_watts,
        limit_watts=gpu.tdp if limit_watts is None else limit_watts,
        source=board.source,
        spread=board.spread,
        active_watts=board.active_watts,
        flop=board.flop,
        dram=board.dram,
        l2=board.l2,
        burst_watts=BURST * gpu.tdp,
        sms=gpu.sms,
        formats=data["formats"],
        families=data["families"],
    )


FREE_SHARE, FULL_SHARE = 0.30, 0.75
"""Shares of the tensor cores' peak: up to the first the board stays within its limit, at the second it is far above."""
SETTLE_SECONDS = 0.08
"""How fast the clock follows what is drawn, down and up again: in so long it goes 63 % of the way."""
LOST = 0.60
"""Exponent of the sustained share of the boost clock: kernels wait for memory too, so they lose less than the clock."""
NARROW = 0.65
"""What an operation of a narrow format draws, as a share of a 16-bit one."""
READING, MULTIPLYING = Gemm(1, 16384, 16384), Gemm(8192, 8192, 8192)
"""A product that only reads weights, and one that only multiplies: two loads whose power tells what a limit does."""
READING_SHARE, MULTIPLYING_SHARE = 0.85, 0.8
"""Shares of the bandwidth and of the tensor cores' peak at which they do at the full clock."""
SLOWER_READING, FEW_CLOCKS, SLOWER_CACHES = 0.1, 0.55, 0.45
"""Reading memory takes longer by the first power of the clock's share. Below the second share caches are too slow for
the memory, and the third power comes on top. By the physics of kernels at lower clocks; no measurement checks it."""
THROTTLED = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in family.throttled))
"""What operators are called that lose by it."""


SUSTAINED = {
    "gemm": (FREE_SHARE, FULL_SHARE, 1.1),
    "gemm/narrow": (0.0, 0.5, 0.5),
    "attention": (0.0, 0.5, 1.6),
    "moe": (0.0, 0.5, 1.0),
}
"""Of one kernel that is launched without a pause: shares of its format's peak at which it begins to lose and loses
most, and that loss as a multiple of what products of a step lose at most. From rows of our sweep that the limit held at
least half of the time, by burst and sustained latency: 5,423 products in bf16 and 3,040 in fp8, 1,062 of attention, 272
of experts; 3.6, 5.3, 4.6 and 3.5 % off, where the time of a burst is 13, 8, 16 and 9 % off."""
SUSTAINED_SPREAD = 0.07
"""Logarithm of how far off that is, either end of the 80 % interval."""
HALVINGS = 30


class Limits(NamedTuple):
    """What a board's limit does to steps."""

    free: float
    """Share of the tensor cores' peak up to which products stay within the limit."""
    most: float
    """The largest share by which products take longer ..."""
    always: float
    """... than all kernels do, by this share."""


@lru_cache(maxsize=64)
def limits_of(gpu: Gpu) -> Limits:
    """By the board's own limit, or by a lower one that an operator has set."""
    most = float(gpu.sustained_fraction**-LOST) - 1.0
    if gpu.board_limit >= gpu.tdp:
        return Limits(FREE_SHARE, most, 0.0)
    board, limit = board_power(gpu.unlimited or gpu, math.inf), gpu.board_limit
    reads = float(READING.bytes_read) / (READING_SHARE * gpu.dram_bandwidth)
    multiplies = float(MULTIPLYING.flops) / (MULTIPLYING_SHARE * (gpu.unlimited or gpu).dense_flops("bf16"))
    reading = min(float(board.watts(READING, reads)), 0.95 * gpu.tdp)
    free = max((limit - reading) / (gpu.tdp - reading), 0.0) * FREE_SHARE
    always = _slower_reading(_clock_under(board, READING, reads, limit, _slower_reading))
    whole, held = (
        _clock_under(board, MULTIPLYING, multiplies, each, lambda clock: 1 / clock) for each in (gpu.tdp, limit)
    )
    return Limits(free, max((1.0 + most) * whole / held / always - 1.0, 0.0), always - 1.0)


def _slower_reading(clock: float) -> float:
    """How many times longer reading memory takes at a share of the clock."""
    return float(clock**-SLOWER_READING * max(FEW_CLOCKS / clock, 1.0) ** SLOWER_CACHES)


def _clock_under(board: BoardPower, op: Gemm, seconds: float, limit: float, slower: Callable[[float], float]) -> float:
    """Share of the clock at which a load draws no more than ``limit``; it takes so long at the full clock."""
    low, high = LEAST_CLOCK, 1.0
    if float(board.watts(op, seconds)) <= limit:
        return high
    for _ in range(HALVINGS):
        clock = (low + high) / 2
        drawn = float(board.at_clock(clock).watts(op, seconds * slower(clock)))
        low, high = (clock, high) if drawn <= limit else (low, clock)
    return low


def board_under(gpu: Gpu) -> BoardPower:
    """What a board draws under the limit and at the clock that an operator has set."""
    board = board_power(gpu.unlimited or gpu, gpu.board_limit)
    return board if gpu.clock_share == 1.0 else board.at_clock(gpu.clock_share)


def throttle(gpu: Gpu, products: float, seconds: float) -> float:
    """How many times longer the products of a step take, given the operations of all (narrow formats count less)."""
    lost = most_lost(gpu) * heaviness(gpu.dense_flops("bf16"), products, seconds, limits_of(gpu).free)
    return 1.0 + lost * felt(seconds)


def most_lost(gpu: Gpu) -> float:
    """The largest share by which products take longer."""
    return limits_of(gpu).most


def heaviness(peak: float, products: float, seconds: float, free: float = FREE_SHARE) -> float:
    """How much of that steps of so many operations come to feel if they go on and on, from 0 to 1."""
    share = (products / max(seconds, 1e-12) / peak - free) / (FULL_SHARE - free)
    return min(max(share, 0.0), 1.0)


def felt(seconds: float) -> float:
    """How much of what it would come to feel one such step feels, whose GPU was cool before it."""
    turns = seconds / SETTLE_SECONDS
    return 1.0 - (1.0 - math.exp(-turns)) / turns


def throttle_decoding(gpu: Gpu, products: Any, seconds: Any) -> Any:
    """The same of a step that only decodes, as one of many in a row; ``seconds`` leave attention and the head out.

    Reading weights draws as much as multiplying, so there is no free share.
    """
    share = products / np.maximum(seconds, 1e-12) / gpu.dense_flops("bf16")
    return 1.0 + most_lost(gpu) * np.clip(share / FULL_SHARE, 0.0, 1.0)


def sustained(op: Op, gpu: Gpu, seconds: Quantity) -> Quantity:
    """How many times longer than in a burst of ``seconds`` a kernel takes that is launched without a pause."""
    narrow = op.family == "gemm" and weight_of(op.compute_dtype) < 1.0
    found = SUSTAINED.get("gemm/narrow" if narrow else op.family)
    if found is None:
        return 1.0
    free, full, lost = found
    share = np.reshape(op.flops, np.shape(seconds)) / seconds / gpu.dense_flops(tensor_rate_of(op.compute_dtype))
    longer: Quantity = 1.0 + lost * most_lost(gpu) * np.clip((share - free) / (full - free), 0.0, 1.0)
    return longer


def longest_limited(gpu: Gpu, products: Any) -> Any:
    """Seconds of a step of so many operations from which on it never reaches the limit."""
    return products / (max(limits_of(gpu).free, 1e-6) * gpu.dense_flops("bf16"))


def weight_of(dtype: str) -> float:
    """What an operation of a format draws, as a share of a 16-bit one."""
    return 1.0 if dtype in ("bf16", "fp16", "fp32", "tf32") else NARROW
