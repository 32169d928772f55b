"""What a board draws while one kernel runs again and again, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

import numpy as np

from infercast.ops import Op
from infercast.predict.energy.model import BoardPower

EIGHTY = 1.2816
"""Standard deviations of a normal distribution to either side that hold 80 %."""


@dataclass(frozen=True, slots=True)
class KernelPower:
    """Of one launch among many like it."""

    watts: float
    """Mean board power, what it draws idle included."""
    low: float
    """Lower end of the 80 % interval of the watts."""
    high: float
    """Upper end of the 80 % interval of the watts."""
    joules: float
    """Of one launch."""
    flops: float
    is_limited: bool
    """Whether the board's limit binds, so that launches without a pause take longer than one alone."""
    source: str
    """Where the numbers come from: one of `predict.estimate.SOURCES`."""

    @property
    def joules_per_flop(self) -> float | None:
        """None where a kernel has no operations to speak of."""
        return self.joules / self.flops if self.flops > 0 else None


def kernel_power(board: BoardPower, op: Op, seconds: float) -> KernelPower:
    """What a kernel of so many seconds draws."""
    dynamic = float(np.ravel(board.dynamic_joules(op, seconds))[0])
    wanted = board.static_watts + dynamic / seconds
    held = board.held_watts
    watts, spread = min(wanted, held), exp(EIGHTY * board.spread)
    return KernelPower(
        watts=watts,
        low=min(wanted / spread, held),
        high=min(wanted * spread, board.limit_watts),
        joules=watts * seconds,
        flops=float(np.ravel(op.flops)[0]),
        is_limited=wanted > held,
        source=board.source,
    )
