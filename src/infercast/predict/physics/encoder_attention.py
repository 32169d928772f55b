"""Attention inside images, in vision towers: tiles of query rows, each against all tokens of its image.

Heads of 72 and 80 are computed as 96. Nothing is masked, so all tiles of an image take as long.
"""

from __future__ import annotations

from math import ceil

from infercast.hardware import Gpu
from infercast.ops.dtypes import bytes_of
from infercast.ops.encoder import EncoderAttention
from infercast.predict.physics.attention_kernels import family_of
from infercast.predict.physics.either import Number, Plain, kit_of
from infercast.predict.physics.terms import Physics

FEATURES = (
    "log_images",
    "log_tokens",
    "log_heads",
    "head_dim",
    "log_rounds",
    "fill",
    "row_fill",
    "key_fill",
    "tensor_share",
    "exponential_share",
    "blocks_share",
    "dram_share",
    "launch_share",
    "log_bytes_over_l2",
    "log_microseconds",
)
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
