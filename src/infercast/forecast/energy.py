"""What a run draws: joules of its GPUs, by what they went into, and what a token and a request cost of them.

Worked out after the run from what its records keep, so that latencies do not depend on it. Kernels cost what they do
above static power, static power is drawn while kernels run, and a GPU that waits draws idle power. Boards only: what a
server draws beside its GPUs is another question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING

from infercast.engines.deployment import Deployment
from infercast.engines.energy import StepsEnergy
from infercast.engines.engine import Version
from infercast.engines.timer import KernelTimer
from infercast.forecast.pool_energy import PoolEnergy, pool_energy
from infercast.predict.estimate import SOURCES
from infercast.serve import Record, Workload
from infercast.serve.fleet.served import Served
from infercast.serve.totals import PhaseTotals
from infercast.shown import Shown

if TYPE_CHECKING:
    from infercast.forecast.result import Forecast

WATT_HOUR = 3600.0
Drawing = tuple[Deployment, KernelTimer, Sequence[Record]]
"""A deployment, the timer of its steps, and what each replica did."""


@dataclass(frozen=True, slots=True)
class PhaseEnergy:
    """All steps of one kind, on all GPUs, while kernels ran."""

    name: str
    """``prefill``: steps with prompt tokens; ``decode``: those without."""
    steps: int
    tokens: int
    joules: float
    watts: float
    """Per GPU while kernels ran, as a meter shows it: at most the board's limit."""
    burst_watts: float
    """The same within the steps: for milliseconds, before its clock is down, a board draws more than its limit."""

    @property
    def joules_per_token(self) -> float:
        """Of the tokens that these steps computed."""
        return self.joules / max(self.tokens, 1)


@dataclass(frozen=True, slots=True)
class PoolPower:
    """What the GPUs of one pool draw, in watts per GPU."""

    gpus: int
    mean_watts: float
    """Over the whole run."""
    peak_watts: float
    """In the step that drew most."""


@dataclass(frozen=True, slots=True, repr=False)
class Energy(Shown):
    """What all GPUs of a run drew, in joules and watts: in its steady part where that is what is forecast, or else from
    the first request sent to the last token received.
    """

    joules: float
    """Joules of all GPUs."""
    low: float
    """The ends of the 80 % interval of the joules; what follows from them is off by the same factors."""
    high: float
    """Upper end of that interval, in joules."""
    mean_watts: float
    """Per GPU, over the whole run."""
    peak_watts: float
    """Per GPU, in the step that drew most."""
    idle_watts: float
    """Per GPU, while nothing runs."""
    limit_watts: float
    """What a board may draw."""
    gpus: int
    """Number of GPUs."""
    by_part: dict[str, float]
    """Joules by kernel family, and of ``static`` and ``idle`` power."""
    phases: tuple[PhaseEnergy, ...]
    pools: tuple[PoolPower, ...]
    """One, or a prefill pool and a decode pool."""
    joules_per_output_token: float
    joules_per_token: float
    """Of prompts and answers alike."""
    joules_per_request: float
    source: str
    """What the power of the GPUs is known from: one of `predict.estimate.SOURCES`, the weakest of all pools."""

    def _words(self) -> str:
        token = f"{self.joules_per_output_token:.3g} J per output token"
        return (
            f"{self.gpus} GPU{'s' * (self.gpus > 1)}, {self.mean_watts:.0f} W each on average, {token}, {self.source}"
        )

    @property
    def watt_hours_per_million_output_tokens(self) -> float:
        """The same as joules of an output token, in the unit of electricity bills."""
        return self.joules_per_output_token * 1e6 / WATT_HOUR

    @property
    def total_watts(self) -> float:
        """All GPUs together, on average."""
        return self.mean_watts * self.gpus

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval as factors of the joules."""
        return self.low / self.joules, self.high / self.joules


def energy_of(forecast: Forecast) -> Energy | None:
    """What a run drew; None where the power of a GPU is not known."""
    pools = [(pool.deployment, pool.pool.timer, pool.records) for pool in forecast.pools]
    window, rates = forecast.window, (forecast.requests_per_second, forecast.output_tokens_per_second)
    seconds = forecast.duration if window is None else window[1] - window[0]
    return energy_of_pools(pools, forecast.workload, forecast.clients, seconds, rates=None if window is None else rates)


def energy_of_pools(
    pools: Iterable[Drawing],
    workload: Workload,
    clients: Record | Served,
    duration: float,
    version: Version = (),
    rates: tuple[float, float] | None = None,
) -> Energy | None:
    """The same of pools by what their replicas did in so many seconds; ``version``: of the release that the engine's
    stands in for; ``rates``: requests and output tokens a second, where not all of a run counts.
    """
    drawn = [pool_energy(*pool, workload, duration, version) for pool in pools]
    joules = sum(pool.joules for pool in drawn)
    if joules <= 0:
        return None
    # Pools of one kind of GPU are off alike, so what they are off by is added up.
    width = sum(pool.joules * pool.half_width for pool in drawn) / joules
    gpus = sum(pool.gpus for pool in drawn)
    requests: float = len(workload.requests)
    outputs: float = int(clients.num_output.sum())
    inputs: float = sum(request.num_input for request in workload.requests)
    if rates is not None:
        inputs *= rates[0] * duration / requests
        requests, outputs = rates[0] * duration, rates[1] * duration
    parts: dict[str, float] = {}
    for pool in drawn:
        for name, value in pool.by_part.items():
            parts[name] = parts.get(name, 0.0) + value
    return Energy(
        joules=joules,
        low=joules * exp(-width),
        high=joules * exp(width),
        mean_watts=joules / duration / gpus,
        peak_watts=max(pool.peak_watts for pool in drawn),
        idle_watts=max(pool.board.idle_watts for pool in drawn),
        limit_watts=max(pool.board.limit_watts for pool in drawn),
        gpus=gpus,
        by_part=dict(sorted(parts.items(), key=lambda part: -part[1])),
        phases=tuple(_phases(drawn)),
        pools=tuple(PoolPower(pool.gpus, pool.joules / duration / pool.gpus, pool.peak_watts) for pool in drawn),
        joules_per_output_token=joules / max(outputs, 1),
        joules_per_token=joules / max(outputs + inputs, 1),
        joules_per_request=joules / requests,
        source=max((pool.board.source for pool in drawn), key=SOURCES.index),
    )


def _phases(pools: Iterable[PoolEnergy]) -> Iterable[PhaseEnergy]:
    """Steps with prompts and steps without, of all replicas of all pools."""
    found: dict[str, list[tuple[int, PhaseTotals, StepsEnergy]]] = {}
    pools = list(pools)
    limit = max((pool.board.limit_watts for pool in pools), default=0.0)
    for pool in pools:
        for name, several in pool.phases.items():
            found.setdefault(name, []).extend((pool.tensor, *each) for each in several)
    for name, of_all in found.items():
        joules = sum(tensor * energy.joules for tensor, _, energy in of_all)
        seconds = sum(tensor * energy.kernel_seconds for tensor, _, energy in of_all)
        steps, tokens = (sum(getattr(totals, what) for _, totals, _ in of_all) for what in ("steps", "tokens"))
        watts = joules / max(seconds, 1e-12)
        yield PhaseEnergy(name, steps, tokens, joules, min(watts, limit), watts)
