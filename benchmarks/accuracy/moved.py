"""How forecasts moved between two revisions: two outputs of ``infercast validate --json``, run by run.

infercast validate FILE... --json > before.json      (at the first revision)
infercast validate FILE... --json > after.json       (at the second)
python benchmarks/accuracy/moved.py before.json after.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

QUANTITIES = ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "output_tokens_per_s")
LEAST = 0.005
"""Smaller moves are not worth a line."""


def main(before_path: str, after_path: str) -> None:
    """Print every run that moved, then the medians of both sides."""
    before, after = (_runs(Path(path)) for path in (before_path, after_path))
    common = [key for key in before if key in after]
    for only, where in ((before.keys() - after.keys(), before_path), (after.keys() - before.keys(), after_path)):
        for file, label in sorted(only):
            print(f"only in {where}: {file} {label}")
    for key in common:
        moves = [_move(before[key].get(name), after[key].get(name)) for name in QUANTITIES]
        if any(moves):
            print(f"{key[0]:30} {key[1]:22}", *(f"{move:>18}" for move in moves))
    print(f"{'median absolute error':53}", *(f"{name:>18}" for name in QUANTITIES))
    for title, runs in (("before", before), ("after", after)):
        print(f"{title:53}", *(f"{_median(runs, common, name):>18}" for name in QUANTITIES))


def _runs(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    return {(run["file"], run["label"]): run for run in document["runs"]}


def _move(before: dict[str, float] | None, after: dict[str, float] | None) -> str:
    """Both errors, where the prediction changed."""
    if before is None or after is None or abs(after["predicted"] / before["predicted"] - 1) < LEAST:
        return ""
    errors = (100 * (pair["predicted"] / pair["measured"] - 1) for pair in (before, after))
    return " > ".join(f"{error:+.1f} %" for error in errors)


def _median(runs: dict[tuple[str, str], dict[str, Any]], keys: list[tuple[str, str]], name: str) -> str:
    errors = [pair["ape"] for key in keys if (pair := runs[key].get(name)) is not None]
    return f"{100 * median(errors):.1f} %" if errors else "-"


if __name__ == "__main__":
    main(*sys.argv[1:])
