"""Two runs or two steps compared: results, caches, steps and kernels, and the reasons for the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from infercast.engines.base import Deployment
from infercast.forecast.explain.step_log import KINDS, EngineRun, Watched, kernels_of
from infercast.forecast.kernels import Phase, StepCost, average_shape, estimate_shape, host_bound_share
from infercast.forecast.slo import Array
from infercast.forecast.system import PREFILL, busiest
from infercast.lazy_classes import NamedTuple, dataclass
from infercast.serve.step import StepShape
from infercast.units import NOTHING, format_many, format_percent, format_seconds

HOST = "GPU waits for host"
LINK = "link between the pools", "link"
Parts = dict[tuple[str, str], float]
PLAIN = {"as asked": ("the run as asked", "as asked"), "what if": ("the changed run", "with the changes")}
"""What sentences call a run that has no name of its own: as their subject, and where or how something is so."""
SAID = 3  # families that a sentence names; what others changed is their rest
MATTERS = 0.02  # a difference below this share is not worth a sentence
APART = 0.03  # the same of shares of time, in points


@dataclass(frozen=True, slots=True)
class Difference:
    name: str
    family: str
    before: float  # Seconds of a mean latency, or of a step; 0 where there is no such kernel
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences add up to the difference of the two totals."""

    differences: tuple[Difference, ...]

    @property
    def before(self) -> float:
        return sum(each.before for each in self.differences)

    @property
    def after(self) -> float:
        return sum(each.after for each in self.differences)


def compare_runs(before: Watched, after: Watched) -> dict[str, Comparison]:
    """Mean TTFT and TPOT of two runs, by kernels that ran while requests waited; the rest is the host's."""
    first, second = _latencies(before), _latencies(after)
    return {name: _compare(parts, second[name]) for name, parts in first.items() if name in second}


def compare_steps(before: StepCost, after: StepCost) -> Comparison:
    """GPU time of one step, kernel by kernel; the host where it takes longer."""
    return _compare(_a_step(before), _a_step(after))


def _latencies(run: Watched) -> dict[str, Parts]:
    sums: dict[str, Parts] = {}
    link = run.forecast.link
    if link is not None:
        spent = link.handover.received - link.handover.ready
        sums["TTFT"] = {LINK: float(spent.sum())}
    counts = {"TTFT": 0, "TPOT": 0}
    for engine in run.engines:
        record = engine.record
        served = np.flatnonzero(~np.isnan(record.last_token))
        several = np.flatnonzero(record.num_output > 1)
        for name, chosen, start, end, tokens in (
            ("TTFT", served, record.sent_at, record.first_token, np.ones(served.size)),
            ("TPOT", several, record.first_token, record.last_token, record.num_output[several] - 1),
        ):
            if chosen.size:
                # On a prefill pool a request is on its way to its first token.
                counts[name] += chosen.size if engine.pool.role != PREFILL else 0
                found = sums.setdefault(name, {})
                for key, seconds in _window(engine, start[chosen], end[chosen], tokens).items():
                    found[key] = found.get(key, 0.0) + seconds
    return {name: {key: seconds / counts[name] for key, seconds in found.items()} for name, found in sums.items()}


def _window(engine: EngineRun, start: Array, end: Array, tokens: Array) -> Parts:
    """What the GPU did between two moments of each request, a token, added up over requests."""
    steps = engine.log.steps
    kernels = np.concatenate([seconds for _, seconds in steps.kernels(engine.timer)])
    found: Parts = {}
    for key, seconds in zip(kernels_of(engine.timer), kernels.T, strict=True):
        if seconds.any():
            spent = float(((steps.until(end, seconds) - steps.until(start, seconds)) / tokens).sum())
            found[key] = found.get(key, 0.0) + spent
    found["host and the way to it", "host"] = float(((end - start) / tokens).sum()) - sum(found.values())
    return found


def _a_step(cost: StepCost) -> Parts:
    found: Parts = {}
    for kernel in cost.kernels:
        found[kernel.name, kernel.family] = found.get((kernel.name, kernel.family), 0.0) + kernel.seconds
    found[HOST, "host"] = cost.seconds - float(cost.gpu.seconds)
    return found


def _compare(before: Parts, after: Parts) -> Comparison:
    differences = [
        Difference(*key, before.get(key, 0.0), after.get(key, 0.0)) for key in dict.fromkeys((*before, *after))
    ]
    return Comparison(tuple(sorted(differences, key=lambda each: -abs(each.change))))


class StepKind(NamedTuple):
    name: str
    steps: int
    gpu_seconds: float
    share: float  # Of the GPU's time in steps of any kind
    prompt_tokens: float  # In a step, on average ...
    decoding: float  # ... as are sequences that decode in it.
    padding: float  # The share of computed tokens that only fill a recorded size up
    of_gaps: float  # The share of the time between two tokens of a request that goes by in such steps

    @property
    def tokens(self) -> float:
        return self.prompt_tokens + self.decoding


