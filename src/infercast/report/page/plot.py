"""One figure as a picture of its own: PNG, SVG, or a page with tables below it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from infercast.errors import InputError
from infercast.report.page.canvas import WIDTH, Paint, draw, drawn
from infercast.report.page.elements import Section
from infercast.report.page.shell import Content, Made, style_sheet, whole_page
from infercast.report.page.svg import STYLE, VARIABLES, Tips

DOTS_PER_INCH = 160
FLAGS = re.DOTALL | re.MULTILINE


class Plot(NamedTuple):
    """A figure, and what is said around it."""

    name: str
    title: str
    lead: str
    height: float
    phone_height: float
    paint: Paint
    sections: tuple[Section, ...]
    """What follows the figure on a page; the first has the figure in it."""
    caveats: tuple[str, ...]
    version: str
    top: str = ""
    """HTML below the title of a page."""

    def chart(self) -> str:
        """An element of a page."""
        return draw(self.name, self.title, self.height, self.paint, phone_height=self.phone_height)

    def svg(self) -> str:
        """A file of its own, in light and dark as the viewer has it."""
        figure = drawn(self.name, self.title, (WIDTH, self.height), self.paint)
        colours = re.findall(r"^(?::root|@media \(prefers-color-scheme: dark\)) \{.*?^\}", style_sheet(), FLAGS)
        style = f"<style>{''.join(colours)} svg {{ background: var(--paper); font-family: sans-serif; }}</style>"
        return re.sub(r"(<svg[^>]*>)", lambda tag: tag[1] + style, figure, count=1) + "\n"

    def page(self, command: str, date: str = "") -> str:
        """A page without script or network; ``command`` is what it was made by, ``date`` the day as in 2026-11-16."""
        first, *others = self.sections
        sections = [first._replace(body=self.chart() + first.body), *others]
        content = Content(self.title, self.lead, sections, self.caveats, self.top)
        return whole_page(content, Made(self.version, command, date))

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


def _light_colours() -> dict[str, str]:
    """The variables of the style sheet's first block."""
    block = style_sheet().partition("}")[0]
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
