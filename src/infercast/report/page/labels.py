"""Names beside marks of a chart, each where no mark, no line and no other name is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from infercast.report.page.svg import INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE, LETTER, AWAY, POINTS = 15.0, 7.2, 7.0, 0.72
"""Pixels of a line of text, of a letter and from a mark to its name; points in a pixel."""
FARTHEST, STEP = 170, 3
"""Pixels up and down that a name is moved at most to find room, and by which it is moved at once."""
UPWARDS, LEFTWARDS = 12.0, 60.0
"""Pixels by which a place above or to the left of a mark counts as farther: below and to the right read better."""
LEADER = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 2}
"""The line from a name to its mark."""


class Box(NamedTuple):
    """A part of a chart that is taken, in pixels."""

    left: float
    bottom: float
    right: float
    top: float

    @property
    def middle(self) -> tuple[float, float]:
        """Across and up."""
        return (self.left + self.right) / 2, (self.bottom + self.top) / 2

    def meets(self, other: Box) -> bool:
        """Whether both have a part in common."""
        across = self.left < other.right and other.left < self.right
        return across and self.bottom < other.top and other.bottom < self.top

    def is_in(self, other: Box) -> bool:
        """Whether nothing of it is outside another."""
        across = other.left <= self.left and self.right <= other.right
        return across and other.bottom <= self.bottom and self.top <= other.top


def line_boxes(start: tuple[float, float], end: tuple[float, float], half: float = 2.0) -> list[Box]:
    """A straight line as small boxes."""
    count = max(2, int(max(abs(end[0] - start[0]), abs(end[1] - start[1])) / 6))
    points = [
        tuple(begin + (last - begin) * number / count for begin, last in zip(start, end, strict=True))
        for number in range(count + 1)
    ]
    return [Box(x - half, y - half, x + half, y + half) for x, y in points]


def text_box(left: float, middle: float, text: str) -> Box:
    """A line of text, as wide as it is on average."""
    return Box(left, middle - LINE / 2, left + LETTER * len(text), middle + LINE / 2)


def put_names(axes: Axes, marks: Sequence[tuple[str, Box]], obstacles: Sequence[Box]) -> None:
    """Write a name for each mark, those high up first; one for which there is no room is left out."""
    box = axes.get_window_extent()
    inside = Box(box.x0 + 2, box.y0 + 2, box.x1 + 2, box.y1)
    taken = [*obstacles, *(mark for _, mark in marks)]
    for name, mark in sorted(marks, key=lambda each: -each[1].top):
        place = next((each for each in _places(name, mark, inside) if not any(map(each.meets, taken))), None)
        if place is None:
            continue
        is_right = place.left > mark.middle[0]
        begin = (place.left if is_right else place.right, place.middle[1])
        taken += [place, *line_boxes(begin, mark.middle, 1.0)[2:-2]]
        _write(axes, name, mark, place, is_right)


def _places(name: str, mark: Box, inside: Box) -> Iterator[Box]:
    """Where a name could stand, the nearest places first."""
    width = LETTER * len(name)
    across = [(mark.right + AWAY, 0.0), (mark.left - AWAY - width, LEFTWARDS)]
    if mark.right + AWAY + width > inside.right:
        across.append((inside.right - width, AWAY))
    found = []
    for left, cost in across:
        for number in range(FARTHEST // STEP):
            for up in (-STEP * number, STEP * number):
                place = text_box(left, mark.middle[1] + up, name)
                if place.is_in(inside):
                    found.append((abs(up) + cost + (UPWARDS if up > 0 else 0.0), place))
    return (place for _, place in sorted(found, key=lambda each: each[0]))


def _write(axes: Axes, name: str, mark: Box, place: Box, is_right: bool) -> None:
    middle = axes.transData.inverted().transform(mark.middle)
    side = place.left if is_right else place.right
    offset = POINTS * (side - mark.middle[0]), POINTS * (place.middle[1] - mark.middle[1])
    axes.annotate(
        name, tuple(middle), textcoords="offset points", xytext=offset, ha="left" if is_right else "right", va="center",
        color=INK, fontsize=8.5, arrowprops={**LEADER, "relpos": (0.0 if is_right else 1.0, 0.5)},
    )  # fmt: skip
