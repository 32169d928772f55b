"""A measured result as calibration sees it: the load that was offered, and what clients saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from infercast.forecast.latency import NAMES
from infercast.serve.workload.request import Workload

LATENCIES = ("ttft", "tpot", "itl", "e2e")
RATE = "output_tokens_per_s"
QUANTITIES = (*(f"{latency}_{name}" for latency in LATENCIES for name in NAMES), RATE)
"""What a result may say, in the order of `infercast.forecast.intervals.results.results_of`."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a load generator, or what a server counted of one."""

    file: str
    kind: str
    """Whose format it is, for people."""
    workload: Workload
    seen: Mapping[str, float]
    """Seconds by name (``ttft_p50``, ``tpot_mean``, ...), and output tokens a second."""
    means_only: bool = False
    """Whether only means can be told, since lengths are known by their means alone."""
    model: str | None = None
    server_side: bool = False
    """Whether times are the engine's own, without its API server and the network."""
    acceptance_length: float | None = None
    prefix_hit_rate: float | None = None
    assumptions: tuple[str, ...] = ()
    """What the file does not say, and what was taken instead."""
    sha256: str = ""
