"""How well one measured run of a deployment tells its other runs, by the runs that come with the package.

    python calibrate.py [--kinds poisson] [--every N] [FILE...]

Each run in turn is calibrated with, and the other runs of the same file are forecast with what it told: at other rates,
with other requests. Printed are medians and means of absolute errors without the calibration and with it, how many
runs are further off with it, and how often measured values lie in their 80 % intervals. *By request* is the median over
requests of measured over forecast, on which the luck of ranks has no part. Runs of a file follow each other on one
engine, so every run is replayed at the state that it found the engine in.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.calibration.learn import Point, Replay, learned_of, prior_of, solve
from infercast.calibration.result import QUANTITIES, RATE, Result
from infercast.engines.base import Deployment
from infercast.forecast.calibration import Calibration, Fingerprint, calibrated
from infercast.forecast.intervals import half_widths
from infercast.forecast.slo import NAMES, percentiles
from infercast.forecast.system import system_of
from infercast.forecast.uncertainty import chance_in, results_of, uncertainty_of
from infercast.lab.validate.compare import deployment_of
from infercast.lab.validate.measured import MeasuredRun, read_measured, shipped_runs
from infercast.serve import Replica, simulate

SHOWN = ("ttft_p50", "ttft_mean", "ttft by request", "ttft_p95", "tpot_p50", "tpot_mean", "tpot by request")


class Run(NamedTuple):
    """A measured run, with the engine as it found it."""

    measured: MeasuredRun
    replay: Replay
    replica: Replica


class Row(NamedTuple):
    """One quantity of a run that was forecast with what another one told."""

    quantity: str
    before: float
    after: float
    inside_before: float
    inside: float


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
            found.append(Run(run, Replay(at_start, Result(path.name, "bundled", workload, seen_in(run))), before))
    return deployment, found


def rows_of(deployment: Deployment, runs: list[Run]) -> Iterator[tuple[str, str, Row]]:
    """Every run by every other."""
    for run in runs:
        if len(runs) < 2:
            return
        solution = solve([run.replay], prior_of([run.replay], over_http=False))
        corrected = calibrated(deployment, Calibration(Fingerprint.of(deployment), **learned_of(solution), results=()))
        for other in runs:
            if other is not run:
                rows = _compared(deployment, corrected, other, solution.point)
                yield from ((run.measured.label, other.measured.label, row) for row in rows)


def _compared(deployment: Deployment, corrected: Deployment, other: Run, point: Point) -> Iterator[Row]:
    """A run by what another told: errors as shares of what was measured, and whether it lies within."""
    plain, known = other.replay.served(Point()), other.replay.served(point)
    widths = [_widths(each, other) for each in (deployment, corrected)]
    forecasts = [results_of(each) for each in (plain, known)]
    seen = other.replay.result.seen
    for name in SHOWN:
        latency, _, statistic = name.replace(" ", "_", 1).partition("_")
        if statistic == "by request":
            measured = getattr(other.measured, latency)
            pairs = [np.median(np.log(measured / getattr(each, latency))) for each in (plain, known)]
            yield Row(name, *(float(abs(np.exp(-each) - 1)) for each in pairs), np.nan, np.nan)
        elif name in seen:
            index = QUANTITIES.index(name)
            off = [float(np.log(seen[name] / values[index])) for values in forecasts]
            inside = [float(abs(each) <= width[index]) for each, width in zip(off, widths, strict=True)]
            yield Row(name, *(float(abs(np.exp(-each) - 1)) for each in off), *inside)


def _widths(deployment: Deployment, run: Run) -> npt.NDArray[Any]:
    """How far each quantity may be off; a factor moves what it moves by as much at either deployment."""
    workload = run.replay.result.workload
    record = simulate(replace(run.replica, first_uses=deepcopy(run.replica.first_uses)), workload)
    known = uncertainty_of(deployment, record)
    return half_widths(
        run.replica, known, lambda engine: results_of(simulate(engine, workload)), chance_in(record)
    ).combined


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
    for path in files[:: asked.every]:
        deployment, runs = runs_of(path, asked.kinds.split(","))
        for one, other, row in rows_of(deployment, runs):
            found[deployment.engine.family][row.quantity].append(row)
            if asked.verbose:
                print(path.name, one, "->", other, row.quantity, f"{row.before:.1%} {row.after:.1%}", file=sys.stderr)
    print("| engine | pairs | quantity | median before | after | mean before | after | worse | inside before | after |")
    print("| --- | --: | --- | --: | --: | --: | --: | --: | --: | --: |")
    for engine, quantities in found.items():
        for name, rows in quantities.items():
            table = np.array([row[1:] for row in rows], dtype=float)
            errors, worse = table[:, :2], int((table[:, 1] > table[:, 0]).sum())
            cells = [f"{100 * value:.1f} %" for value in (*np.median(errors, axis=0), *errors.mean(axis=0))]
            shares = table[:, 2:].mean(axis=0)
            inside = ["" if np.isnan(value) else f"{100 * value:.0f} %" for value in shares]
            print(f"| {engine} | {len(rows)} | {name} | {' | '.join(cells)} | {worse} | {' | '.join(inside)} |")


if __name__ == "__main__":
    main()
