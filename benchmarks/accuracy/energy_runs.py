"""Joules of runs held against measured ones: own runs on an H200, and published runs of several GPUs.

    python benchmarks/accuracy/energy_runs.py own FILE.json.gz ...
    python benchmarks/accuracy/energy_runs.py published RUNS.csv [--every N] [--source WORD] [--gpu NAME]
    python benchmarks/accuracy/energy_runs.py static POWER.csv

Own runs have the joules of the board's energy counter from just before the first request to the last token; those
shorter than a second are left out, because the counter moves ten times a second. RUNS.csv is a table of collected runs
(docs/validation.md) of which those with ``power_w`` (all GPUs together) and ``output_tok_s`` are looked at: joules of
an output token are one by the other, in the steady part of a run as the source has it. POWER.csv is a table of runs
with measured power, of which the static batches of argonne-lcf/LLM-Inference-Bench are looked at.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "scoreboard"))

from publishers import as_published
from shorten import shortened, weighed

from infercast.engines.base import Deployment, engine_named
from infercast.engines.timer import KernelTimer
from infercast.errors import InfercastError
from infercast.forecast.deploy import deploy
from infercast.forecast.energy import Energy, energy_of_pools
from infercast.forecast.estimate import read_rows
from infercast.forecast.simulate import simulate as forecast_of
from infercast.forecast.system import System
from infercast.lab.validate.compare import compare_joules, deployment_of, energy_of_record
from infercast.lab.validate.measured import WARM_UP, read_measured
from infercast.serve import Request, simulate
from infercast.serve.workload.synthetic import workload_from_requests
from published.compare import started, system_for
from published.run import PublishedRun, RowReader
from published.table import read_collected

MOST_WATTS = 2000.0
"""No board draws more; a row that says so had its log read wrongly."""


@dataclass(frozen=True)
class Line:
    """One run: joules of an output token, watts of a GPU, output tokens per second."""

    group: str
    label: str
    measured: float
    predicted: float
    low: float
    high: float
    watts: tuple[float, float]
    """Measured and predicted."""
    rate: tuple[float, float]
    energy: Energy

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted / self.measured - 1


def own_lines(path: Path) -> Iterator[Line]:
    """The runs of one file that tell their joules."""
    file = read_measured(path)
    if all(run.joules is None for run in file.runs):
        return
    deployment = deployment_of(file, None, None)
    replica = deployment.replica()
    assert isinstance(replica.timer, KernelTimer)
    for run in file.runs:
        record = simulate(replica, run.workload)
        energy = energy_of_record(deployment, replica.timer, run, record)
        pair = compare_joules(run, energy)
        if run.kind == WARM_UP or pair is None:
            continue
        assert energy is not None
        assert run.joules is not None
        assert run.mean_watts is not None
        assert pair.interval is not None
        tokens = sum(request.num_output for request in run.workload.requests)
        duration = float(np.nanmax(record.last_token) - np.nanmin(record.sent_at))
        seconds = run.joules / run.mean_watts
        yield Line(
            group=f"{deployment.engine.family} {path.name.removesuffix('.json.gz')}",
            label=run.label,
            measured=pair.measured,
            predicted=pair.predicted,
            low=pair.interval[0],
            high=pair.interval[1],
            watts=(run.mean_watts, pair.predicted * tokens / duration),
            rate=(tokens / seconds, tokens / duration),
            energy=energy,
        )


def published_lines(path: Path, every: int, source: str, gpu: str) -> Iterator[Line]:
    """Rows of a table of collected runs."""
    systems: dict[str, System] = {}
    rows = [
        (line, row)
        for line, row in enumerate(read_rows(path), start=2)
        if row["power_w"] and row["output_tok_s"] and source in row["source_repo"] and gpu in row["infercast_gpu"]
    ]
    for line, stated in rows[::every]:
        try:
            found = _published(line, path, as_published(stated), systems)
        except InfercastError as problem:
            print(f"  line {line}: {problem}", file=sys.stderr)
            continue
        if found is not None:
            yield found


def _published(line: int, path: Path, row: dict[str, str], systems: dict[str, System]) -> Line | None:
    run = read_collected(RowReader(path, line, row))
    if float(row["power_w"]) > MOST_WATTS * int(row["num_gpus"]):
        return None
    if run.problem:
        print(f"  line {line}: {run.problem}", file=sys.stderr)
        return None
    run, deployment = started(run)
    key = _key(run, deployment)
    if key not in systems:
        systems.clear()
        systems[key] = system_for(run, deployment)
    system = systems[key]
    whole = replace(run, output_tokens_per_second=1.0)
    run = shortened(whole, system)
    served = system.serve(run.workload)
    rate = float(weighed(run, whole)(served.clients)[3]) / run.copies
    clients = served.clients
    duration = float(clients.last_token.max() - clients.sent_at.min())
    pools = zip(system.pools, served.records, strict=True)
    drawing = [(pool.deployment, pool.timer, records) for pool, records in pools]
    energy = energy_of_pools(drawing, run.workload, clients, duration, run.version)
    assert energy is not None
    power, measured_rate = float(row["power_w"]), float(row["output_tok_s"])
    each = energy.mean_watts * energy.gpus / rate
    gpus = int(row["num_gpus"])
    return Line(
        group=f"{row['source_repo'].split('/')[0]} {run.gpu} {run.engine.partition('@')[0]}",
        label=f"{line} {row['model']} x{gpus} {row['concurrency_or_rate']}",
        measured=power / measured_rate,
        predicted=each,
        low=each * energy.interval[0],
        high=each * energy.interval[1],
        watts=(power / gpus, energy.mean_watts),
        rate=(measured_rate, rate * run.copies),
        energy=energy,
    )


STATIC_GPUS = {"A100 SXM 40GB (Polaris)": "a100-sxm-40gb", "H100 SXM (ALCF)": "h100-sxm"}
STATIC_MODELS = {"meta-llama/Llama-2-7b-hf": "llama-2-7b", "meta-llama/Meta-Llama-3-8B": "llama-3-8b"}


def static_lines(path: Path) -> Iterator[Line]:
    """Batches of equal requests that start at once, without a server."""
    for line, row in enumerate(read_rows(path), start=2):
        gpu, model, load = STATIC_GPUS.get(row["gpu"]), STATIC_MODELS.get(row["model"]), row["concurrency_or_max_seqs"]
        if gpu is None or model is None or not load.startswith("static batch"):
            continue
        lengths, batch = [int(float(row[name])) for name in ("mean_in", "mean_out")], int(load.split()[-1])
        workload = workload_from_requests([Request(0.0, *lengths) for _ in range(batch)])
        settings = engine_named("vllm").settings({"max_model_len": sum(lengths)})
        forecast = forecast_of(deploy(model, gpu, settings, api_server=False), workload)
        energy, watts, rate = forecast.energy, float(row["power_w_per_gpu"]), float(row["output_tok_s"])
        assert energy is not None
        each = energy.joules_per_output_token
        yield Line(
            group=f"argonne {gpu} vllm",
            label=f"{line} {model} {load}",
            measured=watts / rate,
            predicted=each,
            low=each * energy.interval[0],
            high=each * energy.interval[1],
            watts=(watts, energy.mean_watts),
            rate=(rate, forecast.output_tokens_per_second),
            energy=energy,
        )


def _key(run: PublishedRun, deployment: Deployment) -> str:
    gpu = deployment.gpu.name, deployment.gpu.kernels
    return "|".join(map(repr, (deployment.model, gpu, deployment.settings, deployment.layout, run.instances)))


def tell(lines: Iterable[Line], *, verbose: bool) -> None:
    """Print each run as it comes, and sums over groups."""
    groups: Mapping[str, list[Line]] = defaultdict(list)
    for line in lines:
        groups[line.group].append(line)
        groups["all"].append(line)
        if verbose:
            parts = sorted(line.energy.by_part.items(), key=lambda part: -part[1])[:5]
            told = " ".join(f"{name} {100 * value / line.energy.joules:.0f}%" for name, value in parts)
            rates = f"{line.rate[1] / line.rate[0] - 1:+.0%} tok/s"
            watts = f"{line.watts[0]:.0f} -> {line.watts[1]:.0f} W"
            joules = f"{line.measured:.4f} -> {line.predicted:.4f} J"
            print(f"{line.group} | {line.label} | {joules} {line.error:+.1%} | {watts} | {rates} | {told}", flush=True)
    print(f"\n{'group':44} runs  median    mean     p90    bias  inside  | watts median  bias | tok/s bias")
    for name, members in sorted(groups.items()):
        errors = np.array([line.error for line in members])
        watts = np.array([line.watts[1] / line.watts[0] - 1 for line in members])
        rates = np.array([line.rate[1] / line.rate[0] - 1 for line in members])
        inside = np.mean([line.low <= line.measured <= line.high for line in members])
        sizes = np.abs(errors)
        print(
            f"{name:44} {len(members):4} {np.median(sizes):7.1%} {sizes.mean():7.1%} {np.percentile(sizes, 90):7.1%} "
            f"{np.median(errors):+7.1%} {inside:7.0%}  | {np.median(np.abs(watts)):7.1%} {np.median(watts):+7.1%} "
            f"| {np.median(rates):+7.1%}"
        )


def main() -> None:
    """Read what is asked for."""
    parser = argparse.ArgumentParser(description="Hold joules of runs against measured ones.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    own = kinds.add_parser("own")
    own.add_argument("files", type=Path, nargs="+")
    published = kinds.add_parser("published")
    published.add_argument("table", type=Path)
    published.add_argument("--every", type=int, default=1)
    published.add_argument("--source", default="")
    published.add_argument("--gpu", default="")
    static = kinds.add_parser("static")
    static.add_argument("table", type=Path)
    for each in (own, published, static):
        each.add_argument("--verbose", action="store_true", help="a line for every run")
    asked = parser.parse_args()
    if asked.kind == "own":
        lines = (line for path in asked.files for line in own_lines(path))
    elif asked.kind == "static":
        lines = static_lines(asked.table)
    else:
        lines = published_lines(asked.table, asked.every, asked.source, asked.gpu)
    tell(lines, verbose=asked.verbose)


if __name__ == "__main__":
    main()
