"""``infercast report`` and ``infercast reproduce``: saved runs, and papers' figures, as tables and on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infercast.cli.options import with_options
from infercast.cli.outputs import Form, check_page, command_line, print_result, stages_bar
from infercast.errors import InputError
from infercast.forecast.option_table import Option
from infercast.report.files import write_whole
from infercast.report.saved_runs import read_runs, render_several, several_dict


@with_options(
    Option("runs", list[Path], "Runs saved with --json; the others are compared with the first.", ...,
           metavar="RUN.json ...", argument=True),
    Option("out", Path, "Also write the comparison as one HTML page.", panel="Files"),
)  # fmt: skip
def report_command(*, runs: list[Path], out: Path | None, form: Form, **_: Any) -> None:
    check_page(out, "--out")
    found = read_runs(runs)
    if len(found) < 2:
        raise InputError(f"{runs[0]} holds one run; give two files or more to compare")
    if out is not None:
        from infercast.report.page.html import several_page  # noqa: PLC0415 - it loads matplotlib

        write_whole(out, [several_page(found, command_line("--out"))])
    print_result(form, several_dict, render_several, found, rows="rows")


@with_options(
    Option("paper", str, "pm2lat, ksight, synperf or apex; default: the claims of all.", metavar="[PAPER]",
           argument=True),
    Option("figure", str, "One of its figures.", metavar="[FIGURE]", argument=True),
    Option("html", Path, "Also write all figures of the paper, or of all papers, as one HTML page.", panel="Files"),
)  # fmt: skip
def reproduce_command(*, paper: str | None, figure: str | None, html: Path | None, form: Form, **_: Any) -> None:
    from infercast.reproduce import show  # noqa: PLC0415 - saved runs are compared without
    from infercast.reproduce.papers import paper_named, papers, table_of  # noqa: PLC0415

    chosen = [paper_named(paper)] if paper is not None else [*papers().values()]
    shown = chosen[0].figure(figure) if figure is not None else None
    if html is not None:
        check_page(html, "--html")
        write_whole(html, [show.page(chosen, command_line("--html"))])
    if shown is not None:
        print_result(form, show.figure_dict, show.render_figure, shown, rows="rows")
        return
    with stages_bar() as tell:
        for name in dict.fromkeys(part[0] for each in chosen for claim in each.claims for part in claim.ours):
            if tell is not None:
                tell(f"computing {name}")
            table_of(name)
    if paper is None:
        print_result(form, show.papers_dict, show.render_papers, chosen, rows="claims")
    else:
        print_result(form, show.paper_dict, show.render_in_full, chosen[0], rows="claims", brief=show.render_paper)
