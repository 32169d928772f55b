"""How far forecasts may be off: error of kernels, host and release, and sampling error of arrivals and lengths.

- *Kernels.* Every estimate has an 80 % interval of its own. Part of the error is common to the kernels of a step, the
  rest cancels (``COMMON``). Whole steps are known better (``STEP_MOST``), but for layouts not measured (``ELSEWHERE``).
- *The host.* One factor on all times of its thread.
- *The release.* One that was not measured has the costs of another (``CLOSE_RELEASE``, ``OLDER_RELEASE``).
- *Chance.* Of a steady part, and of a long run with one, by the spread of the means of twenty batches (`steady_luck`);
  of others, by a few further, mostly shorter workloads (`luck_of`); of given requests, only ranks are left to chance.

Constants were chosen with engines and sources left out in turn (benchmarks/accuracy/fit_intervals.py,
fit_published_intervals.py), but ``CLOSE_RELEASE`` and ``ELSEWHERE`` on 16 published runs with these in sight.

Odds need the tails: logarithms of measured results over forecasts follow Student's t with two degrees of freedom, and
under load the middle is a little slower than the forecast (docs/odds.md, benchmarks/accuracy/fit_odds.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from math import hypot, inf, log, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from infercast.engines.base import Deployment, Engine, Version
from infercast.engines.timer import Corrections, Factor
from infercast.forecast.kernels import StepCost, average_step
from infercast.forecast.progress import note_cut, time_left
from infercast.forecast.slo import FRACTIONS, NAMES, Array, percentiles, quantile
from infercast.hardware.load import is_modelled
from infercast.lazy_classes import NamedTuple
from infercast.serve import Record, Replica, Workload
from infercast.serve.record import PhaseTotals, ServedRequests
from infercast.serve.workload.synthetic import redrawn

if TYPE_CHECKING:
    from infercast.forecast.sketch import Sketch

EIGHTY = 1.2816  # Standard deviations on either side that hold 80 % of a normal distribution
COMMON = {
    "measured": 0.1, "few-shot": 0.1, "physics": 0.1, "sibling": 0.3, "unseen": 0.6, "published": 0.4,
    "typical": 1.0, "roofline": 1.0,
}  # fmt: skip
"""The share of the variance of a kernel's estimate that all kernels of a step have in common, by source."""
STEP_MOST, SIBLING_MOST = 0.05, 0.07
"""Logarithm of the upper end of a step's interval, at most, where kernels like its own were measured on the GPU (86 %
of the steps of 27 engines lie inside); with kernels of a sibling a little more, an assumption."""
KNOWN_SHARE = 0.8  # Kernels of a step that must be known so, by their time
HOST_SPREAD = 0.16  # Standard deviation of the logarithm of host times of machines of one kind ...
PROBED_HOST = 0.14
"""... and of one that was probed: 78 % of an engine's medians on three machines lie inside, 48 without a probe."""
Summary = Callable[[Array, Array | None], Sequence[float]]
SLOWER_UNDER_LOAD = 0.3
"""How much slower than its forecast the middle of a result under load is, in standard deviations of a normal
distribution with its interval: of an engine like those that were measured ..."""
SLOWER_ELSEWHERE = 0.15  # ... of any other, under load or not; its intervals are wider ...
SLOWER_BEFORE = 0.64  # ... and of an old release: three of four published runs of these are slower than forecast.


FEWEST_DRAWS = 2  # Of further workloads, if there is no time for twice as many


class Spread(NamedTuple):
    """Standard deviations of logarithms of times, beyond what estimates say."""

    prompts: float = 0.0
    decodes: float = 0.0
    host: float = 0.0


