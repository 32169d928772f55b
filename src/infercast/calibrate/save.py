"""A forecast as ``vllm bench serve --save-result`` of 0.25.0 writes a run, always with the same date."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.errors import InputError
from infercast.forecast.result import Forecast
from infercast.forecast.run import drafts_of
from infercast.forecast.slo import FRACTIONS, percentiles
from infercast.serve.record import Served
from infercast.units import MILLI

Array = npt.NDArray[Any]

DATE = "19700101-000000"
BACKEND = "openai"


def result_path(asked: Path, forecast: Forecast) -> Path:
    """The file itself; in a folder, one of the name that the benchmark chooses."""
    if not asked.is_dir():
        return asked
    load, model = _load(forecast), forecast.deployment.model.name.rsplit("/", 1)[-1]
    clients = "" if load["max_concurrency"] is None else f"-concurrency{load['max_concurrency']}"
    return asked / f"{BACKEND}-{load['request_rate']}qps{clients}-{model}-{DATE}.json"


def check_result(asked: Path) -> None:
    if asked.is_dir():
        return
    if asked.suffix != ".json":
        raise InputError(f"--save-result {asked} must end in .json, or be a folder that exists")
    if not asked.parent.is_dir():
        raise InputError(f"--save-result {asked} needs the folder {asked.parent}, which does not exist")


def result_text(forecast: Forecast, version: str, *, detailed: bool = False) -> str:
    return json.dumps(saved_result(forecast, version, detailed=detailed), allow_nan=False)


def saved_result(forecast: Forecast, version: str, *, detailed: bool = False) -> dict[str, Any]:
    """The same as plain data, in the order of the benchmark; with ``detailed`` a list entry for each request."""
    served, requests = forecast.clients, forecast.workload.requests
    model = forecast.deployment.model.name
    inputs = sum(request.num_input for request in requests)
    outputs, duration = int(served.num_output.sum()), float(served.last_token.max() - served.sent_at.min())
    count, goodput = len(requests), None if forecast.verdict is None else forecast.verdict.goodput
    return {
        "date": DATE, "endpoint_type": BACKEND, "backend": BACKEND, "label": None, "model_id": model,
        "tokenizer_id": model, "num_prompts": count, "forecast_by": f"infercast {version}", **_load(forecast),
        "duration": duration, "completed": count, "failed": 0, "total_input_tokens": inputs,
        "total_output_tokens": outputs, "request_throughput": count / duration, "request_goodput": goodput,
        "output_throughput": outputs / duration, "total_token_throughput": (inputs + outputs) / duration,
        **(_details(forecast) if detailed else {}),
        "max_output_tokens_per_s": _busiest_second(served),
        "max_concurrent_requests": _most_at_once(served),
        "rtfx": 0.0,
        **_drafts(forecast),
        **_latency("ttft", served.ttft),
        **_latency("tpot", served.tpot),
        **_latency("itl", *served.gaps),
        **_latency("e2el", served.end_to_end),
    }  # fmt: skip


def _load(forecast: Forecast) -> dict[str, Any]:
    workload = forecast.workload
    rate = workload.rate
    if rate is None and workload.concurrency is None and workload.requests[-1].arrival > 0:
        rate = len(workload.requests) / workload.requests[-1].arrival  # a trace
    return {
        "request_rate": "inf" if rate is None else rate,
        "burstiness": 1.0 if workload.drawn is None else workload.drawn.burstiness,
        "max_concurrency": workload.concurrency,
    }


def _drafts(forecast: Forecast) -> dict[str, Any]:
    found = drafts_of(forecast)
    if found is None:
        return {}
    counts = found.counts
    said = {
        "acceptance_rate": 100 * counts.acceptance_rate, "acceptance_length": counts.acceptance_length,
        "num_drafts": counts.num_drafts, "draft_tokens": counts.num_draft_tokens,
        "accepted_tokens": counts.num_accepted, "per_position_acceptance_rates": counts.rates_by_position,
    }  # fmt: skip
    return {f"spec_decode_{name}": value for name, value in said.items()}


def _latency(name: str, values: Array, counts: Array | None = None) -> dict[str, float]:
    """Mean, median, standard deviation and percentiles in milliseconds; 0 where there is none."""
    if not values.size:
        values, counts = np.zeros(1), None
    counts = np.ones(values.size, dtype=np.int64) if counts is None else counts
    mean = float(np.average(values, weights=counts))
    spread = float(np.sqrt(np.average((values - mean) ** 2, weights=counts)))
    ranks = percentiles(values, counts).values[1:]
    found = {f"mean_{name}_ms": mean, f"median_{name}_ms": ranks[0], f"std_{name}_ms": spread}
    found |= {f"p{round(100 * fraction)}_{name}_ms": rank for fraction, rank in zip(FRACTIONS, ranks, strict=True)}
    return {key: value / MILLI for key, value in found.items()}


def _busiest_second(served: Served) -> float:
    """The most tokens of any second after the first request was sent."""
    ended, _, counts = served.timed_gaps
    begin = float(served.sent_at.min())
    times = np.concatenate([served.first_token, ended]) - begin
    weights = np.concatenate([np.ones(served.first_token.size), counts])
    return float(np.bincount(times.astype(np.int64), weights=weights).max())


def _most_at_once(served: Served) -> int:
    """The most requests that were in the system at some time of one second."""
    begin = float(served.sent_at.min())
    first, last = ((times - begin).astype(np.int64) for times in (served.sent_at, served.last_token))
    change = np.zeros(ceil(float(last.max())) + 2, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    return int(np.cumsum(change).max())


def _details(forecast: Forecast) -> dict[str, Any]:
    """What is listed for each request; there is no text."""
    served, requests = forecast.clients, forecast.workload.requests
    return {
        "input_lens": [request.num_input for request in requests],
        "output_lens": served.num_output.tolist(),
        "ttfts": served.ttft.tolist(),
        "itls": _gaps_of_requests(forecast),
        "start_times": served.sent_at.tolist(),
        "generated_texts": [""] * len(requests),
        "errors": [""] * len(requests),
    }


def _gaps_of_requests(forecast: Forecast) -> list[list[float]]:
    """Where steps left a sequence out (prompts before it, a preemption), its tokens are spread evenly."""
    served = forecast.clients
    ends = [np.unique(record.timed_gaps[0]) for record in forecast.pools[-1].records]
    found = []
    for engine, first, last, count in zip(
        served.engine.tolist(), served.first_token.tolist(), served.last_token.tolist(), served.num_output.tolist(),
        strict=True,
    ):  # fmt: skip
        times = ends[engine]
        inside = times[np.searchsorted(times, first, side="right") : np.searchsorted(times, last, side="right")]
        if inside.size == count - 1:
            found.append(np.diff(inside, prepend=first).tolist())
        else:
            found.append([(last - first) / (count - 1)] * (count - 1) if count > 1 else [])
    return found
