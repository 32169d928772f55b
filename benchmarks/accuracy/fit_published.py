"""Fit what only published runs tell: an API server's part of the way in, and the straggler of a collective.

python benchmarks/accuracy/fit_published.py runs.csv

The server is fitted on mean TTFTs of closed loops (least mean absolute logarithmic error), once on all and once without
each GPU and each model in turn, which is then scored. The straggler is scored on mean TPOTs of runs on several GPUs.
"""

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.engines.base import engine_named
from infercast.predict.families import collective
from infercast.serve import simulate
from published.compare import compare_published, set_up
from published.run import PublishedRun
from published.table import read_published

PATHS, TOKENS = (0.0, 2e-3, 4e-3, 6e-3), (0.0, 2e-6, 4e-6, 6e-6)
SKEWS = (0.0, 0.5e-6, 0.8e-6, 1.2e-6, 1.6e-6, 2e-6, 3e-6)


def server_errors(runs: list[PublishedRun], grid: list[tuple[float, float]]) -> np.ndarray:
    """Error of the mean TTFT of each run (rows) with each server (columns)."""
    host, errors = engine_named().default_host(), []
    for run in runs:
        deployment = set_up(run)[1]
        replica = deployment.replica()
        for path, token in grid:
            served = replace(
                replica, request_path_seconds=host.request_path + path, request_token_seconds=host.request_token + token
            )
            errors.append(simulate(served, run.workload).ttft.mean() / run.ttft - 1)
    return np.reshape(errors, (len(runs), len(grid)))


def best(errors: np.ndarray) -> int:
    return int(np.abs(np.log1p(errors)).mean(axis=0).argmin())


def fit_server(runs: list[PublishedRun]) -> None:
    grid = list(itertools.product(PATHS, TOKENS))
    errors = server_errors(runs, grid)
    show = "{:.0f} ms and {:.0f} us a token".format
    chosen = best(errors)
    print(f"server: {show(grid[chosen][0] * 1e3, grid[chosen][1] * 1e6)}")
    for name in ("gpu", "model"):
        keys = np.array([getattr(run, name) for run in runs])
        left_out = np.zeros(len(runs))
        for key in dict.fromkeys(keys.tolist()):
            chosen = best(errors[keys != key])
            left_out[keys == key] = np.abs(errors[keys == key, chosen])
            median = 100 * np.median(left_out[keys == key])
            print(f"  without {key}: {show(grid[chosen][0] * 1e3, grid[chosen][1] * 1e6)}; it is off by {median:.1f} %")
        print(f"  each {name} left out: TTFT off by {100 * np.median(left_out):.1f} % in the median")


def fit_skew(runs: list[PublishedRun]) -> None:
    for skew in SKEWS:
        collective.RANK_SKEW = skew
        errors = [each.tpot.error for each in compare_published(runs) if each.tpot is not None]
        sizes = 100 * np.abs(errors)
        print(
            f"straggler {skew * 1e6:.1f} us: TPOT off by {np.median(sizes):.1f} % (median), {sizes.mean():.1f} % (mean)"
        )


closed = [run for run in read_published(Path(sys.argv[1])) if run.workload.concurrency and run.data == 1]
fit_server(closed)
fit_skew([run for run in closed if run.tensor > 1])
