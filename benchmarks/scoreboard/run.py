"""Published runs held against forecasts.

    python benchmarks/scoreboard/run.py RUNS.csv [--every N] [--source WORD] [--gpu NAME] [--out FILE.json]

RUNS.csv is a table of collected runs (benchmarks/published/README.md). Every run that is chosen becomes a line of
JSON: what it was, measured and predicted values with the ends of 80 % intervals, what was assumed, or the reason why
it is not simulated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from simulate import results


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description="Hold published runs against forecasts.")
    parser.add_argument("table", type=Path, metavar="RUNS.csv")
    parser.add_argument("--requests", type=Path, help="a folder with publishers' own requests.jsonl")
    parser.add_argument("--every", type=int, default=1, help="take one row in so many")
    parser.add_argument("--source", default="", help="a word of the source")
    parser.add_argument("--gpu", default="", help="our name of the GPU")
    parser.add_argument("--engine", default="")
    parser.add_argument("--grade", default="", help="A, B, As or Bs")
    parser.add_argument("--model", default="", help="a word of the model's name")
    parser.add_argument("--lines", default="", help="numbers of lines between commas")
    parser.add_argument("--out", type=Path, help="lines of JSON; standard output otherwise")
    return parser


def main() -> None:
    """Write a line for every run."""
    asked = arguments().parse_args()
    lines = {int(number) for number in asked.lines.split(",") if number}

    def chosen(line: int, row: Mapping[str, str]) -> bool:
        return (
            (line - 2) % asked.every == 0
            and asked.source in row["source_repo"]
            and (not asked.gpu or row["infercast_gpu"] == asked.gpu or row["gpu"] == asked.gpu)
            and asked.engine in row["engine"]
            and (not asked.grade or row["quality"] == asked.grade)
            and asked.model.lower() in row["model"].lower()
            and (not lines or line in lines)
        )

    out = sys.stdout if asked.out is None else asked.out.open("w", encoding="utf-8")
    with out:
        for result in results(asked.table, chosen, requests=asked.requests):
            print(json.dumps(result), file=out, flush=True)


if __name__ == "__main__":
    main()
