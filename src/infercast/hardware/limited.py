"""A GPU under a power limit or a locked clock, as an operator sets them: the same chip, held back."""

from __future__ import annotations

from dataclasses import replace

from infercast.errors import InputError
from infercast.hardware.changed import ON_CHIP
from infercast.hardware.gpu import Gpu

LEAST_POWER, LEAST_CLOCK = 0.27, 0.2
"""Shares of the board's own limit and of its highest clock below which no driver goes, or nothing is known; no board
idles at as much power."""
MEGA = 1e6


def limited_gpu(gpu: Gpu, power_limit_w: float | None = None, clock_mhz: float | None = None) -> Gpu:
    """The same GPU whose board may draw no more than so many watts, or whose clock goes no higher than so many MHz.

    Rates of the multiprocessors follow a locked clock, memory does not. The board's own limit and its highest clock
    change nothing.
    """
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
        gpu,
        title=f"{gpu.title}, locked at {clock_mhz:g} MHz",
        clock_limit=clock_mhz * MEGA,
        unlimited=gpu.unlimited or gpu,
        boost_clock=boost,
        max_clock=gpu.top_clock,
        sustained_clock=min(gpu.sustained_clock, boost),
        tensor_flops={dtype: rate * fraction for dtype, rate in gpu.tensor_flops.items()},
        whole_tensor_flops=gpu.whole_tensor_flops * fraction,
        **{rate: getattr(gpu, rate) * fraction for rate in ON_CHIP},
    )
