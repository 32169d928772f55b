"""The best possible throughput: what the GPUs of a run could serve of its requests at most, and what limits them.

A bound and no forecast: every kernel at the limit of its hardware, memory, arithmetic and links busy at the same time,
no wait for a host, and batches as large as the KV cache has room for. It counts the kernels that the engine runs:
fewer, fused ones could do better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from infercast.engines.base import Deployment
from infercast.forecast.run import PoolRun, SimulatedRun, drafts_of
from infercast.forecast.slo import Array
from infercast.forecast.steady import room_for
from infercast.forecast.system import DECODE, PREFILL
from infercast.models.lower import attention_calls, head_calls, token_calls
from infercast.ops import Call
from infercast.predict.roofline import pipe_limits
from infercast.serve.workload.request import Request


class BestThroughput(NamedTuple):
    requests_per_second: float
    output_tokens_per_second: float
    limited_by: str  # The resource that is always busy then: ``dram``, ``tensor``, ``link``, ...
    busy: dict[str, float]  # Share of the time that each resource is
    batch: int  # Sequences of a replica at one time
    role: str  # Of two pools the one that limits
    share: float  # Of these output tokens that the run has


def best_throughput(run: SimulatedRun) -> BestThroughput | None:
    """None where stages of a pipeline have different GPUs."""
    if any(pool.deployment.gpu.stages for pool in run.pools):
        return None
    outputs = float(np.mean([request.num_output for request in run.workload.requests]))
    accepted = drafts.counts.acceptance_length if (drafts := drafts_of(run)) else 1.0
    found = min((_best_of(pool, run.workload.requests, accepted) for pool in run.pools), key=lambda each: each[0])
    rate, busy, batch, role = found
    limited_by = max(busy, key=lambda name: busy[name])
    share = run.output_tokens_per_second / (rate * outputs)
    return BestThroughput(rate, rate * outputs, limited_by, busy, batch, role, share)


def _best_of(pool: PoolRun, requests: tuple[Request, ...], accepted: float) -> tuple[float, dict[str, float], int, str]:
    """Requests a second of all replicas, how busy each resource is, the batch, and the role of the pool."""
    deployment, replica, count = pool.deployment, pool.pool.replica, len(pool.records)
    cached = np.sum([record.num_cached for record in pool.records], axis=0)
    inputs, outputs = (np.array([getattr(each, name) for each in requests]) for name in ("num_input", "num_output"))
    computed = np.zeros_like(inputs) if pool.role == DECODE else np.maximum(inputs - cached, 1)
    later = np.zeros_like(outputs) if pool.role == PREFILL else outputs - 1  # the prompt's own step gives the first
    # Shared prefixes may leave room for more than that.
    batch = max(room_for(replica, requests), round(pool.running.peak / count), 1)
    finished = batch * accepted / max(float(later.mean()), accepted)  # Requests a step
    tokens = finished * float((computed + later).mean())
    calls = [*token_calls(deployment.model, deployment.layout, max(1, round(tokens)))]
    calls += head_calls(deployment.model, deployment.layout, max(1, round(finished * float(later.mean() + 1.0))))
    spent, sampled = _seconds(deployment, calls), 512  # sequences whose attention is added up, or multiples of it
    if later.any():
        spent += _attention(deployment, *_decoding(inputs, later, min(batch, sampled)), batch)
    if computed.any():
        sample = np.linspace(0, inputs.size - 1, min(inputs.size, sampled)).astype(int)
        spent += _attention(deployment, computed[sample], inputs[sample], finished)
    longest = max(spent.values()) / deployment.layout.pipeline
    busy = {name: seconds / max(spent.values()) for name, seconds in spent.items() if seconds}
    return count * finished / longest, busy, batch, pool.role


def _decoding(inputs: Array, later: Array, count: int) -> tuple[Array, Array]:
    """Sequences as they are found while they decode: the longer the likelier, at any point of their answers."""
    total = np.cumsum(later)
    found = np.searchsorted(total, (np.arange(count) + 0.5) / count * total[-1])
    done = np.arange(count) * 0.6180339887498949 % 1.0 * later[found]
    return np.ones(count, dtype=int), inputs[found] + done.astype(int) + 1


def _attention(deployment: Deployment, queries: Array, keys: Array, sequences: float) -> Any:
    """Attention of so many sequences like these."""
    calls = attention_calls(deployment.model, deployment.layout, queries, keys)
    return _seconds(deployment, calls, sequences / queries.size)


def _seconds(deployment: Deployment, calls: Iterable[Call], times: float = 1.0) -> Any:
    """Seconds that each resource of a GPU is busy at least."""
    spent: Any = Counter()
    for call in calls:
        for name, seconds in pipe_limits(call.op, deployment.gpu).items():
            spent[name] += float(np.sum(seconds)) * float(call.count) * times
    return spent
