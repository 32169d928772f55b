"""A snapshot of an engine's ``/metrics`` in Prometheus' text format: histograms of all that it served so far.

Names as in ``vllm/v1/metrics/loggers.py`` of 0.25.0. It does not say how requests came, so that must be given.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from infercast.calibrate.readers.load import Asked, Lengths, Load, make_workload
from infercast.calibrate.result import Result
from infercast.errors import FileFormatError, InputError

KIND = "Prometheus snapshot"
LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>\S+)(?:\s+\d+)?\s*")
EDGE = re.compile(r'\ble="([^"]*)"')
LATENCIES = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "tpot": ("vllm:request_time_per_output_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "e2e": ("vllm:e2e_request_latency_seconds",),
}
"""Histograms; the second name is that of earlier releases."""
MOST_REPLAYED = 1000


def is_metrics_text(text: str) -> bool:
    """Whether it is one."""
    return "vllm:" in text and ("# TYPE" in text or "# HELP" in text)


def read_metrics_text(path: Path, text: str, asked: Asked) -> Result:
    """The sums over all engines and labels."""
    totals, edges = _sums(path, text)
    count = round(totals.get("vllm:request_prompt_tokens_count", 0.0))
    if count < 1:
        raise FileFormatError(path, "vllm:request_prompt_tokens counts no request; take it after some were served")
    if asked.rate is None and asked.concurrency is None:
        raise InputError(f"{path} is a snapshot, which does not say how requests came; give --rate or --concurrency")
    seen: dict[str, float] = {}
    for ours, names in LATENCIES.items():
        name = next((each for each in names if totals.get(f"{each}_count", 0) > 0), None)
        if name is not None:
            seen[f"{ours}_mean"] = totals[f"{name}_sum"] / totals[f"{name}_count"]
            seen |= {f"{ours}_p50": middle} if (middle := _middle(edges[name])) else {}
    if "ttft_mean" not in seen:
        raise FileFormatError(path, "vllm:time_to_first_token_seconds counts nothing")
    means = [totals.get(f"vllm:request_{kind}_tokens_sum", 0.0) / count for kind in ("prompt", "generation")]
    load = Load(min(count, MOST_REPLAYED), Lengths(max(means[0], 1.0)), Lengths(max(means[1], 1.0)))
    asked_queries, hits = (_counter(totals, f"vllm:prefix_cache_{each}") for each in ("queries", "hits"))
    found = hits / asked_queries if asked_queries else None
    drafts, accepted = (_counter(totals, f"vllm:spec_decode_num_{each}") for each in ("drafts", "accepted_tokens"))
    shared = Load(load.count, load.inputs, load.outputs, prefix_hit_rate=found if found and found > 0.01 else None)
    made = make_workload(shared, asked)
    return Result(
        file=path.name,
        kind=KIND,
        workload=made.workload,
        means_only=made.means_only,
        seen={name: value for name, value in seen.items() if value > 0},
        server_side=True,
        acceptance_length=1 + accepted / drafts if drafts else None,
        prefix_hit_rate=found,
        assumptions=(*made.assumptions, "times are the engine's own, without API server and network"),
    )


def _counter(totals: dict[str, float], name: str) -> float:
    """Exporters write a counter with ``_total`` behind its name, or without."""
    return totals.get(f"{name}_total", totals.get(name, 0.0))


def _sums(path: Path, text: str) -> tuple[dict[str, float], dict[str, dict[float, float]]]:
    """Values by name, and the cumulated buckets of histograms by their upper ends."""
    totals: dict[str, float] = defaultdict(float)
    edges: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = LINE.fullmatch(line)
        try:
            value = float(found["value"]) if found else None
        except ValueError:
            value = None
        if found is None or value is None:
            raise FileFormatError(path, f"is no line of Prometheus' text format: {line[:60]!r}", number)
        name = found["name"]
        if not name.startswith("vllm:") or not 0 <= value < float("inf"):
            continue
        edge = EDGE.search(found["labels"] or "")
        if edge is None:
            totals[name] += value
        elif name.endswith("_bucket"):
            edges[name.removesuffix("_bucket")][_edge(path, edge[1], number)] += value
    return totals, edges


def _edge(path: Path, text: str, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise FileFormatError(path, f"le={text[:20]!r} is no number", line) from None


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
