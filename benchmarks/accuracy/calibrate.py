"""How well one measured run of a deployment tells its other runs, by the runs that come with the package.

    python calibrate.py [--kinds poisson] [--every N] [FILE...]

Each run in turn is calibrated with, and the other runs of the same file are forecast with what it told: at other rates,
with other requests. Printed are medians and means of absolute errors without the calibration and with it, how many
runs are further off with it, and how often measured values lie in their 80 % intervals. Runs of a file follow each
other on one engine, so every run is replayed at the state that it found the engine in.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from infercast.calibrate.learn import learned_of
from infercast.calibrate.replay import Point, Replay
from infercast.calibrate.result import QUANTITIES, RATE, Result
from infercast.calibrate.solve import prior_of, solve
from infercast.engines.deployment import Deployment
from infercast.forecast.calibration.record import Calibration, Fingerprint
from infercast.forecast.deploy import calibrated
from infercast.forecast.intervals.intervals import half_widths
from infercast.forecast.intervals.results import chance_in, results_of
from infercast.forecast.intervals.uncertainty import uncertainty_of
from infercast.forecast.latency import NAMES, percentiles
from infercast.forecast.system import system_of
from infercast.serve import Replica, simulate
from infercast.validate.compare import deployment_of
from infercast.validate.measured import MeasuredRun, read_measured, shipped_runs

SHOWN = ("ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95")


class Run(NamedTuple):
    """A measured run, with the engine as it found it."""

    label: str
    kind: str
    replay: Replay
    replica: Replica


def seen_in(run: MeasuredRun) -> dict[str, float]:
    """What a load generator would have said of it."""
    seen = {RATE: run.output_tokens_per_second}
    for latency, values in (("ttft", run.ttft), ("tpot", run.tpot)):
        if values.size:
            both = zip(NAMES, percentiles(values).values, strict=True)
            seen |= {f"{latency}_{name}": value for name, value in both}
    return seen


def runs_of(path: Path, kinds: list[str]) -> tuple[Deployment, list[Run]]:
    """The engine of a file, and its runs of some kinds."""
    measured = read_measured(path)
    deployment = deployment_of(measured, None, None)
    system = system_of(deployment)
    engine = deployment.replica(system.pools[0].timer, warmed_up=False)
    found = []
    for run in measured.runs:
        before = replace(engine, first_uses=deepcopy(engine.first_uses))
        simulate(engine, run.workload)
        if run.kind in kinds:
            at_start = system._replace(pools=(system.pools[0].of(before),))
            workload = replace(run.workload, rate=1.0) if "/s" in run.label else run.workload  # at some rate
            result = Result(path.name, "bundled", workload, seen_in(run), each={"ttft": run.ttft, "tpot": run.tpot})
            found.append(Run(run.label, run.kind, Replay(at_start, result), before))
    return deployment, found


class Row(NamedTuple):
    """One quantity of a run that was forecast with what another one told."""

    quantity: str
    before: float
    after: float
    inside_before: bool
    inside: bool


def rows_of(deployment: Deployment, runs: list[Run]) -> Iterator[tuple[str, str, Row]]:
    """Every run by every other."""
    for run in runs:
        solution = solve([run.replay], prior_of([run.replay], over_http=False))
        known = Calibration(Fingerprint.of(deployment), **learned_of(solution), results=())
        corrected = calibrated(deployment, known)
        for other in runs:
            if other is not run:
                yield from (
                    (run.label, other.label, row) for row in _compared(deployment, corrected, other, solution.point)
                )


def _compared(deployment: Deployment, corrected: Deployment, other: Run, point: Point) -> Iterator[Row]:
    replay = other.replay
    after = replay.at(point)
    plain = _widths(deployment, other.replica, other)
    ready = corrected.engine.replica(corrected, corrected.settings, corrected.timer(), True)
    width = _widths(corrected, replace(ready, first_uses=deepcopy(other.replica.first_uses)), other)
    for place, index in enumerate(replay.chosen):
        errors = replay.measured[place] - replay.estimated[place], replay.measured[place] - after[place]
        yield Row(
            QUANTITIES[index],
            *(float(abs(np.exp(-each) - 1)) for each in errors),
            bool(abs(errors[0]) <= plain[index]),
            bool(abs(errors[1]) <= width[index]),
        )


def _widths(deployment: Deployment, replica: Replica, run: Run) -> np.ndarray:
    workload = run.replay.result.workload
    record = simulate(replace(replica, first_uses=deepcopy(replica.first_uses)), workload)
    return half_widths(
        replica,
        uncertainty_of(deployment, record),
        lambda engine: results_of(simulate(engine, workload)),
        chance_in(record),
    )


def main() -> None:
    """Print a table for each engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--kinds", default="poisson", help="of runs: poisson, prefix, static; with commas")
    parser.add_argument("--every", type=int, default=1, help="one file in so many")
    parser.add_argument("--verbose", action="store_true")
    asked = parser.parse_args()
    engines = ("vllm", "sglang")
    files = asked.files or [path for engine in engines for path in shipped_runs(engine)]
    found: dict[str, dict[str, list[Row]]] = {engine: defaultdict(list) for engine in engines}
    pairs = dict.fromkeys(engines, 0)
    for path in files[:: asked.every]:
        deployment, runs = runs_of(path, asked.kinds.split(","))
        for one, other, row in rows_of(deployment, runs):
            family = deployment.engine.family
            pairs[family] += row.quantity == SHOWN[0]
            found[family][row.quantity].append(row)
            if asked.verbose:
                print(path.name, one, "->", other, row.quantity, f"{row.before:.1%} {row.after:.1%}", file=sys.stderr)
    print(
        "| engine | runs by another | quantity | median before | after | mean before | after | worse | inside | after |"
    )
    print("| --- | --: | --- | --: | --: | --: | --: | --: | --: | --: |")
    for engine, quantities in found.items():
        for name in SHOWN:
            rows = quantities[name]
            if rows:
                table = np.array([row[1:] for row in rows], dtype=float)
                worse = int((table[:, 1] > table[:, 0]).sum())
                cells = [
                    f"{100 * value:.1f} %" for value in (*np.median(table[:, :2], axis=0), *table[:, :2].mean(axis=0))
                ]
                inside = [f"{100 * value:.0f} %" for value in table[:, 2:].mean(axis=0)]
                print(f"| {engine} | {pairs[engine]} | {name} | {' | '.join(cells)} | {worse} | {' | '.join(inside)} |")


if __name__ == "__main__":
    main()