NEW_RUNNER_SPREAD = 0.08  # The same of a model that a release launches by other code than measured (benchmarks/LOG.md)
ELSEWHERE = Spread(prompts=0.04, decodes=0.02)
"""What steps on several GPUs or behind a server have beyond those of measured engines, which have neither."""
CLOSE_RELEASE = Spread(prompts=0.04, decodes=0.03, host=0.03)
"""Added in squares for a release close to a measured one: vLLM 0.22 is 4 % off in TTFT and 2 % in TPOT."""
OLDER_RELEASE = Spread(prompts=0.6, decodes=0.15, host=0.47)
"""The same for an old release (vLLM up to 0.19, SGLang up to 0.5.15): its prompts are slower in published runs."""
RUN_TO_RUN = Spread(prompts=0.03, decodes=0.02, host=0.08)
RUN_TO_RUN_PATH = 0.0005
"""Two equal runs of one deployment: deviations of logarithms and seconds (benchmarks/accuracy/calibrate.py)."""
NEW_KERNEL_SPREAD = 0.25
"""Of a kernel that is estimated as another one: two engines' experts on Hopper are 2 to 23 % apart in the median."""
LINK_SPREAD = 0.2  # The same of what a link between two pools carries: an assumption


class Uncertainty(NamedTuple):
    """Logarithms of the upper ends of the 80 % intervals of times."""

    prompts: float  # GPU time of steps with prompt tokens
    decodes: float  # GPU time of steps of decoding only
    host: float = EIGHTY * HOST_SPREAD
    path: float = 0.0  # Seconds by which requests may take longer to the engine
    by_release: Spread = Spread()  # The share of the square of each that is the release's


def release_spread(engine: Engine, version: Version = ()) -> Spread:
    """How far a release may be from the measured one; ``version``: another one than the engine's."""
    if (version or engine.version) < engine.close_since:
        return OLDER_RELEASE
    if engine.rules_from and not version:
        return Spread(prompts=0.08, decodes=0.05, host=0.06)  # not even its rules are known
    is_another = bool(version) and version[: len(engine.version)] != engine.version
    return CLOSE_RELEASE if is_another or not engine.is_measured else Spread()


def is_older(engine: Engine, version: Version = ()) -> bool:
    """Whether it is long before the one that was measured."""
    return release_spread(engine, version) is OLDER_RELEASE


def spread_of(deployment: Deployment) -> Spread:
    """How far an engine like this may be from those that were measured, its release aside."""
    spreads = [Spread(host=PROBED_HOST if deployment.host.is_measured else HOST_SPREAD)]
    if deployment.layout.gpus > 1 or deployment.over_http:
        spreads.append(ELSEWHERE)
    if not is_modelled(deployment.gpu):
        # Without CUDA: SGLang's TTFT on AMD's GPUs is off by 13 to 30 %, TPOT by 9 to 18 % in published medians.
        spreads.append(Spread(prompts=0.2, decodes=0.0, host=0.3))
    if deployment.gpu.announced:
        spreads.append(Spread(prompts=0.3, decodes=0.3, host=0.0))  # not measured: a guess
    if deployment.drafting is not None:
        # Few host times are known, and acceptance varies by 5 to 10 % per request.
        spreads.append(Spread(prompts=0.05, decodes=0.07, host=0.15))
    # Both are about what its layers cost to launch.
    seen_in_one = 0.3  # of host times that were seen in one other model only: an assumption
    new_runner = NEW_RUNNER_SPREAD if deployment.engine.has_new_runner(deployment.model) else 0.0
    spreads.append(Spread(host=max(new_runner, seen_in_one * borrowed_share(deployment))))
    return Spread(*(hypot(*parts) for parts in zip(*spreads, strict=True)))


def borrowed_share(deployment: Deployment) -> float:
    """The share of what launching a prompt costs the host that was seen in one other model only."""
    return deployment.host_model.borrowed_share(deployment.model.name)


def probed_host(host: float) -> float:
    """The upper end of a host's interval (a logarithm), had the speed of an unknown machine been measured."""
    known = host**2 - EIGHTY**2 * (HOST_SPREAD**2 - PROBED_HOST**2)
    return float(np.sqrt(known)) if host >= EIGHTY * HOST_SPREAD else host


