"""A chip that differs from a real one in a few numbers, for those who ask what if."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from infercast.errors import InputError, UnknownNameError
from infercast.hardware.gpu import Gpu

SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
LEAST_SHARE = 1e-3
"""A number below this share of what a chip has is taken for a slip: 1.5 for 1.5x, or 4800 for 4800G."""
ON_CHIP = ("fma_flops", "special_rate", "l2_bandwidth")
"""Rates that grow with the number of multiprocessors and with their clock, as tensor rates do."""
PROPERTIES = (
    "sms", "boost_clock", "tensor_flops", "special_rate", "dram_bandwidth", "dram_bytes", "l2_bytes", "l2_bandwidth",
    "nvlink_bandwidth", "pcie_bandwidth", "network_bandwidth",
)  # fmt: skip
"""What can be changed; ``tensor_flops`` is the bf16 rate, and the other formats' move along."""


def changed_gpu(gpu: Gpu, changes: Mapping[str, str]) -> Gpu:
    """The same chip with other numbers: ``1.5x`` of what it has, or a number in SI units (``7.2T``, ``160``).

    What follows from a number moves along with it: all rates of the multiprocessors with their count and clock, the
    sustained clock with the boost clock, the memory that a driver reports with the memory there is.
    """
    for name, text in changes.items():
        if name not in PROPERTIES:
            raise UnknownNameError("GPU property", name, PROPERTIES)
        now = gpu.tensor_flops.get("bf16", gpu.dense_flops("fp16")) if name == "tensor_flops" else getattr(gpu, name)
        gpu = _changed(gpu, name, factor_of(name, text, now))
    told = ",".join(f"{name}={text}" for name, text in changes.items())
    return replace(gpu, name=f"{gpu.name}+{told}", title=f"{gpu.title} with {told}", aliases=()) if changes else gpu


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
    """A number as it could have been written."""
    suffix = max((each for each in SUFFIXES if SUFFIXES[each] <= value), key=SUFFIXES.__getitem__, default="")
    return f"{value / SUFFIXES.get(suffix, 1.0):.3g}{suffix}"


def _changed(gpu: Gpu, name: str, factor: float) -> Gpu:
    values: dict[str, Any] = {}
    if name in ("sms", "boost_clock"):
        values = {rate: getattr(gpu, rate) * factor for rate in ON_CHIP}
        moved = factor if name == "boost_clock" else 1.0
        values |= {"sustained_clock": gpu.sustained_clock * moved, "max_clock": gpu.max_clock * moved}
    if name in ("sms", "boost_clock", "tensor_flops"):
        values["tensor_flops"] = {dtype: rate * factor for dtype, rate in gpu.tensor_flops.items()}
        values["whole_tensor_flops"] = gpu.whole_tensor_flops * factor
    if name == "dram_bytes":
        values["driver_bytes"] = round(gpu.driver_bytes * factor)
    if name != "tensor_flops":
        value = getattr(gpu, name) * factor
        values[name] = max(1, round(value)) if name in ("sms", "dram_bytes", "l2_bytes") else value
    return replace(gpu, **values)
