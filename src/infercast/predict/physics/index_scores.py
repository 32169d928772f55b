"""Scores of a lightning indexer: every new token against every index key of its sequence.

Prompts run on tiles of ``heads x queries`` rows against 256 keys (DeepGEMM's persistent kernel, or Triton's for scores
in bf16). Thread blocks of a few queries each walk through all keys in their reach, so a chunk of few queries behind a
long prefix leaves most SMs idle. Sequences that decode read their keys from blocks; the walk is cut into equal parts
over all SMs, so that memory or the products of padded rows bound it.
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.hardware import Gpu
from infercast.ops.dtypes import tensor_rate_of
from infercast.ops.sparse import IndexScores
from infercast.predict.physics.attention_batch import Lengths
from infercast.predict.physics.either import Plain
from infercast.predict.physics.sparse_batch import DECODE, entries_of, pairs_of, phase_of
from infercast.predict.physics.terms import Physics

FEATURES = (
    "log_sequences",
    "log_queries",
    "log_mean_keys",
    "log_longest_keys",
    "log_mean_queries",
    "log_heads",
    "compress",
    "log_blocks_per_sm",
    "fill",
    "tensor_share",
    "longest_share",
    "dram_share",
    "launch_share",
    "log_bytes_over_l2",
    "log_microseconds",
)
ROWS, KEYS = 128.0, 256.0
"""Rows (queries times heads) and keys of a tile."""


class Constants(NamedTuple):
    """Fitted on H100, H200 and L40S and rounded."""

    launch: float
    """Seconds of a launch that scores next to nothing."""
    share: float
    """Of an SM's rate that products and the sum over heads reach together."""
    tile: float
    """Seconds of a tile besides."""
    block: float
    """Seconds to start a thread block."""
    dram: float = 0.8
    overlap: float = 4.0


# By format and phase: DeepGEMM's two kernels (fp8), Triton's (bf16).
KERNELS = {
    ("fp8", "prompt"): Constants(2.8e-6, 0.88, 0.55e-6, 0.8e-6, 0.49),
    ("fp8", "decode"): Constants(4.25e-6, 0.46, 0.0, 0.0),
    ("bf16", "prompt"): Constants(2.0e-6, 0.275, 0.0, 0.0),
    ("bf16", "decode"): Constants(1.2e-6, 0.77, 0.0, 0.0, 0.92),
}


class Scoring:
    """Scores of one indexer on one GPU, of prompts or of sequences that decode."""

    def __init__(self, op: IndexScores, gpu: Gpu) -> None:
        self.op, self.gpu, self.phase = op, gpu, phase_of(op)
        self.kernel = kernel = KERNELS["fp8" if op.dtype != "bf16" else "bf16", self.phase]
        rate = gpu.dense_flops(tensor_rate_of(op.dtype)) / gpu.sms * kernel.share
        self.together = max(1.0, ROWS // op.heads) if self.phase != DECODE else 1.0
        """Queries of a tile."""
        rows = max(64.0, self.together * op.heads)
        self.tile_seconds = 2.0 * rows * op.head_dim * KEYS / rate + kernel.tile
        self.sizes = Plain.log2(op.heads), float(op.compress)

    def physics(self, batch: Lengths, *, engine: bool = False) -> Physics:
        """One launch; in an ``engine`` nothing of the index is in L2."""
        a, x, op, gpu, kernel = self, batch.x, self.op, self.gpu, self.kernel
        tokens, pairs = batch.total(batch.queries), batch.total(pairs_of(batch, op.compress))
        entries = entries_of(batch, op.compress)
        # A thread block of more queries than a sequence has walks through the keys of several.
        spans = x.larger(a.together / x.larger(batch.queries, 1.0), 1.0)
        mean = pairs_of(batch, op.compress) / x.larger(batch.queries, 1.0)
        blocks_each = x.larger(batch.queries / a.together, 1.0) / spans
        tiles = batch.total(blocks_each * (spans * mean / KEYS + 0.5))
        blocks = x.larger(batch.total(blocks_each), 1.0)
        longest = batch.longest(x.ceil(x.smaller(spans, batch.each(batch.size)) * entries / KEYS))
        if a.phase == DECODE:
            longest = tiles / gpu.sms  # cut into equal parts
        moved = batch.total(entries) * op.entry_bytes + tokens * op.heads * (op.head_dim + 4.0) + 4.0 * pairs
        cold = x.like(moved, 1.0) if engine else x.miss_share(moved, gpu.l2_bytes * 0.6, 3.0)
        terms = {
            "tensor": tiles / gpu.sms * a.tile_seconds,
            "longest": longest * a.tile_seconds,
            "dram": moved * (cold / (gpu.dram_bandwidth * kernel.dram) + (1.0 - cold) / (gpu.l2_bandwidth * 0.5)),
            "launch": x.like(moved, kernel.launch) + kernel.block * x.smaller(blocks / gpu.sms, 1.0),
        }
        busy = [terms[name] + 1e-12 for name in ("tensor", "longest", "dram")]
        seconds = terms["launch"] + x.soft_max(kernel.overlap, *busy)
        size = batch.size
        features = x.columns(
            *x.logs(size, tokens, pairs / x.larger(tokens, 1.0), batch.longest(batch.keys), tokens / size),
            *a.sizes,
            x.log2(blocks / gpu.sms),
            x.fill(blocks, gpu.sms),
            *[terms[name] / seconds for name in ("tensor", "longest", "dram", "launch")],
            *x.logs(moved / gpu.l2_bytes, seconds * 1e6),
        )
        return Physics(seconds, terms, features)