def uncertainty_of(deployment: Deployment, record: Record, version: Version = ()) -> Uncertainty:
    """How far the steps of a run may be off; ``version``: the release that the engine stands for."""
    release = release_spread(deployment.engine, version)
    about = widened(*kernel_widths(deployment, record), spread_of(deployment), release)
    return about if deployment.corrections is None else _corrected(about, deployment.corrections)


def kernel_widths(deployment: Deployment, record: Record) -> tuple[float, float]:
    """What estimates of kernels say of a run's steps with prompts and without, as logarithms."""
    return _of_phase(deployment, record.prefilling), _of_phase(deployment, record.decoding)


def _corrected(about: Uncertainty, known: Corrections) -> Uncertainty:
    """The same after a calibration; one run differs from another all the same."""

    def left(factor: Factor | None, before: float, run: float) -> float:
        return before if factor is None else min(before, EIGHTY * hypot(factor.spread, run))

    return Uncertainty(
        left(known.prompts, about.prompts, RUN_TO_RUN.prompts), left(known.decodes, about.decodes, RUN_TO_RUN.decodes),
        left(known.host, about.host, RUN_TO_RUN.host),
        0.0 if known.path is None else EIGHTY * hypot(known.path.spread, RUN_TO_RUN_PATH), about.by_release,
    )  # fmt: skip


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
    step = average_step(deployment, totals)
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
    phases = (record.prefilling, record.decoding)
    return Gains(*(_gain(deployment, totals) if totals.steps else inf for totals in phases))


def _gain(deployment: Deployment, totals: PhaseTotals) -> float:
    if deployment.predictor.is_bound:
        return 0.0
    step = average_step(deployment, totals)
    if not is_modelled(deployment.gpu):
        return log(float(step.gpu.seconds) / float(step.gpu.low))
    least = sum(kernel.seconds * min(kernel.achieved / kernel.limit, 1.0) for kernel in step.kernels if kernel.limit)
    return log(max(step.seconds / least, 1.0)) if least else inf


def step_uncertainty(step: StepCost, *, across_nodes: bool = False, most: float = inf) -> float:
    """Logarithm of the upper end of the 80 % interval of a step's GPU time; known kernels add at most ``most``."""
    seconds = np.array([kernel.seconds for kernel in step.kernels])
    ends = np.array([(float(kernel.estimate.low), float(kernel.estimate.high)) for kernel in step.kernels])
    weighted = seconds / seconds.sum() * np.log(ends[:, 1] / ends[:, 0]) / 2
    common = np.array([COMMON[kernel.estimate.source] for kernel in step.kernels])
    own, shared = ((1 - common) * weighted**2).sum(), (np.sqrt(common) * weighted).sum() ** 2
    known = min(float(np.sqrt(own + shared)), most)
    wires = sum(kernel.seconds for kernel in step.kernels if across_nodes and kernel.family == "collective")
    new = sum(kernel.seconds for kernel in step.kernels if kernel.is_new)
    network_spread = 0.3  # of collectives between nodes, of which none was measured: an assumption
    unknown = EIGHTY * np.array([network_spread * wires, NEW_KERNEL_SPREAD * new]) / seconds.sum()
    return float(np.hypot(known, np.hypot(*unknown)))


def redraw(workload: Workload, replica: Replica, *, seed: int, count: int) -> Workload | None:
    """What another seed would have drawn, cut to what the engine takes; None where chance made none of it."""
    other = redrawn(workload, seed=seed, count=count)
    if other is None:
        return None
    longest = longest_taken(workload, replica)
    requests = tuple(
        request
        if request.num_input + request.num_output <= longest
        else replace(request, num_input=(kept := min(request.num_input, longest - 1)), num_output=longest - kept)
        for request in other.requests
    )
    return replace(other, requests=requests)


def longest_taken(workload: Workload, replica: Replica) -> int:
    """Tokens of the longest request that the engine is known to take."""
    if replica.max_model_len is not None and replica.policy.chunked_prefill:
        blocks = replica.kv_shape.most_blocks(replica.max_model_len, replica.policy.max_num_batched_tokens)
        if blocks <= replica.num_blocks:
            return replica.max_model_len
    return max(request.num_input + request.num_output for request in workload.requests)


