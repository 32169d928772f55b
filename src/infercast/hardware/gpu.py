"""A GPU as a kernel sees it, changed or power-limited GPUs, the order of GPUs, and the PCIe topology between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from infercast.errors import InputError, UnknownNameError
from infercast.lazy_classes import NamedTuple, dataclass, field, replace
from infercast.shown import ResultMixin
from infercast.units import format_bytes, format_rate

# What a matrix product runs at when the chip lacks its format, first choice first. An engine then keeps the weights
# small in memory and widens them to 16 bits on the way to the tensor cores (weight-only kernels such as Marlin).
FALLBACKS: dict[str, tuple[str, ...]] = {
    "fp32": ("fp32",), "tf32": ("tf32", "fp32"), "bf16": ("bf16", "fp16", "fp32"), "fp16": ("fp16", "bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"), "int8": ("int8", "bf16", "fp16", "fp32"),
    "fp4": ("fp4", "bf16", "fp16", "fp32"),
}  # fmt: skip
LEAST_POWER, LEAST_CLOCK = 0.27, 0.2  # Shares of its limit and top clock below which no driver goes, or none is known
MEGA = 1e6
SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
LEAST_SHARE = 1e-3  # A number below this share of what a chip has is taken for a slip: 1.5 for 1.5x, or 4800 for 4800G
ON_CHIP = ("fma_flops", "special_rate", "l2_bandwidth")  # Rates that grow with multiprocessors and their clock
RATES = ("sms", "boost_clock", "sustained_clock", "fma_flops", "special_rate", "dram_bandwidth", "l2_bandwidth")
"""What a kernel on one GPU can be bound by, tensor rates and the size of the last cache aside."""
FORMATS = ("bf16", "fp8", "fp4")  # What models are multiplied in; Blackwell Ultra gave int8 up for fp4
PROPERTIES = (
    "sms", "boost_clock", "tensor_flops", *(f"{each}_flops" for each in FORMATS), "special_rate", "dram_bandwidth",
    "dram_bytes", "l2_bytes", "l2_bandwidth", "nvlink_bandwidth", "pcie_bandwidth", "network_bandwidth",
)  # fmt: skip
"""What can be changed; ``tensor_flops`` is the bf16 rate, and the other formats' move along; ``fp8_flops`` is alone."""
EQUAL = 0.999  # Datasheets are rounded: what differs by less is the same


