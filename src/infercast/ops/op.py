"""Operators of dense models with sizes as integers or arrays, memory-bound kernels among them, and number formats."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from infercast.errors import UnknownNameError
from infercast.lazy_classes import KW_ONLY, dataclass

Size = int | npt.NDArray[Any]  # A dimension of one kernel, or of an array of kernels

Quantity = float | npt.NDArray[Any]  # FLOPs, bytes or seconds of one kernel, or of an array of kernels
DEFAULT_LIBRARY = "vllm"
FUSED_NORM = "fused_norm"  # The kind of a norm that is part of the all-reduce before it

BY_HAND = "by_hand"  # The kind of a hand-written kernel that streams, where other engines' compilers write one
Lengths = npt.NDArray[Any]


class Op(Protocol):
    """A frozen dataclass of one kernel family."""

    @property
    def family(self) -> str:
        """Kernel family: ``gemm``, ``attention``, ``moe``, ``norm``, ..."""

    @property
    def compute_dtype(self) -> str:
        """The format the arithmetic runs in."""

    @property
    def flops(self) -> Quantity:
        """Floating-point operations, a multiply-add counted as two."""

    @property
    def bytes_read(self) -> Quantity:
        """Distinct bytes the kernel must read."""

    @property
    def bytes_written(self) -> Quantity:
        """Distinct bytes the kernel must write."""


class ComputedInDtype:
    """An operator with arithmetic in the format of its inputs."""

    __slots__ = ()
    dtype: str

    @property
    def compute_dtype(self) -> str:
        return self.dtype


@dataclass(frozen=True, slots=True)
class Call:
    """A named operator that a step launches ``count`` times, once for each layer that holds it."""

    name: str
    op: Op
    count: int = 1
    beside: Any = False  # Whether, by size, it runs on a stream of its own, in parallel with the kernels around it
    slower: Quantity = 1.0  # How many times as long it takes as such a kernel, by how the engine launches it, ...
    saved: float = 0.0  # ... and the seconds that it takes less


PACKED_LATENT = "fp8_ds_mla"  # How FlashMLA caches the latents of sparse attention

# Bytes a stored value, with its share of the scales that travel with it:
# fp8_block has one fp32 scale for a 128 x 128 tile, int4 one bf16 scale for 128 values (AWQ, GPTQ),
# mxfp4 one 8-bit scale for 32 values (OCP MX specification 1.0), nvfp4 one 8-bit scale for 16.
# A packed latent has 512 values in fp8 with four fp32 scales, and 64 in bf16 (FlashMLA).
BYTES: dict[str, float] = {
    "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0 + 4 / (128 * 128), "int8": 1.0,
    "int4": 0.5 + 2 / 128, "mxfp4": 0.5 + 1 / 32, "nvfp4": 0.5 + 1 / 16, PACKED_LATENT: 656 / 576,
    **{f"int{bits}": bits / 8 + 2 / 128 for bits in (3, 5, 6)},
}  # fmt: skip

# The tensor-core rate a format multiplies at. A weight-only format is multiplied as its activations are.
TENSOR_RATE: dict[str, str] = {"fp8_block": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}


def bytes_of(dtype: str) -> float:
    try:
        return BYTES[dtype]
    except KeyError:
        raise UnknownNameError("dtype", dtype, BYTES) from None


def tensor_rate_of(dtype: str) -> str:
    """The key of a GPU's dense FLOP/s table that a matrix product in ``dtype`` runs at."""
    return TENSOR_RATE.get(dtype, dtype)


@dataclass(frozen=True, slots=True)
class Gemm(ComputedInDtype):
    """``y[m, n] = x[m, k] w[k, n]``, ``batch`` times over with different weights. ``dtype`` is the format of ``x`` and
    of the arithmetic, ``weight_dtype`` the stored format of ``w`` (the same unless weights alone are quantised),
    ``out_dtype`` the format of ``y``.
    """

    m: Size
    n: Size
    k: Size
    dtype: str = "bf16"
    weight_dtype: str | None = None
    out_dtype: str = "bf16"
    batch: int = 1
    family: str = "gemm"
    quantiser: str = ""  # The engine that quantises ``x`` where a table times both together; for kernel models only

    @property
    def flops(self) -> Quantity:
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def weight_bytes(self) -> Quantity:
        return self.batch * bytes_of(self.weight_dtype or self.dtype) * self.n * self.k

    @property
    def bytes_read(self) -> Quantity:
        return self.batch * bytes_of(self.dtype) * self.m * self.k + self.weight_bytes

    @property
    def bytes_written(self) -> Quantity:
        return self.batch * bytes_of(self.out_dtype) * self.m * self.n


