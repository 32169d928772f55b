"""Two runs side by side as a page: why they differ, their numbers, their steps and the kernels of one step in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from infercast.forecast.explain.watched import Watched
from infercast.forecast.reasons import reasons
from infercast.forecast.side_by_side import SideBySide, side_by_side
from infercast.report.caveats import caveats
from infercast.report.comparison import headline_rows
from infercast.report.forecast import system_facts
from infercast.report.page.charts import COLOURS, HOST, OTHERS
from infercast.report.page.elements import facts_list, table
from infercast.report.page.plot import Plot
from infercast.report.page.svg import PAPER, Tips
from infercast.report.sides import STEP_COLUMNS, Names, family_columns, family_rows, step_rows, step_title
from infercast.units import MILLI, format_seconds

IDLE = ("GPU waits for host", "gaps between kernels")


def comparison_plot(runs: tuple[Watched, Watched], names: Names, version: str) -> Plot:
    """The picture of the kernels of one step in both, and all that stands below it."""
    both, (before, after) = side_by_side(runs, names), (run.forecast for run in runs)
    title = f"{names[0]} and {names[1]}: {before.deployment.model.name} on {before.deployment.gpu.title}"
    return Plot(
        "side-by-side",
        title,
        before.workload.description,
        _height(both),
        lambda figure, tips: _paint(figure, tips, both),
        _below(runs, both, names, headline_rows(before, after)),
        version,
    )


def _below(runs: tuple[Watched, Watched], both: SideBySide, names: Names, headline: Iterable[Sequence[str]]) -> str:
    parts = [
        "<h2>Why</h2><ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in reasons(both)) + "</ul>",
        "<h2>Side by side</h2>" + _table(("", *names, "change"), headline),
        "<h2>Steps</h2>",
        *(f"<h3>{escape(step_title(side))}</h3>" + _table(STEP_COLUMNS, step_rows(side)) for side in both.sides),
        '<p class="note">Tokens and decoding sequences of a step are means. Between tokens: the share of the time '
        "between two tokens of a request that goes by in such steps.</p>",
        "<h2>One step in both</h2>",
        *(
            f"<h3>A step of {escape(step.title)}</h3>" + _table(family_columns(both), family_rows(step))
            for step in both.steps
        ),
        "<h2>What was simulated, and what it rests on</h2>",
    ]
    for name, run in zip(names, runs, strict=True):
        parts.append(f"<h3>{escape(name)}</h3>")
        parts += [facts_list(rows) for _, rows in system_facts(run.forecast)]
        parts.append(f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in caveats(run.forecast))}</ul>")
    return "".join(parts)


def _height(both: SideBySide) -> float:
    """Inches of the picture."""
    return 1.0 + 0.95 * max(1, len(both.steps))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return table([escape(column) for column in columns], [[escape(cell) for cell in row] for row in rows])


def _paint(figure: Any, tips: Tips, both: SideBySide) -> None:
    """Two bars for each step: what its kernels take in either engine."""
    height = _height(both)
    room = {"left": 0.14, "right": 0.98, "bottom": 0.35 / height, "top": 1 - 0.65 / height, "hspace": 1.1}
    panels = figure.subplots(len(both.steps), 1, squeeze=False, gridspec_kw=room)
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
        axes.set_title(f"A step of {step.title}, ms", fontsize="medium")
        axes.grid(visible=False, axis="y")
    figure.legend(shown.values(), shown.keys(), loc="upper left", ncols=len(shown), handlelength=1, columnspacing=1.2)
