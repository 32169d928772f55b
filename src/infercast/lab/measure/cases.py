"""The cases of a sweep, in the order in which it runs them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from infercast.bundled import DATA, read_data
from infercast.errors import UnknownNameError

Shape = dict[str, Any]


@dataclass(frozen=True)
class Case:
    family: str
    shape: Shape
    flops: float = 0.0  # How hard it is on the chip; 0 if memory is all that matters

    @property
    def key(self) -> str:
        """What makes a point the same one when a sweep is taken up again."""
        return f"{self.family} {json.dumps(self.shape, sort_keys=True)}"


class Launch(Protocol):
    engine: str  # The library of the kernel: ``vllm``, ``torch``, ``triton`` or ``cuda``

    def touch(self) -> None:
        """Write what the kernel before would have written, so that it is as warm as in a model."""

    def __call__(self) -> None:
        """Launch the kernel once."""


# Anchors: the few shapes of each kernel that say most about all others, for a GPU without measurements.

DEFAULT = 64  # of each kernel; a list has no more


def anchor_cases(each: int = DEFAULT) -> list[Case]:
    """The first ``each`` of every list, the best of all kernels first."""
    places = []
    for number, table in enumerate(read_data("lab/anchors.toml").values()):
        for rank, values in enumerate(table["shapes"][:each]):
            shape = dict(zip(table["columns"], values, strict=True))
            places.append((rank, number, Case(table["family"], shape, flops_of(table["family"], shape))))
    return [case for _, _, case in sorted(places, key=lambda place: place[:2])]


def flops_of(family: str, shape: Shape) -> float:
    """Products that heat the chip, windows and causality left aside where that is small change; 0 without any."""
    if family == "gemm":
        return float(2 * shape["m"] * shape["n"] * shape["k"])
    if family == "moe":
        return float(6 * shape["tokens"] * shape["topk"] * shape["hidden"] * shape["inter"])
    if not family.startswith("attention"):
        return 0.0
    queries, prefix = shape.get("q_len", 1), shape.get("prefix", shape.get("kv_len", 0))
    pairs: float = shape["batch"] * queries * (prefix + queries / 2)
    if shape.get("window"):
        pairs = min(pairs, shape["batch"] * queries * shape["window"])
    return 2.0 * float(shape["heads"] * (shape["head_dim"] + shape["value_dim"])) * pairs


# Shapes of a sweep: columns by family, which `benchmarks/measure/choose_shapes.py` chooses.

SHAPES = DATA / "lab" / "shapes.json.gz"
SHARES: dict[str, float] = read_data("lab/sweep.toml")["shares"]
"""How large a share of any beginning each family gets; the first points are what a short sweep lives on."""
ON_REQUEST: dict[str, float] = read_data("lab/sweep.toml")["on_request"]
"""Measured where they are named only: they are compiled or tuned for longer than all their shapes are measured."""
FAMILIES, NAMES = tuple(SHARES), (*SHARES, *ON_REQUEST)


def sweep_cases(families: Sequence[str] | None = None) -> list[Case]:
    """All cases, most useful first; the same list for every GPU."""
    wanted, shares = families or FAMILIES, SHARES | ON_REQUEST
    for family in wanted:
        if family not in shares:
            raise UnknownNameError("kernel family", family, NAMES)
    places: list[tuple[float, Case]] = []
    for family, columns in json.loads(gzip.decompress(SHAPES.read_bytes())).items():
        cases = list(_cases_of(family, columns)) if family in wanted else []
        order = np.random.default_rng(len(cases)).permutation(len(cases))
        places += [((rank + 0.5) / shares[family], cases[index]) for rank, index in enumerate(order)]
    first: dict[str, Case] = {}
    for _, case in sorted(places, key=lambda place: place[0]):
        first.setdefault(case.key, case)
    return list(first.values())


def _cases_of(family: str, columns: dict[str, list[Any]]) -> Iterator[Case]:
    flops = columns.pop("flops", None)
    for number, values in enumerate(zip(*columns.values(), strict=True)):
        shape = dict(zip(columns, values, strict=True))
        yield Case(family, shape, flops[number] if flops else flops_of(family, shape))
