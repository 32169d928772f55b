"""Scans over the prompts of recurrent layers: chunks side by side where they can be, one after another where not.

A library does it in one of two ways. Triton's kernels prepare all chunks in parallel (inverses of triangles, products
within a chunk) and pass the state from chunk to chunk in a kernel of its own, with everything between them in memory.
FlashInfer's takes a head of a sequence in one thread block from its first chunk to its last. Either way a sequence
takes at least its chunks one after another, and a batch what all chunks of all heads take on the chip's
multiprocessors in whole rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from infercast.hardware.gpu import Gpu
from infercast.ops.dtypes import bytes_of
from infercast.ops.recurrent import KIMI_DELTA, MAMBA2, Scan
from infercast.predict.physics.attention_batch import Batch, Lengths, Single
from infercast.predict.physics.either import Kit, Number
from infercast.predict.physics.terms import Physics


class Library(NamedTuple):
    """What the kernels of one library take, in cycles for chunks of 64 tokens and states of 128 x 128."""

    launch: float
    """Cycles of all launches together on an empty chip."""
    row: float
    """Of each token of the longest chunk, one after another."""
    latency: float
    """From one chunk of a sequence to its next."""
    busy: float
    """That a multiprocessor spends on a chunk of one head where sequences go one after another ..."""
    start: float
    """... and on starting with one."""
    chunk: float
    """That it spends on a chunk of one head where chunks are independent ..."""
    token: float
    """... and on each of its tokens."""
    dram: float
    """Share of the bandwidth that it reaches."""
    cache: float
    """How many times L2 all kernels together may move before what one leaves to the next is no longer there."""
    tuned: float = 1.0
    """How many times longer independent chunks take in an engine, which tunes its kernels on a single chunk."""


TRITON, FLASHINFER, FLASHKDA, CUTE = "triton", "flashinfer", "flashkda", "cute"
LIBRARIES: dict[tuple[str, str], Library] = {
    ("gdn", TRITON): Library(39000, 490, 2000, 2700, 0, 15800, 176, 0.65, 1.55, tuned=1.3),
    ("kda", TRITON): Library(50000, 660, 2950, 200, 0, 20400, 400, 0.58, 1.67),
    ("mamba2", TRITON): Library(20000, 10, 1500, 0, 0, 8500, 90, 0.8, 0.7),
    ("gdn", FLASHINFER): Library(4500, 0, 5560, 5560, 12300, 0, 0, 0.64, 0.7),
    ("kda", FLASHKDA): Library(19200, 110, 6200, 3400, 16800, 3750, 58, 0.9, 0.3),
    ("mamba2", CUTE): Library(13400, 20, 20400, 20400, 5000, 0, 0, 0.18, 0.57),
}
FUSED = (FLASHINFER, CUTE)
"""Libraries whose kernel keeps everything between chunks on the chip."""
CLIFF = 4.0
OVERLAP = 4.0
UNIT = 64.0 * 128.0 * 128.0

SCAN_FEATURES: tuple[str, ...] = (
    "log_sequences",
    "log_longest",
    "log_mean",
    "log_heads",
    "log_key_heads",
    "log_tokens_times_heads",
    "log_seconds",
    "launch_share",
    "row_share",
    "chain_share",
    "rounds_share",
    "parallel_share",
    "dram_share",
    "state_share",
    "log_blocks_per_sm",
    "block_fill",
    "log_chunks_per_sm",
    "chunk_fill",
    "row_fill",
    "log_bytes_over_l2",
)


def batch_of(op: Scan) -> Batch:
    """The lengths of an operator as two-dimensional floats."""
    queries, counts = np.broadcast_arrays(op.queries, op.sequences)
    width = queries.shape[-1] if queries.ndim else 1
    lengths, counts = (np.asarray(part, dtype=np.float64).reshape(-1, width) for part in (queries, counts))
    return Batch(lengths, lengths, counts)


def single_of(op: Scan) -> Single | None:
    """The batch of an operator, if it is one of equal sequences."""
    if op.queries.size != 1 or (not isinstance(op.sequences, int) and op.sequences.size != 1):
        return None
    counts = op.sequences if isinstance(op.sequences, int) else op.sequences.item()
    length = float(op.queries.item())
    return Single(length, length, float(counts))


class Scanning:
    """What batches of one layout of heads on one GPU share."""

    def __init__(self, op: Scan, gpu: Gpu) -> None:
        self.op, self.gpu = op, gpu
        self.name = op.kernel or TRITON
        self.library = library = LIBRARIES.get((op.kind, self.name), LIBRARIES[op.kind, TRITON])
        self.cycle = 1.0 / gpu.boost_clock
        self.scale = op.chunk * op.key_dim * op.value_dim / UNIT
        self.dram_rate, self.l2_rate = gpu.dram_bandwidth * library.dram, gpu.l2_bandwidth * 0.7
        self.cache_bytes = gpu.l2_bytes * library.cache
        self.prepared, self.passed, self.per_chunk, self.kept = _bytes_of(op, self.name)

    def physics(self, batch: Lengths, *, engine: bool = False) -> Physics:
        """Batches of prompts; in an ``engine`` kernels were tuned on a single chunk."""
        x, sizes = batch.x, _sizes(self, batch)
        seconds, terms = _terms(self, sizes, 1.0, x)
        features = x.columns(*_features(self, batch, sizes, terms, seconds))
        if engine and self.library.tuned != 1.0:
            seconds, terms = _terms(self, sizes, self.library.tuned, x)
        return Physics(seconds, terms, features)

    def moving(self, moved: Number, x: Kit) -> Number:
        """Seconds of bytes that one kernel leaves to another."""
        miss = x.miss_share(moved, self.cache_bytes, CLIFF)
        return moved * (miss / self.dram_rate + (1.0 - miss) / self.l2_rate)


class _Sizes(NamedTuple):
    """What a batch comes to."""

    tokens: Number
    sequences: Number
    chunks: Number
    """Of all sequences ..."""
    longest: Number
    """... and of the longest."""
    row: Number
    """Tokens of the longest chunk."""
    blocks: Number
    """Heads of all sequences."""
    parallel_bytes: Number
    serial_bytes: Number
    """Between kernels with all chunks side by side, and in the pass over chunks."""


def _sizes(a: Scanning, batch: Lengths) -> _Sizes:
    x, queries, chunk = batch.x, batch.queries, a.op.chunk
    cut = x.ceil(queries / chunk)
    tokens, chunks = batch.total(queries), batch.total(cut)
    sequences = x.larger(batch.total((queries > 0) * 1.0), 1.0)
    return _Sizes(
        tokens,
        sequences,
        chunks,
        batch.longest(cut),
        batch.longest(x.smaller(queries, chunk)),
        sequences * a.op.heads,
        tokens * a.prepared + chunks * a.per_chunk / 2.0,
        tokens * a.passed + chunks * a.per_chunk / 2.0 + sequences * a.kept,
    )


def _terms(a: Scanning, of: _Sizes, slower: float, x: Kit) -> tuple[Number, dict[str, Number]]:
    """Seconds in all, and of each part; independent chunks take so many times longer than in a table."""
    library, unit, rounds = a.library, a.cycle * a.scale, x.ceil(of.blocks / a.gpu.sms)
    independent = of.chunks * library.chunk * a.scale + of.tokens * library.token
    terms = {
        "launch": x.like(of.tokens, library.launch * a.cycle),
        "row": of.row * library.row * a.cycle,
        "chain": (of.longest * library.latency + library.start) * unit,
        "rounds": rounds * (of.chunks / of.sequences * library.busy + library.start) * unit,
        "parallel": independent * slower * a.op.heads / a.gpu.sms * a.cycle,
        "dram": a.moving(of.parallel_bytes, x),
        "states": a.moving(of.serial_bytes, x),
    }
    within = x.soft_max(OVERLAP, terms["parallel"] + 1e-12, terms["dram"])
    # The longest sequence bounds a batch as rounds of average ones do: equal ones are both.
    onwards = x.soft_max(OVERLAP, x.larger(terms["chain"], terms["rounds"]), terms["states"])
    return terms["launch"] + terms["row"] + within + onwards, terms


def _features(a: Scanning, batch: Lengths, of: _Sizes, terms: dict[str, Number], seconds: Number) -> list[Number]:
    """The columns of ``SCAN_FEATURES``."""
    x, op, sms = batch.x, a.op, a.gpu.sms
    return [
        *x.logs(of.sequences, batch.longest(batch.queries), of.tokens / of.sequences),
        *x.logs(op.heads + 0.0 * of.tokens, op.key_heads + 0.0 * of.tokens),
        *x.logs(of.tokens * op.heads, seconds),
        *x.logs(*[term / seconds for term in terms.values()]),
        x.log2(of.blocks / sms),
        x.fill(of.blocks, sms),
        x.log2(of.chunks * op.heads / sms),
        x.fill(of.chunks * op.heads, sms),
        of.tokens / x.larger(of.chunks * op.chunk, 1.0),
        x.log2((of.parallel_bytes + of.serial_bytes) / a.gpu.l2_bytes),
    ]


def _bytes_of(op: Scan, library: str) -> tuple[float, float, float, float]:
    """Bytes of a token before and after the pass over chunks and in it, of a chunk's state, and of a sequence's."""
    value = bytes_of(op.dtype)
    keys, values = op.key_heads * op.key_dim * value, op.heads * op.value_dim * value
    state = op.heads * op.key_dim * op.value_dim
    kept = 2.0 * state * bytes_of(op.state_dtype)
    gates = op.heads * 4.0 * (op.key_dim if op.kind == KIMI_DELTA else 1)
    if library in FUSED:
        return 0.0, 2.0 * keys + 2.0 * values + 2.0 * gates, 0.0, kept
    if op.kind == MAMBA2:
        # States of chunks are written, passed on and read in fp32, products of a chunk with itself for each group.
        pairs = 4.0 * op.key_heads * op.chunk
        return 3.0 * keys + 3.0 * values + 2.0 * pairs + 4.0 * gates, 0.0, 16.0 * state, kept
    if library == FLASHKDA:
        widened = op.heads * (2.0 * op.key_dim + op.value_dim) * value
        return 2.0 * keys + values + 2.0 * gates + widened, widened + values, 0.0, kept
    triangles = op.heads * op.chunk * (4.0 + 4.0 + value + value)
    widened = op.heads * (op.key_dim + op.value_dim) * value
    before = triangles + widened + 2.0 * keys + values + 4.0 * gates
    after = 2.0 * keys + 2.0 * values + gates
    return before + after, widened + keys + values + gates, 2.0 * value * state, kept
