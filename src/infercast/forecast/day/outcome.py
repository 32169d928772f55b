"""What a policy made of a day, and how much of a day must be within the SLO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.errors import InputError
from infercast.forecast.day.policies import HOUR
from infercast.forecast.money import GpuPrice

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """How much of a day must be within the SLO."""

    share: float = 0.99
    of: str = "minutes"
    """``minutes``: of the minutes with requests, all percentiles of the SLO hold in so many. ``requests``: so many
    requests keep every limit."""

    def __post_init__(self) -> None:
        if self.of not in ("minutes", "requests"):
            raise InputError(f"a goal is a share of minutes or requests, not of {self.of!r}")
        if not 0 < self.share <= 1:
            raise InputError(f"the share of {self.of} within the SLO must be above 0 and up to 1, not {self.share:g}")

    def __str__(self) -> str:
        return f"{100 * self.share:g} % of {self.of} within the SLO"


@dataclass(frozen=True, slots=True)
class PolicyDay:
    """One policy over the day."""

    policy: str
    ready: Array
    """Replicas that serve, on average in each window."""
    paid: Array
    """Replicas that cost, those that are starting too."""
    attained: Array
    """Share of the requests of each window that keep every limit; not a number where there are none."""
    use_of_limits: Array
    """The largest latency of each window over its limit, as it is on average: below 1 the SLO holds."""
    chance_out: Array
    """The probability that it does not hold in a window, which has few requests."""
    counts: Array
    window: float
    gpus_per_replica: int
    price: GpuPrice | None
    gpu_kwh: float | None = None
    """What the GPU boards draw in the day; None where their power is not known."""
    wall_kwh: float | None = None
    """The same with servers and building."""
    usd_electricity: float | None = None
    """Dollars of that; None where no price of a kWh was given."""

    @property
    def minutes_out(self) -> float:
        """Minutes in which a percentile of the SLO does not hold, as many as are to be expected."""
        return float(self.chance_out.sum()) * self.window / 60.0

    @property
    def minutes(self) -> float:
        """Minutes with requests."""
        return float(np.count_nonzero(self.counts)) * self.window / 60.0

    @property
    def requests_in(self) -> float:
        """Share of all requests that keep every limit."""
        return float(np.nansum(self.attained * self.counts) / self.counts.sum())

    @property
    def replica_hours(self) -> float:
        """Paid for."""
        return float(self.paid.sum()) * self.window / HOUR

    @property
    def gpu_hours(self) -> float:
        """Paid for."""
        return self.replica_hours * self.gpus_per_replica

    @property
    def cost(self) -> float | None:
        """Dollars of the day, with electricity on top where GPUs are owned; None where no price is known."""
        if self.price is None:
            return None
        electricity = self.usd_electricity or 0.0 if self.price.metered else 0.0
        return self.gpu_hours * self.price.per_hour + electricity

    def keeps(self, goal: Goal) -> bool:
        """Whether enough of the day is within the SLO."""
        if goal.of == "requests":
            return self.requests_in >= goal.share
        return self.minutes_out <= (1.0 - goal.share) * self.minutes + 1e-9
