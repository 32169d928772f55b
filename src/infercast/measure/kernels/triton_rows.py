"""Triton kernels that move rows: new keys and values into pages, and bf16 rows to fp8 with scales found on the way.

Plain versions of what engines launch, so that a GPU without an engine can be measured: a program a token, or a
program a group of a token.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

PAGE = 16
LARGEST_FP8 = 448.0


def _write(
    new: tl.tensor,
    pages: tl.tensor,
    slots: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    row: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """One token: its keys and values are read at once, brought to the cache's format and stored."""
    token = tl.program_id(0)
    slot = tl.load(slots + token)
    if slot >= 0:
        place = tl.arange(0, wide)
        inside = place < row
        key = tl.load(new + token.to(tl.int64) * row + place, mask=inside)
        value = tl.load(new + (rows + token).to(tl.int64) * row + place, mask=inside)
        factor = 1.0 / tl.load(scale)
        kind = pages.dtype.element_ty
        start = (slot // 16) * (32 * row) + (slot % 16) * row
        if kind != tl.bfloat16:
            key, value = key.to(tl.float32) * factor, value.to(tl.float32) * factor
        tl.store(pages + start + place, key.to(kind), mask=inside)
        tl.store(pages + start + 16 * row + place, value.to(kind), mask=inside)


def _quantise_row(
    source: tl.tensor, target: tl.tensor, scales: tl.tensor, width: tl.tensor, block: tl.constexpr
) -> None:
    """One token: the largest number first, then the same row again divided by it."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    largest = tl.zeros((block,), dtype=tl.float32)
    for start in range(0, width, block):
        values = tl.load(source + row * width + start + place, mask=start + place < width, other=0.0)
        largest = tl.maximum(largest, tl.abs(values.to(tl.float32)))
    scale = tl.maximum(tl.max(largest, axis=0), 1e-10) / 448.0
    tl.store(scales + row, scale)
    for start in range(0, width, block):
        inside = start + place < width
        values = tl.load(source + row * width + start + place, mask=inside, other=0.0).to(tl.float32) / scale
        values = tl.minimum(tl.maximum(values, -448.0), 448.0)
        tl.store(target + row * width + start + place, values.to(target.dtype.element_ty), mask=inside)


def _quantise_group(source: tl.tensor, target: tl.tensor, scales: tl.tensor, group: tl.constexpr) -> None:
    """128 neighbours of one token: read once."""
    number = tl.program_id(0).to(tl.int64)
    place = number * group + tl.arange(0, group)
    values = tl.load(source + place).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), axis=0), 1e-10) / 448.0
    values = tl.minimum(tl.maximum(values / scale, -448.0), 448.0)
    tl.store(target + place, values.to(target.dtype.element_ty))
    tl.store(scales + number, scale)


WRITE, QUANTISE_ROW, QUANTISE_GROUP = (triton.jit(each) for each in (_write, _quantise_row, _quantise_group))


def write_pages(both: Any, pages: Any, slots: Any, scale: Any) -> None:
    """``both``: new keys, then new values; ``pages``: blocks of 16 keys and 16 values each."""
    rows, row = both.shape[1], both.shape[2] * both.shape[3]
    warps = min(max(row // 512, 1), 8)
    WRITE[(rows,)](both, pages, slots, scale, rows, row, triton.next_power_of_2(row), num_warps=warps)


def quantise_rows(source: Any, target: Any, scales: Any) -> None:
    """A scale a token."""
    rows, width = source.shape
    block = min(triton.next_power_of_2(width), 4096)
    QUANTISE_ROW[(rows,)](source, target, scales, width, block, num_warps=8)


def quantise_groups(source: Any, target: Any, scales: Any, group: int) -> None:
    """A scale for each group of neighbours of a token."""
    QUANTISE_GROUP[(source.numel() // group,)](source, target, scales, group, num_warps=1)
