"""What a board draws while one kernel runs again and again, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

import numpy as np

from infercast.ops import Op
from infercast.predict.energy.metered import Reading
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
    meter_watts: float | None = None
    """What a meter shows in a loop of at most 3,000 launches, as in published tables; None where nobody published any.

    In short loops it still shows what ran before, and some tables have operands of zeros."""
    meter_low: float | None = None
    """Lower end of its 80 % interval."""
    meter_high: float | None = None
    """Upper end of its 80 % interval."""

    @property
    def joules_per_flop(self) -> float | None:
        """None where a kernel has no operations to speak of."""
        return self.joules / self.flops if self.flops > 0 else None


def kernel_power(board: BoardPower, op: Op, seconds: float, reading: Reading | None = None) -> KernelPower:
    """What a kernel of so many seconds draws; where a meter's ``reading`` is the kernel's own, power follows it."""
    dynamic = float(np.ravel(board.dynamic_joules(op, seconds))[0])
    wanted = board.static_watts + dynamic / seconds
    low, high = -EIGHTY * board.spread, EIGHTY * board.spread
    held = board.held_watts
    if reading is not None and reading.own > 0.0:
        wanted = min(wanted, held) * reading.factor**reading.own
        low, high = min(low, reading.ends[0]), max(high, reading.ends[1])
    watts = min(wanted, held)
    return KernelPower(
        watts=watts,
        low=min(wanted * exp(low), held),
        high=min(wanted * exp(high), board.limit_watts),
        joules=watts * seconds,
        flops=float(np.ravel(op.flops)[0]),
        is_limited=wanted > held,
        source=board.source,
        meter_watts=None if reading is None else reading.watts,
        meter_low=None if reading is None else reading.low,
        meter_high=None if reading is None else reading.high,
    )
