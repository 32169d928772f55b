"""Board power while kernels run: what a board draws idle, and the energy of the work that a kernel does.

    joules = idle watts x seconds
           + active watts x share of busy multiprocessors x seconds
           + joules per FLOP x FLOPs + joules per byte x bytes

Energies add up over the kernels of a step. A board that would draw more than its limit lowers its clock until it does
not: work then takes longer at a lower voltage, so that it costs less energy. How long work takes is the timing model's
to say; here seconds are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.dtypes import tensor_rate_of
from infercast.ops.op import Quantity
from infercast.predict.energy.boards import board_of, energy_data
from infercast.predict.energy.work import occupied, work_of

HELD = 0.987
"""Share of its limit that a board holds while the limit binds: 691 of 700 W and 986 of 1,000 W."""
BURST = 1.41
"""Times the TDP, the most that a board draws in bursts of milliseconds, before the limit binds."""
FLOP_EXPONENT, BYTE_EXPONENT = 0.8, 0.4
"""Powers of the clock that the energies of an operation and of a byte go with: the voltage falls with the clock."""
ACTIVE_EXPONENT = 1.8
IDLE_FIXED = 0.64
"""Share of idle power that stays at the lowest clock: 77 of 120 W on an H200."""
LEAST_CLOCK = 0.15
"""The lowest share of its clock that a board falls to."""


@dataclass(frozen=True, slots=True)
class BoardPower:
    """What one GPU draws, in watts, and what work costs on it, in joules."""

    idle_watts: float
    """A program holds the GPU and its clocks are up, but nothing runs."""
    static_watts: float
    """The same while kernels run, whatever they do."""
    limit_watts: float
    """What the board may draw."""
    source: str
    """Where the numbers come from: one of `predict.estimate.SOURCES`."""
    spread: float
    """Standard deviation of the logarithm of the power of a run."""
    active_watts: float
    """On top while a kernel fills all multiprocessors."""
    flop: float
    """Joules of a 16-bit operation of a product."""
    dram: float
    """Joules of a byte of memory."""
    l2: float
    """Joules of a byte that is still in L2."""
    burst_watts: float
    """The most that the board draws for milliseconds."""
    sms: int
    formats: Mapping[str, float] = field(hash=False)
    """Operations of other formats as shares of a 16-bit one."""
    families: Mapping[str, Mapping[str, float]] = field(hash=False)
    """What an operation (``flop``) or a byte (``byte``) of a family costs more than one of a product."""
    clock: float = 1.0
    """Share of the unhindered clock that the numbers are for."""

    @property
    def held_watts(self) -> float:
        """What the board draws while its limit binds."""
        return HELD * self.limit_watts

    def dynamic_joules(self, op: Op, seconds: Quantity, *, warm: Quantity = 0.0) -> Quantity:
        """Energy of one launch above static power; arrays of shapes give arrays.

        ``warm``: share of its bytes that are still in L2, as in a table that repeats one kernel; in an engine none are.
        """
        work, more = work_of(op), self.families.get(op.family, {})
        share = self.formats.get(tensor_rate_of(op.compute_dtype), 1.0) * more.get("flop", 1.0)
        byte = (self.dram + (self.l2 - self.dram) * warm) * more.get("byte", 1.0)
        busy = self.active_watts * occupied(op, work, self.sms) * seconds
        most = (self.burst_watts - self.static_watts) * seconds
        joules = np.minimum(work.flops * (self.flop * share) + work.bytes * byte + busy, most)
        return joules if isinstance(joules, np.ndarray) and joules.ndim else float(joules)

    def watts(self, op: Op, seconds: Quantity, *, warm: Quantity = 0.0) -> Quantity:
        """Mean board power of a kernel that is launched again and again."""
        power = self.static_watts + self.dynamic_joules(op, seconds, warm=warm) / seconds
        held = np.minimum(self.held_watts, power)
        return held if isinstance(held, np.ndarray) and held.ndim else float(held)

    def at_clock(self, fraction: float) -> BoardPower:
        """The same board at a share of its clock: its voltage, and with it the energy of work, falls too."""
        change = fraction / self.clock
        idle = IDLE_FIXED + (1.0 - IDLE_FIXED) * change**ACTIVE_EXPONENT
        return replace(
            self,
            idle_watts=self.idle_watts * idle,
            static_watts=self.static_watts * idle,
            active_watts=self.active_watts * change**ACTIVE_EXPONENT,
            flop=self.flop * change**FLOP_EXPONENT,
            dram=self.dram * change**BYTE_EXPONENT,
            l2=self.l2 * change**FLOP_EXPONENT,
            clock=fraction,
        )


def board_power(gpu: Gpu, limit_watts: float | None = None, *, known: str | None = None) -> BoardPower:
    """What is known of a GPU's power; ``limit_watts``: what its board may draw, if not its TDP.

    ``known``: the GPU that it is to be scaled from, to see how good that is.
    """
    board, data = board_of(gpu, known), energy_data()
    return BoardPower(
        idle_watts=board.idle_watts,
        static_watts=board.idle_watts,
        limit_watts=gpu.tdp if limit_watts is None else limit_watts,
        source=board.source,
        spread=board.spread,
        active_watts=board.active_watts,
        flop=board.flop,
        dram=board.dram,
        l2=board.l2,
        burst_watts=BURST * gpu.tdp,
        sms=gpu.sms,
        formats=data["formats"],
        families=data["families"],
    )
