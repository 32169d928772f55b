"""A day of traffic on a fleet, as tables, plain data and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import Any

from infercast.forecast.autoscaling import PolicyDay
from infercast.forecast.day import DayPlan, autoscaler_row, clock
from infercast.report.caveats import caveat_section, caveats_of
from infercast.report.files import csv_lines
from infercast.report.quantities import declared, document
from infercast.report.sweep import dollars
from infercast.report.terminal import (
    Chart,
    Facts,
    FittingTable,
    RenderableType,
    Section,
    Series,
    TextCharts,
    columns,
    pick,
    record,
    styled,
)
from infercast.units import format_percent, format_seconds


def day_caveats(plan: DayPlan) -> list[str]:
    """What to know of the forecasts of one replica; that it is full at the highest load is meant to be."""
    return caveats_of(level.forecast for level in plan.curve.levels if level.forecast.saturation is None)


def day_dict(plan: DayPlan) -> dict[str, Any]:
    traffic, levels = plan.traffic, declared("levels")
    return document(
        "day", plan,
        rates=lambda plan: (traffic.counts / traffic.window).tolist(),
        goal=lambda goal: pick(goal, "share of"),
        policies=lambda plan: {day.policy: _policy_dict(plan, day) for day in plan.policies},
        rules=lambda rules: document("autoscaler", rules),
        start=lambda start: {**start._asdict(), "all": start.seconds},
        replica=lambda plan: document("replica", plan, rate=lambda plan: plan.curve.rate_at(plan.most_kept),
                                      levels=lambda each: [record(levels, level) for level in each]),
        caveats=day_caveats,
    )  # fmt: skip


def _policy_dict(plan: DayPlan, day: PolicyDay) -> dict[str, Any]:
    counts = {"replicas": day.ready.tolist(), "replicas_paid": day.paid.tolist()}
    return {"reaches_goal": day.keeps(plan.goal), **record(POLICY_FIELDS, day), **counts}


POLICY_FIELDS = declared(
    "policies",
    least=lambda day: float(day.ready.min()),
    mean=lambda day: float(day.paid.mean()),
    most=lambda day: float(day.paid.max()),
    worst=lambda day: day.use_of_limits.max(),
)


def day_rows(plan: DayPlan) -> Iterator[str]:
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
    row = autoscaler_row(plan)
    yield from csv_lines(row, [[f"{value:.6g}" if isinstance(value, float) else value for value in row.values()]])


BINS = 144  # marks across a chart
LABELS = 8


def render_day(plan: DayPlan) -> list[RenderableType]:
    return [
        styled(f"{title_of(plan)}: {plan.traffic.description}"),
        Section("Policies", FittingTable(columns(POLICY_FIELDS), plan.policies)),
        styled(answer_of(plan)),
        TextCharts(day_charts(plan), columns=1),
        Section("One replica", Facts(replica_rows(plan))),
        Section("Rests on", Facts(basis_rows(plan))),
        caveat_section(day_caveats(plan)),
    ]


def title_of(plan: DayPlan) -> str:
    deployment = plan.deployment
    return f"{deployment.model.name}, replicas of {deployment.layout.gpus} x {deployment.gpu.name}"


def answer_of(plan: DayPlan) -> str:
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


def day_charts(plan: DayPlan, most: int = BINS) -> list[Chart]:
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
    curve, service, most = plan.curve, plan.service, plan.most_kept
    each = f"{service.per_input * 1e3:.3g} ms per input token, {service.per_output * 1e3:.3g} ms per output token"
    ttft, tpot = (curve.percentile(name, "p99", most) for name in ("ttft", "tpot"))
    return [
        ("SLO", f"{plan.slo}; goal {plan.goal}"),
        ("at the SLO", f"{curve.rate_at(most):.3g} requests/s, {most:,.0f} requests in it: TTFT p99 "
         f"{format_seconds(ttft)}, TPOT p99 {format_seconds(tpot)}"),
        ("at most", f"{curve.full_rate:.3g} requests/s"),
        ("a request", f"{each}, plus {service.fixed * 1e3:.3g} ms, on a full replica"),
        ("start", plan.start.sentence),
    ]  # fmt: skip


def basis_rows(plan: DayPlan) -> list[tuple[str, str]]:
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
    if any(day.wall_kwh is None for day in plan.policies):
        return []
    drawn = ", ".join(f"{day.policy} {day.gpu_kwh:,.1f}" for day in plan.policies)
    rows = [("kWh", f"at the wall, of servers and building; of the GPU boards alone: {drawn}")]
    if all(day.usd_electricity is not None for day in plan.policies):
        costs = ", ".join(f"{day.policy} {dollars(day.usd_electricity)}" for day in plan.policies)
        rows.append(("electricity", f"{costs} per day"))
    return rows
