"""The power limit: a step of nothing but large products soon draws more than the board may, and the clock goes down.

Kernels are estimated at the full clock. How far a step falls below it depends on how many products a second it would do
on average, and for how long. An H200 that has multiplied large matrices for a quarter of a second takes 1.17 times as
long for the next one as after a pause (1.24 for attention); a prompt of 2,048 tokens of an 8B model, 23 ms, already
takes 1.06 times what its kernels take alone. Constants from steps of vLLM on an H200 that hold prompts only; the rule
for decoding was chosen on its steps with 1 to 128 sequences of an 8B model.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.predict.families import FAMILIES

FREE_SHARE, FULL_SHARE = 0.30, 0.75
"""Shares of the tensor cores' peak: up to the first the board stays within its limit, at the second it is far above."""
SETTLE_SECONDS = 0.08
"""How fast the clock follows what is drawn, down and up again: in so long it goes 63 % of the way."""
LOST = 0.60
"""Exponent of the sustained share of the boost clock: kernels wait for memory too, so they lose less than the clock."""
NARROW = 0.65
"""What an operation of a narrow format draws, as a share of a 16-bit one."""
THROTTLED = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in family.throttled))
"""What operators are called that lose by it."""


def throttle(gpu: Gpu, products: float, seconds: float) -> float:
    """How many times longer the products of a step take, given the operations of all (narrow formats count less)."""
    lost = most_lost(gpu) * heaviness(gpu.dense_flops("bf16"), products, seconds)
    return 1.0 + lost * felt(seconds)


def most_lost(gpu: Gpu) -> float:
    """The largest share by which products take longer."""
    return float(gpu.sustained_fraction**-LOST) - 1.0


def heaviness(peak: float, products: float, seconds: float) -> float:
    """How much of that steps of so many operations come to feel if they go on and on, from 0 to 1."""
    share = (products / max(seconds, 1e-12) / peak - FREE_SHARE) / (FULL_SHARE - FREE_SHARE)
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
    return products / (FREE_SHARE * gpu.dense_flops("bf16"))


def weight_of(dtype: str) -> float:
    """What an operation of a format draws, as a share of a 16-bit one."""
    return 1.0 if dtype in ("bf16", "fp16", "fp32", "tf32") else NARROW
