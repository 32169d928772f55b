"""What the GPUs of one pool drew in a run, and how far that may be off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.engines.energy import Batch, StepsEnergy, steps_energy
from infercast.engines.engine import Version
from infercast.engines.timer import KernelTimer
from infercast.forecast.intervals.uncertainty import EIGHTY, uncertainty_of
from infercast.forecast.system import busiest
from infercast.predict.adjust.power import board_under
from infercast.predict.energy.model import BoardPower
from infercast.serve import Record, Workload
from infercast.serve.totals import PhaseTotals

STATIC, IDLE = "static", "idle"
"""Parts beside the kernel families: static power while kernels run, and power while none does."""
MOST_SEQUENCES = 256
"""Sequences of a batch that stands for others: more of them draw no more power while they run."""
RUN_SPREAD = 0.045
"""What runs of one kind of board differ by beside what is known of the board, as the standard deviation of a logarithm:
one board idles at 117 W and another at 135, and weights of one model cost more to multiply than those of another.
Chosen on own runs on H200s (benchmarks/accuracy/energy_runs.py)."""
HELD_BACK_SPREAD = 0.1
"""The same on top for boards under a limit or a clock that an operator has set: an assumption, nobody measured them."""
BUSY_SHARE = 0.2
"""Share of a run's joules that chips draw for being busy, whatever they do."""


@dataclass(frozen=True, slots=True)
class PoolEnergy:
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
        """All parts together."""
        return sum(self.by_part.values())


def pool_energy(
    deployment: Deployment,
    timer: KernelTimer,
    records: Sequence[Record],
    workload: Workload,
    duration: float,
    version: Version,
) -> PoolEnergy:
    """What the replicas of one pool drew."""
    board, layout = board_under(deployment.gpu), deployment.layout
    phases: dict[str, list[tuple[PhaseTotals, StepsEnergy]]] = {}
    parts = {STATIC: 0.0, IDLE: 0.0}
    busy = 0.0
    for record in records:
        times = 1.0 if record.span is None else duration / record.span
        for name, totals in record.phases.items():
            if not totals.steps:
                continue
            prompts = round(record.share * computed_inputs(record, workload)) if name == "prefill" else 0
            energy = steps_energy(timer, board, totals, typical_batches(totals, prompts))
            phases.setdefault(name, []).append((totals, energy))
            for family, value in energy.dynamic.items():
                parts[family] = parts.get(family, 0.0) + times * layout.tensor * value
            parts[STATIC] += times * layout.tensor * energy.static
            busy += times * layout.tensor * energy.kernel_seconds
    waiting = max(len(records) * layout.replica_gpus * duration - busy, 0.0)
    parts[IDLE] = board.idle_watts * waiting
    joules = sum(parts.values())
    peaks = [energy.peak_watts for several in phases.values() for _, energy in several]
    held_back = deployment.gpu.unlimited is not None
    half = EIGHTY * hypot(board.spread, RUN_SPREAD, HELD_BACK_SPREAD if held_back else 0.0)
    # Joules follow the time that kernels take: of kernels that keep the chip busy, and where clients wait for answers,
    # of all that is drawn meanwhile.
    follows = BUSY_SHARE + (parts[STATIC] / joules if workload.rate is None else 0.0)
    half = hypot(half, follows * _by_times(deployment, records, version))
    gpus = len(records) * layout.replica_gpus
    return PoolEnergy(board, gpus, parts, phases, layout.tensor, max(peaks, default=board.idle_watts), half)


def _by_times(deployment: Deployment, records: Sequence[Record], version: Version) -> float:
    """How far the seconds of kernels may be off, as a logarithm."""
    about = uncertainty_of(deployment, busiest(records), version)
    return max(about.prompts, about.decodes)


def computed_inputs(record: Record, workload: Workload) -> int:
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
