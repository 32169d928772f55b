"""What a run draws: joules of its GPUs, by what they went into, and what a token and a request cost of them.

Worked out after the run from what its records keep, so that latencies do not depend on it. Kernels cost what they do
above static power, static power is drawn while kernels run, and a GPU that waits draws idle power. Boards only: what a
server draws beside its GPUs is another question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, hypot
from typing import TYPE_CHECKING

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.engines.energy import Batch, StepsEnergy, steps_energy
from infercast.engines.timer import KernelTimer
from infercast.forecast.intervals.uncertainty import EIGHTY, Spread, uncertainty_of
from infercast.forecast.system import busiest
from infercast.predict.adjust.power import board_under
from infercast.predict.energy.model import BoardPower
from infercast.predict.estimate import SOURCES
from infercast.serve import Record, Workload
from infercast.serve.fleet.served import Served
from infercast.serve.totals import PhaseTotals
from infercast.shown import Shown

if TYPE_CHECKING:
    from infercast.forecast.result import Forecast

STATIC, IDLE = "static", "idle"
"""Parts beside the kernel families: static power while kernels run, and power while none does."""
MOST_SEQUENCES = 256
"""Sequences of a batch that stands for others: more of them draw no more power while they run."""
WATT_HOUR = 3600.0
RUN_SPREAD = 0.045
"""What runs of one kind of board differ by beside what is known of the board, as the standard deviation of a logarithm:
one board idles at 117 W and another at 135, and weights of one model cost more to multiply than those of another.
Chosen on own runs on H200s (benchmarks/accuracy/energy_runs.py)."""
BUSY_SHARE = 0.2
"""Share of a run's joules that chips draw for being busy, whatever they do."""
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
    """Per GPU, while kernels ran."""

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
    """What all GPUs of a run drew from the first request sent to the last token received, in joules and watts."""

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


@dataclass(frozen=True, slots=True)
class _PoolEnergy:
    """What the GPUs of one pool drew."""

    board: BoardPower
    gpus: int
    by_part: dict[str, float]
    phases: dict[str, list[tuple[PhaseTotals, StepsEnergy]]]
    """Of each replica."""
    tensor: int
    peak_watts: float
    half_width: float
    """Of the 80 % interval, as a logarithm."""

    @property
    def joules(self) -> float:
        return sum(self.by_part.values())


def energy_of(forecast: Forecast) -> Energy | None:
    """What a run drew; None where the power of a GPU is not known."""
    pools = [(pool.deployment, pool.pool.timer, pool.records) for pool in forecast.pools]
    return energy_of_pools(pools, forecast.workload, forecast.clients, forecast.duration)


def energy_of_pools(
    pools: Iterable[Drawing],
    workload: Workload,
    clients: Record | Served,
    duration: float,
    spread: Spread | None = None,
) -> Energy | None:
    """The same of pools by what their replicas did in so many seconds; ``spread``: how far an engine may be off, where
    it is not that of its deployment.
    """
    drawn = [_pool_energy(*pool, workload, duration, spread) for pool in pools]
    joules = sum(pool.joules for pool in drawn)
    if joules <= 0:
        return None
    # Pools of one kind of GPU are off alike, so what they are off by is added up.
    width = sum(pool.joules * pool.half_width for pool in drawn) / joules
    gpus = sum(pool.gpus for pool in drawn)
    outputs, inputs = int(clients.num_output.sum()), sum(request.num_input for request in workload.requests)
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
        joules_per_request=joules / len(workload.requests),
        source=max((pool.board.source for pool in drawn), key=SOURCES.index),
    )