def odds_within(room: Array | float, half_width: float, slower: float = 0.0) -> Array:
    """The probability that a latency is at most ``exp(room)`` times its forecast, or a rate at least ``exp(-room)``."""
    room = np.asarray(room, dtype=float)
    if half_width <= 0:
        return np.where(room >= 0, 1.0, 0.0)
    # Where Student's t with two degrees of freedom has nine tenths of its values below: the upper end of 80 %
    ninety = 0.8 / sqrt(2 * 0.9 * 0.1)
    deviations = ninety * (room / half_width - slower / EIGHTY)
    return np.asarray(0.5 + deviations / (2 * np.sqrt(2 + deviations**2)))


def slower_by(deployments: Sequence[Deployment], workload: Workload, version: Version = ()) -> float:
    """How much slower than the forecast the middle of a result of these requests is, for `odds_within`."""
    if is_older(deployments[0].engine, version):
        return SLOWER_BEFORE
    first = deployments[0]
    usual = (Spread(host=HOST_SPREAD), Spread(host=PROBED_HOST))
    is_like_measured = spread_of(first) in usual and first.engine.is_measured
    if len(deployments) > 1 or not is_like_measured:
        return SLOWER_ELSEWHERE
    return 0.0 if is_at_once(workload) else SLOWER_UNDER_LOAD


def is_at_once(workload: Workload) -> bool:
    first, last = workload.requests[0], workload.requests[-1]
    at_once = 0.05  # Requests sent within this many seconds form a static batch
    return workload.concurrency is None and last.arrival - first.arrival <= at_once


def results_of(served: Record | ServedRequests, summary: Summary | None = None) -> Array:
    """TTFT, TPOT, time between tokens, end to end and tokens a second; not a number where there is none."""
    gaps, counts = served.gaps
    summed_up = summary or (lambda values, weights: percentiles(values, weights).values)
    rows = [
        summed_up(values, weights) if values.size else (np.nan,) * len(NAMES)
        for values, weights in ((served.ttft, None), (served.tpot, None), (gaps, counts), (served.end_to_end, None))
    ]
    return np.array([*np.ravel(rows), _rate(served, served.num_output.size)])


def smoothed_of(served: Record | ServedRequests) -> Array:
    """The same with percentiles as means over ranks around each, which depend on fewer single requests."""
    return results_of(served, _smoothed)


def _smoothed(values: Array, counts: Array | None) -> Sequence[float]:
    """The mean, and geometric means of quantiles around each percentile, up to half way to the end."""
    order = np.argsort(values)
    ranked, weights = values[order], np.ones(values.size) if counts is None else counts[order]
    reached = np.cumsum(weights) / weights.sum()
    found = [float((ranked * weights).sum() / weights.sum())]
    for fraction in FRACTIONS:
        around = fraction + 0.5 * min(fraction, 1 - fraction) * np.linspace(-1, 1, 15)
        places = np.minimum(np.searchsorted(reached, around), ranked.size - 1)
        found.append(float(np.exp(np.log(np.maximum(ranked[places], 1e-12)).mean())))
    return found


def with_pauses(luck: Array, deployment: Deployment) -> Array:
    """With the pauses of a server behind HTTP, which reach the largest TTFT alone."""
    if not deployment.over_http:
        return luck
    pauses = np.zeros(luck.size)
    spread = 0.15  # Chosen on the first runs of vLLM 0.33; of 58 measured later, 72 % lie inside
    pauses[len(NAMES) - 1] = EIGHTY * spread
    return np.asarray(np.hypot(luck, pauses))


def chance_in(served: Record | ServedRequests) -> Array:
    """What the luck of ranks adds to each of these: nothing to means, to the many gaps between tokens and to rates."""
    nothing = [0.0] * len(NAMES)
    ttft, tpot, end_to_end = (
        [0.0, *(chance_of(values, fraction) for fraction in FRACTIONS)] if values.size else nothing
        for values in (served.ttft, served.tpot, served.end_to_end)
    )
    return np.array([*ttft, *tpot, *nothing, *end_to_end, 0.0])


