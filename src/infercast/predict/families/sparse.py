"""Sparse and compressed attention: index scores, top-k, attention over chosen keys, hyper-connections."""

from __future__ import annotations

from math import ceil
from operator import attrgetter
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.load import facts_of
from infercast.lazy_classes import replace
from infercast.ops import HyperConnection, IndexScores, SparseAttention, TopK
from infercast.ops.op import Quantity, bytes_of, tensor_rate_of
from infercast.predict.array_api import Number, Physics, Plain, kit_of
from infercast.predict.families import family as common
from infercast.predict.families.attention_kernels import (
    DECODE,
    Lengths,
    batch_of,
    entries_of,
    entries_up_to,
    phase_of,
    single_of,
    sparse_pairs_of,
    split_phases,
)
from infercast.predict.identity import KernelProfile

CHOICE_CONSTANTS, BLOCKS = common.constants("top-k").values()
TIED_SCORES, LONG_ROW = {"prompt": 6.8, "decode": 3.6}, 32_768
"""Clocks a score where all fall into one bin of a row's histogram and are counted one after the other; rows of decoding
sequences that are no longer than that are searched otherwise. Read off prompts and decoding steps of 15,000 and 60,000
tokens of GLM-5 with dummy weights on an H200 (vLLM 0.25); prompts of 8,000 and 30,000 then come out within 1 %."""
FEW = 64  # Chosen ones that are few


class TopKPhysics:
    """The best scores of every new token, one thread block a row; rows no longer than what is chosen need no search. A
    long row takes one SM long, so that a few sequences which decode wait for the length of one row.
    """

    def __init__(self, op: TopK, gpu: Gpu) -> None:
        self.op, self.gpu, self.phase = op, gpu, phase_of(op)
        self.kernel = CHOICE_CONSTANTS if op.topk > FEW else BLOCKS
        self.sizes = Plain.log2(op.topk), float(op.compress)

    def physics(self, batch: Lengths, *, engine: bool = False) -> Physics:
        """One launch; scores were written just before, so that an ``engine`` finds as much of them in L2."""
        x, op, gpu, fitted = batch.x, self.op, self.gpu, self.kernel
        rows, scores = batch.total(batch.queries), batch.total(sparse_pairs_of(batch, op.compress))
        # Only rows of more scores than are chosen are searched.
        last_short = op.compress * (op.topk + 1.0) - 1.0
        cached = batch.keys - batch.queries
        first = x.clip(last_short, cached, batch.keys)
        searched = batch.total(batch.keys - first)
        seen = entries_up_to(batch.keys, op.compress, 0, x) - entries_up_to(first, op.compress, 0, x)
        searched_scores = batch.total(seen)
        longest = batch.longest(entries_of(batch, op.compress))
        mean, slots = scores / x.larger(rows, 1.0), gpu.sms * fitted.blocks_per_sm
        row = fitted.short_clocks + (fitted.row_clocks - fitted.short_clocks) * searched / x.larger(rows, 1.0)
        score = fitted.score_clocks
        if op.tied:
            score = x.where(longest > (LONG_ROW if self.phase == DECODE else 0.0), TIED_SCORES[self.phase], score)
        clocks = x.larger(rows / slots, 1.0) * (row + score * searched_scores / x.larger(rows, 1.0))
        moved = 4.0 * searched_scores + 4.0 * op.topk * rows
        cold = x.miss_share(moved, gpu.l2_bytes * 0.7, 2.0)
        terms = {
            "blocks": clocks / gpu.boost_clock,
            "dram": moved * (cold / (gpu.dram_bandwidth * fitted.dram) + (1.0 - cold) / (gpu.l2_bandwidth * 0.6)),
            "launch": x.like(moved, fitted.launch),
        }
        seconds = terms["launch"] + x.soft_max(fitted.overlap, terms["blocks"] + 1e-12, terms["dram"] + 1e-12)
        features = x.columns(
            *x.logs(rows, mean, longest, longest / op.topk), *self.sizes, x.log2(rows / slots), x.fill(rows, gpu.sms),
            *[terms[name] / seconds for name in ("blocks", "dram", "launch")],
            *x.logs(moved / gpu.l2_bytes, seconds * 1e6),
        )  # fmt: skip
        return Physics(seconds, terms, features)


