"""``infercast validate TABLE.csv``: forecasts held against published runs."""

from __future__ import annotations

from pathlib import Path

from infercast.cli.options.printed import Form, print_result
from infercast.cli.progress import runs_bar
from infercast.report.files import write_whole
from infercast.report.validation.published import published_dict, render_published
from infercast.report.validation.reliability_svg import reliability_svg
from infercast.validate.published.compare import compare_published
from infercast.validate.published.table import read_published
from infercast.validate.reliability import reliability_of_published


def validate_published(files: list[Path], *, predictor: str, host: Path | None, plot: Path | None, form: Form) -> None:
    """Simulate every run of the tables and print measured against predicted values."""
    runs = [run for path in files for run in read_published(path)]
    with runs_bar("simulating", len(runs)) as progress:
        compared = compare_published(runs, predictor=predictor, host=host, progress=progress)
    if plot is not None:
        write_whole(plot, [reliability_svg([reliability_of_published(compared)])])
    print_result(form, published_dict, render_published, compared, rows="runs")