def chance_of(values: Array, fraction: float, count: int | None = None) -> float:
    """Half the width of the 80 % interval of a percentile of ``count`` such values, as a logarithm."""
    return _around(np.sort(values), fraction, EIGHTY * sqrt(fraction * (1 - fraction) / (count or values.size)))


STUDENT = 1.533  # Standard deviations on either side that hold 80 %, where the deviation is known from five draws
RESIDENCES, MEMORIES = 8, 10
"""A draw must be long enough to forget its start: multiples of the requests in the system, and of correlated ones."""
LENGTHS = 128, 1024  # The least requests of a draw, if the run has as many, and the most ...
LENGTHS_STEP_BY_STEP = 48, 128  # ... and where no stretch of steps can be jumped over, which takes ten times as long.
BATCHES, STUDENT_OF_BATCHES = 20, 1.328  # Of a steady part, and the standard errors of 80 % with this many batches
STRATA, LEAST_KEPT = 50, 2 * BATCHES
LEAST = 1e-8  # A variance (of logarithms) that does not matter


class Batches:
    """The requests of a steady part in the order in which they were sent, in twenty batches. Of ``spread_out``
    requests, what follows from the load of a batch and the one before, and from prompt lengths, is no error of the
    whole and left out. With a ``sketch``, so is what it would have shown, and what it shows of the long run is added.
    """

    def __init__(
        self, served: Record | ServedRequests, workload: Workload, begin: float, end: float,
        sketch: Sketch | None = None,
    ) -> None:  # fmt: skip
        self.begin, self.end = begin, end
        inside = np.flatnonzero((served.sent_at >= begin) & (served.sent_at <= end))
        self.inside = inside[np.argsort(served.sent_at[inside], kind="stable")]
        self.several = served.num_output[self.inside] > 1
        span = (served.last_token - served.first_token)[self.inside][self.several]
        self.values = {
            "ttft": served.ttft[self.inside],
            "tpot": span / (served.num_output[self.inside][self.several] - 1),
            "e2e": served.end_to_end[self.inside],
        }
        self._workload, self._served, self._ranked, self._sketch = workload, served, dict[str, Array](), sketch
        self.evened = False  # Whether errors are those of a steady part in which the sketch shows what the long run has
        self.is_spread_out = workload.drawn is not None and workload.drawn.spread_out and self.inside.size >= LEAST_KEPT

    @cached_property
    def _places(self) -> Array:
        return np.arange(self.inside.size) * BATCHES // max(self.inside.size, 1)

    @cached_property
    def _inputs(self) -> Array:
        requests = self._workload.requests
        return np.array([requests[index].num_input for index in self.inside.tolist()], dtype=float)

    @cached_property
    def _controls(self) -> Array:
        """What is known of all batches (prompts, answers, seconds and those of the batch before), off their means."""
        outputs = self._served.num_output[self.inside].astype(float)
        known = [np.bincount(self._places, each, BATCHES) for each in (self._inputs, outputs)]
        if self._workload.rate is not None:
            sent = self._served.sent_at[self.inside]
            seconds = np.diff([*sent[np.searchsorted(self._places, np.arange(BATCHES))], self.end])
            known += [seconds, np.roll(seconds, 1)]
        return np.column_stack([np.ones(BATCHES), *(each / each.mean() - 1.0 for each in known)])

    @cached_property
    def _strata(self) -> Array:
        """Parts of the requests by the length of their prompts, about as large as each other; equals are together."""
        edges = sorted({quantile(self._inputs, part / STRATA) for part in range(1, STRATA)})
        return np.searchsorted(edges, self._inputs)

    @cached_property
    def _sketched(self) -> dict[str, Array]:
        return {} if self._sketch is None else self._sketch.of(self._workload.requests)

    def error(self, name: str, fraction: float | None) -> float:
        """The standard error (of the logarithm) of the mean of a latency, or of a percentile."""
        values, several = self.values[name], self.several if name == "tpot" else slice(None)
        if values.size < LEAST_KEPT or not values.any():
            return 0.0 if not values.size else 1.0
        if fraction is not None and name not in self._ranked:
            self._ranked[name] = np.sort(values)
        middle = float(values.mean()) if fraction is None else quantile(self._ranked[name], fraction)
        scored = values / middle if fraction is None else (values <= middle).astype(float)
        if self.is_spread_out and self._sketch is not None:
            error = self._error_beside(scored, self._sketch, name, fraction, several)
        else:
            error = self._error(scored, self._places[several], self._strata[several] if self.is_spread_out else None)
        return error if fraction is None else _around(self._ranked[name], fraction, error)

    @cached_property
    def gaps(self) -> tuple[Array, Array, Array]:
        """The batch in time of each time between tokens, and the times and how often each occurred."""
        ended, gaps, counts = self._served.timed_gaps
        inside = (ended > self.begin) & (ended <= self.end)
        places = ((ended[inside] - self.begin) / (self.end - self.begin) * BATCHES).astype(np.int64)
        return np.minimum(places, BATCHES - 1), gaps[inside], counts[inside]

    def rate_error(self) -> float:
        """The standard error of tokens a second; none where as much is served as comes, at a rate that is known."""
        if self.is_spread_out and self._workload.rate is not None:
            return 0.0
        places, _, counts = self.gaps
        tokens = np.bincount(places, counts, BATCHES)
        return error_of_mean(tokens / max(float(tokens.mean()), 1e-30))

    def _error(self, scored: Array, places: Array, strata: Array | None) -> float:
        sizes = np.maximum(np.bincount(places, minlength=BATCHES), 1)
        means = np.bincount(places, scored, BATCHES) / sizes
        whole = error_of_mean(means)
        if strata is None:
            return max(whole, sqrt(float(scored.var()) / scored.size))
        of_strata = np.bincount(strata, scored, STRATA) / np.maximum(np.bincount(strata, minlength=STRATA), 1)
        scored = scored - of_strata[strata]
        means = np.bincount(places, scored, BATCHES) / sizes
        left = means - self._controls @ np.linalg.lstsq(self._controls, means, rcond=None)[0]
        freedom = (BATCHES - 1) / (BATCHES - self._controls.shape[1])
        rest = max(error_of_mean(left) ** 2 * freedom, float(scored.var()) / scored.size)
        # What was cut off at both ends had its part of the load, too.
        cut = 1.0 - self.inside.size / len(self._workload.requests)
        return sqrt(rest + cut * max(0.0, whole**2 - rest))

    def _error_beside(self, scored: Array, sketch: Sketch, name: str, fraction: float | None, several: Any) -> float:
        """The same of what is left beside a sketch, with its own distance from the long run unless that is `evened`."""
        places, known, long = self._places[several], self._sketched[name][self.inside][several], sketch.long_run[name]
        middle = float(long.mean()) if fraction is None else float(long[int(fraction * long.size)])
        shown = known / middle if fraction is None else (known <= middle).astype(float)
        expected = 1.0 if fraction is None else fraction
        sizes = np.maximum(np.bincount(places, minlength=BATCHES), 1)
        means, control = (np.bincount(places, each, BATCHES) / sizes for each in (scored, shown))
        controls = np.column_stack([control - expected, self._controls])
        found = np.linalg.lstsq(controls, means, rcond=None)[0]
        ranks = np.argsort(np.argsort(known, kind="stable"), kind="stable") * STRATA // known.size
        of_strata = np.bincount(ranks, scored, STRATA) / np.maximum(np.bincount(ranks, minlength=STRATA), 1)
        alike = scored - of_strata[ranks]
        rest = max(_left(means, controls), float(alike.var()) / scored.size)
        off = float(found[0]) * (float(shown.mean()) - expected)
        of_long = float(found[0]) ** 2 * _left(control, self._controls) * known.size / long.size
        return sqrt(rest + of_long + (0.0 if self.evened else off**2))


