"""A quick estimate of what users would see, to rank candidates before any of them is simulated.

A replica that is given so many requests a second settles at a batch that follows from itself: sequences in it are
arrivals times how long each stays (Little's law), and how long a step takes follows from the batch. Prompts take their
share of the time, which makes every other step come later, and they queue for each other. Percentiles add what chance
does to the number of sequences and of prompts that a request meets. That is no simulation: it leaves out how prompts
are cut and packed, and is off by a fifth or so. It is asked for an order, and for what is hopeless.
"""

from __future__ import annotations

from functools import cache
from math import inf, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.engines.timer import KernelTimer
from infercast.forecast.plan.bounds import Lengths
from infercast.forecast.plan.deployed import ROUGH_TOKENS
from infercast.forecast.slo import Limit, Slo
from infercast.serve.step import StepEstimate

ROUNDS = 12
"""How often the batch is worked out again from its own step time."""
CLOSE = 1e-3
ALONE = 0.3
"""A share of the time up to which prompts mostly have a step to themselves."""
OVERLAP = 0.45
"""The part of what a prompt adds to a step that stages of a pipeline do not do side by side."""


class Mix(NamedTuple):
    """What a replica is sent, in a few numbers."""

    inputs: float
    """Tokens of a prompt, on average."""
    outputs: float
    context: float
    """Tokens that a sequence holds while it decodes: long answers count for longer."""
    lengths: Lengths

    def prompt(self, percentile: float | None) -> float:
        """Tokens of a prompt that so many per cent are shorter than; None: the mean."""
        return self.inputs if percentile is None else float(np.percentile(self.lengths.new_inputs, percentile))


def mix_of(lengths: Lengths, cached: float) -> Mix:
    """``cached``: tokens of a prompt that are in the cache already, on average."""
    inputs, outputs = lengths
    held = float(outputs @ (inputs + outputs / 2) / outputs.sum()) + cached
    return Mix(float(inputs.mean()), float(outputs.mean()), held, lengths)


class Load(NamedTuple):
    """A replica in its steady state at some rate."""

    batch: float
    """Sequences that decode at one time."""
    step: float
    """Seconds of a step that only decodes."""
    added: float
    """Seconds that a prompt adds to the steps it is in, on average ..."""
    busy: float
    """... and the share of the time that this takes."""
    rate: float
    """Requests a second of one engine."""
    tokens: float = 1.0
    """Tokens of a sequence and step, more than one where drafts are accepted."""

    @property
    def tpot(self) -> float:
        """Mean time between tokens."""
        return self.step / self.tokens / max(1.0 - self.busy, CLOSE)


class Steps:
    """Steps of a batch of average sequences, each timed once however many candidates ask."""

    def __init__(self, timer: KernelTimer, mix: Mix) -> None:
        self.mix, self._timer = mix, timer
        self.decode = cache(self._decode)
        self.mixed = cache(self._mixed)

    def _decode(self, count: int) -> float:
        """Seconds of a step of so many decoding sequences."""
        context = int(self.mix.context)
        return _seconds(self._timer.decode(count, count * context, lambda: [context] * count, 1))

    def _mixed(self, tokens: int, before: int, prompts: int, decodes: int) -> float:
        """Seconds of a step of so many equal parts of prompts beside decoding sequences."""
        context = int(self.mix.context)
        parts = [(tokens, before)] * prompts
        return _seconds(self._timer.compute(parts, prompts, decodes, decodes * context, lambda: [context] * decodes))


