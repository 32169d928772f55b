"""Recurrent layers: scans over prompts, state updates while decoding, and short causal convolutions."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Scan, ShortConvolution, StateUpdate
from infercast.ops.mixers import GATED_DELTA, KIMI_DELTA, MAMBA2
from infercast.ops.op import Quantity, bytes_of, tensor_rate_of
from infercast.predict.array_api import Kit, Number, Physics, kit_of
from infercast.predict.families import family as common
from infercast.predict.families.attention_kernels import Lengths, batch_of, single_of
from infercast.predict.identity import KernelProfile

TRITON = "triton"
FLASHINFER, FLASHKDA, CUTE = "flashinfer", "flashkda", "cute"
LIBRARIES = {tuple(name.split()): each for name, each in common.constants("scan").items()}
"""By the kind of layer and the library."""
SCAN_OVERLAP = 4.0


class ScanPhysics:
    """Scans over the prompts of recurrent layers: chunks side by side where they can be, one after another where not.
    Triton's kernels prepare all chunks in parallel and pass the state from chunk to chunk in a kernel of its own, with
    everything between them in memory. FlashInfer's takes a head of a sequence in one thread block from its first chunk
    to its last. Either way a batch takes what all chunks of all heads take in whole rounds.
    """

    def __init__(self, op: Scan, gpu: Gpu) -> None:
        self.op, self.gpu = op, gpu
        self.name = op.kernel or TRITON
        self.library = library = LIBRARIES.get((op.kind, self.name), LIBRARIES[op.kind, TRITON])
        self.cycle = 1.0 / gpu.boost_clock
        self.scale = op.chunk * op.key_dim * op.value_dim / (64.0 * 128.0 * 128.0)
        self.dram_rate, self.l2_rate = gpu.dram_bandwidth * library.dram, gpu.l2_bandwidth * 0.7
        self.cache_bytes = gpu.l2_bytes * library.cache
        self.prepared, self.passed, self.per_chunk, self.kept = _bytes_of(op, self.name)

    def physics(self, batch: Lengths, *, engine: bool = False) -> Physics:
        """Batches of prompts; in an ``engine`` kernels were tuned on a single chunk."""
        x, sizes = batch.x, self._scan_sizes(batch)
        seconds, terms = self._scan_terms(sizes, 1.0, x)
        features = x.columns(*self._scan_features(batch, sizes, terms, seconds))
        if engine and self.library.tuned != 1.0:
            seconds, terms = self._scan_terms(sizes, self.library.tuned, x)
        return Physics(seconds, terms, features)

    def moving(self, moved: Number, x: Kit) -> Number:
        """Seconds of bytes that one kernel leaves to another."""
        miss = x.miss_share(moved, self.cache_bytes, 4.0)
        return moved * (miss / self.dram_rate + (1.0 - miss) / self.l2_rate)

    def _scan_sizes(self, batch: Lengths) -> _ScanSizes:
        x, queries, chunk = batch.x, batch.queries, self.op.chunk
        cut = x.ceil(queries / chunk)
        tokens, chunks = batch.total(queries), batch.total(cut)
        sequences = x.larger(batch.total((queries > 0) * 1.0), 1.0)
        return _ScanSizes(
            tokens, sequences, chunks, batch.longest(cut), batch.longest(x.smaller(queries, chunk)),
            sequences * self.op.heads, tokens * self.prepared + chunks * self.per_chunk / 2.0,
            tokens * self.passed + chunks * self.per_chunk / 2.0 + sequences * self.kept,
        )  # fmt: skip

    def _scan_terms(self, of: _ScanSizes, slower: float, x: Kit) -> tuple[Number, dict[str, Number]]:
        """Seconds in all, and of each part; independent chunks are ``slower`` than in a table."""
        library, unit, rounds = self.library, self.cycle * self.scale, x.ceil(of.blocks / self.gpu.sms)
        independent = of.chunks * library.chunk * self.scale + of.tokens * library.token
        terms = {
            "launch": x.like(of.tokens, library.launch * self.cycle), "row": of.row * library.row * self.cycle,
            "chain": (of.longest * library.latency + library.start) * unit,
            "rounds": rounds * (of.chunks / of.sequences * library.busy + library.start) * unit,
            "parallel": independent * slower * self.op.heads / self.gpu.sms * self.cycle,
            "dram": self.moving(of.parallel_bytes, x), "states": self.moving(of.serial_bytes, x),
        }  # fmt: skip
        within = x.soft_max(SCAN_OVERLAP, terms["parallel"] + 1e-12, terms["dram"])
        # The longest sequence bounds a batch as rounds of average ones do: equal ones are both.
        onwards = x.soft_max(SCAN_OVERLAP, x.larger(terms["chain"], terms["rounds"]), terms["states"])
        return terms["launch"] + terms["row"] + within + onwards, terms

    def _scan_features(self, batch: Lengths, of: _ScanSizes, terms: dict[str, Number], seconds: Number) -> list[Number]:
        x, op, sms = batch.x, self.op, self.gpu.sms
        return [
            *x.logs(of.sequences, batch.longest(batch.queries), of.tokens / of.sequences),
            *x.logs(op.heads + 0.0 * of.tokens, op.key_heads + 0.0 * of.tokens), *x.logs(of.tokens * op.heads, seconds),
            *x.logs(*[term / seconds for term in terms.values()]), x.log2(of.blocks / sms), x.fill(of.blocks, sms),
            x.log2(of.chunks * op.heads / sms), x.fill(of.chunks * op.heads, sms),
            of.tokens / x.larger(of.chunks * op.chunk, 1.0),
            x.log2((of.parallel_bytes + of.serial_bytes) / self.gpu.l2_bytes),
        ]  # fmt: skip


class _ScanSizes(NamedTuple):
    """What a batch comes to."""

    tokens: Number
    sequences: Number
    chunks: Number  # Of all sequences ...
    longest: Number  # ... and of the longest
    row: Number  # Tokens of the longest chunk
    blocks: Number  # Heads of all sequences
    parallel_bytes: Number
    serial_bytes: Number  # Between kernels with all chunks side by side, and in the pass over chunks


def _bytes_of(op: Scan, library: str) -> tuple[float, float, float, float]:
    """Bytes of a token before and after the pass over chunks and in it, of a chunk's state, and of a sequence's."""
    value = bytes_of(op.dtype)
    keys, values = op.key_heads * op.key_dim * value, op.heads * op.value_dim * value
    state = op.heads * op.key_dim * op.value_dim
    kept = 2.0 * state * bytes_of(op.state_dtype)
    gates = op.heads * 4.0 * (op.key_dim if op.kind == KIMI_DELTA else 1)
    if library in (FLASHINFER, CUTE):  # one kernel keeps everything between chunks on the chip
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


CONVOLUTION_KERNELS = common.constants("convolution")


class ConvolutionPhysics:
    """Short causal convolutions: Triton's blocks take 8 tokens, the older CUDA kernel's 512 of a channel."""

    def __init__(self, op: ShortConvolution, gpu: Gpu) -> None:
        phase = "update" if op.update else "prompts"
        kernel = CONVOLUTION_KERNELS.get(f"{op.kernel} {phase}", CONVOLUTION_KERNELS[f"{TRITON} {phase}"])
        self.op, self.gpu, self.kernel = op, gpu, kernel

    def physics(self, size: tuple[Number, Number], *, engine: bool = False) -> Physics:
        """Tokens and their sequences; an ``engine`` takes as long as a table."""
        op, gpu, kernel, (tokens, sequences) = self.op, self.gpu, self.kernel, size
        x, value = kit_of(tokens), bytes_of(op.dtype)
        mean = tokens / x.larger(sequences, 1.0)
        moved = 2.0 * value * op.channels * (tokens + (op.taps - 1) * sequences)
        missed = x.miss_share(moved, gpu.l2_bytes * kernel.cache, kernel.cliff)
        per_sm = op.channels / gpu.sms / gpu.boost_clock
        blocks = sequences * (kernel.block + kernel.span * x.ceil(mean / 512.0))
        terms = {
            "dram": moved * missed / (gpu.dram_bandwidth * kernel.dram),
            "l2": moved / (gpu.l2_bandwidth * kernel.l2),
            "values": (tokens * kernel.value + blocks) * per_sm,
            "launch": (kernel.launch + kernel.row * x.smaller(mean, 8.0)) / gpu.boost_clock,
        }
        seconds = terms["launch"] + x.soft_max(4.0, terms["dram"] + 1e-12, terms["l2"], terms["values"])
        features = x.columns(
            *x.logs(tokens, sequences, mean, op.channels + 0.0 * mean, moved / gpu.l2_bytes),
            *(term / seconds for term in terms.values()),
            x.log2(seconds * 1e6),
        )
        return Physics(seconds, terms, features)


WIDTH = 128.0  # Of keys and values of the states that cycles were fitted on
UPDATE_KERNELS = common.constants("state update")


class StateUpdatePhysics:
    """One new token for each of many recurrent states: a kernel that reads and writes them, and hardly computes. It
    takes a launch and the slowest of three pipes: memory for states that L2 does not hold, L2 for all, and the
    multiprocessors. A table repeats one batch, so that small ones stay in L2; an engine finds none there.
    """

    def __init__(self, op: StateUpdate, gpu: Gpu) -> None:
        self.op, self.gpu, self.kernel = op, gpu, UPDATE_KERNELS[op.kind]

    def physics(self, rows: Number, *, engine: bool = False) -> Physics:
        """By sequences; in an ``engine`` their states are cold."""
        op, gpu, kernel, x = self.op, self.gpu, self.kernel, kit_of(rows)
        one = replace(op, rows=1)
        states, moved = rows * one.state_bytes, rows * (one.bytes_read + one.bytes_written)
        blocks = rows * (op.heads * op.key_dim * op.value_dim / (WIDTH * WIDTH) * (op.key_dim / WIDTH) ** kernel.wide)
        if kernel.tuned and op.value_dim != kernel.tuned:
            blocks = blocks * kernel.untuned
        launch = x.like(moved, kernel.launch / gpu.boost_clock)
        missed = x.miss_share(states, gpu.l2_bytes * kernel.cache, kernel.cliff)

        def taken(share: Number) -> tuple[Number, dict[str, Number]]:
            terms = {
                "dram": moved * share / (gpu.dram_bandwidth * kernel.dram),
                "l2": moved / (gpu.l2_bandwidth * kernel.l2),
                "blocks": blocks / gpu.sms * kernel.block / gpu.boost_clock,
                "launch": launch,
            }
            return launch + x.soft_max(4.0, terms["dram"] + 1e-12, terms["l2"], terms["blocks"]), terms

        seconds, terms = taken(missed)
        features = x.columns(
            *x.logs(rows, op.heads + 0.0 * rows, blocks / gpu.sms), x.fill(rows * op.heads, gpu.sms),
            x.log2(states / gpu.l2_bytes), *(term / seconds for term in terms.values()), x.log2(seconds * 1e6),
        )  # fmt: skip
        if engine:
            seconds, terms = taken(1.0)
        return Physics(seconds, terms, features)


def _named(op: Any, variant: str) -> Any:
    return op if op.kernel else replace(op, kernel=variant.partition("/")[2])


def scan_kernel(op: Scan, gpu: Gpu, profile: KernelProfile) -> str:
    """The library that scans these prompts on this GPU."""
    return op.kernel or profile.scans.get(gpu.kernels, {}).get(op.kind, TRITON)


def _scan_work(op: Scan, batch: Lengths) -> tuple[Quantity, Quantity]:
    """Products that no chunking saves; the states before, which lie in memory."""
    state = op.heads * op.key_dim * op.value_dim
    one = replace(op, queries=np.ones(1, dtype=np.int64), sequences=1)
    return 4.0 * state * batch.total(batch.queries), one.state_bytes * batch.total((batch.queries > 0) * 1.0)


def _scan_ceiling_shape(op: Scan, gpu: Gpu) -> list[Any]:
    sequences = np.maximum(np.ravel(op.num_sequences), 1)
    blocks = np.log2(sequences * op.heads / gpu.sms)
    return [blocks, np.log2(np.maximum(np.ravel(op.most_chunks), 1)), np.log2(np.ravel(op.num_tokens) / sequences)]


_HEADS = ("heads", "key_heads", "key_dim", "value_dim")


def _scan_shape(kind: str, value_dim: int, chunk: int) -> common.Shape:
    """Prompts of one length; one row an element where sizes are arrays."""

    def build(values: common.Values) -> Scan:
        lengths, batch = (each.reshape(-1, 1) for each in np.broadcast_arrays(values["q_len"], values["batch"]))
        sizes = common.wholes(values, *_HEADS, "chunk")
        return Scan(lengths, batch, kind=kind, dtype=values["dtype"], state_dtype=values["state_dtype"], **sizes)

    defaults = {"key_dim": 128, "value_dim": value_dim, "chunk": chunk, "dtype": "bf16", "state_dtype": "fp32"}
    return common.Shape(("batch", "q_len", "heads", "key_heads"), defaults, build)


SCAN = common.Family(
    name="scan",
    op=Scan,
    shapes={
        "gdn_scan": _scan_shape(GATED_DELTA, 128, 64),
        "kda_scan": _scan_shape(KIMI_DELTA, 128, 64),
        "mamba2_scan": _scan_shape(MAMBA2, 64, 128),
    },
    step_sizes=("queries", "sequences"),
    sizes=batch_of,
    size_of_one=single_of,
    kind=attrgetter("kind", "kernel", "dtype"),
    core=ScanPhysics,
    core_key=attrgetter("heads", "key_heads", "key_dim", "value_dim", "chunk", "state_dtype"),
    named=_named,
    features={"scan": common.feature_names("scan")},
    shares=("launch", "row", "chain", "rounds", "parallel", "dram", "state"),
    pipes=common.tensor_and_dram,
    limits=lambda op, gpu: {
        "tensor": np.ravel(op.least_flops) / gpu.dense_flops(tensor_rate_of(op.dtype)),
        "dram": np.ravel(common.dram_seconds(op, gpu)),
    },
    work=_scan_work,
    # Nothing measured of another library stands for it: they take a batch apart in different ways.
    variants=lambda op, gpu, profile: (f"{op.kind}/{scan_kernel(op, gpu, profile)}",),
    spread={"scan": 12.0},
    ceiling=common.Ceiling(
        features=("log_blocks", "log_chunks", "log_mean"), shape=_scan_ceiling_shape, variant=attrgetter("kind")
    ),
)


def _build_convolution(values: common.Values, tokens: Any, *, update: bool) -> ShortConvolution:
    sizes = common.wholes(values, "channels", "taps")
    return ShortConvolution(tokens, values["batch"], **sizes, update=update, dtype=values["dtype"])


_OPTIONS = {"taps": 4, "dtype": "bf16"}
CONVOLUTION = common.Family(
    name="convolution", op=ShortConvolution,
    shapes={
        "convolution": common.Shape(
            ("batch", "q_len", "channels"),
            _OPTIONS,
            lambda values: _build_convolution(values, values["batch"] * values["q_len"], update=False),
        ),
        "convolution_update": common.Shape(
            ("batch", "channels"), _OPTIONS, lambda values: _build_convolution(values, values["batch"], update=True)
        ),
    },
    step_sizes=("tokens", "sequences"), sizes=lambda op: common.all_floats(op.tokens, op.sequences),
    size_of_one=lambda op: common.all_lone(op.tokens, op.sequences), kind=attrgetter("update", "kernel", "dtype"),
    core=ConvolutionPhysics, core_key=attrgetter("channels", "taps"), named=_named,
    features={"convolution": common.feature_names("convolution")}, shares=("dram", "l2", "values", "launch"),
    pipes=common.fma_and_dram,
    variants=lambda op, *_: (f"{'update' if op.update else 'prompts'}/{op.kernel or TRITON}",),
    spread={"convolution": 3.0},
    ceiling=common.Ceiling(
        features=("log_mean",),
        shape=lambda op, _: [
            np.log2(np.ravel(common.floats(op.tokens)) / np.maximum(np.ravel(common.floats(op.sequences)), 1.0))
        ],
        variant=lambda op: "update" if op.update else "prompts",
    ),
)  # fmt: skip


def _update_work(op: StateUpdate, rows: Any) -> tuple[Quantity, Quantity]:
    """States, which are read from memory and go back to it; nothing for the tensor cores."""
    one = replace(op, rows=1)
    return 0.0 * rows, 2.0 * one.state_bytes * rows


def _update_shape(kind: str, value_dim: int) -> common.Shape:
    def build(values: common.Values) -> StateUpdate:
        formats = {"dtype": values["dtype"], "state_dtype": values["state_dtype"]}
        return StateUpdate(values["batch"], kind=kind, **common.wholes(values, *_HEADS), **formats)

    defaults = {"key_dim": 128, "value_dim": value_dim, "dtype": "bf16", "state_dtype": "fp32"}
    return common.Shape(("batch", "heads", "key_heads"), defaults, build)


STATE_UPDATE = common.Family(
    name="state_update", op=StateUpdate,
    shapes={
        "gdn_update": _update_shape(GATED_DELTA, 128),
        "kda_update": _update_shape(KIMI_DELTA, 128),
        "mamba2_update": _update_shape(MAMBA2, 64),
    },
    step_sizes=("rows",), sizes=lambda op: common.floats(op.rows), size_of_one=lambda op: common.lone(op.rows),
    kind=attrgetter("kind", "dtype", "state_dtype"), core=StateUpdatePhysics,
    core_key=attrgetter("heads", "key_heads", "key_dim", "value_dim"),
    features={"state_update": common.feature_names("state_update")}, shares=("dram", "l2", "blocks", "launch"),
    pipes=common.fma_and_dram, work=_update_work, variants=lambda op, *_: (op.kind,), spread={"state_update": 3.0},
    ceiling=common.Ceiling(
        features=("log_blocks",),
        shape=lambda op, gpu: [np.log2(np.ravel(np.asarray(op.rows, dtype=np.float64)) * op.heads / gpu.sms)],
        variant=attrgetter("kind"),
    ),
)  # fmt: skip
