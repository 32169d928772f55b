"""From a GPU file to a ``Gpu``: what a file inherits, and how rates follow from architecture, size and clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infercast.errors import FileFormatError, UnknownNameError
from infercast.hardware.gpu import Gpu
from infercast.hardware.schema import ARCHITECTURE_FIELDS, REQUIRED_GPU_FIELDS
from infercast.units import GIB, GIGA, KIB, MIB, TERA

MEGA = 1e6

DRIVER_SHARE = 0.985
"""Share of the nominal memory that a driver reports where a file does not say; HBM parts show 0.98 to 0.995."""

NOT_INHERITED = ("name", "title", "aliases", "sources", "announced")
"""What belongs to the base alone: a chip made from it is another chip."""


def inherit(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``base`` with those of ``own`` over them.

    What follows from a field that ``own`` changes moves along with it unless ``own`` states it: the sustained clock
    with the boost clock, tensor rates with SMs and clock, the driver's memory with the nominal one. With another
    architecture nothing on the chip is kept.
    """
    kept = {key: value for key, value in base.items() if key not in NOT_INHERITED}
    if own.get("architecture", base["architecture"]) != base["architecture"]:
        for key in ("tensor_tflops", *ARCHITECTURE_FIELDS):
            kept.pop(key, None)
    clock = own.get("boost_clock_mhz", base["boost_clock_mhz"]) / base["boost_clock_mhz"]
    size = own.get("sms", base["sms"]) / base["sms"]
    kept["sustained_clock_mhz"] *= clock
    if "max_clock_mhz" in kept:
        kept["max_clock_mhz"] *= clock
    if "driver_mib" in kept:
        kept["driver_mib"] *= own.get("dram_gib", base["dram_gib"]) / base["dram_gib"]
    if "tensor_tflops" in kept:
        restated = own.get("tensor_flops_per_sm_clock", {})
        scaled = {dtype: rate * clock * size for dtype, rate in kept["tensor_tflops"].items() if dtype not in restated}
        kept["tensor_tflops"] = scaled | own.get("tensor_tflops", {})
    return kept | {key: value for key, value in own.items() if key != "tensor_tflops" or key not in kept}


def build_gpu(name: str, table: Mapping[str, Any], architectures: Mapping[str, Any], shown: object) -> Gpu:
    """The GPU that ``table`` describes; ``shown`` is what an error calls the file."""
    _check_complete(table, architectures, shown)
    chip = {**architectures[table["architecture"]], **{key: table[key] for key in ARCHITECTURE_FIELDS if key in table}}
    sms, boost_clock = table["sms"], table["boost_clock_mhz"] * MEGA
    fma_flops = 2.0 * chip["fp32_lanes_per_sm"] * sms * boost_clock
    dram_bytes = round(table["dram_gib"] * GIB)
    gpu = Gpu(
        name=name,
        title=table.get("title", name),
        vendor=chip["vendor"],
        architecture=table["architecture"],
        compute_capability=chip["compute_capability"],
        kernels=chip["kernels"],
        memory=chip["memory"],
        sms=sms,
        boost_clock=boost_clock,
        sustained_clock=table["sustained_clock_mhz"] * MEGA,
        tensor_flops={"fp32": fma_flops, **_tensor_flops(table, chip, sms * boost_clock)},
        whole_tensor_flops=_whole_rate(chip) * sms * boost_clock,
        fma_flops=fma_flops,
        special_rate=float(chip["special_ops_per_sm_clock"] * sms * boost_clock),
        dram_bytes=dram_bytes,
        driver_bytes=round(table["driver_mib"] * MIB) if "driver_mib" in table else round(DRIVER_SHARE * dram_bytes),
        dram_bandwidth=table["dram_gb_per_s"] * GIGA,
        l2_bytes=round(table["l2_mib"] * MIB),
        l2_bandwidth=_l2_bytes_per_clock(chip, sms) * boost_clock,
        shared_memory_per_sm=round(chip["shared_memory_kib_per_sm"] * KIB),
        registers_per_sm=chip["registers_per_sm"],
        nvlink_bandwidth=table.get("nvlink_gb_per_s", 0) * GIGA,
        pcie_bandwidth=table["pcie_gb_per_s"] * GIGA,
        pcie_topology=table.get("pcie_topology", ""),
        gpus_per_node=table.get("gpus_per_node", 1),
        tdp=float(table["tdp_w"]),
        nvlink_gpus=_linked(table),
        max_clock=table.get("max_clock_mhz", 0) * MEGA,
        announced=table.get("announced", ""),
        aliases=tuple(table.get("aliases", ())),
        sources=tuple(table.get("sources", ())),
    )
    _check_sense(gpu, table, shown)
    return gpu


