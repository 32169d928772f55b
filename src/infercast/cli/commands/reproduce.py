"""``infercast reproduce``: papers' headline figures beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infercast.cli.options import with_options
from infercast.cli.outputs import Form, command_line, print_result, stages_bar
from infercast.errors import need
from infercast.forecast.option_table import Option
from infercast.report.files import check_writable, today, write_whole
from infercast.reproduce import show
from infercast.reproduce.papers import paper_named, papers, table_of


@with_options(
    Option("paper", str, "pm2lat, ksight, synperf or apex; default: the claims of all.", metavar="[PAPER]",
           argument=True),
    Option("figure", str, "One of its figures.", metavar="[FIGURE]", argument=True),
    Option("html", Path, "Also write all figures of the paper, or of all papers, as one HTML page.", panel="Files"),
)  # fmt: skip
def command(*, paper: str | None, figure: str | None, html: Path | None, form: Form, **_: Any) -> None:
    chosen = [paper_named(paper)] if paper is not None else [*papers().values()]
    shown = chosen[0].figure(figure) if figure is not None else None
    if html is not None:
        check_writable(html, "--html", (".html", ".htm"))
        today()  # a date that is none is refused now, too
        need("--html", "report")
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
