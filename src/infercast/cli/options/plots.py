"""Files with a picture or a table of many runs."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infercast.cli.outputs import command_line, of_file
from infercast.errors import InputError
from infercast.report.files import check_writable, today, write_whole

if TYPE_CHECKING:
    from infercast.report.page.plot import Plot as Picture

of_axis = partial(typer.Option, rich_help_panel="What changes")
SUFFIXES = (".png", ".svg", ".html", ".htm")

Plot = Annotated[
    Path | None, of_file("--plot", metavar="FILE", help="Also draw it: .png, .svg or a page (.html); needs matplotlib.")
]
Csv = Annotated[Path | None, of_file("--csv", metavar="FILE", help="Also write the rows as a table (.csv).")]


def check_files(plot: Path | None, *tables: tuple[str, Path | None]) -> None:
    """Refuse files that could not be written, before a long run and not after it; ``tables``: options with theirs."""
    if plot is not None:
        check_writable(plot, "--plot", SUFFIXES)
        if find_spec("matplotlib") is None:
            raise InputError("--plot needs matplotlib: pip install 'infercast[report]'")
    for option, path in tables:
        if path is not None:
            check_writable(path, option, (".csv",))


def write_plot(path: Path, picture: Picture) -> None:
    """A picture in the format that the name of its file asks for."""
    if path.suffix == ".png":
        picture.write_png(path)
    elif path.suffix == ".svg":
        write_whole(path, [picture.svg()])
    else:
        write_whole(path, [picture.page(command_line("--plot", "--csv", "--export-autoscaler"), today())])
