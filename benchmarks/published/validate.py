"""Forecasts held against published runs.

    python benchmarks/published/validate.py RUNS.csv... [--predictor learned] [--host HOST] [--plot PLOT.svg] [--json]

A table has one row a run (README.md has the columns).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.cli.outputs import print_json, runs_bar
from infercast.errors import InfercastError
from infercast.report.files import write_whole
from infercast.report.terminal import show
from published.compare import compare_published
from published.promises import reliability_svg
from published.report import promised, published_dict, render_published
from published.table import read_published


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--predictor", default="learned")
    parser.add_argument("--host")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        runs = [run for path in given.files for run in read_published(path)]
        with runs_bar("simulating", len(runs)) as progress:
            compared = compare_published(runs, predictor=given.predictor, host=given.host, progress=progress)
    except InfercastError as error:
        parser.exit(2, f"{error}\n")
    if given.plot is not None:
        write_whole(given.plot, [reliability_svg([promised(compared)])])
    if given.json:
        print_json(published_dict(compared))
    else:
        show(*render_published(compared))


if __name__ == "__main__":
    main()
