"""GuideLLM's ``benchmarks.json``: a benchmark for each strategy, with its requests where they were kept.

Fields as in ``guidellm/benchmark/schemas`` of 0.8.1. Its inter-token latency is a mean over each request without the
first token, which is TPOT here; its time per output token counts the first one, too, and is not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from infercast.calibrate.readers.load import Asked, Lengths, Load, make_workload
from infercast.calibrate.readers.values import LONGEST_SECONDS, Values, statistics, summed_up, with_rate
from infercast.calibrate.result import Result
from infercast.errors import FileFormatError
from infercast.units import MILLI

KIND = "GuideLLM"
WHERE = {
    "ttft": ("time_to_first_token_ms", MILLI),
    "tpot": ("inter_token_latency_ms", MILLI),
    "e2e": ("request_latency", 1.0),
}
ALL_AT_ONCE = "throughput"
STRATEGIES = ("synchronous", "concurrent", ALL_AT_ONCE, "constant", "poisson")


def is_guidellm(document: Any) -> bool:
    """Whether it is one."""
    found = document.get("benchmarks") if isinstance(document, dict) else None
    return isinstance(found, list) and bool(found) and isinstance(found[0], dict) and "metrics" in found[0]


def read_guidellm(path: Path, document: Any, asked: Asked) -> list[Result]:
    """A result for each benchmark."""
    found = document["benchmarks"]
    return [_read(Values(path, each, f"benchmarks[{place}]"), asked) for place, each in enumerate(found)]


def _read(values: Values, asked: Asked) -> Result:
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
            summary = _successful(metrics, theirs)
            if summary is not None:
                seen |= statistics(summary, ours, {"mean": "mean", "p50": "median"}, scale)
                if (ranks := summary.maybe("percentiles")) is not None:
                    seen |= statistics(ranks, ours, {name: name for name in ("p90", "p95", "p99")}, scale)
        inputs_of, outputs_of = (_lengths(metrics, name) for name in ("prompt_token_count", "output_token_count"))
        totals = metrics.part("request_totals").count("successful") or 0
        load = Load(totals, inputs_of, outputs_of, rate, kind, concurrency=concurrency)
    if not seen or load.count < 1:
        raise FileFormatError(values.path, f"{values.place} has no latency of a request that was answered")
    made = make_workload(load, asked)
    tokens = _successful(metrics, "output_tokens_per_second")
    return Result(
        file=f"{values.path.name} {values.place}",
        kind=KIND,
        workload=made.workload,
        means_only=made.means_only,
        seen=with_rate(seen, None if tokens is None else tokens.number("mean")),
        assumptions=made.assumptions,
    )


def _strategy(values: Values) -> tuple[str, float | None, int | None]:
    """How requests were sent: kind of arrival, rate, and how many at one time."""
    config = values.maybe("config") or values.maybe("args")
    strategy = None if config is None else config.maybe("strategy")
    strategy = strategy or values.maybe("strategy")
    if strategy is None:
        raise FileFormatError(values.path, f"{values.named('config')}.strategy is missing: how requests were sent")
    name = strategy.word("type_") or strategy.word("type") or ""
    if name == "synchronous":
        return "burst", None, 1
    if name == "concurrent":
        return "burst", None, round(strategy.needed("streams", least=1))
    if name == ALL_AT_ONCE:
        return "burst", None, strategy.count("max_concurrency", least=1)
    if name in ("constant", "poisson"):
        return name, strategy.needed("rate", least=1e-9), strategy.count("max_concurrency", least=1)
    raise FileFormatError(
        values.path,
        f"{strategy.named('type_')} {name!r} is not replayed; known: {', '.join(STRATEGIES)}",
    )


def _successful(metrics: Values, name: str) -> Values | None:
    found = metrics.maybe(name)
    return None if found is None else found.maybe("successful")


def _lengths(metrics: Values, name: str) -> Lengths:
    summary = _successful(metrics, name)
    if summary is None:
        raise metrics.wrong(name, "is missing: how long requests were")
    numbers = (summary.number(each) for each in ("std_dev", "min", "max"))
    spread, low, high = numbers
    return Lengths(summary.needed("mean", least=1), spread or 0.0, low, high)


NEEDED = ("request_start_time", "prompt_tokens", "output_tokens", "time_to_first_token_ms", "request_latency")


def _requests(values: Values) -> tuple[Any, ...] | None:
    """Of each request: when it was sent, its tokens, seconds to the first, of each, to the last; None: not kept."""
    holder = values.maybe("requests")
    kept = None if holder is None else holder.holder.get("successful")
    if not isinstance(kept, list) or not kept:
        return None
    rows = []
    for place, each in enumerate(kept):
        request = Values(values.path, each, values.named(f"requests.successful[{place}]"))
        if any(request.holder.get(name) is None for name in NEEDED):
            return None
        sent = request.needed("request_start_time", least=-1e18, most=1e18)
        tokens = [request.needed(name, least=1, most=1e8) for name in NEEDED[1:3]]
        first = MILLI * request.needed("time_to_first_token_ms", most=LONGEST_SECONDS / MILLI)
        each_token = MILLI * (request.number("inter_token_latency_ms", most=LONGEST_SECONDS / MILLI) or 0.0)
        rows.append((sent, *tokens, first, each_token, request.needed("request_latency", most=LONGEST_SECONDS)))
    table = np.array(sorted(rows))
    return tuple(table.T)