class Engine:
    """One replica as its step timer has it; prompts and decoding may be switched off where a pool has but one."""

    def __init__(self, deployment: Deployment, steps: Steps, role: str = "both") -> None:
        self._steps, self._role = steps, role
        self._mix = mix = steps.mix
        settings, layout, host = deployment.settings, deployment.layout, deployment.host
        self._stages, self._copies = layout.pipeline, layout.data
        self._tokens = 1.0 if deployment.drafting is None else deployment.drafting.acceptance.length
        self._overlap = 1.0 if layout.pipeline == 1 else OVERLAP + (1.0 - OVERLAP) / layout.pipeline
        self._budget = min(settings.max_num_batched_tokens, ROUGH_TOKENS)
        self._path = float(getattr(host, "request_path", 0.0) + getattr(host, "token_path", 0.0))
        room = deployment.memory.most_sequences(max(1, int(mix.context)), chunk=1)
        self.seats = max(1, min(settings.max_num_seqs, room))
        """Sequences that it holds at one time."""

    def step(self, batch: float) -> float:
        """Seconds of a step of so many sequences, through all stages."""
        return self._steps.decode(max(1, min(round(batch), self.seats)))

    def added(self, tokens: float, batch: float, count: float = 1.0) -> float:
        """Seconds that each of so many prompts in a step adds to the steps that it is in."""
        decodes = min(round(batch), self.seats - 1, self._budget // 2)
        room = max(2, self._budget - decodes)
        part = min(max(2, round(tokens)), room)
        many = max(1, min(int(count), self.seats - decodes, room // part))
        before = max(0, round((tokens - part) / 2))
        seconds = self._steps.mixed(part, before, many, decodes) - (self.step(batch) if decodes else 0.0)
        return max(seconds, 0.0) * max(1.0, tokens / part) / many

    def packed(self, tokens: float, batch: float) -> float:
        """The same where steps are full of such prompts, and what each step costs by itself is shared."""
        return self.added(tokens, batch, self._budget / tokens)

    def load(self, rate: float) -> Load | None:
        """Its steady state at so many requests a second; None if it cannot keep up."""
        each, mix = rate / self._copies, self._mix
        decodes = self._role != "prefill"
        batch, found = 1.0 if decodes else 0.0, None
        for _ in range(ROUNDS):
            step = self.step(batch) if decodes else 0.0
            added = self.added(mix.inputs, batch) if self._role != "decode" else 0.0
            # The busier an engine is, the more prompts share a step; stages of a pipeline do part of it side by side.
            busy = each * added * self._overlap
            if busy > ALONE:
                share = min(1.0, (busy - ALONE) / (1.0 - ALONE))
                added += share * (self.packed(mix.inputs, batch) - added)
                busy = each * added * self._overlap
            if busy >= 1.0:
                return None
            found = Load(batch, step, added, busy, each, self._tokens)
            if not decodes:
                return found
            again = each * max(0.0, mix.outputs - 1.0) * found.tpot
            if again > self.seats:
                return None
            if abs(again - batch) <= 0.5 + 0.02 * batch:
                break
            batch = 0.5 * (batch + again) if again < batch else again
        return found

    def ttft(self, load: Load, percentile: float | None) -> float:
        """Seconds to the first token."""
        mean = self._path + load.step / 2
        own = self.added(self._mix.prompt(percentile), load.batch) + load.step
        work = load.added + load.step / self._stages
        waiting = load.rate * work / self._stages
        queue = load.busy * work / max(1.0 - min(waiting, 1.0 - CLOSE), CLOSE)
        if percentile is None:
            return mean + own + queue
        tail = max(0.0, log(max(load.busy, 1e-9) / max(1.0 - percentile / 100, 1e-3)))
        # Long prompts and long queues seldom meet.
        typical = self.added(self._mix.inputs, load.batch) + load.step
        return mean + max(own, typical + tail * work / max(1.0 - load.busy, CLOSE), own + queue)

    def tpot(self, load: Load, percentile: float | None) -> float:
        """Seconds between tokens."""
        if percentile is None or load.batch <= 0:
            return load.tpot
        off = NormalDist().inv_cdf(min(max(percentile / 100, 1e-3), 0.999))
        stay = max(load.rate * self._mix.outputs * load.tpot, 1e-9)
        busy = min(load.busy * max(0.0, 1.0 + off / sqrt(stay)), 1.0 - CLOSE)
        step = self.step(max(1.0, load.batch + off * sqrt(load.batch) / 2))
        return step / self._tokens / max(1.0 - busy, CLOSE)


def _seconds(step: StepEstimate) -> float:
    return max(step.gpu_seconds[0], step.host.total)


class Guess(NamedTuple):
    """What users would see, roughly; seconds."""

    headroom: float
    """0: it cannot keep up."""
    ttft: float = inf
    tpot: float = inf
    end_to_end: float = inf


def guess(
    slo: Slo, mix: Mix, prompts: Engine, decodes: Engine, rates: tuple[float, float], moved: float = 0.0
) -> Guess:
    """What users would see of one replica of each pool (or the same one twice) at these rates.

    ``moved``: seconds that keys and values are on their way between two pools.
    """
    first = prompts.load(rates[0])
    second = first if decodes is prompts else decodes.load(rates[1])
    if first is None or second is None:
        return Guess(0.0)
    extra = 0.0 if decodes is prompts else moved + second.step

    def value(limit: Limit) -> float:
        if limit.quantity == "tpot":
            return decodes.tpot(second, limit.percentile)
        ttft = prompts.ttft(first, limit.percentile) + extra
        if limit.quantity == "ttft":
            return ttft
        outputs = mix.outputs if limit.percentile is None else np.percentile(mix.lengths.outputs, limit.percentile)
        return ttft + float(outputs) * decodes.tpot(second, None)

    headroom = min(limit.seconds / max(value(limit), 1e-9) for limit in slo.limits)
    ttft, tpot = prompts.ttft(first, None) + extra, second.tpot
    return Guess(headroom, ttft, tpot, ttft + mix.outputs * tpot)
