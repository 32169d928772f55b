"""The power limit: a step of nothing but large products soon draws more than the board may, and the clock goes down.

Kernels are estimated at the full clock. How far a step falls below it depends on how many products a second it would do
on average, and for how long. An H200 that has multiplied large matrices for a quarter of a second takes 1.17 times as
long for the next one as after a pause (1.24 for attention); a prompt of 2,048 tokens of an 8B model, 23 ms, already
takes 1.06 times what its kernels take alone. Constants from steps of vLLM on an H200 that hold prompts only; the rule
for decoding was chosen on its steps with 1 to 128 sequences of an 8B model.

Under a limit below the board's own the same rule holds with other numbers, which follow from what the board draws
(`BoardPower`): reading memory at full speed draws so much, and products come on top in proportion to their rate. A load
under a limit runs at the clock at which it draws no more. Under less than what reading memory draws, all is slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Gemm, Op
from infercast.ops.op import Quantity, tensor_rate_of
from infercast.predict.board_power import LEAST_CLOCK, BoardPower, board_power
from infercast.predict.families import FAMILIES

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
