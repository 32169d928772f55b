"""Reports of inference-perf: ``stage_N_lifecycle_metrics.json`` and ``summary_lifecycle_metrics.json``.

Fields as in ``inference_perf/reportgen/base.py``; times are in seconds. A summary over several stages has no one rate:
the reports of its stages are what can be replayed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infercast.calibrate.readers.load import Asked, Lengths, Load, make_workload
from infercast.calibrate.readers.values import Values, statistics, with_rate
from infercast.calibrate.result import Result
from infercast.errors import FileFormatError

KIND = "inference-perf"
LATENCIES = {
    "ttft": "time_to_first_token", "tpot": "time_per_output_token", "itl": "inter_token_latency",
    "e2e": "request_latency",
}  # fmt: skip
CALLED = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}


def is_inference_perf(document: Any) -> bool:
    """Whether it is one."""
    return isinstance(document, dict) and "load_summary" in document and "successes" in document


def read_inference_perf(path: Path, document: Any, asked: Asked) -> Result:
    """One stage."""
    values = Values(path, document)
    successes, sent = values.part("successes"), values.part("load_summary")
    latency, throughput = successes.part("latency"), successes.maybe("throughput")
    seen: dict[str, float] = {}
    for ours, theirs in LATENCIES.items():
        if (summary := latency.maybe(theirs)) is not None:
            seen |= statistics(summary, ours, CALLED, 1.0)
    if not seen:
        raise FileFormatError(path, "successes.latency says no latency")
    rate, concurrency = sent.number("requested_rate", least=0.0), sent.count("concurrency", least=1)
    if not rate and concurrency is None and asked.rate is None and asked.concurrency is None:
        raise FileFormatError(
            path,
            "load_summary has no requested_rate: give the stage_N_lifecycle_metrics.json of each stage, or --rate",
        )
    load = Load(
        count=round(successes.needed("count", least=1)),
        inputs=_lengths(successes, ("prompt_tokens", "prompt_len")),
        outputs=_lengths(successes, ("output_tokens", "output_len")),
        rate=None if concurrency is not None else rate or None,
        concurrency=concurrency,
        prefix_hit_rate=_hits(successes),
    )
    made = make_workload(load, asked)
    return Result(
        file=path.name,
        kind=KIND,
        workload=made.workload,
        means_only=made.means_only,
        seen=with_rate(seen, None if throughput is None else throughput.number("output_tokens_per_sec")),
        prefix_hit_rate=load.prefix_hit_rate,
        assumptions=made.assumptions,
    )


def _lengths(successes: Values, names: tuple[str, str]) -> Lengths:
    """Newer releases have what the server counted, older ones what the client did."""
    for name in names:
        found = successes.maybe(name)
        if found is not None and found.number("mean") is not None:
            low, middle, high = found.number("min"), found.number("median"), found.number("max")
            mean = found.needed("mean", least=1)
            spread = 0.0 if low is None or high is None or middle is None else (high - low) / 4
            return Lengths(mean, spread, low, high)
    raise successes.wrong(names[0], "is missing: how long requests were")


def _hits(successes: Values) -> float | None:
    found = successes.maybe("prompt_tokens")
    if found is None:
        return None
    total, cached = found.number("total"), found.number("cached")
    return cached / total if total and cached is not None and 0 < cached <= total else None
