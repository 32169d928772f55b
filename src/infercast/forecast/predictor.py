"""Step times for schedulers that are not ours: a batch in, seconds out, on a clock that overlaps host and GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from infercast.engines.base import Deployment
from infercast.errors import InputError
from infercast.forecast.deploy import GpuSource, ModelSource, deploy
from infercast.serve.step import Prompts, StepShape
from infercast.serve.timeline import StepNoise, Timeline


class StepTime(NamedTuple):
    """One step."""

    gpu: float  # Seconds on the GPU
    host: float  # Seconds of the engine's thread for it
    start: float  # Seconds on the clock at which the GPU begins ...
    end: float  # ... and the seconds at which it ends.
    ready: float  # Seconds on the clock at which its tokens leave the engine


class StepPredictor:
    """The time of each batch of a deployment, as a scheduler plans them one after the other.

    >>> predictor = StepPredictor.of("llama-3.1-8b", "h200-sxm")
    >>> step = predictor.step(prompts=[(512, 0)], decodes=[1000, 2000])
    >>> step.gpu > 0 and predictor.num_blocks > 0
    True
    """

    def __init__(self, deployment: Deployment) -> None:
        if deployment.stages is not None:
            raise InputError("a StepPredictor has one clock for all GPUs; pipeline_parallel_size must be 1")
        self.deployment = deployment
        self.replica = replica = deployment.replica()
        self.num_blocks: int = replica.num_blocks
        self.block_size: int = replica.kv_shape.block_size
        self.max_model_len: int | None = replica.max_model_len
        self.steps_under_way: int = replica.steps_under_way  # 2: a step is launched before the one before has ended
        self.clock = Timeline()
        self._noise = StepNoise(replica.settle_seconds, replica.launch_spread)
        self._under_way: deque[tuple[float, float]] = deque()  # When steps end, and what their results take

    @staticmethod
    def of(model: ModelSource, gpu: GpuSource, **options: Any) -> StepPredictor:
        """Of a deployment with the options of `deploy`."""
        return StepPredictor(deploy(model, gpu, **options))

    def seconds(self, prompts: Prompts = (), decodes: Sequence[int] = ()) -> tuple[float, float]:
        """GPU and host seconds of a batch: (new, computed) tokens of each prompt, contexts of decoding sequences."""
        estimate = self.replica.timer(_shape(prompts, decodes))
        return estimate.gpu_seconds[0], estimate.host.total

    def launch(
        self, prompts: Prompts = (), decodes: Sequence[int] = (), at: float | None = None, *, unfinished: int = 0
    ) -> StepTime:
        """Launch a batch on the clock, not before ``at``; its ``ready`` is for `take_in` to tell.

        ``unfinished``: prompts of it that have tokens left, and sample none.
        """
        if at is not None and at > self.clock.clock:
            self.clock.sleep_until(at)
        shape = _shape(prompts, decodes, unfinished)
        estimate = self.replica.timer(shape)
        if not shape.is_decode:
            estimate = self._noise.meet(estimate, self.clock.clock, self.clock.gpu_free)
        span = self.clock.launch(estimate.host, estimate.gpu_seconds[0])
        self._under_way.append((span.end, estimate.host.process))
        return StepTime(estimate.gpu_seconds[0], estimate.host.total, span.start, span.end, inf)

    def take_in(self) -> float:
        """Wait for the oldest batch that was launched; returns when its tokens leave the engine."""
        return self.clock.take_in(*self._under_way.popleft())

    def step(self, prompts: Prompts = (), decodes: Sequence[int] = (), at: float | None = None) -> StepTime:
        """Launch a batch and wait for its result."""
        return self.launch(prompts, decodes, at)._replace(ready=self.take_in())


def _shape(prompts: Prompts, decodes: Sequence[int], unfinished: int = 0) -> StepShape:
    new, computed = [1] * len(decodes) + [each for each, _ in prompts], [*decodes, *(each for _, each in prompts)]
    return StepShape(new, computed, len(new) - unfinished)