@dataclass(frozen=True, slots=True, repr=False)
class Gpu(ResultMixin):
    """One GPU model, in SI units: Hz, bytes, bytes/s, FLOP/s, W. Rates are peaks at ``boost_clock``;
    ``sustained_clock`` is what the chip holds inside its power limit while it multiplies large bf16 matrices without a
    pause.
    """

    name: str
    title: str
    vendor: str
    architecture: str
    compute_capability: str
    kernels: str  # Architecture of the kernels that engines run on it: its own, or an earlier one that shares them
    memory: str  # Its kind: ``hbm`` (stacked) or ``gddr``
    sms: int  # Streaming multiprocessors; compute units on AMD
    boost_clock: float  # Hz
    sustained_clock: float  # Hz under a long, heavy matrix product
    tensor_flops: Mapping[str, float] = field(hash=False)
    """Dense FLOP/s (no sparsity, wide accumulation) by format; ``fp32`` is the plain rate outside the tensor cores."""
    whole_tensor_flops: float  # 16-bit FLOP/s of the tensor cores themselves; some products are sold with a lower rate
    fma_flops: float  # Plain fp32 multiply-add FLOP/s, a multiply-add counted as two
    special_rate: float  # Exponentials and other special functions per second
    dram_bytes: int  # Bytes of memory that it is sold with
    driver_bytes: int  # Bytes of memory that the driver reports to a program, after ECC and its own reserve
    dram_bandwidth: float  # Bytes per second from memory
    l2_bytes: int  # Bytes of the last cache before DRAM: L2, or the Infinity Cache on AMD
    l2_bandwidth: float  # Bytes per second from that cache
    shared_memory_per_sm: int  # Bytes
    registers_per_sm: int  # 32-bit registers
    nvlink_bandwidth: float  # Bytes per second of direct links between GPUs, one direction, all together; 0: none
    pcie_bandwidth: float  # Bytes per second to the host, one direction
    gpus_per_node: int  # GPUs that usually share one such link domain, or one server where there is none
    tdp: float  # Watts that the board is built to draw
    nvlink_gpus: int = 0  # GPUs joined by direct links: a node behind a switch, or two or four bridged cards; 0: none
    cpu: str = "measured"  # The CPU that it is sold with, of `infercast hosts`; ``measured``: with none
    pcie_topology: str = ""  # How GPUs without direct links are joined, one of `TOPOLOGIES`; empty: unknown
    network_bandwidth: float = 0.0  # Bytes per second to other nodes, one direction, one GPU's share; 0: no network
    network_latency: float = 0.0  # Seconds of one message to another node
    network_levels: tuple[tuple[int, float], ...] = ()  # GPUs that a switch joins, and the share that more of them have
    max_clock: float = 0.0  # Hz: highest clock that the driver lets kernels run at, if not ``boost_clock``; 0: it is
    power_limit: float = 0.0  # Watts that an operator lets the board draw; 0: its ``tdp``
    clock_limit: float = 0.0  # Hz: the clock that an operator has locked, which all rates follow already; 0: none
    unlimited: Gpu | None = field(default=None, repr=False)  # The chip itself, where an operator holds it back
    announced: str = ""  # The announcement of its figures, where they could not be checked yet; empty for what is sold
    stages: tuple[Gpu, ...] = field(default=(), repr=False)  # Of a pipeline's stages, where they differ from this one
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def _words(self) -> str:
        memory = format_bytes(self.driver_bytes)
        return f"{self.name}, {self.title}, {memory}, {format_rate(self.dram_bandwidth, 'B/s')}"

    def at(self, stage: int) -> Gpu:
        """The GPU of a stage of a pipeline."""
        return self.stages[stage] if self.stages else self

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
        """One sentence where all that is known of it was announced; else none."""
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
        """Bytes a second that a ring over the GPUs can carry: direct links, PCIe, or all adapters of a node."""
        if gpus > self.gpus_per_node and self.network_bandwidth > 0:
            return min(self.link_bandwidth(self.gpus_per_node), self.network_rate(gpus) * self.gpus_per_node)
        return self.nvlink_bandwidth if self.is_linked(gpus) else self.pcie_bandwidth

    def network_rate(self, gpus: int) -> float:
        """Bytes a second that each of so many GPUs can send past all switches between them."""
        return self.network_bandwidth * min(
            [share for joined, share in self.network_levels if gpus > joined], default=1
        )

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
    try:
        return FALLBACKS[dtype]
    except KeyError:
        raise UnknownNameError("tensor dtype", dtype, FALLBACKS) from None


def changed_gpu(gpu: Gpu, changes: Mapping[str, str]) -> Gpu:
    """The same chip with other numbers: ``1.5x`` of what it has, or SI units (``7.2T``); what follows moves along."""
    if changes and gpu.stages:
        raise InputError(f"what-if {', '.join(changes)} is of one kind of GPU, not of {gpu.title}; leave it out")
    for name, text in changes.items():
        if name not in PROPERTIES:
            raise UnknownNameError("GPU property", name, PROPERTIES)
        rates = _moving_rates(gpu, name)
        own = rates.get("bf16") or rates.get("fp16") or next(iter(rates.values()), 0.0)
        now = own if name.endswith("_flops") else getattr(gpu, name)
        factor = factor_of(name, text, now)
        values: dict[str, Any] = {}
        if name in ("sms", "boost_clock"):
            values = {rate: getattr(gpu, rate) * factor for rate in ON_CHIP}
            moved = factor if name == "boost_clock" else 1.0
            values |= {"sustained_clock": gpu.sustained_clock * moved, "max_clock": gpu.max_clock * moved}
        if rates:
            values["tensor_flops"] = {**gpu.tensor_flops, **{dtype: rate * factor for dtype, rate in rates.items()}}
            moved = factor if "bf16" in rates or "fp16" in rates else 1.0
            values["whole_tensor_flops"] = gpu.whole_tensor_flops * moved
        if name == "dram_bytes":
            values["driver_bytes"] = round(gpu.driver_bytes * factor)
        if not name.endswith("_flops"):
            value = getattr(gpu, name) * factor
            values[name] = max(1, round(value)) if name in ("sms", "dram_bytes", "l2_bytes") else value
        gpu = replace(gpu, **values)
    told = ",".join(f"{name}={text}" for name, text in changes.items())
    return replace(gpu, name=f"{gpu.name}+{told}", title=f"{gpu.title} with {told}", aliases=()) if changes else gpu


