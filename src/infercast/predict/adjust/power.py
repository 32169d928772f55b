"""The power limit: a step of nothing but large products soon draws more than the board may, and the clock goes down.

Kernels are estimated at the full clock. How far a step falls below it depends on how many products a second it would do
on average, and for how long. An H200 that has multiplied large matrices for a quarter of a second takes 1.17 times as
long for the next one as after a pause (1.24 for attention); a prompt of 2,048 tokens of an 8B model, 23 ms, already
takes 1.06 times what its kernels take alone. Constants from steps of vLLM on an H200 that hold prompts only; the rule
for decoding was chosen on its steps with 1 to 128 sequences of an 8B model.

Under a limit below the board's own the same rule holds with other numbers, which follow from what the board draws
(`BoardPower`): reading memory at full speed draws so much, products come on top in proportion to their rate, and power
above idle falls with the clock to the power `FALLS`. Under less than what reading memory draws, everything is slower.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Gemm
from infercast.predict.energy.model import LEAST_CLOCK, BoardPower, board_power
from infercast.predict.families import FAMILIES

FREE_SHARE, FULL_SHARE = 0.30, 0.75
"""Shares of the tensor cores' peak: up to the first the board stays within its limit, at the second it is far above."""
SETTLE_SECONDS = 0.08
"""How fast the clock follows what is drawn, down and up again: in so long it goes 63 % of the way."""
LOST = 0.60
"""Exponent of the sustained share of the boost clock: kernels wait for memory too, so they lose less than the clock."""
NARROW = 0.65
"""What an operation of a narrow format draws, as a share of a 16-bit one."""
FALLS = 2.36
"""Exponent by which power above idle falls with the rate of products: an H200 does a product of 8,192 cubed with 0.92 J
above idle in 1.62 ms at its limit, and with 1.16 J in 1.37 ms in short bursts."""
READING = Gemm(1, 16384, 16384)
READING_SHARE = 0.85
"""A product that only reads weights, and the share of the memory's bandwidth at which it does."""
MEMORY_SHARE = 0.5
"""Share of what reading memory draws above idle that does not fall with the clock: the memory's own. An estimate."""
SLOWER_READING, FEW_CLOCKS = 0.1, 0.55
"""Reading memory takes longer by this power of the clock's share, until caches are too slow for the memory below the
second: from there on by the power of `LOST`. By the physics of kernels, which no measurement checks."""
THROTTLED = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in family.throttled))
"""What operators are called that lose by it."""


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
    board, limit = board_power(gpu.unlimited or gpu), gpu.board_limit
    seconds = float(READING.bytes_read) / (READING_SHARE * gpu.dram_bandwidth)
    reading = min(float(board.watts(READING, seconds)), 0.95 * gpu.tdp)
    free = max((limit - reading) / (gpu.tdp - reading), 0.0) * FREE_SHARE
    lower = (gpu.tdp - board.idle_watts) / max(limit - board.idle_watts, 1.0)
    always = _slower_reading(board.idle_watts, reading, limit) - 1.0
    return Limits(free, max((1.0 + most) * lower ** (1.0 / FALLS) / (1.0 + always) - 1.0, 0.0), always)


def _slower_reading(idle: float, reading: float, limit: float) -> float:
    """How many times longer reading memory takes under a limit below what it draws."""
    if limit >= reading:
        return 1.0
    left = max((limit - idle) / (reading - idle) - MEMORY_SHARE, 0.0) / (1.0 - MEMORY_SHARE)
    clock = max(left ** (1.0 / (FALLS - 1.0)), LEAST_CLOCK)
    slower = clock**-SLOWER_READING * max(FEW_CLOCKS / clock, 1.0) ** LOST
    # Memory itself must be read more slowly where its own power is above the limit.
    drawn = MEMORY_SHARE + (1.0 - MEMORY_SHARE) * clock ** (FALLS - 1.0)
    return float(max(slower, drawn * (reading - idle) / max(limit - idle, 1.0)))


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


def longest_limited(gpu: Gpu, products: Any) -> Any:
    """Seconds of a step of so many operations from which on it never reaches the limit."""
    return products / (max(limits_of(gpu).free, 1e-6) * gpu.dense_flops("bf16"))


def weight_of(dtype: str) -> float:
    """What an operation of a format draws, as a share of a 16-bit one."""
    return 1.0 if dtype in ("bf16", "fp16", "fp32", "tf32") else NARROW
