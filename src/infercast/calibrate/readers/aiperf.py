"""AIPerf's ``profile_export_aiperf.json`` and GenAI-Perf's ``profile_export_genai_perf.json``.

Fields as in ``aiperf/common/models/export_models.py`` of 0.13.0 and ``genai_perf/export_data`` of 0.0.16: an object for
each metric with its unit, and the settings under ``input_config``. Inter-token latency is the mean of each request
without its first token, which is TPOT here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from infercast.calibrate.readers.load import Asked, Lengths, Load, make_workload
from infercast.calibrate.readers.values import Values, statistics, with_rate
from infercast.calibrate.result import Result
from infercast.errors import FileFormatError

LATENCIES = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
CALLED = {"mean": "avg", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
USUAL_COUNT = 200
"""Requests where the file does not say how many there were."""


class Stimulus(NamedTuple):
    """How requests were sent."""

    rate: float | None
    concurrency: int | None
    arrival: str = "poisson"


def is_aiperf(document: Any) -> bool:
    """Whether it is one."""
    return (
        isinstance(document, dict) and isinstance(document.get("request_latency"), dict) and "input_config" in document
    )


def read_aiperf(path: Path, document: Any, asked: Asked) -> Result:
    """One result."""
    values = Values(path, document)
    seen: dict[str, float] = {}
    for ours, theirs in LATENCIES.items():
        if (metric := values.maybe(theirs)) is not None:
            seen |= statistics(metric, ours, CALLED, _scale(metric))
    if not seen:
        raise FileFormatError(path, "request_latency says no latency")
    stimulus = _stimulus(values)
    if stimulus.rate is None and stimulus.concurrency is None and asked.rate is None and asked.concurrency is None:
        raise FileFormatError(
            path, "input_config says no concurrency and no request_rate; give --concurrency or --rate"
        )
    throughput, requests = values.maybe("request_throughput"), values.maybe("request_count")
    load = Load(
        count=_count(values, requests),
        inputs=_lengths(values, "input_sequence_length"),
        outputs=_lengths(values, "output_sequence_length"),
        rate=stimulus.rate,
        arrival=stimulus.arrival,
        concurrency=stimulus.concurrency,
        served_rate=None if throughput is None else throughput.number("avg"),
    )
    made = make_workload(load, asked)
    tokens = values.maybe("output_token_throughput")
    return Result(
        file=path.name,
        kind="AIPerf" if "aiperf_version" in document or "schema_version" in document else "GenAI-Perf",
        workload=made.workload,
        means_only=made.means_only,
        seen=with_rate(seen, None if tokens is None else tokens.number("avg")),
        assumptions=made.assumptions,
    )


def _scale(metric: Values) -> float:
    unit = metric.word("unit") or "ms"
    if unit not in SECONDS:
        raise metric.wrong("unit", f"{unit!r} is no unit of time; known: {', '.join(SECONDS)}")
    return SECONDS[unit]


def _count(values: Values, requests: Values | None) -> int:
    if requests is not None and (count := requests.count("avg", least=1)) is not None:
        return count
    latency = values.part("request_latency").count("count", least=1)
    return latency or USUAL_COUNT


def _lengths(values: Values, name: str) -> Lengths:
    metric = values.part(name)
    return Lengths(
        metric.needed("avg", least=1), metric.number("std") or 0.0, metric.number("min"), metric.number("max")
    )


def _stimulus(values: Values) -> Stimulus:
    """Older releases have a place for the load, newer ones phases of which the last but any warm-up counts."""
    config = values.part("input_config")
    places = [config.maybe("loadgen"), config]
    if (analyzer := config.maybe("perf_analyzer")) is not None:
        places.insert(0, analyzer.maybe("stimulus"))
    phases = config.holder.get("phases")
    for phase in reversed(phases if isinstance(phases, list) else []):
        if isinstance(phase, dict) and "warm" not in str(phase.get("name", "")):
            places.insert(0, Values(values.path, phase, "input_config.phases"))
            break
    for place in places:
        if place is None:
            continue
        rate = place.number("request_rate", least=1e-9) or place.number("rate", least=1e-9)
        concurrency = place.count("concurrency", least=1)
        if rate is not None or concurrency is not None:
            mode = str(place.holder.get("request_rate_mode") or place.holder.get("type") or "poisson")
            return Stimulus(rate, concurrency, "constant" if mode == "constant" else "poisson")
    return Stimulus(None, None)
