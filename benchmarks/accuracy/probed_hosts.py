"""How far runs are off without and with a probe of their machine, and with the powers of the other machines.

    python benchmarks/accuracy/probed_hosts.py MEASURED.json.gz...

Every file has its machine's probes in it or beside it (docs/measure.md#the-host). Powers of a probe's figures
(data/hosts/probe.toml) are tried on a small grid: each machine has those that are best for all others.
"""

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from infercast.bundled import read_data
from infercast.hardware.host import PROBE
from infercast.lab.validate.compare import RunComparison, Validation, validate
from infercast.lab.validate.measured import read_measured

QUANTITIES = ("ttft_p50", "tpot_p50")
GRID = tuple(product((0.15, 0.3, 0.45), (0.0, 0.1, 0.2), (0.35, 0.7, 1.0)))


def print_errors(title: str, runs: Sequence[RunComparison]) -> None:
    cells = []
    for quantity in QUANTITIES:
        pairs = [getattr(run, quantity) for run in runs]
        errors = np.array([pair.ape for pair in pairs])
        inside = np.mean([pair.is_inside for pair in pairs])
        cells.append(f"{errors.mean():6.1%} {np.median(errors):6.1%} {np.quantile(errors, 0.9):6.1%} {inside:4.0%}")
    print(f"{title:24} {len(runs):3}  " + "   ".join(cells))


def cost(found: Validation, file: str) -> float:
    """The mean absolute logarithm of predicted over measured medians; shared prefixes are off on any host."""
    runs = [run for run in found.runs if run.file == file and run.kind != "prefix"]
    return float(np.mean([abs(np.log1p(getattr(run, name).error)) for run in runs for name in QUANTITIES]))


def main(*paths: str) -> None:
    files = [read_measured(Path(path)) for path in paths]
    names = [each.path.name for each in files]
    print(f"{'':24} runs TTFT p50: mean, median, p90, inside; TPOT p50: the same")
    for title, found in (("bundled host", validate(files, host="measured")), ("probed", validate(files))):
        print_errors(title, found.runs)
        for name in names:
            print_errors(f"  {name[-20:]}", [run for run in found.runs if run.file == name])
    tried = {}
    for python, python_too, launch in GRID:
        read_data(PROBE)["powers"] |= {"python": {"python": python}, "launch": {"python": python_too, "launch": launch}}
        tried[python, python_too, launch] = validate(files)
    left_out: list[RunComparison] = []
    for name in names:
        others = [each for each in names if each != name]
        best = min(tried, key=lambda powers: sum(cost(tried[powers], each) for each in others))
        print(f"powers without {name}: {best}")
        left_out += [run for run in tried[best].runs if run.file == name]
    print_errors("probed, left out", left_out)


if __name__ == "__main__":
    main(*sys.argv[1:])
