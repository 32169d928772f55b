"""Which kernels an aten operator launches on an NVIDIA GPU: PyTorch's rules of dispatch, written down for inference."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.ops import Op
from infercast.ops.tensor import Conv2d, Lstm, Product, Sdpa, TensorOp
from infercast.torch_modules.calls import AtenCall, Tensor


class Kernel(NamedTuple):
    """One operator of ours that a call becomes."""

    op: Op
    order: str = ""
    """``strided`` where threads compute a place for each value, ``transposed`` where neighbours also lie apart,
    ``gathered`` where each needs several values from several places."""
    launches: int = 1
    unknown: bool = False
    """Whether only a bound of its time is known: that all its tensors are moved once."""


class Rules(NamedTuple):
    """What the choice of a kernel depends on besides the call."""

    tf32: bool = False  # Products and convolutions of fp32 tensors run in TF32
    cudnn_attention: bool = True  # Attention in 16 bits is cuDNN's, as on chips from Hopper on; else FlashAttention 2


@cache
def tables() -> dict[str, Any]:
    facts = read_data("aten.toml")
    return facts | {name: frozenset(facts[name].split()) for name in ("none", "lookup", "pools")}


def kernels_of(call: AtenCall, rules: Rules) -> list[Kernel]:
    """None for a view; one with ``unknown`` for an operator that is not in the tables."""
    namespace, _, name = call.name.partition(".")
    base = name if name in tables()["none"] else name.rstrip("_") if not name.startswith("__") else name
    if namespace == "aten" and (call.is_view or base in tables()["none"]):
        return []
    if namespace == "aten" and base in RULES:
        return RULES[base](call, rules)
    if namespace == "aten":
        for group, rule in GROUPS.items():
            if base in tables()[group]:
                return rule(call, base)
    return [_unknown(call)]


def _unknown(call: AtenCall) -> Kernel:
    given = call.inputs
    first = (call.outputs or tuple(given) or (Tensor("float32", (1,), (1,)),))[0]
    read, written = _bytes(given), _bytes(call.outputs)
    return Kernel(TensorOp("clone", first.elements, dtype=first.format, read=read, written=written), unknown=True)


def _bytes(tensors: Any) -> float:
    return float(sum(each.bytes for each in tensors))


def _format(tensor: Tensor, rules: Rules) -> str:
    return "tf32" if rules.tf32 and tensor.format == "fp32" else tensor.format


def _order(out: Tensor, given: list[Tensor]) -> str:
    """How threads find values: in order, if all tensors that count lie alike and need no conversion."""
    given = [each for each in given if each.elements > 1]
    full = [each for each in given if each.shape == out.shape]
    alike = all(_same_order(each, out) and each.dtype == out.dtype for each in given if each in full)
    if alike and len(full) == len(given) and out.is_dense:
        return ""
    if out.shape and any(_inner(each) != _inner(out) for each in full):
        return "transposed"
    return "strided"


def _order_of_copy(given: Tensor) -> str:
    return "transposed" if _inner(given) != len(given.shape) - 1 else "strided"


def _same_order(one: Tensor, other: Tensor) -> bool:
    return all(a == b for a, b, length in zip(one.strides, other.strides, one.shape, strict=True) if length > 1)


def _inner(tensor: Tensor) -> int:
    """The dimension whose neighbours lie side by side."""
    sizes = [
        (stride, at) for at, (stride, size) in enumerate(zip(tensor.strides, tensor.shape, strict=True)) if size > 1
    ]
    return min((each for each in sizes if each[0]), default=(0, -1))[1]


def _pointwise(call: AtenCall, base: str) -> list[Kernel]:
    out = call.outputs[0] if call.outputs else call.inputs[0]
    if not out.elements:
        return []
    kind, given = tables()["pointwise"][base], call.inputs
    if base == "copy":  # into the first
        given = given[1:]
    elif base in ("fill", "zero"):
        given = []
    order = _order(out, given) if given else ""
    if base in ("_to_copy", "copy") and given and given[0].dtype != out.dtype and order != "transposed":
        order = "strided" if given[0].size > out.size else ""
        kind = "cast" if {out.size, given[0].size} == {2, 4} else kind
    dtype = given[0].format if kind == "cast" else out.format
    op = TensorOp(kind, out.elements, dtype=dtype, read=_bytes(given), written=_bytes([out]))
    return [Kernel(op, order)]


def _reduced(call: AtenCall, base: str) -> list[Kernel]:
    given, out = call.inputs[0], call.outputs[0]
    kind, cols = tables()["reduced"][base], max(given.elements // max(out.elements, 1), 1)
    dims = call["dim"] if isinstance(call["dim"], list) else [call["dim"]] if call["dim"] is not None else []
    last = not dims or not given.shape or (max(dims) if min(dims) >= 0 else -1) in (len(given.shape) - 1, -1)
    if kind == "argmax":
        kind = "argmax"
    elif last:
        kind = "avg_pool" if kind == "mean" and len(given.shape) == 4 and len(dims) == 2 else f"{kind}_last"
    else:
        kind = f"{'mean' if kind == 'mean' else kind}_first"
        batch = prod(given.shape[: min(each % len(given.shape) for each in dims)])
        rows, cols = cols, max(given.elements // max(cols * batch, 1), 1)
        return [Kernel(TensorOp(kind, rows, cols, batch=batch, dtype=given.format))]
    return [Kernel(TensorOp(kind, out.elements, cols, dtype=given.format))]


def _rows(call: AtenCall, base: str) -> list[Kernel]:
    given, kind = call.inputs[0], tables()["rows"][base]
    if not given.elements:
        return []
    cols = given.shape[-1] if given.shape else 1
    if kind in ("layer_norm", "rms_norm") and isinstance(call["normalized_shape"], list):
        cols = prod(call["normalized_shape"])
    elif (dim := call["dim"]) is not None and given.shape and base not in ("_weight_norm_interface",):
        cols = given.shape[dim]
    count = int(call["k"] or 0)
    op = TensorOp(kind, max(given.elements // max(cols, 1), 1), cols, count=count, dtype=given.format)
    kernels = [Kernel(op)]
    if not given.is_contiguous:  # laid out anew
        kernels.insert(0, Kernel(TensorOp("clone", given.elements, dtype=given.format), _order_of_copy(given)))
    if base == "_safe_softmax":  # also looks for rows that are masked as a whole
        kernels += [
            Kernel(TensorOp("compare", given.elements, dtype=given.format, read=given.bytes, written=given.elements)),
            Kernel(TensorOp("max_last", op.rows, cols, dtype="bf16", read=given.elements, written=op.rows)),
            Kernel(
                TensorOp("add", given.elements, dtype=given.format, read=given.bytes, written=given.bytes), "strided"
            ),
        ]
    return kernels


def _lookup(call: AtenCall, base: str) -> list[Kernel]:
    out = call.outputs[0] if call.outputs else call.inputs[0]
    table = call.inputs[0]
    picked = [each for each in call.inputs[1:] if each.dtype in ("int64", "int32", "bool")]
    if base not in ("embedding", "index", "index_select", "gather") and len(call.inputs) > 2:
        sources = [each for each in call.inputs[1:] if each not in picked]
        moved = max(sources, key=lambda each: each.elements) if sources else out
    else:
        moved = out
    if "embedding_bag" in base:
        moved = Tensor(table.dtype, (picked[0].elements, table.shape[-1]), (table.shape[-1], 1))
    if not moved.elements:
        return []
    cols = moved.shape[-1] if moved.shape and base in ("embedding", "index_select") or "bag" in base else 1
    if base in ("index", "index_add") and len(moved.shape) > 1 and picked and picked[0].shape:
        cols = moved.elements // max(picked[0].elements, 1) or 1
    rows = max(moved.elements // max(cols, 1), 1)
    count = table.shape[0] if table.shape else 1
    op = TensorOp("embedding", rows, cols, count=count, dtype=moved.format)
    return [Kernel(op, "" if base == "embedding" or "bag" in base else "strided")]


def _pools(call: AtenCall, base: str) -> list[Kernel]:
    given, out = call.inputs[0], call.outputs[0]
    sides = prod(given.shape[2:]) if len(given.shape) > 3 else given.shape[-1]
    rows, written = max(given.elements // max(sides, 1), 1), float(out.bytes)
    if out.elements == rows and "avg" in base:
        return [Kernel(TensorOp("avg_pool", rows, sides, dtype=given.format))]
    if "upsample" in base and "nearest" not in base:
        return [Kernel(_row_op("clone", out), "gathered")]
    kind = "upsample" if "upsample" in base else "max_pool"
    return [Kernel(TensorOp(kind, rows, sides, dtype=given.format, written=written))]


def _product(call: AtenCall, rules: Rules) -> list[Kernel]:
    """A matrix product; a bias of one row is added by the product itself."""
    name = call.name.partition(".")[2]
    bias = call["self"] if name.startswith(("addmm", "_addmm", "baddbmm")) else None
    left, right = (call["mat1"], call["mat2"]) if "mat1" in call.arguments else (call.inputs[-2], call.inputs[-1])
    if name.startswith("baddbmm"):
        left, right = call["batch1"], call["batch2"]
    batch = left.shape[0] if len(left.shape) == 3 else 1
    m, k = left.shape[-2:] if len(left.shape) > 1 else (1, left.shape[-1])
    n = right.shape[-1] if len(right.shape) > 1 else 1
    if not m * n * k * batch:
        return []
    row = isinstance(bias, Tensor) and len(bias.shape) == 1
    op = Product(m, n, k, batch, dtype=_format(left, rules), bias=row)
    if bias is not None and not row:
        out = call.outputs[0]
        return [Kernel(TensorOp("clone", out.elements, dtype=out.format)), Kernel(op)]
    return [Kernel(op)]


def _convolution(call: AtenCall, rules: Rules) -> list[Kernel]:
    given, weight, out = call["input"], call["weight"], call.outputs[0]
    last = given.is_channels_last or weight.is_channels_last
    groups, dims = int(call["groups"] or 1), len(given.shape) - 2
    one, other = (out, given) if call["transposed"] else (given, out)
    depth = one.shape[2] // max(other.shape[2], 1) and other.shape[2] if dims == 3 else 1
    kernel_depth = weight.shape[2] if dims == 3 else 1
    sides = [(*((1,) * (2 - dims)), *each)[-2:] for each in (one.shape[2:], other.shape[2:], weight.shape[2:])]
    (height, width), (out_height, out_width), window = sides
    op = Conv2d(
        one.shape[0] * depth, one.shape[1] * kernel_depth, height, width, other.shape[1], out_height, out_width, *window,
        groups=groups, channels_last=last, dtype=_format(given, rules),
    )  # fmt: skip
    found = [Kernel(op)]
    if isinstance(call["bias"], Tensor):
        found.append(Kernel(_row_op("add", out), "strided"))
    return found


def _row_op(kind: str, out: Tensor) -> TensorOp:
    return TensorOp(kind, out.elements, dtype=out.format, read=out.bytes, written=out.bytes)


def _batch_norm(call: AtenCall, rules: Rules) -> list[Kernel]:
    given = call.inputs[0]
    rows = prod(given.shape[:2])
    op = TensorOp("batch_norm", rows, given.elements // max(rows, 1), dtype=given.format)
    return [Kernel(op, launches=1 if given.format == "fp32" else 3)]


def _group_norm(call: AtenCall, rules: Rules) -> list[Kernel]:
    given, groups = call.inputs[0], int(call["group"] or 1)
    rows = given.shape[0] * groups
    op = TensorOp("group_norm", rows, given.elements // max(rows, 1), dtype=given.format)
    return [Kernel(op, launches=3)]


def _attention(call: AtenCall, rules: Rules) -> list[Kernel]:
    query, key, value = call["query"], call["key"], call["value"]
    fused = "cudnn_attention" if rules.cudnn_attention else "flash_attention"
    mask = call["attn_mask"]
    kernel = "efficient_attention" if query.format == "fp32" or (mask and not rules.cudnn_attention) else fused
    batch, heads, queries, size = query.shape
    op = Sdpa(
        batch, heads, queries, key.shape[-2], max(size, value.shape[-1]), causal=bool(call["is_causal"]),
        dtype=query.format, kernel=kernel, kv_heads=key.shape[1],
    )  # fmt: skip
    found = [Kernel(op)]
    if mask is not None and mask.dtype == "bool":
        found.insert(0, Kernel(TensorOp("add", mask.elements, dtype=query.format), "strided", launches=2))
    return found


def _recurrent(call: AtenCall, rules: Rules) -> list[Kernel]:
    name = call.name.partition(".")[2]
    gates = {"lstm": 4, "gru": 3}.get(name, 1)
    x, weights = call["input"], call["params"]
    hidden = weights[1].shape[1]
    first, second = x.shape[:2]
    batch, steps = (first, second) if call["batch_first"] else (second, first)
    sides = 2 if call["bidirectional"] else 1
    layers = int(call["num_layers"] or 1)
    op = Lstm(batch, steps, x.shape[-1], hidden, layers, gates=gates, directions=sides, dtype=_format(x, rules))
    return [Kernel(op, launches=2 * steps * layers * sides)]


def _cat(call: AtenCall, rules: Rules) -> list[Kernel]:
    """Copied as by ``clone`` where all parts lie in order, else place by place."""
    out = call.outputs[0]
    in_order = all(each.is_contiguous for each in call.inputs) and out.is_contiguous
    return [Kernel(_row_op("clone", out), "" if in_order else "strided")] if out.elements else []


def _scalar(call: AtenCall, rules: Rules) -> list[Kernel]:
    return [Kernel(TensorOp("fill", 1))]


def _nonzero(call: AtenCall, rules: Rules) -> list[Kernel]:
    given = call.inputs[0]
    counted = Kernel(TensorOp("sum_last", 1, given.elements, dtype=given.format))
    return [counted, Kernel(TensorOp("cumsum", 1, given.elements, dtype=given.format), launches=3)]


RULES: dict[str, Callable[[AtenCall, Rules], list[Kernel]]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "mv", "addmv", "dot"), _product),
    **dict.fromkeys(("convolution", "_convolution", "cudnn_convolution"), _convolution),
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit_no_training"), _batch_norm),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("cat", "stack", "_cat"), _cat),
    **dict.fromkeys(("_local_scalar_dense", "equal"), _scalar),
    "native_group_norm": _group_norm,
    "scaled_dot_product_attention": _attention,
    "nonzero": _nonzero,
}

GROUPS: dict[str, Callable[[AtenCall, str], list[Kernel]]] = {
    "pointwise": _pointwise,
    "reduced": _reduced,
    "rows": _rows,
    "lookup": _lookup,
    "pools": _pools,
}

WAITS = {"aten._local_scalar_dense", "aten.nonzero", "aten.equal", "aten.masked_select", "aten.unique"}
"""Operators after which the host waits for the GPU."""