@dataclass(frozen=True, slots=True)
class MoE(ComputedInDtype):
    """``topk`` of ``experts`` gated feed-forward networks for each token, from router output to summed result.
    ``local_experts`` of them live on this GPU (all, unless experts are spread over GPUs). Routing is taken as uniform
    in every quantity here: each expert is as likely as any other. ``routing`` is for kernel models only.
    """

    tokens: Size
    hidden: int
    inter: int
    experts: int
    topk: int
    local_experts: int | None = None
    dtype: str = "bf16"
    weight_dtype: str | None = None
    gated: bool = True
    family: str = "moe"
    routing: str = "uniform"
    """How tokens spread over experts: ``uniform``, ``balanced`` (equal counts) or ``power_law_`` and its exponent."""
    kernel: str = ""  # The kernel, where it is not the engine's own choice

    @property
    def num_local(self) -> int:
        return self.experts if self.local_experts is None else self.local_experts

    @property
    def routed_rows(self) -> Quantity:
        """Token-expert pairs computed on this GPU."""
        return self.tokens * (self.topk * self.num_local / self.experts)

    @property
    def experts_hit(self) -> Quantity:
        """Expected number of local experts that receive at least one token."""
        missed = (1.0 - self.topk / self.experts) ** self.tokens
        return self.num_local * (1.0 - missed)

    @property
    def matrices(self) -> int:
        """Weight matrices an expert has: up, down and, where gated, the gate."""
        return 3 if self.gated else 2

    @property
    def flops(self) -> Quantity:
        return 2.0 * self.matrices * self.hidden * self.inter * self.routed_rows

    @property
    def weight_bytes(self) -> Quantity:
        per_expert = self.matrices * self.hidden * self.inter * bytes_of(self.weight_dtype or self.dtype)
        return per_expert * self.experts_hit

    @property
    def intermediate_bytes(self) -> Quantity:
        """Traffic between the kernels inside: first product out, activation in and out, second product out."""
        width = (self.matrices - 1) * self.inter * 2 + self.inter * 2 + self.hidden
        return 2.0 * width * self.routed_rows

    @property
    def bytes_read(self) -> Quantity:
        """Tokens, weights of the experts hit, and half of the traffic between the kernels inside."""
        return 2.0 * self.hidden * self.tokens + self.weight_bytes + self.intermediate_bytes / 2

    @property
    def bytes_written(self) -> Quantity:
        """The summed result and the other half of the inner traffic."""
        return 2.0 * self.hidden * self.tokens + self.intermediate_bytes / 2


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective over ``gpus`` GPUs; ``message_bytes`` is the full message as the caller sees it."""

    kind: str
    message_bytes: Size
    gpus: int
    library: str = DEFAULT_LIBRARY  # An engine's, with an all-reduce of its own for short messages, or ``nccl``
    family: str = "collective"
    compute_dtype: str = "fp32"

    @property
    def flops(self) -> Quantity:
        """Reductions are never what limits a collective."""
        return 0.0 * self.message_bytes

    @property
    def link_share(self) -> float:
        """Bytes that cross a GPU's links for each byte of the message: the volume of a ring."""
        passes = 2 if self.kind == "all_reduce" else 1  # How often a ring carries each other GPU's share of it
        return 1.0 if self.kind == "send_recv" else passes * ((self.gpus - 1) / self.gpus)

    @property
    def link_bytes(self) -> Quantity:
        """Bytes that cross each GPU's links in one direction."""
        return self.link_share * self.message_bytes

    @property
    def bytes_read(self) -> Quantity:
        return 1.0 * self.message_bytes

    @property
    def bytes_written(self) -> Quantity:
        return 1.0 * self.message_bytes


