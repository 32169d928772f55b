"""``infercast report``: several saved runs compared, as tables and on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infercast.cli.options import with_options
from infercast.cli.outputs import Form, command_line, print_result
from infercast.errors import InputError, need
from infercast.forecast.option_table import Option
from infercast.report.files import check_writable, today, write_whole
from infercast.report.saved_runs import read_runs, render_several, several_dict


@with_options(
    Option("runs", list[Path], "Runs saved with --json; the others are compared with the first.", ...,
           metavar="RUN.json ...", argument=True),
    Option("out", Path, "Also write the comparison as one HTML page.", panel="Files"),
)  # fmt: skip
def command(*, runs: list[Path], out: Path | None, form: Form, **_: Any) -> None:
    if out is not None:
        check_writable(out, "--out", (".html", ".htm"))
        today()  # a date that is none is refused now, too
        need("--out", "report")
    found = read_runs(runs)
    if len(found) < 2:
        raise InputError(f"{runs[0]} holds one run; give two files or more to compare")
    if out is not None:
        from infercast.report.page.html import several_page  # noqa: PLC0415 - it loads matplotlib

        write_whole(out, [several_page(found, command_line("--out"))])
    print_result(form, several_dict, render_several, found, rows="rows")