def _phases(pools: Iterable[_PoolEnergy]) -> Iterable[PhaseEnergy]:
    """Steps with prompts and steps without, of all replicas of all pools."""
    found: dict[str, list[tuple[int, PhaseTotals, StepsEnergy]]] = {}
    for pool in pools:
        for name, several in pool.phases.items():
            found.setdefault(name, []).extend((pool.tensor, *each) for each in several)
    for name, of_all in found.items():
        joules = sum(tensor * energy.joules for tensor, _, energy in of_all)
        seconds = sum(tensor * energy.kernel_seconds for tensor, _, energy in of_all)
        steps, tokens = (sum(getattr(totals, what) for _, totals, _ in of_all) for what in ("steps", "tokens"))
        yield PhaseEnergy(name, steps, tokens, joules, joules / max(seconds, 1e-12))


def _pool_energy(
    deployment: Deployment,
    timer: KernelTimer,
    records: Sequence[Record],
    workload: Workload,
    duration: float,
    spread: Spread | None,
) -> _PoolEnergy:
    """What the replicas of one pool drew."""
    board, layout = board_under(deployment.gpu), deployment.layout
    phases: dict[str, list[tuple[PhaseTotals, StepsEnergy]]] = {}
    parts = {STATIC: 0.0, IDLE: 0.0}
    busy = 0.0
    for record in records:
        for name, totals in record.phases.items():
            if not totals.steps:
                continue
            batches = typical_batches(totals, _computed_inputs(record, workload) if name == "prefill" else 0)
            energy = steps_energy(timer, board, totals, batches)
            phases.setdefault(name, []).append((totals, energy))
            for family, value in energy.dynamic.items():
                parts[family] = parts.get(family, 0.0) + layout.tensor * value
            parts[STATIC] += layout.tensor * energy.static
            busy += layout.tensor * energy.kernel_seconds
    waiting = max(len(records) * layout.replica_gpus * duration - busy, 0.0)
    parts[IDLE] = board.idle_watts * waiting
    joules = sum(parts.values())
    peaks = [energy.peak_watts for several in phases.values() for _, energy in several]
    half = EIGHTY * hypot(board.spread, RUN_SPREAD)
    # Joules follow the time that kernels take: of kernels that keep the chip busy, and where clients wait for answers,
    # of all that is drawn meanwhile.
    follows = BUSY_SHARE + (parts[STATIC] / joules if workload.rate is None else 0.0)
    half = hypot(half, follows * _by_times(deployment, records, spread))
    gpus = len(records) * layout.replica_gpus
    return _PoolEnergy(board, gpus, parts, phases, layout.tensor, max(peaks, default=board.idle_watts), half)


def _by_times(deployment: Deployment, records: Sequence[Record], spread: Spread | None) -> float:
    """How far the seconds of kernels may be off, as a logarithm."""
    about = uncertainty_of(deployment, busiest(records), spread)
    return max(about.prompts, about.decodes)


def _computed_inputs(record: Record, workload: Workload) -> int:
    """Prompt tokens that a replica computed."""
    served = np.flatnonzero(~np.isnan(record.last_token))
    inputs = sum(workload.requests[number].num_input for number in served.tolist())
    return int(inputs - record.num_cached[served].sum())


def typical_batches(totals: PhaseTotals, prompt_tokens: int) -> list[Batch]:
    """Batches like those of a phase's steps, of which so many tokens were of prompts: these, and sequences that decode.

    Sequences that decode have a token each, or as many as they verify where there are no prompts.
    """
    context = totals.context / totals.sequences
    prompt_tokens = min(prompt_tokens, totals.tokens)
    decodes = max(totals.tokens - prompt_tokens, 0)
    prompts = max(totals.sequences - decodes, 0)
    batches = []
    if prompt_tokens and prompts:
        new, count = max(1, round(prompt_tokens / prompts)), min(max(1, round(prompts / totals.steps)), MOST_SEQUENCES)
        batches.append((np.full(count, new), np.full(count, new)))
    rest = totals.sequences - (prompts if prompt_tokens else 0)
    if rest > 0 and decodes > 0:
        new, count = max(1, round(decodes / rest)), min(max(1, round(rest / totals.steps)), MOST_SEQUENCES)
        batches.append((np.full(count, new), np.full(count, new + round(context))))
    return batches
