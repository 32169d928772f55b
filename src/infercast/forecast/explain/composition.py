"""What a token is made of, against how many tokens its request has been given: caches grow, attention with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from infercast.engines.timer import KernelTimer
from infercast.forecast.explain.step_log import Array, StepLog, kernels_of
from infercast.serve import Record

EDGES = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
"""Tokens that a request has been given: ends of the ranges that are looked at."""
HOST = "host"


@dataclass(frozen=True, slots=True)
class Range:
    """The tokens ``first`` to ``last`` of all requests that got so far."""

    first: int
    last: int
    requests: int
    """That got any of these tokens."""
    tokens: int
    seconds: float
    """A token, on average."""
    families: dict[str, float]
    """The part of each kernel family in it, and of waiting for the host."""


@dataclass(frozen=True, slots=True)
class Composition:
    """One entry for each range of tokens."""

    ranges: tuple[Range, ...]


def compose(record: Record, log: StepLog, timer: KernelTimer) -> Composition | None:
    """Kernel families a token in each range; None where nobody has a second token.

    A request gets one token a step after its first, so its tokens are a stretch of steps; where it was preempted the
    stretch is longer than its tokens, and is spread over them evenly.
    """
    several = np.flatnonzero(record.num_output > 1)
    if not several.size:
        return None
    names, cumulated = _cumulated(log, timer)
    ends, tokens = log.steps.ends, record.num_output[several] - 1
    first = np.searchsorted(ends, log.prompt_end[several])
    spanned = tokens
    if record.drafts.num_drafts:
        # Some steps yield several tokens.
        spanned = np.maximum(np.searchsorted(ends, record.last_token[several], side="right") - 1 - first, 1)
    elif record.num_preemptions:
        # A result may be taken in when later steps have ended already; one or two more in a long stretch do not show.
        spanned = np.maximum(np.searchsorted(ends, record.last_token[several], side="right") - 1 - first, tokens)
    a_token = np.minimum(spanned, ends.size - 1 - first) / tokens
    ranges = []
    for low, high in pairwise(EDGES):
        reached = tokens >= low
        if not reached.any():
            break
        begin, stop = (np.minimum(edge, tokens[reached]) for edge in (low - 1, high - 1))
        start, end = (first[reached] + np.rint(edge * a_token[reached]).astype(np.int64) for edge in (begin, stop))
        count = int((stop - begin).sum())
        if not count:
            continue
        seconds = (cumulated[end] - cumulated[start]).sum(axis=0) / count
        families = dict(zip(names, seconds.tolist(), strict=True))
        most = int(stop.max()) + 1
        ranges.append(Range(low + 1, most, int(np.count_nonzero(stop > begin)), count, sum(seconds.tolist()), families))
    return Composition(tuple(ranges))


def _cumulated(log: StepLog, timer: KernelTimer) -> tuple[list[str], Array]:
    """Families, and their seconds in all steps up to and with each one; the wait before a step is the host's."""
    steps = log.steps
    kernels_in = kernels_of(timer)
    names = [*dict.fromkeys(family for _, family in kernels_in), HOST]
    belongs = np.array([[family == name for name in names] for _, family in kernels_in], dtype=np.float64)
    seconds = np.concatenate([kernels @ belongs for _, kernels in steps.kernels(timer)])
    waits = np.maximum(np.diff(steps.ends, prepend=steps.ends[0] - steps.gpu_seconds[0]) - steps.gpu_seconds, 0.0)
    seconds[:, -1] = waits
    return names, np.cumsum(seconds, axis=0)


def pooled(several: Sequence[Composition]) -> Composition:
    """Ranges of several engines as those of one: every token counts as much as any other."""
    ranges = []
    for first in sorted({each.first for composition in several for each in composition.ranges}):
        same = [each for composition in several for each in composition.ranges if each.first == first]
        tokens = sum(each.tokens for each in same)

        def mean(values: Iterable[float], counted: int = tokens, weights: Sequence[Range] = same) -> float:
            return sum(value * each.tokens for value, each in zip(values, weights, strict=True)) / counted

        families = {name: mean(each.families[name] for each in same) for name in same[0].families}
        requests, last = sum(each.requests for each in same), max(each.last for each in same)
        ranges.append(Range(first, last, requests, tokens, mean(each.seconds for each in same), families))
    return Composition(tuple(ranges))
