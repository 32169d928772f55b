"""Two runs side by side as a page: why they differ, their numbers, their steps and the kernels of one step in both."""

from __future__ import annotations

from html import escape
from typing import Any

from infercast.forecast.explain.watched import Watched
from infercast.forecast.reasons import reasons
from infercast.forecast.side_by_side import SideBySide, side_by_side
from infercast.report.caveats import caveats
from infercast.report.comparison import headline_rows
from infercast.report.forecast import system_facts
from infercast.report.page.canvas import LETTER, is_narrow, room, wrapped
from infercast.report.page.charts import COLOURS, HOST, OTHERS
from infercast.report.page.elements import Section, facts_list, items, plain_table
from infercast.report.page.plot import Plot
from infercast.report.page.svg import PAPER, Tips
from infercast.report.sides import STEP_COLUMNS, Names, family_columns, family_rows, step_rows, step_title
from infercast.units import MILLI, format_seconds

IDLE = ("GPU waits for host", "gaps between kernels")


def comparison_plot(runs: tuple[Watched, Watched], names: Names, version: str) -> Plot:
    """The picture of the kernels of one step in both, and all that stands below it."""
    both, (before, after) = side_by_side(runs, names), (run.forecast for run in runs)
    height = _height(both)
    return Plot(
        "side-by-side",
        f"{names[0]} and {names[1]}: {before.deployment.model.name} on {before.deployment.gpu.title}",
        before.workload.description,
        height=height,
        phone_height=height + 0.4 + 0.2 * len(both.steps),
        paint=lambda figure, tips: _paint(figure, tips, both),
        sections=_sections(runs, both, names),
        caveats=tuple(_caveats(names, (caveats(before), caveats(after)))),
        version=version,
        top=f"<h2>Why</h2>{items(reasons(both))}",
    )


def _sections(runs: tuple[Watched, Watched], both: SideBySide, names: Names) -> tuple[Section, ...]:
    headline = headline_rows(*(run.forecast for run in runs))
    steps = [f"<h3>{escape(step_title(side))}</h3>" + plain_table(STEP_COLUMNS, step_rows(side)) for side in both.sides]
    note = (
        '<p class="note">Tokens and decoding sequences of a step are means. Between tokens: the share of the time '
        "between two tokens of a request that goes by in such steps.</p>"
    )
    families = [
        f"<h3>A step of {escape(step.title)}</h3>" + plain_table(family_columns(both), family_rows(step))
        for step in both.steps
    ]
    simulated = [
        f"<h3>{escape(name)}</h3>" + "".join(facts_list(rows) for _, rows in system_facts(run.forecast))
        for name, run in zip(names, runs, strict=True)
    ]
    return (
        Section("one-step", "One step in both", "", "One step"),
        Section("headline", "Side by side", plain_table(("", *names, "change"), headline)),
        Section("steps", "Steps", "".join(steps) + note),
        Section("families", "Kernels of one step in both", "".join(families), "Kernels"),
        Section("sources", "What was simulated", "".join(simulated), "Deployments"),
    )


def _caveats(names: Names, said: tuple[list[str], list[str]]) -> list[str]:
    """What is true of one run alone says of which."""
    both = [sentence for sentence in said[0] if sentence in said[1]]
    alone = [f"{name}: {each}" for name, each_said in zip(names, said, strict=True) for each in each_said]
    return [*both, *(each for each in alone if each.partition(": ")[2] not in both)]


def _height(both: SideBySide) -> float:
    """Inches of the picture."""
    return 1.0 + 0.95 * max(1, len(both.steps))


def _paint(figure: Any, tips: Tips, both: SideBySide) -> None:
    """Two bars for each step: what its kernels take in either engine."""
    narrow = is_narrow(figure)
    left = 0.2 + LETTER * max(len(side.name) for side in both.sides)
    around = room(figure, left=left, bottom=0.35, top=1.05 if narrow else 0.65, hspace=1.1)
    panels = figure.subplots(len(both.steps), 1, squeeze=False, gridspec_kw=around)
    shown: dict[str, Any] = {}
    for axes, step in zip(panels.flat, both.steps, strict=True):
        for place, side in enumerate(both.sides):
            start = 0.0
            for name, *seconds in step.families:
                width = seconds[place] / MILLI
                colour = HOST if name in IDLE else COLOURS.get(name, OTHERS)
                (bar,) = axes.barh([1 - place], [width], 0.7, left=start, color=colour, edgecolor=PAPER, linewidth=0.5)
                tips.put(bar, f"{side.name}: {name} {format_seconds(seconds[place])}")
                shown.setdefault("waiting" if name in IDLE else name if name in COLOURS else "others", bar)
                start += width
        axes.set_yticks([1, 0], [side.name for side in both.sides])
        axes.set_title(wrapped(figure, f"A step of {step.title}, ms", left), fontsize="medium")
        axes.grid(visible=False, axis="y")
    columns = 4 if narrow else len(shown)
    figure.legend(shown.values(), shown.keys(), loc="upper left", ncols=columns, handlelength=1, columnspacing=1.0)