CUTTING, CUTTING_FEW, FEW_HEADS = "flash-3", "trtllm", 16
"""Attention kernels that cut the walk of a decoding sequence over idle multiprocessors, those that an engine takes for
it where a GPU has few heads (vLLM 0.25, platforms/cuda.py: FlashInfer with TensorRT-LLM's), and how many that is."""
ATTENTION_HEADS, ATTENTION_KEYS = 64.0, 64.0  # Rows and keys of a tile


ATTENTION_KERNELS = common.constants("sparse attention")


class SparseAttentionPhysics:
    """Attention over chosen keys: latent heads against gathered entries (DSA, CSA, HCA), or heads against blocks (MSA).
    A thread block takes one new token and up to 64 of its heads (or one key-value head with its group) through the
    chosen places, 64 keys at a time. Kernels that know how many are taken stop there; those for decoding cut the walk.
    """

    def __init__(self, op: SparseAttention, gpu: Gpu) -> None:
        self.op, self.gpu, self.phase = op, gpu, phase_of(op)
        kinds = {"msa": f"msa {self.phase}", "csa": "compressed", "hca": "compressed"}
        self.kernel = kernel = ATTENTION_KERNELS[kinds.get(op.kind, "latent")]
        self.narrow = bytes_of(op.kv_dtype) < bytes_of(op.dtype)
        group = op.heads / op.kv_heads
        self.rows = ATTENTION_HEADS if op.kv_heads == 1 else max(16.0, group)  # Query rows of a tile
        self.blocks = ceil(group / ATTENTION_HEADS) * op.kv_heads  # Thread blocks of one token
        rate = (
            gpu.dense_flops(tensor_rate_of(op.dtype)) / gpu.sms * (kernel.narrow_share if self.narrow else kernel.share)
        )
        self.tile_tensor = 2.0 * self.rows * ATTENTION_KEYS * (op.head_dim + op.value_dim) / rate
        key_bytes = op.bytes_per_key / op.kv_heads
        self.tile_gather = ATTENTION_KEYS * key_bytes / (kernel.gather * gpu.boost_clock)
        # FlashMLA's kernel for a packed cache does not know how many places are taken.
        self.walks_all = op.kind == "mla" and self.narrow
        # FlashMLA's kernel for a bf16 cache is that of prompts; where FlashAttention has one, it cuts the walk.
        attention = facts_of(gpu).attention
        few = attention == CUTTING_FEW and op.heads <= FEW_HEADS
        cuts = self.narrow or op.kind != "mla" or attention == CUTTING or few
        self.is_cut = self.phase == DECODE and cuts
        self.io_bytes = bytes_of(op.dtype) * op.heads * (op.head_dim + op.value_dim)
        self.sizes = (
            *Plain.logs(op.heads, op.kv_heads, op.head_dim + op.value_dim), op.bytes_per_key, float(op.compress),
            float(self.narrow),
        )  # fmt: skip

    def physics(self, batch: Lengths, *, engine: bool = False) -> Physics:
        """One launch; in an ``engine`` nothing of the cache is in L2."""
        a, x, op, gpu, kernel = self, batch.x, self.op, self.gpu, self.kernel
        tokens = batch.total(batch.queries)
        chosen = sparse_pairs_of(batch, op.compress, op.selected)
        if op.window:
            chosen = chosen + sparse_pairs_of(batch, 1, op.window)
        places = batch.total(chosen) / x.larger(tokens, 1.0)
        if a.walks_all:
            places = x.like(places, float(op.selected + op.window))
        tiles = x.ceil(places / ATTENTION_KEYS)
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
            *x.logs(batch.size, tokens, tokens / batch.size, mean_keys, batch.longest(batch.keys), places), *a.sizes,
            x.log2(rounds), x.fill(blocks, gpu.sms),
            *[terms[name] / seconds for name in ("tensor", "gather", "blocks", "dram", "launch")],
            *x.logs(distinct / gpu.l2_bytes, seconds * 1e6),
        )  # fmt: skip
        return Physics(seconds, terms, features)


