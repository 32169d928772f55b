"""Bottleneck kernels: how far each is from the best of its shape, and what closing that gap alone would save."""

from __future__ import annotations

from math import inf
from typing import Unpack

import numpy as np

from infercast.engines.base import Deployment
from infercast.errors import InputError
from infercast.forecast.deploy import Deployable, GpuSource, RunOptions, Servable, resolve_run
from infercast.forecast.kernels import step_calls
from infercast.forecast.result import Forecast
from infercast.forecast.run import Outcome, outcome_of
from infercast.forecast.simulate import simulate
from infercast.lazy_classes import dataclass, replace
from infercast.predict.ceilings import AtCeiling, Ceilings, Signature, default_ceilings, signature_of
from infercast.predict.roofline import limit_seconds
from infercast.serve import simulate as simulate_replica
from infercast.serve.record import PhaseTotals
from infercast.serve.step import StepShape
from infercast.shown import Answer

LEAST_LOSS = 0.002  # Gaps below this share of a phase's GPU time are not looked at one by one
EVERY_KERNEL = StepShape([2, 1], [0, 1], 2)
"""A prompt and a decoding sequence: a step that launches every kernel of a model."""


@dataclass(frozen=True, slots=True)
class Saving:
    """What users would see less of, as shares: positive is better."""

    ttft: float
    tpot: float  # Of the mean time per output token; 0 where no request has a second token
    end_to_end: float
    throughput: float  # More output tokens a second; next to nothing where clients set the pace


@dataclass(frozen=True, slots=True)
class Gap:
    phase: str  # ``prefill`` (steps with prompt tokens) or ``decode``
    tokens: int
    seconds: float  # One launch, as forecast
    ceiling: float  # One launch where kernels of this shape are best
    limit: float
    share: float  # All its launches, of the GPU time of steps of this kind

    @property
    def attained(self) -> float:
        return self.ceiling / self.seconds

    @property
    def loss(self) -> float:
        """What the gap costs, of the GPU time of steps of this kind."""
        return (1.0 - self.attained) * self.share


@dataclass(frozen=True, slots=True)
class Finding:
    """One kernel (or several of the same shape), and what its gap costs."""

    name: str
    family: str
    source: str
    gaps: tuple[Gap, ...]
    saving: Saving


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis(Answer):
    """Findings, most rewarding first."""

    forecast: Forecast
    findings: tuple[Finding, ...]
    host: Saving  # If the host took no time at all
    everything: Saving  # If every kernel was as good as the best of its shape, with the same host
    not_judged: tuple[str, ...]  # Kernels of kinds that were measured nowhere

    def _words(self) -> str:
        worst = f", first {self.findings[0].name}" if self.findings else ""
        return f"{self.forecast.title}: {len(self.findings)} findings{worst}"


def diagnose(
    deployment: Deployable,
    workload: Servable = None,
    ceilings: Ceilings | None = None,
    *,
    gpu: GpuSource | None = None,
    **options: Unpack[RunOptions],
) -> Diagnosis:
    """Simulate a workload, and again with each gap closed; names do as in `simulate`."""
    deployment, workload = resolve_run(deployment, workload, gpu, options)
    if deployment.layout.data > 1:
        raise InputError(f"a diagnosis is of one copy, not of layout {deployment.layout}; use data_parallel_size 1")
    if deployment.drafting is not None:
        raise InputError("a diagnosis is of an engine without speculative decoding; leave --speculative-config out")
    known = ceilings or default_ceilings()
    base = simulate(deployment, workload)
    if base.source in ("roofline", "typical", "published"):
        raise InputError(
            f"kernels on {deployment.gpu.name} are timed by the roofline, so nothing is known of how good they are; a "
            "diagnosis needs learned estimates (NVIDIA GPUs, --predictor learned)"
        )

    def saved(changed: Deployment) -> Saving:
        record = simulate_replica(changed.replica(), workload)
        return _saving(base, outcome_of(record))

    findings: list[Finding] = []
    not_judged: list[str] = []
    for names, signatures in _kernels(deployment).items():
        call = next(call for call in step_calls(deployment, EVERY_KERNEL).all if call.name in names)
        if not known.knows(call.op):
            not_judged += names
            continue
        gaps = _gaps(base, names, known)
        if not gaps or max(gap.loss for gap in gaps) < LEAST_LOSS:
            continue
        closing = AtCeiling(deployment.predictor, known, signatures)
        findings.append(
            Finding(
                name=" and ".join(names),
                family=call.op.family,
                source=deployment.predictor.estimate(call.op, deployment.gpu).source,
                gaps=gaps,
                saving=saved(replace(deployment, predictor=closing)),
            )
        )
    findings.sort(key=lambda finding: -finding.saving.end_to_end)
    everything = replace(deployment, predictor=AtCeiling(deployment.predictor, known))
    free_host = replace(deployment, host=deployment.host.sped_up(inf, "a host that takes no time"))
    return Diagnosis(base, tuple(findings), saved(free_host), saved(everything), tuple(not_judged))


