"""A running engine against its forecast: two snapshots of its metrics, the load between them, and what deviates."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path

from infercast.bundled import read_data
from infercast.calibrate.learn import calibrate
from infercast.calibrate.readers import EDGE, LINE, read_metrics_text
from infercast.calibrate.result import Asked, Lengths
from infercast.engines.base import FAMILIES, Deployment
from infercast.errors import InputError
from infercast.forecast.calibration import TITLES, Calibration

LARGEST = 64 * 2**20  # Bytes of a page of metrics
NOTED = 0.08  # A factor this far from 1 (as a logarithm) is told, if it is known better than that
HITS_NOTED = 0.1  # A change of the share of prefix hits that is told
FEWEST = 20  # Requests that make a load
CHANGES = {
    "host": "the CPU is slower than assumed: a faster host, fewer API servers on its cores, or --host for the forecast",
    "prefill": "steps with prompts take longer on the GPU: look at its clock, power limit and attention backend",
    "decode": "decode steps take longer on the GPU: look at its clock, its power limit and CUDA graphs",
}
Snapshot = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen of an engine for a while, and what the forecast expected."""

    seconds: float
    requests: int
    rate: float
    inputs: Lengths
    outputs: Lengths
    gauges: Mapping[str, float]  # running, waiting, kv_usage
    hits: float | None  # share of prompt tokens in the prefix cache while it was watched ...
    hits_before: float | None  # ... and before
    calibration: Calibration
    deviations: tuple[str, ...]


def fetch(url: str, path: str = "/metrics") -> str:
    """A page of an engine at an address, with or without the path to its metrics or its API."""
    address = url if "://" in url else f"http://{url}"
    if not address.startswith(("http://", "https://")):
        raise InputError(f"{url!r} is no address of a server; give http://HOST:PORT")
    address = address.removesuffix("/").removesuffix("/v1").removesuffix("/metrics") + path
    try:
        with urllib.request.urlopen(address, timeout=10) as reply:
            return str(reply.read(LARGEST).decode("utf-8", "replace"))
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "reason", problem)
        raise InputError(f"{address} does not answer: {reason}; is the engine running, with its metrics on?") from None


def parse(text: str) -> dict[tuple[str, str], float]:
    """Values by name and labels; lines that are none are left out, as Prometheus does with some exporters."""
    found: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else LINE.fullmatch(line)
        if match is not None:
            try:
                found[match["name"], match["labels"] or ""] = float(match["value"])
            except ValueError:
                continue
    return found


def as_vllm(values: Snapshot) -> dict[tuple[str, str], float]:
    """SGLang's metrics under vLLM's names, by what both show."""
    tables = {family: read_data(f"engines/{family}/metrics.toml")["metric"] for family in FAMILIES}
    names = {row["value"]: row["name"] for row in reversed(tables["vllm"])}
    others = {row["name"]: names[row["value"]] for row in tables["sglang"] if row["value"] in names}
    found = dict(values)
    for (name, labels), value in values.items():
        part = re.search(r"_(?:bucket|sum|count)$", name)
        stem = name if part is None else name[: part.start()]
        if stem in others:
            suffix = part[0] if part is not None else ""
            total = "_total" if stem.endswith("_total") else ""
            found[f"{others[stem].removesuffix('_total')}{total}{suffix}", labels] = value
    queries = {labels: value for (name, labels), value in found.items() if name == "vllm:prompt_tokens_total"}
    for labels, value in queries.items():
        found.setdefault(("vllm:prefix_cache_queries_total", labels), value)
    return found


def between(first: Snapshot, second: Snapshot) -> str:
    """What was counted from one snapshot to the other, in the same format."""
    lines = []
    for (name, labels), value in second.items():
        counted = re.search(r"_(?:total|bucket|sum|count)$", name)
        change = value - first.get((name, labels), 0.0) if counted else value
        lines.append(f"{name}{{{labels}}} {max(0.0, change)!r}")
    return "\n".join(lines) + "\n"


def total(values: Snapshot, name: str) -> float:
    return sum(value for (each, _), value in values.items() if each == name)


