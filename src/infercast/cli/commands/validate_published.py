"""``infercast validate TABLE.csv``: forecasts held against published runs."""

from __future__ import annotations

from pathlib import Path

from infercast.cli.options.printed import print_json
from infercast.cli.progress import runs_bar
from infercast.report.layout import show
from infercast.report.validation.published import published_dict, render_published
from infercast.validate.published.compare import compare_published
from infercast.validate.published.table import read_published


def validate_published(files: list[Path], *, predictor: str, host: Path | None, as_json: bool) -> None:
    """Simulate every run of the tables and print measured against predicted values."""
    runs = [run for path in files for run in read_published(path)]
    with runs_bar("simulating", len(runs)) as progress:
        compared = compare_published(runs, predictor=predictor, host=host, progress=progress)
    if as_json:
        print_json(published_dict(compared))
    else:
        show(*render_published(compared))
