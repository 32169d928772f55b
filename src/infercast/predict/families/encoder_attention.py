"""Attention of vision towers."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import EncoderAttention
from infercast.ops.dtypes import tensor_rate_of
from infercast.ops.op import Quantity
from infercast.predict.families.family import Ceiling, Family, Shape
from infercast.predict.families.pipes import Array, Pipes, dram_seconds, lone, product_limits, quantised_waves
from infercast.predict.physics.encoder_attention import FEATURES, Encoding

TILE = 128


def _sizes(op: EncoderAttention) -> tuple[Array, Array]:
    images, tokens = np.broadcast_arrays(np.atleast_1d(op.images), np.atleast_1d(op.tokens))
    return images.astype(np.float64), tokens.astype(np.float64)


def _size_of_one(op: EncoderAttention) -> tuple[float, float] | None:
    images, tokens = lone(op.images), lone(op.tokens)
    return None if images is None or tokens is None else (images, tokens)


def _pipes(op: EncoderAttention, gpu: Gpu) -> Pipes:
    blocks = op.heads * np.asarray(op.images) * np.ceil(np.asarray(op.tokens) / TILE)
    tensor = op.flops / gpu.dense_flops(tensor_rate_of(op.dtype)) * quantised_waves(blocks, gpu.sms)
    return {"tensor": tensor, "dram": dram_seconds(op, gpu)}


def _work(op: EncoderAttention, size: tuple[Any, Any]) -> tuple[Quantity, Quantity]:
    """Both products; keys and values may still be in L2 from the kernel before."""
    images, tokens = size
    return 4.0 * op.heads * op.head_dim * images * tokens * tokens, 0.0 * tokens


def _ceiling_shape(op: EncoderAttention, gpu: Gpu) -> list[Any]:
    tokens = np.ravel(np.asarray(op.tokens, dtype=np.float64))
    blocks = op.heads * np.ravel(np.asarray(op.images)) * np.ceil(tokens / TILE)
    return [np.log2(blocks / gpu.sms), np.log2(tokens), op.head_dim]


ENCODER_ATTENTION = Family(
    name="encoder_attention",
    position=15,
    archive="sparse",
    op=EncoderAttention,
    shapes={
        "encoder_attention": Shape(
            ("batch", "tokens", "heads", "head_dim"),
            {},
            lambda values: EncoderAttention(
                values["batch"], values["tokens"], heads=int(values["heads"]), head_dim=int(values["head_dim"])
            ),
        )
    },
    step_sizes=("images", "tokens"),
    sizes=_sizes,
    size_of_one=_size_of_one,
    kind=lambda op: (op.dtype,),
    core=Encoding,
    core_key=attrgetter("heads", "head_dim", "dtype"),
    features={"encoder_attention": FEATURES},
    shares=("tensor", "exponential", "blocks", "dram", "launch"),
    pipes=_pipes,
    limits=lambda op, gpu: product_limits(op, gpu, op.bytes_read + op.bytes_written),
    work=_work,
    throttled=("encoder_attention",),
    variants=lambda *_: ("",),
    spread={"encoder_attention": 8.0},
    typical=lambda _: ("attention_prefill",),
    ceiling=Ceiling(features=("log_rounds", "log_tokens", "head_dim"), shape=_ceiling_shape),
)
