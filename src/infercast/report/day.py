"""A day of traffic on a fleet, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infercast.forecast.day.check import clock
from infercast.forecast.day.day import DayPlan
from infercast.report.caveats import caveat_section
from infercast.report.day_data import day_caveats
from infercast.report.fitting import Column, FittingTable
from infercast.report.layout import facts, section, styled
from infercast.report.sweep import dollars
from infercast.report.text_chart import Chart, Series, TextCharts
from infercast.units import format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

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
