"""What of the errors under load is the machine's: each file's loads again at the host's speed that its lightest shows.

    python benchmarks/accuracy/own_hosts.py [RUNS.json.gz ...]

Machines of one kind differ in how fast the thread is that plans steps. What is left at the speed that the lightest load
of a file shows is not the machine's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from infercast.forecast.intervals import slowed
from infercast.lab.validate.compare import (
    PREFIX,
    Comparison,
    Errors,
    deployment_of,
    errors_of,
    load_class,
    measured_summary,
    summary_of,
)
from infercast.lab.validate.measured import MeasuredFile, MeasuredRun, read_measured, shipped_runs
from infercast.serve import Replica, simulate

FACTORS: tuple[float, ...] = tuple(np.geomspace(0.6, 1.8, 12).tolist())
"""How many times longer than on the bundled host everything may take on a machine; ours differ by less."""
TTFT_P50, TPOT_P50 = 0, 3


class OnOwnHost(NamedTuple):
    """A run where the host's speed is known from another run of its file."""

    ttft_p50: Comparison
    tpot_p50: Comparison


def on_own_hosts(files: Sequence[MeasuredFile]) -> dict[str, list[OnOwnHost]]:
    """By class of load, runs of files with a lighter load to take the host's speed from."""
    found: dict[str, list[OnOwnHost]] = {}
    for measured in files:
        replica, loaded = deployment_of(measured, None, None).replica(), list[tuple[Replica, MeasuredRun]]()
        for run in measured.runs:
            before = replace(replica, first_uses=None if replica.first_uses is None else replica.first_uses.copy())
            simulate(replica, run.workload)
            if load_class(run) is not None:
                loaded.append((before, run))
        for (_, run), own in zip(loaded, on_own_host(loaded), strict=True):
            if own is not None:
                found.setdefault(str(load_class(run)), []).append(own)
    return found


def on_own_host(runs: Sequence[tuple[Replica, MeasuredRun]]) -> list[OnOwnHost | None]:
    """Loaded runs of one file, each with its engine as it was before, at the host's speed that the lightest shows."""
    if len(runs) < 2:
        return [None] * len(runs)
    lightest = min(range(len(runs)), key=lambda index: (runs[index][1].kind == PREFIX, runs[index][1].rate))
    factor = _host_factor(*runs[lightest])
    return [None if index == lightest else _compare_at_load(factor, *each) for index, each in enumerate(runs)]


def _host_factor(replica: Replica, run: MeasuredRun) -> float:
    """How many times longer the host takes for the medians of a run to come out as they were measured."""

    def distance(factor: float) -> float:
        pair = _compare_at_load(factor, replica, run)
        return abs(float(np.log1p(pair.ttft_p50.error))) + abs(float(np.log1p(pair.tpot_p50.error)))

    return min(FACTORS, key=distance)


def _compare_at_load(factor: float, replica: Replica, run: MeasuredRun) -> OnOwnHost:
    measured, predicted = measured_summary(run), summary_of(simulate(slowed(replica, host=factor), run.workload))
    return OnOwnHost(*(Comparison(float(measured[at]), float(predicted[at])) for at in (TTFT_P50, TPOT_P50)))


def main(paths: list[Path]) -> None:
    print("| load | runs | TTFT p50: median | mean | p90 | bias | TPOT p50: median | mean | p90 | bias |")
    print("| --- |" + " --: |" * 9)
    for name, runs in on_own_hosts([read_measured(path) for path in paths or shipped_runs()]).items():
        pairs = errors_of(run.ttft_p50 for run in runs), errors_of(run.tpot_p50 for run in runs)
        cells = [f"{100 * value:+.1f} %" for errors in pairs if isinstance(errors, Errors) for value in errors]
        print(f"| {name} | {len(runs)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
