"""Ways to quantise weights, by the names that engines and tools give them."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from infercast.bundled import read_data


class Scheme(NamedTuple):
    """One way to quantise: the format of the weights, and that of what they are multiplied with ("" : base)."""

    weights: str
    activations: str = ""
    experts_only: bool = False
    int4_scale_bytes: float = 2 / 128


# These say that a checkpoint is quantised, and its config.json says how.
AS_STORED = ("compressed-tensors", "modelopt_mixed", "quark", "torchao", "auto-round", "inc")
FAMILY_OF = {"fp8_block": "fp8"}


@cache
def schemes(names: str = "schemes") -> dict[str, Scheme]:
    """All there are by name; ``overrides``: by vLLM's names; ``modelopt``: by those of NVIDIA's tool."""
    tables = read_data("quantization.toml")
    known = {name: Scheme(**values) for name, values in tables["schemes"].items()}
    return known if names == "schemes" else {name: known[meant] for name, meant in tables[names].items()}
