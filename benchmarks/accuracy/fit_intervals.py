"""How uncertain the host is: set on measured runs so that 80 % of their values lie in the intervals of forecasts.

    python benchmarks/accuracy/fit_intervals.py FILE... [--model-config DIR]

Every model is left out once: the spread of the host is chosen on the others, and the values of the one left out are
counted. Intervals of kernels are what their estimates carry; no number belongs to a model.
"""

from __future__ import annotations

import argparse
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np

from infercast.forecast.intervals import LEVEL, half_widths
from infercast.forecast.uncertainty import HOST_SPREAD, chance_in, smoothed_of, uncertainty_of
from infercast.lab.validate.compare import IN_RESULTS, deployment_of, measured_summary, summary_of
from infercast.lab.validate.measured import WARM_UP, MeasuredFile, read_measured
from infercast.serve import simulate

COUNTED = [0, 2, 3, 5]
"""TTFT p50 and p99, TPOT p50 and throughput, on which the spread was chosen."""
SPREADS = np.arange(0.02, 0.301, 0.005)


def values_of(measured: MeasuredFile, model_config: Path | None) -> np.ndarray:
    """A row a value: how far it is off, how far it moves with the GPU and with the host, and what chance adds."""
    deployment = deployment_of(measured, model_config, None)
    replica = deployment.replica(warmed_up=False)
    rows = []
    for run in measured.runs:
        before = replace(replica, first_uses=deepcopy(replica.first_uses))
        record = simulate(replica, run.workload)
        if run.kind == WARM_UP:
            continue
        about = uncertainty_of(deployment, record)
        served = lambda engine, run=run: smoothed_of(simulate(engine, run.workload))  # noqa: E731
        widths = half_widths(before, about, served, chance_in(record))
        errors = np.log(measured_summary(run) / summary_of(record))
        rows.append(np.stack([errors, *(each[[*IN_RESULTS]] for each in widths[:3])], axis=1)[COUNTED])
    return np.concatenate(rows)


def coverage(values: np.ndarray, spread: float) -> float:
    """Share of values in their intervals, if the host were so uncertain."""
    errors, by_gpu, by_host, chance = values.T
    return float(np.mean(errors**2 <= by_gpu**2 + (by_host * spread / HOST_SPREAD) ** 2 + chance**2))


def best_spread(values: np.ndarray) -> float:
    """The spread whose coverage is nearest to what is wanted."""
    return float(min(SPREADS, key=lambda spread: abs(coverage(values, spread) - LEVEL)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--model-config", type=Path)
    asked = parser.parse_args()
    files = [read_measured(path) for path in asked.files]
    values = {measured.path.name: values_of(measured, asked.model_config) for measured in files}
    inside = 0.0
    for name, own in values.items():
        spread = best_spread(np.concatenate([each for other, each in values.items() if other != name]))
        inside += coverage(own, spread) * len(own)
        print(f"{name:30} spread {spread:.3f} from the others, {coverage(own, spread):.1%} of its own values inside")
    together = np.concatenate([*values.values()])
    print(f"left out: {inside / len(together):.1%}; all: spread {best_spread(together):.3f}")
    print(f"as it is: spread {HOST_SPREAD}, {coverage(together, HOST_SPREAD):.1%}")


if __name__ == "__main__":
    main()