def lengths_of(values: Snapshot, name: str) -> Lengths:
    """Mean and spread of a histogram of tokens; within a bucket, values are taken to be in its middle."""
    count = total(values, f"{name}_count")
    mean = max(1.0, total(values, f"{name}_sum") / count)
    by_edge: dict[float, float] = {}
    for (each, labels), value in values.items():
        edge = EDGE.search(labels) if each == f"{name}_bucket" else None
        if edge is not None:
            by_edge[float(edge[1])] = by_edge.get(float(edge[1]), 0.0) + value
    below, before, rows = 0.0, 0.0, []
    for end, cumulated in sorted(by_edge.items()):
        upper = end if end < float("inf") else 2 * below
        if cumulated > before and upper > 0:
            lower = max(below, upper / 4)  # the first bucket begins at 0, which no prompt has
            rows.append((cumulated - before, log(sqrt(lower * upper)), log(upper / lower)))
        below, before = upper, cumulated
    if len(rows) < 2:
        return Lengths(mean)
    number = sum(weight for weight, _, _ in rows)
    middle = sum(weight * at for weight, at, _ in rows) / number
    within = sum(weight * width * width for weight, _, width in rows) / number / 12
    variance = max(0.0, sum(weight * (at - middle) ** 2 for weight, at, _ in rows) / number - within)
    return Lengths(mean, mean * sqrt(exp(variance) - 1))


def judge(deployment: Deployment, first: str, second: str, seconds: float, tell: Callable[[str], None]) -> Watched:
    """Two snapshots, ``seconds`` apart, held against the forecast of the load between them."""
    before, after = as_vllm(parse(first)), as_vllm(parse(second))
    text = between(before, after)
    values = parse(text)
    count = round(total(values, "vllm:request_prompt_tokens_count"))
    if count < FEWEST:
        raise InputError(
            f"{count} requests ended in {seconds:.0f} s, too few for a forecast; watch longer with --seconds, or send "
            f"at least {FEWEST}"
        )
    inputs, outputs = (lengths_of(values, f"vllm:request_{kind}_tokens") for kind in ("prompt", "generation"))
    queries, hits = (total(values, f"vllm:prefix_cache_{each}_total") for each in ("queries", "hits"))
    earlier = [total(before, f"vllm:prefix_cache_{each}_total") for each in ("queries", "hits")]
    share = hits / queries if queries else None
    share_before = earlier[1] / earlier[0] if earlier[0] else None
    rate = count / seconds
    asked = Asked(rate=rate, input_len=str(inputs), output_len=str(outputs))
    result = read_metrics_text(Path("metrics"), text, asked)
    learned = calibrate(deployment, [result], asked=asked, tell=tell)
    told = []
    for name, factor in learned.factors.items():
        if name != "path" and factor.is_told and abs(log(factor.value)) > max(NOTED, factor.spread):
            side = "above" if factor.value > 1 else "below"
            told.append(f"{TITLES[name]} is {abs(factor.value - 1):.0%} {side} the forecast: {CHANGES[name]}")
    if share is not None and share_before is not None and abs(share - share_before) > HITS_NOTED:
        change = f"prefix hits went from {share_before:.0%} to {share:.0%} of prompt tokens"
        told.insert(0, f"{change}: look at what clients send first, at routing, and at evictions")
    names = {"running": "num_requests_running", "waiting": "num_requests_waiting", "kv_usage": "kv_cache_usage_perc"}
    gauges = {name: total(after, f"vllm:{each}") for name, each in names.items()}
    if gauges["waiting"] > gauges["running"] > 0:
        told.append("more requests wait than run: the engine is saturated, and latencies grow with time")
    return Watched(seconds, count, rate, inputs, outputs, gauges, share, share_before, learned, tuple(told))


def watch(
    deployment: Deployment, url: str, seconds: float = 30.0, tell: Callable[[str], None] = lambda _: None
) -> Watched:
    """Read the metrics of a running engine for a while, and say what deviates from the forecast at this load."""
    if not 1 <= seconds <= 86400:
        raise InputError(f"seconds must be from 1 to 86,400, not {seconds:g}")
    began, first = time.monotonic(), fetch(url)
    tell(f"{seconds:.0f} s of {url}")
    time.sleep(seconds)
    second = fetch(url)
    return judge(deployment, first, second, time.monotonic() - began, tell)
