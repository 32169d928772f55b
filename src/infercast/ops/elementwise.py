"""Memory-bound kernels: norms, activations, rotary embedding, KV writes, embedding, sampling, quantising."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.ops.op import Quantity, Size, bytes_of

FUSED_NORM = "fused_norm"
"""The kind of a norm that is part of the all-reduce before it."""

BY_HAND = "by_hand"
"""The kind of a hand-written kernel that streams, where other engines' compilers write one."""


@dataclass(frozen=True, slots=True)
class Elementwise:
    """``rows`` independent rows, each reading and writing a fixed number of bytes.

    ``shared_read`` is what all rows read together, such as a norm's weight.
    """

    family: str
    rows: Size
    read_per_row: float
    written_per_row: float
    flops_per_row: float = 0.0
    shared_read: float = 0.0
    compute_dtype: str = "fp32"
    kind: str = ""
    """Which kernel of its family it is, where one family has several."""
    reduced: Size = 0
    """Values of a row that must all be seen before one can be written; 0 where each is written by itself."""

    @property
    def flops(self) -> Quantity:
        """Plain arithmetic, not on the tensor cores."""
        return self.flops_per_row * self.rows

    @property
    def bytes_read(self) -> Quantity:
        """What every row reads, and what they share."""
        return self.read_per_row * self.rows + self.shared_read

    @property
    def bytes_written(self) -> Quantity:
        """What every row writes."""
        return self.written_per_row * self.rows


def norm(
    rows: Size,
    width: int,
    *,
    residual: bool,
    dtype: str = "bf16",
    out_dtype: str = "bf16",
    fused: bool = False,
    streams: int = 0,
) -> Elementwise:
    """RMS or layer norm over ``width`` values; with ``residual``, fused with the addition before it.

    A ``fused`` one is part of the all-reduce before it: no launch of its own. ``streams`` more rows are added up.
    """
    value = bytes_of(dtype)
    read = width * value * ((2 if residual else 1) + streams)
    written = width * bytes_of(out_dtype) + (width * value if residual else 0)
    kind = ("add_norm" if residual else "norm") + ("" if out_dtype == dtype else "_quantise")
    kind = FUSED_NORM if fused else kind
    return Elementwise("norm", rows, read, written, 5.0 * width, shared_read=width * value, kind=kind, reduced=width)


def head_norm(rows: Size, heads: int, width: int, dtype: str = "bf16", *, by_hand: bool = False) -> Elementwise:
    """The mean square of each head; the rotary kernel that follows applies it, so next to nothing is written.

    ``by_hand``: a kernel of its own applies it.
    """
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
    """``act(up)``: an activation without a gate."""
    written = width * bytes_of(out_dtype or dtype)
    return Elementwise("activation", rows, width * bytes_of(dtype), written, 5.0 * width)


def rope(
    rows: Size,
    heads: int,
    rotary_dim: int,
    dtype: str = "bf16",
    *,
    normed: bool = False,
    copied: int = 0,
    by_hand: bool = False,
) -> Elementwise:
    """Rotary position embedding of ``heads`` query and key heads; ``normed`` ones are scaled on the way.

    ``copied`` elements of a row lie beside what is rotated, and are copied with it, as in latent attention.
    """
    width = heads * rotary_dim
    value = bytes_of(dtype)
    kind = BY_HAND if by_hand else "normed_rope" if normed else "latent_rope" if copied else "rope"
    written = (width + copied) * value
    return Elementwise("rope", rows, written + rotary_dim * value, written, 3.0 * width, kind=kind)


def kv_write(
    rows: Size, width: int, dtype: str = "bf16", kv_dtype: str = "bf16", *, by_hand: bool = False
) -> Elementwise:
    """Copy ``width`` new key and value elements of each token into their cache blocks."""
    kind = BY_HAND if by_hand else ""
    return Elementwise("kv_write", rows, width * bytes_of(dtype) + 8, width * bytes_of(kv_dtype), kind=kind)


def embedding(rows: Size, width: int, dtype: str = "bf16") -> Elementwise:
    """Look a row of the embedding table up for each token."""
    value = bytes_of(dtype)
    return Elementwise("embedding", rows, width * value + 8, width * value)


def quantise(
    rows: Size,
    width: int,
    dtype: str = "bf16",
    out_dtype: str = "fp8",
    *,
    compiled: bool = False,
    apart: bool = False,
) -> Elementwise:
    """Scale activations into a narrower format, one scale found for each row.

    ``compiled`` kernels are an engine compiler's, others hand-written; those that are ``apart`` from norms SGLang's.
    """
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
    """What comes on top of it where a token is picked by top-p from all logits in order.

    Plain PyTorch sorts every row, sums it up, masks it and puts it back: about 440 bytes move for each logit, as
    measured on an H200 with 1 to 1,024 rows of 32,000 to 262,208 logits.
    """
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
    """Move so many bytes of each row, or clear some of what is written."""
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
