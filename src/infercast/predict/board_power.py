"""Power and energy of a board, and the power limit that lowers its clock under heavy products.

Kernels add the energy of their operations, bytes and busy multiprocessors to idle power. Boards that were not metered
are scaled from one that was: idle and active power with the geometric mean of silicon x clock and TDP, the energy of
an operation with TDP / (tensor rate x sustained clock), that of a byte with its power `BYTES_FOLLOW`. How far a step
falls below the full clock follows from the rate and duration of its products, by vLLM steps on an H200.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any

import numpy as np

from infercast.bundled import read_data
from infercast.hardware import Gpu, load_gpu
from infercast.lazy_classes import NamedTuple, dataclass, field, replace
from infercast.ops import Collective, Gemm, MoE, Op
from infercast.ops.op import Quantity, tensor_rate_of
from infercast.predict.families import FAMILIES

REFERENCE = "h200-sxm"  # The board that others are scaled from: its joules were counted
BYTES_FOLLOW = 0.7
GDDR_PICOJOULES = 30.0
GDDR_IDLE = 0.6
"""Idle power of a board with GDDR as a share of one with stacked memory: published RTX 50 draw 5 to 18 % less."""
MOST_WORK = 4.0  # Chips without tensor cores spend far more on an operation, but not on a byte
PICO = 1e-12
SIBLINGS = {"blackwell": ("b200-sxm",), "blackwell-ultra": ("b200-sxm",), "hopper": ("h200-sxm", "h100-sxm")}
"""Metered boards of an architecture; of several the one with the nearest bandwidth is taken."""
SPREAD = {"sibling": 0.12, "unseen": 0.2, "typical": 0.25}
"""Standard deviation of the logarithm of a run's power, where a board was not metered."""
BLOCK_BYTES, BLOCK_FLOPS = 32 * 1024, 4.0e6  # Bytes or operations of a busy multiprocessor, at least
TILE_ROWS = 16  # Rows of the smallest tile of kernels for experts
COLLECTIVE_SHARE = 0.15  # Share of the multiprocessors that carry a collective: 16 to 32 of NCCL's channels
HELD = 0.987  # Share of its limit that a board holds while the limit binds: 691 of 700 W and 986 of 1,000 W
BURST = 1.41  # Times the TDP, the most that a board draws in bursts of milliseconds, before the limit binds
FLOP_EXPONENT, BYTE_EXPONENT, ACTIVE_EXPONENT = 0.8, 0.4, 1.8
"""Powers of the clock that the energies of an operation and of a byte, and active power, follow with the voltage."""
IDLE_FIXED = 0.64  # Share of idle power that stays at the lowest clock: 77 of 120 W on an H200
LEAST_CLOCK = 0.15  # The lowest share of its clock that a board falls to


@dataclass(frozen=True, slots=True)
class BoardPower:
    """What one GPU draws, in watts, and what work costs on it, in joules."""

    idle_watts: float  # A program holds the GPU and its clocks are up; also what is drawn under the work of kernels
    active_watts: float  # On top while a kernel fills all multiprocessors
    flop: float  # Joules of a 16-bit operation of a product
    dram: float  # Joules of a byte of memory
    l2: float  # Joules of a byte that is still in L2
    spread: float  # Standard deviation of the logarithm of the power of a run
    source: str  # Where the numbers come from: one of `predict.estimate.SOURCES`
    limit_watts: float  # What the board may draw
    burst_watts: float  # The most that the board draws for milliseconds
    sms: int
    formats: Mapping[str, float] = field(hash=False)  # Operations of other formats as shares of a 16-bit one
    families: Mapping[str, Mapping[str, float]] = field(hash=False)
    """What an operation (``flop``) or a byte (``byte``) of a family costs more than one of a product."""
    clock: float = 1.0  # Share of the unhindered clock that the numbers are for

    @property
    def held_watts(self) -> float:
        return HELD * self.limit_watts

    def dynamic_joules(self, op: Op, seconds: Quantity, *, warm: Quantity = 0.0) -> Quantity:
        """Energy of one launch above idle power; ``warm``: share of its bytes in L2; none in an engine."""
        work, more = work_of(op), self.families.get(op.family, {})
        share = self.formats.get(tensor_rate_of(op.compute_dtype), 1.0) * more.get("flop", 1.0)
        byte = (self.dram + (self.l2 - self.dram) * warm) * more.get("byte", 1.0)
        busy = self.active_watts * occupied(op, work, self.sms) * seconds
        most = (self.burst_watts - self.idle_watts) * seconds
        joules = np.minimum(work.flops * (self.flop * share) + work.bytes * byte + busy, most)
        return joules if isinstance(joules, np.ndarray) and joules.ndim else float(joules)

    def watts(self, op: Op, seconds: Quantity, *, warm: Quantity = 0.0) -> Quantity:
        """Mean board power of a kernel that is launched again and again."""
        power = self.idle_watts + self.dynamic_joules(op, seconds, warm=warm) / seconds
        held = np.minimum(self.held_watts, power)
        return held if isinstance(held, np.ndarray) and held.ndim else float(held)

    def at_clock(self, fraction: float) -> BoardPower:
        """The same board at a share of its clock: its voltage, and with it the energy of work, falls too."""
        change = fraction / self.clock
        return replace(
            self,
            idle_watts=self.idle_watts * (IDLE_FIXED + (1.0 - IDLE_FIXED) * change**ACTIVE_EXPONENT),
            active_watts=self.active_watts * change**ACTIVE_EXPONENT,
            flop=self.flop * change**FLOP_EXPONENT,
            dram=self.dram * change**BYTE_EXPONENT,
            l2=self.l2 * change**FLOP_EXPONENT,
            clock=fraction,
        )