def _left(means: Array, controls: Array) -> float:
    """The variance of the mean of batches beside what controls say of each."""
    left: Array = means - controls @ np.linalg.lstsq(controls, means, rcond=None)[0]
    return float(np.square(left).sum()) / float(BATCHES - controls.shape[1]) / BATCHES


def error_of_mean(means: Array) -> float:
    """The standard error of the mean of batches; those that are alike to their neighbours count for less."""
    rest = means - means.mean()
    alike = float(np.clip((rest[1:] @ rest[:-1]) / max(float(rest @ rest), 1e-30), 0.0, 0.8))
    return sqrt(float(means.var(ddof=1)) / means.size * (1.0 + alike) / (1.0 - alike))


def _around(ranked: Array, fraction: float, off: float) -> float:
    """What a standard error of the share below a percentile is for the percentile itself, as a logarithm."""
    low, high = (np.clip(ranked.size * level, 0, ranked.size - 1) for level in (fraction - off, fraction + off))
    return float(np.log(ranked[int(high)] / max(float(ranked[int(low)]), 1e-12)) / 2)


def steady_luck(
    served: Record | ServedRequests, workload: Workload, begin: float, end: float, sketch: Sketch | None = None
) -> Array:
    """Half widths of 80 % intervals (logarithms) of what an endless run would show, from a steady part of this one."""
    batches, fractions = Batches(served, workload, begin, end, sketch), (None, *FRACTIONS)
    ttft, tpot, whole = ([batches.error(name, each) for each in fractions] for name in ("ttft", "tpot", "e2e"))
    places, gaps, counts = batches.gaps
    of_tokens = _gaps_errors(gaps, counts, places)
    return STUDENT_OF_BATCHES * np.array([*ttft, *tpot, *of_tokens, *whole, batches.rate_error()])


