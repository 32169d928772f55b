"""What no deployment can beat: times from below and rates from above, without timing a kernel.

Each is optimistic, so that whatever it rules out would not have won:

- *A step* reads every matrix that all tokens pass (attention, dense feed-forward, the head, and of routed experts those
  of one token) from DRAM at least once, whatever its batch. Counted are the bare weights, without scales, padding or
  copies of scarce heads, split evenly over all GPUs that can share them, at the full bandwidth of the datasheet; as
  much as the last cache holds is taken to be there already. Keys and values, collectives, launches and the host come on
  top. Every token of an answer but the first takes a step of its own, so this bounds each request's TPOT.
- *A prompt* multiplies each of its tokens with these weights: two operations a weight. Counted are tokens that no
  other prompt could have left in a cache, all GPUs of the replica at the peak of the fastest format that any part is
  multiplied in, and nothing for attention. This, and one step, bound each request's TTFT.
- *The rate* that replicas keep in the long run is at most what their operations allow (prompt and answer, as above),
  and what their steps allow: a step gives at most one token to each of ``max_num_seqs`` sequences. Stages of a pipeline
  work side by side, so a step there takes no longer than the mean stage.

A percentile of the requests' bounds is no larger than that of their times, as each bound is no larger than its time.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, floor, inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.engines.registry import engine_named
from infercast.forecast.plan.axes import config_of, device_of
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.question import Question
from infercast.forecast.slo import Limit
from infercast.models.spec import ModelConfig
from infercast.ops.dtypes import tensor_rate_of

Array = npt.NDArray[Any]

MOST_SEQUENCES = 1024
"""What an engine plans at most where nobody says."""


class Work(NamedTuple):
    """What one token asks of a model."""

    dense_bytes: float
    """Weights that every step reads."""
    expert_bytes: float
    """Those of the routed experts of one token."""
    flops: float
    """Of one token, without attention and the head."""
    formats: frozenset[str]
    """What products are multiplied in."""


class Lengths(NamedTuple):
    """What requests ask for, as arrays."""

    new_inputs: Array
    """Tokens of each prompt that nothing could have left in a cache."""
    outputs: Array


class Bounds(NamedTuple):
    """Of one replica."""

    step: float
    """Seconds of any step, through all stages."""
    token: float
    """Seconds of one token of a prompt."""
    rate: float
    """Requests a second in the long run; not bounded for traces, which end."""


@lru_cache(maxsize=256)
def work_of(config: ModelConfig) -> Work:
    """What one token asks of it."""
    weights, hidden = config.weights, config.hidden

    def bare(dtype: str) -> float:
        """Bytes of a weight without its share of scales: whole half bytes."""
        return floor(2 * weights.stored_bytes(dtype)) / 2

    table = config.vocabulary * hidden
    dense, experts, products = table * bare(weights.base if config.tied_embedding else weights.head), 0.0, 0
    for stack in config.stacks:
        mixer, feed_forward = stack.mixer.matrices(hidden), stack.feed_forward.matrices(hidden)
        routed = stack.feed_forward.expert_values(hidden, active=True)[0]
        dense += stack.layers * mixer * bare(getattr(weights, stack.mixer.part))
        dense += stack.layers * feed_forward * bare(weights.feed_forward)
        experts += stack.layers * routed * bare(weights.experts)
        products += stack.layers * (mixer + feed_forward + routed)
    formats = (
        weights.base, weights.activation_attention, weights.activation_feed_forward, weights.activation_experts,
        weights.activation_recurrent,
    )  # fmt: skip
    return Work(dense, experts, 2.0 * products, frozenset(tensor_rate_of(each) for each in formats))


def lengths_of(question: Question) -> Lengths:
    """What the requests of a question ask for."""
    requests = question.workload.requests
    new = [max(1, each.num_input - sum(part.num_tokens for part in each.prefix)) for each in requests]
    return Lengths(np.array(new, dtype=float), np.array([each.num_output for each in requests], dtype=float))


def bounds_of(question: Question, unit: Candidate, lengths: Lengths) -> Bounds:
    """What one replica cannot beat."""
    config, gpu, layout = config_of(question, unit), device_of(unit.gpu, question.network), unit.layout
    assert config is not None
    work = work_of(config)
    peak = max(gpu.dense_flops(each) for each in work.formats)
    # Stages follow each other, GPUs of a stage work side by side; the experts are spread over those of all copies.
    cached = layout.gpus * gpu.l2_bytes
    read = work.dense_bytes / layout.tensor + work.expert_bytes / (layout.tensor * layout.data)
    # Weights are read once for all tokens that a step may yield of a sequence.
    yielded = engine_named(unit.engine).most_tokens(dict(unit.settings))
    step = max(0.0, read - cached / layout.tensor) / gpu.dram_bandwidth / yielded
    token = work.flops / (layout.gpus * peak)
    if question.workload.rate is None:
        return Bounds(step, token, inf)
    sequences = dict(unit.settings).get(engine_named(unit.engine).bounds[1]) or MOST_SEQUENCES
    tokens = float((lengths.new_inputs + lengths.outputs - 1).mean())
    by_flops = 1.0 / (token * tokens)
    steps = max(0.0, float(lengths.outputs.mean()) - 1.0) / (sequences * layout.data)
    by_steps = layout.pipeline / (steps * step) if steps and step else inf
    return Bounds(step, token, min(by_flops, by_steps))


def least_times(lengths: Lengths, prompts: Bounds, decodes: Bounds) -> dict[str, Array]:
    """Seconds of each request at least, by what an SLO may limit; a pool of its own may compute prompts."""
    ttft = np.maximum(lengths.new_inputs * prompts.token, prompts.step)
    later = lengths.outputs - 1
    return {"ttft": ttft, "tpot": np.full(int((later > 0).sum()), decodes.step), "e2e": ttft + later * decodes.step}


def most_headroom(question: Question, lengths: Lengths, prompts: Bounds, decodes: Bounds) -> tuple[float, Limit]:
    """The largest headroom that the SLO can have, and the limit that allows no more."""
    times = least_times(lengths, prompts, decodes)

    def room(limit: Limit) -> float:
        values = times[limit.quantity]
        if not values.size:
            return inf
        value = values.mean() if limit.percentile is None else np.percentile(values, limit.percentile)
        return limit.seconds / max(float(value), 1e-12)

    tightest = min(question.slo.limits, key=room)
    return room(tightest), tightest


def least_replicas(question: Question, bounds: Bounds) -> int:
    """So many are needed at least."""
    return max(1, ceil(question.rate / bounds.rate)) if bounds.rate < inf else 1
