"""The same engine if its kernels and its host took longer: what the ends of intervals are simulated with."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from infercast.serve import Replica
from infercast.serve.step import Contexts, HostCost, Prompts, StepEstimate, StepShape, StepTimer, groups_of


class SlowedTimer:
    """A step timer whose answers are so many times longer; only what a clock needs is scaled."""

    def __init__(self, timer: StepTimer, prompts: float, decodes: float, host: float) -> None:
        self._timer, self._prompts, self._decodes, self._host = timer, prompts, decodes, host
        self._groups = groups_of(timer)

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """What steps in a row cost."""
        return self._slow(self._timer(shape, steps), self._prompts if shape.prompts else self._decodes)

    def decode(self, count: int, computed: int, contexts: Contexts, steps: int) -> StepEstimate:
        """Steps in a row of a decoding batch."""
        return self._slow(self._groups.decode(count, computed, contexts, steps), self._decodes)

    def compute(self, beside: Prompts, num_first: int, count: int, computed: int, contexts: Contexts) -> StepEstimate:
        """A step of such a batch with others beside it."""
        estimate = self._groups.compute(beside, num_first, count, computed, contexts)
        return self._slow(estimate, self._prompts if any(new > 1 for new, _ in beside) else self._decodes)

    @property
    def adapted(self) -> SlowedTimer | None:
        """The same where a sequence has a LoRA adapter."""
        adapted = getattr(self._timer, "adapted", None)
        return adapted and SlowedTimer(adapted, self._prompts, self._decodes, self._host)

    def _slow(self, estimate: StepEstimate, factor: float) -> StepEstimate:
        if factor != 1.0:
            estimate = estimate._replace(
                gpu_seconds=[factor * seconds for seconds in estimate.gpu_seconds],
                throttled=factor * estimate.throttled,
            )
        if self._host != 1.0:
            estimate = estimate._replace(host=HostCost(*[self._host * seconds for seconds in estimate.host]))
        return estimate


def slowed(
    replica: Replica, *, prompts: float = 1.0, decodes: float = 1.0, host: float = 1.0, path: float = 0.0
) -> Replica:
    """The same engine with times that are so many times longer, at the same state of its first uses.

    Requests take ``path`` seconds longer to it.
    """
    return replace(
        replica,
        timer=SlowedTimer(replica.timer, prompts, decodes, host),
        request_path_seconds=max(host * replica.request_path_seconds + path, 0.0),
        request_token_seconds=host * replica.request_token_seconds,
        request_turn_seconds=host * replica.request_turn_seconds,
        token_path_seconds=host * replica.token_path_seconds,
        token_turn_seconds=host * replica.token_turn_seconds,
        wake_up_seconds=host * replica.wake_up_seconds,
        first_uses=deepcopy(replica.first_uses),
    )
