"""Triton kernels of our own: attention in one pass, KV writes into pages, and fp8 quantisation of rows."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

# Attention in plain Triton: one pass over the keys with a running maximum. Sequences that decode cut their keys into
# parts, which a second kernel adds up, as engines' Triton kernels do.

LARGEST_GROUP = 16  # query heads of a key-value head are padded to this number: the least that a product takes
PARTS = 8


def _prompt(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    out: tl.tensor,
    length: tl.tensor,
    scale: tl.tensor,
    group: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    """A tile of queries of one head against the keys that it may see. Heads lie one after the other."""
    tile, head = tl.program_id(0), tl.program_id(1)
    place, along = tile * rows + tl.arange(0, rows), tl.arange(0, width)
    start = head.to(tl.int64) * length * width
    shared = (head // group).to(tl.int64) * length * width
    inside = place[:, None] < length
    queries = tl.load(query + start + place[:, None] * width + along[None, :], mask=inside, other=0.0)
    most = tl.full((rows,), -1e30, dtype=tl.float32)
    total = tl.zeros((rows,), dtype=tl.float32)
    found = tl.zeros((rows, width), dtype=tl.float32)
    for first in range(0, tl.minimum((tile + 1) * rows, length), columns):
        other = first + tl.arange(0, columns)
        known = other < length
        keys = tl.load(key + shared + other[None, :] * width + along[:, None], mask=known[None, :], other=0.0)
        scores = tl.dot(queries, keys.to(queries.dtype)) * scale
        scores = tl.where((other[None, :] <= place[:, None]) & known[None, :], scores, -1e30)
        higher = tl.maximum(most, tl.max(scores, axis=1))
        shares, kept = tl.exp2(scores - higher[:, None]), tl.exp2(most - higher)
        values = tl.load(value + shared + other[:, None] * width + along[None, :], mask=known[:, None], other=0.0)
        total = total * kept + tl.sum(shares, axis=1)
        found = found * kept[:, None] + tl.dot(shares.to(queries.dtype), values.to(queries.dtype))
        most = higher
    found = (found / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + start + place[:, None] * width + along[None, :], found, mask=inside)


def _part(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    sums: tl.tensor,
    tops: tl.tensor,
    length: tl.tensor,
    each: tl.tensor,
    scale: tl.tensor,
    group: tl.constexpr,
    padded: tl.constexpr,
    width: tl.constexpr,
    columns: tl.constexpr,
    parts: tl.constexpr,
) -> None:
    head, part = tl.program_id(0), tl.program_id(1)
    own, along = tl.arange(0, padded), tl.arange(0, width)
    mine = own[:, None] < group
    queries = tl.load(query + (head * group + own[:, None]) * width + along[None, :], mask=mine, other=0.0)
    start = head.to(tl.int64) * length * width
    most = tl.full((padded,), -1e30, dtype=tl.float32)
    total = tl.zeros((padded,), dtype=tl.float32)
    found = tl.zeros((padded, width), dtype=tl.float32)
    last = tl.minimum((part + 1) * each, length)
    for first in range(part * each, last, columns):
        other = first + tl.arange(0, columns)
        known = other < last
        keys = tl.load(key + start + other[None, :] * width + along[:, None], mask=known[None, :], other=0.0)
        scores = tl.dot(queries, keys.to(queries.dtype)) * scale
        scores = tl.where(known[None, :], scores, -1e30)
        higher = tl.maximum(most, tl.max(scores, axis=1))
        shares, kept = tl.exp2(scores - higher[:, None]), tl.exp2(most - higher)
        values = tl.load(value + start + other[:, None] * width + along[None, :], mask=known[:, None], other=0.0)
        total = total * kept + tl.sum(shares, axis=1)
        found = found * kept[:, None] + tl.dot(shares.to(queries.dtype), values.to(queries.dtype))
        most = higher
    row = (head * group + own) * parts + part
    tl.store(sums + row[:, None] * width + along[None, :], found / tl.maximum(total, 1e-30)[:, None], mask=mine)
    tl.store(tops + row, most + tl.log2(tl.maximum(total, 1e-30)), mask=own < group)


def _add_up(sums: tl.tensor, tops: tl.tensor, out: tl.tensor, width: tl.constexpr, parts: tl.constexpr) -> None:
    head, part, along = tl.program_id(0), tl.arange(0, parts), tl.arange(0, width)
    top = tl.load(tops + head * parts + part)
    share = tl.exp2(top - tl.max(top, axis=0))
    found = tl.load(sums + (head * parts + part[:, None]) * width + along[None, :])
    whole = tl.sum(found * share[:, None], axis=0) / tl.sum(share, axis=0)
    tl.store(out + head * width + along, whole.to(out.dtype.element_ty))


PROMPT, PART, ADD_UP = (triton.jit(each) for each in (_prompt, _part, _add_up))


def prompts(query: Any, key: Any, value: Any, out: Any) -> None:
    """Queries and keys as (sequences, heads, tokens, width)."""
    batch, heads, length, width = query.shape
    rows, columns = (128, 64) if width <= 128 else (64, 32)
    grid = (triton.cdiv(length, rows), batch * heads)
    scale = 1.4427 * width**-0.5
    group = heads // key.shape[1]
    warps = 8 if rows == 128 else 4
    PROMPT[grid](query, key, value, out, length, scale, group, width, rows, columns, num_warps=warps)


class Decoder:
    def __init__(self, query: Any, key: Any, value: Any, out: Any) -> None:
        self._tensors = query, key, value
        self._out, (batch, heads, width) = out, query.shape
        self._sums = torch.empty(batch * heads, PARTS, width, dtype=torch.float32, device=query.device)
        self._tops = torch.empty(batch * heads, PARTS, dtype=torch.float32, device=query.device)

    def __call__(self) -> None:
        query, key, _ = self._tensors
        (batch, heads, width), (_, kv_heads, length, _) = query.shape, key.shape
        group = heads // kv_heads
        columns = 64 if width <= 128 else 32
        each = triton.cdiv(triton.cdiv(length, PARTS), columns) * columns
        padded = max(LARGEST_GROUP, triton.next_power_of_2(group))
        scale = 1.4427 * width**-0.5
        PART[(batch * kv_heads, PARTS)](
            *self._tensors,
            self._sums,
            self._tops,
            length,
            each,
            scale,
            group,
            padded,
            width,
            columns,
            PARTS,
            num_warps=4,
        )
        ADD_UP[(batch * heads,)](self._sums, self._tops, self._out, width, PARTS, num_warps=4)


# Plain versions of kernels that move rows, so that a GPU without an engine can be measured: a program a token or a
# group.


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
    rows, width = source.shape
    block = min(triton.next_power_of_2(width), 4096)
    QUANTISE_ROW[(rows,)](source, target, scales, width, block, num_warps=8)


def quantise_groups(source: Any, target: Any, scales: Any, group: int) -> None:
    QUANTISE_GROUP[(source.numel() // group,)](source, target, scales, group, num_warps=1)
