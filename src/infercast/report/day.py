"""A day of traffic on a fleet, as tables, plain data and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import TYPE_CHECKING, Any

from infercast.forecast.autoscaling import PolicyDay
from infercast.forecast.day import DayPlan, autoscaler_row, clock
from infercast.report.caveats import caveat_section, caveats_of
from infercast.report.files import csv_lines
from infercast.report.sweep import dollars
from infercast.report.terminal import Chart, Column, FittingTable, Series, TextCharts, facts, section, styled
from infercast.units import MILLI, format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


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


BINS = 144
"""Marks across a chart."""
LABELS = 8


def render_day(plan: DayPlan) -> list[RenderableType]:
    """The policies side by side, the day in two charts, the hours, and what it rests on."""
    return [
        styled(f"{title_of(plan)}: {plan.traffic.description}"),
        section("Policies", FittingTable(COLUMNS, plan.policies)),
        styled(answer_of(plan)),
        TextCharts(day_charts(plan), columns=1),
        section("One replica", facts(replica_rows(plan))),
        section("Rests on", facts(basis_rows(plan))),
        caveat_section(day_caveats(plan)),
    ]


def title_of(plan: DayPlan) -> str:
    """The model and what one replica is."""
    deployment = plan.deployment
    return f"{deployment.model.name}, replicas of {deployment.layout.gpus} x {deployment.gpu.name}"


def answer_of(plan: DayPlan) -> str:
    """The decision in a sentence."""
    fixed = plan.policies[0]
    cost = "" if fixed.cost is None else f", {dollars(fixed.cost)} per day"
    count = plan.smallest_fleet
    words = f"The smallest fixed fleet for {plan.goal} is {count} {'replica' if count == 1 else 'replicas'}{cost}."
    reaching = [each for each in plan.policies if each.keeps(plan.goal)]
    best = min(reaching, key=lambda each: each.gpu_hours, default=fixed)
    if best is not fixed:
        saved = 1.0 - best.gpu_hours / fixed.gpu_hours
        words += f" {best.policy.capitalize()} replicas reach the goal with {format_percent(saved)} fewer GPU hours."
    failing = [each.policy for each in plan.policies if not each.keeps(plan.goal)]
    return words + (f" Not reached by: {', '.join(failing)}." if failing else "")


COLUMNS = (
    Column("policy", lambda day: day.policy),
    Column("least", lambda day: f"{day.ready.min():.0f}", 2),
    Column("mean", lambda day: f"{day.paid.mean():.2f}"),
    Column("most", lambda day: f"{day.paid.max():.0f}"),
    Column("GPU hours", lambda day: f"{day.gpu_hours:,.1f}"),
    Column("cost", lambda day: dollars(day.cost)),
    Column("kWh", lambda day: "-" if day.wall_kwh is None else f"{day.wall_kwh:,.1f}", 1),
    Column("minutes out", lambda day: f"{day.minutes_out:,.0f}"),
    Column("requests in SLO", lambda day: format_percent(day.requests_in)),
    Column("worst minute", lambda day: f"{day.use_of_limits.max():,.2f} x limit", 3),
)


def day_charts(plan: DayPlan, most: int = BINS) -> list[Chart]:
    """Requests a second, and the replicas of each policy."""
    positions = [middle / 3600.0 for middle in plan.traffic.middles(most)]
    each = plan.traffic.num_windows * plan.traffic.window / len(positions)
    apart = max(1, round(len(positions) / LABELS))
    labels = [clock(place * each) if place % apart == 0 else "" for place in range(len(positions))]
    rates = plan.traffic.means(plan.traffic.counts / plan.traffic.window, most)
    replicas = [
        Series(day.policy, mark, plan.traffic.means(day.ready, most))
        for day, mark in zip(plan.policies, ("-", "s", "a"), strict=True)
    ]
    return [
        Chart("traffic", positions, labels, [Series("requests/s", "o", rates)], "{:.3g}".format, from_zero=True),
        Chart("replicas", positions, labels, replicas, "{:.3g}".format, joined=False, from_zero=True),
    ]


def replica_rows(plan: DayPlan) -> list[tuple[str, str]]:
    """What one replica can do, and how long it takes to start."""
    curve, service, most = plan.curve, plan.service, plan.most_kept
    each = f"{service.per_input * 1e3:.3g} ms per input token, {service.per_output * 1e3:.3g} ms per output token"
    ttft, tpot = (curve.percentile(name, "p99", most) for name in ("ttft", "tpot"))
    return [
        ("SLO", f"{plan.slo}; goal {plan.goal}"),
        ("at the SLO", f"{curve.rate_at(most):.3g} requests/s, {most:,.0f} requests in it: TTFT p99 "
         f"{format_seconds(ttft)}, TPOT p99 {format_seconds(tpot)}"),
        ("at most", f"{curve.full_rate:.3g} requests/s"),
        ("a request", f"{each}, {service.fixed * 1e3:.3g} ms besides, of a full replica"),
        ("start", plan.start.sentence),
    ]  # fmt: skip


def basis_rows(plan: DayPlan) -> list[tuple[str, str]]:
    """How the numbers came about."""
    rules = plan.autoscaler
    unit = "requests in each replica" if rules.measure == "queue" else "of a replica's largest rate"
    limits = f"{rules.least} to {'any number of' if rules.most is None else rules.most} replicas"
    rows = [
        ("method", f"a replica simulated at {len(plan.curve.levels)} loads, then the day in steps of 10 s"),
        ("autoscaler", f"target {rules.target:g} {unit}, looks every {rules.interval:g} s, up after "
         f"{rules.up_delay:g} s, down after {rules.down_delay:g} s, {limits}"),
        ("timetable", f"by hour, from this day itself: {' '.join(map(str, plan.hours))}"),
    ]  # fmt: skip
    none = "none: skipped, too many requests at once, or replicas that share experts"
    rows.append(("check", none if plan.check is None else plan.check.sentence))
    rows.append(("price", "not known; give --price-per-gpu-hour" if plan.price is None else plan.price.description))
    return rows + energy_rows(plan)


def energy_rows(plan: DayPlan) -> list[tuple[str, str]]:
    """What the kWh are of, and what the electricity of the day costs."""
    if any(day.wall_kwh is None for day in plan.policies):
        return []
    drawn = ", ".join(f"{day.policy} {day.gpu_kwh:,.1f}" for day in plan.policies)
    rows = [("kWh", f"at the wall, of servers and building; of the GPU boards alone: {drawn}")]
    if all(day.usd_electricity is not None for day in plan.policies):
        costs = ", ".join(f"{day.policy} {dollars(day.usd_electricity)}" for day in plan.policies)
        rows.append(("electricity", f"{costs} per day"))
    return rows