@cache
def energy_data() -> dict[str, Any]:
    return read_data("energy.toml")


def board_power(gpu: Gpu, limit_watts: float | None = None, *, known: str | None = None) -> BoardPower:
    """What is known of a GPU's power, or scaled from a ``known`` one; ``limit_watts``: if not its TDP."""
    if known is None and gpu.name in (boards := energy_data()["boards"]):
        board = _metered(gpu.name, gpu, boards[gpu.name].get("source", "measured"))
    else:
        names = SIBLINGS.get(gpu.architecture, ())
        sibling = min(
            names, key=lambda name: abs(math.log(load_gpu(name).dram_bandwidth / gpu.dram_bandwidth)), default=None
        )
        base = known or sibling or REFERENCE
        source = "sibling" if base == sibling else "unseen" if gpu.vendor == "NVIDIA" else "typical"
        board = _scaled(_metered(base, gpu, source), load_gpu(base), gpu)
    return board if limit_watts is None else replace(board, limit_watts=limit_watts)


def _metered(name: str, gpu: Gpu, source: str) -> BoardPower:
    data = energy_data()
    row = {**data["boards"].get(data["boards"][name].get("base"), {}), **data["boards"][name]}
    return BoardPower(
        **{name: row[name] for name in ("idle_watts", "active_watts")},
        **{name: row[name] * PICO for name in ("flop", "dram", "l2")},
        spread=SPREAD.get(source, row["spread"]),
        source=source,
        limit_watts=gpu.tdp,
        burst_watts=BURST * gpu.tdp,
        sms=gpu.sms,
        formats=data["formats"],
        families=data["families"],
    )


def _scaled(board: BoardPower, known: Gpu, gpu: Gpu) -> BoardPower:
    chip = (_silicon(gpu) * gpu.boost_clock) / (_silicon(known) * known.boost_clock)
    power = (chip * gpu.tdp / known.tdp) ** 0.5
    work = _joules_per_flop(gpu) / _joules_per_flop(known)
    gddr = (gpu.memory == "gddr") - (known.memory == "gddr")
    moved = min(work, MOST_WORK) ** BYTES_FOLLOW
    return replace(
        board,
        idle_watts=board.idle_watts * power * GDDR_IDLE**gddr,
        active_watts=board.active_watts * power,
        flop=board.flop * work,
        dram=board.dram * moved + GDDR_PICOJOULES * PICO * gddr,
        l2=board.l2 * moved,
    )


def _silicon(gpu: Gpu) -> float:
    """Square millimetres of its multiprocessors with their share of the die."""
    return float(energy_data()["silicon"][gpu.architecture]) * gpu.sms


def _joules_per_flop(gpu: Gpu) -> float:
    return float(gpu.tdp / (max(gpu.whole_tensor_flops, gpu.dense_flops("bf16")) * gpu.sustained_fraction**0.5))


class BoardWork(NamedTuple):
    flops: Quantity
    bytes: Quantity


def work_of(op: Op) -> BoardWork:
    if isinstance(op, Collective):
        return BoardWork(op.flops, 2.0 * op.link_bytes)
    moved = op.bytes_read + op.bytes_written
    return BoardWork(_tiled_flops(op), moved + _others_bytes(op)) if isinstance(op, MoE) else BoardWork(op.flops, moved)


def _tiled_flops(op: MoE) -> Quantity:
    """Operations of whole tiles: an expert multiplies at least `TILE_ROWS`, and half a tile more than its rows."""
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


