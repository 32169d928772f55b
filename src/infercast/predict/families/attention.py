"""Attention over prompts and over decoding sequences: one operator, learned under two names."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Attention, Op
from infercast.ops.dtypes import bytes_of, tensor_rate_of
from infercast.ops.op import Quantity
from infercast.predict.families.family import Ceiling, Family, Shape, Values
from infercast.predict.families.pipes import Array, Pipes, dram_seconds, product_limits, quantised_waves
from infercast.predict.identity import ANY, LATENT, kernel_of
from infercast.predict.physics.attention_batch import Lengths, batch_of, keys_in_reach, pairs_of, single_of
from infercast.predict.physics.attention_decode import DECODE_FEATURES, Decode, swept_decode
from infercast.predict.physics.attention_prefill import PREFILL_FEATURES, Prefill, swept_prefill

QUERY_TILE = 128
LONGEST = 1 << 40
"""Rows of a tile that holds any sequence."""


def _only_decodes(batch: Attention | Lengths) -> bool:
    most = batch.queries.max() if isinstance(batch.queries, np.ndarray) else batch.queries
    return bool(most == 1)


def _split(op: Attention) -> tuple[Op, Op | None]:
    """A batch of prompts and decoding sequences as two."""
    if op.queries.ndim > 1:
        return op, None
    decoding = op.queries == 1
    if decoding.all() or not decoding.any():
        return op, None
    counts = np.broadcast_to(op.sequences, op.queries.shape)
    halves = (
        replace(op, queries=op.queries[half], keys=op.keys[half], sequences=counts[half])
        for half in (~decoding, decoding)
    )
    prompts, decodes = halves
    return prompts, decodes


def _build(values: Values, queries: Any, keys: Any) -> Attention:
    """A batch of equal sequences; one row an element where sizes are arrays."""
    batch = values["batch"]
    if type(queries) is type(keys) is type(batch) is int:  # one needs no broadcasting, which takes longer than it
        queries, keys, batch = np.array([[queries]]), np.array([[keys]]), np.array([[batch]])
    else:
        queries, keys, batch = (each.reshape(-1, 1) for each in np.broadcast_arrays(queries, keys, batch))
    return Attention(
        queries,
        keys,
        heads=int(values["heads"]),
        kv_heads=int(values["kv_heads"]),
        head_dim=int(values["head_dim"]),
        value_dim=int(values["head_dim"]),
        sequences=batch,
        window=int(values["window"]),
        dtype=values["dtype"],
        kv_dtype=values["kv_dtype"],
    )


def _named(op: Attention, variant: str) -> Attention:
    """The same with the kernel that a model is of."""
    return op if op.kernel or variant in ("", LATENT, ANY) else replace(op, kernel=variant)


_HEADS = ("heads", "kv_heads", "head_dim")
_OPTIONS = {"window": 0, "dtype": "bf16", "kv_dtype": "bf16"}


def _pipes(op: Attention, gpu: Gpu) -> Pipes:
    """Matrix products in whole rounds of query tiles, exponentials, and the KV cache read once."""
    tensor = op.flops / gpu.dense_flops(tensor_rate_of(op.dtype))
    has_prompt = op.queries.max(axis=-1) > 1  # the rest only decode, cut along their keys until they fill the chip
    if has_prompt.any():
        waves = quantised_waves(op.heads * op.num_tiles(QUERY_TILE), gpu.sms)
        tensor = tensor * np.where(has_prompt, waves, 1.0)
    return {"tensor": tensor, "special": op.exponentials / gpu.special_rate, "dram": dram_seconds(op, gpu)}


def _work(op: Attention, batch: Lengths) -> tuple[Quantity, Quantity]:
    """Scores and weighted values; keys and values in reach, each once."""
    both = op.head_dim + op.value_dim
    row_bytes = bytes_of(op.kv_dtype) * op.kv_heads * (op.head_dim if op.latent_kv else both)
    return 2.0 * op.heads * both * pairs_of(batch, op.window), row_bytes * keys_in_reach(batch, op.window)


def _limits(op: Attention, gpu: Gpu) -> dict[str, Array]:
    products = product_limits(op, gpu, op.bytes_read + op.bytes_written)
    return {**products, "special": np.ravel(op.exponentials) / gpu.special_rate}


def _ceiling_shape(op: Attention, gpu: Gpu) -> list[Any]:
    sequences = np.ravel(op.num_tiles(LONGEST))
    queries, keys = np.ravel(op.num_queries), np.ravel((op.keys * op.sequences).sum(axis=-1))
    tiles = sequences * op.kv_heads if _only_decodes(op) else np.ravel(op.num_tiles(QUERY_TILE)) * op.heads
    return [
        np.log2(tiles / gpu.sms),
        np.log2(queries / sequences),
        np.log2(keys / sequences),
        np.log2(op.heads / op.kv_heads),
        op.head_dim,
        float(op.window > 0),
        float(op.latent_kv),
        float(op.kv_dtype != op.dtype),
    ]


PREFILL = Family(
    name="attention_prefill",
    position=1,
    op=Attention,
    accepts=lambda op: not _only_decodes(op),
    shapes={
        "prefill": Shape(
            ("batch", "q_len", *_HEADS),
            {"prefix": 0, **_OPTIONS},
            lambda values: _build(values, values["q_len"], values["q_len"] + values["prefix"]),
        )
    },
    step_sizes=("sequences", "queries", "keys"),
    split=_split,
    sizes=batch_of,
    size_of_one=single_of,
    kind=attrgetter("dtype", "latent_kv", "kv_dtype", "head_dim", "kernel"),
    core=Prefill,
    swept_core=swept_prefill,
    named=_named,
    core_key=attrgetter("heads", "kv_heads", "head_dim", "value_dim", "window", "dtype", "kv_dtype", "kernel"),
    features={"attention_prefill": PREFILL_FEATURES},
    shares=("tensor", "exponential", "blocks", "longest", "dram", "l2", "launch"),
    scheduled=PREFILL_FEATURES.index("log_scheduled_us"),
    pipes=_pipes,
    limits=_limits,
    work=_work,
    throttled=("attention",),
    # Published tables have no attention over a latent; a sweep has whatever kernel the engine runs.
    variants=lambda op, gpu, profile: (LATENT,) if op.latent_kv else (kernel_of(op, gpu, profile.engine), ""),
    # On prompts above 100 us, borrowed from L40S and A100, RTX 4090, L4, A10G and A30 are 16, 27, 11 and 27 % off, and
    # 20, 36, 43 and 48 % with the square root of the ratio; between H100 and H200 it is the other way round.
    trust={"": 0.5},
    between_kernels={"": (1.0, 0.5e-6)},
    spread={"attention": 8.0},
    typical=lambda op: ("latent" if op.latent_kv else "attention_prefill",),
    ceiling=Ceiling(
        features=("log_rounds", "log_queries", "log_keys", "log_group", "head_dim", "window", "latent", "kv_dtype"),
        shape=_ceiling_shape,
        read_again=lambda op: np.ravel(op.kv_bytes),
    ),
)
DECODE = replace(
    PREFILL,
    name="attention_decode",
    position=2,
    accepts=_only_decodes,
    shapes={
        "decode": Shape(("batch", "kv_len", *_HEADS), _OPTIONS, lambda values: _build(values, 1, values["kv_len"] + 1))
    },
    core=Decode,
    swept_core=swept_decode,
    features={"attention_decode": DECODE_FEATURES},
    shares=("dram", "stream", "blocks", "tensor", "combine", "launch"),
    scheduled=DECODE_FEATURES.index("log_scheduled_us"),
    trust={},
    between_kernels={},
    typical=lambda op: ("latent" if op.latent_kv else "attention_decode",),
)
