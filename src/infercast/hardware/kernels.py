"""What is known of the kernels that engines run on an architecture: named facts, so that no code asks for its name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple, TypeVar

from infercast.errors import InputError
from infercast.hardware.gpu import Gpu
from infercast.hardware.load import architectures

Fact = TypeVar("Fact")


class KernelFacts(NamedTuple):
    """What kernel physics asks of an architecture; architectures.toml says where each comes from."""

    vendor: str
    attention: str
    """Which attention kernels engines run, by the name that their physics has."""
    l2_partitions: int
    """Parts of L2 that may hold a copy of a line each."""
    wide_multiply: bool
    """Whether Triton's kernels use a multiply instruction of four warps, which reads shared memory itself."""
    fp8_products: str
    """The library whose fp8 products are known kernel by kernel; empty: none."""
    misaligned_experts: float
    """How many times longer loads of experts' rows take whose length is no multiple of 16."""
    switch_share: float
    """What switches that reduce make of the links, against those that it was fitted on; 0: none reduces."""
    flag_delay: float
    """How many times longer a flag takes to a peer and back than between the GPUs that it was fitted on."""
    threads_per_sm: int = 2048
    """Threads that an SM holds at once."""
    launch: float = 1.0
    """How long a launch in a graph takes, against one on the chips that physics was fitted on."""
    mma_sync: float = 1.0
    """Share of the tensor cores' peak that the multiply instruction of Ampere reaches, which newer chips still have."""


@cache
def _facts() -> dict[str, KernelFacts]:
    tables = {name: table for name, table in architectures().items() if "facts" in table}
    return {name: KernelFacts(table["vendor"], **table["facts"]) for name, table in tables.items()}


def is_modelled(gpu: Gpu) -> bool:
    """Whether physics knows the kernels that this GPU runs; others are estimated by what is typical."""
    facts = _facts().get(gpu.kernels)
    return facts is not None and facts.vendor == gpu.vendor


def facts_of(gpu: Gpu) -> KernelFacts:
    """What physics knows of the kernels that this GPU runs."""
    return by_kernels(_facts(), gpu)


def by_kernels(facts: Mapping[str, Fact], gpu: Gpu) -> Fact:
    """The fact of this GPU's kernels; a clear error where the table does not name them."""
    try:
        return facts[gpu.kernels]
    except KeyError:
        raise InputError(
            f"{gpu.name} runs kernels of {gpu.kernels!r}, of which too little is known; known: {', '.join(facts)}"
        ) from None
