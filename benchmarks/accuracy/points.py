"""Measured kernels as the baselines see them: shape, work, thread blocks and the seconds each pipe would need.

Tables do not say which kernel ran, so tiles are guessed by one rule: the fewest rows that hold ``m``, 128 columns.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.hardware import load_gpu
from infercast.lab.fit.samples import group_hashes, key_of
from infercast.lab.fit.tables import LEFT_OUT, Rows
from infercast.ops import Attention, Collective, Gemm, MoE
from infercast.ops.op import tensor_rate_of
from infercast.predict.roofline import Roofline
from training.tables import FILES, read_table

Array = npt.NDArray[Any]
Kernel = tuple[str, str]
"""(engine, variant): kernels that ours learns apart from each other."""

TILE_ROWS, TILE_COLUMNS, QUERY_TILE = (16, 32, 64, 128), 128, 128
CATEGORY = 16.0
"""Octaves between two values of what is not a size: no neighbour is looked for on the other side."""
SERVED = 512
"""As in `benchmarks/training/evaluate.py`: GEMM figures are over n and k of at least this."""


@dataclass(frozen=True)
class Work:
    """What a family's kernels are asked for, row by row."""

    shape: Array
    """Sizes in octaves, one column each."""
    config: Array
    """What decides which kernel of a library runs, as far as a table tells; one column each."""
    length: Array
    """The loop that a thread block runs: k, or keys."""
    blocks: Array
    flops: Array
    """With the padding of whole tiles."""


@dataclass(frozen=True)
class Points:
    """Rows of one GPU and one kernel. Pipes are in seconds at the datasheet's rates."""

    shape: Array
    config: Array
    length: Array
    waves: Array
    """Thread blocks for each multiprocessor; bytes for collectives."""
    tensor: Array
    special: Array
    moved: Array
    """DRAM, or the links for collectives."""
    plain: Array
    """max(FLOP / peak, bytes / bandwidth), without padding, rounds or launch."""
    wave: Array
    """The roofline of `infercast --predictor roofline`: whole rounds and a launch floor."""
    bytes: Array
    seconds: Array
    group: Array
    served: Array
    """GEMM: whether models are made of such shapes; all rows elsewhere."""

    def part(self, chosen: Array) -> "Points":
        return Points(*(getattr(self, each.name)[chosen] for each in fields(self)))

    @property
    def attainable(self) -> Array:
        """The busiest pipe, with padding."""
        return np.maximum(np.maximum(self.tensor, self.special), self.moved)


def join(parts: Sequence[Points]) -> Points:
    return Points(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Points)))


def read_points(folder: Path, family: str, gpus: Sequence[str]) -> dict[str, dict[Kernel, Points]]:
    """All rows of a family by GPU and kernel, in the order in which ours reads them."""
    parts: dict[tuple[str, Kernel], list[Points]] = defaultdict(list)
    for rows in read_table(folder / FILES[family], family):
        if rows.engine not in LEFT_OUT and rows.gpu in gpus:
            parts[rows.gpu, (rows.engine, key_of(rows)[3])].append(points_of(rows))
    found: dict[str, dict[Kernel, Points]] = defaultdict(dict)
    for (gpu, kernel), several in parts.items():
        found[gpu][kernel] = join(several)
    return dict(found)


def points_of(rows: Rows) -> Points:
    gpu, op, count = load_gpu(rows.gpu), rows.op, rows.seconds.size
    work = _WORK[type(op)](op)
    peak = gpu.dense_flops(tensor_rate_of(op.compute_dtype))
    if rows.family == "collective":
        moved, waves = op.link_bytes / (gpu.nvlink_bandwidth or gpu.pcie_bandwidth), work.blocks
    else:
        moved, waves = (op.bytes_read + op.bytes_written) / gpu.dram_bandwidth, work.blocks / gpu.sms
    exponentials = getattr(op, "exponentials", 0.0)
    served = (op.n >= SERVED) & (op.k >= SERVED) if rows.family == "gemm" else True

    def column(values: Any) -> Array:
        return np.broadcast_to(np.asarray(values, dtype=np.float64), count)

    return Points(
        shape=work.shape,
        config=work.config,
        length=column(work.length),
        waves=column(waves),
        tensor=column(work.flops / peak),
        special=column(exponentials / gpu.special_rate),
        moved=column(moved),
        plain=np.maximum(column(op.flops / peak), column(moved)),
        wave=column(Roofline().seconds(op, gpu)),
        bytes=column(op.bytes_read + op.bytes_written),
        seconds=rows.seconds,
        group=group_hashes(rows),
        served=np.broadcast_to(served, count),
    )


