"""How often promises held against what was said of them, as a picture: plain SVG, the same bytes every time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import sqrt

from infercast.validate.promises import FEWEST
from infercast.validate.reliability import Reliability

PANEL, MARGIN, TOP, BOTTOM = 220, 52, 34, 48
"""Pixels: the side of a panel, the space to its left, above and below."""
TOLERANCE = 0.1
"""The grey band: ten points to either side."""
STYLE = (
    "text{font:12px sans-serif;fill:#333}.title{font-weight:bold}.grid{stroke:#ddd}.exact{stroke:#888}"
    ".band{fill:#eee}.line{fill:none;stroke:#1f6fb4;stroke-width:1.5}.point{fill:#1f6fb4;fill-opacity:.8}"
)


def reliability_svg(groups: Sequence[Reliability]) -> str:
    """A panel for each group of promises: what was said to the right, what came true upwards."""
    width, height = len(groups) * (PANEL + MARGIN) + 20, TOP + PANEL + BOTTOM
    panels = "\n".join(_panel(group, MARGIN + number * (PANEL + MARGIN)) for number, group in enumerate(groups))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="Share of promises that held, by the odds that were said">\n<style>{STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{panels}\n</svg>\n'
    )


def _panel(group: Reliability, left: float) -> str:
    def point(said: float, held: float) -> str:
        return f"{left + PANEL * said:.1f},{TOP + PANEL * (1 - held):.1f}"

    worst = "" if group.worst is None else f": at most {100 * group.worst:.1f} points off"
    band = [(0.0, 0.0), (0.0, TOLERANCE), (1 - TOLERANCE, 1.0), (1.0, 1.0), (1.0, 1 - TOLERANCE), (TOLERANCE, 0.0)]
    known = [bucket for bucket in group.buckets if bucket.off is not None]
    places = [(bucket, point(bucket.odds or 0.0, bucket.held or 0.0)) for bucket in known]
    most = max((bucket.count for bucket in known), default=1)
    marks = [
        f'<circle class="point" cx="{(place := text.split(","))[0]}" cy="{place[1]}" '
        f'r="{3 + 5 * sqrt(bucket.count / most):.1f}"><title>{bucket.count:,} promises: said '
        f"{100 * (bucket.odds or 0.0):.1f} %, held {100 * (bucket.held or 0.0):.1f} %</title></circle>"
        for bucket, text in places
    ]
    return "\n".join(
        [
            f'<text class="title" x="{left}" y="20">{escape(group.about + worst)}</text>',
            f'<polygon class="band" points="{" ".join(point(*corner) for corner in band)}"/>',
            *_axes(left),
            f'<polyline class="exact" points="{point(0, 0)} {point(1, 1)}"/>',
            f'<polyline class="line" points="{" ".join(text for _, text in places)}"/>',
            *marks,
            f'<text x="{left}" y="{TOP + PANEL + 38}">odds that were said (buckets of {FEWEST} or more)</text>',
        ]
    )


def _axes(left: float) -> list[str]:
    """Lines and numbers at every fifth."""
    found = []
    for number in range(0, 101, 20):
        across, down = left + PANEL * number / 100, TOP + PANEL * (1 - number / 100)
        found += [
            f'<path class="grid" d="M{across:.1f} {TOP}V{TOP + PANEL}M{left} {down:.1f}H{left + PANEL}"/>',
            f'<text x="{across:.1f}" y="{TOP + PANEL + 18}" text-anchor="middle">{number}</text>',
            f'<text x="{left - 6}" y="{down + 4:.1f}" text-anchor="end">{number} %</text>',
        ]
    return found