def _gaps_errors(gaps: Array, counts: Array, places: Array) -> list[float]:
    """The same of mean and percentiles of times between tokens, with a count and a batch each."""
    totals = np.bincount(places, counts, BATCHES)
    if not gaps.size or not totals.all():
        return [0.0] * (1 + len(FRACTIONS))
    means = np.bincount(places, counts * gaps, BATCHES) / totals
    errors = [error_of_mean(means / means.mean())]
    order = np.argsort(gaps)
    shares, ranked = np.cumsum(counts[order]) / counts.sum(), gaps[order]
    for fraction in FRACTIONS:
        middle = ranked[np.searchsorted(shares, fraction)]
        off = error_of_mean(np.bincount(places, counts * (gaps <= middle), BATCHES) / totals)
        ends = np.clip([fraction - off, fraction + off], 0.0, 1.0 - 1e-12)
        low, high = ranked[np.searchsorted(shares, ends)].tolist()
        errors.append(float(np.log(high / max(low, 1e-12)) / 2))
    return errors


def luck_of(
    workload: Workload, served: Record | ServedRequests, replica: Replica,
    serve: Callable[[Workload], Record | ServedRequests], lengths: tuple[int, int] = LENGTHS,
    steady: tuple[float, float] | None = None,
) -> Array | None:  # fmt: skip
    """Half widths (logarithms) of 80 % intervals of other seeds, of which ``serve`` runs a few; None if none is."""
    count, (least, most), both = len(workload.requests), lengths, sqrt(2.0)  # the run itself is a draw, too
    # All at once: what happens depends on how many they are.
    needed = count if workload.rate is None and workload.concurrency is None else max(least, _memory(served))
    long = 10  # A steady run that is so many times as long as a draw must be shows by itself what chance does
    if steady is not None and count >= long * needed and redraw(workload, replica, seed=0, count=least) is not None:
        inside = np.count_nonzero((served.sent_at >= steady[0]) & (served.sent_at <= steady[1]))
        shown = sqrt(inside / count) * steady_luck(served, workload, *steady)
        shown[-1] = shown[-1] if workload.rate is None else _of_rate(workload, served, 0.0)
        return both * shown
    length = min(count, most, needed)
    seed = 0 if workload.drawn is None else workload.drawn.seed
    draws = 2 * FEWEST_DRAWS
    apart = 1_000_003  # Between the seeds of two draws, far from consecutive seeds
    seeds = (seed + apart * number for number in range(1, draws + 1))
    found = (redraw(workload, replica, seed=each, count=length) for each in seeds)
    drawn = [other for other in found if other is not None]
    if not drawn:
        return None
    others: list[Record | ServedRequests] = []
    for other in drawn:
        if len(others) == FEWEST_DRAWS and time_left() <= 0.0:
            note_cut("draws")
            break
        others.append(serve(other))
    scale = length / count
    latencies = [
        _of_latency([getattr(run, name) for run in (served, *others)], length, count)
        for name in ("ttft", "tpot", "end_to_end")
    ]
    of_tokens = [percentiles(*run.gaps).values if run.gaps[0].size else (1.0,) * len(NAMES) for run in others]
    gaps = np.var(np.log(of_tokens), axis=0, ddof=1)
    rates = float(np.var(np.log([_rate(run, length) for run in (served, *others)]), ddof=1))
    of_rate = np.array([_of_rate(workload, served, rates * scale)])
    return both * np.concatenate([*latencies[:2], STUDENT * np.sqrt(gaps * scale), latencies[2], of_rate])


