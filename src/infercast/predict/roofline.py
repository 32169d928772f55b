"""The roofline with wave quantisation and a launch floor: no fit, only what a GPU can do at best."""

from __future__ import annotations

from functools import reduce
from math import exp, log
from typing import NamedTuple, Protocol

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.op import Quantity
from infercast.predict.estimate import Estimate
from infercast.predict.families import families_of
from infercast.predict.families.pipes import Pipes
from infercast.predict.limits import pipes_of

# The shortest kernels of a replayed CUDA graph take about this long on an H200 whose clock is 1.83 GHz; the part
# that is instructions scales with the clock, the part that is wires and memory latency does not.
LAUNCH_FLOOR = 2.0e-6
REFERENCE_CLOCK = 1.83e9
CLOCK_SHARE = 0.55

# 90th percentile of measured / roofline latency over the public kernel tables of A100, L40S, H100, H200 and B200
# described in docs/predict.md, where a family has none. The roofline itself is the lower end: nearly nothing is faster.
SPREAD = 1.5
MOVING = ("dram", "link")
"""Pipes that move bytes; the others compute."""


class Predictor(Protocol):
    """Estimates operators on a GPU."""

    is_cheap: bool
    """Whether a single estimate takes so little that nobody needs to keep it."""
    is_bound: bool
    """Whether its estimates are the least that hardware allows, not what is expected."""

    def describe(self, gpu: Gpu) -> str:
        """For people: what its estimates on this GPU rest on."""

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        """One launch of ``op``; arrays of shapes give arrays of times."""

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        """The same without interval and reason, for those who ask by the thousand."""

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        """The terms of one estimate: seconds of each pipe, and what their sum is multiplied by (``efficiency``)."""


class Efficiency(NamedTuple):
    """What kernels reach of the roofline."""

    launches: float = 1.0
    """Empty launches that one takes besides its work."""
    share: float = 1.0
    """Of the busiest pipe's rate."""
    low: float = 0.0
    high: float = 0.0
    """Logarithms of the ends of the 80 % interval, as kernels and GPUs differ."""
    memory: float = 0.0
    """Of the rate of memory or links, where it is told apart from that of arithmetic; the two then add up."""

    def work_seconds(self, pipes: Pipes) -> Quantity:
        """What the work takes besides launches."""
        if not self.memory:
            busiest: Quantity = reduce(np.maximum, pipes.values())
            return busiest / self.share
        of_kind = [[pipes[name] for name in pipes if (name in MOVING) == moves] for moves in (True, False)]
        moved, computed = (reduce(np.maximum, each) if each else 0.0 for each in of_kind)
        seconds: Quantity = moved / self.memory + computed / self.share
        return seconds


class Roofline:
    """Busiest pipe plus the launch floor."""

    is_cheap = True
    is_bound = True
    source = "roofline"

    def describe(self, gpu: Gpu) -> str:
        """For people: what its estimates on this GPU rest on."""
        return "roofline with wave quantisation: nothing learned, so times are lower bounds"

    def reached(self, op: Op, gpu: Gpu) -> Efficiency:
        """What an operator reaches of it: all."""
        del gpu
        return Efficiency(high=log(families_of(op)[0].spread.get(op.family, SPREAD)))

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        """One launch of ``op``; arrays of shapes give arrays of times."""
        pipes, reached = pipes_of(op, gpu), self.reached(op, gpu)
        launch = reached.launches * launch_floor(gpu)
        demands = np.stack(np.broadcast_arrays(launch, *pipes.values()))
        bound = np.array(["launch", *pipes])[np.argmax(demands, axis=0)]
        busiest = np.max(demands[1:], axis=0)
        seconds = np.asarray(launch + reached.work_seconds(pipes))
        # Nothing is faster than the busiest pipe at its full rate.
        low, high = np.maximum(seconds * exp(reached.low), busiest), seconds * exp(reached.high)
        source = self.source_of(op, gpu)
        if seconds.ndim == 0:
            return Estimate(float(seconds), float(low), float(high), source, str(bound))
        return Estimate(seconds, low, high, source, bound)

    def source_of(self, op: Op, gpu: Gpu) -> str:
        """What an estimate rests on."""
        del op, gpu
        return self.source

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        """The same without interval and reason, for those who ask by the thousand."""
        reached = self.reached(op, gpu)
        return reached.launches * launch_floor(gpu) + reached.work_seconds(pipes_of(op, gpu))

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        """The terms of one estimate: seconds of each pipe at its full rate, and of launching."""
        terms = {name: float(np.ravel(value)[0]) for name, value in pipes_of(op, gpu).items()}
        return {**terms, "launch": self.reached(op, gpu).launches * launch_floor(gpu)}


def launch_floor(gpu: Gpu) -> float:
    """Seconds the emptiest kernel takes on this GPU."""
    return LAUNCH_FLOOR * (1 - CLOCK_SHARE + CLOCK_SHARE * REFERENCE_CLOCK / gpu.boost_clock)
