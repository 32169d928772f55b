"""Bundled runs as load generators would have saved them, for tests of `infercast calibrate` and for trying it out.

    python convert.py llama-3.1-8b.json.gz "poisson 12/s" FOLDER [--engine vllm]

Each function takes a measured run and returns what the file of one load generator holds, in its own names and units.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.lab.validate.measured import MeasuredRun, read_measured, shipped_runs

Array = npt.NDArray[Any]


class Sent:
    """The numbers of a run that all formats are made of."""

    def __init__(self, run: MeasuredRun) -> None:
        requests = run.workload.requests
        self.arrivals = np.array([each.arrival for each in requests])
        self.inputs = np.array([each.num_input for each in requests])
        self.outputs = np.array([each.num_output for each in requests])
        self.ttft = run.ttft
        self.tpot = np.zeros(len(requests))
        self.tpot[self.outputs > 1] = run.tpot
        self.whole = self.ttft + self.tpot * (self.outputs - 1)
        self.duration = float((self.arrivals + self.whole).max() - self.arrivals.min())
        self.rate = float(run.label.split()[1].removesuffix("/s")) if "/s" in run.label else None


def _in_ms(name: str, values: Array, ranks: tuple[int, ...] = (90, 95, 99)) -> dict[str, float]:
    found = {f"mean_{name}_ms": values.mean(), f"median_{name}_ms": np.median(values), f"std_{name}_ms": values.std()}
    found |= {f"p{rank}_{name}_ms": np.percentile(values, rank) for rank in ranks}
    return {key: 1e3 * float(value) for key, value in found.items()}


def bench_serve(run: MeasuredRun, model: str = "model", *, detailed: bool = False) -> dict[str, Any]:
    """``vllm bench serve --save-result``, with ``--save-detailed`` where asked for."""
    sent = Sent(run)
    document = {
        "date": "20260101-000000", "endpoint_type": "openai", "backend": "openai", "label": None, "model_id": model,
        "tokenizer_id": model, "num_prompts": sent.inputs.size,
        "request_rate": "inf" if sent.rate is None else sent.rate, "burstiness": 1.0, "max_concurrency": None,
        "duration": sent.duration, "completed": sent.inputs.size, "failed": 0,
        "total_input_tokens": int(sent.inputs.sum()), "total_output_tokens": int(sent.outputs.sum()),
        "request_throughput": sent.inputs.size / sent.duration, "request_goodput": None,
        "output_throughput": float(sent.outputs.sum()) / sent.duration,
        "total_token_throughput": float((sent.inputs + sent.outputs).sum()) / sent.duration,
    }  # fmt: skip
    if detailed:
        pairs = zip(sent.tpot.tolist(), sent.outputs.tolist(), strict=True)
        document |= {
            "input_lens": sent.inputs.tolist(), "output_lens": sent.outputs.tolist(), "ttfts": sent.ttft.tolist(),
            "itls": [[each] * (count - 1) for each, count in pairs], "start_times": (7e3 + sent.arrivals).tolist(),
            "generated_texts": [""] * sent.inputs.size, "errors": [""] * sent.inputs.size,
        }  # fmt: skip
    several = sent.tpot[sent.outputs > 1]
    return {**document, **_in_ms("ttft", sent.ttft, (99,)), **_in_ms("tpot", several, (99,))}


def bench_serving(run: MeasuredRun, *, detailed: bool = False) -> dict[str, Any]:
    """A line of SGLang's ``bench_serving``."""
    sent, plain = Sent(run), bench_serve(run, detailed=detailed)
    kept = {*plain} & {
        "duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput", "ttfts", "itls",
        "output_throughput", "request_rate", "max_concurrency", "input_lens", "output_lens",
    }  # fmt: skip
    return {
        "tag": None, "backend": "sglang", "dataset_name": "sharegpt", "random_range_ratio": 0.0,
        **{name: plain[name] for name in sorted(kept)},
        "total_output_tokens_retokenized": plain["total_output_tokens"],
        "input_throughput": float(sent.inputs.sum()) / sent.duration,
        **_in_ms("e2e_latency", sent.whole), **_in_ms("ttft", sent.ttft),
        **_in_ms("tpot", sent.tpot[sent.outputs > 1]), "accept_length": None,
    }  # fmt: skip


