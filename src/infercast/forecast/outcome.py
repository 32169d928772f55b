"""What clients saw of a run, or of the steady part of it: latencies and rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.errors import InputError, SaturatedError
from infercast.forecast.latency import Percentiles, percentiles
from infercast.forecast.saturation import State
from infercast.forecast.steady import SteadyState
from infercast.serve import Record, Workload
from infercast.serve.fleet.served import Served
from infercast.serve.workload.request import Draw

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Latencies in seconds, rates a second."""

    ttft: Percentiles
    """Time to first token, in seconds: from sending a request to its first output token."""
    tpot: Percentiles | None
    """Time per output token after the first, in seconds, of each request; None where no request has a second token."""
    inter_token: Percentiles | None
    """Time between two output tokens, in seconds, of all tokens; None where no request has a second token."""
    end_to_end: Percentiles
    """Time from sending a request to its last output token, in seconds."""
    duration: float
    """Seconds from the first request sent to the last token received, of the whole run."""
    output_tokens_per_second: float
    """Output tokens per second of all GPUs together."""
    requests_per_second: float
    """Requests per second that were completed."""


def part_of(steady: SteadyState, state: State, asked: bool, open_ended: bool) -> SteadyState | None:
    """The steady part if it is asked for, which there must be then, or if the run decided its length; None: the run."""
    if asked and state.saturation is not None:
        raise SaturatedError(state.sentence)
    if asked and not steady.reached:
        raise InputError(f"a steady state was asked for and {steady.sentence}")
    return steady if asked or (open_ended and steady.reached) else None


def outcome_of(served: Record | Served, steady: SteadyState | None = None, workload: Workload | None = None) -> Outcome:
    """Sum a run up; with a steady part, over the requests sent in it and what was finished within it.

    Rates of a steady part of random requests that are spread out are those of an endless run of their ``workload``.
    """
    start, last = float(served.sent_at.min()), float(served.last_token.max())
    begin, end = (start, last) if steady is None else (start + steady.begin, start + steady.end)
    kept = (served.sent_at >= begin) & (served.sent_at <= end)
    ended, gaps, counts_of_all = served.timed_gaps
    within = _between(ended, begin, end)
    gaps, counts = gaps[within], counts_of_all[within]
    tokens: float = int(counts.sum()) + int(np.count_nonzero(_between(served.first_token, begin, end)))
    # With speculative decoding several tokens of an answer may come at once, which are one of these times.
    seen, all_tokens = int(counts_of_all.sum()) + served.num_output.size, int(served.num_output.sum())
    tokens = tokens if seen == all_tokens else tokens * all_tokens / seen
    finished = np.count_nonzero(_between(served.last_token, begin, end))
    requests, outputs = float(finished) / (end - begin), float(tokens) / (end - begin)
    drawn = None if steady is None or workload is None else workload.drawn
    if workload is not None and drawn is not None and drawn.spread_out:
        requests, outputs = _long_run(workload, drawn, requests, outputs)
    several = served.num_output[kept] > 1
    ttft, total = served.ttft[kept], served.end_to_end[kept]
    tpot = (total - ttft)[several] / (served.num_output[kept][several] - 1)
    return Outcome(
        ttft=percentiles(ttft),
        tpot=percentiles(tpot) if tpot.size else None,
        inter_token=percentiles(gaps, counts) if gaps.size else None,
        end_to_end=percentiles(total),
        duration=last - start,
        output_tokens_per_second=outputs,
        requests_per_second=requests,
    )


def _long_run(workload: Workload, drawn: Draw, requests: float, outputs: float) -> tuple[float, float]:
    """Requests and output tokens a second of an endless run in the steady state that a part of one shows.

    As much is served as comes, where requests come at a rate; and answers are as long as what they are drawn from is on
    average. What the part itself shows has the luck of its draw in it, several per cent of a thousand requests.
    """
    length = drawn.output_lengths.mean
    if workload.num_truncated or workload.num_skipped:
        length = float(np.mean([request.num_output for request in workload.requests]))
    if workload.rate is None:
        return outputs / length, outputs
    return workload.rate, workload.rate * length


def _between(times: Array, begin: float, end: float) -> Array:
    return np.asarray((times > begin) & (times <= end))
