"""Board power while kernels run: static power, and the energy of the work that a kernel does.

    joules = static watts x seconds + joules per FLOP x FLOPs + joules per byte x bytes

Energies add up over the kernels of a step. A board that would draw more than its limit lowers its clock until it does
not: work then takes longer at a lower voltage, so that it costs less energy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.dtypes import tensor_rate_of
from infercast.ops.op import Quantity

VOLTAGE_SHARE = 0.6
"""How voltage follows the clock: a share of the boost clock is that share to this power of the boost voltage."""
LEAST_CLOCK = 0.2
"""The lowest clock that a board falls to, as a share of its boost clock."""


@dataclass(frozen=True, slots=True)
class BoardPower:
    """What one GPU draws, in watts, and what work costs on it, in joules."""

    idle_watts: float
    """A program holds the GPU and its clocks are up, but nothing runs."""
    static_watts: float
    """While kernels run, whatever they do, at the boost clock."""
    limit_watts: float
    """What the board may draw."""
    source: str
    """Where the numbers come from: one of `predict.estimate.SOURCES`."""
    spread: float
    """Standard deviation of the logarithm of the power of a run."""
    joules_per_flop: Mapping[str, float] = field(hash=False)
    """By the format that tensor cores multiply in, at the boost clock."""
    joules_per_byte: float
    """Of memory."""
    clock: float = 1.0
    """Share of the boost clock that the numbers are for."""

    def dynamic_joules(self, op: Op, seconds: Quantity) -> Quantity:
        """Energy of one launch above static power; arrays of shapes give arrays."""
        del seconds
        per_flop = self.joules_per_flop.get(tensor_rate_of(op.compute_dtype), self.joules_per_flop["bf16"])
        return op.flops * per_flop + (op.bytes_read + op.bytes_written) * self.joules_per_byte

    def watts(self, op: Op, seconds: Quantity) -> Quantity:
        """Mean board power of a kernel that is launched again and again."""
        power: Quantity = np.minimum(self.limit_watts, self.static_watts + self.dynamic_joules(op, seconds) / seconds)
        return power

    def at_clock(self, fraction: float) -> BoardPower:
        """The same board at a share of its boost clock: its voltage, and with it the energy of work, falls too."""
        voltage = (fraction / self.clock) ** VOLTAGE_SHARE
        return replace(
            self,
            static_watts=self.idle_watts + (self.static_watts - self.idle_watts) * voltage**2 * fraction / self.clock,
            joules_per_flop={name: value * voltage**2 for name, value in self.joules_per_flop.items()},
            clock=fraction,
        )

    def clock_under(self, watts_at_boost: float, limit: float) -> float:
        """Share of the boost clock at which a load that would draw so much at boost draws no more than ``limit``."""
        if watts_at_boost <= limit:
            return 1.0
        above = (limit - self.idle_watts) / (watts_at_boost - self.idle_watts)
        return float(np.clip(max(above, 0.0) ** (1.0 / (1.0 + 2.0 * VOLTAGE_SHARE)), LEAST_CLOCK, 1.0))


def board_power(gpu: Gpu, limit_watts: float | None = None) -> BoardPower:
    """What is known of a GPU's power; ``limit_watts``: what its board may draw, if not its TDP."""
    static = 0.25 * gpu.tdp
    per_flop = 0.9 * (gpu.tdp - static) / (gpu.dense_flops("bf16") * gpu.sustained_fraction)
    joules = {"bf16": per_flop, "fp16": per_flop, "tf32": 2 * per_flop, "fp32": 4 * per_flop}
    joules |= {"fp8": 0.6 * per_flop, "int8": 0.5 * per_flop, "fp4": 0.35 * per_flop}
    return BoardPower(
        idle_watts=0.15 * gpu.tdp,
        static_watts=static,
        limit_watts=gpu.tdp if limit_watts is None else limit_watts,
        source="unseen",
        spread=0.2,
        joules_per_flop=joules,
        joules_per_byte=0.6 * (gpu.tdp - static) / gpu.dram_bandwidth,
    )
