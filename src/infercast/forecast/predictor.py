"""Step times for schedulers that are not ours: a batch in, seconds out, on a clock that overlaps host and GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from infercast.engines.base import Deployment
from infercast.forecast.deploy import GpuSource, ModelSource, deploy
from infercast.serve.step import StepShape
from infercast.serve.timeline import Timeline


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
        self.deployment = deployment
        self._timer = deployment.timer()
        replica = deployment.replica(self._timer)
        self.num_blocks: int = replica.num_blocks
        self.block_size: int = replica.kv_shape.block_size
        self.max_model_len: int | None = replica.max_model_len
        self.steps_under_way: int = replica.steps_under_way  # 2: a step is launched before the one before has ended
        self.clock = Timeline()

    @staticmethod
    def of(model: ModelSource, gpu: GpuSource, **options: Any) -> StepPredictor:
        """Of a deployment with the options of `deploy`."""
        return StepPredictor(deploy(model, gpu, **options))

    def seconds(self, prompts: Sequence[tuple[int, int]] = (), decodes: Sequence[int] = ()) -> tuple[float, float]:
        """GPU and host seconds of a batch: (new, computed) tokens of each prompt, and the context of each sequence
        that computes one token.
        """
        estimate = self._timer(self._shape(prompts, decodes))
        return estimate.gpu_seconds[0], estimate.host.total

    def step(
        self, prompts: Sequence[tuple[int, int]] = (), decodes: Sequence[int] = (), at: float | None = None
    ) -> StepTime:
        """Launch a batch on the clock, not before ``at``, and wait for its result."""
        if at is not None and at > self.clock.clock:
            self.clock.sleep_until(at)
        estimate = self._timer(self._shape(prompts, decodes))
        span = self.clock.launch(estimate.host, estimate.gpu_seconds[0])
        ready = self.clock.take_in(span.end, estimate.host.process)
        return StepTime(estimate.gpu_seconds[0], estimate.host.total, span.start, span.end, ready)

    def _shape(self, prompts: Sequence[tuple[int, int]], decodes: Sequence[int]) -> StepShape:
        new, computed = [1] * len(decodes), [*decodes]
        return StepShape(
            [*new, *(each for each, _ in prompts)], [*computed, *(each for _, each in prompts)], len(new) + len(prompts)
        )
