"""The bundled model that comes nearest in size to one that cannot be read: what a forecast can be made with instead."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

SIZE_KEYS = (
    ("hidden_size", "d_model"),
    ("num_hidden_layers", "n_layers", "num_layers"),
    ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size", "ffn_hidden_size", "d_ff"),
    ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
)
LARGEST = 2**40
TEXT_KEYS = ("text_config", "llm_config", "language_config")
SIZE_IN_NAME = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z0-9])")


def nearest_shape(values: Mapping[str, Any], bundled: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The model of most alike depth, widths and experts, of those ``bundled``; None where a file tells no sizes."""
    wanted = _shape(values)
    if wanted is None:
        return None
    shapes = {name: shape for name, each in bundled.items() if (shape := _shape(each)) is not None}
    return min(shapes, key=lambda name: (math.dist(wanted, shapes[name]), len(name), name), default=None)


def nearest_size(name: str, parameters: Mapping[str, int]) -> str | None:
    """The model whose number of ``parameters`` is most like the one that a name says; None where it says none."""
    found = SIZE_IN_NAME.search(name.lower())
    if found is None or not float(found[1]):
        return None
    wanted = math.log(float(found[1]) * 1e9)
    return min(parameters, key=lambda each: (abs(math.log(parameters[each]) - wanted), len(each), each), default=None)


def _shape(values: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Logarithms of hidden size, depth, width and experts."""
    inner: Mapping[str, Any] = next((values[key] for key in TEXT_KEYS if isinstance(values.get(key), dict)), {})
    hidden, layers, width, experts = (_size({**values, **inner}, keys) for keys in SIZE_KEYS)
    if not (hidden and layers and width):
        return None
    return tuple(math.log(size) for size in (hidden, layers, width, experts or 1))


def _size(values: Mapping[str, Any], keys: Iterable[str]) -> int:
    """The first plausible size under one of these keys, whatever else stands in a file; 0 without any."""
    found = (values.get(key) for key in keys)
    return next((size for size in found if type(size) is int and 0 < size < LARGEST), 0)
