"""Attention of vision encoders: physics, features and family record."""

from __future__ import annotations

from math import ceil
from operator import attrgetter
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import EncoderAttention
from infercast.ops.op import Quantity, bytes_of, tensor_rate_of
from infercast.predict.array_api import Number, Physics, Plain, kit_of
from infercast.predict.families.attention_kernels import family_of
from infercast.predict.families.family import (
    Ceiling,
    Family,
    Pipes,
    Shape,
    dram_seconds,
    float_pairs,
    lone_pair,
    product_limits,
    quantised_waves,
)

# Attention inside images, in vision towers: tiles of query rows, each against all tokens of its image.
#
# Heads of 72 and 80 are computed as 96. Nothing is masked, so all tiles of an image take as long.


FEATURES = (
    "log_images", "log_tokens", "log_heads", "head_dim", "log_rounds", "fill", "row_fill", "key_fill", "tensor_share",
    "exponential_share", "blocks_share", "dram_share", "launch_share", "log_bytes_over_l2", "log_microseconds",
)  # fmt: skip
WIDTHS = 32
"""Heads are computed in whole multiples of so many values."""
LAUNCH_SHARE, TAIL = 0.75, 0.5


class Encoding:
    """Attention of one layout of heads on one GPU."""

    def __init__(self, op: EncoderAttention, gpu: Gpu) -> None:
        self.op, self.gpu, self.family = op, gpu, (family := family_of(gpu))
        speed = gpu.sustained_fraction
        width = ceil(op.head_dim / WIDTHS) * WIDTHS
        self.tensor = 4.0 * width / (gpu.dense_flops(op.dtype) * speed * family.tensor_share / gpu.sms)
        self.exponential = 1.0 / (gpu.special_rate * speed * family.exponential_share / gpu.sms)
        self.chain = family.tile_seconds + family.tile_seconds_per_dim * op.head_dim
        self.launch = LAUNCH_SHARE * family.prompt_launch_cycles / gpu.boost_clock
        self.sizes = Plain.log2(op.heads), float(op.head_dim)

    def physics(self, size: tuple[Number, Number], *, engine: bool = False) -> Physics:
        """So many images of so many tokens; in an ``engine`` they take as long as in a table."""
        del engine
        images, tokens = size
        a, x, op, gpu, family = self, kit_of(size[1]), self.op, self.gpu, self.family
        tiles = x.ceil(tokens / family.tile_rows)
        keys = x.ceil(tokens / family.tile_keys) * family.tile_keys
        blocks = images * op.heads * tiles
        rounds = blocks / gpu.sms
        # The last round is rarely full, and ends a little after the others.
        whole = x.larger(1.0, rounds + TAIL * (x.ceil(rounds) - rounds))
        moved = 4.0 * bytes_of(op.dtype) * op.heads * op.head_dim * images * tokens
        miss = x.miss_share(moved, gpu.l2_bytes * 0.6, 3.0)
        pairs = whole * family.tile_rows * keys
        terms = {
            "tensor": pairs * a.tensor,
            "exponential": pairs * a.exponential,
            "blocks": a.chain * whole,
            "dram": moved * (miss / (gpu.dram_bandwidth * 0.75) + (1.0 - miss) / (gpu.l2_bandwidth * 0.5)),
            "launch": x.like(moved, a.launch),
        }
        work = x.soft_pair(family.softmax_overlap, terms["tensor"], terms["exponential"])
        seconds = terms["launch"] + x.soft_pair(3.0, work + terms["blocks"], terms["dram"])
        features = x.columns(
            *x.logs(images, tokens),
            *a.sizes,
            x.log2(rounds),
            x.fill(blocks, gpu.sms),
            tokens / (tiles * family.tile_rows),
            tokens / keys,
            *[terms[name] / seconds for name in ("tensor", "exponential", "blocks", "dram", "launch")],
            *x.logs(moved / gpu.l2_bytes, seconds * 1e6),
        )
        return Physics(seconds, terms, features)


TILE = 128


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
    sizes=lambda op: float_pairs(op.images, op.tokens),
    size_of_one=lambda op: lone_pair(op.images, op.tokens),
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
