"""A day of traffic on a fleet, for programs."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import Any

from infercast.forecast.day.coefficients import autoscaler_row
from infercast.forecast.day.day import DayPlan
from infercast.forecast.day.outcome import PolicyDay
from infercast.report.caveats import caveats_of
from infercast.report.files import csv_lines
from infercast.units import MILLI


def day_caveats(plan: DayPlan) -> list[str]:
    """What to know of the forecasts of one replica; that it is full at the highest load is meant to be."""
    return caveats_of(level.forecast for level in plan.curve.levels if level.forecast.saturation is None)


def day_dict(plan: DayPlan) -> dict[str, Any]:
    """Everything as plain data; lists have a number for each window."""
    rules, start, check = plan.autoscaler, plan.start, plan.check
    return {
        "model": plan.deployment.model.name,
        "gpu": plan.deployment.gpu.name,
        "gpus_per_replica": plan.deployment.layout.gpus,
        "traffic": plan.traffic.description,
        "requests": int(plan.traffic.arrivals.size),
        "window_s": plan.traffic.window,
        "requests_per_s": (plan.traffic.counts / plan.traffic.window).tolist(),
        "slo": str(plan.slo),
        "goal": {"share": plan.goal.share, "of": plan.goal.of},
        "smallest_fixed_fleet": plan.smallest_fleet,
        "policies": {day.policy: _policy_dict(plan, day) for day in plan.policies},
        "scheduled_by_hour": list(plan.hours),
        "autoscaler": {
            "measure": rules.measure,
            "target": rules.target,
            "interval_s": rules.interval,
            "up_delay_s": rules.up_delay,
            "down_delay_s": rules.down_delay,
            "min_replicas": rules.least,
            "max_replicas": rules.most,
        },
        "start_up_s": {"weights": start.weights, "graphs": start.graphs, "other": start.other, "all": start.seconds},
        "replica": _replica_dict(plan),
        "usd_per_gpu_hour": None if plan.price is None else plan.price.per_hour,
        "check": None if check is None else check._asdict(),
        "caveats": day_caveats(plan),
    }


def _policy_dict(plan: DayPlan, day: PolicyDay) -> dict[str, Any]:
    return {
        "reaches_goal": day.keeps(plan.goal),
        "replicas_min": float(day.ready.min()),
        "replicas_mean": float(day.paid.mean()),
        "replicas_max": float(day.paid.max()),
        "gpu_hours": day.gpu_hours,
        "usd_per_day": day.cost,
        "gpu_kwh_per_day": day.gpu_kwh,
        "wall_kwh_per_day": day.wall_kwh,
        "usd_electricity_per_day": day.usd_electricity,
        "minutes_out_of_slo": day.minutes_out,
        "requests_in_slo": day.requests_in,
        "replicas": day.ready.tolist(),
        "replicas_paid": day.paid.tolist(),
    }


def _replica_dict(plan: DayPlan) -> dict[str, Any]:
    curve = plan.curve
    return {
        "requests_per_s_at_most": curve.full_rate,
        "requests_per_s_at_slo": curve.rate_at(plan.most_kept),
        "requests_in_it_at_slo": plan.most_kept,
        "fixed_ms": plan.service.fixed / MILLI,
        "ms_per_input_token": plan.service.per_input / MILLI,
        "ms_per_output_token": plan.service.per_output / MILLI,
        "load_curve": [
            {
                "requests_in_it": level.in_system,
                "requests_per_s": level.rate,
                "ttft_p99_ms": level.forecast.ttft.p99 / MILLI,
                "tpot_p99_ms": None if level.forecast.tpot is None else level.forecast.tpot.p99 / MILLI,
            }
            for level in curve.levels
        ],
    }


def day_rows(plan: DayPlan) -> Iterator[str]:
    """A line a window: traffic, and what each policy has and does."""
    names = ["start_s", "requests"]
    columns: list[list[Any]] = [
        [place * plan.traffic.window for place in range(plan.traffic.num_windows)],
        plan.traffic.counts.tolist(),
    ]
    for day in plan.policies:
        names += [f"{day.policy}_{name}" for name in ("replicas", "replicas_paid", "slo_attainment", "chance_out")]
        attained = [None if isnan(value) else value for value in day.attained.tolist()]
        columns += [day.ready.tolist(), day.paid.tolist(), attained, day.chance_out.tolist()]
    yield from csv_lines(names, zip(*columns, strict=True))


def autoscaler_rows(plan: DayPlan) -> Iterator[str]:
    """Service-time coefficients, a column each."""
    row = autoscaler_row(plan)
    yield from csv_lines(row, [[f"{value:.6g}" if isinstance(value, float) else value for value in row.values()]])
