"""Charts of plain characters, as wide as a terminal allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil, isfinite, log10
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement
    from rich.text import Text

HEIGHT = 9
"""Lines of the area that is drawn in."""
WIDEST, NARROWEST = 110, 40
BESIDE, BELOW = 36, 76
"""What each of two charts side by side needs at least, and what one has at most that stands alone."""
GAP = 3
"""Columns between two charts side by side."""
LOGARITHMIC_FROM = 20.0
"""Values that differ by more than this factor have a logarithmic axis."""
STYLES = ("cyan", "yellow", "green", "magenta")


class Series(NamedTuple):
    """One line of a chart; a value that is not a number is left out."""

    name: str
    mark: str
    values: Sequence[float]


class Chart(NamedTuple):
    """One chart."""

    title: str
    positions: Sequence[float]
    """Where each value stands, from left to right."""
    labels: Sequence[str]
    """What is written below them, where there is room."""
    series: Sequence[Series]
    write: Callable[[float], str]
    """A value on the vertical axis."""
    limit: float | None = None
    """A line across, such as a promise ..."""
    limit_name: str = "limit"
    """... and its name."""
    joined: bool = True
    """Whether dots lead from one mark to the next."""
    from_zero: bool = False


class TextCharts:
    """Charts two by two, or one below the other where the terminal is narrow."""

    def __init__(self, charts: Sequence[Chart], *, columns: int = 2) -> None:
        self._charts, self._columns = charts, columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich when the width is known."""
        from rich.text import Text  # noqa: PLC0415 - loaded already

        width = max(NARROWEST, min(options.max_width, WIDEST))
        columns = self._columns
        each = (width - GAP * (columns - 1)) // columns
        if columns > 1 and (each < BESIDE or any(_heading(chart, each).cell_len > each for chart in self._charts)):
            columns, each = 1, min(width, BELOW)
        for first in range(0, len(self._charts), columns):
            if first:
                yield Text("")
            drawn = [draw_chart(chart, each) for chart in self._charts[first : first + columns]]
            for lines in zip(*drawn, strict=True):
                joined = Text(" " * GAP).join(lines)
                joined.rstrip()
                yield joined

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Called by rich for what is put around it."""
        from rich.measure import Measurement  # noqa: PLC0415 - loaded already

        return Measurement(NARROWEST, WIDEST)


def draw_chart(chart: Chart, width: int) -> list[Text]:
    """The lines of a chart, all of one width: title, area, axis, labels."""
    from rich.text import Text  # noqa: PLC0415 - loaded already

    low, high, is_log = _range(chart)
    ticks = {row: chart.write(_value(row, low, high, is_log)) for row in (0, HEIGHT // 2, HEIGHT - 1)}
    margin = max(map(len, ticks.values())) + 2
    columns = _columns(chart.positions, width - margin)
    area = [[(" ", "")] * (width - margin) for _ in range(HEIGHT)]
    if chart.limit is not None and low <= chart.limit <= high:
        area[_row(chart.limit, low, high, is_log)] = [("-", "red")] * (width - margin)
    for style, series in zip(STYLES, chart.series, strict=False):
        _put(area, columns, [_row(value, low, high, is_log) for value in series.values], series, style, chart.joined)
    lines = [_heading(chart, width)]
    for row in reversed(range(HEIGHT)):
        line = Text()
        line.append(f"{ticks.get(row, ''):>{margin - 2}} |", style="dim")
        for mark, style in area[row]:
            line.append(mark, style=style or None)
        lines.append(line)
    lines.append(Text(f"{'':>{margin - 2}} +{'-' * (width - margin)}", style="dim"))
    lines.append(Text(_below(chart.labels, columns, margin, width), style="dim"))
    for line in lines:
        line.truncate(width)
        line.pad_right(width - line.cell_len)
    return lines


def _heading(chart: Chart, width: int) -> Text:
    """The title and what each mark is."""
    from rich.text import Text  # noqa: PLC0415 - loaded already

    heading = Text(chart.title, style="bold")
    for style, series in zip(STYLES, chart.series, strict=False):
        if series.name:
            heading.append(f"  {series.mark} {series.name}", style=f"not bold {style}")
    if chart.limit is not None and heading.cell_len + len(chart.limit_name) + 4 <= width:
        heading.append(f"  - {chart.limit_name}", style="not bold red")
    return heading


def _range(chart: Chart) -> tuple[float, float, bool]:
    """The least and the largest value, and whether the axis is logarithmic."""
    values = [value for series in chart.series for value in series.values if isfinite(value)]
    if not values:
        return 0.0, 1.0, False
    low, high = min(values), max(values)
    if chart.limit is not None and chart.limit < 5 * high:
        low, high = min(low, chart.limit), max(high, chart.limit)
    is_log = not chart.from_zero and low > 0 and high > LOGARITHMIC_FROM * low
    low = low if is_log else 0.0
    return low, high if high > low else low + 1.0, is_log


def _value(row: int, low: float, high: float, is_log: bool) -> float:
    share = row / (HEIGHT - 1)
    return float(low * (high / low) ** share) if is_log else low + share * (high - low)


def _row(value: float, low: float, high: float, is_log: bool) -> int:
    if not isfinite(value):
        return -1
    share = log10(max(value, low) / low) / log10(high / low) if is_log else (value - low) / (high - low)
    return round(min(1.0, max(0.0, share)) * (HEIGHT - 1))


def _columns(positions: Sequence[float], width: int) -> list[int]:
    """Where values stand: the first and the last a column from the edges."""
    low, high = min(positions), max(positions)
    if high <= low:
        return [width // 2] * len(positions)
    return [1 + round((position - low) / (high - low) * (width - 3)) for position in positions]


def _put(
    area: list[list[tuple[str, str]]],
    columns: Sequence[int],
    rows: Sequence[int],
    series: Series,
    style: str,
    joined: bool,
) -> None:
    """Draw one line."""
    points = [(column, row) for column, row in zip(columns, rows, strict=True) if row >= 0]
    for (left, below), (right, above) in pairwise(points) if joined else ():
        for column in range(left + 1, right):
            row = round(below + (above - below) * (column - left) / (right - left))
            if area[row][column][0] in " -":
                area[row][column] = (".", style)
    for column, row in points:
        area[row][column] = (series.mark, style)


def _below(labels: Sequence[str], columns: Sequence[int], margin: int, width: int) -> str:
    """Labels below their columns, as many as there is room for; the last one is always there."""
    line, end = [" "] * (width + 1), 0
    shown = [
        (min(max(0, margin + at - ceil(len(label) / 2) + 1), width - len(label)), label)
        for label, at in zip(labels, columns, strict=True)
        if label
    ]
    for begin, label in shown:
        if begin >= end and ((begin, label) == shown[-1] or begin + len(label) < shown[-1][0]):
            line[begin : begin + len(label)] = label
            end = begin + len(label) + 1
    return "".join(line).rstrip()
