"""What a kernel does that costs energy: operations, bytes, and multiprocessors kept busy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from infercast.ops import Collective, MoE, Op
from infercast.ops.op import Quantity

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
    """Operations and bytes of a launch."""
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
