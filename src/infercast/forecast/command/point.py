"""A deployment as a few named values: the point that a command stands for, and the points around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from infercast.engines.deployment import Deployment
from infercast.engines.registry import AnyEngine
from infercast.engines.timer import KernelTimer
from infercast.forecast.command.flags import OF_DEPLOY, Reading
from infercast.forecast.deploy import deploy
from infercast.forecast.memory import Fit, fit_memory
from infercast.forecast.system import System, system_of
from infercast.hardware import Gpu

NOT_OF_MEMORY = ("all2all_backend", "pcie_topology", "api_server", "predictor", "host", "expert_routing", "calibration")
"""What `deploy` takes and `fit_memory` does not."""


@dataclass(frozen=True, slots=True)
class Point:
    """What a command asks for: options of `deploy`, and settings by the engine's names."""

    model: str
    gpu: Gpu
    engine: AnyEngine
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    given: Mapping[str, Any]
    """What no flag says: the network, the host, the predictor."""

    @staticmethod
    def of(reading: Reading, gpu: Gpu, engine: AnyEngine, given: Mapping[str, Any]) -> Point:
        """The point that flags describe."""
        return Point(reading.model, gpu, engine, reading.options, reading.settings, given)

    def changed(self, values: Mapping[str, Any]) -> Point:
        """With other values of some flags; one of None is left out."""
        options, settings = dict(self.options), dict(self.settings)
        for name, value in values.items():
            part = options if name in OF_DEPLOY else settings
            part.pop(name, None)
            if value is not None:
                part[name] = value
        return replace(self, options=options, settings=settings)

    def deploy(self) -> Deployment:
        """The deployment, or why there is none."""
        return deploy(self.model, self.gpu, self.engine.settings(self.settings), **{**self.given, **self.options})

    def fit(self, context: int) -> Fit:
        """What its memory holds, whether it fits or not."""
        wanted = {**self.given, **self.options}
        kept = {name: value for name, value in wanted.items() if name not in NOT_OF_MEMORY}
        return fit_memory(self.model, self.gpu, self.engine.settings(self.settings), context=context, **kept)


class Timers:
    """Step timers, each made once for all deployments whose steps take equally long."""

    def __init__(self) -> None:
        self._known: list[tuple[Deployment, KernelTimer]] = []

    def system(self, deployment: Deployment, router: str | None = None) -> System:
        """A system whose step times may be known already."""
        timer = next((timer for other, timer in self._known if _same_steps(deployment, other)), None)
        if timer is None:
            timer = deployment.timer()
            self._known.append((deployment, timer))
        return system_of(deployment, router if deployment.layout.data > 1 else None, timer=timer)


def _same_steps(one: Deployment, other: Deployment) -> bool:
    """Whether every step of one takes as long as the same step of the other, and both have the same sizes of steps."""
    parts = ("model", "layout", "gpu", "host", "graphs", "corrections")
    bounds = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
    return (
        one.predictor is other.predictor
        and all(getattr(one, part) == getattr(other, part) for part in parts)
        and all(getattr(one.settings, bound) == getattr(other.settings, bound) for bound in bounds)
    )
