"""``vllm bench serve --save-result``, plain and with ``--save-detailed``; also what ``--append-result`` leaves.

Fields as in ``vllm/benchmarks/serve.py`` of 0.25.0: milliseconds in what ends in ``_ms``, seconds in the lists.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.calibrate.readers.load import Asked, Lengths, Load, make_workload
from infercast.calibrate.readers.values import LONGEST_SECONDS, MOST_TOKENS, Values, statistics, summed_up, with_rate
from infercast.calibrate.result import Result
from infercast.errors import FileFormatError
from infercast.units import MILLI

Array = npt.NDArray[Any]

KIND = "vllm bench serve"
LATENCIES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
"""Ours, and theirs."""
MARKS = ("total_input_tokens", "total_output_tokens", "request_throughput")


def is_bench_serve(document: Any) -> bool:
    """Whether it is one."""
    return isinstance(document, dict) and all(mark in document for mark in MARKS) and "duration" in document


def read_bench_serve(path: Path, document: Any, asked: Asked, name: str, kind: str = KIND) -> Result:
    """One result."""
    values = Values(path, document, "" if name == path.name else name.removeprefix(f"{path.name} "))
    completed = values.count("completed") or 0
    if completed < 1:
        raise FileFormatError(path, f"{values.named('completed')} is {completed}: no request was answered")
    detailed = read_lists(values)
    load = Load(
        count=completed,
        inputs=Lengths(values.needed("total_input_tokens", least=1) / completed) if detailed is None else detailed[0],
        outputs=Lengths(values.needed("total_output_tokens", least=1) / completed) if detailed is None else detailed[1],
        rate=read_rate(values),
        arrival="poisson" if values.number("burstiness") in (None, 1.0) else "gamma",
        burstiness=values.number("burstiness", least=1e-3, most=1e6) or 1.0,
        concurrency=values.count("max_concurrency", least=1),
        arrivals=None if detailed is None else detailed[4],
        served_rate=values.number("request_throughput"),
    )
    made = make_workload(load, asked)
    assumed = made.assumptions
    if failed := values.count("failed"):
        assumed = (*assumed, f"{failed:,} requests that failed are left out")
    if values.word("ramp_up_strategy"):
        raise FileFormatError(path, "ramp_up_strategy: a rate that grows is not replayed; give runs at one rate each")
    seen = seen_in_lists(detailed) if detailed is not None else seen_in_fields(values, LATENCIES)
    return Result(
        file=name,
        kind=f"{kind}{'' if detailed is None else ', detailed'}",
        workload=made.workload,
        means_only=made.means_only,
        seen=with_rate(seen, values.number("output_throughput")),
        model=values.word("model_id"),
        acceptance_length=values.number("spec_decode_acceptance_length", least=1, most=1e3),
        assumptions=assumed,
    )


def read_rate(values: Values) -> float | None:
    """Requests a second; None where all were sent as fast as clients may."""
    value = values.holder.get("request_rate")
    if value is None or value == "inf" or value == float("inf"):
        return None
    return values.needed("request_rate", least=1e-9, most=1e6)


def seen_in_fields(values: Values, latencies: dict[str, str]) -> dict[str, float]:
    """Means and percentiles as the file has them."""
    seen: dict[str, float] = {}
    for ours, theirs in latencies.items():
        called = {"mean": f"mean_{theirs}_ms", "p50": f"median_{theirs}_ms"}
        called |= {name: f"{name}_{theirs}_ms" for name in ("p90", "p95", "p99")}
        seen |= statistics(values, ours, called, MILLI)
    if "ttft_p50" not in seen and "ttft_mean" not in seen and "e2e_mean" not in seen:
        raise FileFormatError(values.path, f"{values.named('mean_ttft_ms')} is missing: it says no latency")
    return seen


Lists = tuple[Array, Array, Array, Array, Array | None]
"""Prompt and answer tokens, times to the first token and from it to the last, and when requests were sent."""


def read_lists(values: Values) -> Lists | None:
    """What detailed results list of each request that was answered; None where they do not."""
    if not all(isinstance(values.holder.get(name), list) for name in ("input_lens", "output_lens", "ttfts", "itls")):
        return None
    inputs = values.numbers("input_lens", most=MOST_TOKENS)
    outputs = values.numbers("output_lens", most=MOST_TOKENS)
    first = values.numbers("ttfts", most=LONGEST_SECONDS)
    sent = values.numbers("start_times", least=-1e18, most=1e18)
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


def _sum(values: Values, gaps: Any, place: int) -> float:
    """Seconds from the first token to the last."""
    try:
        total = float(sum(gaps))
    except (TypeError, ValueError):
        total = -1.0
    if not 0 <= total <= LONGEST_SECONDS:
        raise values.wrong(f"itls[{place}]", "must be a list of seconds")
    return total


def seen_in_lists(lists: Lists) -> dict[str, float]:
    """Means and percentiles of what was listed."""
    _, outputs, first, later, _ = lists
    several = (outputs > 1) & (later > 0)
    return {
        **summed_up("ttft", first),
        **summed_up("tpot", later[several] / (outputs[several] - 1)),
        **summed_up("e2e", first + later),
    }


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