def _linked(table: Mapping[str, Any]) -> int:
    """GPUs that direct links join: a node's, unless the file says that a bridge joins fewer."""
    if not table.get("nvlink_gb_per_s", 0):
        return 0
    return int(table.get("nvlink_gpus", table.get("gpus_per_node", 1)))


def _check_complete(table: Mapping[str, Any], architectures: Mapping[str, Any], shown: object) -> None:
    missing = [key for key in REQUIRED_GPU_FIELDS if key not in table]
    if missing:
        raise FileFormatError(shown, f"missing {', '.join(missing)} (or start from a bundled GPU with 'base')")
    own = [name for name, facts in architectures.items() if facts["kernels"] == name]
    for field, known in (("architecture", architectures), ("kernels", own)):
        if field in table and table[field] not in known:
            unknown = UnknownNameError("architecture", table[field], known)
            raise FileFormatError(shown, f"field {field!r}: {unknown}; name the nearest and override what differs")


def _check_sense(gpu: Gpu, table: Mapping[str, Any], shown: object) -> None:
    """Refuse what is a number but cannot be meant."""
    if gpu.sustained_clock > gpu.boost_clock:
        clocks = f"{table['sustained_clock_mhz']:g} is above boost_clock_mhz {table['boost_clock_mhz']:g}"
        raise FileFormatError(shown, f"sustained_clock_mhz {clocks}")
    if gpu.max_clock and gpu.max_clock < gpu.boost_clock:
        clocks = f"{table['max_clock_mhz']:g} is below boost_clock_mhz {table['boost_clock_mhz']:g}"
        raise FileFormatError(shown, f"max_clock_mhz {clocks}")
    if gpu.driver_bytes > gpu.dram_bytes:
        sizes = f"{table['driver_mib']:g} is more than dram_gib {table['dram_gib']:g} holds"
        raise FileFormatError(shown, f"driver_mib {sizes}")
    if not {"bf16", "fp16"} & gpu.tensor_flops.keys():
        raise FileFormatError(shown, "tensor_tflops must name bf16 or fp16: models are served in nothing wider")


def _tensor_flops(table: Mapping[str, Any], chip: Mapping[str, Any], sm_clocks: float) -> dict[str, float]:
    """Datasheet rates where the file has them, else FLOP an SM and clock times SM-clocks a second."""
    stated = {dtype: rate * TERA for dtype, rate in table.get("tensor_tflops", {}).items()}
    per_clock = chip["tensor_flops_per_sm_clock"] if not stated else table.get("tensor_flops_per_sm_clock", {})
    return {dtype: rate * sm_clocks for dtype, rate in per_clock.items()} | stated


def _whole_rate(chip: Mapping[str, Any]) -> float:
    """16-bit FLOP an SM and clock."""
    rates = chip["tensor_flops_per_sm_clock"]
    return float(rates.get("bf16") or rates.get("fp16", 0.0))


def _l2_bytes_per_clock(chip: Mapping[str, Any], sms: int) -> float:
    """What the cache's slices give together, or what the SMs can take, whichever is less."""
    taken = chip["l2_bytes_per_sm_clock"] * sms
    return float(min(taken, chip.get("l2_bytes_per_clock", taken)))
