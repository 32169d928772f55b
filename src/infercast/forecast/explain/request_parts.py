"""Where the time of each request went: what it waited for before its first token, and between the later ones.

Steps are divided among their tokens: a prompt of 300 tokens in a step of 1,000 is charged three tenths of its GPU time.
Whatever else the GPU did meanwhile was work for others, and the rest of the time it waited for its host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infercast.forecast.explain.step_log import Array, EngineRun, StepLog
from infercast.serve import Record, Workload
from infercast.serve.fleet.two_pools import Handover

SLOW_SHARE = 0.01
"""The slowest requests that are looked at by themselves, as a share of all."""


@dataclass(frozen=True, slots=True)
class RequestParts:
    """A latency of every request as a sum of parts, in seconds."""

    requests: Array
    """Which requests."""
    sent_at: Array
    """When they were sent."""
    total: Array
    parts: dict[str, Array]

    @property
    def slowest(self) -> Array:
        """Positions of the slowest requests, slowest first: one in a hundred, and one at least."""
        count = max(1, round(SLOW_SHARE * self.total.size))
        return np.argsort(-self.total, kind="stable")[:count]

    def mean(self, chosen: Array | None = None) -> dict[str, float]:
        """Each part on average, over all requests or some of them."""
        return {name: float((part if chosen is None else part[chosen]).mean()) for name, part in self.parts.items()}


def first_token_parts(engine: EngineRun, workload: Workload) -> RequestParts:
    """From sending a request to its first token: on its way, queued, computed, on its way back.

    Of those requests that this replica has served.
    """
    record, log = engine.record, engine.log
    host, served = engine.pool.deployment.host, np.flatnonzero(~np.isnan(record.last_token))
    num_input = np.array([request.num_input for request in workload.requests])[served]
    sent_at, first_token, prompt_end = record.sent_at[served], record.first_token[served], log.prompt_end[served]
    queued_at = sent_at + host.request_path + host.request_token * num_input
    started_at = np.maximum(record.started_at[served], queued_at)
    loaded_from = started_at
    if record.tier is not None:
        began = record.tier.load_began[served]
        loaded_from = np.where(np.isnan(began), started_at, np.clip(began, queued_at, started_at))
    queued = _window(log, queued_at, loaded_from)
    computed = _window(log, started_at, prompt_end)
    own = np.minimum(log.own_seconds[served], computed["prompts"])
    parts = {
        "way in": queued_at - sent_at,
        "queue: prompts of others": queued["prompts"],
        "queue: decoding of others": queued["decoding"],
        "queue: host": queued["host"],
        **({} if record.tier is None else {"KV from host memory": started_at - loaded_from}),
        "own prompt": own,
        "beside it: prompts of others": computed["prompts"] - own,
        "beside it: decoding of others": computed["decoding"],
        "beside it: host": computed["host"],
        "way out": first_token - prompt_end,
    }
    return RequestParts(served, sent_at, first_token - sent_at, parts)


def taken_in_parts(engine: EngineRun) -> RequestParts:
    """From the arrival of keys and values on a decode pool to the first token: queued, computed, on its way back."""
    record, served = engine.record, np.flatnonzero(~np.isnan(engine.record.last_token))
    sent_at, first_token, prompt_end = record.sent_at[served], record.first_token[served], engine.log.prompt_end[served]
    started_at = np.maximum(record.started_at[served], sent_at)
    parts = {
        "decode pool: queue": started_at - sent_at,
        "decode pool: first step": prompt_end - started_at,
        "decode pool: way out": first_token - prompt_end,
    }
    return RequestParts(served, sent_at, first_token - sent_at, parts)


def through_both(prefill: RequestParts, decode: RequestParts, done: Handover) -> RequestParts:
    """The whole way to the first token: the prefill pool, the link and the decode pool."""
    link = {"link: waiting": done.began - done.ready, "link: transfer": done.received - done.began}
    total = prefill.total + sum(link.values()) + decode.total
    return RequestParts(prefill.requests, prefill.sent_at, total, {**prefill.parts, **link, **decode.parts})


def later_token_parts(record: Record, log: StepLog) -> RequestParts | None:
    """Between a request's first token and its last, a token: decoding, prompts of others in between, the host."""
    several = np.flatnonzero(record.num_output > 1)
    if not several.size:
        return None
    tokens = record.num_output[several] - 1
    first, last = record.first_token[several], record.last_token[several]
    window = _window(log, first, last)
    names = {"decoding": "decoding", "prompts": "prompts of others", "host": "host"}
    parts = {shown: window[name] / tokens for name, shown in names.items()}
    return RequestParts(several, record.sent_at[several], (last - first) / tokens, parts)


def _window(log: StepLog, start: Array, end: Array) -> dict[str, Array]:
    """What the GPU did between two moments of each request; the three add up to the time between them."""
    steps = log.steps
    busy = steps.until(end, steps.gpu_seconds) - steps.until(start, steps.gpu_seconds)
    prompts = steps.until(end, steps.prompt_seconds) - steps.until(start, steps.prompt_seconds)
    return {"prompts": prompts, "decoding": busy - prompts, "host": (end - start) - busy}


def joined(several: Sequence[RequestParts]) -> RequestParts:
    """Requests of several engines as those of one, in order."""
    if len(several) == 1:
        return several[0]
    order = np.argsort(np.concatenate([each.requests for each in several]), kind="stable")

    def ordered(arrays: Sequence[Array]) -> Array:
        return np.concatenate(arrays)[order]

    return RequestParts(
        ordered([each.requests for each in several]),
        ordered([each.sent_at for each in several]),
        ordered([each.total for each in several]),
        {name: ordered([each.parts[name] for each in several]) for name in several[0].parts},
    )