@dataclass(frozen=True, slots=True)
class Elementwise:
    """``rows`` rows, each reading and writing a fixed number of bytes; ``shared_read``: what all read together."""

    family: str
    rows: Size
    read_per_row: float
    written_per_row: float
    flops_per_row: float = 0.0
    shared_read: float = 0.0
    compute_dtype: str = "fp32"
    kind: str = ""  # Which kernel of its family it is, where one family has several
    reduced: Size = 0  # Values of a row that must be seen before any can be written; 0 where each is written by itself

    @property
    def flops(self) -> Quantity:
        return self.flops_per_row * self.rows

    @property
    def bytes_read(self) -> Quantity:
        return self.read_per_row * self.rows + self.shared_read

    @property
    def bytes_written(self) -> Quantity:
        return self.written_per_row * self.rows


def norm(
    rows: Size, width: int, *, residual: bool, dtype: str = "bf16", out_dtype: str = "bf16", fused: bool = False,
    streams: int = 0,
) -> Elementwise:  # fmt: skip
    """RMS or layer norm, with ``residual`` and ``streams`` more rows added before, or ``fused`` into an all-reduce."""
    value = bytes_of(dtype)
    read = width * value * ((2 if residual else 1) + streams)
    written = width * bytes_of(out_dtype) + (width * value if residual else 0)
    kind = ("add_norm" if residual else "norm") + ("" if out_dtype == dtype else "_quantise")
    kind = FUSED_NORM if fused else kind
    return Elementwise("norm", rows, read, written, 5.0 * width, shared_read=width * value, kind=kind, reduced=width)


def head_norm(rows: Size, heads: int, width: int, dtype: str = "bf16", *, by_hand: bool = False) -> Elementwise:
    """The mean square of each head, which the rotary kernel that follows applies; ``by_hand``: a kernel applies it."""
    read, written = heads * width * bytes_of(dtype), 4.0 * heads
    if by_hand:
        return Elementwise("norm", rows, read, read, 4.0 * heads * width, kind=BY_HAND)
    return Elementwise("norm", rows, read, written, 2.0 * heads * width, kind="head_norm")


def gated_activation(rows: Size, width: int, dtype: str = "bf16", out_dtype: str | None = None) -> Elementwise:
    """``act(gate) * up``: reads both halves, writes one."""
    written = width * bytes_of(out_dtype or dtype)
    plain = out_dtype in (None, dtype)
    kind, reduced = ("activation", 0) if plain else ("activation_quantise", width)
    return Elementwise(
        "activation", rows, 2 * width * bytes_of(dtype), written, 6.0 * width, kind=kind, reduced=reduced
    )


def plain_activation(rows: Size, width: int, dtype: str = "bf16", out_dtype: str | None = None) -> Elementwise:
    written = width * bytes_of(out_dtype or dtype)
    return Elementwise("activation", rows, width * bytes_of(dtype), written, 5.0 * width)


def rope(
    rows: Size, heads: int, rotary_dim: int, dtype: str = "bf16", *, normed: bool = False, copied: int = 0,
    by_hand: bool = False,
) -> Elementwise:  # fmt: skip
    """Rotary position embedding; ``normed`` heads are scaled on the way, ``copied`` elements of a row copied along."""
    width = heads * rotary_dim
    value = bytes_of(dtype)
    kind = BY_HAND if by_hand else "normed_rope" if normed else "latent_rope" if copied else "rope"
    written = (width + copied) * value
    return Elementwise("rope", rows, written + rotary_dim * value, written, 3.0 * width, kind=kind)


def kv_write(
    rows: Size, width: int, dtype: str = "bf16", kv_dtype: str = "bf16", *, by_hand: bool = False
) -> Elementwise:
    kind = BY_HAND if by_hand else ""
    return Elementwise("kv_write", rows, width * bytes_of(dtype) + 8, width * bytes_of(kv_dtype), kind=kind)


def embedding(rows: Size, width: int, dtype: str = "bf16") -> Elementwise:
    value = bytes_of(dtype)
    return Elementwise("embedding", rows, width * value + 8, width * value)


def quantise(
    rows: Size, width: int, dtype: str = "bf16", out_dtype: str = "fp8", *, compiled: bool = False, apart: bool = False
) -> Elementwise:
    """Scale activations into a narrower format, a scale a row; ``apart`` from norms by SGLang's kernels."""
    read, written = width * bytes_of(dtype), width * bytes_of(out_dtype) + 4
    kind = "compiled_quantise" if compiled else "row_quantise" if apart and out_dtype == "fp8" else ""
    return Elementwise("quantise", rows, read, written, 4.0 * width, kind=kind, reduced=width)