SCORE_ROWS, SCORE_KEYS = 128.0, 256.0  # Rows (queries times heads) and keys of a tile


SCORE_KERNELS = common.constants("index scores")


class IndexScorePhysics:
    """Scores of a lightning indexer: every new token against every index key of its sequence. Prompts run on tiles of
    ``heads x queries`` rows against 256 keys (DeepGEMM's persistent kernel, or Triton's in bf16); a chunk of few
    queries behind a long prefix leaves most SMs idle. Walks of decoding sequences are cut into equal parts.
    """

    def __init__(self, op: IndexScores, gpu: Gpu) -> None:
        self.op, self.gpu, self.phase = op, gpu, phase_of(op)
        self.kernel = kernel = SCORE_KERNELS[f"{'fp8' if op.dtype != 'bf16' else 'bf16'} {self.phase}"]
        rate = gpu.dense_flops(tensor_rate_of(op.dtype)) / gpu.sms * kernel.share
        self.together = max(1.0, SCORE_ROWS // op.heads) if self.phase != DECODE else 1.0  # Queries of a tile
        rows = max(64.0, self.together * op.heads)
        self.tile_seconds = 2.0 * rows * op.head_dim * SCORE_KEYS / rate + kernel.tile
        self.sizes = Plain.log2(op.heads), float(op.compress)

    def physics(self, batch: Lengths, *, engine: bool = False) -> Physics:
        """One launch; in an ``engine`` nothing of the index is in L2."""
        a, x, op, gpu, kernel = self, batch.x, self.op, self.gpu, self.kernel
        tokens, pairs = batch.total(batch.queries), batch.total(sparse_pairs_of(batch, op.compress))
        entries = entries_of(batch, op.compress)
        # A thread block of more queries than a sequence has walks through the keys of several.
        spans = x.larger(a.together / x.larger(batch.queries, 1.0), 1.0)
        mean = sparse_pairs_of(batch, op.compress) / x.larger(batch.queries, 1.0)
        blocks_each = x.larger(batch.queries / a.together, 1.0) / spans
        tiles = batch.total(blocks_each * (spans * mean / SCORE_KEYS + 0.5))
        blocks = x.larger(batch.total(blocks_each), 1.0)
        longest = batch.longest(x.ceil(x.smaller(spans, batch.each(batch.size)) * entries / SCORE_KEYS))
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
            *x.logs(size, tokens, pairs / x.larger(tokens, 1.0), batch.longest(batch.keys), tokens / size), *a.sizes,
            x.log2(blocks / gpu.sms), x.fill(blocks, gpu.sms),
            *[terms[name] / seconds for name in ("tensor", "longest", "dram", "launch")],
            *x.logs(moved / gpu.l2_bytes, seconds * 1e6),
        )  # fmt: skip
        return Physics(seconds, terms, features)


TIED, BLOCK_CHOICE = "tied", "blocks"  # The choice of a few blocks, which is another kernel than that of many keys


def _lengths(values: common.Values) -> tuple[common.Array, common.Array, common.Array]:
    """A batch of equal sequences; one row an element where sizes are arrays."""
    queries, keys = values["q_len"], values["q_len"] + values["prefix"]
    queries, keys, batch = (each.reshape(-1, 1) for each in np.broadcast_arrays(queries, keys, values["batch"]))
    return queries, keys, batch


