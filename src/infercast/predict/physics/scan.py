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
    """Share of L2 that holds what one kernel leaves to the next."""


TRITON, FLASHINFER, FLASHKDA, CUTE = "triton", "flashinfer", "flashkda", "cute"
LIBRARIES: dict[tuple[str, str], Library] = {
    ("gdn", TRITON): Library(39000, 490, 2000, 2700, 0, 15800, 176, 0.65, 1.55),
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
        self.per_head = op.heads / gpu.sms / gpu.boost_clock
        self.scale = op.chunk * op.key_dim * op.value_dim / UNIT
        self.dram_rate, self.l2_rate = gpu.dram_bandwidth * library.dram, gpu.l2_bandwidth * 0.7
        self.cache_bytes = gpu.l2_bytes * library.cache
        self.prepared, self.passed, self.per_chunk, self.kept = _bytes_of(op, self.name)

    def physics(self, batch: Lengths, *, engine: bool = False) -> Physics:
        """Batches of prompts; in an ``engine`` they take as long as in a table."""
        del engine
        a, x, op, library = self, batch.x, self.op, self.library
        queries = batch.queries
        chunks = x.ceil(queries / op.chunk)
        tokens, all_chunks, sequences = batch.total(queries), batch.total(chunks), batch.total((queries > 0) * 1.0)
        longest, row = batch.longest(chunks), batch.longest(x.smaller(queries, op.chunk))
        sequences = x.larger(sequences, 1.0)
        blocks = sequences * op.heads
        rounds = x.ceil(blocks / a.gpu.sms)
        serial_bytes = tokens * a.passed + all_chunks * a.per_chunk / 2.0
        parallel_bytes = tokens * a.prepared + all_chunks * a.per_chunk / 2.0
        state_bytes = sequences * a.kept
        unit = a.cycle * a.scale
        terms = {
            "launch": x.like(tokens, library.launch * a.cycle),
            "row": row * library.row * a.cycle,
            "chain": (longest * library.latency + library.start) * unit,
            "rounds": rounds * (all_chunks / sequences * library.busy + library.start) * unit,
            "parallel": (all_chunks * library.chunk * a.scale + tokens * library.token)
            * op.heads
            / a.gpu.sms
            * a.cycle,
            "dram": a.moving(parallel_bytes, x),
            "states": a.moving(serial_bytes + state_bytes, x),
        }
        within = x.soft_max(OVERLAP, terms["parallel"] + 1e-12, terms["dram"])
        # The longest sequence bounds a batch as rounds of average ones do: equal ones are both.
        onwards = x.soft_max(OVERLAP, x.larger(terms["chain"], terms["rounds"]), terms["states"])
        seconds = terms["launch"] + terms["row"] + within + onwards
        moved = parallel_bytes + serial_bytes + state_bytes
        features = [
            *x.logs(sequences, batch.longest(queries), tokens / sequences),
            *x.logs(op.heads + 0.0 * tokens, op.key_heads + 0.0 * tokens),
            *x.logs(tokens * op.heads, seconds),
            *x.logs(*[term / seconds for term in terms.values()]),
            x.log2(blocks / a.gpu.sms),
            x.fill(blocks, a.gpu.sms),
            x.log2(all_chunks * op.heads / a.gpu.sms),
            x.fill(all_chunks * op.heads, a.gpu.sms),
            tokens / x.larger(all_chunks * op.chunk, 1.0),
            x.log2(moved / a.gpu.l2_bytes),
        ]
        return Physics(seconds, terms, x.columns(*features))

    def moving(self, moved: Number, x: Kit) -> Number:
        """Seconds of bytes that one kernel leaves to another."""
        miss = x.miss_share(moved, self.cache_bytes, CLIFF)
        return moved * (miss / self.dram_rate + (1.0 - miss) / self.l2_rate)


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
