"""One figure as a picture of its own: PNG, SVG, or a page with tables below it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from infercast.errors import InputError
from infercast.report.page.charts import WIDTH, draw
from infercast.report.page.svg import STYLE, VARIABLES, Tips

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing is loaded from anywhere, and a browser sees to it."""
DOTS_PER_INCH = 160
FLAGS = re.DOTALL | re.MULTILINE


class Plot(NamedTuple):
    """A figure, and what is said around it."""

    name: str
    title: str
    lead: str
    height: float
    paint: Callable[[Any, Tips], None]
    """Draws on an empty figure, in the colours of `svg`."""
    below: str
    """HTML of what follows the figure on a page."""
    version: str

    def chart(self) -> str:
        """An element of a page."""
        return draw(self.name, self.title, self.height, self.paint)

    def svg(self) -> str:
        """A file of its own, in light and dark as the viewer has it."""
        found = re.search(r"<svg.*</svg>", self.chart(), re.DOTALL)
        assert found is not None
        colours = "".join(re.findall(r"^(?::root|@media \(prefers-color-scheme: dark\)) \{.*?^\}", _style(), FLAGS))
        style = f"<style>{colours} svg {{ background: var(--paper); font-family: sans-serif; }}</style>"
        return re.sub(r"(<svg[^>]*>)", lambda tag: tag[1] + style, found[0], count=1) + "\n"

    def page(self, command: str) -> str:
        """A page without script or network; ``command`` is what it was made by."""
        return "\n".join(
            [
                "<!doctype html>",
                '<html lang="en"><head><meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f"<title>{escape(self.title)} - infercast</title>",
                f"<style>\n{_style()}</style></head><body>",
                f'<header><h1>{escape(self.title)}</h1><p class="lead">{escape(self.lead)}</p></header><main>',
                self.chart(),
                self.below,
                f"</main><footer>A forecast by infercast {escape(self.version)}; nothing on this page was measured.",
                f"<p>Made by <code>{escape(command)}</code></p></footer>",
                "</body></html>\n",
            ]
        )

    def write_png(self, path: Path) -> None:
        """In the colours of light pages; the file appears whole or not at all."""
        import matplotlib as mpl  # noqa: PLC0415 - only those who draw need it
        from matplotlib.figure import Figure  # noqa: PLC0415

        colours = _light_colours()
        style = mpl.rc_params_from_file(STYLE, use_default_template=False)
        named = {key: _coloured(value, colours) for key, value in style.items()}
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        with mpl.rc_context(named):
            figure = Figure(figsize=(WIDTH, self.height))
            self.paint(figure, Tips())
            for artist in figure.findobj():
                _recolour(artist, colours)
            figure.set_facecolor(colours["paper"])
            try:
                figure.savefig(temporary, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
                temporary.replace(path)
            except OSError as problem:
                temporary.unlink(missing_ok=True)
                raise InputError(f"{path} cannot be written: {problem.strerror or problem}") from None


def _style() -> str:
    return resources.files("infercast").joinpath("report/page.css").read_text(encoding="utf-8")


def _light_colours() -> dict[str, str]:
    """The variables of the style sheet's first block."""
    block = _style().partition("}")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def _coloured(value: Any, colours: dict[str, str]) -> Any:
    """A value of a style with the colour that its placeholder stands for."""
    if not isinstance(value, str):
        return value
    name = VARIABLES.get(f"#{value.lstrip('#')}")
    return value if name is None else colours[name]


def _recolour(artist: Any, colours: dict[str, str]) -> None:
    """Give a part of a figure the colours that its placeholders stand for."""
    from matplotlib.colors import to_hex, to_rgba  # noqa: PLC0415 - loaded already

    def translated(colour: Any) -> Any:
        name = VARIABLES.get(to_hex(colour))
        return colour if name is None else to_rgba(colours[name], to_rgba(colour)[3])

    for part in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
        get, put = getattr(artist, f"get_{part}", None), getattr(artist, f"set_{part}", None)
        if get is None or put is None:
            continue
        colour = get()
        if isinstance(colour, str) and colour in ("none", "auto", "inherit"):
            continue
        shape = getattr(colour, "shape", ())
        if len(shape) == 2:  # one for each of many parts
            put([translated(each) for each in colour])
        elif colour is not None:
            put(translated(colour))
