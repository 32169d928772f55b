"""GPUs of which no kernel was measured: the roofline, at what kernels of measured GPUs typically reach of it.

Of each family two numbers are in typical.toml: how many empty launches it takes, and which share of its busiest pipe it
reaches. Some vendors' products have numbers of their own; the other families' kernels of other vendors are taken to be
as good as those that were measured, and the upper end of the interval holds what products lose.
"""

from __future__ import annotations

import tomllib
from functools import cache, reduce
from typing import NamedTuple

import numpy as np

from infercast.bundled import DATA
from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.op import Quantity
from infercast.predict.estimate import Estimate
from infercast.predict.families import family_of
from infercast.predict.limits import pipes_of
from infercast.predict.roofline import launch_floor


class Efficiency(NamedTuple):
    """What kernels of a family typically reach."""

    launches: float
    """Empty launches that one takes besides its work."""
    share: float
    """Of the busiest pipe's rate."""
    low: float
    high: float
    """Logarithms of the ends of the 80 % interval, as kernels and GPUs differ."""


SOURCE = "typical"


class Typical:
    """The roofline at typical efficiencies."""

    is_cheap = True
    is_bound = False

    def describe(self, gpu: Gpu) -> str:
        """For people: what its prices on this GPU rest on."""
        return (
            "the roofline at what kernels of measured GPUs typically reach of it; no kernel of "
            f"{gpu.vendor}'s GPUs in an engine was measured, so intervals are wide"
        )

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        """One launch of ``op``; arrays of shapes give arrays of prices."""
        pipes, floor, typical = pipes_of(op, gpu), launch_floor(gpu), efficiency_of(op, gpu)
        demands = np.stack(np.broadcast_arrays(typical.launches * floor, *pipes.values()))
        bound = np.array(["launch", *pipes])[np.argmax(demands, axis=0)]
        busiest = np.max(demands[1:], axis=0)
        seconds = typical.launches * floor + busiest / typical.share
        # Nothing is faster than the busiest pipe at its full rate.
        low, high = np.maximum(seconds * np.exp(typical.low), busiest), seconds * np.exp(typical.high)
        if seconds.ndim == 0:
            return Estimate(float(seconds), float(low), float(high), SOURCE, str(bound))
        return Estimate(seconds, low, high, SOURCE, bound)

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        """The same without interval and reason, for those who price by the thousand."""
        typical = efficiency_of(op, gpu)
        busiest: Quantity = reduce(np.maximum, pipes_of(op, gpu).values())
        return typical.launches * launch_floor(gpu) + busiest / typical.share

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        """The terms of one price: seconds of each pipe at its full rate and of launching, and the share reached."""
        typical = efficiency_of(op, gpu)
        terms = {name: float(np.ravel(value)[0]) for name, value in pipes_of(op, gpu).items()}
        return {**terms, "launch": typical.launches * launch_floor(gpu), "efficiency factor": typical.share}


def efficiency_of(op: Op, gpu: Gpu) -> Efficiency:
    """What kernels like this one typically reach on GPUs like this one."""
    names = family_of(op).typical(op)
    of_vendor, of_all = (_typical().get(group, {}) for group in (gpu.vendor, "all"))
    return next(group[name] for group in (of_vendor, of_all) for name in names if name in group)


@cache
def _typical() -> dict[str, dict[str, Efficiency]]:
    """What was fitted, by vendor (``all``: any) and name."""
    groups = tomllib.loads(DATA.joinpath("typical.toml").read_text(encoding="utf-8"))
    return {group: {name: Efficiency(**row) for name, row in rows.items()} for group, rows in groups.items()}
