"""Operators of plain PyTorch: products, convolutions, recurrent layers, attention by kernel, and the small ones."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import NamedTuple

from infercast.bundled import read_data
from infercast.errors import UnknownNameError
from infercast.ops.op import ComputedInDtype, bytes_of


class Kind(NamedTuple):
    """What an operator that hardly computes does to each of ``rows`` x ``cols`` values (data/operators.toml)."""

    name: str
    group: str  # Kinds that are learned together
    read: float = 1.0  # Values read for each value, ...
    written: float = 1.0  # ... and written
    bytes: float = 0.0  # Bytes moved for each value besides
    row_written: float = 0.0  # Values written for each row
    row_bytes: float = 0.0  # Bytes moved for each row besides
    shared: float = 0.0  # Rows of values that all rows read
    shared_written: float = 0.0
    flops: float = 1.0
    launches: int = 1
    cast: bool = False


@cache
def kinds() -> dict[str, Kind]:
    """All kinds by name; one that was not measured has the facts of the one it is like, and its name."""
    facts = read_data("operators.toml")
    like = facts.pop("like")
    found = {name: Kind(name, **values) for name, values in facts.items()}
    return found | {name: found[other] for name, other in like.items()}


def kind_named(name: str) -> Kind:
    try:
        return kinds()[name]
    except KeyError:
        raise UnknownNameError("kind of operator", name, kinds()) from None


@dataclass(frozen=True, slots=True)
class TensorOp(ComputedInDtype):
    """An operator that hardly computes, on ``batch`` times ``rows`` rows of ``cols`` values.

    ``count`` is the ``k`` of a top-k or the rows of an embedding's table. ``read`` and ``written`` are bytes, where
    they are not what its kind says (masks, operands that are broadcast, other strides of a pool).
    """

    kind: str
    rows: int
    cols: int = 1
    _: KW_ONLY
    batch: int = 1
    count: int = 0
    dtype: str = "fp32"
    read: float | None = None
    written: float | None = None
    family: str = "tensor"

    @property
    def elements(self) -> int:
        return self.batch * self.rows * self.cols

    @property
    def flops(self) -> float:
        return kind_named(self.kind).flops * self.elements

    @property
    def bytes_read(self) -> float:
        if self.read is not None:
            return self.read
        kind, value = kind_named(self.kind), bytes_of(self.dtype)
        per_row = kind.shared * value * self.cols + kind.row_bytes * self.batch * self.rows
        return (kind.read * value + kind.bytes / 2) * self.elements + per_row

    @property
    def bytes_written(self) -> float:
        if self.written is not None:
            return self.written
        kind, value = kind_named(self.kind), bytes_of(self.dtype)
        each = kind.written * ((2.0 if self.dtype == "fp32" else 4.0) if kind.cast else value) + kind.bytes / 2
        chosen = self.count * (value + 8.0) if kind.name == "topk" else 0.0
        per_row = (kind.row_written * value + chosen) * self.batch * self.rows
        return each * self.elements + per_row + kind.shared_written * value * self.batch * self.cols


@dataclass(frozen=True, slots=True)
class Product(ComputedInDtype):
    """``y[m, n] = x[m, k] w[k, n]`` by cuBLAS as PyTorch calls it, ``batch`` times over: a linear layer or ``bmm``."""

    m: int
    n: int
    k: int
    batch: int = 1
    _: KW_ONLY
    dtype: str = "bf16"
    bias: bool = False
    family: str = "product"

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def bytes_read(self) -> float:
        return bytes_of(self.dtype) * (1.0 * self.batch * (self.m + self.n) * self.k + (self.n if self.bias else 0))

    @property
    def bytes_written(self) -> float:
        return bytes_of(self.dtype) * 1.0 * self.batch * self.m * self.n


@dataclass(frozen=True, slots=True)
class Conv2d(ComputedInDtype):
    """A convolution of ``batch`` images of ``channels`` x ``height`` x ``width`` by cuDNN; 1-D ones have a height of 1.

    ``out_height`` and ``out_width`` say what stride, padding and dilation make of an image (`conv2d` works them out).
    """

    batch: int
    channels: int
    height: int
    width: int
    out_channels: int
    out_height: int
    out_width: int
    kernel_height: int
    kernel_width: int
    _: KW_ONLY
    groups: int = 1
    channels_last: bool = False
    dtype: str = "bf16"
    family: str = "conv2d"

    @property
    def window(self) -> int:
        """Values that one output is a sum over."""
        return self.channels // self.groups * self.kernel_height * self.kernel_width

    @property
    def pixels(self) -> int:
        return self.batch * self.out_height * self.out_width

    @property
    def flops(self) -> float:
        return 2.0 * self.pixels * self.out_channels * self.window

    @property
    def bytes_read(self) -> float:
        images = 1.0 * self.batch * self.channels * self.height * self.width
        return bytes_of(self.dtype) * (images + self.out_channels * self.window)

    @property
    def bytes_written(self) -> float:
        return bytes_of(self.dtype) * 1.0 * self.pixels * self.out_channels


def conv2d(
    batch: int, channels: int, size: int, out_channels: int, kernel: int, stride: int = 1, *,
    padding: int | None = None, groups: int = 1, channels_last: bool = False, dtype: str = "bf16",
) -> Conv2d:  # fmt: skip
    """A convolution of square images by a square kernel; without a ``padding``, images keep their size over stride."""
    padding = kernel // 2 if padding is None else padding
    out = (size + 2 * padding - kernel) // stride + 1
    sides = (batch, channels, size, size, out_channels, out, out, kernel, kernel)
    return Conv2d(*sides, groups=groups, channels_last=channels_last, dtype=dtype)


@dataclass(frozen=True, slots=True)
class Lstm(ComputedInDtype):
    """Recurrent layers by cuDNN: ``gates`` 4 for an LSTM, 3 for a GRU, 1 for a plain one."""

    batch: int
    steps: int
    inputs: int
    hidden: int
    layers: int = 1
    _: KW_ONLY
    gates: int = 4
    directions: int = 1
    dtype: str = "fp32"
    family: str = "lstm"

    @property
    def weights(self) -> float:
        """Values of all weight matrices; the inputs of all layers but the first are what the one before wrote."""
        first = self.inputs + self.hidden
        others = (self.layers - 1) * (self.directions + 1) * self.hidden
        return 1.0 * self.gates * self.directions * self.hidden * (first + others)

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.steps * self.weights

    @property
    def bytes_read(self) -> float:
        return bytes_of(self.dtype) * (self.weights + 1.0 * self.batch * self.steps * self.inputs)

    @property
    def bytes_written(self) -> float:
        return bytes_of(self.dtype) * 1.0 * self.batch * self.steps * self.directions * self.hidden


SDPA_KERNELS = ("flash_attention", "cudnn_attention", "efficient_attention", "triton", "math")
"""FlashAttention 2, cuDNN's, CUTLASS's, a Triton kernel, and plain operators one after the other."""


@dataclass(frozen=True, slots=True)
class Sdpa(ComputedInDtype):
    """``scaled_dot_product_attention`` by a named kernel; ``keys`` of each of ``batch`` sequences are equally many."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_dim: int
    _: KW_ONLY
    causal: bool = False
    dtype: str = "bf16"
    kernel: str = "flash_attention"
    kv_heads: int | None = None
    family: str = "sdpa"

    @property
    def pairs(self) -> float:
        """Query-key pairs of one head that count; of causal attention about half of a square."""
        every = 1.0 * self.batch * self.queries * self.keys
        return every - self.batch * self.queries * (self.queries - 1) / 2.0 if self.causal else every

    @property
    def flops(self) -> float:
        return 4.0 * self.heads * self.head_dim * self.pairs

    @property
    def bytes_read(self) -> float:
        stored = 2.0 * (self.kv_heads or self.heads) * self.keys
        return bytes_of(self.dtype) * self.batch * self.head_dim * (self.heads * self.queries + stored)

    @property
    def bytes_written(self) -> float:
        return bytes_of(self.dtype) * 1.0 * self.batch * self.heads * self.queries * self.head_dim
