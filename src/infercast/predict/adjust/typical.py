"""GPUs of which no kernel was measured: the roofline, at what kernels of measured GPUs typically reach of it.

Of each family two numbers are in typical.toml: how many empty launches it takes, and which share of its busiest pipe it
reaches. Some vendors' products have numbers of their own; the other families' kernels of other vendors are taken to be
as good as those that were measured, and the upper end of the interval holds what products lose.
"""

from __future__ import annotations

from functools import cache

from infercast.bundled import read_data
from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.predict.families import family_of
from infercast.predict.roofline import Efficiency, Roofline


class Typical(Roofline):
    """The roofline at typical efficiencies."""

    is_bound = False
    source = "typical"

    def describe(self, gpu: Gpu) -> str:
        """For people: what its estimates on this GPU rest on."""
        return (
            "the roofline at what kernels of measured GPUs typically reach of it; no kernel of "
            f"{gpu.vendor}'s GPUs in an engine was measured, so intervals are wide"
        )

    def reached(self, op: Op, gpu: Gpu) -> Efficiency:
        """What kernels like this one typically reach on GPUs like this one."""
        names = family_of(op).typical(op)
        of_vendor, of_all = (_typical().get(group, {}) for group in (gpu.vendor, "all"))
        return next(group[name] for group in (of_vendor, of_all) for name in names if name in group)

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        """The terms of one estimate, and the share that is reached."""
        return {**super().explain(op, gpu), "efficiency factor": self.reached(op, gpu).share}


@cache
def _typical() -> dict[str, dict[str, Efficiency]]:
    """What was fitted, by vendor (``all``: any) and name."""
    groups = read_data("typical.toml").items()
    return {group: {name: Efficiency(**row) for name, row in rows.items()} for group, rows in groups}