def step_kinds(run: Watched) -> tuple[StepKind, ...]:
    whole = sum(float(engine.log.steps.gpu_seconds.sum()) for engine in run.engines)
    between = sum(_between_tokens(engine) for engine in run.engines)
    kinds = (_kind(number, run.engines, whole, between) for number in range(len(KINDS)))
    return tuple(kind for kind in kinds if kind.steps)


def _kind(number: int, engines: Sequence[EngineRun], whole: float, between: float) -> StepKind:
    steps = tokens = prompts = padded = 0
    seconds = gaps = 0.0
    for engine in engines:
        log = engine.log.steps
        of_kind = log.kind == number
        steps += int(of_kind.sum())
        tokens += int(log.tokens[of_kind].sum())
        prompts += int(log.prompt_tokens[of_kind].sum())
        padded += int(engine.timer.computed_tokens(log.rows[0][of_kind]).sum())
        seconds += float(log.gpu_seconds[of_kind].sum())
        gaps += _between_tokens(engine, np.where(of_kind, log.gpu_seconds, 0.0))
    return StepKind(
        name=KINDS[number], steps=steps, gpu_seconds=seconds, share=seconds / whole if whole else 0.0,
        prompt_tokens=prompts / steps if steps else 0.0, decoding=(tokens - prompts) / steps if steps else 0.0,
        padding=max(0.0, 1.0 - tokens / padded) if padded else 0.0, of_gaps=gaps / between if between else 0.0,
    )  # fmt: skip


def _between_tokens(engine: EngineRun, seconds: np.ndarray | None = None) -> float:
    """Seconds from first to last token over all requests, or what of the ``seconds`` of each step is in them."""
    record = engine.record
    several = np.flatnonzero(record.num_output > 1)
    start, end = record.first_token[several], record.last_token[several]
    if seconds is None:
        return float((end - start).sum())
    steps = engine.log.steps
    return float((steps.until(end, seconds) - steps.until(start, seconds)).sum())


@dataclass(frozen=True, slots=True)
class Side:
    name: str  # Of its engine, and where both have the same, what is changed
    deployment: Deployment
    kinds: tuple[StepKind, ...]
    phases: tuple[Phase, ...]
    prefix_hit_rate: float

    @property
    def subject(self) -> str:
        return PLAIN[self.name][0] if self.name in PLAIN else self.name

    @property
    def place(self) -> str:
        return PLAIN[self.name][1] if self.name in PLAIN else f"on {self.name}"

    @property
    def kv_tokens(self) -> int:
        return self.deployment.memory.num_tokens

    @property
    def host_bound(self) -> float:
        return host_bound_share(self.phases)

    def kind(self, name: str) -> StepKind | None:
        return next((kind for kind in self.kinds if kind.name == name), None)


@dataclass(frozen=True, slots=True)
class SameStep:
    title: str
    shape: StepShape
    costs: tuple[StepCost, StepCost]

    @property
    def families(self) -> list[tuple[str, float, float]]:
        """Seconds of each kernel family in both, the longest first, then what the GPU idles and waits for its host."""
        sums: dict[str, list[float]] = {}
        for side, cost in enumerate(self.costs):
            for kernel in cost.kernels:
                sums.setdefault(kernel.family, [0.0, 0.0])[side] += kernel.seconds
        ranked = sorted(sums.items(), key=lambda item: -max(item[1]))
        gaps = [cost.gap_seconds for cost in self.costs]
        waits = [max(0.0, cost.host_seconds - float(cost.gpu.seconds) - cost.gap_seconds) for cost in self.costs]
        rows = [*ranked, ("gaps between kernels", gaps), (HOST, waits)]
        return [(name, one, other) for name, (one, other) in rows if one or other]


@dataclass(frozen=True, slots=True)
class SideBySide:
    sides: tuple[Side, Side]
    steps: tuple[SameStep, ...]  # A typical decode step and a typical step with a prompt of the first run, in both


def side_by_side(runs: tuple[Watched, Watched], names: tuple[str, str]) -> SideBySide:
    first, second = (
        Side(name, pool.deployment, step_kinds(run), pool.phases, run.forecast.prefix_hit_rate)
        for name, run in zip(names, runs, strict=True)
        for pool in run.forecast.pools[-1:]
    )
    record = busiest(runs[0].forecast.pools[-1].records)
    steps = []
    for is_prompt, totals in ((False, record.decoding), (True, record.prefilling)):
        if not totals.steps:
            continue
        shape = average_shape(totals)
        count = len(shape.new_tokens)
        if is_prompt:
            # All tokens of an average step with prompts as one prompt, which any engine computes alone.
            shape = StepShape([shape.num_tokens], [0], 1)
            title = f"one prompt of {shape.num_tokens:,} tokens"
        else:
            if any(side.deployment.drafting is not None for side in (first, second)):
                shape = StepShape([1] * count, shape.computed, count)  # one token of each, which both can do
            title = f"{format_many(count, 'sequence')} decoding after {shape.computed[0]:,} tokens"
        costs = (estimate_shape(first.deployment, shape), estimate_shape(second.deployment, shape))
        steps.append(SameStep(title, shape, costs))
    return SideBySide((first, second), tuple(steps))


