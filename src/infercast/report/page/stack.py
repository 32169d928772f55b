"""Horizontal bars of parts that add up, with a legend below, drawn by matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from infercast.report.page.canvas import PHONE, WIDTH, draw, room
from infercast.report.page.svg import INK, PAPER, Tips

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXIS, LEGEND_ROW, LETTER, HANDLE = 0.5, 0.19, 0.072, 0.42
"""Inches of an axis with its name, of a row of a legend, of a letter in it and of its coloured square with its gaps."""


class Part(NamedTuple):
    """One colour of a chart of stacked bars."""

    name: str
    colour: str
    widths: list[float]
    """In each bar."""


class Stack(NamedTuple):
    """Horizontal bars of parts that add up."""

    labels: list[str]
    parts: list[Part]
    unit: str
    xlabel: str
    bar: float
    """Inches from one bar to the next."""
    left: float
    """Inches for labels before bars; on a phone those that need more stand above them."""

    @property
    def shown(self) -> list[Part]:
        """Parts that are wide enough to be seen."""
        whole = sum(sum(part.widths) for part in self.parts)
        return [part for part in self.parts if sum(part.widths) >= 1e-3 * whole]

    def legend_columns(self, width: float) -> int:
        """As many as have room in a figure of some width."""
        widest = max((len(part.name) for part in self.shown), default=1)
        return max(1, min(5, int(width / (HANDLE + LETTER * widest))))

    def height(self, width: float) -> float:
        """Inches of the whole figure."""
        rows = -(-len(self.shown) // self.legend_columns(width))
        return 0.1 + len(self.labels) * self.spacing(width) + AXIS + 0.1 + LEGEND_ROW * rows

    def above(self, width: float) -> bool:
        """Whether labels stand above their bars."""
        return width <= PHONE and self.left > 1.0

    def spacing(self, width: float) -> float:
        """Inches from one bar to the next, with a label above it where it has none before it."""
        return self.bar + (0.12 if self.above(width) else 0.0)

    def chart(self, name: str, description: str) -> str:
        """The chart at both widths."""
        return draw(name, description, self.height(WIDTH), self.paint, phone_height=self.height(PHONE))

    def paint(self, figure: Any, tips: Tips) -> None:
        """Bars, labels, and a legend below."""
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
