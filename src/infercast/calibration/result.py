"""A measured result: the load that was offered, what clients saw, and checked values of result files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast import __version__
from infercast.errors import Fields, FileFormatError, InputError, reading
from infercast.forecast.result import Forecast
from infercast.forecast.run import drafts_of
from infercast.forecast.slo import FRACTIONS, NAMES, percentiles
from infercast.serve.record import ServedRequests
from infercast.serve.workload.distributions import arrival_times
from infercast.serve.workload.request import Request, Segment, Workload
from infercast.serve.workload.synthetic import synthetic_workload
from infercast.units import MILLI

LATENCIES = ("ttft", "tpot", "itl", "e2e")
RATE = "output_tokens_per_s"
QUANTITIES = (*(f"{latency}_{name}" for latency in LATENCIES for name in NAMES), RATE)
"""What a result may say, in the order of `infercast.forecast.uncertainty.results_of`."""
MOST_BYTES = 512 * 2**20  # no result is larger; what is, is something else
LONGEST_SECONDS = 1e5
MOST_TOKENS = 10**8
DATE = "19700101-000000"
BACKEND = "openai"
Array = npt.NDArray[Any]

MOST_REQUESTS = 20_000  # of a longer run the first ones are replayed


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a load generator, or what a server counted of one."""

    file: str
    kind: str
    workload: Workload
    seen: Mapping[str, float]  # Seconds by name (``ttft_p50``, ``tpot_mean``, ...), and output tokens a second
    means_only: bool = False  # Whether only means can be compared, since lengths are known by their means alone
    model: str | None = None
    server_side: bool = False  # Whether times are the engine's own, without its API server and the network
    acceptance_length: float | None = None
    prefix_hit_rate: float | None = None
    assumptions: tuple[str, ...] = ()  # What the file does not say, and what was taken instead
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user says of the load, in place of what a file says or does not."""

    rate: float | None = None
    concurrency: int | None = None
    count: int | None = None
    input_len: str | None = None
    output_len: str | None = None
    prefix_hit_rate: float | None = None
    seed: int = 0


class Lengths(NamedTuple):
    mean: float
    spread: float = 0.0
    minimum: float | None = None
    maximum: float | None = None

    def __str__(self) -> str:
        mean = max(1, round(self.mean))
        even = 0.02  # lengths that differ by less (standard deviation over mean) are taken to be equal
        if self.spread <= even * self.mean:
            return str(mean)
        sigma = sqrt(log(1.0 + (self.spread / self.mean) ** 2))
        low = max(1, round(self.minimum or 1))
        high = max(low, round(self.maximum or 50 * self.mean), mean)
        return f"lognormal:{mean}:{sigma:.3f}:{low}:{high}"


@dataclass(frozen=True, slots=True)
class Load:
    count: int
    inputs: Array | Lengths | str
    outputs: Array | Lengths | str
    rate: float | None = None  # Requests a second; None: as fast as clients may
    arrival: str = "poisson"
    burstiness: float = 1.0
    concurrency: int | None = None
    arrivals: Array | None = None  # Seconds at which requests were sent, where they are listed
    served_rate: float | None = None
    prefix_hit_rate: float | None = None


def make_workload(load: Load, asked: Asked) -> tuple[Workload, tuple[str, ...], bool]:
    """The requests to replay, what had to be assumed, and whether lengths are known by their means alone."""
    assumed: list[str] = []
    rate, concurrency = load.rate, load.concurrency
    if asked.rate is not None or asked.concurrency is not None:
        rate, concurrency = asked.rate, asked.concurrency
    elif rate is not None and concurrency is not None and load.arrivals is None:
        # A rate with a limit on requests at one time: one of both decides, by whether nearly as many were served.
        if load.served_rate is not None and load.served_rate < 0.9 * rate:
            assumed.append(
                f"at {rate:g} requests/s the limit of {concurrency} at one time decided, so there is no rate"
            )
            rate = None
        else:
            assumed.append(f"the limit of {concurrency} requests at one time was not reached")
            concurrency = None
    count = min(asked.count or load.count, MOST_REQUESTS)
    if count < load.count:
        assumed.append(f"the first {count:,} of {load.count:,} requests are replayed")
    hits = asked.prefix_hit_rate if asked.prefix_hit_rate is not None else load.prefix_hit_rate
    inputs, outputs = asked.input_len or load.inputs, asked.output_len or load.outputs
    if not (isinstance(inputs, np.ndarray) and isinstance(outputs, np.ndarray)):
        workload = _drawn(load, asked, (count, rate, concurrency), (inputs, outputs), assumed)
    else:
        workload = _listed(load, (count, rate, concurrency), inputs, outputs, assumed)
    means_only = any(isinstance(each, Lengths) and each.spread == 0 for each in (inputs, outputs))
    return workload if not hits else _with_hits(workload, hits, assumed), tuple(assumed), means_only


def _drawn(
    load: Load, asked: Asked, kind: tuple[int, float | None, int | None],
    lengths: tuple[Array | Lengths | str, Array | Lengths | str], assumed: list[str],
) -> Workload:  # fmt: skip
    count, rate, concurrency = kind
    inputs, outputs = (
        str(
            Lengths(*map(float, (each.mean(), each.std(), each.min(), each.max())))
            if isinstance(each, np.ndarray)
            else each
        )
        for each in lengths
    )
    for name, text, given in (("prompt", inputs, asked.input_len), ("answer", outputs, asked.output_len)):
        if given is None:
            what = f"are all taken to be {text} tokens" if text.isdigit() else f"are drawn from {text}"
            option = "--input-len" if name == "prompt" else "--output-len"
            assumed.append(f"{name} lengths are not listed and {what}; {option} says otherwise")
    common: dict[str, Any] = {"input_lengths": inputs, "output_lengths": outputs, "seed": asked.seed}
    if concurrency is not None:
        return synthetic_workload(concurrency=concurrency, count=count, **common)
    arrival = "burst" if rate is None else load.arrival
    burstiness = load.burstiness if load.arrival == "gamma" else 1.0
    return synthetic_workload(arrival=arrival, rate=rate, count=count, burstiness=burstiness, **common)


def _listed(
    load: Load, kind: tuple[int, float | None, int | None], inputs: Array, outputs: Array, assumed: list[str]
) -> Workload:
    count, rate, concurrency = kind
    count = min(count, inputs.size)
    if count < 1:
        raise InputError("a result without a single request that was answered tells nothing")
    times = np.zeros(count)
    what = f"{count:,} requests as listed"
    if concurrency is not None and (load.arrivals is None or rate is None):
        how = f"{concurrency} clients"
    elif load.arrivals is not None:
        times, concurrency, how = load.arrivals[:count] - load.arrivals[:count].min(), None, "sent as listed"
    elif rate is None:
        how = "all at once"
    else:
        times = arrival_times(load.arrival, rate, count, np.random.default_rng(0), load.burstiness)
        how = f"{load.arrival} {rate:g} requests/s"
        assumed.append("when requests were sent is not listed, so it is drawn anew")
    order = np.argsort(times, kind="stable")
    pairs = zip(times[order].tolist(), inputs[order].tolist(), outputs[order].tolist(), strict=True)
    requests = tuple(Request(time, max(1, round(tokens)), max(1, round(answer))) for time, tokens, answer in pairs)
    return Workload(requests, concurrency=concurrency, rate=rate, description=f"{what}, {how}")


def _with_hits(workload: Workload, share: float, assumed: list[str]) -> Workload:
    """The same where so much of each prompt is in the cache already: it starts as all others do."""
    assumed.append(f"{share:.0%} of each prompt is what others begin with, too, as so much was found in the cache")
    requests = tuple(
        replace(each, prefix=(Segment(0, int(share * each.num_input)),)) if int(share * each.num_input) else each
        for each in workload.requests
    )
    return replace(workload, requests=requests, drawn=None)


def read_text(path: Path) -> str:
    with reading(path, "a result"):
        if path.stat().st_size > MOST_BYTES:
            raise FileFormatError(path, f"is larger than {MOST_BYTES // 2**20} MiB, which no result is")
        return path.read_text(encoding="utf-8-sig")


def parse_json(path: Path, text: str) -> Any:
    with reading(path, "JSON"):
        return json.loads(text)


def numbers_of(values: Fields, name: str, *, least: float = 0.0, most: float = 1e12) -> Array | None:
    value = values.holder.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in value
    ):
        raise values.wrong(name, "must be a list of numbers")
    array = np.array(value, dtype=float)
    if array.size and not (least <= array.min() and array.max() <= most):  # not for a value that is no number
        raise values.wrong(name, f"must hold numbers from {least:g} to {most:g}")
    return array


def summed_up(latency: str, values: Array) -> dict[str, float]:
    if not values.size:
        return {}
    found = dict(zip(NAMES, percentiles(values).values, strict=True))
    return {f"{latency}_{name}": value for name, value in found.items() if value > 0}


def statistics(
    values: Fields, latency: str, called: Mapping[str, str] | Sequence[tuple[str, str]], scale: float
) -> dict[str, float]:
    """What an object says of a latency: our names by theirs, in seconds."""
    found = {}
    for ours, theirs in dict(called).items():
        value = values.number(theirs, most=LONGEST_SECONDS / scale)
        if value:
            found[f"{latency}_{ours}"] = value * scale
    return found


def result_path(asked: Path, forecast: Forecast) -> Path:
    """The file itself; in a folder, one of the name that the benchmark chooses."""
    if not asked.is_dir():
        return asked
    load, model = _load(forecast), forecast.deployment.model.name.rsplit("/", 1)[-1]
    clients = "" if load["max_concurrency"] is None else f"-concurrency{load['max_concurrency']}"
    return asked / f"{BACKEND}-{load['request_rate']}qps{clients}-{model}-{DATE}.json"


def saved_result(forecast: Forecast, *, detailed: bool = False) -> dict[str, Any]:
    """The same as plain data, in the order of the benchmark; with ``detailed`` a list entry for each request."""
    served, requests = forecast.clients, forecast.workload.requests
    model = forecast.deployment.model.name
    inputs = sum(request.num_input for request in requests)
    outputs, duration = int(served.num_output.sum()), float(served.last_token.max() - served.sent_at.min())
    count, goodput = len(requests), None if forecast.verdict is None else forecast.verdict.goodput
    return {
        "date": DATE, "endpoint_type": BACKEND, "backend": BACKEND, "label": None, "model_id": model,
        "tokenizer_id": model, "num_prompts": count, "forecast_by": f"infercast {__version__}", **_load(forecast),
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


def _busiest_second(served: ServedRequests) -> float:
    """The most tokens of any second after the first request was sent."""
    ended, _, counts = served.timed_gaps
    begin = float(served.sent_at.min())
    times = np.concatenate([served.first_token, ended]) - begin
    weights = np.concatenate([np.ones(served.first_token.size), counts])
    return float(np.bincount(times.astype(np.int64), weights=weights).max())


def _most_at_once(served: ServedRequests) -> int:
    """The most requests that were in the system at some time of one second."""
    begin = float(served.sent_at.min())
    first, last = ((times - begin).astype(np.int64) for times in (served.sent_at, served.last_token))
    change = np.zeros(ceil(float(last.max())) + 2, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    return int(np.cumsum(change).max())


def _details(forecast: Forecast) -> dict[str, Any]:
    served, requests = forecast.clients, forecast.workload.requests
    return {
        "input_lens": [request.num_input for request in requests], "output_lens": served.num_output.tolist(),
        "ttfts": served.ttft.tolist(), "itls": _gaps_of_requests(forecast), "start_times": served.sent_at.tolist(),
        "generated_texts": [""] * len(requests), "errors": [""] * len(requests),
    }  # fmt: skip


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
