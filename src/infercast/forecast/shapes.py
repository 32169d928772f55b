"""Kernels named by their sizes: from what a user types, or a table of shapes, to operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from infercast.errors import InputError, UnknownNameError
from infercast.ops import Attention, Collective, Gemm, MoE, Op
from infercast.ops.dtypes import BYTES
from infercast.ops.elementwise import gated_activation, kv_write, norm, quantise, rope

Values = Mapping[str, Any]
DTYPES = frozenset(("dtype", "weight_dtype", "kv_dtype"))
LARGEST = 2**31 - 1
"""The largest size of a tensor's side; products of three of them are far from any GPU, and of no use."""
LARGEST_BYTES = 2**50


@dataclass(frozen=True)
class Shape:
    """What a kernel family is described by."""

    sizes: tuple[str, ...]
    """Whole numbers that must be given."""
    optional: dict[str, Any]
    """Others, with what they are if not given."""
    build: Callable[[Values], Op]

    @cached_property
    def must_have(self) -> frozenset[str]:
        """The names of ``sizes``."""
        return frozenset(self.sizes)

    @cached_property
    def sizes_and_options(self) -> frozenset[str]:
        """All names."""
        return frozenset((*self.sizes, *self.optional))


def build_op(family: str, values: Values) -> Op:
    """The operator that these values describe; sizes may be arrays of the same length."""
    if family not in SHAPES:
        raise UnknownNameError("kernel family", family, SHAPES)
    shape = SHAPES[family]
    if not (shape.sizes_and_options >= values.keys() >= shape.must_have):
        known = ", ".join((*shape.sizes, *shape.optional))
        for name in values:
            if name not in shape.sizes_and_options:
                raise InputError(f"{family} has no {name!r}; it takes {known}")
        missing = next(name for name in shape.sizes if name not in values)
        raise InputError(f"{family} needs {missing}; it takes {known}")
    sizes = values.values()
    # Mostly all is as it should be, which takes less time to see at once.
    if {*map(type, sizes)} != {int} or min(sizes) < 1 or max(sizes) > LARGEST or values.get("gpus", 2) < LEAST["gpus"]:
        for name, value in values.items():
            if name not in DTYPES:
                _check_size(name, value, least=LEAST.get(name, 1) if name in shape.must_have else 0)
    _check_together(values)
    for name in DTYPES.intersection(values):
        if values[name] is not None and values[name] not in BYTES:
            raise UnknownNameError(name, str(values[name]), BYTES)
    return shape.build({**shape.optional, **values})


def _check_size(name: str, value: Any, least: int) -> None:
    """Raise InputError unless a size, or each of an array of sizes, is in range."""
    most = LARGEST_BYTES if name == "bytes" else LARGEST
    low, high = (value, value) if type(value) is int else (np.min(value), np.max(value))
    if low < least:
        raise InputError(f"{name} must be at least {least}, not {low}")
    if high > most:
        raise InputError(f"{name} must be at most {most}, not {high}")


def _check_together(values: Values) -> None:
    """Raise InputError where two sizes cannot be those of one kernel."""
    if "kv_heads" in values and int(values["heads"]) % int(values["kv_heads"]):
        raise InputError(f"heads {values['heads']} must be a multiple of kv_heads {values['kv_heads']}")
    if "topk" in values and int(values["topk"]) > int(values["experts"]):
        raise InputError(f"topk {values['topk']} must be at most experts {values['experts']}")


def _attention(values: Values, queries: Any, keys: Any) -> Op:
    """A batch of equal sequences; one row an element where sizes are arrays."""
    batch = values["batch"]
    if type(queries) is type(keys) is type(batch) is int:  # one needs no broadcasting, which takes longer than it
        queries, keys, batch = np.array([[queries]]), np.array([[keys]]), np.array([[batch]])
    else:
        queries, keys, batch = (each.reshape(-1, 1) for each in np.broadcast_arrays(queries, keys, batch))
    return Attention(
        queries,
        keys,
        heads=int(values["heads"]),
        kv_heads=int(values["kv_heads"]),
        head_dim=int(values["head_dim"]),
        value_dim=int(values["head_dim"]),
        sequences=batch,
        window=int(values["window"]),
        dtype=values["dtype"],
        kv_dtype=values["kv_dtype"],
    )


def _gemm(values: Values) -> Op:
    return Gemm(values["m"], values["n"], values["k"], values["dtype"], values["weight_dtype"])


def _moe(values: Values) -> Op:
    return MoE(
        values["tokens"],
        hidden=int(values["hidden"]),
        inter=int(values["inter"]),
        experts=int(values["experts"]),
        topk=int(values["topk"]),
        dtype=values["dtype"],
        weight_dtype=values["weight_dtype"],
    )


LEAST = {"gpus": 2}
"""Sizes of which one is not enough."""
_HEADS = ("heads", "kv_heads", "head_dim")
_ATTENTION = {"window": 0, "dtype": "bf16", "kv_dtype": "bf16"}
SHAPES: dict[str, Shape] = {
    "gemm": Shape(("m", "n", "k"), {"dtype": "bf16", "weight_dtype": None}, _gemm),
    "prefill": Shape(
        ("batch", "q_len", *_HEADS),
        {"prefix": 0, **_ATTENTION},
        lambda values: _attention(values, values["q_len"], values["q_len"] + values["prefix"]),
    ),
    "decode": Shape(
        ("batch", "kv_len", *_HEADS), _ATTENTION, lambda values: _attention(values, 1, values["kv_len"] + 1)
    ),
    "moe": Shape(("tokens", "hidden", "inter", "experts", "topk"), {"dtype": "bf16", "weight_dtype": None}, _moe),
    "norm": Shape(("rows", "width"), {}, lambda values: norm(values["rows"], int(values["width"]), residual=True)),
    "activation": Shape(("rows", "width"), {}, lambda values: gated_activation(values["rows"], int(values["width"]))),
    "rope": Shape(
        ("rows", "heads", "head_dim"),
        {},
        lambda values: rope(values["rows"], int(values["heads"]), int(values["head_dim"])),
    ),
    "kv_write": Shape(("rows", "width"), {}, lambda values: kv_write(values["rows"], int(values["width"]))),
    "quantise": Shape(("rows", "width"), {}, lambda values: quantise(values["rows"], int(values["width"]))),
    "all_reduce": Shape(
        ("bytes", "gpus"), {}, lambda values: Collective("all_reduce", values["bytes"], int(values["gpus"]))
    ),
    "all_gather": Shape(
        ("bytes", "gpus"), {}, lambda values: Collective("all_gather", values["bytes"], int(values["gpus"]))
    ),
}
