"""The kernels of an average step on the roofline: what each reaches, against what its shape would let it reach."""

from __future__ import annotations

import numpy as np

from infercast.engine.deployment import Deployment
from infercast.engine.step import StepShape
from infercast.forecast.kernels import price_shape
from infercast.forecast.phases import average_shape
from infercast.models.lower import attention_calls, head_calls, token_calls
from infercast.ops import Collective
from infercast.ops.dtypes import tensor_rate_of
from infercast.records import dataclass
from infercast.serve import Record


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One kernel of a step."""

    name: str
    family: str
    share: float
    """Of the step's GPU time."""
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
    num_tokens: int
    num_sequences: int
    context: int
    points: tuple[RooflinePoint, ...]
    """Largest first; kernels that only move data have no place on it."""
    share: float
    """Of the step's GPU time that the points have together."""
    bandwidth: float
    """Bytes a second of the GPU's memory."""
    peaks: dict[str, float]
    """Operations a second of each format in use."""


def step_rooflines(deployment: Deployment, record: Record) -> tuple[StepRoofline, ...]:
    """One for each phase of an engine's run."""
    return tuple(
        _roofline(name, deployment, average_shape(totals)) for name, totals in record.phases.items() if totals.steps
    )


def _roofline(phase: str, deployment: Deployment, shape: StepShape) -> StepRoofline:
    model, layout, gpu = deployment.model, deployment.layout, deployment.gpu
    cost = price_shape(deployment, shape)
    queries = np.array(shape.new_tokens)
    calls = [
        *token_calls(model, layout, cost.padded_tokens),
        *attention_calls(model, layout, queries, queries + np.array(shape.computed)),
        *head_calls(model, layout, max(1, shape.num_sampled)),
    ]
    whole = float(cost.gpu.seconds)
    points, peaks = [], {}
    for call, kernel in zip(calls, cost.kernels, strict=True):
        flops, moved = float(call.op.flops), float(call.op.bytes_read + call.op.bytes_written)
        if isinstance(call.op, Collective) or not flops:
            continue
        dtype = tensor_rate_of(call.op.compute_dtype)
        peaks[dtype] = gpu.dense_flops(dtype)
        intensity = flops / moved
        points.append(
            RooflinePoint(
                name=call.name,
                family=call.op.family,
                share=kernel.seconds / whole,
                intensity=intensity,
                flops_per_second=flops / float(kernel.estimate.seconds),
                limit=min(peaks[dtype], intensity * gpu.dram_bandwidth),
                dtype=dtype,
            )
        )
    points.sort(key=lambda point: -point.share)
    return StepRoofline(
        phase=phase,
        num_tokens=shape.num_tokens,
        num_sequences=shape.num_sequences,
        context=int(shape.computed[0]),
        points=tuple(points),
        share=sum(point.share for point in points),
        bandwidth=gpu.dram_bandwidth,
        peaks=peaks,
    )
