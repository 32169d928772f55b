"""A day of traffic on a fleet: the smallest fixed one, a timetable and an autoscaler, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engines.deployment import Deployment
from infercast.errors import InputError
from infercast.forecast.day.chance import chance_out
from infercast.forecast.day.check import Check, check_busiest
from infercast.forecast.day.curve import LoadCurve, learn_curve
from infercast.forecast.day.fleet import FleetRun, Replicas, Scaler, fixed, run_fleet
from infercast.forecast.day.policies import HOUR, SAFETIES, Autoscaler, Autoscaling, scheduled
from infercast.forecast.day.service import ServiceTime, learn_service
from infercast.forecast.day.startup import StartUp, start_up
from infercast.forecast.day.traffic import STEP, Traffic, traffic_of
from infercast.forecast.money import GpuPrice, Tariff
from infercast.forecast.slo import Slo, parse_slo
from infercast.forecast.system import replicas_of, system_of
from infercast.serve import Workload

Array = npt.NDArray[Any]

MOST_REPLICAS = 1024
TOGETHER = (2, 4)
"""So many replicas are simulated together, where a fleet has them: behind a balancer each has steadier traffic."""
FIXED, SCHEDULED, AUTOSCALED = "fixed", "scheduled", "autoscaled"
POLICIES = (FIXED, SCHEDULED, AUTOSCALED)


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
        """Dollars of the day; None where no price is known."""
        return None if self.price is None else self.gpu_hours * self.price.per_hour

    def keeps(self, goal: Goal) -> bool:
        """Whether enough of the day is within the SLO."""
        if goal.of == "requests":
            return self.requests_in >= goal.share
        return self.minutes_out <= (1.0 - goal.share) * self.minutes + 1e-9


@dataclass(frozen=True, slots=True)
class DayPlan:
    """The answer for a day."""

    deployment: Deployment
    traffic: Traffic
    slo: Slo
    goal: Goal
    curve: LoadCurve
    """Of one replica, beside others where the fleet has several."""
    service: ServiceTime
    start: StartUp
    autoscaler: Autoscaler
    """With its target filled in."""
    policies: tuple[PolicyDay, ...]
    hours: tuple[int, ...]
    """The timetable."""
    price: GpuPrice | None
    most_kept: float
    """The largest number of requests in a replica with which the SLO holds."""
    check: Check | None = None

    @property
    def smallest_fleet(self) -> int:
        """Replicas of the smallest fixed fleet that reaches the goal."""
        return int(self.policies[0].ready.max())

    def policy(self, name: str) -> PolicyDay:
        """One of the policies."""
        return next(each for each in self.policies if each.policy == name)

    def to_dict(self) -> dict[str, Any]:
        """What ``infercast capacity --json`` prints."""
        # It belongs to the layer above, where imports do not point; so it goes by name.
        written: dict[str, Any] = import_module("infercast.report.day_data").day_dict(self)
        return written


def plan_day(
    deployment: Deployment,
    traffic: Traffic | Workload,
    slo: Slo | str,
    *,
    goal: Goal | None = None,
    autoscaler: Autoscaler | None = None,
    start: StartUp | None = None,
    price: Tariff | float | None = None,
    check: bool = True,
    tell: Callable[[str], None] | None = None,
) -> DayPlan:
    """Replicas of a deployment over a day, by each policy; the day is a workload, such as a trace, or made up.

    One replica is simulated at several loads; then the day is stepped through. With ``check`` the busiest minutes are
    simulated request by request on the smallest fixed fleet, and both answers are told.
    """
    say = tell or (lambda text: None)
    traffic = traffic_of(traffic) if isinstance(traffic, Workload) else traffic
    promised, wanted = parse_slo(slo) if isinstance(slo, str) else slo, goal or Goal()
    tariff = price if isinstance(price, Tariff) else Tariff(per_gpu_hour=price)
    system = system_of(deployment)
    say("one replica at several loads")
    lone = learn_curve(system, traffic, promised)
    if lone.most_kept() <= 0.0:
        raise InputError(
            f"slo {promised} cannot hold on {deployment.model.name}, {deployment.layout} of {deployment.gpu.name}: an "
            f"idle replica already takes {lone.use_of_limits(0.0):.2f} times a limit; loosen it or deploy otherwise"
        )
    say("requests of other lengths")
    service = learn_service(system, traffic, deployment.settings.max_model_len)
    build = partial(
        _Day, traffic=traffic, service=service, gpus=deployment.layout.gpus, price=tariff.price(deployment.gpu.name)
    )
    lag = start or start_up(deployment)
    say("several replicas behind a load balancer")
    curves = {1: lone} | _beside_others(deployment, traffic, promised, _smallest(build({1: lone}), wanted)[0])
    curve = curves[max(curves)]
    most_kept = curve.most_kept()
    say("the day")
    day = build(curves)
    fleet, plain = _smallest(day, wanted)
    hours = _timetable(day, wanted, fleet)
    rules, scaled = _autoscaled(day, autoscaler or Autoscaler(), wanted, curve, lag.seconds)
    policies = plain, day.run(SCHEDULED, scheduled(hours, STEP, lag.seconds)), scaled
    say("the busiest minutes, request by request")
    found = check_busiest(deployment, traffic, promised, fleet, plain.attained) if check else None
    return DayPlan(
        deployment, traffic, promised, wanted, curve, service, lag, rules, policies, hours, day.price, most_kept, found
    )


def _beside_others(deployment: Deployment, traffic: Traffic, slo: Slo, fleet: int) -> dict[int, LoadCurve]:
    """The curve of one of two or four replicas, where there are about as many; none for those that share experts."""
    together = max((size for size in TOGETHER if size <= fleet), default=1)
    if together == 1 or deployment.shares_experts:
        return {}
    return {together: learn_curve(replicas_of(deployment, together), traffic, slo, together)}


class _Day:
    """The day in steps, ready to be run with any number of replicas."""

    def __init__(
        self,
        curves: Mapping[int, LoadCurve],
        traffic: Traffic,
        service: ServiceTime,
        gpus: int,
        price: GpuPrice | None,
    ) -> None:
        weights = service.of(traffic.inputs, traffic.outputs)
        steps = replace(traffic, window=STEP)
        self.load = steps.load(weights / weights.mean())
        self.replicas, self.price = Replicas(curves, STEP), price
        self._gpus, self._traffic, self._slo = gpus, traffic, curves[1].slo
        self._counts = steps.counts
        self._windows = (np.arange(steps.num_windows) * STEP // traffic.window).astype(np.int64)

    def run(self, name: str, scaler: Scaler) -> PolicyDay:
        """The whole day."""
        done = run_fleet(self.replicas, self.load, scaler)
        return PolicyDay(
            name,
            self._mean(done.ready),
            self._mean(done.paid),
            self._mean(done.attained, self._counts),
            np.nan_to_num(self._mean(done.use_of_limits, self._counts)),
            self._chance_out(done.beyond, 0),
            self._traffic.counts,
            self._traffic.window,
            self._gpus,
            self.price,
        )

    def part(self, first: int, last: int, count: int, before: float) -> FleetRun:
        """Some steps with a fixed fleet, before which so many requests are in the system."""
        return run_fleet(self.replicas, self.load[first:last], fixed(count), before)

    def share_in(self, done: FleetRun, first: int, goal: Goal) -> float:
        """What a goal is about, of steps from ``first`` on."""
        counts = self._counts[first : first + done.ready.size]
        if goal.of == "requests":
            return float((done.attained * counts).sum() / max(1, counts.sum()))
        return 1.0 - float(self._chance_out(done.beyond, first).mean())

    def _chance_out(self, beyond: Array, first: int) -> Array:
        """Of each window that these steps lie in."""
        places = self._windows[first : first + len(beyond)]
        places = places - places[0]
        counts = self._counts[first : first + len(beyond)]
        each = np.bincount(places, counts)
        shares = [np.bincount(places, counts * column) / np.maximum(each, 1) for column in beyond.T]
        return chance_out(self._slo, each, np.stack(shares, axis=1))[: self._traffic.num_windows]

    def _mean(self, values: Array, weights: Array | None = None) -> Array:
        """By windows; not a number where nothing came."""
        each = np.ones(values.size) if weights is None else weights
        size = self._traffic.num_windows
        sums = np.bincount(self._windows, each * values, size)[:size]
        with np.errstate(invalid="ignore"):
            return np.asarray(sums / np.bincount(self._windows, each, size)[:size])


def _smallest(day: _Day, goal: Goal) -> tuple[int, PolicyDay]:
    """The smallest fixed fleet that reaches the goal, by doubling and halving."""
    run = partial(_fixed_day, day)
    low, high = 0, 1
    while not (found := run(high)).keeps(goal):
        low, high = high, 2 * high
        if high > MOST_REPLICAS:
            raise InputError(f"more than {MOST_REPLICAS:,} replicas would be needed for {goal}; use a larger replica")
    while high - low > 1:
        middle = (low + high) // 2
        other = run(middle)
        if other.keeps(goal):
            high, found = middle, other
        else:
            low = middle
    return high, found


def _fixed_day(day: _Day, count: int) -> PolicyDay:
    return day.run(FIXED, fixed(count))


def _timetable(day: _Day, goal: Goal, most: int) -> tuple[int, ...]:
    """The fewest replicas of each hour that reach the goal in it, given what the hour before left over."""
    hours: list[int] = []
    before, size = 0.0, int(HOUR / STEP)
    for first in range(0, day.load.size, size):
        for count in range(1, most + 1):
            done = day.part(first, first + size, count, before)
            if day.share_in(done, first, goal) >= goal.share:
                break
        hours.append(count)
        before = float(done.in_system[-1]) * count
    return tuple(hours)


def _autoscaled(day: _Day, rules: Autoscaler, goal: Goal, curve: LoadCurve, lag: float) -> tuple[Autoscaler, PolicyDay]:
    """The rules with their target, and the day by them.

    A target that nobody gave is a share of the load with which the SLO just holds: the largest one of `SAFETIES` with
    which the day reaches the goal, or the smallest of them.
    """
    most = curve.most_kept()
    at_limit = curve.rate_at(most) / curve.full_rate if rules.measure == "utilization" else most
    first = max(1, int(np.ceil(day.load[: int(HOUR / STEP)].mean() / curve.rate_at(most))))
    targets = [float(f"{share * at_limit:.3g}") for share in SAFETIES] if rules.target is None else [rules.target]
    for target in targets:
        done = day.run(AUTOSCALED, Autoscaling(rules, target, curve.full_rate, STEP, lag, first))
        if done.keeps(goal):
            break
    return replace(rules, target=target), done
