"""A recorded workload described: rates over time, lengths, burstiness, reuse, sessions, and options that fit it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from os import PathLike

import numpy as np

from infercast.forecast.slo import Array, Percentiles, percentiles
from infercast.lazy_classes import NamedTuple
from infercast.serve import Request, Workload
from infercast.serve.workload.distributions import QUANTILES


class SessionSummary(NamedTuple):
    number: int
    turns: float  # Of each, on average
    pause_s: float  # Between a turn's answer, or its arrival where only that is known, and the next: the median


class TrafficSummary(NamedTuple):
    description: str
    requests: int
    span_s: float
    rates: tuple[float, ...]  # Requests per second in equal parts of the span
    gap_cv: float  # Coefficient of variation of the gaps between arrivals: 1 for Poisson
    input_tokens: Percentiles
    output_tokens: Percentiles
    reuse: float  # Share of prompt tokens that an endless prefix cache would find
    sessions: SessionSummary | None
    options: tuple[tuple[str, str], ...]  # Of a synthetic workload that fits

    @property
    def rate(self) -> float:
        return self.requests / self.span_s if self.span_s else 0.0

    @property
    def command(self) -> str:
        return " ".join(f"--{name} {value}" for name, value in self.options)


def describe_traffic(source: Workload | str | PathLike[str], *, parts: int = 40) -> TrafficSummary:
    """What a trace holds, with its rates in this many ``parts`` of its span."""
    from infercast.serve.workload.traces import read_trace  # noqa: PLC0415 - most forecasts read none

    workload = source if isinstance(source, Workload) else read_trace(source)
    requests, arrivals = workload.requests, np.array([each.arrival for each in workload.requests])
    span = float(arrivals[-1] - arrivals[0])
    gaps, (reused, distances) = np.diff(arrivals), _reused(requests)
    inputs, outputs = (np.array([getattr(each, name) for each in requests]) for name in ("num_input", "num_output"))
    rates = np.histogram(arrivals, parts, (arrivals[0], arrivals[-1]))[0] * parts / span if span else np.zeros(0)
    cv = float(gaps.std() / gaps.mean()) if span else 0.0
    sessions, grown = _sessions(workload, reused)
    arrival = [("arrival", "burst")] if not span else []
    if sessions is not None and workload.in_turns:
        fitted = _by_session(grown, sessions, span)
    else:
        fitted, arrival = _single(requests, inputs, reused, distances), arrival or _arrivals(source, arrivals, cv)
    return TrafficSummary(
        description=workload.description, requests=len(requests), span_s=span, rates=tuple(rates.tolist()), gap_cv=cv,
        input_tokens=percentiles(inputs), output_tokens=percentiles(outputs), reuse=float(reused.sum() / inputs.sum()),
        sessions=sessions, options=(*arrival, *fitted, ("output-len", fit_lengths(outputs))),
    )  # fmt: skip


def _arrivals(source: Workload | str | PathLike[str], arrivals: Array, cv: float) -> list[tuple[str, str]]:
    """Those of a file, if their numbers in ten seconds vary by more than independent users make them; or random."""
    seconds, by_chance = 10.0, 1.5  # Variance over mean, which is 1 for Poisson
    counts, span = np.unique((arrivals - arrivals[0]) // seconds, return_counts=True)[1], arrivals[-1] - arrivals[0]
    mean = arrivals.size / max(1.0, span / seconds)
    if not isinstance(source, Workload) and (counts**2).sum() / arrivals.size - mean > by_chance:
        return [("arrivals-of", shlex.quote(str(source)))]
    likely_poisson, likely_constant = 0.9 < cv < 1.1, cv < 0.05
    kind = "poisson" if likely_poisson else "constant" if likely_constant else "gamma"
    bursts = [("burstiness", f"{1 / cv**2:.3g}")] if kind == "gamma" else []
    return [("rate", f"{arrivals.size / span:.4g}"), ("arrival", kind), *bursts]


def _reused(requests: Sequence[Request]) -> tuple[Array, Array]:
    """Tokens that an endless prefix cache finds for each, and what was sent since the last of them was."""
    known: dict[tuple[int, int, int], int] = {}
    last: list[float] = [0.0]
    found, sent = [], 0.0
    for request in requests:
        place, reused, since, is_known = 0, 0, sent, True
        named = sum(segment.num_tokens for segment in request.prefix)
        answer = () if request.answer is None else ((request.answer, max(1, request.num_output)),)
        for content, tokens in (*request.prefix, *(answer if named == request.num_input else ())):
            key = (place, content, tokens)
            is_known = is_known and key in known
            if is_known and reused < named:
                reused, since = reused + tokens, last[known[key]]
            place = known.setdefault(key, len(known) + 1)
            if place == len(last):
                last.append(0.0)
            last[place] = sent + request.num_input + request.num_output
        found.append((min(reused, request.num_input), sent - since))
        sent += request.num_input + request.num_output
    reuse, distances = np.array(found).T
    return reuse, distances


def _sessions(workload: Workload, reused: Array) -> tuple[SessionSummary | None, dict[int, list[Request]]]:
    """Turns of sessions, if later ones are a tenth of all requests and have most of what is reused."""
    turns: dict[int, list[Request]] = {}
    by_later, least_share = 0, 0.1
    for number, (request, tokens) in enumerate(zip(workload.requests, reused.tolist(), strict=True)):
        of_session = turns.setdefault(-1 - number if request.session is None else request.session, [])
        by_later += tokens if of_session else 0
        of_session.append(request)
    later = len(workload.requests) - len(turns)
    if later < least_share * len(workload.requests) or by_later < 0.5 * reused.sum():
        return None, turns
    pairs = [pair for each in turns.values() for pair in pairwise(each)]
    pauses = [second.think if workload.in_turns else second.arrival - first.arrival for first, second in pairs]
    return SessionSummary(len(turns), len(workload.requests) / len(turns), float(np.median(pauses))), turns


def _by_session(turns: dict[int, list[Request]], sessions: SessionSummary, span: float) -> list[tuple[str, str]]:
    first = np.array([each[0].num_input for each in turns.values()])
    grown = [
        max(1, after.num_input - before.num_input - before.num_output)
        for each in turns.values()
        for before, after in pairwise(each)
    ]
    counts = np.array([len(each) for each in turns.values()])
    rate = [("session-rate", f"{len(turns) / span:.4g}")] if span else []
    return [
        *rate, ("turns", fit_lengths(counts)), ("input-len", fit_lengths(first)),
        ("turn-len", fit_lengths(np.array(grown))), ("think", f"exponential:{sessions.pause_s / np.log(2):.4g}"),
    ]  # fmt: skip


def _single(requests: Sequence[Request], inputs: Array, reused: Array, distances: Array) -> list[tuple[str, str]]:
    """Beginnings that many share, other prompts that begin as earlier ones, and lengths."""
    least = 0.02  # Share of requests with such a beginning, and of those that continue
    first = [each.prefix[0] if each.prefix else None for each in requests]
    counts = Counter(each for each in first if each is not None)
    hot = {each for each, count in counts.items() if count > max(1.0, least * len(requests))}
    if 2 * sum(counts[each] for each in hot) < len(requests):
        hot = set()
    shared = np.array([each.num_tokens if each in hot and each is not None else 0 for each in first])
    options = []
    if hot:
        length = round(float(shared.sum()) / np.count_nonzero(shared))
        options = [("prefix-len", f"{length}"), ("prefix-groups", f"{len(hot)}")]
    again = reused > shared
    if again.mean() < least:
        return [*options, ("input-len", fit_lengths(np.maximum(1, inputs - shared)))]
    fresh = (inputs - shared)[~again]
    return [
        *options, ("input-len", fit_lengths(np.maximum(1, fresh if fresh.size else inputs - shared))),
        ("reuse", f"{again.mean():.4g}"), ("reuse-len", fit_lengths((reused - shared)[again])),
        ("reuse-distance", fit_lengths(np.maximum(1, distances[again]))),
        ("turn-len", fit_lengths(np.maximum(1, inputs - reused)[again])),
    ]  # fmt: skip


def fit_lengths(lengths: Array) -> str:
    """Quantiles of the lengths, or the one length that all have."""
    least, most = int(lengths.min()), int(lengths.max())
    if least == most:
        return f"{least}"
    return "quantiles:" + ":".join(f"{each:.0f}" for each in np.quantile(lengths, QUANTILES))
