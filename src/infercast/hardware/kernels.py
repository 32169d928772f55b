"""Facts by the architecture whose kernels a GPU runs, looked up so that a missing one is never taken for another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from infercast.errors import InputError
from infercast.hardware.gpu import Gpu

Fact = TypeVar("Fact")


def by_kernels(facts: Mapping[str, Fact], gpu: Gpu) -> Fact:
    """The fact of this GPU's kernels; a clear error where the table does not name them."""
    try:
        return facts[gpu.kernels]
    except KeyError:
        raise InputError(
            f"{gpu.name} runs kernels of {gpu.kernels!r}, of which too little is known; known: {', '.join(facts)}"
        ) from None
