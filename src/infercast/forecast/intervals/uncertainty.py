"""How far kernels and host may be off.

Three things are taken to be uncertain, and independent of each other:

- *Kernels.* Every estimate has an 80 % interval of its own. Part of the error is common to the kernels of a step (a
  clock, a memory that is slower than thought), the rest is each kernel's own and cancels: ``COMMON`` says how much of
  each variance is taken to be common. Steps with prompts and those without are taken to be off in the same direction.
- *The host.* Everything that its thread does is off by one factor.
- *Chance.* Another draw of arrivals and lengths gives other latencies (`forecast.luck`). Of requests that are given,
  which of them meet in a step is luck, and a percentile hangs on a few of them: it may as well have been one a few
  ranks up or down, as many as a sample of so many requests leaves open (`forecast.results`).

The first of ``COMMON`` was chosen on measured runs of five models, ``HOST_SPREAD`` on fourteen engines of several
machines (benchmarks/accuracy/fit_intervals.py); docs/validation.md tells how often values lie inside.

All of them are engines with one GPU, told tokens by their own process, on machines of one kind. An engine on several
GPUs or behind a server over HTTP is on a machine, and mostly of a version, that nobody looked at: steps and host may be
off by more than estimates say (``ELSEWHERE``), set on published runs (benchmarks/accuracy/fit_published_intervals.py).

A release whose costs were not measured has those of another one: how far two releases were apart on the same machines
comes on top (``OTHER_RELEASE``), and kernels that only the new one has may be off by as much as two kernels for the
same work were (``NEW_KERNEL_SPREAD``).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import hypot, inf, log
from typing import NamedTuple

import numpy as np

from infercast.engines.corrections import Corrections, Factor
from infercast.engines.deployment import Deployment
from infercast.forecast.explain.kernels import StepCost, estimate_shape
from infercast.forecast.explain.phases import average_shape
from infercast.hardware.kernels import is_modelled
from infercast.serve import Record
from infercast.serve.totals import PhaseTotals

EIGHTY = 1.2816
"""Standard deviations on either side that hold 80 % of a normal distribution."""
COMMON = {
    "measured": 0.1, "few-shot": 0.1, "physics": 0.1, "sibling": 0.3, "unseen": 0.6, "published": 0.4,
    "typical": 1.0, "roofline": 1.0,
}  # fmt: skip
"""The share of the variance of a kernel's estimate that all kernels of a step have in common, by what it rests on. On a
GPU that was measured kernels err each for itself; on one that was not, its own way of being different is in all."""
HOST_SPREAD = 0.185
"""Standard deviation of the logarithm of host times."""


class Spread(NamedTuple):
    """Standard deviations of logarithms of times, beyond what estimates say."""

    prompts: float = 0.0
    decodes: float = 0.0
    host: float = HOST_SPREAD


SEEN_IN_ONE_SPREAD = 0.3
"""Standard deviation of the logarithm of host times that were seen in one other model only: an assumption. Routed
experts were off by that (52 ms for 72) while they were known from one prompt of one model. The same of a model that a
release launches by other code than the measured one."""
MEASURED = Spread()
ELSEWHERE = Spread(prompts=0.125, decodes=0.08, host=0.20)
OTHER_RELEASE = Spread(prompts=0.07, decodes=0.10, host=0.20)
"""What is added in squares for a release that was not measured. Published runs of one model on the same machines with
two releases of vLLM (0.6.5 and 0.9.0 on MI300X and MI325X) differ by 5, 7 and 7 % in mean TTFT and by 8, 10 and 12 % in
mean TPOT; nobody published what a host takes in two releases, so that is what hosts of machines differ by."""
OTHER_VENDOR = Spread(prompts=0.2, decodes=0.0, host=0.3)
"""The same for GPUs that run other programs than CUDA's: what launching costs a host there was not measured. Published
TTFT under SGLang on AMD's GPUs are off by 13 % from one publisher and 30 % from another in the median, TPOT by 9 and
18 %."""
RUN_TO_RUN = Spread(prompts=0.03, decodes=0.02, host=0.08)
RUN_TO_RUN_PATH = 0.0005
"""How far two runs of one deployment are apart beside their loads: standard deviations of logarithms, and of seconds.
Chosen on measured runs (benchmarks/accuracy/calibrate.py)."""
ANNOUNCED = Spread(prompts=0.3, decodes=0.3, host=0.0)
"""The same for a GPU that was announced and that nobody could measure: a guess."""
DRAFTING = Spread(prompts=0.05, decodes=0.07, host=0.15)
"""The same where tokens are drafted, whose host times are known from one engine of each model runner; a single request
has 5 to 10 % more or less of its drafts accepted than all of them on average (measured engines, docs/speculation.md).
"""
UNKNOWN_MACHINE = Spread(prompts=0.3, decodes=0.14, host=0.4)
"""The same for a run as somebody published it: what its page does not say of machine, load and settings comes on top,
and what it says wrongly. Set on runs of quality A of six sources; with each source left out of choosing how many times
wider intervals of TPOT and throughput have to be, the others choose 1.4 to 1.6 (docs/validation.md)."""
NEW_KERNEL_SPREAD = 0.25
"""Of a kernel that another one stands in for. Two engines' kernels for the same experts on Hopper, shape by shape: 19 %
apart in the median in bf16, 23 and 2 % in fp8, 11 % in int4."""
NETWORK_SPREAD = 0.3
"""The same of collectives between nodes, of which none was measured: an assumption ..."""
LINK_SPREAD = 0.2
"""... and of what a link between two pools carries."""


class Uncertainty(NamedTuple):
    """Logarithms of the upper ends of the 80 % intervals of times."""

    prompts: float
    """GPU time of steps with prompt tokens."""
    decodes: float
    """GPU time of steps of decoding only."""
    host: float = EIGHTY * HOST_SPREAD
    path: float = 0.0
    """Seconds by which requests may take longer to the engine."""


def spread_of(deployment: Deployment) -> Spread:
    """How far an engine like this may be from those that were measured."""
    spread = MEASURED if deployment.layout.gpus == 1 and not deployment.over_http else ELSEWHERE
    if not is_modelled(deployment.gpu):
        spread = _together(spread, OTHER_VENDOR)
    if deployment.gpu.announced:
        spread = _together(spread, ANNOUNCED)
    if deployment.drafting is not None:
        spread = _together(spread, DRAFTING)
    return spread if deployment.engine.is_measured else _together(spread, OTHER_RELEASE)


def as_published(deployment: Deployment) -> Spread:
    """The same for a run of which only a page is known."""
    return _together(spread_of(deployment), UNKNOWN_MACHINE)


def _together(*spreads: Spread) -> Spread:
    """What independent causes do together."""
    return Spread(*(hypot(*parts) for parts in zip(*spreads, strict=True)))


def borrowed_share(deployment: Deployment) -> float:
    """The share of what launching a prompt costs the host that was seen in one other model only."""
    return deployment.host_model.borrowed_share(deployment.model.name)


def uncertainty_of(deployment: Deployment, record: Record, spread: Spread | None = None) -> Uncertainty:
    """How far the steps of a run may be off, told by average ones; ``spread`` stands in for that of the deployment."""
    spread = spread or spread_of(deployment)
    if deployment.engine.has_new_runner(deployment.model):
        spread = spread._replace(host=hypot(spread.host, SEEN_IN_ONE_SPREAD))
    prompts, decodes = (_of_phase(deployment, totals) for totals in (record.prefilling, record.decoding))
    about = widened(prompts, decodes, _with_borrowed(spread, borrowed_share(deployment)))
    return about if deployment.corrections is None else _corrected(about, deployment.corrections)


def _corrected(about: Uncertainty, known: Corrections) -> Uncertainty:
    """The same where measured results told some of it; one run differs from another all the same."""

    def left(factor: Factor | None, before: float, run: float) -> float:
        return before if factor is None else min(before, EIGHTY * hypot(factor.spread, run))

    path = 0.0 if known.path is None else EIGHTY * hypot(known.path.spread, RUN_TO_RUN_PATH)
    return Uncertainty(
        left(known.prompts, about.prompts, RUN_TO_RUN.prompts),
        left(known.decodes, about.decodes, RUN_TO_RUN.decodes),
        left(known.host, about.host, RUN_TO_RUN.host),
        path,
    )


def _with_borrowed(spread: Spread, share: float) -> Spread:
    return spread._replace(host=hypot(spread.host, SEEN_IN_ONE_SPREAD * share)) if share else spread


def widened(prompts: float, decodes: float, spread: Spread) -> Uncertainty:
    """What estimates say of steps with prompts and without, and what is added to it."""
    if spread is MEASURED:
        return Uncertainty(prompts, decodes)
    return Uncertainty(
        hypot(prompts, EIGHTY * spread.prompts), hypot(decodes, EIGHTY * spread.decodes), EIGHTY * spread.host
    )


def _of_phase(deployment: Deployment, totals: PhaseTotals) -> float:
    if not totals.steps:
        return 0.0
    step = estimate_shape(deployment, average_shape(totals, deployment.drafting))
    return step_uncertainty(step, across_nodes=deployment.crosses_nodes)


def most_gain(deployment: Deployment, steps: Iterable[StepCost]) -> float:
    """Logarithm of how many times shorter times can be: not at all than a bound, and than what is typical down to what
    the hardware allows.
    """
    if deployment.predictor.is_bound:
        return 0.0
    if is_modelled(deployment.gpu):
        return inf
    return max(log(float(step.gpu.seconds) / float(step.gpu.low)) for step in steps)


def gain_of(deployment: Deployment, record: Record) -> float:
    """The same for the average steps of a run."""
    phases = [totals for totals in (record.prefilling, record.decoding) if totals.steps]
    shapes = [average_shape(totals, deployment.drafting) for totals in phases]
    return most_gain(deployment, [estimate_shape(deployment, shape) for shape in shapes])


def step_uncertainty(step: StepCost, *, across_nodes: bool = False) -> float:
    """Logarithm of the upper end of the 80 % interval of a step's GPU time."""
    seconds = np.array([kernel.seconds for kernel in step.kernels])
    ends = np.array([(float(kernel.estimate.low), float(kernel.estimate.high)) for kernel in step.kernels])
    weighted = seconds / seconds.sum() * np.log(ends[:, 1] / ends[:, 0]) / 2
    common = np.array([COMMON[kernel.estimate.source] for kernel in step.kernels])
    own, shared = ((1 - common) * weighted**2).sum(), (np.sqrt(common) * weighted).sum() ** 2
    if across_nodes:
        wires = sum(kernel.seconds for kernel in step.kernels if kernel.family == "collective") / seconds.sum()
        own += (EIGHTY * NETWORK_SPREAD * wires) ** 2
    if any(kernel.is_new for kernel in step.kernels):
        new = sum(kernel.seconds for kernel in step.kernels if kernel.is_new) / seconds.sum()
        own += (EIGHTY * NEW_KERNEL_SPREAD * new) ** 2
    return float(np.sqrt(own + shared))
