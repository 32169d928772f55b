"""One figure as PNG, SVG or page with tables: a sweep, a day, speculative decoding, two runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from math import isfinite, log2
from pathlib import Path
from typing import Any, NamedTuple

from infercast.forecast.compare import SideBySide, compare_runs, reasons, side_by_side
from infercast.forecast.day import DayPlan, clock
from infercast.forecast.explain.step_log import Watched
from infercast.forecast.sweep import BreakEven, Sweep
from infercast.report import comparison
from infercast.report import sweep as curves
from infercast.report.caveats import caveats, caveats_of, shared_first
from infercast.report.deployment import drafting_words
from infercast.report.files import whole_file
from infercast.report.forecast import system_facts
from infercast.report.page import canvas, elements
from infercast.report.page.charts import COLOURS, HOST, OTHERS
from infercast.report.sweep import POLICY_FIELDS, answer_of, basis_rows, day_caveats, replica_rows, title_of
from infercast.report.terminal import Chart, cells
from infercast.units import MILLI, format_seconds

MOST = 288  # stretches across the day: five minutes each
POLICY_LINES = {"fixed": "-", "scheduled": "--", "autoscaled": "-"}
MEASURES = ("", "", "tokens/s ", "", "", "TPOT p50 ", "", "TTFT p50 ", "")
"""What stands before the titles of columns, each of which is read by itself on a phone."""
IDLE = ("GPU waits for host", "gaps between kernels")


class Plot(NamedTuple):
    name: str
    title: str
    lead: str
    height: float
    phone_height: float
    paint: canvas.Paint
    sections: tuple[elements.PageSection, ...]  # What follows the figure on a page; the first has the figure in it
    caveats: tuple[str, ...]
    top: str = ""  # HTML below the title of a page

    def chart(self) -> str:
        return canvas.draw(self.name, self.title, self.height, self.paint, phone_height=self.phone_height)

    def svg(self) -> str:
        """A file of its own, in light and dark as the viewer has it."""
        figure = canvas.drawn(self.name, self.title, (canvas.WIDTH, self.height), self.paint)
        colours = re.findall(r"(?ms)^(?::root|@media \(prefers-color-scheme: dark\)) \{.*?^\}", elements.style_sheet())
        style = f"<style>{''.join(colours)} svg {{ background: var(--paper); font-family: sans-serif; }}</style>"
        return re.sub(r"(<svg[^>]*>)", lambda tag: tag[1] + style, figure, count=1) + "\n"

    def page(self, command: str) -> str:
        """A page without script or network; ``command`` is what it was made by."""
        first, *others = self.sections
        sections = [first._replace(body=self.chart() + first.body), *others]
        content = elements.Content(self.title, self.lead, sections, self.caveats, self.top)
        return elements.whole_page(content, command)

    def figure(self, make: Any) -> Any:
        """A figure of the class ``make``, in the colours of light pages."""
        import matplotlib as mpl  # noqa: PLC0415 - loaded to draw only

        with mpl.rc_context(fname=canvas.STYLE):
            figure = make(figsize=(canvas.WIDTH, self.height))
            self.paint(figure, canvas.Tips())
            figure.set_facecolor(canvas.PAPER)
            return figure

    def write_png(self, path: Path) -> None:
        """The file appears whole or not at all."""
        from matplotlib.figure import Figure  # noqa: PLC0415 - loaded to draw only

        with whole_file(path) as temporary:
            self.figure(Figure).savefig(temporary, format="png", dpi=160, metadata={"Software": None})


def sweep_plot(sweep: Sweep) -> Plot:
    name = curves.name_of(sweep)
    columns = curves.columns_of(sweep)
    rows = [[escape(column.cell(point)) for column in columns] for point in sweep.simulated]
    notes = [f"{each.label}: {each.problem}" for each in sweep.points if each.problem] + curves.overload_notes(sweep)
    below = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    values = elements.table([escape(str(column.title)).replace(" ", "<br>") for column in columns], rows)

    def paint(figure: Any, tips: canvas.Tips) -> None:
        if sweep.axis.across is not None:
            _maps(figure, tips, sweep)
            return
        charts = curves.charts_of(sweep)
        shape = canvas.stacked(figure, len(charts), 2)
        gaps = {"hspace": 0.62 if canvas.is_narrow(figure) else 0.45, "wspace": 0.18}
        panels = figure.subplots(*shape, gridspec_kw=canvas.room(figure, left=0.62, **gaps))
        for axes, chart in zip(panels.flat, charts, strict=True):
            _panel(axes, chart, tips, name)
            _bends(axes, sweep)

    summary = elements.facts_list(curves.summary_rows(sweep))
    return Plot(
        "sweep", f"{sweep.title} along {name}", sweep.workload, height=5.6, phone_height=9.6, paint=paint,
        sections=(
            elements.PageSection(
                "curves", "Where it bends" if sweep.axis.is_load else "Best values", summary, "Curves"
            ),
            elements.PageSection("values", f"Each value of {name}", values + below, "Values"),
        ),
        caveats=tuple(caveats_of([each.forecast for each in sweep.simulated if each.forecast is not None])),
    )  # fmt: skip


def _maps(figure: Any, tips: canvas.Tips, sweep: Sweep) -> None:
    """Heat maps of two settings: the darker a field, the more of what its title says."""
    found, first, second = curves.maps_of(sweep)[:4], sweep.axis, sweep.axis.across
    assert second is not None
    shape = canvas.stacked(figure, len(found), 2)
    gaps = {"hspace": 0.62 if canvas.is_narrow(figure) else 0.45, "wspace": 0.3}
    panels = figure.subplots(*shape, squeeze=False, gridspec_kw=canvas.room(figure, left=0.62, **gaps))
    for axes in panels.flat[len(found) :]:
        axes.set_visible(False)
    for axes, (field, rows) in zip(panels.flat, found, strict=False):
        values = [[field.of(point) for point in row] for row in rows]
        known = [value for row in values for value in row if value is not None]
        low, high = min(known, default=0.0), max(known, default=1.0)
        for across, row in enumerate(zip(*rows, strict=True)):
            for place, point in enumerate(row):
                value, text = values[place][across], field.cell(point)
                share = 0.0 if value is None else (value - low) / max(high - low, 1e-12)
                box = axes.bar(across, 1.0, 1.0, place - 0.5, color=canvas.SERIES[0], alpha=0.1 + 0.6 * share, lw=0)[0]
                tips.put(box, f"{point.label}: {field.title} {text}")
                axes.annotate(text, (across, place), fontsize=8, color=canvas.INK, ha="center", va="center")
        axes.set_title(field.title)
        axes.set_xticks(range(len(second.values)), second.own_labels)
        axes.set_yticks(range(len(first.values)), first.own_labels)
        axes.set_xlabel(second.name)
        axes.set_ylabel(first.name)


def _panel(axes: Any, chart: Chart, tips: canvas.Tips, name: str) -> None:
    scale = MILLI if chart.write is format_seconds else 1.0
    lines = ("-", "--", ":")
    for place, series in enumerate(chart.series):
        values = [value / scale for value in series.values]
        style = {"color": canvas.SERIES[place], "lw": 1.5, "marker": "o", "ms": 3.5, "label": series.name}
        axes.plot(chart.positions, values, lines[place], **style)
        for position, label, value in zip(chart.positions, chart.labels, series.values, strict=True):
            if isfinite(value):
                (dot,) = axes.plot([position], [value / scale], "o", ms=9, alpha=0.0, color=canvas.SERIES[place])
                tips.put(dot, f"{label} {name}: {series.name} {chart.write(value)}")
    if chart.limit is not None:
        axes.axhline(chart.limit / scale, color=canvas.SERIES[6], lw=1.2, ls="-.", label=chart.limit_name)
    axes.set_title(f"{chart.title}, ms" if scale == MILLI else chart.title)
    shown = [value / scale for series in chart.series for value in series.values if isfinite(value)]
    low, high = min(shown, default=0.0), max(shown, default=1.0)
    if scale == MILLI and high > 20 * low > 0:  # latencies that differ by much
        axes.set_yscale("log")
        canvas.round_ticks(axes.yaxis, low / 1.5, 1.5 * high)
    else:
        axes.set_ylim(0, max(1.08 * high, axes.get_ylim()[1]))
    if any(label != f"{position:g}" for label, position in zip(chart.labels, chart.positions, strict=True)):
        axes.set_xticks(list(chart.positions), chart.labels)
    if len(chart.series) > 1:
        axes.legend(loc="best")
    axes.set_xlabel(name)


def _bends(axes: Any, sweep: Sweep) -> None:
    """Lines at the knee and where the promise ends, named above the chart where the title leaves room."""
    found = {"knee": sweep.knee, "SLO": sweep.promise}
    ends = {name: edge.value for name, edge in found.items() if edge is not None and edge.reached and edge.value}
    begin, end = axes.get_xlim()
    places = {name: float((value - begin) / (end - begin)) for name, value in ends.items()}
    for name, value in ends.items():
        axes.axvline(value, color=canvas.MUTED if name == "knee" else canvas.INK, lw=0.9, ls=(0, (2, 3)))
    apart = 0.2  # names of lines that are closer than this share of a chart are written as one
    if len(places) == 2 and abs(places["knee"] - places["SLO"]) < apart:
        places = {"knee, SLO": max(places.values())}
    for name, place in places.items():
        half = canvas.LETTER * len(name) / 2 / canvas.inches(axes)
        middle = min(place, 1.0 - half)
        if middle - half > canvas.LETTER * (len(axes.get_title(loc="left")) + 2) / canvas.inches(axes):
            axes.annotate(name, (middle, 1.0), (0, 3), xycoords="axes fraction", textcoords="offset points",
                          fontsize=8, color=canvas.MUTED, ha="center", va="bottom")  # fmt: skip


def day_plot(plan: DayPlan) -> Plot:
    def paint(figure: Any, tips: canvas.Tips) -> None:
        panels = figure.subplots(3, 1, sharex=True, gridspec_kw=canvas.room(figure, left=0.55, right=0.25, hspace=0.4))
        _paint(plan, panels, tips)

    return Plot(
        "day", f"A day of {title_of(plan)}", plan.traffic.description, height=6.2, phone_height=6.2, paint=paint,
        sections=(
            elements.PageSection("curves", "The day", "", "Curves"),
            elements.PageSection("policies", "Policies", elements.plain_table(*cells(POLICY_FIELDS, plan.policies))),
            elements.PageSection("replica", "One replica", elements.facts_list(replica_rows(plan))),
            elements.PageSection("basis", "Method", elements.facts_list(basis_rows(plan))),
        ),
        caveats=tuple(day_caveats(plan)), top=f'<p class="answer">{escape(answer_of(plan))}</p>',
    )  # fmt: skip


def _paint(plan: DayPlan, panels: Any, tips: canvas.Tips) -> None:
    traffic, replicas, promise = panels
    day = plan.traffic
    hours = [middle / 3600.0 for middle in day.middles(MOST)]
    rates = day.means(day.counts / day.window, MOST)
    traffic.fill_between(hours, rates, color=canvas.SERIES[0], alpha=0.3, lw=0)
    traffic.plot(hours, rates, color=canvas.SERIES[0], lw=1.2)
    traffic.set(title="requests per second", ylim=(0, None))
    for place, policy in enumerate(plan.policies):
        colour = canvas.SERIES[place + 1]
        style: dict[str, Any] = {"color": colour, "lw": 1.4, "ls": POLICY_LINES[policy.policy], "label": policy.policy}
        (line,) = replicas.step(hours, day.means(policy.ready, MOST), where="mid", **style)
        tips.put(line, f"{policy.policy}: {policy.gpu_hours:,.1f} GPU hours, {policy.minutes_out:,.0f} minutes out")
        promise.plot(hours, day.means(policy.use_of_limits, MOST), **style)
    most = max(float(policy.ready.max()) for policy in plan.policies)
    replicas.set(title="replicas that serve", ylim=(0, 1.08 * most))
    replicas.yaxis.get_major_locator().set_params(integer=True)
    narrow = canvas.is_narrow(replicas.figure)
    where: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.98), "borderaxespad": 0}
    replicas.legend(ncols=1 if narrow else 3, **({"loc": "best"} if narrow else where))
    promise.axhline(1.0, color=canvas.MUTED, lw=1.0, ls="-.")
    promise.set(title="latency / limit: the SLO holds below 1", xlabel="time of day", ylim=(0, None))
    span = max(1.0, day.num_windows * day.window / 3600.0)
    most = 6 if narrow else 12
    step = next(each for each in (0.25, 0.5, 1, 2, 3, 6, 12, 24, 48) if span / each <= most or each == 48)
    ticks = [step * place for place in range(int(span / step) + 1)]
    promise.set_xticks(ticks, [clock(3600.0 * tick) for tick in ticks])
    promise.set_xlim(0, span)


def break_even_plot(found: BreakEven) -> Plot:
    rows = [[escape(column.cell(point)) for column in curves.SPECULATION_FIELDS] for point in found.points]
    titles = [
        f"{measure}{escape(str(column.title))}"
        for measure, column in zip(MEASURES, curves.SPECULATION_FIELDS, strict=True)
    ]
    answer = f'<p class="answer">{escape(found.sentence)}</p>'
    loads = elements.table([title.replace(" ", "<br>") for title in titles], rows)

    def paint(figure: Any, tips: canvas.Tips) -> None:
        panels = figure.subplots(
            *canvas.stacked(figure, 2, 2), gridspec_kw=canvas.room(figure, left=0.55, hspace=0.5, wspace=0.16)
        )
        for axes, chart in zip(panels.flat, curves.break_even_charts(found), strict=True):
            _panel(axes, chart, tips, "clients at the same time")
            if found.clients is not None and chart.limit is not None:
                axes.axvline(log2(found.clients), color=canvas.MUTED, lw=0.9, ls=(0, (2, 3)))

    return Plot(
        "speculation", f"{found.title}: where drafts stop paying",
        f"{found.workload}; {drafting_words(found.drafting)}", height=3.4, phone_height=5.6, paint=paint,
        sections=(
            elements.PageSection("curves", "With and without drafts", "", "Curves"),
            elements.PageSection("loads", "Each number of clients", loads, "Loads"),
        ),
        caveats=tuple(caveats_of([point.drafted for point in found.points])), top=answer,
    )  # fmt: skip


def comparison_plot(runs: tuple[Watched, Watched], names: comparison.Names) -> Plot:
    both, (before, after) = side_by_side(runs, names), (run.forecast for run in runs)
    height = 1.0 + 0.95 * max(1, len(both.steps))
    return Plot(
        "side-by-side", f"{names[0]} and {names[1]}: {before.deployment.model.name} on {before.deployment.gpu.title}",
        before.workload.description, height=height, phone_height=height + 0.4 + 0.2 * len(both.steps),
        paint=lambda figure, tips: _paint_comparison(figure, tips, both), sections=_sections(runs, both, names),
        caveats=tuple(shared_first(dict(zip(names, (caveats(before), caveats(after)), strict=True)))),
        top=f"<h2>Why</h2>{elements.items(reasons(both, compare_runs(*runs)))}",
    )  # fmt: skip


def _sections(
    runs: tuple[Watched, Watched], both: SideBySide, names: comparison.Names
) -> tuple[elements.PageSection, ...]:
    headline = comparison.headline_rows(*(run.forecast for run in runs))
    steps = [
        f"<h3>{escape(comparison.step_title(side))}</h3>"
        + elements.plain_table(*cells(comparison.STEP_FIELDS, side.kinds))
        for side in both.sides
    ]
    note = (
        '<p class="note">Tokens and decoding sequences of a step are means. Between tokens: the share of the time '
        "between two tokens of a request that goes by in such steps.</p>"
    )
    families = [
        f"<h3>A step of {escape(step.title)}</h3>"
        + elements.plain_table(comparison.family_columns(both), comparison.family_rows(step))
        for step in both.steps
    ]
    simulated = [
        f"<h3>{escape(name)}</h3>" + "".join(elements.facts_list(rows) for _, rows in system_facts(run.forecast))
        for name, run in zip(names, runs, strict=True)
    ]
    return (
        elements.PageSection("one-step", "One step in both", "", "One step"),
        elements.PageSection("headline", "Side by side", elements.plain_table(("", *names, "change"), headline)),
        elements.PageSection("steps", "Steps", "".join(steps) + note),
        elements.PageSection("families", "Kernels of one step in both", "".join(families), "Kernels"),
        elements.PageSection("sources", "What was simulated", "".join(simulated), "Deployments"),
    )


def _paint_comparison(figure: Any, tips: canvas.Tips, both: SideBySide) -> None:
    narrow = canvas.is_narrow(figure)
    left = 0.2 + canvas.LETTER * max(len(side.name) for side in both.sides)
    around = canvas.room(figure, left=left, bottom=0.35, top=1.05 if narrow else 0.65, hspace=1.1)
    panels = figure.subplots(len(both.steps), 1, squeeze=False, gridspec_kw=around)
    shown: dict[str, Any] = {}
    for axes, step in zip(panels.flat, both.steps, strict=True):
        for place, side in enumerate(both.sides):
            start = 0.0
            for name, *seconds in step.families:
                width = seconds[place] / MILLI
                colour = HOST if name in IDLE else COLOURS.get(name, OTHERS)
                (bar,) = axes.barh(
                    [1 - place], [width], 0.7, left=start, color=colour, edgecolor=canvas.PAPER, linewidth=0.5
                )
                tips.put(bar, f"{side.name}: {name} {format_seconds(seconds[place])}")
                shown.setdefault("waiting" if name in IDLE else name if name in COLOURS else "others", bar)
                start += width
        axes.set_yticks([1, 0], [side.name for side in both.sides])
        axes.set_title(canvas.wrapped(figure, f"A step of {step.title}, ms", left), fontsize="medium")
        axes.grid(visible=False, axis="y")
    columns = 4 if narrow else len(shown)
    figure.legend(shown.values(), shown.keys(), loc="upper left", ncols=columns, handlelength=1, columnspacing=1.0)


PLOTS: dict[str, Callable[[Any], Plot]] = {"DayPlan": day_plot, "Sweep": sweep_plot}
