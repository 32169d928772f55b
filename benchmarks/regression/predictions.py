"""Recompute the watched predictions and say what moved since predictions.txt was written.

python benchmarks/regression/predictions.py              what moved; exit code 1 if anything did
python benchmarks/regression/predictions.py --write      and make it what is expected from now on
python benchmarks/regression/predictions.py --only serve    only names that contain this
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from cases import Case, read_cases
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import Predictor
from moves import MOST_ROWS, describe, is_same, moves_between
from values import Value, values_of

EXPECTED = Path(__file__).with_name("predictions.txt")
BETWEEN = " = "


def compute(cases: Iterable[Case], predictor: Predictor | None = None) -> dict[str, Value]:
    """All predictions by name."""
    predictor = predictor or make_predictor()
    return {f"{case.text}: {name}": value for case in cases for name, value in values_of(case, predictor).items()}


def read_expected(path: Path = EXPECTED) -> dict[str, Value]:
    """What was predicted when the file was written."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {name: json.loads(value) for name, value in (line.split(BETWEEN, 1) for line in lines)}


def write_expected(values: Mapping[str, Value], path: Path = EXPECTED) -> None:
    """One a line, sorted; a number that differs by rounding alone stays as it was, so that a diff shows moves only."""
    before = read_expected(path) if path.exists() else {}
    kept = {
        name: before[name] if name in before and is_same(before[name], now) else now for name, now in values.items()
    }
    lines = [f"{name}{BETWEEN}{json.dumps(kept[name], ensure_ascii=False)}\n" for name in sorted(kept)]
    path.write_text("".join(lines), encoding="utf-8")


def main(words: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Say which predictions moved since predictions.txt was written.")
    parser.add_argument("--write", action="store_true", help="write what is predicted now to predictions.txt")
    parser.add_argument("--only", metavar="TEXT", default="", help="only cases whose text contains this")
    asked = parser.parse_args(words)
    if asked.write and asked.only:
        parser.error("--write writes all predictions; leave out --only")
    cases = [case for case in read_cases() if asked.only in case.text]
    now = compute(cases)
    texts = {case.text for case in cases}
    before = read_expected() if EXPECTED.exists() else {}
    known = {name: value for name, value in before.items() if not asked.only or name.rpartition(": ")[0] in texts}
    moved = moves_between(known, now)
    print(describe(moved, known, most=len(moved) if asked.only else MOST_ROWS))
    if asked.write:
        write_expected(now)
        print(f"wrote {len(now)} predictions of {len(cases)} cases to {EXPECTED}")
    return 0 if asked.write or not moved else 1


if __name__ == "__main__":
    sys.exit(main())
