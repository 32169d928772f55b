"""What a user's own measurements say of a deployment's times: factors, how sure each is, and a timer that has them.

Factors are on top of what is estimated: 1.1 says that times are 1.1 times as long as they would be without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from infercast.engines.host import Costs
from infercast.engines.timer import KernelTimer
from infercast.serve.step import StepEstimate, StepShape

if TYPE_CHECKING:
    from infercast.engines.deployment import Deployment


class Factor(NamedTuple):
    """A factor on times, or seconds that come on top."""

    value: float
    spread: float
    """Standard deviation: of the factor's logarithm, or of the seconds."""


@dataclass(frozen=True, slots=True)
class Corrections:
    """What is known of a deployment better than estimates; None: nothing is."""

    host: Factor | None = None
    """On everything that the engine's thread does, and on the ways in and out."""
    prompts: Factor | None = None
    """On GPU time of steps with prompt tokens ..."""
    decodes: Factor | None = None
    """... and of steps of decoding only."""
    path: Factor | None = None
    """Seconds that requests take longer to the engine: API server, network."""
    title: str = ""
    """Where it comes from, for people."""
    notes: tuple[str, ...] = ()
    """What does not fit this deployment."""

    def corrected(self, host: Costs) -> Costs:
        """The same host as it was seen to be."""
        if self.host is not None and self.host.value != 1.0:
            speed = 1.0 / self.host.value
            host = host.sped_up(speed, f"{host.title}, {speed:.2f} times as fast by calibration")
        if self.path is not None and self.path.value:
            host = replace(host, request_path=max(host.request_path + self.path.value, 0.0))
        return host

    @property
    def changes_steps(self) -> bool:
        """Whether GPU times are others than estimated."""
        return any(each is not None and each.value != 1.0 for each in (self.prompts, self.decodes))


class CorrectedTimer(KernelTimer):
    """The same steps, each as many times longer as measured ones were."""

    def __init__(self, deployment: Deployment, corrections: Corrections) -> None:
        super().__init__(deployment)
        self._prompt_factor = 1.0 if corrections.prompts is None else corrections.prompts.value
        self._decode_factor = 1.0 if corrections.decodes is None else corrections.decodes.value
        # The tables that kernels are looked up in: first as steps with prompts have them, then as decoding alone has.
        prompting, decoding = np.split(self._token_table, [self._decoding_row])
        self._token_table = np.vstack([self._prompt_factor * prompting, self._decode_factor * decoding])
        self._head_rows = len(self._row_table)
        self._row_table = np.vstack([self._prompt_factor * self._row_table, self._decode_factor * self._row_table])

    def _decode(self, tokens: int, sampled: int, computed: int, steps: int = 1) -> StepEstimate:
        return self._decoded(super()._decode(tokens, sampled, computed, steps))

    def _put_together(
        self, tokens: int, sequences: int, prompts: int, sampled: int, attention: list[float]
    ) -> StepEstimate:
        return _longer(super()._put_together(tokens, sequences, prompts, sampled, attention), self._prompt_factor)

    def _time_each(self, shape: StepShape, steps: int) -> StepEstimate:
        # Steps with prompts come through `_put_together` already.
        estimate = super()._time_each(shape, steps)
        return estimate if shape.prompts else self._decoded(estimate)

    def _decoded(self, estimate: StepEstimate) -> StepEstimate:
        row, sampled = estimate.rows
        return _longer(estimate._replace(rows=(row, sampled + self._head_rows)), self._decode_factor)


def _longer(estimate: StepEstimate, factor: float) -> StepEstimate:
    """Steps that take so many times as long."""
    return estimate._replace(
        gpu_seconds=[factor * seconds for seconds in estimate.gpu_seconds],
        varying=[[factor * seconds for seconds in kernel] for kernel in estimate.varying],
        throttled=factor * estimate.throttled,
    )
