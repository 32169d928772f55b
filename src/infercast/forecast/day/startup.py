"""How long a replica takes from being asked for to its first request."""

from __future__ import annotations

from typing import NamedTuple

from infercast.engines.deployment import Deployment
from infercast.errors import InputError
from infercast.units import GIGA

LOAD_BANDWIDTH = 2.0 * GIGA
"""Bytes of weights a second that a replica reads: a local disk or a good network volume."""
CAPTURE_SECONDS = 0.35
"""For each size of CUDA graph; logs of vLLM 0.8 to 0.11 that users published have 0.25 to 0.55."""
OTHER_SECONDS = 45.0
"""The container and Python (30 s), compiled code from its cache and the memory profile (15 s), by the same logs."""


class StartUp(NamedTuple):
    """Seconds of a replica's start, by what they are spent on."""

    weights: float
    graphs: float
    other: float

    @property
    def seconds(self) -> float:
        """In all."""
        return self.weights + self.graphs + self.other

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"{self.seconds:,.0f} s: weights {self.weights:,.0f} s, CUDA graphs {self.graphs:,.0f} s, "
            f"all else {self.other:,.0f} s"
        )


def start_up(deployment: Deployment, *, bandwidth: float = LOAD_BANDWIDTH, other: float = OTHER_SECONDS) -> StartUp:
    """The weights of all GPUs of a replica at ``bandwidth`` bytes a second, its graphs, and ``other`` seconds."""
    if not bandwidth > 0:
        raise InputError(f"load bandwidth must be above 0 bytes/s, not {bandwidth:g}")
    if not 0 <= other < 1e6:
        raise InputError(f"other start-up seconds must be at least 0, not {other:g}")
    weights = deployment.memory.weights * deployment.layout.gpus
    return StartUp(weights / bandwidth, CAPTURE_SECONDS * len(deployment.graphs.sizes), other)