def reasons(both: SideBySide, explained: Mapping[str, Comparison] = MappingProxyType({})) -> list[str]:
    """Sentences; ``explained``: of latencies by their names."""
    first, second = both.sides
    sentences = [each for name, one in explained.items() for each in _latency(name, one, first, second)]
    sentences += [*_stops(first, second), *_stops(second, first)]
    sentences += [sentence for step in both.steps for sentence in _same_step(step, first, second)]
    sentences += [*_settings_and_caches(first, second), *_decoding(first, second)]
    sentences = sentences or ["Steps, kernels and cache of both are alike."]
    not_measured = [
        f"{side.deployment.engine.name} was not measured ({side.deployment.engine.note}), so its own kernels and host "
        "times may differ by more than shows here."
        for side in (first, second)
        if not side.deployment.engine.is_measured
    ]
    return [*dict.fromkeys([*sentences, *not_measured])]


def _stops(side: Side, other: Side) -> Iterator[str]:
    alone, elsewhere, mixed = side.kind("prefill"), other.kind("prefill"), other.kind("mixed")
    if alone is None or alone.of_gaps - (0.0 if elsewhere is None else elsewhere.of_gaps) < APART:
        return
    how = ""
    if mixed is not None:
        share = format_percent(mixed.of_gaps)
        how = f"; {other.subject} computes them in the same steps, so that these {share} yield tokens, too"
    yield _sentence(
        f"{side.subject} stops decoding while prompts are computed: {format_percent(alone.of_gaps)} of the time "
        f"between two tokens{how}."
    )


def _sentence(text: str) -> str:
    """Names keep their letters at the beginning."""
    return f"T{text[1:]}" if text.startswith("the ") else text


def _latency(name: str, found: Comparison, first: Side, second: Side) -> Iterator[str]:
    """What makes the difference of a mean latency, in parts that add up to it."""
    if abs(found.after - found.before) < MATTERS * found.before:
        return
    families: dict[str, float] = {}
    for each in found.differences:
        part = each.name if each.family in ("host", "link") else each.family
        families[part] = families.get(part, 0.0) + each.change
    yield (
        f"Mean {name} is {format_seconds(found.after)} {second.place} and {format_seconds(found.before)} "
        f"{first.place}: {_parts(families)}."
    )


def _parts(changes: Mapping[str, float]) -> str:
    ranked = sorted(changes.items(), key=lambda each: -abs(each[1]))
    rest = sum(change for _, change in ranked[SAID:])
    told = [*ranked[:SAID], *([("the rest", rest)] if abs(rest) > NOTHING else [])]
    return ", ".join(f"{name} {'+' if change > 0 else '-'}{format_seconds(abs(change))}" for name, change in told)


def _same_step(step: SameStep, first: Side, second: Side) -> Iterator[str]:
    before, after = (cost.seconds for cost in step.costs)
    if abs(after / before - 1.0) < MATTERS:
        return
    families = {name: other - one for name, one, other in step.families}
    yield (
        f"A step of {step.title} takes {format_seconds(after)} {second.place} and {format_seconds(before)} "
        f"{first.place}: {_parts(families)}."
    )


def _settings_and_caches(first: Side, second: Side) -> Iterator[str]:
    # Engines that compute prompts in steps of their own bound these alone.
    before, after = (side.deployment.settings.max_num_batched_tokens for side in (first, second))
    if before != after:
        yield _sentence(
            f"{second.subject} computes up to {after:,} tokens of prompts in a step, {first.subject} {before:,}."
        )
    change = second.kv_tokens / first.kv_tokens - 1.0
    if abs(change) >= MATTERS:
        yield (
            f"The KV cache is {format_percent(abs(change))} {'larger' if change > 0 else 'smaller'} "
            f"{second.place}: {second.kv_tokens:,} tokens, not {first.kv_tokens:,}."
        )
    if abs(second.prefix_hit_rate - first.prefix_hit_rate) >= MATTERS:
        yield _sentence(
            f"{second.subject} finds {format_percent(second.prefix_hit_rate)} of prompt tokens in its cache, "
            f"{first.subject} {format_percent(first.prefix_hit_rate)}."
        )


def _decoding(first: Side, second: Side) -> Iterator[str]:
    before, after = first.kind("decode"), second.kind("decode")
    if before is not None and after is not None:
        if abs(after.decoding / before.decoding - 1.0) >= 5 * MATTERS:
            one, other = (format_many(each.steps, "step") for each in (after, before))
            yield _sentence(
                f"{second.subject} decodes {after.decoding:,.1f} sequences a step in {one}, "
                f"{first.subject} {before.decoding:,.1f} in {other}."
            )
        if abs(after.padding - before.padding) >= APART:
            yield (
                f"Of the tokens that decode steps compute, {format_percent(after.padding)} fill up a recorded size "
                f"{second.place} and {format_percent(before.padding)} {first.place}."
            )
    if abs(second.host_bound - first.host_bound) >= APART:
        yield (
            f"The GPU waits within steps in {format_percent(second.host_bound)} of their time {second.place} and in "
            f"{format_percent(first.host_bound)} {first.place}."
        )
