"""Every logged step of a real engine beside what we say it costs: which part is off, and how much it varies.

    python replay_steps.py RUNS.json.gz FOLDER_OF_STEP_LOGS

RUNS.json.gz and the logs come from run_engine.py. Steps are grouped by how they are launched and by their size.
"""

import argparse
import gzip
import json
from pathlib import Path

import numpy as np

from infercast.lab.validate.compare import deployment_of
from infercast.lab.validate.measured import read_measured
from infercast.serve.step import StepShape

BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 1 << 20)
HEADER = "launched as        tokens   steps | plan      | execute         | sample    | process   | GPU             "


def read_steps(folder: Path):
    """(run number, step) of all logs in order."""
    for number, path in enumerate(sorted(folder.glob("steps_*.json.gz"))):
        for step in json.loads(gzip.decompress(path.read_bytes()))["steps"]:
            if (step["decodes"] or step["beside"]) and step["process"] and step["sample"]:
                yield number, step


def columns(step, shape, deployment, timer):
    """Measured and forecast milliseconds of the parts of one step."""
    estimate, host = timer(shape), deployment.host_cost(shape)
    parts = [1e3 * (step[name][1] - step[name][0]) for name in ("plan", "execute", "sample", "process")]
    before, _, after = step["gpu"]
    sample = deployment.host.sample
    forecast = [host.plan, host.prepare + host.launch - sample, sample, host.process, estimate.gpu_seconds[0]]
    return [*parts, 1e3 * (after - before)], [1e3 * seconds for seconds in forecast]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("steps", type=Path)
    parser.add_argument("--run", type=int, help="only the log with this number")
    options = parser.parse_args()
    file = read_measured(options.runs)
    deployment = deployment_of(file, None, None)
    timer = deployment.timer()
    groups = {}
    for number, step in read_steps(options.steps):
        if options.run is not None and number != options.run:
            continue
        decodes, beside = step["decodes"], step["beside"]
        new = [1] * decodes + [each[1] for each in beside]
        computed = [step["context"] // max(1, decodes)] * decodes + [max(0, each[2]) for each in beside]
        shape = StepShape(new, computed, len(new))
        launch = deployment.graphs.launch(shape.num_tokens, shape.is_decode)[0].value
        size = next(bound for bound in BOUNDS if shape.num_tokens <= bound)
        groups.setdefault((launch, size), []).append(columns(step, shape, deployment, timer))
    print(HEADER)
    for (launch, size), rows in sorted(groups.items()):
        measured, forecast = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
        cells = []
        for part in range(5):
            values = measured[:, part]
            low, middle, high = np.percentile(values, (10, 50, 90))
            cells.append(f"{middle:6.2f} [{low:5.2f} {high:6.2f}] {forecast[:, part].mean():6.2f}")
        print(f"{launch:18} <= {size:5} {len(rows):6} | " + " | ".join(cells))


if __name__ == "__main__":
    main()
