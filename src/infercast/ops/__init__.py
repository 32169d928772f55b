"""What a kernel is asked to do: shape, dtype, FLOPs and bytes. Knows no GPU and no fit."""

from infercast.ops.mixers import (
    HyperConnection,
    IndexScores,
    Scan,
    ShortConvolution,
    SparseAttention,
    StateUpdate,
    TopK,
)
from infercast.ops.op import Attention, Call, Collective, Elementwise, EncoderAttention, Gemm, MoE, Op

__all__ = [
    "Attention", "Call", "Collective", "Elementwise", "EncoderAttention", "Gemm", "HyperConnection", "IndexScores",
    "MoE", "Op", "Scan", "ShortConvolution", "SparseAttention", "StateUpdate", "TopK",
]  # fmt: skip
