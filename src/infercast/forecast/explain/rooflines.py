"""The kernels of an average step on the roofline: what each reaches, against what its shape would let it reach."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.engines.speculation import Drafting
from infercast.forecast.explain.kernels import StepCost, estimate_shape
from infercast.forecast.explain.phases import Phase, average_shape
from infercast.forecast.explain.step_calls import step_calls
from infercast.forecast.pools import PoolRun
from infercast.forecast.system import DECODE, busiest
from infercast.ops.dtypes import tensor_rate_of
from infercast.serve import Record
from infercast.serve.step import StepShape
from infercast.serve.totals import PhaseTotals


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One kernel of a step."""

    name: str
    family: str
    share: float
    """Of the time of all steps of the phase, as in its table of kernel families."""
    intensity: float
    """Operations a byte that must be moved."""
    flops_per_second: float
    """What it reaches."""
    limit: float
    """What a kernel of this intensity and format could reach on this GPU."""
    dtype: str


@dataclass(frozen=True, slots=True)
class StepRoofline:
    """A step of average size of one phase."""

    phase: str
    num_prompts: int
    prompt_tokens: int
    """Of each prompt, that are computed in the step."""
    num_decodes: int
    context: int
    """Tokens before, of each sequence that decodes."""
    points: tuple[RooflinePoint, ...]
    """Largest first; kernels that only move data have no place on it."""
    share: float
    """Of the time of all steps that the points have together."""
    bandwidth: float
    """Bytes a second of the GPU's memory."""
    peaks: dict[str, float]
    """Operations a second of each format in use."""


def step_rooflines(pool: PoolRun) -> tuple[StepRoofline, ...]:
    """One for each phase of the busiest replica of a pool; a decode pool computes no prompts."""
    record, phases = busiest(pool.records), pool.phases
    return tuple(
        _roofline(phase, pool.deployment, _typical_shape(record, record.phases[phase.name], pool.deployment.drafting))
        for phase in phases
        if pool.role != DECODE or phase.name == "decode"
    )


def _typical_shape(record: Record, totals: PhaseTotals, drafting: Drafting | None) -> StepShape:
    """A step of average size, in which prompts are prompts and sequences that decode compute one token each.

    Attention is launched in different ways for the two, and latent attention spells keys out for prompts alone.
    """
    if totals is record.decoding:
        return average_shape(totals, drafting)
    served = ~np.isnan(record.first_token)
    num_prompts = max(1, round(np.count_nonzero(served) / totals.steps))
    num_decodes = max(0, round(totals.sequences / totals.steps) - num_prompts)
    prompt_tokens = max(1, round((totals.tokens / totals.steps - num_decodes) / num_prompts))
    cached = round(float(record.num_cached[served].mean()))
    context = totals.context / totals.steps
    if not num_decodes:
        return StepShape([prompt_tokens] * num_prompts, [round(context / num_prompts)] * num_prompts, num_prompts)
    before = max(1, round((context - num_prompts * cached) / num_decodes))
    sampled = max(1, round(totals.sampled / totals.steps))
    return StepShape(
        [prompt_tokens] * num_prompts + [1] * num_decodes,
        [cached] * num_prompts + [before] * num_decodes,
        min(sampled, num_prompts + num_decodes),
    )


def _roofline(phase: Phase, deployment: Deployment, shape: StepShape) -> StepRoofline:
    gpu, cost = deployment.gpu, estimate_shape(deployment, shape)
    points, peaks = [], {}
    for call, kernel, share in zip(step_calls(deployment, shape).all, cost.kernels, _shares(phase, cost), strict=True):
        flops, moved = float(call.op.flops), float(call.op.bytes_read + call.op.bytes_written)
        if not flops:
            continue
        dtype = tensor_rate_of(call.op.compute_dtype)
        peaks[dtype] = gpu.dense_flops(dtype)
        intensity = flops / moved
        points.append(
            RooflinePoint(
                name=call.name,
                family=call.op.family,
                share=share,
                intensity=intensity,
                flops_per_second=flops / float(kernel.estimate.seconds),
                limit=min(peaks[dtype], intensity * gpu.dram_bandwidth),
                dtype=dtype,
            )
        )
    num_prompts = 0 if phase.name == "decode" else sum(tokens > 1 for tokens in shape.new_tokens)
    points.sort(key=lambda point: -point.share)
    return StepRoofline(
        phase=phase.name,
        num_prompts=num_prompts,
        prompt_tokens=shape.new_tokens[0] if num_prompts else 0,
        num_decodes=len(shape.new_tokens) - num_prompts,
        context=int(shape.computed[-1]),
        points=tuple(points),
        share=sum(point.share for point in points),
        bandwidth=gpu.dram_bandwidth,
        peaks=peaks,
    )


def _shares(phase: Phase, cost: StepCost) -> list[float]:
    """The share of each kernel of a step in the time of all steps; those of one name divide it as in this step."""
    spent = {name: seconds for family in phase.families for name, seconds in family.kernels}
    together: dict[str, float] = {}
    for kernel in cost.kernels:
        together[kernel.name] = together.get(kernel.name, 0.0) + kernel.seconds
    return [
        spent.get(kernel.name, 0.0) / phase.whole * kernel.seconds / together[kernel.name] if kernel.seconds else 0.0
        for kernel in cost.kernels
    ]
