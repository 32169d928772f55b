"""Sentences that say why two runs differ, the weightiest first."""

from __future__ import annotations

from infercast.forecast.compare import HOST
from infercast.forecast.side_by_side import SameStep, Side, SideBySide
from infercast.units import format_percent, format_seconds

MATTERS = 0.02
"""A difference below this share is not worth a sentence."""
APART = 0.03
"""The same of shares of time, in points."""


def reasons(both: SideBySide) -> list[str]:
    """What explains the difference; nothing where nothing does."""
    first, second = both.sides
    sentences = [
        *_stops(first, second),
        *(sentence for step in both.steps for sentence in _same_step(step, first, second)),
        *_bounds(first, second),
        *_caches(first, second),
        *_prefixes(first, second),
        *_batches(first, second),
        *_padding(first, second),
        *_hosts(first, second),
    ]
    sentences = sentences or [f"Steps, kernels and cache of {first.name} and {second.name} are alike."]
    return [*dict.fromkeys([*sentences, *_not_measured(first, second)])]


def _stops(first: Side, second: Side) -> list[str]:
    """Whether decoding stands still while prompts are computed."""
    sentences = []
    for side, other in ((first, second), (second, first)):
        alone, elsewhere, beside = side.kind("prefill"), other.kind("prefill"), other.kind("mixed")
        if alone is None or alone.of_gaps - (0.0 if elsewhere is None else elsewhere.of_gaps) < APART:
            continue
        how = ""
        if beside is not None:
            share = format_percent(beside.of_gaps)
            how = f"; {other.name} computes them beside it, so that these {share} yield tokens, too"
        sentences.append(
            f"{side.name} stops decoding while prompts are computed: {format_percent(alone.of_gaps)} of the time "
            f"between two tokens{how}."
        )
    return sentences


def _same_step(step: SameStep, first: Side, second: Side) -> list[str]:
    """What one step takes in both, and which kernels say why."""
    before, after = (cost.seconds for cost in step.costs)
    if abs(after / before - 1.0) < MATTERS:
        return []
    families = [(name, other - one) for name, one, other in step.families]
    name, change = max(families, key=lambda each: each[1] if after > before else -each[1])
    what = "what the GPU waits for its host" if name == HOST else name
    return [
        f"A step of {step.title} takes {format_seconds(after)} on {second.name} and {format_seconds(before)} on "
        f"{first.name}; most of the difference is {what} ({'+' if change > 0 else '-'}{format_seconds(abs(change))})."
    ]


def _bounds(first: Side, second: Side) -> list[str]:
    """The largest step of prompts; engines that compute prompts apart bound them alone."""
    before, after = (side.deployment.settings.max_num_batched_tokens for side in (first, second))
    if before == after:
        return []
    return [f"{second.name} computes up to {after:,} tokens of prompts in a step, {first.name} {before:,}."]


def _prefixes(first: Side, second: Side) -> list[str]:
    if abs(second.prefix_hit_rate - first.prefix_hit_rate) < MATTERS:
        return []
    return [
        f"{second.name} finds {format_percent(second.prefix_hit_rate)} of prompt tokens in its cache, {first.name} "
        f"{format_percent(first.prefix_hit_rate)}."
    ]


def _not_measured(first: Side, second: Side) -> list[str]:
    """What only intervals know."""
    return [
        f"{side.deployment.engine.name} was not measured ({side.deployment.engine.note}), so its own kernels and host "
        "times may differ by more than shows here."
        for side in (first, second)
        if not side.deployment.engine.is_measured
    ]


def _caches(first: Side, second: Side) -> list[str]:
    change = second.kv_tokens / first.kv_tokens - 1.0
    if abs(change) < MATTERS:
        return []
    return [
        f"The KV cache of {second.name} is {format_percent(abs(change))} {'larger' if change > 0 else 'smaller'}: "
        f"{second.kv_tokens:,} tokens, not {first.kv_tokens:,}."
    ]


def _batches(first: Side, second: Side) -> list[str]:
    """How many sequences decode together."""
    before, after = first.kind("decode"), second.kind("decode")
    if before is None or after is None or abs(after.decoding / before.decoding - 1.0) < 5 * MATTERS:
        return []
    return [
        f"{second.name} decodes {after.decoding:,.1f} sequences a step in {_steps(after.steps)}, {first.name} "
        f"{before.decoding:,.1f} in {_steps(before.steps)}."
    ]


def _padding(first: Side, second: Side) -> list[str]:
    before, after = first.kind("decode"), second.kind("decode")
    if before is None or after is None or abs(after.padding - before.padding) < APART:
        return []
    return [
        f"Of the tokens that decode steps compute, {format_percent(after.padding)} fill up a recorded size on "
        f"{second.name} and {format_percent(before.padding)} on {first.name}."
    ]


def _hosts(first: Side, second: Side) -> list[str]:
    if abs(second.host_bound - first.host_bound) < APART:
        return []
    return [
        f"The GPU waits for its CPU in {format_percent(second.host_bound)} of step time on {second.name} and in "
        f"{format_percent(first.host_bound)} on {first.name}."
    ]


def _steps(count: int) -> str:
    return f"{count:,} step{'s' if count != 1 else ''}"
