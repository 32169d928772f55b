"""Figures as SVG for a page of light and dark: text stays text, colours are names that the page gives a value to."""

from __future__ import annotations

import re
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

# Colours that nothing else has, each in place of a variable of the page's style sheet.
INK, MUTED, GRID, PAPER = "#0a0a01", "#0a0a02", "#0a0a03", "#0a0a04"
SERIES = tuple(f"#0a0b{number:02x}" for number in range(10))
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    **{colour: f"s{number}" for number, colour in enumerate(SERIES)},
}
STYLE = Path(__file__).parents[1] / "page.mplstyle"


class Tips:
    """Texts that a browser shows over a part of a figure."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def put(self, artist: Artist, text: str) -> None:
        """Say something about a part."""
        artist.set_gid(f"tip-{len(self._texts)}")
        self._texts.append(text)

    def write(self, svg: str) -> str:
        """Put the texts where their parts are."""
        return re.sub(
            r'<g id="tip-(\d+)">', lambda found: f"<g><title>{escape(self._texts[int(found[1])])}</title>", svg
        )


def inline_svg(figure: Figure, name: str, description: str, tips: Tips) -> str:
    """A figure as an element of a page; the same figure gives the same text."""
    import matplotlib as mpl  # noqa: PLC0415 - only those who draw need it

    text = StringIO()
    with mpl.rc_context({"svg.hashsalt": name}, STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = tips.write(text.getvalue()[text.getvalue().index("<svg") :])
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[A-Za-z0-9_.]+"/>\s*', "", svg)
    svg = re.sub(r'<g id="[A-Za-z0-9_.]+">', "<g>", svg)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"#0a0[ab][0-9a-f]{2}", lambda found: f"var(--{VARIABLES[found[0]]})", svg)
    svg = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", svg, count=1)
    label = f'<svg role="img" aria-label="{escape(description, quote=True)}" class="chart" id="chart-{name}"'
    return svg.replace("<svg", label, 1)