def sampling(rows: Size, vocabulary: int) -> Elementwise:
    """Logits to fp32, then one pass to pick a token."""
    return Elementwise("sampling", rows, vocabulary * (2.0 + 4.0), vocabulary * 4.0 + 8, 2.0 * vocabulary)


def likeliest(rows: Size, vocabulary: int, dtype: str = "bf16") -> Elementwise:
    """One pass over logits as they are, to pick the likeliest token."""
    return Elementwise("sampling", rows, vocabulary * bytes_of(dtype), 8.0, 1.0 * vocabulary)


def rejection(rows: Size, vocabulary: int) -> Elementwise:
    """Drafts are verified: two more passes over the logits in fp32."""
    return Elementwise("sampling", rows, 2 * vocabulary * 4.0, 16.0, 2.0 * vocabulary)


def sorted_sampling(rows: Size, vocabulary: int) -> Elementwise:
    """What top-p adds: PyTorch's sort moves about 440 bytes a logit (1 to 1,024 rows of 32,000 to 262,208, H200)."""
    moved = 440.0 * vocabulary
    return Elementwise("sampling", rows, 0.6 * moved, 0.4 * moved, 8.0 * vocabulary, kind="sorted_sampling")


def weighted_sum(rows: Size, width: int, terms: int, dtype: str = "bf16") -> Elementwise:
    """Add ``terms`` rows into one, such as shared and routed experts."""
    value = bytes_of(dtype)
    return Elementwise("activation", rows, terms * width * value, width * value, 1.0 * terms * width)


def routing(rows: Size, experts: int, topk: int, dtype: str = "bf16") -> Elementwise:
    """Pick the ``topk`` experts of each token from the router's output."""
    return Elementwise("moe", rows, experts * bytes_of(dtype), 8.0 * topk, 4.0 * experts, kind="routing")


def copy(rows: Size, read: float, written: float | None = None) -> Elementwise:
    """Move the bytes of each row, or clear some of what is written."""
    return Elementwise("activation", rows, read, read if written is None else written)


def strided_copy(rows: Size, row_bytes: float) -> Elementwise:
    """Copy a slice of each row out of wider ones, by a kernel that works out every element's place (PyTorch's)."""
    return Elementwise("activation", rows, row_bytes, row_bytes, kind="strided_copy")


def small_blocks(rows: Size, read: float, written: float) -> Elementwise:
    """The same by a thread block of one warp or a few for each small row, as simple Triton kernels do it."""
    return Elementwise("activation", rows, read, written, kind="small_blocks")


def gated_norm(rows: Size, heads: int, width: int, dtype: str = "bf16") -> Elementwise:
    """Norm of each head, times a gate that is as wide."""
    size = heads * width * bytes_of(dtype)
    return Elementwise("norm", rows, 2 * size, size, 9.0 * heads * width, kind="norm", reduced=width)


def output_gate(rows: Size, width: int, gates: int, dtype: str = "bf16") -> Elementwise:
    """``output * sigmoid(gate)``, with ``gates`` values for ``width``."""
    value = bytes_of(dtype)
    return Elementwise("activation", rows, (width + gates) * value, width * value, 6.0 * width)


def scan_inputs(rows: Size, width: int, heads: int, dtype: str = "bf16") -> Elementwise:
    """Split what a convolution wrote into heads, norm queries and keys, and work out two gates a head in fp32."""
    value = bytes_of(dtype)
    return Elementwise("activation", rows, (width + 2 * heads) * value, width * value + 8 * heads, 5.0 * width)


def sum_batch(per_sequence: Lengths, sequences: Lengths | int) -> Quantity:
    """Sum over the batch, the last axis, in which each row stands for a number of ``sequences``."""
    total: Quantity = np.add.reduce(per_sequence if isinstance(sequences, int) else per_sequence * sequences, axis=-1)
    return total * sequences if isinstance(sequences, int) else total


class HeadAttention(ComputedInDtype):
    """What query heads compute and move, by ``num_queries``, ``num_pairs`` and the ``kv_bytes`` of the cache."""

    @property
    def flops(self: Any) -> Quantity:
        """Scores and weighted values: two products for each query-key pair and head."""
        flops: Quantity = 2.0 * self.heads * (self.head_dim + self.value_dim) * self.num_pairs
        return flops

    @property
    def bytes_read(self: Any) -> Quantity:
        read: Quantity = bytes_of(self.dtype) * self.heads * self.head_dim * self.num_queries + self.kv_bytes
        return read

    @property
    def bytes_written(self: Any) -> Quantity:
        written: Quantity = bytes_of(self.dtype) * self.heads * self.value_dim * self.num_queries
        return written


