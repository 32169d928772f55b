"""Kernels by name: plain PyTorch operators, and products, attention and experts by the library that runs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any

import numpy as np

from infercast.bundled import read_data
from infercast.errors import InputError, UnknownNameError
from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.tensor import Lstm, Product, Sdpa, TensorOp, conv2d, kinds
from infercast.predict.estimate import Estimate
from infercast.predict.families.family import Shape, Values
from infercast.predict.learned import default_artifact
from infercast.predict.operators import GPU, estimate_op, known

OPERATORS = "operators"  # What rests on calls of PyTorch, in data/kernel_options.toml


SIDES = ("batch", "channels", "size", "out_channels", "kernel_size", "stride")


@cache
def operator_shapes() -> dict[str, Shape]:
    facts = read_data("kernel_options.toml")[OPERATORS]
    return {name: Shape(tuple(each["sizes"]), each["optional"], partial(_build, name)) for name, each in facts.items()}


def _build(family: str, by: Values) -> Op:
    if family in ("linear", "bmm"):
        bias = bool(by.get("bias"))
        return Product(by["m"], by["n"], by["k"], by.get("batch", 1), dtype=by["dtype"], bias=bias)
    if family == "conv2d":
        return conv2d(*(by[name] for name in SIDES), groups=by["groups"], dtype=by["dtype"])
    if family == "lstm":
        return Lstm(by["batch"], by["steps"], by["hidden"], by["hidden"], by["layers"], dtype=by["dtype"])
    kind, groups = str(by.get("kernel", family)), read_data("kernel_options.toml")[OPERATORS][family].get("kinds")
    known_kinds = [name for name, each in kinds().items() if each.group in groups] if groups else [family]
    if kind not in known_kinds:
        raise UnknownNameError(f"kernel of {family}", kind, known_kinds)
    rows, cols = (by["elements"], 1) if "elements" in by else (by["rows"], by["width"])
    count = by["vocabulary"] if "vocabulary" in by else np.minimum(by["k"], cols) if "k" in by else 0
    return TensorOp(kind, rows, cols, count=count, dtype=by["dtype"])


def named_kernels(family: str) -> Mapping[str, Any]:
    named: dict[str, dict[str, Any]] = read_data("kernel_options.toml")["named"]
    return named.get("prefill" if family == "decode" else family, {})


def name_kernel(family: str, kernel: str, values: Values, op: Any, gpu: Gpu) -> tuple[Op, str]:
    """The operator that a kernel runs on a GPU, and the variant that it was learned as; empty: the usual one."""
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
        return Product(values["m"], values["n"], values["k"], dtype=asked), ""
    if basis == OPERATORS and (gpu.kernels == "hopper" or "elsewhere" not in facts):
        return _attention(family, facts["sdpa"], values, stored), ""
    basis = facts["elsewhere"] if basis == OPERATORS else basis
    return (op, basis) if family == "gemm" else (replace(op, kernel=basis), "")


def _attention(family: str, kernel: str, values: Values, dtype: str) -> Sdpa:
    if values.get("window"):
        raise InputError(f"{kernel} was measured without a window; leave out --window")
    queries = values["q_len"] if family == "prefill" else 1
    keys = queries + values.get("prefix", 0) if family == "prefill" else values["kv_len"] + 1
    sizes = (values["batch"], values["heads"], queries, keys, values["head_dim"])
    return Sdpa(*sizes, causal=queries > 1, dtype=dtype, kernel=kernel, kv_heads=values["kv_heads"])


def estimate_operator(op: Any, gpu: Gpu) -> Estimate:
    """One plain operator, or one of each size where sizes are arrays."""
    arrays = {each.name: getattr(op, each.name) for each in fields(op) if np.ndim(getattr(op, each.name))}
    if not arrays:
        return estimate_op(op, gpu)
    sizes = zip(*(np.ravel(size).tolist() for size in np.broadcast_arrays(*arrays.values())), strict=True)
    each = [estimate_op(replace(op, **dict(zip(arrays, size, strict=True))), gpu) for size in sizes]
    seconds, low, high = (np.array([getattr(one, end) for one in each]) for end in ("seconds", "low", "high"))
    return Estimate(seconds, low, high, each[0].source, np.array([str(one.bound) for one in each]))


TABLES = {"gemm": "gemm", "prefill": "attention_prefill", "decode": "attention_decode", "moe": "moe"}


def list_kernels() -> list[dict[str, Any]]:
    """Kernels that can be asked for: family, name, formats, rows that it was learned from, where, and its error."""
    found = []
    for family, facts in read_data("kernel_options.toml")[OPERATORS].items():
        groups = facts.get("kinds", ())
        names = dict.fromkeys(kind.name for kind in kinds().values() if kind.group in groups) or (family,)
        few = ", ".join([*names][:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        found.append(_listed(family, few, _plain_rows(names)))
    for family, table in TABLES.items():
        for kernel, facts in named_kernels(family).items():
            rows = _plain_rows((facts["sdpa"],)) if "sdpa" in facts else []
            for stored, basis in facts["formats"].items():
                variant = f"{stored}/{basis}" if family == "moe" else basis or stored
                entries = (each for each in default_artifact().entries_of(table) if each.gpu != "*")
                mine = (each for each in entries if (each.family, each.variant) == (table, variant))
                rows += [(stored, each.gpu, each.rows, each.held_out_error) for each in mine]
                rows += _plain_rows(("linear",), stored) if basis == OPERATORS and family == "gemm" else []
            found.append(_listed(family, kernel, rows) | {"formats": ", ".join(facts["formats"])})
    return found


def _plain_rows(names: Iterable[str], dtype: str = "") -> list[tuple[str, str, int, float]]:
    """Format, GPU, rows and error of all plain operators of these names."""
    keys = [key for key in known() if key.partition("/")[0] in names and key.endswith(dtype)]
    return [(key.rpartition("/")[2], GPU, known()[key].rows, known()[key].error) for key in keys]


def _listed(family: str, kernel: str, rows: list[tuple[str, str, int, float]]) -> dict[str, Any]:
    count = sum(row[2] for row in rows)
    return {
        "family": family,
        "kernel": kernel,
        "formats": ", ".join(sorted({row[0] for row in rows})),
        "rows": count,
        "measured_on": ", ".join(sorted({row[1] for row in rows})) or "no GPU: physics alone",
        "error": sum(row[2] * row[3] for row in rows) / max(count, 1),
    }
