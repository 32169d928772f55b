"""How kernels for routed experts differ: what their products are cut into, what they hide, what lies around them.

Constants of Triton's were fitted in bf16 on A100, L40S, H100 and H200; those of tuned products to CUTLASS experts of
TensorRT-LLM (bf16, fp8, fp8 by blocks, mxfp4) on L40S, H100 and H200. They are not hardware facts. What is known of a
kernel by its source is in data/kernels.toml.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.hardware import Gpu
from infercast.hardware.kernels import facts_of
from infercast.ops import MoE
from infercast.predict.physics.either import Kit, Number
from infercast.predict.physics.formats import is_widened

ONE_BLOCK = 1024
"""Pairs that one thread block sorts."""
REFERENCE_CLOCK, CLOCK_FREE = 1.83e9, 0.45
"""The clock that launches belong to, and the share of them that does not scale with it."""


class Style(NamedTuple):
    """Constants of one way to multiply groups of rows."""

    tiles: tuple[tuple[int, int], ...] = ((16, 64), (32, 64), (64, 128), (128, 128))
    """Rows (tokens) and columns."""
    tensor: float = 0.745
    feed: float = 1.07
    dram: float = 0.86
    between: float = 0.86
    """Shares of the peaks that are reached: tensor cores, L2 into an SM, memory, and L2 or memory between products."""
    latency: float = 5.5e-7
    """Seconds of a tile beside its steps ..."""
    step: float = 0.0
    """... and of each step over 128 of its depth at least, at the reference clock."""
    rounding: float = 0.05
    """1: a partly full round of tiles takes a whole one; 0: work is spread evenly."""
    overlap: float = 3.6
    is_fed_ahead: bool = False
    """Whether operands arrive while a tile multiplies; else one waits for the other."""
    launches: float = 35e-6
    per_expert: float = 5e-9
    is_clocked: bool = True
    """Whether launches get shorter with a higher clock."""
    block_scaled: float = 1.0
    """Tensor rate where each step's results are scaled before they are added."""
    widened: float = 1.0
    """Tensor rate where weights are widened on the way."""
    pair: float = 0.0
    """Seconds to sort each pair of a token and an expert, wherever that is ..."""
    sorting: float = 0.0
    """... and of the further kernels that do it where one block cannot."""
    takes_all: bool = True
    """Whether pairs of tokens and experts on other GPUs are sorted, activated and added up as well, as zeros."""

    def launch(self, op: MoE, gpu: Gpu) -> float:
        """Seconds that do not depend on the tokens."""
        by_clock = CLOCK_FREE + (1 - CLOCK_FREE) * REFERENCE_CLOCK / gpu.boost_clock if self.is_clocked else 1.0
        return self.launches * by_clock + self.per_expert * op.experts

    def sort(self, pairs: Number, x: Kit) -> Number:
        """Seconds to put so many pairs in the order of their experts."""
        return pairs * self.pair + x.where(pairs > ONE_BLOCK, self.sorting, 0.0)

    def rate(self, op: MoE, gpu: Gpu, kernel: str) -> float:
        """Share of the tensor cores' peak that such a product can reach by its format and instruction."""
        if _facts().get(kernel, {}).get("mma") == "sync":
            return facts_of(gpu).mma_sync
        return self.block_scaled if op.dtype == "fp8_block" else self.widened if is_widened(op) else 1.0


TRITON = Style()
TUNED = Style(
    tiles=((8, 128), (16, 128), (32, 128), (64, 128), (128, 128), (128, 256)),
    tensor=0.908,
    feed=2.19,
    dram=0.843,
    between=0.848,
    latency=1.5e-6,
    step=5.21e-8,
    rounding=1.0,
    overlap=1.89,
    is_fed_ahead=True,
    is_clocked=False,
    block_scaled=0.491,
    widened=0.353,
    pair=6.96e-10,
    sorting=3.19e-6,
    takes_all=False,
)
STYLES = {"triton": TRITON, "tuned": TUNED}


@cache
def style_of(kernel: str) -> Style:
    """How a kernel (data/kernels.toml, experts) multiplies; Triton's where nothing is known of it."""
    facts = _facts().get(kernel, {"style": "triton"})
    named = {name: facts[name] for name in ("launches", "per_expert", "pair", "sorting") if name in facts}
    return STYLES[facts["style"]]._replace(**named)


@cache
def _facts() -> dict[str, dict[str, Any]]:
    facts: dict[str, dict[str, Any]] = read_data("kernels.toml")["experts"]
    return facts
