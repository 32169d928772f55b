"""Attention inside images, in vision towers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from infercast.ops.dtypes import bytes_of
from infercast.ops.op import Quantity, Size


@dataclass(frozen=True, slots=True)
class EncoderAttention:
    """Attention of every token of an image with all others of it, in a vision tower: no cache, nothing is masked."""

    images: Size
    tokens: Size
    _: KW_ONLY
    heads: int
    head_dim: int
    dtype: str = "bf16"
    family: str = "encoder_attention"

    @property
    def compute_dtype(self) -> str:
        """The format of the two matrix products."""
        return self.dtype

    @property
    def flops(self) -> Quantity:
        """Scores and weighted values."""
        return 4.0 * self.heads * self.head_dim * self.images * self.tokens * self.tokens

    @property
    def bytes_read(self) -> Quantity:
        """Queries, keys and values."""
        return 3.0 * bytes_of(self.dtype) * self.heads * self.head_dim * self.images * self.tokens

    @property
    def bytes_written(self) -> Quantity:
        """The output."""
        return bytes_of(self.dtype) * self.heads * self.head_dim * self.images * self.tokens