def _scores_work(op: IndexScores, batch: Lengths) -> tuple[Quantity, Quantity]:
    """Products of all scores; index keys in reach, each once."""
    flops = 2.0 * op.heads * op.head_dim * batch.total(sparse_pairs_of(batch, op.compress))
    return flops, op.entry_bytes * batch.total(entries_of(batch, op.compress))


def _attention_work(op: SparseAttention, batch: Lengths) -> tuple[Quantity, Quantity]:
    """Both products; what the last token of each sequence must read."""
    pairs, keys = sparse_pairs_of(batch, op.compress, op.selected), entries_of(batch, op.compress, op.selected)
    if op.window:
        pairs = pairs + sparse_pairs_of(batch, 1, op.window)
        keys = keys + batch.x.smaller(batch.keys, float(op.window))
    both = op.head_dim + op.value_dim
    return 2.0 * op.heads * both * batch.total(pairs), op.bytes_per_key * batch.total(keys)


def _choice_variants(op: TopK, *_: object) -> tuple[str, ...]:
    """Few blocks are chosen by another kernel than many keys; ties were not measured."""
    what = f"{TIED} " if op.tied else f"{BLOCK_CHOICE} " if op.topk <= FEW else ""
    return (f"{what}{phase_of(op)}",)


def _attention_variants(op: SparseAttention, gpu: Gpu, profile: KernelProfile) -> tuple[str, ...]:
    """Latents of one width are cached in two formats; others have one kernel on an architecture."""
    kernel = profile.sparse.get(gpu.kernels, {}).get(f"{op.kind} {op.kv_dtype}", "")
    ending = f"{phase_of(op)} {kernel}" if kernel else phase_of(op)
    return f"{op.kind} {op.kv_dtype} {ending}", f"{op.kind} {ending}"


def _ceiling_shape(op: Any, gpu: Gpu) -> list[Any]:
    tokens = np.maximum(np.ravel(op.num_queries), 1)
    return [np.log2(tokens / gpu.sms), np.log2(np.maximum(np.ravel(op.num_pairs) / tokens, 1.0))]


_SIZES = ("batch", "q_len")
_PLACES = {"prefix": 0, "compress": 1}
BLOCK = 128  # Tokens of a block that is chosen whole, and the width of its heads
LATENT_WIDTHS = {"mla": (576, 512), "csa": (512, 512), "hca": (512, 512)}
"""What a head multiplies with, and what it sums up, of each kind of latent."""
ENTRY_BYTES = {"mla": {"bf16": 1152.0, "fp8": 656.0}, "csa": {"fp8": 584.0}, "hca": {"fp8": 584.0}}
WINDOWS, COMPRESSION = {"csa": 128, "hca": 128}, {"csa": 4, "hca": 128}


def latent_attention(
    queries: common.Array, keys: common.Array, sequences: common.Array, *, heads: int, selected: int, kind: str,
    kv_dtype: str,
) -> SparseAttention:  # fmt: skip
    """The kernel over latents of one of the published kinds."""
    head_dim, value_dim = LATENT_WIDTHS[kind]
    return SparseAttention(
        queries, keys, sequences, heads=heads, head_dim=head_dim, value_dim=value_dim, selected=selected,
        window=WINDOWS.get(kind, 0), compress=COMPRESSION.get(kind, 1),
        bytes_per_key=ENTRY_BYTES[kind].get(kv_dtype, 2.0 * head_dim), kind=kind, kv_dtype=kv_dtype,
    )  # fmt: skip


def _latent_shape(kind: str) -> common.Shape:
    """What people describe attention over latents by; where all entries are seen, nothing is chosen."""
    return common.Shape(
        (*_SIZES, "heads", *(() if kind == "hca" else ("topk",))),
        {"prefix": 0, "kv_dtype": "bf16"},
        lambda values: latent_attention(
            *_lengths(values), heads=int(values["heads"]), selected=int(values.get("topk", 0)), kind=kind,
            kv_dtype=values["kv_dtype"],
        ),
    )  # fmt: skip


