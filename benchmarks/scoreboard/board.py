"""The scoreboard, all of it: simulate every published run, and write the record, the page and its pictures.

    python benchmarks/scoreboard/board.py RUNS.csv [--requests FOLDER] [--lines FILE.json] [--against OLD.json]

``--lines`` takes what run.py wrote instead of simulating again, and may be of one grade alone. Pictures need
matplotlib; without it they stay as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from pathlib import Path

from against import differences
from page import page_of, worst_of
from record import read_record, record_of, write_record
from simulate import results

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
IMAGES = HERE.parents[1] / "docs" / "images"


def main() -> None:
    """Write everything that the repository keeps of a board."""
    parser = argparse.ArgumentParser(description="Write the scoreboard of published runs.")
    parser.add_argument("table", type=Path, metavar="RUNS.csv")
    parser.add_argument("--requests", type=Path, help="a folder with publishers' own requests.jsonl")
    parser.add_argument("--lines", type=Path, help="lines of JSON that run.py wrote, in place of simulating")
    parser.add_argument("--against", type=Path, help="another record, to say what moved")
    parser.add_argument("--record", type=Path, default=HERE / "results.json")
    asked = parser.parse_args()
    if asked.lines is None:
        lines = list(results(asked.table, lambda *_: True, requests=asked.requests))
    else:
        lines = [json.loads(line) for line in asked.lines.read_text(encoding="utf-8").splitlines()]
    old = None if asked.against is None else read_record(asked.against)
    record = record_of(lines)
    write_record(asked.record, record)
    explanations = tomllib.loads((HERE / "explanations.toml").read_text(encoding="utf-8"))
    causes = (HERE / "causes.md").read_text(encoding="utf-8")
    (RESULTS / "scoreboard.md").write_text(page_of(record, explanations, causes), encoding="utf-8")
    try:
        from plots import draw  # noqa: PLC0415 - matplotlib may be missing

        draw(record, IMAGES)
    except ModuleNotFoundError as missing:
        print(f"no pictures: {missing}", file=sys.stderr)
    for key in worst_of(record["runs"]):
        if key not in explanations:
            print(f"no explanation of {key}", file=sys.stderr)
    for line in differences(old, record) if old is not None else ():
        print(line)


if __name__ == "__main__":
    main()