def occupied(op: Op, work: BoardWork, sms: int) -> Quantity:
    """Share of the multiprocessors that a launch keeps busy, from 0 to 1."""
    if isinstance(op, Collective):
        return COLLECTIVE_SHARE
    share: Quantity = np.minimum(np.maximum(work.bytes / BLOCK_BYTES, work.flops / BLOCK_FLOPS) / sms, 1.0)
    return share


FREE_SHARE, FULL_SHARE = 0.30, 0.75
"""Shares of the tensor cores' peak: up to the first the board stays within its limit, at the second it is far above."""
SETTLE_SECONDS = 0.08  # Time constant of the clock, down and up again: it goes 63 % of the way
LOST = 0.60
"""Exponent of the sustained share of the boost clock: kernels wait for memory too, so they lose less than the clock."""
NARROW = 0.65  # What an operation of a narrow format draws, as a share of a 16-bit one
READING, MULTIPLYING = Gemm(1, 16384, 16384), Gemm(8192, 8192, 8192)
"""A product that only reads weights, and one that only multiplies: the two loads that a limit is derived from."""
READING_SHARE, MULTIPLYING_SHARE = 0.85, 0.8
"""Shares of the bandwidth and of the tensor cores' peak at which they do at the full clock."""
SLOWER_READING, FEW_CLOCKS, SLOWER_CACHES = 0.1, 0.55, 0.45
"""Reading memory slows with the first power of the clock's share, below the second share with the third: unchecked."""
THROTTLED = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in family.throttled))
SUSTAINED = {
    "gemm": (FREE_SHARE, FULL_SHARE, 1.1),
    "gemm/narrow": (0.0, 0.5, 0.5),
    "attention": (0.0, 0.5, 1.6),
    "moe": (0.0, 0.5, 1.0),
}
"""Of one kernel launched without a pause: shares of its format's peak at which it begins to lose and loses most, and
that loss as a multiple of a step's. From rows of our sweep at the limit: 3.5 to 5.3 % off, where bursts are 8 to 16
% off."""
SUSTAINED_SPREAD = 0.07  # Logarithm of how far off that is, either end of the 80 % interval
HALVINGS = 30


class Limits(NamedTuple):
    unthrottled_load: float  # Share of the tensor cores' peak up to which products stay within the limit
    max_slowdown: float  # The largest share by which products take longer ...
    always: float  # ... than all kernels do, by this share


@lru_cache(maxsize=64)
def power_limits(gpu: Gpu) -> Limits:
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
    """Share of the clock at which a load of ``seconds`` at the full clock draws no more than ``limit``."""
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
    limits = power_limits(gpu)
    load = tensor_load(gpu.dense_flops("bf16"), products, seconds, limits.unthrottled_load)
    return 1.0 + limits.max_slowdown * load * throttle_fraction(seconds)


def tensor_load(peak: float, products: float, seconds: float, free: float) -> float:
    """Share of the largest slowdown that repeated steps of these operations settle at, from 0 to 1."""
    share = (products / max(seconds, 1e-12) / peak - free) / (FULL_SHARE - free)
    return min(max(share, 0.0), 1.0)


def throttle_fraction(seconds: float) -> float:
    """Share of that slowdown that a single step reaches after a pause."""
    turns = seconds / SETTLE_SECONDS
    return 1.0 - (1.0 - math.exp(-turns)) / turns


def throttle_decoding(gpu: Gpu, products: Any, seconds: Any) -> Any:
    """The same of one of many decode steps: reading draws as much. ``seconds`` leave attention and the head out."""
    share = products / np.maximum(seconds, 1e-12) / gpu.dense_flops("bf16")
    return 1.0 + power_limits(gpu).max_slowdown * np.clip(share / FULL_SHARE, 0.0, 1.0)


def sustained(op: Op, gpu: Gpu, seconds: Quantity) -> Quantity:
    """How many times longer than in a burst of ``seconds`` a kernel takes that is launched without a pause."""
    narrow = op.family == "gemm" and weight_of(op.compute_dtype) < 1.0
    found = SUSTAINED.get("gemm/narrow" if narrow else op.family)
    if found is None:
        return 1.0
    free, full, lost = found
    share = np.reshape(op.flops, np.shape(seconds)) / seconds / gpu.dense_flops(tensor_rate_of(op.compute_dtype))
    longer: Quantity = 1.0 + lost * power_limits(gpu).max_slowdown * np.clip((share - free) / (full - free), 0.0, 1.0)
    return longer


def longest_limited(gpu: Gpu, products: Any) -> Any:
    """Duration above which a step of these operations never reaches the limit."""
    return products / (max(power_limits(gpu).unthrottled_load, 1e-6) * gpu.dense_flops("bf16"))


def weight_of(dtype: str) -> float:
    return 1.0 if dtype in ("bf16", "fp16", "fp32", "tf32") else NARROW
