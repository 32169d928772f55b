"""Forecasts of traces beside those of synthetic workloads fitted to them: on all of each, and on its halves.

python benchmarks/accuracy/fitted_traces.py AzureLLMInferenceTrace_conv.csv:1 conversation_trace.jsonl:4   # file:GPUs
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import infercast
from infercast.forecast.deploy import random_requests
from infercast.forecast.traffic import describe_traffic
from infercast.serve.workload.request import Request
from infercast.serve.workload.traces import read_trace

SEEDS, LONGEST = 3, 131_072
KINDS = {"prefix_len": int, "prefix_groups": int, "rate": float, "burstiness": float, "reuse": float}


def main() -> None:
    for argument in sys.argv[1:]:
        path, _, gpus = argument.rpartition(":")
        deployment = infercast.deploy("llama-3.1-8b", "h200-sxm", tensor_parallel_size=int(gpus))
        trace = read_trace(path)
        requests = tuple(each for each in trace.requests if each.num_input + each.num_output <= LONGEST)
        middle = (requests[0].arrival + requests[-1].arrival) / 2
        early = tuple(each for each in requests if each.arrival < middle)
        late = tuple(replace(each, arrival=each.arrival - middle) for each in requests if each.arrival >= middle)
        for words, known, judged in (("whole", requests, requests), ("first half > second", early, late)):
            wanted = figures(deployment, replace(trace, requests=judged))
            options = fitted(replace(trace, requests=known))
            drawn = (
                random_requests({**options, "num_requests": len(judged), "seed": seed}, LONGEST)
                for seed in range(SEEDS)
            )
            found = np.median([figures(deployment, each) for each in drawn], axis=0)
            off = [f"{100 * (ours / theirs - 1):+.0f} %" for ours, theirs in zip(found, wanted, strict=True) if theirs]
            print(f"{Path(path).name} {words}: TTFT p50, p99 and hits {', '.join(off)}", flush=True)


def figures(deployment: infercast.Deployment, workload: infercast.Workload) -> list[float]:
    forecast = deployment.simulate(workload)
    return [forecast.ttft.p50, forecast.ttft.p99, forecast.prefix_hit_rate]


def fitted(workload: infercast.Workload) -> dict[str, Any]:
    """Options of the fit, with arrivals from a file that holds nothing else."""
    options = {name.replace("-", "_"): value for name, value in describe_traffic(workload).options}
    kept = {name: KINDS.get(name, str)(value) for name, value in options.items()}
    for name in ("rate", "arrival", "burstiness"):
        kept.pop(name, None)
    return {**kept, "arrivals_of": arrivals_file(workload.requests), "too_long": "refuse"}


def arrivals_file(requests: tuple[Request, ...]) -> str:
    rows = [f"{each.arrival},1,1" for each in requests]
    with tempfile.NamedTemporaryFile("w", suffix=".csv", delete=False) as file:
        file.write("\n".join(["arrival,input,output", *rows]))
    return file.name


if __name__ == "__main__":
    main()
