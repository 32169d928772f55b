"""Candidates screened before any simulation: by memory, by bounds, and by a quick estimate.

Bounds are optimistic, so that whatever they rule out would not have won:

- *A step* reads every matrix that all tokens pass (attention, dense feed-forward, the head, and of routed experts those
  of one token) from DRAM at least once: bare weights without scales, padding or copies of scarce heads, split evenly
  over all GPUs that can share them, at the bandwidth of the datasheet, less what the last-level cache holds. KV cache,
  collectives, launches and the host come on top. This bounds each request's TPOT.
- *A prompt* takes two operations per weight and token that no other prompt could have left in a cache, on all GPUs of
  the replica at the peak of the fastest format in use, without attention. This, and one step, bound each request's
  TTFT.
- *The rate* in the long run is bounded by operations (prompt and answer, as above) and by steps, which give at most one
  token to each of ``max_num_seqs`` sequences. Stages of a pipeline work in parallel, so a step there takes no longer
  than the mean stage.

A percentile of the bounds is no larger than that of the times, as each bound is no larger than its time.

The quick estimate is a fixed point: the batch is the arrival rate times the residence time (Little's law), and the time
of a step follows from the batch. Prompts take their share of the time, which delays every other step, and queue for
each other. Percentiles add chance in the number of sequences and prompts that a request meets. It ignores how prompts
are cut and packed, and is off by a fifth or so: good enough to order candidates and drop hopeless ones.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from itertools import groupby, product
from math import ceil, floor, inf, log, sqrt
from statistics import NormalDist

import numpy as np

from infercast.engines.base import Deployment, engine_named
from infercast.engines.timer import KernelTimer
from infercast.errors import DoesNotFitError, InfercastError
from infercast.forecast.plan.candidate import Candidate, Row, Stage
from infercast.forecast.plan.question import (
    ROUGH_TOKENS,
    Lengths,
    Question,
    config_of,
    deployed,
    device_of,
    rough_timer,
)
from infercast.forecast.slo import Limit, Slo
from infercast.forecast.system import link_between
from infercast.lazy_classes import NamedTuple
from infercast.models.spec import ModelConfig
from infercast.ops.op import tensor_rate_of
from infercast.serve.step import StepEstimate
from infercast.units import format_gpus, format_seconds, format_watts


class TokenWork(NamedTuple):
    dense_bytes: float  # Weights that every step reads
    expert_bytes: float  # Those of the routed experts of one token
    flops: float  # Of one token, without attention and the head
    formats: frozenset[str]  # What products are multiplied in


class Bounds(NamedTuple):
    """Of one replica."""

    step: float  # Seconds of any step, through all stages
    token: float  # Seconds of one token of a prompt
    rate: float  # Requests a second in the long run; not bounded for traces, which end


@lru_cache(maxsize=256)
def work_of(config: ModelConfig) -> TokenWork:
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
    return TokenWork(dense, experts, 2.0 * products, frozenset(tensor_rate_of(each) for each in formats))


def bounds_of(question: Question, unit: Candidate) -> Bounds:
    config, gpu, layout = config_of(question, unit), device_of(unit.gpu, question.network), unit.layout
    lengths = question.lengths
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
    most_sequences = 1024  # The default of engines
    sequences = dict(unit.settings).get(engine_named(unit.engine).bounds[1]) or most_sequences
    tokens = float((lengths.new_inputs + lengths.outputs - 1).mean())
    by_flops = 1.0 / (token * tokens)
    steps = max(0.0, float(lengths.outputs.mean()) - 1.0) / (sequences * layout.data)
    return Bounds(step, token, min(by_flops, layout.pipeline / (steps * step) if steps and step else inf))


def most_headroom(question: Question, bounds: Bounds) -> tuple[float, Limit]:
    """The largest headroom that the SLO can have, and the limit that allows no more."""
    later = question.lengths.outputs - 1
    ttft = np.maximum(question.lengths.new_inputs * bounds.token, bounds.step)
    times = {"ttft": ttft, "tpot": np.full(int((later > 0).sum()), bounds.step), "e2e": ttft + later * bounds.step}

    def room(limit: Limit) -> float:
        values = times[limit.quantity]
        if not values.size:
            return inf
        value = values.mean() if limit.percentile is None else np.percentile(values, limit.percentile)
        return limit.seconds / max(float(value), 1e-12)

    tightest = min(question.slo.limits, key=room)
    return room(tightest), tightest


def least_replicas(question: Question, bounds: Bounds) -> int:
    return max(1, ceil(question.rate / bounds.rate))


CLOSE = 1e-3
ALONE = 0.3  # A share of the time up to which prompts mostly have a step to themselves
OVERLAP = 0.45  # The part of what a prompt adds to a step that stages of a pipeline do not do side by side


class Mix(NamedTuple):
    inputs: float
    outputs: float
    context: float  # Tokens that a sequence holds while it decodes: long answers count for longer
    lengths: Lengths

    def prompt(self, percentile: float | None) -> float:
        return self.inputs if percentile is None else float(np.percentile(self.lengths.new_inputs, percentile))


def mix_of(lengths: Lengths, cached: float) -> Mix:
    """``cached``: tokens of a prompt that are in the cache already, on average."""
    inputs, outputs = lengths
    held = float(outputs @ (inputs + outputs / 2) / outputs.sum()) + cached
    return Mix(float(inputs.mean()), float(outputs.mean()), held, lengths)


class SteadyLoad(NamedTuple):
    batch: float  # Sequences that decode at one time
    step: float  # Seconds of a step that only decodes
    added: float  # Seconds that a prompt adds to the steps it is in, on average ...
    busy: float  # ... and the share of the time that this takes.
    rate: float  # Requests a second of one engine
    tokens: float = 1.0  # Tokens of a sequence and step, more than one where drafts are accepted

    @property
    def tpot(self) -> float:
        return self.step / self.tokens / max(1.0 - self.busy, CLOSE)


class BatchSteps:
    """Steps of a batch of average sequences, each timed once however many candidates ask."""

    def __init__(self, timer: KernelTimer, mix: Mix) -> None:
        self.mix, self._timer = mix, timer
        self.decode = cache(self._decode)
        self.mixed = cache(self._mixed)
        self.prompt = cache(mix.prompt)

    def _decode(self, count: int) -> float:
        context = int(self.mix.context)
        return _seconds(self._timer.decode(count, count * context, lambda: [context] * count, 1))

    def _mixed(self, tokens: int, before: int, prompts: int, decodes: int) -> float:
        """Seconds of a step of equal chunks of prompts and decoding sequences."""
        context = int(self.mix.context)
        parts = [(tokens, before)] * prompts
        return _seconds(self._timer.compute(parts, prompts, decodes, decodes * context, lambda: [context] * decodes))


class Engine:
    """One replica as its step timer has it; prompts and decoding may be switched off where a pool has but one."""

    def __init__(self, deployment: Deployment, steps: BatchSteps, role: str = "both") -> None:
        self._steps, self._role = steps, role
        self._mix = mix = steps.mix
        settings, layout, host = deployment.settings, deployment.layout, deployment.host
        self._stages, self._copies = layout.pipeline, layout.data
        self._tokens = 1.0 if deployment.drafting is None else deployment.drafting.acceptance.length
        self._overlap = 1.0 if layout.pipeline == 1 else OVERLAP + (1.0 - OVERLAP) / layout.pipeline
        self._budget = min(settings.max_num_batched_tokens, ROUGH_TOKENS)
        self._path = float(getattr(host, "request_path", 0.0) + getattr(host, "token_path", 0.0))
        room = deployment.memory.most_sequences(max(1, int(mix.context)), chunk=1)
        self.seats = max(1, min(settings.max_num_seqs, room))  # Sequences that it holds at one time
        self.limits = self.seats, self._budget, self._path, self._tokens  # All that settings of one replica differ in

    def step(self, batch: float) -> float:
        return self._steps.decode(max(1, min(round(batch), self.seats)))

    def added(self, tokens: float, batch: float, count: float = 1.0) -> float:
        """Seconds that each of ``count`` prompts in a step adds to its steps."""
        decodes = min(round(batch), self.seats - 1, self._budget // 2)
        room = max(2, self._budget - decodes)
        part = min(max(2, round(tokens)), room)
        many = max(1, min(int(count), self.seats - decodes, room // part))
        before = max(0, round((tokens - part) / 2))
        seconds = self._steps.mixed(part, before, many, decodes) - (self.step(batch) if decodes else 0.0)
        return max(seconds, 0.0) * max(1.0, tokens / part) / many

    def packed(self, tokens: float, batch: float) -> float:
        """The same with steps full of such prompts, which share the fixed cost of a step."""
        return self.added(tokens, batch, self._budget / tokens)

    def load(self, rate: float) -> SteadyLoad | None:
        each, mix = rate / self._copies, self._mix
        decodes = self._role != "prefill"
        batch, found = 1.0 if decodes else 0.0, None
        rounds = 12  # Iterations of the batch and its step time
        for _ in range(rounds):
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
            found = SteadyLoad(batch, step, added, busy, each, self._tokens)
            if not decodes:
                return found
            again = each * max(0.0, mix.outputs - 1.0) * found.tpot
            if again > self.seats:
                return None
            if abs(again - batch) <= 0.5 + 0.02 * batch:
                break
            batch = 0.5 * (batch + again) if again < batch else again
        return found

    def ttft(self, load: SteadyLoad, percentile: float | None) -> float:
        mean = self._path + load.step / 2
        own = self.added(self._steps.prompt(percentile), load.batch) + load.step
        work = load.added + load.step / self._stages
        waiting = load.rate * work / self._stages
        queue = load.busy * work / max(1.0 - min(waiting, 1.0 - CLOSE), CLOSE)
        if percentile is None:
            return mean + own + queue
        tail = max(0.0, log(max(load.busy, 1e-9) / max(1.0 - percentile / 100, 1e-3)))
        # Long prompts and long queues seldom meet.
        typical = self.added(self._mix.inputs, load.batch) + load.step
        return mean + max(own, typical + tail * work / max(1.0 - load.busy, CLOSE), own + queue)

    def tpot(self, load: SteadyLoad, percentile: float | None) -> float:
        if percentile is None or load.batch <= 0:
            return load.tpot
        off = NormalDist().inv_cdf(min(max(percentile / 100, 1e-3), 0.999))
        stay = max(load.rate * self._mix.outputs * load.tpot, 1e-9)
        busy = min(load.busy * max(0.0, 1.0 + off / sqrt(stay)), 1.0 - CLOSE)
        step = self.step(max(1.0, load.batch + off * sqrt(load.batch) / 2))
        return step / self._tokens / max(1.0 - busy, CLOSE)


def _seconds(step: StepEstimate) -> float:
    return max(step.gpu_seconds[0], step.host.total)


class QuickEstimate(NamedTuple):
    """What users would see, roughly; seconds."""

    headroom: float  # 0: it cannot keep up
    ttft: float = inf
    tpot: float = inf
    end_to_end: float = inf


def quick_estimate(
    slo: Slo, mix: Mix, prompts: Engine, decodes: Engine, rates: tuple[float, float], moved: float = 0.0
) -> QuickEstimate:
    """What users would see of one replica of each pool at these rates; ``moved``: seconds of keys on their way."""
    first = prompts.load(rates[0])
    second = first if decodes is prompts else decodes.load(rates[1])
    if first is None or second is None:
        return QuickEstimate(0.0)
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
    return QuickEstimate(headroom, ttft, tpot, ttft + mix.outputs * tpot)


HOPELESS = 0.7
"""A headroom by the quick estimate below which a candidate is not simulated. Of those that kept their SLO in some 120
simulations of three models the lowest had 0.86; pipelines that are nearly full, which are never best, are lower."""
HOPELESS_ODDS, HIGH_ODDS = 0.9, 0.75  # The same for high odds, which take a tenth more room in a simulation
LEAST_RATE, MOST_RATE = 0.01, 1e5  # Requests a second between which the most that a replica keeps is looked for


class ScreenedOption(NamedTuple):
    candidate: Candidate
    cost: float | None
    estimate: QuickEstimate
    rate: float = 0.0  # Requests a second at which the estimate just keeps the SLO, where that is looked for


class ReplicaSpec(NamedTuple):
    """Units that differ in settings alone, and what the best of them cannot beat."""

    units: tuple[Candidate, ...]
    replicas: tuple[int, ...]  # The least that each unit needs

    @property
    def least(self) -> Candidate:
        replicas, unit = min(zip(self.replicas, self.units, strict=True), key=lambda pair: pair[0])
        return unit.times(replicas)


def stems_of(question: Question) -> tuple[list[ReplicaSpec], list[Row]]:
    """All units that bounds leave, by what their step times depend on, and those that they rule out."""
    stems: list[ReplicaSpec] = []
    ruled_out: list[Row] = []
    for _, group in groupby(question.units(), key=lambda unit: unit.stem):
        units, replicas = [], []
        most = cache(partial(most_headroom, question))  # settings hardly change bounds
        for unit in group:
            bounds = bounds_of(question, unit)
            count, (room, limit) = least_replicas(question, bounds), most(bounds)
            if reason := _impossible(question, unit, count, room, limit):
                cost = question.cost(unit.times(count))
                ruled_out.append(Row(unit.times(count), Stage.BOUND, cost, headroom=room, reason=reason))
            else:
                units.append(unit)
                replicas.append(count)
        if units:
            stems.append(ReplicaSpec(tuple(units), tuple(replicas)))
    return stems, ruled_out


def _impossible(question: Question, unit: Candidate, replicas: int, headroom: float, limit: Limit) -> str:
    """Why no deployment of this kind can be an answer; empty if one may be."""
    if headroom <= 1.0:
        return (
            f"{limit} cannot hold: reading the weights or multiplying the prompt alone takes "
            f"{format_seconds(limit.seconds / headroom)}"
        )
    least = unit.times(replicas)
    if question.allows(least) or question.goal.finds_rate:
        return ""
    if least.gpus > question.max_gpus:
        needed = format_gpus(least.gpus)
        return f"{question.rate:.3g} requests/s need at least {needed}, above the {question.max_gpus} allowed"
    if question.power_budget is not None and not question.allows_power(least):
        return f"{format_gpus(least.gpus)} at idle: above the power budget of {format_watts(question.power_budget)}"
    return f"costs at least {question.cost(least):,.2f} per hour, above the budget of {question.budget:,.2f}"


class Screened(NamedTuple):
    options: tuple[ScreenedOption, ...]
    rows: tuple[Row, ...]  # Units that do not fit, and numbers of replicas that are hopeless


def look_at(stem: ReplicaSpec, question: Question) -> Screened:
    rows: list[Row] = []
    fitting: dict[object, tuple[Candidate, int]] = {}
    for unit, least in zip(stem.units, stem.replicas, strict=True):
        try:
            settings = deployed(question.shared, unit).settings
        except InfercastError as problem:
            why = "does not fit" if isinstance(problem, DoesNotFitError) else "the engine refuses it"
            rows.append(Row(unit, Stage.REFUSED, question.cost(unit), reason=f"{why}: {problem}"))
        else:
            fitting.setdefault(settings, (unit, least))  # settings that are the engine's own choice anyway come once
    if not fitting:
        return Screened((), tuple(rows))
    options: list[ScreenedOption] = []
    units = tuple(unit for unit, _ in fitting.values())
    lengths, requests = question.lengths, question.workload.requests
    # Mean tokens of a prompt that another prompt may have left in the cache.
    cached = sum(each.num_input for each in requests) / len(requests) - float(lengths.new_inputs.mean())
    mix = mix_of(lengths, cached)
    steps, engines = BatchSteps(rough_timer(question.shared, units), mix), dict[object, Engine]()
    most = cache(partial(_most, question.slo, mix))
    estimate = cache(lambda engine, rate: quick_estimate(question.slo, mix, engine, engine, (rate, rate)))
    plenty = 3.0  # A headroom from which on no more replicas are tried
    for unit, least in fitting.values():
        engine = Engine(deployed(question.shared, unit), steps)
        engine = engines.setdefault(engine.limits, engine)
        for count in _counts(question, unit, least):
            candidate, rate = unit.times(count), question.rate / count
            made, factor = estimate(engine, rate), 0.0
            if question.goal.finds_rate:
                factor = most(engine)
                made = made._replace(headroom=1.0 if factor else 0.0)
            options.append(ScreenedOption(candidate, question.cost(candidate), made, count * factor))
            if made.headroom > plenty:
                break
    return Screened(tuple(options), tuple(rows))


def _most(slo: Slo, mix: Mix, engine: Engine) -> float:

    def holds(rate: float) -> bool:
        return quick_estimate(slo, mix, engine, engine, (rate, rate)).headroom > 1.0

    low, high = 0.0, LEAST_RATE
    while holds(high) and high < MOST_RATE:
        low, high = high, 2.0 * high
    while low and high / low > 1.02:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _counts(question: Question, unit: Candidate, least: int) -> Sequence[int]:
    """Numbers of replicas to look at, in steps of 3 %; where the rate is looked for, as many as are allowed."""
    allowed = range(1, question.max_gpus // unit.layout.gpus + 1)
    most = bisect(allowed, False, key=lambda count: not question.allows(unit.times(count)))
    if question.goal.finds_rate:
        return [max(1, most)]
    counts = [least] if least <= most else []
    while counts and (more := max(counts[-1] + 1, int(1.03 * counts[-1]))) <= most:
        counts.append(more)
    return counts


ROOM = (0.8, 1.0, 1.3)  # Headrooms by the quick estimate that the numbers of replicas are chosen for


class PoolSpec(NamedTuple):
    unit: Candidate
    engine: Engine
    most: int  # Replicas that can be simulated together: copies that share experts are one


def pool_options(question: Question, single: Sequence[ScreenedOption], most: float) -> list[ScreenedOption]:
    """Pairs of pools that may take up to ``most``, with the ratio that each kind of replica can take."""
    mix = mix_of(question.lengths, 0.0)
    known = question.goal.known or (lambda *_: 0.0)
    options: dict[Candidate, ScreenedOption] = {}
    for units in _kinds(single).values():
        values = {unit: known(question, unit) for unit in units}
        specs = [
            pair
            for unit, value in values.items()
            if value + min(values.values()) <= most and (pair := _pool_specs(question, unit, mix)) is not None
        ]
        pools = (_cheapest(question, role) for role in zip(*specs, strict=True))
        for first, second in product(*pools) if specs else ():
            for option in _pairs(question, first, second, mix):
                options.setdefault(option.candidate, option)
    return list(options.values())


def _kinds(single: Sequence[ScreenedOption]) -> dict[tuple[object, ...], list[Candidate]]:
    """Units with the engine's own settings by formats, which both pools must have in common."""
    found: dict[tuple[object, ...], dict[Candidate, None]] = {}
    for option in single:
        unit = option.candidate.unit
        if set(dict(unit.settings)) == {engine_named(unit.engine).bounds[2]} and unit.layout.pipeline == 1:
            found.setdefault((unit.engine, unit.quantization, unit.kv_cache_dtype), {})[unit] = None
    return {formats: list(units) for formats, units in found.items()}


