"""Replicas over a day of traffic: how many, when, and at what cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from os import PathLike
from typing import Any, NamedTuple, Unpack

import numpy as np

from infercast.engines.base import Deployment
from infercast.errors import InputError
from infercast.forecast import autoscaling, deploy
from infercast.forecast.cost import GpuPrice, Tariff, around
from infercast.forecast.energy import KILO, Facility, server_around
from infercast.forecast.fleet import StartUp, parse_outages, start_up
from infercast.forecast.option_table import OPTIONS
from infercast.forecast.progress import note_cut, share_of_time, stage_progress, time_budget, time_left
from infercast.forecast.simulate import simulate_system
from infercast.forecast.slo import Array, Slo, attainment, parse_slo
from infercast.forecast.system import replicas_of, system_of
from infercast.serve import Workload
from infercast.serve.fleet.pool import Outages
from infercast.serve.workload.distributions import INPUT_LEN, OUTPUT_LEN
from infercast.shown import PlottableResult
from infercast.units import MICRO, MILLI, format_many

MOST_REQUESTS, MOST_AT_ALL = 6000, 20_000  # Windows are added up to the first; one with its ramp-up may have the second
RAMP = 2  # windows before those that count, in which the fleet fills up


class Check(NamedTuple):
    """Attainment of the busiest minutes: simulated, and as stepped through."""

    begin: float  # Seconds after the start of the day ...
    end: float
    requests: int
    simulated: float
    stepped: float

    @property
    def sentence(self) -> str:
        return (
            f"{format_many(self.requests, 'request')} from {clock(self.begin)} to {clock(self.end)} "
            "simulated one by one: "
            f"{100 * self.simulated:.1f} % within the SLO; the stepped day says {100 * self.stepped:.1f} %"
        )


def check_busiest(
    deployment: Deployment, traffic: autoscaling.Traffic, slo: Slo, count: int, attained: Array,
    outages: Outages | None = None,
) -> Check | None:  # fmt: skip
    """Simulate the busiest windows on ``count`` replicas; None where even one is too much to simulate."""
    if deployment.shares_experts and count > 1:
        return None
    counts, peak = traffic.counts, int(np.argmax(traffic.counts))
    first = last = peak
    most_minutes = 30
    while last - first + 1 < most_minutes and (last + 1 < counts.size or first > 0):
        to_right = last + 1 < counts.size and (last - peak <= peak - first or first == 0)
        wider = (first, last + 1) if to_right else (first - 1, last)
        if counts[max(0, wider[0] - RAMP) : wider[1] + 1].sum() > MOST_REQUESTS:
            break
        first, last = wider
    begin = max(0, first - RAMP) * traffic.window
    load = traffic.between(begin, (last + 1) * traffic.window)
    if len(load.requests) > MOST_AT_ALL:
        return None
    then = None if outages is None else replace(outages, since=begin)
    served = replicas_of(deployment, count).failing(then).serve(load).clients
    since = first * traffic.window - begin
    said, weights = attained[first : last + 1], counts[first : last + 1]
    return Check(
        first * traffic.window, (last + 1) * traffic.window, int(np.count_nonzero(served.sent_at >= since)),
        attainment(served, slo, served.sent_at >= since), float(np.nansum(said * weights) / weights.sum()),
    )  # fmt: skip


def clock(seconds: float) -> str:
    return f"{int(seconds // 3600):02d}:{int(seconds % 3600 // 60):02d}"


def board_watts(curve: autoscaling.LoadCurve) -> tuple[Array, Array] | None:
    """Requests a second of one replica, from none on, and the watts of each of its GPUs; None where not known."""
    drawn = [(level.rate, level.forecast.energy) for level in curve.levels]
    known = sorted((rate, energy.mean_watts, energy.idle_watts) for rate, energy in drawn if energy is not None)
    if len(known) < len(drawn):
        return None
    rates, watts, idle = zip(*known, strict=True)
    # A replica that serves more draws no less; what chance makes of it otherwise is smoothed.
    return np.array([0.0, *rates]), np.maximum.accumulate([min(idle), *watts])


def with_energy(
    day: autoscaling.PolicyDay, curve: autoscaling.LoadCurve, deployment: Deployment, facility: Facility
) -> autoscaling.PolicyDay:
    """The same day with the kWh of its boards and at the wall; starting replicas draw idle power."""
    known = board_watts(curve)
    if known is None:
        return day
    facility = around([day.price], facility)
    each = np.interp(day.counts / day.window / np.maximum(day.ready, MICRO), *known)
    idle = float(known[1][0])
    hours = day.window / autoscaling.HOUR / KILO
    boards = day.gpus_per_replica * (day.ready * each + np.maximum(day.paid - day.ready, 0.0) * idle)
    server, pue = server_around(deployment.gpu, facility), facility.pue or 1.0
    gpus = day.gpus_per_replica * day.paid
    bases = sum(server.base_of(round(count)) for count in gpus.tolist())
    drawn = pue * (bases + server.factor * float(boards.sum())) * hours
    money = None if facility.electricity_price is None else drawn * facility.electricity_price
    return replace(day, gpu_kwh=float(boards.sum()) * hours, wall_kwh=drawn, usd_electricity=money)


def chance_out(slo: Slo, counts: Array, beyond: Array) -> Array:
    """The probability that one of the limits, which are broken together, does not hold in each window."""
    chances = []
    for limit, shares in zip(slo.limits, beyond.T, strict=True):
        if limit.percentile is None:
            chances.append(np.asarray(shares >= 0.5, dtype=float))
        else:
            # The requests that may be beyond it: a percentile lies between two neighbouring ranks.
            allowed = np.floor((1.0 - limit.percentile / 100.0) * np.maximum(counts - 1, 0) + 1e-9)
            chances.append(more_than(allowed, counts, shares))
    return np.where(counts > 0, np.max(chances, axis=0), 0.0)


def more_than(allowed: Array, counts: Array, shares: Array) -> Array:
    """The probability of more than ``allowed`` of ``counts`` independent events, each with its share."""
    share = np.clip(shares, 1e-12, 1.0 - 1e-12)
    at_most, logarithm = np.zeros(counts.size), counts * np.log1p(-share)
    for number in range(int(allowed.max(initial=0.0)) + 1):
        at_most += np.where(number <= np.minimum(allowed, counts), np.exp(logarithm), 0.0)
        left = np.maximum(counts - number, 1e-300)
        logarithm = logarithm + np.log(left / (number + 1)) + np.log(share) - np.log1p(-share)
    return np.clip(1.0 - at_most, 0.0, 1.0)


class SteppedDay:
    def __init__(
        self, curves: Mapping[int, autoscaling.LoadCurve], traffic: autoscaling.Traffic,
        service: autoscaling.ServiceTime, gpus: int, price: GpuPrice | None, outages: Outages | None = None,
    ) -> None:  # fmt: skip
        weights = service.of(traffic.inputs, traffic.outputs)
        steps = replace(traffic, window=autoscaling.STEP)
        self.load = steps.load(weights / weights.mean())
        self.curves, self.price = curves, price
        self.failing = None if outages is None else autoscaling.Failing(outages, self.load.size)
        self._gpus, self._traffic, self._slo = gpus, traffic, curves[1].slo
        self._counts = steps.counts
        self._windows = (np.arange(steps.num_windows) * autoscaling.STEP // traffic.window).astype(np.int64)

    def run(self, name: str, scaler: autoscaling.Scaler) -> autoscaling.PolicyDay:
        scaler = scaler if self.failing is None else self.failing.of(scaler)
        done = autoscaling.run_fleet(self.curves, self.load, scaler)
        return autoscaling.PolicyDay(
            name, self._mean(done.ready), self._mean(done.paid), self._mean(done.attained, self._counts),
            np.nan_to_num(self._mean(done.use_of_limits, self._counts)), self._chance_out(done.beyond, 0),
            self._traffic.counts, self._traffic.window, self._gpus, self.price,
        )  # fmt: skip

    def part(self, first: int, last: int, count: int, before: float) -> autoscaling.FleetRun:
        return autoscaling.run_fleet(self.curves, self.load[first:last], autoscaling.fixed(count), before)

    def share_in(self, done: autoscaling.FleetRun, first: int, goal: autoscaling.Goal) -> float:
        counts = self._counts[first : first + done.ready.size]
        if goal.of == "requests":
            return float((done.attained * counts).sum() / max(1, counts.sum()))
        return 1.0 - float(self._chance_out(done.beyond, first).mean())

    def _chance_out(self, beyond: Array, first: int) -> Array:
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


MOST_REPLICAS = 1024
OF_CURVE = 0.4  # The share of the time for the loads of one replica; those of several have twice that of the rest
TOGETHER = (2, 4)  # Sizes of fleets simulated together: behind a load balancer each replica has steadier traffic
FIXED, SCHEDULED, AUTOSCALED = "fixed", "scheduled", "autoscaled"


class DayOutages(NamedTuple):
    """What failures of replicas do to the smallest fixed fleet."""

    down_share: float  # Of the time of all replicas
    meanwhile: float | None  # Share of requests within the SLO in windows with a replica down, if there are any ...
    otherwise: float | None  # ... and in the others.
    fleet_without: int  # Replicas of the smallest fleet of which none ever fails


def _day_outages(fixed: autoscaling.PolicyDay, fleet_without: int) -> DayOutages:
    down, within = fixed.ready < fixed.paid, np.nan_to_num(fixed.attained) * fixed.counts
    kept = [float(within[which].sum() / fixed.counts[which].sum()) if fixed.counts[which].sum() else None
            for which in (down, ~down)]  # fmt: skip
    return DayOutages(1.0 - float(fixed.ready.sum() / fixed.paid.sum()), kept[0], kept[1], fleet_without)


@dataclass(frozen=True, slots=True, repr=False)
class DayPlan(PlottableResult):
    """The answer for a day."""

    deployment: Deployment
    traffic: autoscaling.Traffic
    slo: Slo
    goal: autoscaling.Goal
    curve: autoscaling.LoadCurve  # Of one replica, in a fleet if there are several
    service: autoscaling.ServiceTime
    start: StartUp
    autoscaler: autoscaling.Autoscaler  # With its target filled in
    policies: tuple[autoscaling.PolicyDay, ...]
    hours: tuple[int, ...]  # Replicas of the timetable, hour by hour
    price: GpuPrice | None
    most_kept: float  # The largest number of requests in a replica with which the SLO holds
    check: Check | None = None
    outages: DayOutages | None = None

    def _words(self) -> str:
        what = f"{self.deployment.model.name}, replicas of {self.deployment.layout.gpus} x {self.deployment.gpu.name}"
        return f"{what}: a fixed fleet of {self.smallest_fleet} for {self.goal}"

    @property
    def smallest_fleet(self) -> int:
        """Replicas of the smallest fixed fleet that reaches the goal."""
        return int(self.policies[0].paid.max())

    def policy(self, name: str) -> autoscaling.PolicyDay:
        return next(each for each in self.policies if each.policy == name)


def capacity(
    deployment: deploy.Deployable, traffic: autoscaling.Traffic | Workload | str | PathLike[str] | None = None,
    slo: Slo | str | None = None, *, gpu: deploy.GpuSource | None = None, goal: autoscaling.Goal | None = None,
    autoscaler: autoscaling.Autoscaler | None = None, start: StartUp | None = None, price: Tariff | float | None = None,
    facility: Facility | None = None, check: bool = True, tell: Callable[[str], None] | bool | None = None,
    time_limit: float | None = None, rate: float | None = None, profile: str = OPTIONS["day_profile"].default,
    fail: str | None = None, seed: int = 0, **options: Unpack[deploy.DeployOptions],
) -> DayPlan:  # fmt: skip
    """Replicas of a deployment over a day, by each policy; the day is a workload, such as a trace, or made up.

    A day is made up by its ``rate`` of requests per second on average, and its ``profile``: ``flat``, or a sine with
    a peak of 1.8 times the mean at 14 h.

    One replica is simulated at several loads; then the day is stepped through. With ``check`` the busiest minutes are
    simulated request by request on the smallest fixed fleet, unless ``time_limit`` seconds are over. ``fail`` and its
    ``seed`` are as in `simulate`; ``facility`` (servers, building, grid) is for the kWh of the day. A model's name
    needs ``gpu`` and takes ``options`` of `deploy`. ``tell`` is called with each part as it begins; True shows it.
    """
    deployment = deploy.resolve_deployment(deployment, gpu, options)
    traffic = _day_of(deployment, traffic, rate, profile)
    if slo is None:
        raise InputError('capacity needs an SLO, such as slo="ttft_p99<1s,tpot_p95<40ms"')
    slo, goal = parse_slo(slo) if isinstance(slo, str) else slo, goal or autoscaling.Goal()
    tariff = Tariff.of(price)
    system, lag = system_of(deployment), start or start_up(deployment)
    outages = None if fail is None else parse_outages(fail, lag.seconds, seed=seed)
    with stage_progress(tell) as say, time_budget(time_limit):
        say("one replica at several loads")
        began = time_left()
        with share_of_time(OF_CURVE):
            lone = autoscaling.learn_curve(system, traffic, slo)
        took = 0.0 if began == inf else began - time_left()
        if lone.most_kept() <= 0.0:
            raise InputError(
                f"slo {slo} cannot hold on {deployment.model.name}, {deployment.layout} of {deployment.gpu.name}: an "
                f"idle replica already takes {lone.use_of_limits(0.0):.2f} times a limit; loosen it or deploy otherwise"
            )
        say("requests of other lengths")
        service = autoscaling.learn_service(system, traffic, deployment.settings.max_model_len)
        gpu_price = None if deployment.gpu.stages else tariff.price(deployment.gpu.name, facility)
        build = partial(SteppedDay, traffic=traffic, service=service, gpus=deployment.layout.gpus, price=gpu_price)
        say("several replicas behind a load balancer")
        curves = {1: lone}
        if time_left() > 1.5 * took:
            with share_of_time(2 * OF_CURVE):
                curves |= _beside_others(deployment, traffic, slo, _smallest(build(curves), goal)[0])
        else:
            note_cut("a fleet")
        curve = curves[max(curves)]
        say("the day")
        fleet_without = None if outages is None else _smallest(build(curves), goal)[0]
        day = build(curves, outages=outages)
        fleet, plain = _smallest(day, goal)
        hours = _timetable(day, goal, fleet)
        rules, scaled = _autoscaled(day, autoscaler or autoscaling.Autoscaler(), goal, curve, lag.seconds)
        days = plain, day.run(SCHEDULED, autoscaling.scheduled(hours, autoscaling.STEP, lag.seconds)), scaled
        policies = tuple(with_energy(each, curve, deployment, facility or Facility()) for each in days)
        found = None
        if check and time_left() <= 0.0:
            note_cut("the busiest minutes")
        elif check:
            say("the busiest minutes, request by request")
            found = check_busiest(deployment, traffic, slo, fleet, plain.attained, outages)
    failures = None if fleet_without is None else _day_outages(policies[0], fleet_without)
    return DayPlan(
        deployment, traffic, slo, goal, curve, service, lag, rules, policies, hours, gpu_price, curve.most_kept(),
        found, failures,
    )  # fmt: skip


def _day_of(deployment: Deployment, traffic: Any, rate: float | None, profile: str) -> autoscaling.Traffic:
    if (traffic is None) == (rate is None):
        raise InputError("say what comes over the day: a workload, the file of a trace, or a rate (with a profile)")
    if isinstance(traffic, autoscaling.Traffic):
        return traffic
    longest = deployment.settings.max_model_len
    if rate is None:
        return autoscaling.traffic_of(deploy.resolve_workload(traffic, {}, longest))
    return day_within({"rate": rate, "day_profile": profile}, longest)


def day_within(given: Mapping[str, Any], longest: int, window: float = autoscaling.WINDOW) -> autoscaling.Traffic:
    inputs, outputs, _ = deploy.lengths_within(
        given.get("input_len", INPUT_LEN), given.get("output_len", OUTPUT_LEN), longest
    )
    if (most := inputs.maximum + outputs.maximum) > longest:
        raise InputError(
            f"input_len and output_len give up to {most:,} tokens, above max_model_len {longest:,}; shorten them or "
            "raise it"
        )
    asked = given["rate"], given["day_profile"], inputs, outputs
    return autoscaling.made_up_day(*asked, seed=given.get("seed", 0), window=window)


def _beside_others(
    deployment: Deployment, traffic: autoscaling.Traffic, slo: Slo, fleet: int
) -> dict[int, autoscaling.LoadCurve]:
    """The curve of one of two or four replicas, as many as the fleet has; none for replicas that share experts."""
    together = max((size for size in TOGETHER if size <= fleet), default=1)
    if together == 1 or deployment.shares_experts:
        return {}
    return {together: autoscaling.learn_curve(replicas_of(deployment, together), traffic, slo, together)}


def _smallest(day: SteppedDay, goal: autoscaling.Goal) -> tuple[int, autoscaling.PolicyDay]:

    def run(count: int) -> autoscaling.PolicyDay:
        return day.run(FIXED, autoscaling.fixed(count))

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


def _timetable(day: SteppedDay, goal: autoscaling.Goal, most: int) -> tuple[int, ...]:
    """The fewest replicas of each hour that reach the goal in it, given what the hour before left over."""
    hours: list[int] = []
    before, size = 0.0, int(autoscaling.HOUR / autoscaling.STEP)
    for first in range(0, day.load.size, size):
        for count in range(1, most + 1):
            done = day.part(first, first + size, count, before)
            if day.share_in(done, first, goal) >= goal.share:
                break
        hours.append(count)
        before = float(done.in_system[-1]) * count
    return tuple(hours)


def _autoscaled(
    day: SteppedDay, rules: autoscaling.Autoscaler, goal: autoscaling.Goal, curve: autoscaling.LoadCurve, lag: float
) -> tuple[autoscaling.Autoscaler, autoscaling.PolicyDay]:
    """The rules with their target (by default the largest of `SAFETIES` that reaches the goal), and the day by them."""
    most = curve.most_kept()
    at_limit = curve.rate_at(most) / curve.full_rate if rules.measure == "utilization" else most
    first = max(1, int(np.ceil(day.load[: int(autoscaling.HOUR / autoscaling.STEP)].mean() / curve.rate_at(most))))
    targets = (
        [float(f"{share * at_limit:.3g}") for share in autoscaling.SAFETIES] if rules.target is None else [rules.target]
    )
    for target in targets:
        done = day.run(
            AUTOSCALED, autoscaling.Autoscaling(rules, target, curve.full_rate, autoscaling.STEP, lag, first)
        )
        if done.keeps(goal):
            break
    return replace(rules, target=target), done


ALONE = 100  # requests that are served one at a time, for the time of a prompt


def autoscaler_row(plan: DayPlan) -> dict[str, Any]:
    """Coefficients of service times in milliseconds, and the largest loads of a replica that is kept full.

    Time per output token = ``alpha`` + ``beta`` x sequences in the batch, time to first token alone = ``gamma`` +
    ``delta`` x prompt tokens: the four that llm-d's workload variant autoscaler takes.
    """
    alpha, beta = _decoding(plan)
    # A line through the time to first token of requests that come one at a time, by their prompt tokens
    traffic = plan.traffic
    chosen = np.linspace(0, traffic.arrivals.size - 1, min(ALONE, traffic.arrivals.size)).astype(np.int64)
    alone = Workload(traffic.workload(chosen, np.zeros(chosen.size)).requests, concurrency=1)
    served = simulate_system(system_of(plan.deployment), alone).clients
    gamma, delta = _line(traffic.inputs[chosen] - served.num_cached, served.ttft)
    deployment, curve, service = plan.deployment, plan.curve, plan.service
    return {
        "model": deployment.model.name, "accelerator": deployment.gpu.name, "accelerator_count": deployment.layout.gpus,
        "engine": deployment.engine.name, "weights": deployment.model.weights.name, "alpha_ms": alpha / MILLI,
        "beta_ms_per_sequence": beta / MILLI, "gamma_ms": gamma / MILLI, "delta_ms_per_input_token": delta / MILLI,
        "max_batch_size": deployment.settings.max_num_seqs, "fixed_ms_per_request": service.fixed / MILLI,
        "ms_per_input_token": service.per_input / MILLI, "ms_per_output_token": service.per_output / MILLI,
        "at_batch": round(curve.levels[-1].in_system, 1), "slo": str(plan.slo), "max_requests_per_s": curve.full_rate,
        "max_requests_per_s_at_slo": curve.rate_at(plan.most_kept), "max_requests_in_replica_at_slo": plan.most_kept,
        "mean_input_tokens": float(plan.traffic.inputs.mean()),
        "mean_output_tokens": float(plan.traffic.outputs.mean()), "start_up_s": plan.start.seconds,
    }  # fmt: skip


def _decoding(plan: DayPlan) -> tuple[float, float]:
    """A line through the mean time per output token at each load up to where the SLO holds, or the first three."""
    levels = [level for level in plan.curve.levels if level.forecast.tpot is not None]
    if len(levels) < 2:
        return 0.0, 0.0
    used = [level for place, level in enumerate(levels) if place < 3 or level.in_system <= plan.most_kept]
    batches = np.array([level.in_system for level in used])
    times = np.array([level.forecast.tpot.mean for level in used if level.forecast.tpot is not None])
    return _line(batches, times)


def _line(places: Any, seconds: Any) -> tuple[float, float]:
    """The least squares of relative errors, with neither number below nothing."""
    if np.ptp(places) == 0:
        return float(seconds.mean()), 0.0
    rows = np.stack([np.ones(places.size), places], axis=1) / seconds[:, None]
    constant, slope = np.linalg.lstsq(rows, np.ones(places.size), rcond=None)[0].tolist()
    if constant < 0:
        return 0.0, float((seconds / places).mean())
    return (constant, slope) if slope >= 0 else (float(seconds.mean()), 0.0)
