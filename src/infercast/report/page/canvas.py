"""Drawing tools of chart pages: canvases of two widths, themed SVG, stacked bars and label placement."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from io import StringIO
from math import ceil, floor
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes


STYLE = Path(__file__).parents[1] / "page.mplstyle"
# The variables of the page's style sheet by their colours on light pages, of which no two are the same.
LIGHT = STYLE.with_suffix(".css").read_text(encoding="utf-8").partition("}")[0]
VARIABLES = {colour: name for name, colour in re.findall(r"--([\w-]+): (#[0-9a-f]{6})", LIGHT)}
COLOURS = {name: colour for colour, name in VARIABLES.items()}
INK, MUTED, GRID, PAPER = (COLOURS[name] for name in ("ink", "muted", "grid", "paper"))
SERIES = tuple(COLOURS[f"s{number}"] for number in range(10))
AXIS, LEGEND_ROW, LEGEND_LETTER, HANDLE = 0.5, 0.19, 0.072, 0.42
"""Inches of an axis with its name, of a row of a legend, of a letter in it and of its coloured square with its gaps."""


class Tips:
    """Texts that a browser shows over a part of a figure."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def put(self, artist: Artist, text: str) -> None:
        artist.set_gid(f"tip-{len(self._texts)}")
        self._texts.append(text)

    def write(self, svg: str) -> str:
        return re.sub(
            r'<g id="tip-(\d+)">', lambda found: f"<g><title>{escape(self._texts[int(found[1])])}</title>", svg
        )


WIDTH, HALF, PHONE = 9.2, 4.1, 3.75  # inches of a full-width chart, of one in a pair, and of a chart on a phone
LETTER = 0.077  # inches of a letter of a title, on average
Paint = Callable[[Any, Tips], None]  # draws on an empty figure of any width, in the colours of `svg`


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
    import matplotlib as mpl  # noqa: PLC0415 - half a second that only a report needs
    from matplotlib.figure import Figure  # noqa: PLC0415

    text = StringIO()
    with mpl.rc_context({"svg.hashsalt": name}, STYLE):
        figure, tips = Figure(figsize=size), Tips()
        paint(figure, tips)
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = tips.write(text.getvalue()[text.getvalue().index("<svg") :])
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[A-Za-z0-9_.]+"/>\s*', "", svg)
    svg = re.sub(r'<g id="[A-Za-z0-9_.]+">', "<g>", svg)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub("|".join(VARIABLES), lambda found: f"var(--{VARIABLES[found[0]]})", svg)
    svg = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", svg, count=1)
    label = f'<svg role="img" aria-label="{escape(description, quote=True)}" class="chart" id="chart-{name}"'
    return svg.replace("<svg", label, 1)


def is_narrow(figure: Any) -> bool:
    return bool(figure.get_figwidth() < HALF)


def room(
    figure: Any, *, left: float, right: float = 0.1, bottom: float = 0.45, top: float = 0.3, **gaps: float
) -> dict[str, float]:
    """Inches around the panels of a figure, as matplotlib takes them; ``gaps`` are hspace and wspace, as it does."""
    width, height = figure.get_size_inches()
    across = {"left": left / width, "right": 1.0 - right / width}
    return {**across, "bottom": bottom / height, "top": 1.0 - top / height, **gaps}


def wrapped(figure: Any, text: str, beside: float = 0.0) -> str:
    """A title wrapped to the width of a figure, less some inches."""
    return fill(text, max(12, int((figure.get_figwidth() - beside) / LETTER)))


def inches(axes: Any) -> float:
    return float(axes.get_position().width * axes.figure.get_figwidth())


def stacked(figure: Any, count: int, columns: int) -> tuple[int, int]:
    """Rows and columns of ``count`` panels: ``columns`` per row, one on a phone."""
    return (count, 1) if is_narrow(figure) else (-(-count // columns), columns)


def round_ticks(axis: Any, low: float, high: float, most: int = 6) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 times powers of ten, or at even steps where it spans less than that."""
    ticks = [mantissa * 10.0**power for power in range(-6, 9) for mantissa in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) > most:
        ticks = [tick for tick in ticks if f"{tick:e}".startswith("1")]
    if len(ticks) < 3:
        step = next(each for each in (10.0**power * part for power in range(-9, 9) for part in (1, 2, 5))
                    if (high - low) / each < most - 1)  # fmt: skip
        ticks = [step * number for number in range(ceil(low / step), floor(high / step) + 1)]
    axis.set_ticks(ticks, [f"{tick:,.6g}" for tick in ticks])
    axis.set_ticks([], minor=True)


class Part(NamedTuple):
    name: str
    colour: str
    widths: list[float]  # In each bar


class Stack(NamedTuple):
    labels: list[str]
    parts: list[Part]
    unit: str
    xlabel: str
    bar: float  # Inches from one bar to the next
    left: float  # Inches for labels before bars; on a phone those that need more stand above them

    @property
    def shown(self) -> list[Part]:
        whole = sum(sum(part.widths) for part in self.parts)
        return [part for part in self.parts if sum(part.widths) >= 1e-3 * whole]

    def legend_columns(self, width: float) -> int:
        widest = max((len(part.name) for part in self.shown), default=1)
        return max(1, min(5, int(width / (HANDLE + LEGEND_LETTER * widest))))

    def height(self, width: float) -> float:
        rows = -(-len(self.shown) // self.legend_columns(width))
        spacing = self.bar + (0.12 if self.above(width) else 0.0)  # with room for labels above bars
        return 0.1 + len(self.labels) * spacing + AXIS + 0.1 + LEGEND_ROW * rows

    def above(self, width: float) -> bool:
        return width <= PHONE and self.left > 1.0

    def chart(self, name: str, description: str) -> str:
        return draw(name, description, self.height(WIDTH), self.paint, phone_height=self.height(PHONE))

    def paint(self, figure: Any, tips: Tips) -> None:
        width = figure.get_figwidth()
        columns = self.legend_columns(width)
        below = AXIS + 0.1 + LEGEND_ROW * -(-len(self.shown) // columns)
        left = 0.12 if self.above(width) else self.left
        axes = figure.subplots(gridspec_kw=room(figure, left=left, right=0.15, bottom=below, top=0.1))
        self._bars(axes, tips, self.above(width))
        axes.set(xlabel=self.xlabel, xlim=(0, 100 if self.unit == "%" else None))
        figure.legend(
            loc="lower center", ncols=columns, handlelength=1.0, handleheight=1.0, columnspacing=1.2, borderaxespad=0.1
        )

    def _bars(self, axes: Axes, tips: Tips, above: bool) -> None:
        ends = [0.0] * len(self.labels)
        places, thick = range(len(self.labels)), 0.45 if above else 0.8
        for part in self.shown:
            style: dict[str, Any] = {"color": part.colour, "edgecolor": PAPER, "linewidth": 0.8, "label": part.name}
            bars = axes.barh(places, part.widths, thick, left=ends, **style)
            for bar, width, label in zip(bars, part.widths, self.labels, strict=True):
                tips.put(bar, f"{label.splitlines()[0]}: {part.name} {width:.1f} {self.unit}")
            ends = [end + width for end, width in zip(ends, part.widths, strict=True)]
        axes.set_ylim(len(self.labels) - (0.65 if above else 0.5), -0.75 if above else -0.5)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        if above:
            axes.set_yticks([])
            for place, label in enumerate(self.labels):
                words = label.replace("\n", ", ")
                axes.annotate(words, (0, place - 0.27), (0, 1), textcoords="offset points", color=INK, va="bottom")
        else:
            axes.set_yticks(places, self.labels)
