"""A day of traffic on a fleet: the smallest fixed one, a timetable and an autoscaler, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from infercast.engines.deployment import Deployment
from infercast.errors import InputError
from infercast.forecast.asking import Deployable, DeployOptions, asked_deployment, asked_workload
from infercast.forecast.day.check import Check, check_busiest
from infercast.forecast.day.curve import LoadCurve, learn_curve
from infercast.forecast.day.drawn import with_energy
from infercast.forecast.day.fleet import fixed
from infercast.forecast.day.outcome import Goal, PolicyDay
from infercast.forecast.day.policies import HOUR, SAFETIES, Autoscaler, Autoscaling, scheduled
from infercast.forecast.day.service import ServiceTime, learn_service
from infercast.forecast.day.startup import StartUp, start_up
from infercast.forecast.day.stepped import SteppedDay
from infercast.forecast.day.traffic import STEP, Traffic, traffic_of
from infercast.forecast.deploy import GpuSource
from infercast.forecast.money import GpuPrice, Tariff
from infercast.forecast.slo import Slo, parse_slo
from infercast.forecast.system import replicas_of, system_of
from infercast.forecast.telling import told_stages
from infercast.forecast.wall import Facility
from infercast.serve import Workload
from infercast.shown import Plotted

Array = npt.NDArray[Any]

MOST_REPLICAS = 1024
TOGETHER = (2, 4)
"""So many replicas are simulated together, where a fleet has them: behind a balancer each has steadier traffic."""
FIXED, SCHEDULED, AUTOSCALED = "fixed", "scheduled", "autoscaled"
POLICIES = (FIXED, SCHEDULED, AUTOSCALED)


@dataclass(frozen=True, slots=True, repr=False)
class DayPlan(Plotted):
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
    """Replicas of the timetable, hour by hour."""
    price: GpuPrice | None
    most_kept: float
    """The largest number of requests in a replica with which the SLO holds."""
    check: Check | None = None

    def _words(self) -> str:
        what = f"{self.deployment.model.name}, replicas of {self.deployment.layout.gpus} x {self.deployment.gpu.name}"
        return f"{what}: a fixed fleet of {self.smallest_fleet} for {self.goal}"

    @property
    def smallest_fleet(self) -> int:
        """Replicas of the smallest fixed fleet that reaches the goal."""
        return int(self.policies[0].ready.max())

    def policy(self, name: str) -> PolicyDay:
        """One of the policies."""
        return next(each for each in self.policies if each.policy == name)


def plan_day(
    deployment: Deployable,
    traffic: Traffic | Workload | str | PathLike[str],
    slo: Slo | str,
    *,
    gpu: GpuSource | None = None,
    goal: Goal | None = None,
    autoscaler: Autoscaler | None = None,
    start: StartUp | None = None,
    price: Tariff | float | None = None,
    facility: Facility | None = None,
    check: bool = True,
    tell: Callable[[str], None] | bool | None = None,
    **options: Unpack[DeployOptions],
) -> DayPlan:
    """Replicas of a deployment over a day, by each policy; the day is a workload, such as a trace, or made up.

    One replica is simulated at several loads; then the day is stepped through. With ``check`` the busiest minutes are
    simulated request by request on the smallest fixed fleet, and both answers are told. ``facility`` is what stands
    around the GPUs, for the kWh of the day.

    Names do: of a model with ``gpu`` and ``options`` of `deploy`, and of the file of a trace. ``tell`` is told of each
    part as it begins; True shows it.
    """
    found = asked_deployment(deployment, gpu, options)
    day = (
        traffic
        if isinstance(traffic, Traffic)
        else traffic_of(asked_workload(traffic, {}, found.settings.max_model_len))
    )
    promised, wanted = parse_slo(slo) if isinstance(slo, str) else slo, goal or Goal()
    tariff = price if isinstance(price, Tariff) else Tariff(per_gpu_hour=price)
    with told_stages(tell) as say:
        return _plan(
            found, day, promised, wanted, autoscaler, start, tariff, facility, check, say or (lambda text: None)
        )


def _plan(
    deployment: Deployment,
    traffic: Traffic,
    promised: Slo,
    wanted: Goal,
    autoscaler: Autoscaler | None,
    start: StartUp | None,
    tariff: Tariff,
    facility: Facility | None,
    check: bool,
    say: Callable[[str], None],
) -> DayPlan:
    """The answer to a question in which nothing is a name."""
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
        SteppedDay,
        traffic=traffic,
        service=service,
        gpus=deployment.layout.gpus,
        price=tariff.price(deployment.gpu.name, facility),
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
    days = plain, day.run(SCHEDULED, scheduled(hours, STEP, lag.seconds)), scaled
    policies = tuple(with_energy(each, curve, deployment, facility or Facility()) for each in days)
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


def _smallest(day: SteppedDay, goal: Goal) -> tuple[int, PolicyDay]:
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


def _fixed_day(day: SteppedDay, count: int) -> PolicyDay:
    return day.run(FIXED, fixed(count))


def _timetable(day: SteppedDay, goal: Goal, most: int) -> tuple[int, ...]:
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


def _autoscaled(
    day: SteppedDay, rules: Autoscaler, goal: Goal, curve: LoadCurve, lag: float
) -> tuple[Autoscaler, PolicyDay]:
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
