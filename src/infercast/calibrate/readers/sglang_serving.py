"""SGLang's ``bench_serving``: a result a line, with lists of requests where ``--output-details`` was given.

Fields as in ``sglang/benchmark/serving.py`` of 0.5.16.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infercast.calibrate.readers.bench_serve import read_lists, read_rate, seen_in_fields, seen_in_lists
from infercast.calibrate.readers.load import Asked, Lengths, Load, make_workload
from infercast.calibrate.readers.values import Values, with_rate
from infercast.calibrate.result import Result
from infercast.errors import FileFormatError

KIND = "SGLang bench_serving"
LATENCIES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"}
EVENLY = ("random", "random-ids")
"""Datasets whose lengths are drawn evenly from a share of the longest to the longest."""


def is_sglang_serving(document: Any) -> bool:
    """Whether it is one."""
    marks = ("total_output_tokens_retokenized", "input_throughput")
    return isinstance(document, dict) and all(mark in document for mark in marks)


def read_sglang_serving(path: Path, document: Any, asked: Asked, name: str) -> Result:
    """One line."""
    values = Values(path, document, name.removeprefix(path.name).strip())
    completed = values.count("completed") or 0
    if completed < 1:
        raise FileFormatError(path, f"{values.named('completed')} is {completed}: no request was answered")
    if values.holder.get("request_rate") == "trace":
        raise FileFormatError(path, "request_rate is trace: give the trace itself to `infercast simulate --trace`")
    detailed = read_lists(values)
    inputs: Any = detailed[0] if detailed else _lengths(values, "random_input_len", "total_input_tokens", completed)
    outputs: Any = detailed[1] if detailed else _lengths(values, "random_output_len", "total_output_tokens", completed)
    report = values.maybe("cache_report")
    hits = None if report is None else report.number("cache_hit_rate_pct", most=100)
    load = Load(
        count=completed,
        inputs=inputs,
        outputs=outputs,
        rate=read_rate(values),
        concurrency=values.count("max_concurrency", least=1),
        served_rate=values.number("request_throughput"),
        prefix_hit_rate=None if hits is None else hits / 100,
    )
    made = make_workload(load, asked)
    seen = seen_in_lists(detailed) if detailed is not None else seen_in_fields(values, LATENCIES)
    accepted = values.number("accept_length", most=1e3)
    server = values.maybe("server_info")
    return Result(
        file=name,
        kind=f"{KIND}{'' if detailed is None else ', detailed'}",
        workload=made.workload,
        means_only=made.means_only,
        seen=with_rate(seen, values.number("output_throughput")),
        model=None if server is None else server.word("model_path"),
        acceptance_length=accepted if accepted and accepted > 1 else None,
        prefix_hit_rate=load.prefix_hit_rate,
        assumptions=made.assumptions,
    )


def _lengths(values: Values, longest: str, total: str, completed: int) -> Lengths | str:
    """From what was drawn evenly, or from the mean."""
    mean = values.needed(total, least=1) / completed
    ratio, most = values.number("random_range_ratio", most=1.0), values.count(longest, least=1)
    if values.word("dataset_name") in EVENLY and most is not None and ratio is not None and ratio < 1:
        return f"uniform:{max(1, round(ratio * most))}:{most}"
    return Lengths(mean)
