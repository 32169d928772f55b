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
from infercast.serve import Record
from infercast.serve.fleet.served import Served

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


def part_of(steady: SteadyState, state: State, asked: bool) -> SteadyState | None:
    """The steady part if it is asked for, which there must be then; None for the whole run."""
    if asked and state.saturation is not None:
        raise SaturatedError(state.sentence)
    if asked and not steady.reached:
        raise InputError(f"a steady state was asked for and {steady.sentence}")
    return steady if asked else None


def outcome_of(served: Record | Served, steady: SteadyState | None = None) -> Outcome:
    """Sum a run up; with a steady part, over the requests sent in it and what was finished within it."""
    start, last = float(served.sent_at.min()), float(served.last_token.max())
    begin, end = (start, last) if steady is None else (start + steady.begin, start + steady.end)
    kept = served.sent_at >= begin
    ended, gaps, counts_of_all = served.timed_gaps
    within = _between(ended, begin, end)
    gaps, counts = gaps[within], counts_of_all[within]
    tokens: float = int(counts.sum()) + int(np.count_nonzero(_between(served.first_token, begin, end)))
    # With speculative decoding several tokens of an answer may come at once, which are one of these times.
    seen, all_tokens = int(counts_of_all.sum()) + served.num_output.size, int(served.num_output.sum())
    tokens = tokens if seen == all_tokens else tokens * all_tokens / seen
    finished = np.count_nonzero(_between(served.last_token, begin, end))
    several = served.num_output[kept] > 1
    ttft, total = served.ttft[kept], served.end_to_end[kept]
    tpot = (total - ttft)[several] / (served.num_output[kept][several] - 1)
    return Outcome(
        ttft=percentiles(ttft),
        tpot=percentiles(tpot) if tpot.size else None,
        inter_token=percentiles(gaps, counts) if gaps.size else None,
        end_to_end=percentiles(total),
        duration=last - start,
        output_tokens_per_second=float(tokens) / (end - begin),
        requests_per_second=float(finished) / (end - begin),
    )


def _between(times: Array, begin: float, end: float) -> Array:
    return np.asarray((times > begin) & (times <= end))