def _columns(*values: Any) -> Array:
    return np.stack(np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values)), axis=-1)


def _tile_rows(rows: Any) -> Array:
    """The fewest rows of the menu that hold all, or the most there are."""
    number = np.minimum(np.searchsorted(TILE_ROWS, rows), len(TILE_ROWS) - 1)
    return np.asarray(np.asarray(TILE_ROWS)[number])


def _gemm(op: Gemm) -> Work:
    m, n, k = (np.asarray(size) for size in (op.m, op.n, op.k))
    rows = _tile_rows(m)
    blocks = np.ceil(m / rows) * np.ceil(n / TILE_COLUMNS)
    return Work(np.log2(_columns(m, n, k)), _columns(rows), k, blocks, 2.0 * blocks * rows * TILE_COLUMNS * k)


def _attention(op: Attention) -> Work:
    batch, queries, keys = (np.ravel(each) for each in (op.sequences, op.queries, op.keys))
    decoding = int(queries.max(initial=1)) == 1
    # A decode block serves the query heads of one KV head; a prefill block serves one head's tile of queries.
    blocks = batch * op.kv_heads if decoding else batch * op.heads * np.ceil(queries / QUERY_TILE)
    kinds = np.array([op.dtype == "fp8", op.kv_dtype == "fp8", np.log2(max(op.window, 1))])
    shape = _columns(*np.log2([op.heads, op.kv_heads, op.head_dim]), *(CATEGORY * kinds), np.log2(batch), np.log2(keys))
    shared_heads = np.ceil(np.log2(op.heads / op.kv_heads))
    config = _columns(op.head_dim, *kinds, shared_heads if decoding else 0.0, np.zeros(batch.size))
    return Work(shape, config, keys, blocks, np.asarray(op.flops))


def _moe(op: MoE) -> Work:
    tokens = np.asarray(op.tokens)
    hit = np.maximum(op.experts_hit, 1e-9)
    rows = _tile_rows(op.routed_rows / hit)
    tiles = hit * np.ceil(op.routed_rows / hit / rows)
    law = op.routing.partition("/")[0]
    exponent = float(law.removeprefix("power_law_")) if law.startswith("power_law_") else 0.0
    sizes = np.log2([op.hidden, op.inter, op.experts, op.topk, op.num_local])
    shape = _columns(*sizes, CATEGORY * op.gated, CATEGORY * exponent, np.log2(tokens))
    flops = 2.0 * op.matrices * op.hidden * op.inter * tiles * rows
    blocks = tiles * np.ceil(op.inter / TILE_COLUMNS)
    return Work(shape, _columns(rows, exponent, op.gated), np.full(tokens.size, op.hidden), blocks, flops)


def _collective(op: Collective) -> Work:
    size = np.asarray(op.message_bytes, dtype=np.float64)
    kind = float(("all_reduce", "all_gather", "reduce_scatter", "all_to_all").index(op.kind))
    shape = _columns(CATEGORY * kind, CATEGORY * np.log2(op.gpus), np.log2(size))
    return Work(shape, _columns(kind, op.gpus, np.zeros(size.size)), np.ones(size.size), size, np.zeros(size.size))


_WORK: dict[type, Callable[[Any], Work]] = {
    Gemm: _gemm,
    Attention: _attention,
    MoE: _moe,
    Collective: _collective,
}
