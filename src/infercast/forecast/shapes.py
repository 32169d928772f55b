"""Kernels named by their sizes: from what a user types, or a table of shapes, to operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from infercast.errors import InputError, UnknownNameError
from infercast.ops import Op
from infercast.ops.dtypes import BYTES
from infercast.predict.families import FAMILIES
from infercast.predict.families.family import Values

DTYPES = frozenset(("dtype", "weight_dtype", "kv_dtype", "state_dtype"))
LARGEST = 2**31 - 1
"""The largest size of a tensor's side; products of three of them are far from any GPU, and of no use."""
LARGEST_BYTES = 2**50
LEAST = {"gpus": 2}
"""Sizes of which one is not enough."""
SHAPES = {name: shape for family in FAMILIES.values() for name, shape in family.shapes.items()}


def build_op(family: str, values: Values) -> Op:
    """The operator that these values describe; sizes may be arrays of the same length."""
    if family not in SHAPES:
        raise UnknownNameError("kernel family", family, SHAPES)
    shape = SHAPES[family]
    names = {*shape.sizes, *shape.optional}
    if not (names >= values.keys() >= {*shape.sizes}):
        known = ", ".join((*shape.sizes, *shape.optional))
        for name in values:
            if name not in names:
                raise InputError(f"{family} has no {name!r}; it takes {known}")
        missing = next(name for name in shape.sizes if name not in values)
        raise InputError(f"{family} needs {missing}; it takes {known}")
    sizes = values.values()
    # Mostly all is as it should be, which takes less time to see at once.
    if {*map(type, sizes)} != {int} or min(sizes) < 1 or max(sizes) > LARGEST or values.get("gpus", 2) < LEAST["gpus"]:
        for name, value in values.items():
            if name not in DTYPES:
                _check_size(name, value, least=LEAST.get(name, 1) if name in shape.sizes else 0)
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
    if "experts" in values and int(values["topk"]) > int(values["experts"]):
        raise InputError(f"topk {values['topk']} must be at most experts {values['experts']}")
