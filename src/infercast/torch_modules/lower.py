"""Which kernels an aten operator launches on an NVIDIA GPU: PyTorch's rules of dispatch, written down for inference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.ops import Op
from infercast.ops.tensor import Conv2d, Lstm, Product, Sdpa, TensorOp

# What a module called: aten operators in order with the shapes they met, and the memory they held.

SIZES = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4}
FORMATS = {"float32": "fp32", "float64": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size(self) -> int:
        return SIZES.get(self.dtype, 8)

    @property
    def bytes(self) -> int:
        """Distinct bytes: what was broadcast counts once."""
        return self.size * prod(length for length, stride in zip(self.shape, self.strides, strict=True) if stride)

    @property
    def format(self) -> str:
        """The name of its number format among operators; integers are as fast as floats of their size."""
        return FORMATS.get(self.dtype, "bf16" if self.size <= 2 else "fp32")

    @property
    def is_contiguous(self) -> bool:
        return self.lies_in(range(len(self.shape)))

    @property
    def is_channels_last(self) -> bool:
        return len(self.shape) >= 4 and not self.is_contiguous and self.lies_in([0, *range(2, len(self.shape)), 1])

    @property
    def is_dense(self) -> bool:
        return self.lies_in(sorted(range(len(self.shape)), key=lambda at: (-self.strides[at], at)))

    @property
    def innermost(self) -> int:
        """The dimension of adjacent values; -1 without any."""
        sides = zip(self.strides, range(len(self.shape)), self.shape, strict=True)
        return min(((stride, at) for stride, at, length in sides if length > 1 and stride), default=(0, -1))[1]

    def lies_in(self, order: Sequence[int]) -> bool:
        """Whether values lie without gaps, the dimensions in this order."""
        expected = 1
        for at in reversed(order):
            if self.shape[at] != 1:
                if self.strides[at] != expected:
                    return False
                expected *= self.shape[at]
        return True


@dataclass(frozen=True, slots=True)
class AtenCall:
    """One operator that PyTorch dispatched; a Triton kernel has a name that begins with ``triton.``."""

    name: str
    arguments: dict[str, Any]  # By name; tensors and lists of them among plain values
    outputs: tuple[Tensor, ...]
    module: str = ""  # Path of the submodule whose ``forward`` called it
    is_view: bool = False

    @property
    def inputs(self) -> list[Tensor]:
        given = (each if isinstance(each, list) else [each] for each in self.arguments.values())
        return [each for several in given for each in several if isinstance(each, Tensor)]

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)


@dataclass(frozen=True, slots=True)
class Capture:
    calls: list[AtenCall]
    parameters: int
    weight_bytes: int
    peak_bytes: int  # The most that inputs, activations and outputs took at once, as PyTorch's allocator rounds them
    assumed: list[str] = field(default_factory=list)
    """Values that decided how the code went on, and that were drawn because no weights are there."""


# Which kernels each of them launches.

WAITS = frozenset(f"aten.{name}" for name in ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique"))
"""Operators after which the host waits for the GPU."""


class Kernel(NamedTuple):
    op: Op
    order: str = ""
    """``strided`` where threads compute a place for each value, ``transposed`` where neighbours also lie apart,
    ``gathered`` where each needs several values from several places."""
    launches: int = 1
    unknown: bool = False  # Whether only a bound of its time is known: that all its tensors are moved once


class Rules(NamedTuple):
    """What the choice of a kernel depends on besides the call."""

    tf32: bool = False  # Products and convolutions of fp32 tensors run in TF32
    cudnn_attention: bool = True  # Attention in 16 bits is cuDNN's, as on chips from Hopper on; else FlashAttention 2


@cache
def tables() -> dict[str, Any]:
    return {
        group: frozenset(found.split())
        if isinstance(found, str)
        else {name: kind for kind, names in found.items() for name in names.split()}
        for group, found in read_data("aten.toml").items()
    }


def kernels_of(call: AtenCall, rules: Rules) -> list[Kernel]:
    """None for a view; one with ``unknown`` for an operator that is not in the tables."""
    namespace, _, name = call.name.partition(".")
    base = name if name.startswith("__") else name.rstrip("_")
    if namespace == "aten":
        if call.is_view or base in tables()["none"] or not any(each.elements for each in call.outputs or call.inputs):
            return []
        if base in RULES:
            return RULES[base](call, rules)
        for group, rule in GROUPS.items():
            if base in tables()[group]:
                return rule(call, base)
    first = (*call.outputs, *call.inputs, Tensor("float32", (1,), (1,)))[0]
    return [Kernel(_moving("clone", first, call.inputs, call.outputs), unknown=True)]


def _moving(kind: str, like: Tensor, read: Iterable[Tensor], written: Iterable[Tensor]) -> TensorOp:
    """An operator on each value of ``like`` that moves these tensors once."""
    bytes_read, bytes_written = (float(sum(each.bytes for each in several)) for several in (read, written))
    return TensorOp(kind, like.elements, dtype=like.format, read=bytes_read, written=bytes_written)


def _format(tensor: Tensor, rules: Rules) -> str:
    return "tf32" if rules.tf32 and tensor.format == "fp32" else tensor.format


def _order(out: Tensor, given: Iterable[Tensor]) -> str:
    """How threads find values: in order, if all tensors that count lie alike and need no conversion."""
    counted = [each for each in given if each.elements > 1]
    full = [each for each in counted if each.shape == out.shape]
    if len(full) == len(counted) and out.is_dense and all(_is_alike(each, out) for each in full):
        return ""
    return "transposed" if any(each.innermost != out.innermost for each in full) else "strided"


def _is_alike(one: Tensor, other: Tensor) -> bool:
    sides = zip(one.strides, other.strides, one.shape, strict=True)
    return one.dtype == other.dtype and all(a == b for a, b, length in sides if length > 1)


def _pointwise(call: AtenCall, base: str) -> list[Kernel]:
    out, given, kind = (*call.outputs, *call.inputs)[0], call.inputs, tables()["pointwise"][base]
    if kind == "fill":
        given = []
    elif base == "copy":  # into the first
        given = given[1:]
    order = _order(out, given) if given else ""
    if base in ("_to_copy", "copy") and given and given[0].dtype != out.dtype and order != "transposed":
        order = "strided" if given[0].size > out.size else ""
        kind = "cast" if {out.size, given[0].size} == {2, 4} else kind
    return [Kernel(_moving(kind, given[0] if kind == "cast" else out, given, [out]), order)]


def _reduced(call: AtenCall, base: str) -> list[Kernel]:
    given, out, kind = call.inputs[0], call.outputs[0], tables()["reduced"][base]
    cols, rank = max(given.elements // max(out.elements, 1), 1), len(given.shape)
    dims = call["dim"] if isinstance(call["dim"], list) else [] if call["dim"] is None else [call["dim"]]
    dims = [each % max(rank, 1) for each in dims] or [*range(rank)] or [0]
    if kind != "argmax" and max(dims) < rank - 1:
        batch = prod(given.shape[: min(dims)])
        others = max(given.elements // max(cols * batch, 1), 1)
        return [Kernel(TensorOp(f"{kind}_first", cols, others, batch=batch, dtype=given.format))]
    if kind != "argmax":
        kind = "avg_pool" if kind == "mean" and rank == 4 and len(dims) == 2 else f"{kind}_last"
    return [Kernel(TensorOp(kind, out.elements, cols, dtype=given.format))]


def _rows(call: AtenCall, base: str) -> list[Kernel]:
    """Along the last dimension, or along that which the call names; what does not lie in order is copied first."""
    given, kind, dim = call.inputs[0], tables()["rows"][base], call["dim"]
    cols = given.shape[-1] if given.shape else 1
    if isinstance(call["normalized_shape"], list):
        cols = prod(call["normalized_shape"])
    elif dim is not None and given.shape and not kind.endswith("norm"):
        cols = given.shape[dim]
    rows = max(given.elements // max(cols, 1), 1)
    found = [Kernel(TensorOp(kind, rows, cols, count=int(call["k"] or 0), dtype=given.format))]
    if not given.is_contiguous:
        straight = Tensor(
            given.dtype, given.shape, tuple(prod(given.shape[at + 1 :]) for at in range(len(given.shape)))
        )
        found.insert(0, Kernel(_moving("clone", given, [given], [straight]), _order(straight, [given])))
    if base == "_safe_softmax":  # also looks for rows that are masked as a whole
        flags = given._replace(dtype="bool")
        found += [
            Kernel(_moving("compare", given, [given], [flags])),
            Kernel(TensorOp("max_last", rows, cols, dtype="bf16", read=float(flags.bytes), written=float(rows))),
            Kernel(_moving("add", given, [given], [given]), "strided"),
        ]
    return found


def _lookup(call: AtenCall, base: str) -> list[Kernel]:
    table, moved = call.inputs[0], (*call.outputs, *call.inputs)[0]
    picked = next((each for each in call.inputs[1:] if each.dtype in ("int64", "int32")), moved)
    in_rows = base in ("embedding", "index_select", "_embedding_bag_forward_only", "_embedding_bag")
    if "bag" in base:
        moved = Tensor(table.dtype, (picked.elements, table.shape[-1]), (table.shape[-1], 1))
    elif (
        base.startswith(("scatter", "index_add", "index_copy", "index_put", "_index_put")) and call.inputs[-1] != picked
    ):
        moved = call.inputs[-1]
    cols = moved.shape[-1] if in_rows and moved.shape else 1
    if base in ("index", "index_add", "index_copy"):
        cols = moved.elements // max(picked.elements, 1)
    rows, count = max(moved.elements // max(cols, 1), 1), (*table.shape, 1)[0]
    return [
        Kernel(TensorOp("embedding", rows, max(cols, 1), count=count, dtype=moved.format), "" if in_rows else "strided")
    ]


def _pools(call: AtenCall, base: str) -> list[Kernel]:
    given, out = call.inputs[0], call.outputs[0]
    sides = max(prod(given.shape[2:]) if len(given.shape) > 3 else given.shape[-1], 1)
    rows = max(given.elements // sides, 1)
    if out.elements == rows and "avg" in base:
        return [Kernel(TensorOp("avg_pool", rows, sides, dtype=given.format))]
    if "upsample" in base and "nearest" not in base:
        return [Kernel(_moving("clone", out, [given], [out]), "gathered")]
    kind = "upsample" if "upsample" in base else "max_pool"
    return [Kernel(TensorOp(kind, rows, sides, dtype=given.format, written=float(out.bytes)))]


def _product(call: AtenCall, rules: Rules) -> list[Kernel]:
    """A matrix product; a bias of one row is added by the product itself, and anything else is copied before."""
    bias = call["self"] if len(call.inputs) == 3 else None
    left, right = call.inputs[-2:]
    batch = left.shape[0] if len(left.shape) == 3 else 1
    m, k = left.shape[-2:] if len(left.shape) > 1 else (1, left.shape[-1])
    n = right.shape[-1] if len(right.shape) > 1 else 1
    row = bias is not None and len(bias.shape) == 1
    found = [Kernel(Product(m, n, k, batch, dtype=_format(left, rules), bias=row))]
    if bias is not None and not row:
        found.insert(0, Kernel(_moving("clone", call.outputs[0], [bias], call.outputs)))
    return found


def _grouped(call: AtenCall, rules: Rules) -> list[Kernel]:
    """A product for each expert, which have equally many rows."""
    left, right = call.inputs[:2]
    groups, k, n = right.shape
    return [Kernel(Product(max(left.shape[-2] // groups, 1), n, k, groups, dtype=_format(left, rules)))]


def _convolution(call: AtenCall, rules: Rules) -> list[Kernel]:
    """By cuDNN; the bias is a kernel of its own. A transposed one is as long as the one that it is the gradient of."""
    given, weight, out = call["input"], call["weight"], call.outputs[0]
    one, other = (out, given) if call["transposed"] else (given, out)
    planes, depth = (other.shape[2], weight.shape[2]) if len(given.shape) == 5 else (1, 1)
    shapes = (one.shape, other.shape, weight.shape)
    (height, width), (rows, cols), window = (((1, *each[2:]) if len(each) == 3 else each)[-2:] for each in shapes)
    op = Conv2d(
        one.shape[0] * planes, one.shape[1] * depth, height, width, other.shape[1], rows, cols, window[0], window[1],
        groups=int(call["groups"] or 1), channels_last=given.is_channels_last or weight.is_channels_last,
        dtype=_format(given, rules),
    )  # fmt: skip
    biased = isinstance(call["bias"], Tensor)
    return [Kernel(op), *([Kernel(_moving("add", out, [out], [out]), "strided")] if biased else [])]


def _norm_of_images(call: AtenCall, rules: Rules) -> list[Kernel]:
    given, groups = call.inputs[0], call["group"]
    rows = given.shape[0] * (int(groups) if groups else given.shape[1])
    kind, launches = ("group_norm", 3) if groups else ("batch_norm", 1 if given.format == "fp32" else 3)
    return [Kernel(TensorOp(kind, rows, max(given.elements // rows, 1), dtype=given.format), launches=launches)]


def _attention(call: AtenCall, rules: Rules) -> list[Kernel]:
    query, key, value, mask = (call[name] for name in ("query", "key", "value", "attn_mask"))
    kernel = "cudnn_attention" if rules.cudnn_attention else "flash_attention"
    if query.format == "fp32" or (mask and not rules.cudnn_attention):
        kernel = "efficient_attention"
    batch, heads, queries, size = query.shape
    op = Sdpa(
        batch, heads, queries, key.shape[-2], max(size, value.shape[-1]), causal=bool(call["is_causal"]),
        dtype=query.format, kernel=kernel, kv_heads=key.shape[1],
    )  # fmt: skip
    numbers = mask and mask.dtype == "bool"  # a mask of booleans becomes one of numbers first
    made = [Kernel(_moving("add", mask, [mask], [mask._replace(dtype=query.dtype)]), "strided", 2)] if numbers else []
    return [*made, Kernel(op)]


def _recurrent(call: AtenCall, rules: Rules) -> list[Kernel]:
    x, hidden, layers = call["input"], call["params"][1].shape[1], int(call["num_layers"] or 1)
    batch, steps = x.shape[:2] if call["batch_first"] else x.shape[1::-1]
    gates, sides = {"aten.lstm": 4, "aten.gru": 3}.get(call.name, 1), 2 if call["bidirectional"] else 1
    op = Lstm(batch, steps, x.shape[-1], hidden, layers, gates=gates, directions=sides, dtype=_format(x, rules))
    return [Kernel(op, launches=2 * steps * layers * sides)]


def _cat(call: AtenCall, rules: Rules) -> list[Kernel]:
    """Copied as by ``clone`` where all parts lie in order, else place by place."""
    out = call.outputs[0]
    in_order = all(each.is_contiguous for each in (out, *call.inputs))
    return [Kernel(_moving("clone", out, [out], [out]), "" if in_order else "strided")]


def _nonzero(call: AtenCall, rules: Rules) -> list[Kernel]:
    given = call.inputs[0]
    kinds = (("sum_last", 1), ("cumsum", 3))
    return [Kernel(TensorOp(kind, 1, given.elements, dtype=given.format), launches=count) for kind, count in kinds]


RULES: dict[str, Callable[[AtenCall, Rules], list[Kernel]]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "mv", "addmv", "dot"), _product),
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "native_group_norm"), _norm_of_images),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("_local_scalar_dense", "equal"), lambda *_: [Kernel(TensorOp("fill", 1))]),
    **dict.fromkeys(("cat", "stack"), _cat), "_grouped_mm": _grouped, "convolution": _convolution,
    "scaled_dot_product_attention": _attention, "nonzero": _nonzero,
}  # fmt: skip
GROUPS: dict[str, Callable[[AtenCall, str], list[Kernel]]] = {
    **{"pointwise": _pointwise, "reduced": _reduced, "rows": _rows, "lookup": _lookup, "pools": _pools}
}