def _moving_rates(gpu: Gpu, name: str) -> Mapping[str, float]:
    """Rates of the tensor cores that move with a property; both formats of 16 bits are multiplied by the same."""
    if name in ("sms", "boost_clock", "tensor_flops"):
        return gpu.tensor_flops
    dtype = name.removesuffix("_flops")
    formats = ("bf16", "fp16") if dtype == "bf16" else (dtype,)
    rates = {each: gpu.tensor_flops[each] for each in formats if each in gpu.tensor_flops}
    if name.endswith("_flops") and not rates:
        raise InputError(f"{name}: {gpu.name} does not multiply in {dtype}; it does in {', '.join(gpu.tensor_flops)}")
    return rates


def factor_of(name: str, text: str, now: float) -> float:
    """How many times as much as ``now`` a change asks for."""
    relative, number = text.endswith("x"), text.removesuffix("x")
    scale = 1.0 if relative else SUFFIXES.get(number[-1:], 1.0)
    try:
        value = float(number if scale == 1.0 else number[:-1]) * scale
    except ValueError:
        raise InputError(f"{name}={text}: say how many times as much (1.5x) or a number in SI units (7.2T)") from None
    if not 0 < value < math.inf:
        raise InputError(f"{name}={text} must be above 0 and finite")
    if not relative and now <= 0:
        raise InputError(f"{name}={text}: this GPU has none to begin with")
    if not relative and value < LEAST_SHARE * now:
        raise InputError(
            f"{name}={text} is {value:g} where this GPU has {now:g}; say {number}x for so many times as much, or use "
            f"units ({_with_unit(now)})"
        )
    return value if relative else value / now


def _with_unit(value: float) -> str:
    suffix = max((each for each in SUFFIXES if SUFFIXES[each] <= value), key=SUFFIXES.__getitem__, default="")
    return f"{value / SUFFIXES.get(suffix, 1.0):.3g}{suffix}"


def rate_ratios(gpu: Gpu, other: Gpu) -> list[float]:
    ratios = [getattr(gpu, name) / getattr(other, name) for name in RATES]
    return ratios + [gpu.dense_flops(dtype) / other.dense_flops(dtype) for dtype in FORMATS]


def has_at_least(gpu: Gpu, other: Gpu) -> bool:
    """Whether the first has at least as much of everything, and is as new; GDDR reaches less than stacked memory."""
    if gpu.vendor != other.vendor or _capability(gpu) < _capability(other):
        return False
    if gpu.memory not in (other.memory, "hbm"):
        return False
    if any(other.supports(dtype) and not gpu.supports(dtype) for dtype in FORMATS[:2]):
        return False
    return min(*rate_ratios(gpu, other), gpu.l2_bytes / other.l2_bytes) >= EQUAL


def ratio_bounds(gpu: Gpu, other: Gpu) -> tuple[float, float]:
    """Between what a kernel's time on the first can lie, in times on the second; a larger cache never harms."""
    ratios = rate_ratios(gpu, other)
    least = 1.0 / max(1.0, *ratios) if gpu.l2_bytes <= other.l2_bytes else 0.0
    most = 1.0 / min(1.0, *ratios) if gpu.l2_bytes >= other.l2_bytes else float("inf")
    return least, most


def _capability(gpu: Gpu) -> tuple[int, ...]:
    """Compute capabilities in order; other vendors' names have none."""
    parts = gpu.compute_capability.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


ECC_SHARE = 0.85
"""What error correction leaves of the rate of GDDR that keeps its codes in itself: turned on, it made RTX 4090 and A40
15 % slower (support.chaos.com, "ECC State for Nvidia GPUs"); without it RTX 4090 reach 0.92 of their rate."""


def has_inline_ecc(gpu: Gpu) -> bool:
    """Whether codes of its own memory take a sixteenth of it, and bandwidth: boards for servers, by default."""
    return gpu.memory == "gddr" and gpu.driver_bytes < 15.5 / 16 * gpu.dram_bytes


