"""How far kernels, host and release may be off: one definition, for users, `infercast validate` and published runs.

Four things are taken to be uncertain, and independent of each other:

- *Kernels.* Every estimate has an 80 % interval of its own. Part of the error is common to the kernels of a step (a
  clock, a memory that is slower than thought), the rest is each kernel's own and cancels: ``COMMON`` says how much of
  each variance is taken to be common. Whole steps are known better than their kernels say (``STEP_MOST``): measured
  engines show it. Engines on several GPUs or behind a server have what none of these engines has (``ELSEWHERE``).
- *The host.* Everything that its thread does is off by one factor.
- *The release.* One whose costs were not measured has those of another. Published runs of releases close to the
  measured one show how little that is (``CLOSE_RELEASE``), those of older ones how much (``OLDER_RELEASE``).
- *Chance.* Another draw of arrivals and lengths gives other latencies (`forecast.luck`). Of requests that are given,
  which of them meet in a step is luck, and a percentile hangs on a few of them: it may as well have been one a few
  ranks up or down, as many as a sample of so many requests leaves open (`forecast.results`).

``HOST_SPREAD`` and ``OLDER_RELEASE`` were chosen with engines and sources left out in turn
(benchmarks/accuracy/fit_intervals.py, fit_published_intervals.py). ``CLOSE_RELEASE`` and ``ELSEWHERE`` rest on 16
published runs of one model and one source, with these in sight; docs/validation.md tells how often values lie inside,
and how wide intervals are.
"""

from __future__ import annotations

from math import hypot, inf, log
from typing import NamedTuple

import numpy as np

from infercast.engines.corrections import Corrections, Factor
from infercast.engines.deployment import Deployment
from infercast.engines.engine import Version
from infercast.engines.registry import AnyEngine
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
STEP_MOST, SIBLING_MOST = 0.05, 0.07
"""Logarithm of the upper end of a step's interval, at most, where kernels like its own were measured on the GPU: steps
of 27 measured engines are known that well, experts included (86 % inside; with each left out the others choose 3 to
3.5 % for 80). On a GPU that has its kernels from a sibling it is a little more, an assumption."""
KNOWN_SHARE = 0.8
"""Kernels of a step that must be known so, by their time."""
HOST_SPREAD = 0.16
"""Standard deviation of the logarithm of host times of machines of one kind ..."""
PROBED_HOST = 0.13
"""... and of one whose speed was measured. One engine on three machines, whose times differ by 15 (a decode step) and
22 % (a lone prompt): divided by what one launch takes there they differ by 12 and 15 %; a loop in Python tells nothing."""


class Spread(NamedTuple):
    """Standard deviations of logarithms of times, beyond what estimates say."""

    prompts: float = 0.0
    decodes: float = 0.0
    host: float = 0.0


SEEN_IN_ONE_SPREAD = 0.3
"""Standard deviation of the logarithm of host times that were seen in one other model only: an assumption. Routed
experts were off by that (52 ms for 72) while they were known from one prompt of one model."""
NEW_RUNNER_SPREAD = 0.08
"""The same of a model that a release launches by other code than the measured one. Launching a step of qwen3-30b-a3b
without graphs took 62 ms by vLLM's newer runner and 62 to 72 by the older (docs/log.md)."""
ELSEWHERE = Spread(prompts=0.04, decodes=0.02)
"""What steps on several GPUs or behind a server have beyond those of measured engines, which have neither."""
CLOSE_RELEASE = Spread(prompts=0.04, decodes=0.03, host=0.03)
"""What is added in squares for a release that was not measured and is close to one that was. Published runs of vLLM
0.22 with the costs of 0.25: 4 % off in TTFT and 2 % in TPOT (median), four of five within 10 and 5 %."""
OLDER_RELEASE = Spread(prompts=0.6, decodes=0.15, host=0.47)
"""The same for one of long before: vLLM 0.10 to 0.19 and SGLang up to 0.5.15, in published runs of five sources. All
of prompts changed since (graphs, fused kernels, the API server), and those runs are slower, not faster."""
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
    by_release: Spread = Spread()
    """The share of the square of each that is the release's."""


def release_spread(engine: AnyEngine, version: Version = ()) -> Spread:
    """How far a release may be from the one whose costs stand in for it; ``version``: another one than the engine's."""
    if (version or engine.version) < engine.close_since:
        return OLDER_RELEASE
    is_another = bool(version) and version[: len(engine.version)] != engine.version
    return CLOSE_RELEASE if is_another or not engine.is_measured else Spread()


def is_older(engine: AnyEngine, version: Version = ()) -> bool:
    """Whether it is long before the one that was measured."""
    return release_spread(engine, version) is OLDER_RELEASE


def is_like_measured(deployment: Deployment) -> bool:
    """Whether engines like this were measured: a release of them, one GPU, no server, nothing drafted."""
    return spread_of(deployment) == Spread(host=HOST_SPREAD) and deployment.engine.is_measured


def spread_of(deployment: Deployment) -> Spread:
    """How far an engine like this may be from those that were measured, its release aside."""
    spreads = [Spread(host=PROBED_HOST if deployment.host.is_measured else HOST_SPREAD)]
    if deployment.layout.gpus > 1 or deployment.over_http:
        spreads.append(ELSEWHERE)
    if not is_modelled(deployment.gpu):
        spreads.append(OTHER_VENDOR)
    if deployment.gpu.announced:
        spreads.append(ANNOUNCED)
    if deployment.drafting is not None:
        spreads.append(DRAFTING)
    # Both are about what its layers cost to launch.
    new_runner = NEW_RUNNER_SPREAD if deployment.engine.has_new_runner(deployment.model) else 0.0
    spreads.append(Spread(host=max(new_runner, SEEN_IN_ONE_SPREAD * borrowed_share(deployment))))
    return _together(*spreads)


