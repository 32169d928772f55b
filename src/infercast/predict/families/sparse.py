"""Sparse and compressed attention: index scores, the choice of the best, attention over what was chosen."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import IndexScores, Op, SparseAttention, TopK
from infercast.ops.dtypes import bytes_of, tensor_rate_of
from infercast.ops.op import Quantity
from infercast.predict.families.family import Ceiling, Family, Shape, Values
from infercast.predict.families.pipes import Array, Pipes, dram_seconds, product_limits
from infercast.predict.physics import index_scores, sparse_attention, top_k
from infercast.predict.physics.attention_batch import Lengths, batch_of, single_of
from infercast.predict.physics.sparse_batch import entries_of, pairs_of, phase_of

if TYPE_CHECKING:
    from infercast.predict.profile import KernelProfile

ARCHIVE = "sparse"
TIED, BLOCK_CHOICE = "tied", "blocks"
"""The choice of a few blocks, which is another kernel than that of many keys."""


def _split(op: Any) -> tuple[Op, Op | None]:
    """A batch of prompts and decoding sequences as two."""
    decoding = op.queries == 1
    if op.queries.ndim > 1 or decoding.all() or not decoding.any():
        return op, None
    counts = np.broadcast_to(op.sequences, op.queries.shape)
    prompts, decodes = (
        replace(op, queries=op.queries[half], keys=op.keys[half], sequences=counts[half])
        for half in (~decoding, decoding)
    )
    return prompts, decodes


def _lengths(values: Values) -> tuple[Array, Array, Array]:
    """A batch of equal sequences; one row an element where sizes are arrays."""
    queries, keys = values["q_len"], values["q_len"] + values["prefix"]
    queries, keys, batch = (each.reshape(-1, 1) for each in np.broadcast_arrays(queries, keys, values["batch"]))
    return queries, keys, batch


def _products(op: Any, gpu: Gpu) -> Pipes:
    return {"tensor": op.flops / gpu.dense_flops(tensor_rate_of(op.compute_dtype)), "dram": dram_seconds(op, gpu)}


def _scores_work(op: IndexScores, batch: Lengths) -> tuple[Quantity, Quantity]:
    """Products of all scores; index keys in reach, each once."""
    flops = 2.0 * op.heads * op.head_dim * batch.total(pairs_of(batch, op.compress))
    return flops, op.entry_bytes * batch.total(entries_of(batch, op.compress))


def _attention_work(op: SparseAttention, batch: Lengths) -> tuple[Quantity, Quantity]:
    """Both products; what the last token of each sequence must read."""
    pairs, keys = pairs_of(batch, op.compress, op.selected), entries_of(batch, op.compress, op.selected)
    if op.window:
        pairs = pairs + pairs_of(batch, 1, op.window)
        keys = keys + batch.x.smaller(batch.keys, float(op.window))
    both = op.head_dim + op.value_dim
    return 2.0 * op.heads * both * batch.total(pairs), op.bytes_per_key * batch.total(keys)


def _choice_variants(op: TopK, *_: object) -> tuple[str, ...]:
    """Few blocks are chosen by another kernel than many keys; nobody measured ties."""
    what = f"{TIED} " if op.tied else f"{BLOCK_CHOICE} " if op.topk <= top_k.FEW else ""
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
BLOCK = 128
"""Tokens of a block that is chosen whole, and the width of its heads."""
LATENT_WIDTHS = {"mla": (576, 512), "csa": (512, 512), "hca": (512, 512)}
"""What a head multiplies with, and what it sums up, of each kind of latent."""
ENTRY_BYTES = {"mla": {"bf16": 1152.0, "fp8": 656.0}, "csa": {"fp8": 584.0}, "hca": {"fp8": 584.0}}
WINDOWS, COMPRESSION = {"csa": 128, "hca": 128}, {"csa": 4, "hca": 128}


def latent_attention(
    queries: Array, keys: Array, sequences: Array, *, heads: int, selected: int, kind: str, kv_dtype: str
) -> SparseAttention:
    """The kernel over latents of one of the published kinds."""
    head_dim, value_dim = LATENT_WIDTHS[kind]
    return SparseAttention(
        queries,
        keys,
        sequences,
        heads=heads,
        head_dim=head_dim,
        value_dim=value_dim,
        selected=selected,
        window=WINDOWS.get(kind, 0),
        compress=COMPRESSION.get(kind, 1),
        bytes_per_key=ENTRY_BYTES[kind].get(kv_dtype, 2.0 * head_dim),
        kind=kind,
        kv_dtype=kv_dtype,
    )


def _latent_shape(kind: str) -> Shape:
    """What people describe attention over latents by; where all entries are seen, nothing is chosen."""
    return Shape(
        (*_SIZES, "heads", *(() if kind == "hca" else ("topk",))),
        {"prefix": 0, "kv_dtype": "bf16"},
        lambda values: latent_attention(
            *_lengths(values),
            heads=int(values["heads"]),
            selected=int(values.get("topk", 0)),
            kind=kind,
            kv_dtype=values["kv_dtype"],
        ),
    )


def _blocks(values: Values) -> SparseAttention:
    """Attention over chosen blocks of 128 tokens, with heads of 128."""
    kv_heads, kv_dtype = int(values["kv_heads"]), values["kv_dtype"]
    return SparseAttention(
        *_lengths(values),
        heads=int(values["heads"]),
        head_dim=BLOCK,
        value_dim=BLOCK,
        kv_heads=kv_heads,
        selected=int(values["topk"]) * BLOCK,
        block=BLOCK,
        bytes_per_key=2.0 * BLOCK * kv_heads * bytes_of(kv_dtype),
        kind="msa",
        kv_dtype=kv_dtype,
    )


_CEILING = Ceiling(features=("log_rounds", "log_pairs"), shape=_ceiling_shape)

INDEX_SCORES = Family(
    name="index_scores",
    position=10,
    archive=ARCHIVE,
    op=IndexScores,
    shapes={
        "index_scores": Shape(
            (*_SIZES, "heads"),
            {**_PLACES, "head_dim": 128, "dtype": "fp8"},
            lambda values: IndexScores(
                *_lengths(values),
                heads=int(values["heads"]),
                head_dim=int(values["head_dim"]),
                compress=int(values["compress"]),
                dtype=values["dtype"],
            ),
        )
    },
    step_sizes=("sequences", "queries", "keys"),
    split=_split,
    sizes=batch_of,
    size_of_one=single_of,
    kind=lambda op: (op.dtype, op.compress > 1, phase_of(op)),
    core=index_scores.Scoring,
    core_key=lambda op: (op.heads, op.head_dim, op.compress, op.entry_bytes, op.dtype, phase_of(op)),
    features={"index_scores": index_scores.FEATURES},
    shares=("tensor", "longest", "dram", "launch"),
    pipes=_products,
    limits=lambda op, gpu: product_limits(op, gpu, op.entry_bytes * op.num_entries),
    work=_scores_work,
    variants=lambda op, *_: (f"{op.dtype} {phase_of(op)}",),
    interval=(-0.35, 0.45),
    spread={"index_scores": 6.0},
    typical=lambda op: ("index_scores",),
    ceiling=replace(_CEILING, is_known=lambda op: op.dtype == "fp8"),
)
TOP_K = Family(
    name="top_k",
    position=11,
    archive=ARCHIVE,
    op=TopK,
    shapes={
        "top_k": Shape(
            (*_SIZES, "topk"),
            _PLACES,
            lambda values: TopK(*_lengths(values), topk=int(values["topk"]), compress=int(values["compress"])),
        )
    },
    step_sizes=("sequences", "queries", "keys"),
    split=_split,
    sizes=batch_of,
    size_of_one=single_of,
    kind=lambda op: (op.topk <= top_k.FEW, op.tied, phase_of(op)),
    core=top_k.Choosing,
    core_key=lambda op: (op.topk, op.compress, op.tied, phase_of(op)),
    features={"top_k": top_k.FEATURES},
    shares=("blocks", "dram", "launch"),
    pipes=lambda op, gpu: {"dram": dram_seconds(op, gpu)},
    limits=lambda op, gpu: {"dram": np.ravel(4.0 * op.topk * op.num_queries / gpu.dram_bandwidth)},
    variants=_choice_variants,
    interval=(-0.5, 0.6),
    spread={"top_k": 20.0},
    typical=lambda _: ("top_k",),
    ceiling=replace(_CEILING, is_known=lambda op: op.topk > top_k.FEW),
)
SPARSE_ATTENTION = Family(
    name="sparse_attention",
    position=12,
    archive=ARCHIVE,
    op=SparseAttention,
    shapes={
        **{f"{kind}_attention": _latent_shape(kind) for kind in ("mla", "csa", "hca")},
        "msa_attention": Shape((*_SIZES, "heads", "kv_heads", "topk"), {"prefix": 0, "kv_dtype": "bf16"}, _blocks),
    },
    step_sizes=("sequences", "queries", "keys"),
    split=_split,
    sizes=batch_of,
    size_of_one=single_of,
    kind=lambda op: (op.kind, op.kv_dtype, phase_of(op)),
    core=sparse_attention.Attending,
    core_key=lambda op: (
        *attrgetter("heads", "kv_heads", "head_dim", "value_dim", "selected", "window", "compress")(op),
        *attrgetter("bytes_per_key", "kind", "dtype", "kv_dtype")(op),
        phase_of(op),
    ),
    features={"sparse_attention": sparse_attention.FEATURES},
    shares=("tensor", "gather", "blocks", "dram", "launch"),
    pipes=_products,
    limits=lambda op, gpu: product_limits(op, gpu, op.kv_bytes),
    work=_attention_work,
    variants=_attention_variants,
    interval=(-0.35, 0.45),
    spread={"sparse_attention": 10.0},
    typical=lambda _: ("sparse_attention",),
    ceiling=replace(_CEILING, is_known=lambda op: op.kind != "msa", read_again=lambda op: np.ravel(op.kv_bytes)),
)