def _memory(served: Record | ServedRequests) -> int:
    """How many requests a draw needs: some times as many as are in the system, or as go through much the same."""
    alike = max(_num_alike(served.ttft), _num_alike(served.end_to_end))
    return int(min(1e9, max(RESIDENCES * in_system(served), MEMORIES * alike)))


def in_system(served: Record | ServedRequests) -> float:
    """Requests that are there at one time, on average."""
    return float(served.end_to_end.sum()) / max(float(np.ptp(served.sent_at)), 1e-9)


def _num_alike(values: Array) -> float:
    """By which factor the variance of a mean is larger than of independent values, from the means of ten batches."""
    batches = 10
    size = values.size // batches
    if size < 2 or not values.any():
        return 1.0
    means = values[: size * batches].reshape(batches, size).mean(axis=1)
    return float(size * means.var(ddof=1) / max(values.var(), 1e-30))


def _of_latency(values: list[Array], length: int, count: int) -> Array:
    """Half widths for a run of ``count`` requests: the first of the runs, of which the others have ``length``."""
    together = np.concatenate(values)
    if not all(each.size for each in values):
        return np.zeros(len(NAMES))
    variances = np.var(np.log([percentiles(each[:length]).values for each in values]), axis=0, ddof=1)
    short, whole = _if_independent(together, length), _if_independent(together, count)
    factors = (variances + LEAST) / (short**2 + LEAST)
    # What independent requests would have is known, not read off five draws, and is the least there can be.
    return np.asarray(np.maximum(EIGHTY, STUDENT * np.sqrt(factors)) * whole)


def _rate(served: Record | ServedRequests, length: int) -> float:
    duration = float(served.last_token[:length].max() - served.sent_at.min())
    return float(served.num_output[:length].sum()) / duration


def _if_independent(values: Array, count: int) -> Array:
    """Standard deviations (of logarithms) of mean and percentiles of ``count`` independent values."""
    mean = float(values.std() / values.mean()) / sqrt(count)
    return np.array([mean, *(chance_of(values, fraction, count) / EIGHTY for fraction in FRACTIONS)])


def _of_rate(workload: Workload, served: Record | ServedRequests, variance: float) -> float:
    """Tokens per second are what was sent per second, where requests come at a rate."""
    if workload.rate is None:
        return STUDENT * sqrt(variance)
    gaps = np.diff(np.sort(served.sent_at), prepend=0.0)
    off = served.num_output / served.num_output.mean() - gaps / max(float(gaps.mean()), 1e-30)
    return EIGHTY * float(off.std()) / sqrt(off.size)
