"""All-reduces of the engines' own: one- and two-shot kernels, and kernels over symmetric memory.

A one-shot kernel reads everything of everyone, a two-shot kernel reduces a share and gathers the others'. Above the
size that these are kept to, vLLM copies the message into memory that all GPUs map, reduces it there (two-shot, or by
the switch) and copies it out again.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any

from infercast.bundled import DATA
from infercast.hardware import Gpu
from infercast.hardware.kernels import facts_of
from infercast.ops import Collective
from infercast.predict.physics.collective_library import library
from infercast.predict.physics.collective_links import Timed, delay, is_switched, link_rate, merge
from infercast.predict.physics.either import Kit, Number

MIB = 1 << 20
ONE_SHOT_LIMITS = {2: 64 * MIB, 4: MIB // 2, 8: MIB // 4}
# Seconds of a kernel at 1.83 GHz, of each further GPU, and of a second shot; share of the links it fills. Fitted on
# vLLM's kernels on A100, H100 and H200.
SHOT_LATENCY, SHOT_STEP, SECOND_SHOT = 4.34e-6, 0.055e-6, 3.4e-6
SHOT_EFFICIENCY, SHOT_SOFTNESS = 0.72, 0.90
# Symmetric memory, fitted on H100 and H200: seconds of two copies and the kernel between them, and the shares of the
# links that it fills by two shots and through the switch.
SYMMETRIC_LATENCY, SYMMETRIC_EFFICIENCY, MULTICAST_EFFICIENCY = 8.6e-6, 0.74, 0.69
# Only part of the latency of so short a kernel is cycles of the GPU: as a power of the clock.
CLOCK_POWER = 0.55


def engine_kernel(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Timed:
    """What an engine does itself, and the library's where it leaves a collective to that."""
    limits = _limits(op, gpu, "own")
    # Without NVLink, engines give their own kernel up beyond two GPUs.
    if op.kind != "all_reduce" or not limits or not (gpu.is_linked(op.gpus) or op.gpus <= 2):
        return library(op, gpu, message, x)

    def longer() -> Timed:
        symmetric_limits = _limits(op, gpu, "symmetric")
        if not symmetric_limits or not is_switched(gpu, op.gpus):
            return library(op, gpu, message, x)
        most = _limit(symmetric_limits, op.gpus)
        by_library, symmetric = (lambda: library(op, gpu, message, x)), (lambda: _symmetric(op, gpu, message, x))
        return merge(x, message <= most, symmetric, by_library)

    return merge(x, message < _limit(limits, op.gpus), lambda: _shots(op, gpu, message, x), longer)


@cache
def _engines() -> dict[str, dict[str, Any]]:
    """What is known of each engine's own kernels."""
    return tomllib.loads(DATA.joinpath("all_reduce.toml").read_text(encoding="utf-8"))


def _limits(op: Collective, gpu: Gpu, kernels: str) -> Mapping[Any, int]:
    """Bytes that an engine's kernels end at, by the largest number of GPUs each limit is for; empty: it has none."""
    table = _engines().get(op.library, {}).get(kernels, {})
    limits: Mapping[Any, int] = table.get(gpu.compute_capability, table.get("other", {}))
    return limits


def _limit(limits: Mapping[Any, int], gpus: int) -> int:
    """Bytes that a kernel for so many GPUs ends at."""
    return next((size for most, size in limits.items() if gpus <= int(most)), 0)


def _shots(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Timed:
    """Read all of the others at once, or reduce a share and gather the rest."""
    one = message < _limit(ONE_SHOT_LIMITS, op.gpus)
    link = link_rate(gpu, op.gpus) * (SHOT_EFFICIENCY if gpu.is_linked(op.gpus) else 1.0)
    saved = 1e-6 * _engines()[op.library].get("switched_saves_us", 0.0) if is_switched(gpu, op.gpus) else 0.0
    seconds = SHOT_LATENCY - saved + SHOT_STEP * (op.gpus - 1) + x.where(one, 0.0, SECOND_SHOT)
    latency = seconds * delay(gpu, CLOCK_POWER)
    transfer = x.where(one, (op.gpus - 1) * message, op.link_share * message) / link
    return Timed(x.soft_pair(SHOT_SOFTNESS, latency, transfer), latency, transfer, x.where(one, 2.0, 3.0))


def _symmetric(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Timed:
    """Copied in, reduced by two shots or by the switch, and copied out."""
    by_switch = op.gpus >= _engines()[op.library]["multicast_from"][gpu.compute_capability]
    carried, share = op.link_share * message, SYMMETRIC_EFFICIENCY
    if by_switch:
        carried = message * (op.gpus + 1) / op.gpus
        share = MULTICAST_EFFICIENCY * facts_of(gpu).switch_share
    latency = x.like(message, SYMMETRIC_LATENCY * delay(gpu, CLOCK_POWER))
    # Two copies read and write it once each.
    transfer = carried / (link_rate(gpu, op.gpus) * share) + 4.0 * message / gpu.dram_bandwidth
    return Timed(x.soft_pair(SHOT_SOFTNESS, latency, transfer), latency, transfer, 8.0 if by_switch else 7.0)
