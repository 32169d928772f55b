"""A day of traffic as a picture: what comes, and the replicas of each policy."""

from __future__ import annotations

from html import escape
from typing import Any

from infercast.forecast.day.check import clock
from infercast.forecast.day.day import DayPlan
from infercast.report.day import COLUMNS, answer_of, basis_rows, replica_rows, title_of
from infercast.report.day_data import day_caveats
from infercast.report.page.canvas import is_narrow, room
from infercast.report.page.elements import Section, facts_list, plain_table
from infercast.report.page.plot import Plot
from infercast.report.page.svg import MUTED, SERIES, Tips

MOST = 288
"""Stretches across the day: five minutes each."""
LINES = {"fixed": "-", "scheduled": "--", "autoscaled": "-"}


def day_plot(plan: DayPlan, version: str) -> Plot:
    """The picture, and the tables below it on a page."""
    rows = [[column.cell(day) for column in COLUMNS] for day in plan.policies]

    def paint(figure: Any, tips: Tips) -> None:
        panels = figure.subplots(3, 1, sharex=True, gridspec_kw=room(figure, left=0.55, right=0.25, hspace=0.4))
        _paint(plan, panels, tips)

    return Plot(
        "day",
        f"A day of {title_of(plan)}",
        plan.traffic.description,
        height=6.2,
        phone_height=6.2,
        paint=paint,
        sections=(
            Section("curves", "The day", "", "Curves"),
            Section("policies", "Policies", plain_table([column.title for column in COLUMNS], rows)),
            Section("replica", "One replica", facts_list(replica_rows(plan))),
            Section("basis", "Method", facts_list(basis_rows(plan))),
        ),
        caveats=tuple(day_caveats(plan)),
        version=version,
        top=f'<p class="answer">{escape(answer_of(plan))}</p>',
    )


def _paint(plan: DayPlan, panels: Any, tips: Tips) -> None:
    traffic, replicas, promise = panels
    day = plan.traffic
    hours = [middle / 3600.0 for middle in day.middles(MOST)]
    rates = day.means(day.counts / day.window, MOST)
    traffic.fill_between(hours, rates, color=SERIES[0], alpha=0.3, lw=0)
    traffic.plot(hours, rates, color=SERIES[0], lw=1.2)
    traffic.set(title="requests per second", ylim=(0, None))
    for place, policy in enumerate(plan.policies):
        colour = SERIES[place + 1]
        style: dict[str, Any] = {"color": colour, "lw": 1.4, "ls": LINES[policy.policy], "label": policy.policy}
        (line,) = replicas.step(hours, day.means(policy.ready, MOST), where="mid", **style)
        tips.put(line, f"{policy.policy}: {policy.gpu_hours:,.1f} GPU hours, {policy.minutes_out:,.0f} minutes out")
        promise.plot(hours, day.means(policy.use_of_limits, MOST), **style)
    most = max(float(policy.ready.max()) for policy in plan.policies)
    replicas.set(title="replicas that serve", ylim=(0, 1.08 * most))
    replicas.yaxis.get_major_locator().set_params(integer=True)
    narrow = is_narrow(replicas.figure)
    where: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.98), "borderaxespad": 0}
    replicas.legend(ncols=1 if narrow else 3, **({"loc": "best"} if narrow else where))
    promise.axhline(1.0, color=MUTED, lw=1.0, ls="-.")
    promise.set(title="latency / limit: the SLO holds below 1", xlabel="time of day", ylim=(0, None))
    span = max(1.0, day.num_windows * day.window / 3600.0)
    most = 6 if narrow else 12
    step = next(each for each in (0.25, 0.5, 1, 2, 3, 6, 12, 24, 48) if span / each <= most or each == 48)
    ticks = [step * place for place in range(int(span / step) + 1)]
    promise.set_xticks(ticks, [clock(3600.0 * tick) for tick in ticks])
    promise.set_xlim(0, span)
