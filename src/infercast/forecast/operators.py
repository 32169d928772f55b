"""Kernels by name: plain PyTorch operators, and products, attention and experts by the library that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from infercast.bundled import read_data
from infercast.errors import InputError, UnknownNameError
from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.tensor import Lstm, Product, Sdpa, TensorOp, conv2d, kind_named, kinds
from infercast.predict.estimate import Estimate
from infercast.predict.families.family import Shape, Values
from infercast.predict.learned import default_artifact
from infercast.predict.operators import GPU, estimate_op, known

OPERATORS = "operators"  # What rests on calls of PyTorch, in data/kernel_options.toml


def _rowwise(family: str) -> Callable[[Values], TensorOp]:
    return lambda values: TensorOp(family, values["rows"], values["width"], dtype=values["dtype"])


def _of_kind(family: str) -> Callable[[Values], TensorOp]:
    """A kind of a family, which the kernel names."""
    groups = read_data("kernel_options.toml")[OPERATORS][family]["kinds"]

    def build(values: Values) -> TensorOp:
        named = [name for name in kinds() if kind_named(name).group in groups]
        if values["kernel"] not in named:
            raise UnknownNameError(f"kernel of {family}", str(values["kernel"]), named)
        rows, cols = (values["elements"], 1) if "elements" in values else (values["rows"], values["width"])
        return TensorOp(values["kernel"], rows, cols, dtype=values["dtype"])

    return build


BUILD: dict[str, Callable[[Values], Op]] = {
    "linear": lambda by: Product(by["m"], by["n"], by["k"], dtype=by["dtype"], bias=bool(by["bias"])),
    "bmm": lambda by: Product(by["m"], by["n"], by["k"], by["batch"], dtype=by["dtype"]),
    "conv2d": lambda by: conv2d(
        *(by[name] for name in ("batch", "channels", "size", "out_channels", "kernel_size", "stride")),
        groups=by["groups"],
        dtype=by["dtype"],
    ),
    "lstm": lambda by: Lstm(by["batch"], by["steps"], by["hidden"], by["hidden"], by["layers"], dtype=by["dtype"]),
    **{family: _rowwise(family) for family in ("softmax", "layer_norm", "rms_norm", "sort")},
    "embedding": lambda by: TensorOp("embedding", by["rows"], by["width"], count=by["vocabulary"], dtype=by["dtype"]),
    "topk": lambda by: TensorOp("topk", by["rows"], by["width"], count=min(by["k"], by["width"]), dtype=by["dtype"]),
    "elementwise": _of_kind("elementwise"),
    "reduction": _of_kind("reduction"),
}


@cache
def operator_shapes() -> dict[str, Shape]:
    facts = read_data("kernel_options.toml")[OPERATORS]
    return {name: Shape(tuple(each["sizes"]), each["optional"], BUILD[name]) for name, each in facts.items()}


class Named(NamedTuple):
    """The operator that a kernel of a family runs, and the variant that it was learned as; empty: as engines run it."""

    op: Op
    variant: str = ""


def named_kernels(family: str) -> Mapping[str, Any]:
    named: dict[str, dict[str, Any]] = read_data("kernel_options.toml")["named"]
    return named.get("prefill" if family == "decode" else family, {})


def name_kernel(family: str, kernel: str, values: Values, op: Op, gpu: Gpu) -> Named:
    """An operator of a family by the kernel of this name, on a GPU."""
    if kernel not in named_kernels(family):
        raise UnknownNameError(f"kernel of {family}", kernel, named_kernels(family))
    facts = named_kernels(family)[kernel]
    asked = str(values.get(facts.get("of", "dtype")) or values.get("dtype", "bf16"))
    stored = str(values.get("kv_dtype", asked))
    for dtype in (asked, stored):
        if dtype not in facts["formats"]:
            raise InputError(f"{kernel} of {family} has no format {dtype!r}; it has {', '.join(facts['formats'])}")
    basis = facts["formats"][stored]
    if basis == OPERATORS and family == "gemm":
        return Named(Product(values["m"], values["n"], values["k"], dtype=asked))
    if basis == OPERATORS and (gpu.kernels == "hopper" or "elsewhere" not in facts):
        return Named(_attention(family, facts["sdpa"], values, stored))
    basis = facts["elsewhere"] if basis == OPERATORS else basis
    return Named(op, basis) if family == "gemm" else Named(replace(op, kernel=basis))  # type: ignore[type-var]


def _attention(family: str, kernel: str, values: Values, dtype: str) -> Sdpa:
    if values.get("window"):
        raise InputError(f"{kernel} was measured without a window; leave out --window")
    queries = values["q_len"] if family == "prefill" else 1
    keys = queries + values.get("prefix", 0) if family == "prefill" else values["kv_len"] + 1
    sizes = (values["batch"], values["heads"], queries, keys, values["head_dim"])
    return Sdpa(*sizes, causal=queries > 1, dtype=dtype, kernel=kernel, kv_heads=values["kv_heads"])


def estimate_operator(op: Op, gpu: Gpu) -> Estimate:
    """One plain operator, or one of each size where sizes are arrays."""
    arrays = {name: getattr(op, name) for name in op.__slots__ if np.ndim(getattr(op, name, 0))}  # type: ignore[attr-defined]
    if not arrays:
        return estimate_op(op, gpu)
    each = [
        estimate_op(replace(op, **{name: int(size) for name, size in zip(arrays, sizes, strict=True)}), gpu)  # type: ignore[type-var]
        for sizes in zip(*(np.ravel(size) for size in np.broadcast_arrays(*arrays.values())), strict=True)
    ]
    seconds, low, high = (np.array([getattr(one, end) for one in each]) for end in ("seconds", "low", "high"))
    return Estimate(seconds, low, high, each[0].source, np.array([str(one.bound) for one in each]))


def list_kernels() -> list[dict[str, Any]]:
    """Kernels that can be asked for: family, name, formats, rows that it was learned from, where, and its error."""
    found = [_of_operators(family, "", _measured_as(family)) for family in operator_shapes()]
    for family, entries in (("gemm", "gemm"), ("prefill", "attention_prefill"), ("decode", "attention_decode")):
        for kernel, facts in named_kernels(family).items():
            found.append(_of_named(family, entries, kernel, facts))
    return [*found, *(_of_named("moe", "moe", kernel, facts) for kernel, facts in named_kernels("moe").items())]


def _measured_as(family: str) -> tuple[str, ...]:
    groups = read_data("kernel_options.toml")[OPERATORS][family].get("kinds", ())
    if groups:
        return tuple(dict.fromkeys(kind.name for kind in kinds().values() if kind.group in groups))
    return (family,)


def _of_operators(family: str, kernel: str, names: tuple[str, ...], formats: str = "") -> dict[str, Any]:
    mine = {key: each for key, each in known().items() if key.partition("/")[0] in names}
    rows = sum(each.rows for each in mine.values())
    return {
        "family": family,
        "kernel": kernel or ", ".join(names),
        "formats": formats or ", ".join(sorted({key.rpartition("/")[2] for key in mine})),
        "rows": rows,
        "measured on": GPU,
        "error": sum(each.rows * each.error for each in mine.values()) / max(rows, 1),
    }


def _of_named(family: str, entries: str, kernel: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    formats = facts["formats"]
    if OPERATORS in formats.values() and family != "gemm":
        return _of_operators(family, kernel, (facts["sdpa"],), ", ".join(formats))
    variants = {f"{name}/{basis}" if family == "moe" else basis or name for name, basis in formats.items()} | set(
        formats.values()
    )
    mine = [each for each in default_artifact().entries if each.family == entries and each.variant in variants - {""}]
    mine = [each for each in mine if each.gpu != "*"]
    rows = sum(each.rows for each in mine)
    return {
        "family": family,
        "kernel": kernel,
        "formats": ", ".join(formats),
        "rows": rows,
        "measured on": ", ".join(sorted({each.gpu for each in mine})),
        "error": sum(each.rows * each.held_out_error for each in mine) / max(rows, 1),
    }