@dataclass(frozen=True)
class Attention(HeadAttention):
    """One attention kernel over a batch of sequences of uneven lengths. The batch is a histogram: ``sequences[i]``
    sequences each have ``queries[i]`` new tokens and ``keys[i]`` tokens in all (cached ones and the new ones). The last
    axis runs over the batch and is summed; further axes in front are an array of batches. Rows with ``sequences == 0``
    are padding. A decode row has ``queries == 1``. ``window`` limits a query to the last ``window`` keys (0: no limit).
    With ``latent_kv`` (multi-head latent attention in its absorbed form) keys and values are one stored vector of
    ``head_dim``, read once.
    """

    queries: Lengths
    keys: Lengths
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    sequences: Lengths | int = 1
    window: int = 0
    latent_kv: bool = False
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    family: str = "attention"
    kernel: str = ""  # Which kernel (data/kernels.toml), where it is not the engine's own choice

    @cached_property
    def num_queries(self) -> Quantity:
        return sum_batch(self.queries, self.sequences)

    def num_tiles(self, rows: int) -> Quantity:
        """Tiles of ``rows`` queries of one sequence each, over the batch."""
        return sum_batch(-(-self.queries // rows), self.sequences)

    @cached_property
    def num_pairs(self) -> Quantity:
        """Query-key pairs that one head computes over the batch."""
        queries, cached = self.queries, self.keys - self.queries
        if not self.window:
            return sum_batch(queries * cached + queries * (queries + 1) // 2, self.sequences)
        # The first queries still see every key; the others see exactly ``window``.
        unlimited = np.clip(self.window - cached, 0, queries)
        limited = (queries - unlimited) * self.window
        return sum_batch(unlimited * cached + unlimited * (unlimited + 1) // 2 + limited, self.sequences)

    @cached_property
    def num_keys_in_reach(self) -> Quantity:
        """Keys of the batch that at least one query of their sequence looks at."""
        return sum_batch(
            np.minimum(self.keys, self.window + self.queries - 1) if self.window else self.keys, self.sequences
        )

    @property
    def exponentials(self) -> Quantity:
        """Exponentials of the softmax, which run on the special-function units."""
        return 1.0 * self.heads * self.num_pairs

    @property
    def kv_bytes(self) -> Quantity:
        width = self.head_dim if self.latent_kv else self.head_dim + self.value_dim
        return bytes_of(self.kv_dtype) * self.kv_heads * width * self.num_keys_in_reach


@dataclass(frozen=True, slots=True)
class EncoderAttention(ComputedInDtype):
    """Attention of every token of an image with all others of it, in a vision tower: no cache, nothing is masked."""

    images: Size
    tokens: Size
    _: KW_ONLY
    heads: int
    head_dim: int
    dtype: str = "bf16"
    family: str = "encoder_attention"

    @property
    def flops(self) -> Quantity:
        return 4.0 * self.heads * self.head_dim * self.images * self.tokens * self.tokens

    @property
    def bytes_read(self) -> Quantity:
        return 3.0 * bytes_of(self.dtype) * self.heads * self.head_dim * self.images * self.tokens

    @property
    def bytes_written(self) -> Quantity:
        return bytes_of(self.dtype) * self.heads * self.head_dim * self.images * self.tokens


def spread_lengths(count: int, mean: int, sigma: float) -> npt.NDArray[np.int64]:
    """``count`` lengths of about this mean; ``sigma`` of the logarithm: 0 makes all equal, 1 is as uneven as chats."""
    if sigma == 0:
        return np.full(count, mean, dtype=np.int64)
    from statistics import NormalDist  # noqa: PLC0415 - few need it, and it loads decimals and fractions

    normal = NormalDist()
    quantiles = np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)])
    lengths = np.exp(sigma * quantiles)
    lengths = np.maximum(np.rint(lengths * (mean / lengths.mean())), 1).astype(np.int64)
    return np.asarray(np.random.default_rng(count).permutation(lengths))
