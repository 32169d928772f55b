"""Two runs of one workload side by side: their caches, their steps, and the kernels of one step in both.

Made for two engines, or two releases of one; it holds for any two deployments.
"""

from __future__ import annotations

from dataclasses import dataclass

from infercast.engines.deployment import Deployment
from infercast.forecast.compare import HOST
from infercast.forecast.explain.kernels import StepCost, estimate_shape
from infercast.forecast.explain.phases import Phase, average_shape, host_bound_share
from infercast.forecast.explain.step_kinds import StepKind, step_kinds
from infercast.forecast.explain.watched import Watched
from infercast.forecast.system import busiest
from infercast.serve.step import StepShape


@dataclass(frozen=True, slots=True)
class Side:
    """One of two runs."""

    name: str
    """Of its engine, and where both have the same, what is changed."""
    deployment: Deployment
    kinds: tuple[StepKind, ...]
    phases: tuple[Phase, ...]
    prefix_hit_rate: float
    """The share of prompt tokens that were found in the cache."""

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache of a replica holds."""
        return self.deployment.memory.num_tokens

    @property
    def host_bound(self) -> float:
        """The share of step time in which the GPU waits for its host."""
        return host_bound_share(self.phases)

    def kind(self, name: str) -> StepKind | None:
        """Its steps of one kind, if it has any."""
        return next((kind for kind in self.kinds if kind.name == name), None)


@dataclass(frozen=True, slots=True)
class SameStep:
    """One step that both engines are given."""

    title: str
    shape: StepShape
    costs: tuple[StepCost, StepCost]

    @property
    def families(self) -> list[tuple[str, float, float]]:
        """Seconds of each kernel family in both, the longest first, then what the GPU idles and waits for its host."""
        sums: dict[str, list[float]] = {}
        for side, cost in enumerate(self.costs):
            for kernel in cost.kernels:
                sums.setdefault(kernel.family, [0.0, 0.0])[side] += kernel.seconds
        ranked = sorted(sums.items(), key=lambda item: -max(item[1]))
        gaps = [cost.gap_seconds for cost in self.costs]
        waits = [max(0.0, cost.host_seconds - float(cost.gpu.seconds) - cost.gap_seconds) for cost in self.costs]
        rows = [*ranked, ("gaps between kernels", gaps), (HOST, waits)]
        return [(name, one, other) for name, (one, other) in rows if max(one, other) > 0]


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Both of them."""

    sides: tuple[Side, Side]
    steps: tuple[SameStep, ...]
    """A typical decode step and a typical step with a prompt of the first run, in both."""


def side_by_side(runs: tuple[Watched, Watched], names: tuple[str, str]) -> SideBySide:
    """Look at the steps of two runs, each of the pool that decodes."""
    first, second = (_side(name, run) for name, run in zip(names, runs, strict=True))
    record = busiest(runs[0].forecast.pools[-1].records)
    steps = []
    for kind, totals in (("decode", record.decoding), ("prompt", record.prefilling)):
        if totals.steps:
            average = average_shape(totals)
            shape = _prompt_step(average) if kind == "prompt" else _decode_step(average, runs)
            costs = (estimate_shape(first.deployment, shape), estimate_shape(second.deployment, shape))
            steps.append(SameStep(_title(kind, shape), shape, costs))
    return SideBySide((first, second), tuple(steps))


def _side(name: str, run: Watched) -> Side:
    pool = run.forecast.pools[-1]
    return Side(name, pool.deployment, step_kinds(run), pool.phases, run.forecast.prefix_hit_rate)


def _decode_step(average: StepShape, runs: tuple[Watched, Watched]) -> StepShape:
    """A decode step of average size; where one of the two drafts, one token of each sequence, which both can do."""
    if all(run.forecast.pools[-1].deployment.drafting is None for run in runs):
        return average
    count = average.num_sequences
    return StepShape([1] * count, average.computed, count)


def _prompt_step(average: StepShape) -> StepShape:
    """All tokens of an average step with prompts as one prompt, which any engine computes alone."""
    return StepShape([average.num_tokens], [0], 1)


def _title(kind: str, shape: StepShape) -> str:
    """A step in words."""
    if kind == "prompt":
        return f"one prompt of {shape.num_tokens:,} tokens"
    sequences = len(shape.new_tokens)
    return f"{sequences:,} sequence{'s' if sequences > 1 else ''} that decode after {shape.computed[0]:,} tokens"