def _blocks(values: common.Values) -> SparseAttention:
    """Attention over chosen blocks of 128 tokens, with heads of 128."""
    kv_heads, kv_dtype = int(values["kv_heads"]), values["kv_dtype"]
    return SparseAttention(
        *_lengths(values), heads=int(values["heads"]), head_dim=BLOCK, value_dim=BLOCK, kv_heads=kv_heads,
        selected=int(values["topk"]) * BLOCK, block=BLOCK, bytes_per_key=2.0 * BLOCK * kv_heads * bytes_of(kv_dtype),
        kind="msa", kv_dtype=kv_dtype,
    )  # fmt: skip


_CEILING = common.Ceiling(features=("log_rounds", "log_pairs"), shape=_ceiling_shape)

_BATCHED: dict[str, Any] = {
    "step_sizes": ("sequences", "queries", "keys"), "split": split_phases, "sizes": batch_of, "size_of_one": single_of,
}  # fmt: skip

INDEX_SCORES = common.Family(
    name="index_scores", op=IndexScores,
    shapes={
        "index_scores": common.Shape(
            (*_SIZES, "heads"),
            {**_PLACES, "head_dim": 128, "dtype": "fp8"},
            lambda by: IndexScores(
                *_lengths(by), **common.wholes(by, "heads", "head_dim", "compress"), dtype=by["dtype"]
            ),
        )
    },
    **_BATCHED, kind=lambda op: (op.dtype, op.compress > 1, phase_of(op)), core=IndexScorePhysics,
    core_key=lambda op: (op.heads, op.head_dim, op.compress, op.entry_bytes, op.dtype, phase_of(op)),
    features={"index_scores": common.feature_names("index_scores")}, shares=("tensor", "longest", "dram", "launch"),
    pipes=common.tensor_and_dram,
    limits=lambda op, gpu: common.product_limits(op, gpu, op.entry_bytes * op.num_entries), work=_scores_work,
    variants=lambda op, *_: (f"{op.dtype} {phase_of(op)}",), interval=(-0.35, 0.45), spread={"index_scores": 6.0},
    ceiling=replace(_CEILING, is_known=lambda op: op.dtype == "fp8"),
)  # fmt: skip
TOP_K = common.Family(
    name="top_k", op=TopK,
    shapes={
        "top_k": common.Shape(
            (*_SIZES, "topk"),
            _PLACES,
            lambda by: TopK(*_lengths(by), **common.wholes(by, "topk", "compress")),
        )
    },
    **_BATCHED, kind=lambda op: (op.topk <= FEW, op.tied, phase_of(op)), core=TopKPhysics,
    core_key=lambda op: (op.topk, op.compress, op.tied, phase_of(op)),
    features={"top_k": common.feature_names("top_k")}, shares=("blocks", "dram", "launch"),
    pipes=lambda op, gpu: {"dram": common.dram_seconds(op, gpu)},
    limits=lambda op, gpu: {"dram": np.ravel(4.0 * op.topk * op.num_queries / gpu.dram_bandwidth)},
    variants=_choice_variants, interval=(-0.5, 0.6), spread={"top_k": 20.0},
    ceiling=replace(_CEILING, is_known=lambda op: op.topk > FEW),
)  # fmt: skip
SPARSE_ATTENTION = common.Family(
    name="sparse_attention", op=SparseAttention,
    shapes={
        **{f"{kind}_attention": _latent_shape(kind) for kind in ("mla", "csa", "hca")},
        "msa_attention": common.Shape(
            (*_SIZES, "heads", "kv_heads", "topk"), {"prefix": 0, "kv_dtype": "bf16"}, _blocks
        ),
    },
    **_BATCHED, kind=lambda op: (op.kind, op.kv_dtype, phase_of(op)), core=SparseAttentionPhysics,
    core_key=lambda op: (
        *attrgetter("heads", "kv_heads", "head_dim", "value_dim", "selected", "window", "compress")(op),
        *attrgetter("bytes_per_key", "kind", "dtype", "kv_dtype")(op),
        phase_of(op),
    ),
    features={"sparse_attention": common.feature_names("sparse_attention")},
    shares=("tensor", "gather", "blocks", "dram", "launch"), pipes=common.tensor_and_dram,
    limits=lambda op, gpu: common.product_limits(op, gpu, op.kv_bytes), work=_attention_work,
    variants=_attention_variants, interval=(-0.35, 0.45), spread={"sparse_attention": 10.0},
    ceiling=replace(_CEILING, is_known=lambda op: op.kind != "msa", read_again=lambda op: np.ravel(op.kv_bytes)),
)  # fmt: skip


