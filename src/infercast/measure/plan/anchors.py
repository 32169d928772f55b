"""Anchors: the few shapes of each kernel that tell most about all others, for a GPU that nobody measured."""

from __future__ import annotations

from infercast.bundled import read_data
from infercast.measure.case import Case, Shape

DEFAULT = 64
"""Of each kernel; a list has no more."""
FILE = "anchors.toml"


def anchor_cases(each: int = DEFAULT) -> list[Case]:
    """The first ``each`` of every list, the best of all kernels first."""
    places = []
    for number, table in enumerate(read_data(FILE).values()):
        for rank, values in enumerate(table["shapes"][:each]):
            shape = dict(zip(table["columns"], values, strict=True))
            places.append((rank, number, Case(table["family"], shape, _flops(table["family"], shape))))
    return [case for _, _, case in sorted(places, key=lambda place: place[:2])]


def _flops(family: str, shape: Shape) -> float:
    """About as many products as heat the chip."""
    sizes = {name: float(value) for name, value in shape.items() if isinstance(value, int)}
    if family == "gemm":
        return 2.0 * sizes["m"] * sizes["n"] * sizes["k"]
    if family == "moe":
        return 6.0 * sizes["tokens"] * sizes["topk"] * sizes["hidden"] * sizes["inter"]
    queries, prefix = sizes.get("q_len", 1.0), sizes.get("prefix", sizes.get("kv_len", 0.0))
    pairs = sizes["batch"] * queries * (prefix + queries / 2)
    return 2.0 * sizes["heads"] * (sizes["head_dim"] + sizes["value_dim"]) * pairs
