"""Kernel estimates of infercast and of seven baselines on the same hidden rows.

    pip install 'infercast[fit]' && python benchmarks/accuracy/run.py DATA --out kernels.md --json kernels.json

DATA is a folder of measured kernels as `infercast fit` reads it, with rows of A100, L40S, H100, H200 and B200. With
--only some parts are run again; the others are taken from the file of --json, if it is there.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ours
from neighbours import Neighbours
from neural import PipeNetwork, TileNetwork
from points import read_points
from report import OURS, Results, markdown, statistics
from roofline_baselines import Plain, Scaled, Waves
from splits import FAMILIES, MEASURED, UNSEEN, columns_of, divide
from throughput import Throughput

PARTS = ("baselines", "measured", "unseen")
BASELINES: dict[str, Callable[..., Any]] = {
    "roofline": Plain,
    "roofline, whole waves": Waves,
    "roofline x a factor": Scaled,
    "nearest shapes": Neighbours,
    "throughput curves": Throughput,
    "tile network": TileNetwork,
    "pipe network": PipeNetwork,
}
WITHOUT_COLLECTIVES = ("tile network", "pipe network")
started = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--out", type=Path, help="markdown to write; always printed")
    parser.add_argument("--json", type=Path, help="errors to write, and to read those of parts that are not run")
    options = parser.parse_args()
    results: Results = defaultdict(dict)
    if options.json and options.json.exists():
        results |= json.loads(options.json.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        for _ in run(options.data, Path(folder), options.only, results):
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text = markdown(results)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    tell("done")


def run(data: Path, folders: Path, parts: tuple[str, ...], results: Results) -> Iterator[None]:
    """Fill ``results``; stops after each piece of them, so that a long run can be broken off."""
    if "baselines" in parts:
        for family in FAMILIES:
            score_baselines(data, family, results)
            yield
    if set(parts) - {"baselines"}:
        ours.tables_by_gpu(data, folders)
    if "measured" in parts:
        for split in MEASURED:
            tell(f"ours: {split.name}")
            results[split.name][OURS] = ours.on_hidden_shapes(folders, split.target)
            yield
    if "unseen" in parts:
        for name, values in ours.on_hidden_gpus(folders, tell):
            results[name][OURS] = values
            yield


def score_baselines(data: Path, family: str, results: Results) -> None:
    splits = (*MEASURED, *UNSEEN)
    points = read_points(data, family, sorted({gpu for split in splits for gpu in (*split.sources, split.target)}))
    for split in splits:
        known, hidden = divide(split, points)
        for name, baseline in BASELINES.items():
            if family == "collective" and name in WITHOUT_COLLECTIVES:
                continue
            tell(f"{name}: {split.name}, {family}")
            predictor = baseline(known, family)
            measured, predicted = defaultdict(list), defaultdict(list)
            for kernel, rows in hidden.items():
                seconds = predictor.seconds(kernel, rows, split.target)
                for column, chosen in columns_of(family, kernel, rows):
                    measured[column].append(rows.seconds[chosen])
                    predicted[column].append(seconds[chosen])
            line = results[split.name].setdefault(name, {})
            line |= {column: statistics(measured[column], predicted[column]) for column in measured}


def tell(what: str) -> None:
    print(f"{time.monotonic() - started:6.0f} s  {what}", file=sys.stderr)


if __name__ == "__main__":
    main()