def guidellm(run: MeasuredRun, *, requests: bool = True) -> dict[str, Any]:
    """GuideLLM's ``benchmarks.json``."""
    sent = Sent(run)

    def summary(values: Array) -> dict[str, Any]:
        ranks = {f"p{rank}": float(np.percentile(values, rank)) for rank in (50, 90, 95, 99)}
        numbers = {"mean": values.mean(), "median": np.median(values), "std_dev": values.std(), "min": values.min()}
        plain = {name: float(value) for name, value in numbers.items()}
        return {"successful": {**plain, "max": float(values.max()), "count": values.size, "percentiles": ranks}}

    columns = (sent.arrivals, sent.inputs, sent.outputs, sent.ttft, sent.tpot, sent.whole)
    names = ("request_start_time", "prompt_tokens", "output_tokens", "time_to_first_token_ms",
             "inter_token_latency_ms", "request_latency")  # fmt: skip
    scales = (1, 1, 1, 1e3, 1e3, 1)
    rows = [
        {name: float(value * scale) for name, value, scale in zip(names, row, scales, strict=True)}
        for row in zip(*columns, strict=True)
    ]
    metrics = {
        "request_totals": {"successful": sent.inputs.size, "errored": 0, "incomplete": 0},
        "prompt_token_count": summary(sent.inputs), "output_token_count": summary(sent.outputs),
        "time_to_first_token_ms": summary(1e3 * sent.ttft), "request_latency": summary(sent.whole),
        "inter_token_latency_ms": summary(1e3 * sent.tpot[sent.outputs > 1]),
        "output_tokens_per_second": summary(np.full(3, sent.outputs.sum() / sent.duration)),
    }  # fmt: skip
    strategy = {"type_": "poisson", "rate": sent.rate} if sent.rate else {"type_": "throughput"}
    kept = {"successful": rows if requests else []}
    return {"metadata": {}, "benchmarks": [{"config": {"strategy": strategy}, "metrics": metrics, "requests": kept}]}


def aiperf(run: MeasuredRun, *, older: bool = False) -> dict[str, Any]:
    """AIPerf's ``profile_export_aiperf.json``, or GenAI-Perf's where an ``older`` one is asked for."""
    sent = Sent(run)

    def metric(values: Array, unit: str) -> dict[str, Any]:
        ranks = {f"p{rank}": float(np.percentile(values, rank)) for rank in (50, 90, 95, 99)}
        ends = {"min": float(values.min()), "max": float(values.max()), "std": float(values.std())}
        return {"unit": unit, "avg": float(values.mean()), **ranks, **ends}

    load: dict[str, Any] = {"phases": [{"name": "profiling", "type": "poisson", "rate": sent.rate}]}
    if older:
        load = {"perf_analyzer": {"stimulus": {"request_rate": sent.rate}}}
    return {
        **({} if older else {"schema_version": "1.4", "aiperf_version": "0.13.0"}),
        "request_count": {"unit": "requests", "avg": float(sent.inputs.size)},
        "request_latency": metric(1e3 * sent.whole, "ms"), "time_to_first_token": metric(1e3 * sent.ttft, "ms"),
        "inter_token_latency": metric(1e3 * sent.tpot[sent.outputs > 1], "ms"),
        "input_sequence_length": metric(sent.inputs, "tokens"),
        "output_sequence_length": metric(sent.outputs, "tokens"),
        "output_token_throughput": {"unit": "tokens/sec", "avg": float(sent.outputs.sum()) / sent.duration},
        "request_throughput": {"unit": "requests/sec", "avg": sent.inputs.size / sent.duration},
        "input_config": load,
    }  # fmt: skip