HYPER_KERNELS = common.constants("hyper-connection")


class HyperConnectionPhysics:
    """Halves of a hyper-connection; ``pre`` is two kernels: a thin product over all streams, and their weighted sum."""

    def __init__(self, op: HyperConnection, gpu: Gpu) -> None:
        self.op, self.gpu, self.kernel = op, gpu, HYPER_KERNELS[op.half]
        width = op.streams * op.hidden
        # ``pre`` reads the streams once for the product and once for the sum; ``post`` reads and writes them.
        self.row_bytes = 2.0 * (2.0 * width + op.hidden)
        self.shared = 4.0 * op.weights * width if op.half == "pre" else 0.0

    def physics(self, rows: Number, *, engine: bool = False) -> Physics:
        """By tokens; an ``engine`` takes as long as a table."""
        x, gpu, kernel = kit_of(rows), self.gpu, self.kernel
        moved = rows * self.row_bytes + self.shared
        cold = x.miss_share(moved, gpu.l2_bytes * kernel.cache, 2.0)
        terms = {
            "dram": moved * (cold / (gpu.dram_bandwidth * kernel.dram) + (1.0 - cold) / (gpu.l2_bandwidth * 0.4)),
            "blocks": rows / gpu.sms * kernel.row_clocks / gpu.boost_clock,
            "launch": x.like(moved, kernel.launch),
        }
        seconds = terms["launch"] + x.soft_max(3.0, terms["dram"], terms["blocks"] + 1e-12)
        features = x.columns(
            *[terms[name] / seconds for name in ("dram", "blocks", "launch")], x.log2(rows), Plain.log2(self.op.hidden),
            x.log2(rows / gpu.sms), x.fill(rows, gpu.sms), *x.logs(moved / gpu.l2_bytes, seconds * 1e6),
        )  # fmt: skip
        return Physics(seconds, terms, features)


def _hyper_shape(half: str) -> common.Shape:
    return common.Shape(
        ("rows", "hidden"), {}, lambda values: HyperConnection(values["rows"], hidden=int(values["hidden"]), half=half)
    )


HYPER_CONNECTION = common.Family(
    name="hyper_connection", op=HyperConnection,
    shapes={f"hyper_connection_{half}": _hyper_shape(half) for half in ("pre", "post")}, step_sizes=("rows",),
    sizes=lambda op: common.floats(op.rows), size_of_one=lambda op: common.lone(op.rows), kind=lambda op: (op.half,),
    core=HyperConnectionPhysics, core_key=attrgetter("hidden", "streams", "half"),
    features={"hyper_connection": common.feature_names("hyper_connection")}, shares=("dram", "blocks", "launch"),
    pipes=lambda op, gpu: {"dram": common.dram_seconds(op, gpu)}, variants=lambda op, *_: (op.half,),
    spread={"hyper_connection": 8.0},
    ceiling=common.Ceiling(
        features=("log_rounds",),
        shape=lambda op, gpu: [np.log2(np.maximum(np.ravel(op.rows), 1) / gpu.sms)],
        variant=attrgetter("half"),
    ),
)  # fmt: skip
