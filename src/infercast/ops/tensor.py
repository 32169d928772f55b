"""Operators of plain PyTorch: products, convolutions, recurrent layers, attention by kernel, and the small ones."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import Any

from infercast.bundled import read_data
from infercast.errors import InputError, UnknownNameError
from infercast.lazy_classes import NamedTuple
from infercast.ops.op import ComputedInDtype, bytes_of

SDPA_KERNELS = ("flash_attention", "cudnn_attention", "efficient_attention", "triton", "math")
"""FlashAttention 2, cuDNN's, CUTLASS's, a Triton kernel, and plain operators one after the other."""


class Counted(ComputedInDtype):
    """An operator by its ``work``: FLOP, and the values of its format that it reads and writes."""

    @property
    def flops(self: Any) -> float:
        return float(self.work[0])

    @property
    def bytes_read(self: Any) -> float:
        return float(bytes_of(self.dtype) * self.work[1])

    @property
    def bytes_written(self: Any) -> float:
        return float(bytes_of(self.dtype) * self.work[2])


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
    """All kinds by name; one that was not measured is that which it is like."""
    facts = read_data("operators.toml")
    found = {name: Kind(name, **values) for name, values in facts["kinds"].items()}
    return found | {name: found[known] for known, names in facts["like"].items() for name in names.split()}


def kind_named(name: str) -> Kind:
    if name not in kinds():
        raise UnknownNameError("kind of operator", name, kinds())
    return kinds()[name]


@dataclass(frozen=True)
class TensorOp(Counted):
    """An operator that hardly computes, on ``batch`` times ``rows`` rows of ``cols`` values. ``count`` is the ``k`` of
    a top-k or the rows of an embedding's table. ``read`` and ``written`` are bytes, where they are not what its kind
    says (masks, operands that are broadcast, other strides of a pool).
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
    def work(self) -> tuple[float, float, float]:
        kind, value, rows = kind_named(self.kind), bytes_of(self.dtype), self.batch * self.rows
        extra = kind.bytes / 2 / value
        each = kind.written * (0.5 if self.dtype == "fp32" else 2.0) if kind.cast else kind.written
        chosen = self.count * (1.0 + 8.0 / value) if kind.name == "topk" else 0.0
        read = (kind.read + extra) * self.elements + kind.shared * self.cols + kind.row_bytes / value * rows
        written = (each + extra) * self.elements + (kind.row_written + chosen) * rows
        written += kind.shared_written * self.batch * self.cols
        given = (read if self.read is None else self.read / value, self.written)
        return kind.flops * self.elements, given[0], written if given[1] is None else given[1] / value


@dataclass(frozen=True)
class Product(Counted):
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
    def work(self) -> tuple[float, float, float]:
        written = 1.0 * self.batch * self.m * self.n
        return 2.0 * written * self.k, self.batch * (self.m + self.n) * self.k + self.bias * self.n, written


@dataclass(frozen=True)
class Conv2d(Counted):
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
    def work(self) -> tuple[float, float, float]:
        images, written = self.batch * self.channels * self.height * self.width, 1.0 * self.pixels * self.out_channels
        return 2.0 * written * self.window, images + self.out_channels * self.window, written


def conv2d(
    batch: int, channels: int, size: int, out_channels: int, kernel: int, stride: int = 1,
    *, padding: int | None = None, **options: Any,
) -> Conv2d:  # fmt: skip
    """A convolution of square images by a square kernel; without a ``padding``, images keep their size over stride."""
    out = (size + 2 * (kernel // 2 if padding is None else padding) - kernel) // stride + 1
    groups = options.get("groups", 1)
    if out < 1 or channels % groups or out_channels % groups:
        raise InputError(
            f"no convolution has {groups} groups of {channels} to {out_channels} channels of {size} pixels"
        )
    return Conv2d(batch, channels, size, size, out_channels, out, out, kernel, kernel, **options)


@dataclass(frozen=True)
class Lstm(Counted):
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
        read = self.inputs + self.hidden + (self.layers - 1) * (self.directions + 1) * self.hidden
        return 1.0 * self.gates * self.directions * self.hidden * read

    @property
    def work(self) -> tuple[float, float, float]:
        tokens = self.batch * self.steps
        read = self.weights + tokens * self.inputs
        return 2.0 * tokens * self.weights, read, tokens * self.directions * self.hidden


@dataclass(frozen=True)
class Sdpa(Counted):
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
    def work(self) -> tuple[float, float, float]:
        unseen = self.queries * (self.queries - 1) / 2.0 if self.causal else 0.0
        pairs, values = self.batch * (self.queries * self.keys - unseen), 1.0 * self.batch * self.head_dim
        read = self.heads * self.queries + 2.0 * (self.kv_heads or self.heads) * self.keys
        return 4.0 * self.heads * self.head_dim * pairs, values * read, values * self.heads * self.queries