def inference_perf(run: MeasuredRun) -> dict[str, Any]:
    """inference-perf's ``stage_0_lifecycle_metrics.json``."""
    sent = Sent(run)

    def summary(values: Array) -> dict[str, float]:
        found = {"mean": values.mean(), "min": values.min(), "max": values.max(), "median": np.median(values)}
        found |= {f"p{rank}": np.percentile(values, rank) for rank in (90, 99)}
        return {name: float(value) for name, value in found.items()}

    return {
        "load_summary": {"count": sent.inputs.size, "requested_rate": sent.rate},
        "successes": {
            "count": sent.inputs.size,
            "latency": {
                "request_latency": summary(sent.whole), "time_to_first_token": summary(sent.ttft),
                "time_per_output_token": summary(sent.tpot[sent.outputs > 1]),
            },
            "throughput": {"output_tokens_per_sec": float(sent.outputs.sum()) / sent.duration},
            "prompt_tokens": {"total": float(sent.inputs.sum()), "cached": 0.0, **summary(sent.inputs)},
            "output_tokens": {"total": float(sent.outputs.sum()), **summary(sent.outputs)},
        },
        "failures": {"count": 0},
    }  # fmt: skip


def metrics_text(run: MeasuredRun) -> str:
    """A snapshot of ``/metrics`` after the run, with the engine's buckets."""
    sent = Sent(run)
    lines = []
    edges = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)
    for name, values, ends in (
        ("time_to_first_token_seconds", sent.ttft, edges),
        ("request_time_per_output_token_seconds", sent.tpot[sent.outputs > 1], edges),
        ("e2e_request_latency_seconds", sent.whole, (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0)),
        ("request_prompt_tokens", sent.inputs, (1, 100, 1000, 10000)),
        ("request_generation_tokens", sent.outputs, (1, 100, 1000, 10000)),
    ):
        lines.append(f"# TYPE vllm:{name} histogram")
        for end in (*ends, float("inf")):
            text = "+Inf" if end == float("inf") else f"{float(end)}"
            lines.append(f'vllm:{name}_bucket{{engine="0",le="{text}"}} {float((values <= end).sum())}')
        lines += [f'vllm:{name}_count{{engine="0"}} {values.size}', f'vllm:{name}_sum{{engine="0"}} {values.sum()}']
    lines += ['vllm:prefix_cache_queries_total{engine="0"} 1000.0', 'vllm:prefix_cache_hits_total{engine="0"} 0.0']
    return "\n".join(lines) + "\n"


def write_all(run: MeasuredRun, folder: Path, model: str = "model") -> list[Path]:
    """A file of each format."""
    folder.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[], Any]] = {
        "result.json": lambda: bench_serve(run, model),
        "result-detailed.json": lambda: bench_serve(run, model, detailed=True),
        "bench.jsonl": lambda: bench_serving(run),
        "benchmarks.json": lambda: guidellm(run),
        "profile_export_aiperf.json": lambda: aiperf(run),
        "profile_export_genai_perf.json": lambda: aiperf(run, older=True),
        "stage_0_lifecycle_metrics.json": lambda: inference_perf(run),
    }
    for name, make in makers.items():
        (folder / name).write_text(json.dumps(make()) + "\n", encoding="utf-8")
    (folder / "metrics.txt").write_text(metrics_text(run), encoding="utf-8")
    return [*(folder / name for name in makers), folder / "metrics.txt"]


def main() -> None:
    """Convert one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("label")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", default="vllm")
    asked = parser.parse_args()
    path = next((each for each in shipped_runs(asked.engine) if each.name == asked.file), Path(asked.file))
    measured = read_measured(path)
    run = next(each for each in measured.runs if each.label == asked.label)
    for written in write_all(run, asked.folder, measured.model):
        print(written)


if __name__ == "__main__":
    main()
