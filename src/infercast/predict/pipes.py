"""What each operator asks of each part of a GPU, in seconds at the datasheet's rates.

A kernel cannot be faster than its busiest pipe. Wave quantisation is on the compute side: ``blocks`` thread blocks
on ``sms`` multiprocessors take ``ceil(blocks / sms)`` rounds, and the last round is paid in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.ops import Attention, Collective, Elementwise, Gemm, MoE, Op
from infercast.ops.dtypes import tensor_rate_of
from infercast.ops.op import Quantity

Pipes = dict[str, Quantity]

# Output tiles a library can choose from. Small ones waste less of a thin matrix and fill the chip sooner.
GEMM_TILES = ((16, 64), (32, 64), (64, 64), (64, 128), (128, 128), (128, 256))
QUERY_TILE = 128
MOE_TILES = (16, 32, 64, 128)


def pipes_of(op: Op, gpu: Gpu) -> Pipes:
    """Seconds each pipe is busy if nothing else holds it up."""
    try:
        demand = _PIPES[type(op)]
    except KeyError:
        raise InputError(f"no price is known for operators of type {type(op).__name__}") from None
    return demand(op, gpu)


def quantised_waves(blocks: Quantity, sms: int) -> Quantity:
    """``u`` >= 1: how much longer whole rounds take than a perfectly even spread, once there is more than one.

    A kernel that does not fill one round is cut finer (along k, or along the keys) until it does.
    """
    if np.ndim(blocks) == 0:
        return math.ceil(blocks / sms) * sms / float(blocks) if blocks > sms else 1.0
    rounds = np.ceil(blocks / sms)
    result: Quantity = np.where(rounds > 1, rounds * sms / np.maximum(blocks, 1), 1.0)
    return result


def _gemm(op: Gemm, gpu: Gpu) -> Pipes:
    """The best tile of the menu, against moving both operands and the result once."""
    rate = gpu.dense_flops(tensor_rate_of(op.dtype))
    best: Any = np.inf
    for rows, columns in GEMM_TILES:
        blocks = op.batch * np.ceil(np.asarray(op.m) / rows) * np.ceil(np.asarray(op.n) / columns)
        flops = 2.0 * rows * columns * op.k * blocks
        best = np.minimum(best, flops / rate * quantised_waves(blocks, gpu.sms))
    return {"tensor": best, "dram": _dram(op, gpu)}


def _attention(op: Attention, gpu: Gpu) -> Pipes:
    """Matrix products in whole rounds of query tiles, exponentials, and the KV cache read once."""
    tensor = op.flops / gpu.dense_flops(tensor_rate_of(op.dtype))
    has_prompt = op.queries.max(axis=-1) > 1  # the rest only decode, cut along their keys until they fill the chip
    if has_prompt.any():
        waves = quantised_waves(op.heads * op.num_tiles(QUERY_TILE), gpu.sms)
        tensor = tensor * np.where(has_prompt, waves, 1.0)
    return {"tensor": tensor, "special": op.exponentials / gpu.special_rate, "dram": _dram(op, gpu)}


def _moe(op: MoE, gpu: Gpu) -> Pipes:
    """Rows of each expert padded to a tile, against the weights of the experts that are hit."""
    rate = gpu.dense_flops(tensor_rate_of(op.dtype))
    hit = np.maximum(op.experts_hit, 1e-9)
    rows = op.routed_rows / hit
    padded: Any = np.inf
    for tile in MOE_TILES:
        padded = np.minimum(padded, np.ceil(rows / tile) * tile)
    flops = 2.0 * op.matrices * op.hidden * op.inter * hit * padded
    return {"tensor": flops / rate, "dram": _dram(op, gpu)}


def _elementwise(op: Elementwise, gpu: Gpu) -> Pipes:
    """Bytes over memory bandwidth; the arithmetic hardly ever shows."""
    return {"fma": op.flops / gpu.fma_flops, "dram": _dram(op, gpu)}


def _collective(op: Collective, gpu: Gpu) -> Pipes:
    """Bytes over the links that join the GPUs."""
    return {"link": op.link_bytes / gpu.link_bandwidth(op.gpus)}


def _dram(op: Op, gpu: Gpu) -> Quantity:
    """Every distinct byte moved once at full bandwidth."""
    seconds: Quantity = (op.bytes_read + op.bytes_written) / gpu.dram_bandwidth
    return seconds


_PIPES: dict[type, Callable[[Any, Gpu], Pipes]] = {
    Gemm: _gemm,
    Attention: _attention,
    MoE: _moe,
    Elementwise: _elementwise,
    Collective: _collective,
}
