"""A chart at two widths: one for desks and paper, one for phones; a page shows the one that fits."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor
from textwrap import fill
from typing import Any

from infercast.report.page.svg import STYLE, Tips, inline_svg

WIDTH, HALF, PHONE = 9.2, 4.1, 3.75
"""Inches of a chart that fills a page, of one that has another beside it (on a phone below it), and of a phone."""
MOST_TICKS = 6
LETTER = 0.077
"""Inches of a letter of a title, on average."""

Paint = Callable[[Any, Tips], None]
"""Draws on an empty figure of any width, in the colours of `svg`."""


def draw(
    name: str, description: str, height: float, paint: Paint, *, width: float = WIDTH, phone_height: float | None = None
) -> str:
    """One chart, once as wide as ``width`` and once for phones; a reader sees one. Half of a page fits both."""
    wide = drawn(name, description, (width, height), paint)
    if width <= HALF:
        return f'<div class="figure">{wide}</div>'
    narrow = drawn(f"{name}-phone", description, (PHONE, phone_height or height), paint)
    return f'<div class="figure"><div class="desk">{wide}</div><div class="phone">{narrow}</div></div>'


def drawn(name: str, description: str, size: tuple[float, float], paint: Paint) -> str:
    """A chart of some size in inches, as an element of a page."""
    import matplotlib as mpl  # noqa: PLC0415 - half a second that only a report needs
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(fname=STYLE):
        figure, tips = Figure(figsize=size), Tips()
        paint(figure, tips)
        return inline_svg(figure, name, description, tips)


def is_narrow(figure: Any) -> bool:
    """Whether a figure is for a phone."""
    return bool(figure.get_figwidth() < HALF)


def room(
    figure: Any, *, left: float, right: float = 0.1, bottom: float = 0.45, top: float = 0.3, **gaps: float
) -> dict[str, float]:
    """Inches around the panels of a figure, as matplotlib takes them; ``gaps`` are hspace and wspace, as it does."""
    width, height = figure.get_size_inches()
    return {
        "left": left / width,
        "right": 1.0 - right / width,
        "bottom": bottom / height,
        "top": 1.0 - top / height,
        **gaps,
    }


def wrapped(figure: Any, text: str, beside: float = 0.0) -> str:
    """A title on as many lines as it needs in a figure; ``beside``: inches that it does not have."""
    return fill(text, max(12, int((figure.get_figwidth() - beside) / LETTER)))


def inches(axes: Any) -> float:
    """The width of a panel."""
    return float(axes.get_position().width * axes.figure.get_figwidth())


def stacked(figure: Any, count: int, columns: int) -> tuple[int, int]:
    """Rows and columns of ``count`` panels: ``columns`` beside each other, on a phone all below each other."""
    if is_narrow(figure):
        return count, 1
    return -(-count // columns), columns


def round_ticks(axes: Any, low: float, high: float, most: int = MOST_TICKS) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 times powers of ten, or at even steps where it spans less than that."""
    ticks = [mantissa * 10.0**power for power in range(-6, 9) for mantissa in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) > most:
        ticks = [tick for tick in ticks if f"{tick:e}".startswith("1")]
    if len(ticks) < 3:
        step = next(each for each in (10.0**power * part for power in range(-9, 9) for part in (1, 2, 5))
                    if (high - low) / each < most - 1)  # fmt: skip
        ticks = [step * number for number in range(ceil(low / step), floor(high / step) + 1)]
    axes.set_xticks(ticks, [f"{tick:,.6g}" for tick in ticks])
    axes.set_xticks([], minor=True)