def _pool_specs(question: Question, unit: Candidate, mix: Mix) -> tuple[PoolSpec, PoolSpec] | None:
    """The unit in a prefill pool and in a decode pool, which share step times."""
    try:
        deployment = deployed(question.shared, unit)
    except InfercastError:
        return None
    steps = BatchSteps(rough_timer(question.shared, (unit,)), mix)
    most = 1 if deployment.shares_experts else question.max_gpus // unit.layout.gpus
    first, second = (PoolSpec(unit, Engine(deployment, steps, role), most) for role in ("prefill", "decode"))
    return first, second


def _cheapest(question: Question, specs: Sequence[PoolSpec]) -> list[PoolSpec]:
    """Of each GPU the kinds that need least for the rate by themselves."""

    def needed(spec: PoolSpec) -> float:
        for count in range(1, spec.most + 1):
            if spec.engine.load(question.rate / count) is not None:
                cost = question.cost(spec.unit.times(count))
                return float(spec.unit.times(count).gpus) if cost is None else cost
        return inf

    values = {spec.unit: needed(spec) for spec in specs}
    kept: list[PoolSpec] = []
    best = 4  # Kinds of replicas of each GPU and format that are tried for each pool
    for gpu in dict.fromkeys(spec.unit.gpu for spec in specs):
        own = [spec for spec in specs if spec.unit.gpu == gpu and values[spec.unit] < inf]
        kept += sorted(own, key=lambda spec: (values[spec.unit], str(spec.unit)))[:best]
    return kept


def _pairs(question: Question, first: PoolSpec, second: PoolSpec, mix: Mix) -> list[ScreenedOption]:
    """The smallest pools that keep the SLO with some room, by the quick estimate."""
    try:
        wire = link_between(
            deployed(question.shared, first.unit), deployed(question.shared, second.unit), question.link
        )
    except InfercastError:
        return []
    config = deployed(question.shared, second.unit).model
    moved = wire.latency + config.sequence_bytes(round(mix.inputs)) / wire.sending
    made: dict[tuple[int, int], QuickEstimate] = {}

    def ask(prefills: int, decodes: int) -> QuickEstimate:
        key = prefills, decodes
        if key not in made:
            rates = question.rate / prefills, question.rate / decodes
            made[key] = quick_estimate(question.slo, mix, first.engine, second.engine, rates, moved)
        return made[key]

    options = []
    for room in ROOM:
        for prefills in range(1, first.most + 1):
            enough = next((count for count in range(1, second.most + 1) if ask(prefills, count).headroom >= room), None)
            if enough is None:
                continue
            pair = replace(second.unit.times(enough), prefill=first.unit.times(prefills))
            if question.allows(pair):
                options.append(ScreenedOption(pair, question.cost(pair), ask(prefills, enough)))
    return options