def _kernels(deployment: Deployment) -> dict[tuple[str, ...], set[Signature]]:
    found: list[tuple[list[str], set[Signature]]] = []
    for call in step_calls(deployment, EVERY_KERNEL).all:
        signature = signature_of(call.op)
        same = next((entry for entry in found if call.name in entry[0] or signature in entry[1]), None)
        if same is None:
            found.append(([call.name], {signature}))
        else:
            same[1].add(signature)
            if call.name not in same[0]:
                same[0].append(call.name)
    return {tuple(names): signatures for names, signatures in found}


def _gaps(base: Forecast, names: tuple[str, ...], ceilings: Ceilings) -> tuple[Gap, ...]:
    deployment, gpu = base.deployment, base.deployment.gpu
    gaps: list[tuple[float, Gap]] = []
    for phase in base.phases:
        totals = base.records[0].phases[phase.name]
        shape = _typical_shape(totals, len(base.workload.requests))
        calls = [call for call in step_calls(deployment, shape).all if call.name in names]
        seconds_of_kernel = dict(pair for family in phase.families for pair in family.kernels)
        share = sum(seconds_of_kernel.get(name, 0.0) for name in names) / phase.gpu_seconds
        launches = sum(call.count for call in calls)
        if not launches or not share:
            continue
        mean = np.zeros(3)
        for call in calls:
            seconds = float(np.ravel(deployment.predictor.seconds(call.op, gpu))[0])
            best = min(seconds, float(ceilings.seconds(call.op, gpu)[0]))
            hard = min(best, float(limit_seconds(call.op, gpu)[0]))
            mean += np.array([seconds, best, hard]) * call.count / launches
        seconds, best, hard = mean.tolist()
        gap = Gap(phase.name, round(totals.tokens / totals.steps), seconds, best, hard, share)
        gaps.append((gap.loss * phase.gpu_seconds, gap))
    return tuple(gap for _, gap in sorted(gaps, key=lambda pair: -pair[0]))


def _typical_shape(totals: PhaseTotals, num_requests: int) -> StepShape:
    """A step of average size: as many prompts as a step has on average, and the others decode."""
    sequences, tokens = max(1, round(totals.sequences / totals.steps)), max(1, round(totals.tokens / totals.steps))
    context, sampled = round(totals.context / totals.steps), max(1, round(totals.sampled / totals.steps))
    if totals.tokens == totals.sequences:
        return StepShape([1] * sequences, [context // sequences] * sequences, min(sampled, sequences))
    prompts = min(sequences, max(1, round(num_requests / totals.steps)))
    decodes = sequences - prompts
    new = [1] * decodes + [max(2, (tokens - decodes) // prompts)] * prompts
    computed = [context // decodes] * decodes + [0] * prompts if decodes else [context // prompts] * prompts
    return StepShape(new, computed, min(sampled, sequences))


def _saving(base: Forecast, changed: Outcome) -> Saving:
    tpot = 0.0 if base.tpot is None or changed.tpot is None else 1.0 - changed.tpot.mean / base.tpot.mean
    return Saving(
        ttft=1.0 - changed.ttft.mean / base.ttft.mean,
        tpot=tpot,
        end_to_end=1.0 - changed.end_to_end.mean / base.end_to_end.mean,
        throughput=changed.output_tokens_per_second / base.output_tokens_per_second - 1.0,
    )