@cache
def without_ecc(gpu: Gpu) -> Gpu:
    """For kernels with an efficiency that was learned with ECC, of which this GPU's memory has none."""
    return replace(gpu, dram_bandwidth=gpu.dram_bandwidth / ECC_SHARE)


class Topology(NamedTuple):
    title: str
    share: float  # Of a slot's rate, among two GPUs
    sharing: float  # Power of half their number by which it falls


# Four A100 and four H100 PCIe cards behind switches reach 0.75 of a slot's rate (Vidur's profiles); two, four and eight
# L40S of one server 0.64, 0.17 and 0.05 (published tables); V100 through the host's memory 0.24 to 0.28 (APEX's).
THROUGH_HOST = "host"
TOPOLOGIES = {
    "switch": Topology("all GPUs behind PCIe switches that pass data between them", 0.75, 0.0),
    "sockets": Topology("slots of two sockets, half of the traffic between them", 0.64, 1.86),
    THROUGH_HOST: Topology("no direct copies: through the memory of the host", 0.26, 0.0),
}
MEASURED = "sockets"  # The server with measured collectives; taken, with a wide interval, where the topology is unknown


def with_topology(gpu: Gpu, name: str | None) -> Gpu:
    """The same GPU in a server of this kind; None leaves it open."""
    if name is None:
        return gpu
    if name not in TOPOLOGIES:
        raise UnknownNameError("PCIe topology", name, TOPOLOGIES)
    return replace(gpu, pcie_topology=name)


def ring_rate(gpu: Gpu, gpus: int) -> float:
    """Bytes a second that a ring over GPUs without direct links carries."""
    topology = TOPOLOGIES[gpu.pcie_topology or MEASURED]
    return float(gpu.pcie_bandwidth * topology.share / (gpus / 2) ** topology.sharing)


def is_left_open(gpu: Gpu, gpus: int) -> bool:
    """Whether the GPUs talk over PCIe of a server with unknown topology."""
    return not gpu.pcie_topology and gpus <= gpu.gpus_per_node and not gpu.is_linked(gpus)


def servers(gpu: Gpu) -> list[Gpu]:
    return [with_topology(gpu, name) for name in TOPOLOGIES]


def limited_gpu(gpu: Gpu, power_limit_w: float | None = None, clock_mhz: float | None = None) -> Gpu:
    """The same GPU under a power limit of its board, or with a locked clock, which rates of multiprocessors follow."""
    real = gpu.unlimited or gpu
    if power_limit_w is not None:
        if not LEAST_POWER * gpu.tdp <= power_limit_w <= gpu.tdp:
            raise InputError(
                f"power_limit_w {power_limit_w:g} is outside what {gpu.name} takes, {LEAST_POWER * gpu.tdp:g} to "
                f"{gpu.tdp:g} W"
            )
        if power_limit_w < gpu.tdp:
            title = f"{gpu.title}, held at {power_limit_w:g} W"
            gpu = replace(gpu, power_limit=float(power_limit_w), title=title, unlimited=real)
    if clock_mhz is None:
        return gpu
    top = gpu.top_clock
    if not LEAST_CLOCK * top <= clock_mhz * MEGA <= top:
        low, high = LEAST_CLOCK * top / MEGA, top / MEGA
        raise InputError(f"gpu_clock_mhz {clock_mhz:g} is outside what {gpu.name} takes, {low:.0f} to {high:.0f} MHz")
    return gpu if clock_mhz * MEGA == top else _locked(gpu, clock_mhz)


def _locked(gpu: Gpu, clock_mhz: float) -> Gpu:
    """With rates that follow the clock; heavy products that held less than it before still do."""
    fraction = clock_mhz * MEGA / gpu.top_clock
    boost = gpu.boost_clock * fraction
    return replace(
        gpu, title=f"{gpu.title}, locked at {clock_mhz:g} MHz", clock_limit=clock_mhz * MEGA,
        unlimited=gpu.unlimited or gpu, boost_clock=boost, max_clock=gpu.top_clock,
        sustained_clock=min(gpu.sustained_clock, boost),
        tensor_flops={dtype: rate * fraction for dtype, rate in gpu.tensor_flops.items()},
        whole_tensor_flops=gpu.whole_tensor_flops * fraction,
        **{rate: getattr(gpu, rate) * fraction for rate in ON_CHIP},
    )  # fmt: skip
