"""Where GPU time went, by kernel, for steps with prompts in them and for steps of decoding only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from infercast.engines.deployment import Deployment
from infercast.engines.speculation import Drafting
from infercast.engines.timer import DRAFT_GAPS, GAPS, KernelTimer
from infercast.forecast.explain.kernels import estimate_shape
from infercast.predict.estimate import SOURCES
from infercast.serve import Record
from infercast.serve.fleet.two_pools import taken_in
from infercast.serve.step import DraftShape, StepShape
from infercast.serve.totals import PhaseTotals


class FamilyShare(NamedTuple):
    """A kernel family's part of a phase."""

    family: str
    seconds: float
    share: float
    """Of the phase's GPU time."""
    bound: str
    """What holds the family's largest kernel back in an average step of the phase."""
    source: str
    """What the estimate of that kernel rests on."""
    kernels: tuple[tuple[str, float], ...]
    """(name, seconds) of each kernel, largest first."""


class Phase(NamedTuple):
    """All steps of one kind."""

    name: str
    steps: int
    tokens: int
    seconds: float
    gpu_seconds: float
    host_bound_seconds: float
    """Time in which the GPU waited for the host within steps; of a pipeline, in which stages waited, added up."""
    families: tuple[FamilyShare, ...]
    waits_for: str = "host"
    """What holds a GPU that waits within steps."""

    @property
    def whole(self) -> float:
        """What the families and waiting are shares of: the steps' time, of a pipeline that of all stages together."""
        return self.gpu_seconds + self.host_bound_seconds


COUNTS = 0.05
"""Share of a phase from which on a family's source counts."""


def weakest_source(phases: tuple[Phase, ...]) -> str:
    """What the estimates of the largest families rest on: the weakest of them."""
    families = [family for phase in phases for family in phase.families if family.share >= COUNTS and family.source]
    return max((family.source for family in families), key=SOURCES.index)


def summarise_phases(
    deployment: Deployment, record: Record, timer: KernelTimer, *, takes_in: bool = False
) -> tuple[Phase, ...]:
    """Sum the kernels of all steps up by family; a decode pool ``takes_in`` prompts that are computed already."""
    return tuple(
        _summarise(name, totals, deployment, timer, takes_in) for name, totals in record.phases.items() if totals.steps
    )


def host_bound_share(phases: Sequence[Phase]) -> float:
    """The share of step time in which the GPU waits for its host."""
    seconds = sum(phase.seconds for phase in phases)
    return sum(phase.host_bound_seconds for phase in phases) / seconds if seconds else 0.0


def _summarise(name: str, totals: PhaseTotals, deployment: Deployment, timer: KernelTimer, takes_in: bool) -> Phase:
    """One phase."""
    shape = average_shape(totals, deployment.drafting)
    reasons = _reasons_of_step(taken_in(shape) if takes_in else shape, deployment)
    members: dict[str, dict[str, float]] = {}
    kernel_seconds = timer.kernel_seconds(totals.rows, totals.varying, totals.slowed).tolist()
    gpu_seconds = sum(kernel_seconds)
    for (kernel, family), seconds in zip(timer.kernels, kernel_seconds, strict=True):
        if seconds > 0:
            of_family = members.setdefault(family, {})
            of_family[kernel] = of_family.get(kernel, 0.0) + seconds
    families = []
    for family, parts in members.items():
        ranked = tuple(sorted(parts.items(), key=lambda part: -part[1]))
        seconds = sum(parts.values())
        bound, source = next((reasons[kernel] for kernel, _ in ranked if kernel in reasons), ("", ""))
        families.append(FamilyShare(family, seconds, seconds / gpu_seconds, bound, source, ranked))
    families.sort(key=lambda family: -family.seconds)
    return Phase(
        name=name,
        steps=totals.steps,
        tokens=totals.tokens,
        seconds=totals.seconds,
        gpu_seconds=gpu_seconds,
        host_bound_seconds=max(0.0, deployment.layout.pipeline * totals.seconds - gpu_seconds),
        families=tuple(families),
        waits_for="host" if deployment.layout.pipeline == 1 else "host, other stages",
    )


def _reasons_of_step(shape: StepShape, deployment: Deployment) -> dict[str, tuple[str, str]]:
    """Bound and source of each kernel in a step of average size."""
    kernels = estimate_shape(deployment, shape).kernels
    reasons = {kernel.name: (str(kernel.estimate.bound), kernel.estimate.source) for kernel in kernels}
    return {**reasons, GAPS[0]: ("launch", "physics"), DRAFT_GAPS[0]: ("launch", "physics")}


def average_shape(totals: PhaseTotals, drafting: Drafting | None = None) -> StepShape:
    """A step of the average size of a phase, which may round to more than an engine would plan.

    With speculative decoding, sequences that compute no more tokens than there are drafts verify these.
    """
    sequences = max(1, round(totals.sequences / totals.steps))
    new_tokens = max(1, round(totals.tokens / totals.sequences))
    context = round(totals.context / totals.sequences)
    sampled = max(1, round(totals.sampled / totals.steps))
    if drafting is None:
        return StepShape([new_tokens] * sequences, [context] * sequences, sampled)
    verifying = sequences if new_tokens <= drafting.width else 0
    drafts = verifying * (new_tokens - 1)
    return DraftShape(
        [new_tokens] * sequences,
        [context] * sequences,
        sampled,
        verifying,
        drafts,
        drafting.width,
        sequences,
        drafting.num_drafts,
    )
