"""Readers of result files of load generators: vLLM, SGLang, GuideLLM, AIPerf, inference-perf, and ``/metrics``.

Fields are those of ``vllm/benchmarks/serve.py`` and ``vllm/v1/metrics/loggers.py`` of 0.25.0,
``sglang/benchmark/serving.py`` of 0.5.16, ``guidellm/benchmark/schemas`` of 0.8.1,
``aiperf/common/models/export_models.py`` of 0.13.0, ``genai_perf/export_data`` of 0.0.16 and
``inference_perf/reportgen/base.py``. Inter-token latency of GuideLLM, AIPerf and GenAI-Perf is a mean over each request
without the first token, which is TPOT here. A summary over several stages has no one rate: its stages can be replayed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.calibration.result import (
    LONGEST_SECONDS,
    MOST_TOKENS,
    RATE,
    Asked,
    Lengths,
    Load,
    Result,
    make_workload,
    numbers_of,
    parse_json,
    read_text,
    statistics,
    summed_up,
)
from infercast.errors import Fields, FileFormatError, InputError
from infercast.units import MILLI

Array = npt.NDArray[Any]
Snapshot = Mapping[tuple[str, str], float]  # Values of ``/metrics`` by name and labels
AIPERF_LATENCIES = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
AIPERF_NAMES = {"mean": "avg", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
BENCH_SERVE = "vllm bench serve"
BENCH_SERVE_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
Lists = tuple[Array, Array, Array, Array, Array | None]
"""Prompt and answer tokens, times to the first token and from it to the last, and when requests were sent."""
NEEDED = ("request_start_time", "prompt_tokens", "output_tokens", "time_to_first_token_ms", "request_latency")
SGLANG_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"}
WHERE = {
    "ttft": ("time_to_first_token_ms", MILLI), "tpot": ("inter_token_latency_ms", MILLI),
    "e2e": ("request_latency", 1.0),
}  # fmt: skip
ALL_AT_ONCE = "throughput"
STRATEGIES = ("synchronous", "concurrent", ALL_AT_ONCE, "constant", "poisson")
LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>\S+)(?:\s+\d+)?\s*")
EDGE = re.compile(r'\ble="([^"]*)"')
METRICS_LATENCIES = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "tpot": ("vllm:request_time_per_output_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "e2e": ("vllm:e2e_request_latency_seconds",),
}  # Histograms; the second name is that of earlier releases
INFERENCE_PERF_LATENCIES = {
    "ttft": "time_to_first_token", "tpot": "time_per_output_token", "itl": "inter_token_latency",
    "e2e": "request_latency",
}  # fmt: skip
INFERENCE_PERF_NAMES = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
KNOWN = (
    "vllm bench serve --save-result, vllm bench sweep, SGLang's bench_serving, GuideLLM, AIPerf, GenAI-Perf, "
    "inference-perf, and a snapshot of vLLM's /metrics"
)
MOST_FILES = 200


def _result(
    file: str, kind: str, load: Load, asked: Asked, seen: dict[str, float], rate: float | None, **known: Any
) -> Result:
    """A result with requests that can be replayed; ``rate``: output tokens a second, where the file says."""
    workload, assumed, means_only = make_workload(load, asked)
    assumed = (*assumed, *known.pop("assumptions", ()))
    seen = {**seen, RATE: rate} if rate and isfinite(rate) else seen
    return Result(file, kind, workload, seen, means_only, assumptions=assumed, **known)


def _latencies(
    values: Fields, latencies: Mapping[str, str], called: Mapping[str, str], scale: Callable[[Fields], float]
) -> dict[str, float]:
    found = [(ours, values.maybe(theirs)) for ours, theirs in latencies.items()]
    return {name: value for ours, each in found for name, value in statistics(each, ours, called, scale(each)).items()}


def _summary(values: Fields, mean: str, spread: str) -> Lengths:
    """Lengths by their mean and standard deviation, which have these names, and their ends."""
    ends = values.number("min"), values.number("max")
    return Lengths(values.needed(mean, least=1), values.number(spread) or 0.0, *ends)


def read_aiperf(path: Path, document: Any, asked: Asked, name: str) -> list[Result]:
    values = Fields(path, document)
    seen = _latencies(values, AIPERF_LATENCIES, AIPERF_NAMES, _scale)
    if not seen:
        raise FileFormatError(path, "request_latency says no latency")
    rate, concurrency, arrival = _stimulus(values)
    if (rate, concurrency, asked.rate, asked.concurrency) == (None,) * 4:
        raise FileFormatError(
            path, "input_config says no concurrency and no request_rate; give --concurrency or --rate"
        )
    inputs, outputs = (_summary(values.part(f"{each}_sequence_length"), "avg", "std") for each in ("input", "output"))
    count = values.maybe("request_count").count("avg", least=1)
    usual_count = 200
    count = count or values.part("request_latency").count("count", least=1) or usual_count
    served = values.maybe("request_throughput").number("avg")
    load = Load(count, inputs, outputs, rate, arrival, concurrency=concurrency, served_rate=served)
    kind = "AIPerf" if "aiperf_version" in document or "schema_version" in document else "GenAI-Perf"
    return [_result(path.name, kind, load, asked, seen, values.maybe("output_token_throughput").number("avg"))]


def _scale(metric: Fields) -> float:
    unit = metric.word("unit", "ms")
    if unit not in SECONDS:
        raise metric.wrong("unit", f"{unit!r} is no unit of time; known: {', '.join(SECONDS)}")
    return SECONDS[unit]


def _stimulus(values: Fields) -> tuple[float | None, int | None, str]:
    """Rate, concurrency and kind of arrival: of the last phase but a warm-up, or where older releases have them."""
    config = values.part("input_config")
    places = [config.maybe("perf_analyzer").maybe("stimulus"), config.maybe("loadgen"), config]
    phases = config.holder.get("phases")
    for phase in reversed(phases if isinstance(phases, list) else []):
        if isinstance(phase, dict) and "warm" not in str(phase.get("name", "")):
            places.insert(0, Fields(values.path, phase, "input_config.phases"))
            break
    for place in places:
        rate = place.number("request_rate", least=1e-9) or place.number("rate", least=1e-9)
        concurrency = place.count("concurrency", least=1)
        if rate is not None or concurrency is not None:
            mode = str(place.holder.get("request_rate_mode") or place.holder.get("type") or "poisson")
            return rate, concurrency, "constant" if mode == "constant" else "poisson"
    return None, None, "poisson"


def read_bench_serve(path: Path, document: Any, asked: Asked, name: str) -> list[Result]:
    values = Fields(path, document, "" if name == path.name else name.removeprefix(f"{path.name} "))
    if values.word("ramp_up_strategy"):
        raise FileFormatError(path, "ramp_up_strategy: a rate that grows is not replayed; give runs at one rate each")
    burstiness = values.number("burstiness", least=1e-3, most=1e6) or 1.0
    sent = {"arrival": "poisson" if burstiness == 1.0 else "gamma", "burstiness": burstiness}
    failed = values.count("failed")
    known = {
        "model": values.word("model_id") or None,
        "acceptance_length": values.number("spec_decode_acceptance_length", least=1, most=1e3),
        "assumptions": (f"{failed:,} requests that failed are left out",) if failed else (),
    }
    return _read_serving(values, asked, (name, BENCH_SERVE), BENCH_SERVE_LATENCIES, sent, **known)


def _read_serving(
    values: Fields, asked: Asked, names: tuple[str, str], latencies: dict[str, str], sent: dict[str, Any], **known: Any
) -> list[Result]:
    (name, kind), completed = names, values.count("completed") or 0
    if completed < 1:
        raise FileFormatError(values.path, f"{values.named('completed')} is {completed}: no request was answered")
    detailed = read_lists(values)
    if detailed is None:
        inputs, outputs = (_mean_length(values, each, completed) for each in ("input", "output"))
    else:
        inputs, outputs = detailed[:2]
    arrivals = detailed[4] if detailed is not None and kind == BENCH_SERVE else None
    sent["concurrency"] = values.count("max_concurrency", least=1)
    sent["served_rate"] = values.number("request_throughput")
    load = Load(completed, inputs, outputs, read_rate(values), arrivals=arrivals, **sent)
    seen = seen_in_fields(values, latencies) if detailed is None else seen_in_lists(detailed)
    title = kind if detailed is None else f"{kind}, detailed"
    return [_result(name, title, load, asked, seen, values.number("output_throughput"), **known)]


def _mean_length(values: Fields, what: str, completed: int) -> Any:
    mean = values.needed(f"total_{what}_tokens", least=1) / completed
    ratio, most = values.number("random_range_ratio", most=1.0), values.count(f"random_{what}_len", least=1)
    evenly = ("random", "random-ids")  # SGLang's datasets of lengths drawn evenly from a share of the longest to it
    if values.word("dataset_name") in evenly and most is not None and ratio is not None and ratio < 1:
        return f"uniform:{max(1, round(ratio * most))}:{most}"
    return Lengths(mean)


def read_rate(values: Fields) -> float | None:
    """Requests a second; None where all were sent as fast as clients may."""
    value = values.holder.get("request_rate")
    if value is None or value == "inf" or value == float("inf"):
        return None
    return values.needed("request_rate", least=1e-9, most=1e6)


def seen_in_fields(values: Fields, latencies: dict[str, str]) -> dict[str, float]:
    seen: dict[str, float] = {}
    for ours, theirs in latencies.items():
        called = {"mean": f"mean_{theirs}_ms", "p50": f"median_{theirs}_ms"}
        called |= {name: f"{name}_{theirs}_ms" for name in ("p90", "p95", "p99")}
        seen |= statistics(values, ours, called, MILLI)
    if "ttft_p50" not in seen and "ttft_mean" not in seen and "e2e_mean" not in seen:
        raise FileFormatError(values.path, f"{values.named('mean_ttft_ms')} is missing: it says no latency")
    return seen


def read_lists(values: Fields) -> Lists | None:
    if not all(isinstance(values.holder.get(name), list) for name in ("input_lens", "output_lens", "ttfts", "itls")):
        return None
    inputs = numbers_of(values, "input_lens", most=MOST_TOKENS)
    outputs = numbers_of(values, "output_lens", most=MOST_TOKENS)
    first = numbers_of(values, "ttfts", most=LONGEST_SECONDS)
    sent = numbers_of(values, "start_times", least=-1e18, most=1e18)
    gaps = values.holder["itls"]
    assert inputs is not None
    assert outputs is not None
    assert first is not None
    counts = {inputs.size, outputs.size, first.size, len(gaps), inputs.size if sent is None else sent.size}
    if len(counts) > 1:
        raise FileFormatError(values.path, "input_lens, output_lens, ttfts, itls and start_times must be equally long")
    later = np.array([_sum(values, each, place) for place, each in enumerate(gaps)])
    good = (outputs >= 1) & (first > 0) & (inputs >= 1)
    if not good.any():
        raise FileFormatError(values.path, "output_lens: no request was answered")
    return inputs[good], outputs[good], first[good], later[good], None if sent is None else sent[good]


def _sum(values: Fields, gaps: Any, place: int) -> float:
    try:
        total = float(sum(gaps))
    except (TypeError, ValueError):
        total = -1.0
    if not 0 <= total <= LONGEST_SECONDS:
        raise values.wrong(f"itls[{place}]", "must be a list of seconds")
    return total


def seen_in_lists(lists: Lists) -> dict[str, float]:
    _, outputs, first, later, _ = lists
    several = (outputs > 1) & (later > 0)
    each = later[several] / (outputs[several] - 1)
    return {**summed_up("ttft", first), **summed_up("tpot", each), **summed_up("e2e", first + later)}


def documents_in(text: str) -> list[Any] | None:
    """The JSON documents of a file with one a line; None where it is not that."""
    found = []
    for line in text.splitlines():
        if line.strip():
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError):
                return None
    return found or None


def read_guidellm(path: Path, document: Any, asked: Asked, name: str) -> list[Result]:
    found = document["benchmarks"]
    if not isinstance(found, list) or not found:
        raise FileFormatError(path, "benchmarks must be a list with a benchmark in it")
    return [_guidellm_benchmark(Fields(path, each, f"benchmarks[{place}]"), asked) for place, each in enumerate(found)]


def _guidellm_benchmark(values: Fields, asked: Asked) -> Result:
    metrics = values.part("metrics")
    kind, rate, concurrency = _strategy(values)
    listed = _requests(values)
    seen: dict[str, float] = {}
    if listed is not None:
        sent, inputs, outputs, first, each, whole = listed
        seen = {**summed_up("ttft", first), **summed_up("tpot", each[outputs > 1]), **summed_up("e2e", whole)}
        load = Load(inputs.size, inputs, outputs, rate, kind, concurrency=concurrency, arrivals=sent)
    else:
        for ours, (theirs, scale) in WHERE.items():
            summary = metrics.maybe(theirs).maybe("successful")
            seen |= statistics(summary, ours, {"mean": "mean", "p50": "median"}, scale)
            seen |= statistics(
                summary.maybe("percentiles"), ours, {name: name for name in ("p90", "p95", "p99")}, scale
            )
        counts = (metrics.maybe(f"{each}_token_count").maybe("successful") for each in ("prompt", "output"))
        inputs_of, outputs_of = (_summary(each, "mean", "std_dev") for each in counts)
        totals = metrics.part("request_totals").count("successful") or 0
        load = Load(totals, inputs_of, outputs_of, rate, kind, concurrency=concurrency)
    if not seen or load.count < 1:
        raise FileFormatError(values.path, f"{values.place} has no latency of a request that was answered")
    rate = metrics.maybe("output_tokens_per_second").maybe("successful").number("mean")
    return _result(f"{values.path.name} {values.place}", "GuideLLM", load, asked, seen, rate)


def _strategy(values: Fields) -> tuple[str, float | None, int | None]:
    places = values.maybe("config"), values.maybe("args"), values
    strategy = next((found for place in places if (found := place.maybe("strategy")).holder), None)
    if strategy is None:
        raise FileFormatError(values.path, f"{values.named('config')}.strategy is missing: how requests were sent")
    name = strategy.word("type_", strategy.word("type"))
    if name == "synchronous":
        return "burst", None, 1
    if name == "concurrent":
        return "burst", None, round(strategy.needed("streams", least=1))
    if name == ALL_AT_ONCE:
        return "burst", None, strategy.count("max_concurrency", least=1)
    if name in ("constant", "poisson"):
        return name, strategy.needed("rate", least=1e-9), strategy.count("max_concurrency", least=1)
    said = f"{strategy.named('type_')} {name!r}"
    raise FileFormatError(values.path, f"{said} is not replayed; known: {', '.join(STRATEGIES)}")


def _requests(values: Fields) -> tuple[Any, ...] | None:
    """Of each request: when it was sent, its tokens, seconds to the first, of each, to the last; None: not kept."""
    kept = values.maybe("requests").holder.get("successful")
    if not isinstance(kept, list) or not kept:
        return None
    rows = []
    for place, each in enumerate(kept):
        request = Fields(values.path, each, values.named(f"requests.successful[{place}]"))
        if any(request.holder.get(name) is None for name in NEEDED):
            return None
        sent = request.needed("request_start_time", least=-1e18, most=1e18)
        tokens = [request.needed(name, least=1, most=1e8) for name in NEEDED[1:3]]
        first = MILLI * request.needed("time_to_first_token_ms", most=LONGEST_SECONDS / MILLI)
        each_token = MILLI * (request.number("inter_token_latency_ms", most=LONGEST_SECONDS / MILLI) or 0.0)
        rows.append((sent, *tokens, first, each_token, request.needed("request_latency", most=LONGEST_SECONDS)))
    return tuple(np.array(sorted(rows)).T)


def parse_metrics(text: str, path: Path | None = None) -> dict[tuple[str, str], float]:
    """Values by name and labels; what is no line of them is left out, or an error of the ``path``."""
    found: dict[tuple[str, str], float] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        try:
            if match is not None:
                found[match["name"], match["labels"] or ""] = float(match["value"])
                continue
        except ValueError:
            pass
        if path is not None:
            raise FileFormatError(path, f"is no line of Prometheus' text format: {line[:60]!r}", number)
    return found


def read_snapshot(path: Path, snapshot: Snapshot, asked: Asked) -> Result:
    totals, edges = _sums(path, snapshot)
    count = round(totals.get("vllm:request_prompt_tokens_count", 0.0))
    if count < 1:
        raise FileFormatError(path, "vllm:request_prompt_tokens counts no request; take it after some were served")
    if asked.rate is None and asked.concurrency is None:
        raise InputError(f"{path} is a snapshot, which does not say how requests came; give --rate or --concurrency")
    seen: dict[str, float] = {}
    for ours, names in METRICS_LATENCIES.items():
        name = next((each for each in names if totals.get(f"{each}_count", 0) > 0), None)
        if name is not None:
            seen[f"{ours}_mean"] = totals[f"{name}_sum"] / totals[f"{name}_count"]
            seen |= {f"{ours}_p50": middle} if (middle := _middle(edges[name])) else {}
    if "ttft_mean" not in seen:
        raise FileFormatError(path, "vllm:time_to_first_token_seconds counts nothing")
    means = [totals.get(f"vllm:request_{kind}_tokens_sum", 0.0) / count for kind in ("prompt", "generation")]
    asked_queries, hits = (_counter(totals, f"vllm:prefix_cache_{each}") for each in ("queries", "hits"))
    found = hits / asked_queries if asked_queries else None
    drafts, accepted = (_counter(totals, f"vllm:spec_decode_num_{each}") for each in ("drafts", "accepted_tokens"))
    inputs, outputs = (Lengths(max(mean, 1.0)) for mean in means)
    hit_rate = found if found and found > 0.01 else None
    most_replayed = 1000
    load = Load(min(count, most_replayed), inputs, outputs, prefix_hit_rate=hit_rate)
    known: dict[str, Any] = {"server_side": True, "acceptance_length": 1 + accepted / drafts if drafts else None}
    known |= {"prefix_hit_rate": found, "assumptions": ("times are the engine's own, without API server and network",)}
    seen = {name: value for name, value in seen.items() if value > 0}
    return _result(path.name, "Prometheus snapshot", load, asked, seen, None, **known)


def _counter(totals: dict[str, float], name: str) -> float:
    """Exporters write a counter with ``_total`` behind its name, or without."""
    return totals.get(f"{name}_total", totals.get(name, 0.0))


def _sums(path: Path, snapshot: Snapshot) -> tuple[dict[str, float], dict[str, dict[float, float]]]:
    """Values by name, and the cumulated buckets of histograms by their upper ends."""
    totals: dict[str, float] = defaultdict(float)
    edges: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for (name, labels), value in snapshot.items():
        if not name.startswith("vllm:") or not 0 <= value < float("inf"):
            continue
        edge = EDGE.search(labels)
        if edge is None:
            totals[name] += value
        elif name.endswith("_bucket"):
            try:
                edges[name.removesuffix("_bucket")][float(edge[1])] += value
            except ValueError:
                raise FileFormatError(path, f"le={edge[1][:20]!r} is no number") from None
    return totals, edges


def _middle(cumulated: dict[float, float]) -> float | None:
    """The median, evenly between the ends of its bucket; None where the bucket has no end, or is wide."""
    ends = sorted(cumulated.items())
    if not ends or not ends[-1][1]:
        return None
    half, (before, below) = ends[-1][1] / 2, (0.0, 0.0)
    for end, count in ends:
        if count >= half:
            wide = end == float("inf") or (below > 0 and end > 1.5 * below) or below == 0
            return None if wide or count == before else below + (end - below) * (half - before) / (count - before)
        before, below = count, end
    return None


def read_inference_perf(path: Path, document: Any, asked: Asked, name: str) -> list[Result]:
    values = Fields(path, document)
    successes, sent = values.part("successes"), values.part("load_summary")
    seen = _latencies(successes.part("latency"), INFERENCE_PERF_LATENCIES, INFERENCE_PERF_NAMES, lambda summary: 1.0)
    if not seen:
        raise FileFormatError(path, "successes.latency says no latency")
    rate, concurrency = sent.number("requested_rate", least=0.0), sent.count("concurrency", least=1)
    if not rate and concurrency is None and asked.rate is None and asked.concurrency is None:
        stages = "give the stage_N_lifecycle_metrics.json of each stage, or --rate"
        raise FileFormatError(path, f"load_summary has no requested_rate: {stages}")
    load = Load(
        count=round(successes.needed("count", least=1)),
        inputs=_inference_perf_lengths(successes, ("prompt_tokens", "prompt_len")),
        outputs=_inference_perf_lengths(successes, ("output_tokens", "output_len")),
        rate=None if concurrency is not None else rate or None,
        concurrency=concurrency,
        prefix_hit_rate=_hits(successes),
    )
    tokens = successes.maybe("throughput").number("output_tokens_per_sec")
    return [_result(path.name, "inference-perf", load, asked, seen, tokens, prefix_hit_rate=load.prefix_hit_rate)]


def _inference_perf_lengths(successes: Fields, names: tuple[str, str]) -> Lengths:
    """Newer releases have what the server counted, older ones what the client did."""
    for name in names:
        found = successes.maybe(name)
        if found.number("mean") is not None:
            low, middle, high = found.number("min"), found.number("median"), found.number("max")
            mean = found.needed("mean", least=1)
            spread = 0.0 if low is None or high is None or middle is None else (high - low) / 4
            return Lengths(mean, spread, low, high)
    raise successes.wrong(names[0], "is missing: how long requests were")


def _hits(successes: Fields) -> float | None:
    found = successes.maybe("prompt_tokens")
    total, cached = found.number("total"), found.number("cached")
    return cached / total if total and cached is not None and 0 < cached <= total else None


def read_sglang_serving(path: Path, document: Any, asked: Asked, name: str) -> list[Result]:
    values = Fields(path, document, name.removeprefix(path.name).strip())
    if values.holder.get("request_rate") == "trace":
        raise FileFormatError(path, "request_rate is trace: give the trace itself to `infercast simulate --trace`")
    hits = values.maybe("cache_report").number("cache_hit_rate_pct", most=100)
    hit_rate = {"prefix_hit_rate": None if hits is None else hits / 100}
    accepted = values.number("accept_length", most=1e3)
    known = {
        "model": values.maybe("server_info").word("model_path") or None,
        "acceptance_length": accepted if accepted and accepted > 1 else None,
        **hit_rate,
    }
    return _read_serving(values, asked, (name, "SGLang bench_serving"), SGLANG_LATENCIES, {**hit_rate}, **known)


def read_results(paths: Iterable[Path], asked: Asked | None = None) -> list[Result]:
    asked = asked or Asked()
    found = []
    for path in paths:
        for file in _files(path):
            text = read_text(file)
            digest = hashlib.sha256(text.encode()).hexdigest()
            found += [replace(each, sha256=digest) for each in _read(file, text, asked)]
    return found


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    runs = sorted(path.rglob("run=*.json"))
    others = [each for each in sorted(path.glob("*.json*")) if not each.name.endswith(".pytorch.json")]
    found = runs or [each for each in others if each.name != "summary.json"]
    if not found:
        raise FileFormatError(path, f"is a folder without a result; known: {KNOWN}")
    if len(found) > MOST_FILES:
        raise FileFormatError(path, f"holds {len(found):,} results; give at most {MOST_FILES} of them")
    return found


def _read(path: Path, text: str, asked: Asked) -> list[Result]:
    if "vllm:" in text and ("# TYPE" in text or "# HELP" in text):
        return [read_snapshot(path, parse_metrics(text, path), asked)]
    documents = documents_in(text) or [parse_json(path, text)]
    if len(documents) == 1 and isinstance(documents[0], list):
        documents = documents[0]  # a sweep's summary.json is a list of runs
    found: list[Result] = []
    for place, document in enumerate(documents, 1):
        name = path.name if len(documents) == 1 else f"{path.name} line {place}"
        marked = document if isinstance(document, dict) else {}
        read = next((read for marks, read in FORMATS if all(mark in marked for mark in marks)), None)
        if read is None:
            raise FileFormatError(path, f"is not a result that is known: {KNOWN}")
        found += read(path, document, asked, name)
    if not found:
        raise FileFormatError(path, "holds no result")
    return found


FORMATS = (
    (("total_output_tokens_retokenized", "input_throughput"), read_sglang_serving),
    (("total_input_tokens", "total_output_tokens", "request_throughput", "duration"), read_bench_serve),
    (("benchmarks",), read_guidellm),
    (("load_summary", "successes"), read_inference_perf),
    (("request_latency", "input_config"), read_aiperf),
)  # Fields that a document of a format has, and the reader of it; the first that fits is taken