def probed_host(host: float) -> float:
    """The upper end of a host's interval (a logarithm), had the speed of an unknown machine been measured."""
    known = host**2 - EIGHTY**2 * (HOST_SPREAD**2 - PROBED_HOST**2)
    return float(np.sqrt(known)) if host >= EIGHTY * HOST_SPREAD else host


def _together(*spreads: Spread) -> Spread:
    """What independent causes do together."""
    return Spread(*(hypot(*parts) for parts in zip(*spreads, strict=True)))


def borrowed_share(deployment: Deployment) -> float:
    """The share of what launching a prompt costs the host that was seen in one other model only."""
    return deployment.host_model.borrowed_share(deployment.model.name)


def uncertainty_of(deployment: Deployment, record: Record, version: Version = ()) -> Uncertainty:
    """How far the steps of a run may be off, told by average ones; ``version``: of a release that the engine's stands
    in for.
    """
    release = release_spread(deployment.engine, version)
    about = widened(*kernel_widths(deployment, record), spread_of(deployment), release)
    return about if deployment.corrections is None else _corrected(about, deployment.corrections)


def kernel_widths(deployment: Deployment, record: Record) -> tuple[float, float]:
    """What estimates of kernels say of a run's steps with prompts and without, as logarithms."""
    return _of_phase(deployment, record.prefilling), _of_phase(deployment, record.decoding)


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
        about.by_release,
    )


def widened(prompts: float, decodes: float, spread: Spread, release: Spread | None = None) -> Uncertainty:
    """What estimates say of steps with prompts and without, and what is added to it."""
    others = [hypot(step, EIGHTY * each) for step, each in zip((prompts, decodes, 0.0), spread, strict=True)]
    added = [EIGHTY * each for each in release or Spread()]
    ends = [hypot(each, more) for each, more in zip(others, added, strict=True)]
    shares = [(more / end) ** 2 if end else 0.0 for more, end in zip(added, ends, strict=True)]
    return Uncertainty(ends[0], ends[1], ends[2], by_release=Spread(*shares))


def _of_phase(deployment: Deployment, totals: PhaseTotals) -> float:
    if not totals.steps:
        return 0.0
    step = estimate_shape(deployment, average_shape(totals, deployment.drafting))
    return step_uncertainty(step, across_nodes=deployment.crosses_nodes, most=_most(step))


def _most(step: StepCost) -> float:
    """How far whole steps like this were off at most, by what most of its kernels are known from."""
    whole = sum(kernel.seconds for kernel in step.kernels)
    own, sibling = (
        sum(kernel.seconds for kernel in step.kernels if kernel.estimate.source == source) / whole
        for source in ("measured", "sibling")
    )
    if own + sibling < KNOWN_SHARE:
        return inf
    return STEP_MOST if own >= KNOWN_SHARE else SIBLING_MOST


class Gains(NamedTuple):
    """Logarithms of how many times shorter times can be, by what hardware allows."""

    prompts: float = inf
    decodes: float = inf


def gains_of(deployment: Deployment, record: Record) -> Gains:
    """Of the average steps of a run: down to what the hardware allows, and a bound not at all."""
    phases = (record.prefilling, record.decoding)
    return Gains(*(_gain(deployment, totals) if totals.steps else inf for totals in phases))


def _gain(deployment: Deployment, totals: PhaseTotals) -> float:
    if deployment.predictor.is_bound:
        return 0.0
    step = estimate_shape(deployment, average_shape(totals, deployment.drafting))
    if not is_modelled(deployment.gpu):
        return log(float(step.gpu.seconds) / float(step.gpu.low))
    least = sum(kernel.seconds * min(kernel.achieved / kernel.limit, 1.0) for kernel in step.kernels if kernel.limit)
    return log(max(step.seconds / least, 1.0)) if least else inf


def step_uncertainty(step: StepCost, *, across_nodes: bool = False, most: float = inf) -> float:
    """Logarithm of the upper end of the 80 % interval of a step's GPU time; what is known of its kernels says no more
    than ``most``.
    """
    seconds = np.array([kernel.seconds for kernel in step.kernels])
    ends = np.array([(float(kernel.estimate.low), float(kernel.estimate.high)) for kernel in step.kernels])
    weighted = seconds / seconds.sum() * np.log(ends[:, 1] / ends[:, 0]) / 2
    common = np.array([COMMON[kernel.estimate.source] for kernel in step.kernels])
    own, shared = ((1 - common) * weighted**2).sum(), (np.sqrt(common) * weighted).sum() ** 2
    known = min(float(np.sqrt(own + shared)), most)
    wires = sum(kernel.seconds for kernel in step.kernels if across_nodes and kernel.family == "collective")
    new = sum(kernel.seconds for kernel in step.kernels if kernel.is_new)
    unknown = EIGHTY * np.array([NETWORK_SPREAD * wires, NEW_KERNEL_SPREAD * new]) / seconds.sum()
    return float(np.hypot(known, np.hypot(*unknown)))
