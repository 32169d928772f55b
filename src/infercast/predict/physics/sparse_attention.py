"""Attention over chosen keys: latent heads against gathered entries (DSA, CSA, HCA), or heads against blocks (MSA).

A thread block takes one new token and up to 64 of its heads (or one key-value head with its group) and walks through
the places that were chosen for it, 64 keys at a time: what it gathers comes through L2, what it multiplies fills a
whole tile. Kernels that are told how many of the places are taken stop there; others walk through all of them. Kernels
for decoding cut the walk over idle SMs and add the parts up.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from infercast.hardware import Gpu
from infercast.hardware.kernels import facts_of
from infercast.ops.dtypes import bytes_of, tensor_rate_of
from infercast.ops.sparse import SparseAttention
from infercast.predict.physics.attention_batch import Lengths
from infercast.predict.physics.either import Plain
from infercast.predict.physics.sparse_batch import DECODE, entries_of, pairs_of, phase_of
from infercast.predict.physics.terms import Physics

FEATURES = (
    "log_sequences",
    "log_queries",
    "log_mean_queries",
    "log_mean_keys",
    "log_longest_keys",
    "log_places",
    "log_heads",
    "log_kv_heads",
    "log_width",
    "bytes_per_key",
    "compress",
    "narrow",
    "log_rounds",
    "fill",
    "tensor_share",
    "gather_share",
    "blocks_share",
    "dram_share",
    "launch_share",
    "log_bytes_over_l2",
    "log_microseconds",
)
CUTTING, CUTTING_FEW, FEW_HEADS = "flash-3", "trtllm", 16
"""Attention kernels that cut the walk of a decoding sequence over idle multiprocessors, those that an engine takes for
it where a GPU has few heads (vLLM 0.25, platforms/cuda.py: FlashInfer with TensorRT-LLM's), and how many that is."""
HEADS, KEYS = 64.0, 64.0
"""Rows and keys of a tile."""


class Constants(NamedTuple):
    """Fitted on H100 and H200 and rounded; clocks are an SM's."""

    launch: float = 3.3e-6
    start: float = 1.0e-6
    """Seconds of a thread block besides its walk."""
    share: float = 0.66
    """Of an SM's rate that the two products of a tile reach."""
    narrow_share: float = 0.40
    """The same where what is gathered must be widened first."""
    gather: float = 34.0
    """Bytes a clock that one SM gathers."""
    dram: float = 0.75
    combine: float = 3.0e-6
    overlap: float = 3.0


LATENT = Constants()
_COMPRESSED = Constants(launch=6.8e-6, start=5.8e-6, narrow_share=0.61, gather=100.0, combine=0.0)
KERNELS = {
    ("msa", "prompt"): Constants(launch=1.0e-6, start=0.0, share=1.0, narrow_share=1.0, gather=38.0),
    ("msa", "decode"): Constants(launch=1.2e-6, start=2.7e-6, share=0.30, narrow_share=0.30, gather=50.0, combine=0.0),
    ("csa", "prompt"): _COMPRESSED,
    ("csa", "decode"): _COMPRESSED,
    ("hca", "prompt"): _COMPRESSED,
    ("hca", "decode"): _COMPRESSED,
}


class Attending:
    """Sparse attention of one layout of heads on one GPU."""

    def __init__(self, op: SparseAttention, gpu: Gpu) -> None:
        self.op, self.gpu, self.phase = op, gpu, phase_of(op)
        self.kernel = kernel = KERNELS.get((op.kind, self.phase), LATENT)
        self.narrow = bytes_of(op.kv_dtype) < bytes_of(op.dtype)
        group = op.heads / op.kv_heads
        self.rows = HEADS if op.kv_heads == 1 else max(16.0, group)
        """Query rows of a tile."""
        self.blocks = ceil(group / HEADS) * op.kv_heads
        """Thread blocks of one token."""
        rate = (
            gpu.dense_flops(tensor_rate_of(op.dtype)) / gpu.sms * (kernel.narrow_share if self.narrow else kernel.share)
        )
        self.tile_tensor = 2.0 * self.rows * KEYS * (op.head_dim + op.value_dim) / rate
        key_bytes = op.bytes_per_key / op.kv_heads
        self.tile_gather = KEYS * key_bytes / (kernel.gather * gpu.boost_clock)
        # FlashMLA's kernel for a packed cache is not told how many places are taken.
        self.walks_all = op.kind == "mla" and self.narrow
        # FlashMLA's kernel for a bf16 cache is that of prompts; where FlashAttention has one, it cuts the walk.
        attention = facts_of(gpu).attention
        few = attention == CUTTING_FEW and op.heads <= FEW_HEADS
        cuts = self.narrow or op.kind != "mla" or attention == CUTTING or few
        self.is_cut = self.phase == DECODE and cuts
        self.io_bytes = bytes_of(op.dtype) * op.heads * (op.head_dim + op.value_dim)
        self.sizes = (
            *Plain.logs(op.heads, op.kv_heads, op.head_dim + op.value_dim),
            op.bytes_per_key,
            float(op.compress),
            float(self.narrow),
        )

    def physics(self, batch: Lengths, *, engine: bool = False) -> Physics:
        """One launch; in an ``engine`` nothing of the cache is in L2."""
        a, x, op, gpu, kernel = self, batch.x, self.op, self.gpu, self.kernel
        tokens = batch.total(batch.queries)
        chosen = pairs_of(batch, op.compress, op.selected)
        if op.window:
            chosen = chosen + pairs_of(batch, 1, op.window)
        places = batch.total(chosen) / x.larger(tokens, 1.0)
        if a.walks_all:
            places = x.like(places, float(op.selected + op.window))
        tiles = x.ceil(places / KEYS)
        blocks = x.larger(tokens * a.blocks, 1.0)
        rounds = blocks / gpu.sms
        whole = x.larger(1.0, rounds + 0.5 * (x.ceil(rounds) - rounds))
        # What is cut is spread over the chip, down to one tile a block.
        walks = x.larger(rounds, 1.0 / x.larger(tiles, 1.0)) if a.is_cut else whole
        entries = entries_of(batch, op.compress)
        reached = x.smaller(entries, batch.queries * op.selected) if op.selected else entries
        reached = reached + x.smaller(batch.keys, op.window + batch.queries - 1.0) if op.window else reached
        distinct = batch.total(reached) * op.bytes_per_key + tokens * a.io_bytes
        cold = x.like(distinct, 1.0) if engine else x.miss_share(distinct, gpu.l2_bytes * 0.6, 3.0)
        terms = {
            "tensor": walks * tiles * a.tile_tensor,
            "gather": walks * tiles * a.tile_gather,
            "blocks": whole * kernel.start,
            "dram": distinct * (cold / (gpu.dram_bandwidth * kernel.dram) + (1.0 - cold) / (gpu.l2_bandwidth * 0.5)),
            "launch": x.like(distinct, kernel.launch + (kernel.combine if a.is_cut else 0.0)),
        }
        pipes = [terms[name] + 1e-12 for name in ("tensor", "gather", "dram")]
        seconds = terms["launch"] + terms["blocks"] + x.soft_max(kernel.overlap, *pipes)
        mean_keys = batch.total(batch.keys) / batch.size
        features = x.columns(
            *x.logs(batch.size, tokens, tokens / batch.size, mean_keys, batch.longest(batch.keys), places),
            *a.sizes,
            x.log2(rounds),
            x.fill(blocks, gpu.sms),
            *[terms[name] / seconds for name in ("tensor", "gather", "blocks", "dram", "launch")],
            *x.logs(distinct / gpu.l2_bytes, seconds * 1e6),
        )
        return Physics(seconds, terms, features)
