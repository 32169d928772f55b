"""A GPU as a kernel sees it: how fast it multiplies, how fast it moves bytes, how much it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from infercast.errors import UnknownNameError
from infercast.shown import Answer
from infercast.units import format_bytes, format_rate

# What a matrix product runs at when the chip lacks its format, first choice first. An engine then keeps the weights
# small in memory and widens them to 16 bits on the way to the tensor cores (weight-only kernels such as Marlin).
FALLBACKS: dict[str, tuple[str, ...]] = {
    "fp32": ("fp32",),
    "tf32": ("tf32", "fp32"),
    "bf16": ("bf16", "fp16", "fp32"),
    "fp16": ("fp16", "bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "int8": ("int8", "bf16", "fp16", "fp32"),
    "fp4": ("fp4", "bf16", "fp16", "fp32"),
}


@dataclass(frozen=True, slots=True, repr=False)
class Gpu(Answer):
    """One GPU model, in SI units: Hz, bytes, bytes/s, FLOP/s, W. Rates are peaks at ``boost_clock``.

    ``boost_clock`` is the clock that the datasheet's tensor FLOP/s belong to; ``sustained_clock`` is what the chip
    holds inside its power limit while it multiplies large bf16 matrices without a pause.
    """

    name: str
    title: str
    vendor: str
    architecture: str
    compute_capability: str
    kernels: str
    """The architecture whose kernels engines run on it: its own, or an earlier one's that it shares them with."""
    memory: str
    """Its kind: ``hbm`` (stacked) or ``gddr``."""
    sms: int
    """Streaming multiprocessors; compute units on AMD."""
    boost_clock: float
    """Hz."""
    sustained_clock: float
    """Hz under a long, heavy matrix product."""
    tensor_flops: Mapping[str, float] = field(hash=False)
    """Dense FLOP/s (no structured sparsity) with wide accumulation, for each format the chip multiplies in.

    ``fp32`` is the plain rate outside the tensor cores.
    """
    whole_tensor_flops: float
    """16-bit FLOP/s of the tensor cores as the architecture has them; some products are sold with a lower rate."""
    fma_flops: float
    """Plain fp32 multiply-add FLOP/s, a multiply-add counted as two."""
    special_rate: float
    """Exponentials and other special functions per second."""
    dram_bytes: int
    """Bytes of memory that it is sold with."""
    driver_bytes: int
    """Bytes of memory that the driver reports to a program, after ECC and its own reserve."""
    dram_bandwidth: float
    """Bytes per second from memory."""
    l2_bytes: int
    """Bytes of the last cache before DRAM: L2, or the Infinity Cache on AMD."""
    l2_bandwidth: float
    """Bytes per second from that cache."""
    shared_memory_per_sm: int
    """Bytes."""
    registers_per_sm: int
    """32-bit registers."""
    nvlink_bandwidth: float
    """Bytes per second of direct GPU-to-GPU links, one direction, all links of the GPU together; 0 without any."""
    pcie_bandwidth: float
    """Bytes per second to the host, one direction."""
    gpus_per_node: int
    """GPUs that usually share one such link domain, or one server where there is none."""
    tdp: float
    """Watts that the board is built to draw."""
    nvlink_gpus: int = 0
    """GPUs that the direct links join: a whole node behind a switch, two or four cards under a bridge; 0: none."""
    pcie_topology: str = ""
    """How GPUs without direct links are joined, one of `TOPOLOGIES`; empty where nobody says."""
    network_bandwidth: float = 0.0
    """Bytes per second to other nodes, one direction, the share of one GPU; 0: there is no network."""
    network_latency: float = 0.0
    """Seconds of one message to another node."""
    max_clock: float = 0.0
    """Hz: the highest clock that the driver lets kernels run at, where it is not ``boost_clock``; 0: it is."""
    power_limit: float = 0.0
    """Watts that an operator lets the board draw; 0: its ``tdp``."""
    clock_limit: float = 0.0
    """Hz: the clock that an operator has locked, which all rates follow already; 0: none."""
    unlimited: Gpu | None = field(default=None, repr=False)
    """The chip itself, where an operator holds it back."""
    announced: str = ""
    """Who announced its figures and when, where nobody could check them yet; empty for what is sold."""
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def _words(self) -> str:
        memory = format_bytes(self.driver_bytes)
        return f"{self.name}, {self.title}, {memory}, {format_rate(self.dram_bandwidth, 'B/s')}"

    @property
    def sustained_fraction(self) -> float:
        """Share of the boost clock that is left under a long, heavy matrix product."""
        return self.sustained_clock / self.boost_clock

    @property
    def top_clock(self) -> float:
        """Hz: the highest clock that kernels run at while power allows it and nothing is locked."""
        return self.max_clock or self.boost_clock

    @property
    def clock_share(self) -> float:
        """Share of that clock which is left by a locked one."""
        return self.clock_limit / self.top_clock if self.clock_limit else 1.0

    @property
    def board_limit(self) -> float:
        """Watts that the board may draw."""
        return self.power_limit or self.tdp

    @property
    def announced_notes(self) -> list[str]:
        """For people: one sentence where all that is known of it was announced; else none."""
        if not self.announced:
            return []
        return [
            f"Figures of {self.name} are announced ones ({self.announced}): nobody could measure it yet, and its "
            "kernels are taken to be those of the generation before."
        ]

    def is_linked(self, gpus: int) -> bool:
        """Whether direct links join that many GPUs; over PCIe or a network otherwise."""
        return self.nvlink_bandwidth > 0 and gpus <= self.nvlink_gpus

    def link_bandwidth(self, gpus: int) -> float:
        """Bytes a second that a ring over so many GPUs can carry: direct links, PCIe, or all adapters of a node."""
        if gpus > self.gpus_per_node and self.network_bandwidth > 0:
            return min(self.link_bandwidth(self.gpus_per_node), self.network_bandwidth * self.gpus_per_node)
        return self.nvlink_bandwidth if self.is_linked(gpus) else self.pcie_bandwidth

    def supports(self, dtype: str) -> bool:
        """Whether the chip itself multiplies in ``dtype``."""
        _known(dtype)
        return dtype in self.tensor_flops

    def dense_flops(self, dtype: str) -> float:
        """Peak FLOP/s of a matrix product in ``dtype``, or in what engines use instead where the chip lacks it."""
        peak = self.tensor_flops.get(dtype)
        if peak is not None:
            return peak
        return self.tensor_flops[next(name for name in _known(dtype) if name in self.tensor_flops)]


def _known(dtype: str) -> tuple[str, ...]:
    """The formats to try for ``dtype``, or a clear error."""
    try:
        return FALLBACKS[dtype]
    except KeyError:
        raise UnknownNameError("tensor dtype", dtype, FALLBACKS) from None
