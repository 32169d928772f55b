"""``infercast validate TABLE.csv``: forecasts held against published runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from infercast.cli import options
from infercast.report.layout import show
from infercast.report.published import published_dict, render_published
from infercast.validate.compare_published import PublishedComparison, compare_published
from infercast.validate.published import read_published


def validate_published(files: list[Path], *, predictor: str, host: Path | None, as_json: bool) -> None:
    """Simulate every run of the tables and print measured against predicted values."""
    runs = [run for path in files for run in read_published(path)]

    def compare(progress: Callable[[str], None] | None = None) -> tuple[PublishedComparison, ...]:
        return compare_published(runs, predictor=predictor, host=host, progress=progress)

    if sys.stderr.isatty() and not as_json:
        from rich.console import Console  # noqa: PLC0415 - only where a bar is shown
        from rich.progress import Progress  # noqa: PLC0415

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("simulating", total=len(runs))
            compared = compare(lambda label: bar.update(task, advance=1, description=label))
    else:
        compared = compare()
    if as_json:
        options.print_json(published_dict(compared))
    else:
        show(*render_published(compared))
