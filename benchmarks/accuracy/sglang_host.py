"""How well SGLang's host costs hold for an engine that they were not chosen on.

The ratios between them were read off timers in three engines; what is left to choose is how fast the host is that they
stand for. For each engine that comes with the package, that one number is chosen on all other engines (the least median
error of TTFT p50), and the engine left out is forecast with it.

    python benchmarks/accuracy/sglang_host.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from infercast.engines.base import Deployment
from infercast.lab.validate.compare import deployment_of, measured_summary, summary_of
from infercast.lab.validate.measured import MeasuredFile, read_measured, shipped_runs
from infercast.serve import simulate

SPEEDS = (0.8, 0.9, 1.0, 1.1, 1.25)
QUANTITIES = {"TTFT p50": 0, "TTFT p99": 2, "TPOT p50": 3, "tokens/s": 5}


@dataclass(frozen=True, slots=True)
class Engine:
    """One file, and its errors at each speed of the host: a row a run."""

    name: str
    errors: dict[float, np.ndarray]


def errors_of(measured: MeasuredFile, deployment: Deployment, speed: float) -> np.ndarray:
    """Absolute errors of all runs, as fractions."""
    host = deployment.host.sped_up(speed, f"{speed:g} times as fast")
    replica = replace(deployment, host=host).replica()
    pairs = [(measured_summary(run), summary_of(simulate(replica, run.workload))) for run in measured.runs]
    return np.abs(np.array([predicted / seen - 1.0 for seen, predicted in pairs]))


def main() -> None:
    """Print a line an engine, and the medians over all runs."""
    engines = []
    for path in shipped_runs("sglang"):
        measured = read_measured(path)
        deployment = deployment_of(measured, None, None)
        engines.append(Engine(path.name, {speed: errors_of(measured, deployment, speed) for speed in SPEEDS}))
    print(f"{'left out':36s} speed  " + "  ".join(f"{name:>8s}" for name in QUANTITIES))
    left_out = []
    for engine in engines:
        others = {
            speed: np.concatenate([each.errors[speed] for each in engines if each is not engine]) for speed in SPEEDS
        }
        chosen = min(SPEEDS, key=lambda speed: float(np.median(others[speed][:, 0])))
        left_out.append(engine.errors[chosen])
        medians = np.median(engine.errors[chosen], axis=0)
        print(f"{engine.name:36s} {chosen:5.2f}  " + "  ".join(f"{medians[at]:8.1%}" for at in QUANTITIES.values()))
    medians = np.median(np.concatenate(left_out), axis=0)
    print(f"{'all runs':36s}        " + "  ".join(f"{medians[at]:8.1%}" for at in QUANTITIES.values()))


if __name__ == "__main__":
    main()
