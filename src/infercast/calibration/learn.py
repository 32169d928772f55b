"""From measured results to a calibration: results replayed with other factors, and the most likely factors of all.

Logarithms of results are those of the simulation with the right factors, but for what runs differ by, what a simulation
gets wrong, and luck. Before anything is seen, factors are 1, as wide as intervals. The most likely point is found by
linearising (Gauss and Newton), its uncertainty by the curvature there (Laplace).

A running engine is watched by two snapshots of its metrics: the load between them, and what deviates from its forecast.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import cosh, exp, inf, log, sinh, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast import __version__
from infercast.bundled import read_data
from infercast.calibration.readers import EDGE, Snapshot, parse_metrics, read_results, read_snapshot
from infercast.calibration.result import QUANTITIES, RATE, Asked, Lengths, Result
from infercast.engines.base import FAMILIES, Deployment
from infercast.errors import InputError, require
from infercast.forecast.calibration import TITLES, Calibration, Fingerprint, Learned, Pair, Source, with_acceptance
from infercast.forecast.intervals import slowed
from infercast.forecast.system import Run, System, busiest, system_of
from infercast.forecast.uncertainty import EIGHTY, Uncertainty, chance_in, luck_of, results_of, uncertainty_of
from infercast.serve.record import ServedRequests
from infercast.serve.workload.api_server import ServerCosts

Array = npt.NDArray[Any]

PATH_SCALE = 0.002
"""Seconds that `Point.path` counts in. Around 0 it is proportional to seconds, further out to their logarithm: API
servers and networks take a few milliseconds mostly, and now and then a hundred."""
STEPS = np.array([0.1, 0.05, 0.05, 0.5])
CENTRES, TAILS = ("p50", "mean"), ("p95", "p90", "p99")
Tell = Callable[[str], None]

FEWEST = 20  # Requests that make a load
CHANGES = {
    "host": "the CPU is slower than assumed: a faster host, fewer API servers on its cores, or --host for the forecast",
    "prefill": "steps with prompts take longer on the GPU: look at its clock, power limit and attention backend",
    "decode": "decode steps take longer on the GPU: look at its clock, its power limit and CUDA graphs",
}


class Point(NamedTuple):
    """What is looked for: three logarithms, and a number that stands for seconds."""

    host: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    path: float = 0.0

    @property
    def path_seconds(self) -> float:
        return PATH_SCALE * sinh(self.path)

    @property
    def seconds_a_unit(self) -> float:
        return PATH_SCALE * cosh(self.path)


class Replay:
    def __init__(self, system: System, result: Result) -> None:
        """``system`` is the deployment, at the state that the run found it in."""
        self.result = result
        self._system = _without_server(system) if result.server_side else system
        self.chosen = chosen_quantities(result)
        self.names = [QUANTITIES[index] for index in self.chosen]
        self.measured = np.log([result.seen[name] for name in self.names])
        run = self._run(Point())
        self.estimated = np.log(results_of(run.clients)[self.chosen])
        if not np.isfinite(self.estimated).all():
            absent = ", ".join(np.array(self.names)[~np.isfinite(self.estimated)])
            raise InputError(f"{result.file} has {absent}, which its requests do not have here: answers of one token")
        self.chance = self._chance(run)[self.chosen] / EIGHTY  # What luck does to each, as a standard deviation

    def at(self, point: Point) -> Array:
        return np.asarray(np.log(results_of(self.served(point))[self.chosen]))

    def served(self, point: Point) -> ServedRequests:
        return self._run(point).clients

    def slopes(self, point: Point, values: Array) -> Array:
        """By how much each quantity (rows) moves with each factor (columns); ``values``: what it is at the point."""
        columns = []
        for index, step in enumerate(STEPS):
            moved = Point(*(value + step * (index == place) for place, value in enumerate(point)))
            columns.append((self.at(moved) - values) / step)
        return np.stack(columns, axis=1)

    def unknown(self) -> Uncertainty:
        return uncertainty_of(self._system.pools[0].deployment, busiest(self._run(Point()).records[0]))

    def _run(self, point: Point) -> Run:
        pool = self._system.pools[0]
        path = 0.0 if self.result.server_side else point.path_seconds
        factors = {"prompts": exp(point.prefill), "decodes": exp(point.decode), "host": exp(point.host)}
        replica = slowed(pool.replica, **factors, path=path)
        return self._system._replace(pools=(pool.of(replica),)).serve(self.result.workload)

    def _chance(self, run: Run) -> Array:
        pool, workload = self._system.pools[0], self.result.workload
        if workload.drawn is not None:
            luck = luck_of(workload, run.clients, pool.replica, lambda other: self._system.serve(other).clients)
            if luck is not None:
                return np.asarray(luck)
        return chance_in(run.clients)


def _without_server(system: System) -> System:
    """The same by the engine's own clock, which starts when its server has read the request."""
    pool = system.pools[0]
    if not pool.deployment.over_http:
        return system
    host, replica = pool.deployment.host, pool.replica
    replica = replace(
        replica, request_path_seconds=replica.request_path_seconds - host.server_path,
        request_token_seconds=replica.request_token_seconds - host.server_token, server=ServerCosts(),
    )  # fmt: skip
    return system._replace(pools=(pool.of(replica),))


def chosen_quantities(result: Result) -> list[int]:
    """What a result is compared by; tails of times of tokens are not, since they hang on which prompts came between."""
    steps = next((each for each in ("tpot", "itl", "e2e") if any(name.startswith(each) for name in result.seen)), "")
    groups = [("ttft", CENTRES[:1]), ("ttft", CENTRES[1:]), ("ttft", TAILS), (steps, CENTRES)]
    names = []
    for latency, group in groups:
        known = [name for name in group if name == "mean" or not result.means_only]
        names += [name for name in (f"{latency}_{each}" for each in known) if name in result.seen][:1]
    if RATE in result.seen and result.workload.rate is None:
        names.append(RATE)
    if not names:
        raise InputError(f"{result.file} says no latency that can be compared: lengths are known by their means alone")
    return [QUANTITIES.index(name) for name in names]


ALIKE = 0.5  # correlation of the errors of GPU times with prompts and without
WRONG = {
    "ttft": {"mean": 0.05, "p50": 0.05, "p90": 0.1, "p95": 0.1, "p99": 0.15}, "tpot": {"mean": 0.015, "p50": 0.015},
    "itl": {"mean": 0.02, "p50": 0.03}, "e2e": {"mean": 0.02, "p50": 0.02},
}  # fmt: skip
OTHER_LENGTHS = 3.0
"""This factor applies where lengths are known by their means alone: lognormal lengths in place of equal ones move the
mean TTFT of Llama 3.1 8B by -5, 0 and 21 % at 4, 12 and 24 requests/s, and its mean TPOT by 0, 0 and 6."""
OF_A_RUN = np.array([0.02, 0.008, 0.004])
OF_A_RUN_PATH = 0.0005
"""What one run's own factors differ by from another's: three logarithms, and seconds. Like the rest, chosen so that one
run of a measured deployment predicts other rates (benchmarks/accuracy/calibrate.py); little hangs on any of them."""
MOST_MOVE = np.array([0.4, 0.3, 0.3, 1.5])  # the longest step, since slopes hold nearby only


class Solution(NamedTuple):
    point: Point
    covariance: Array
    before: Array
    cost: float = 0.0  # Squares of what it is off by, and of how unlikely it was before, in standard deviations

    @property
    def spreads(self) -> Array:
        return np.asarray(np.sqrt(np.diag(self.covariance)))


def solve(replays: Sequence[Replay], prior: Array) -> Solution:
    weights = np.linalg.inv(prior)
    point = np.zeros(4)
    values = [replay.estimated for replay in replays]
    covariance = prior
    most_rounds = 3
    near = 0.25  # enough is known when a step is shorter than this share of what stays unknown
    for _ in range(most_rounds):
        slopes = [replay.slopes(Point(*point), each) for replay, each in zip(replays, values, strict=True)]
        inverses = [_inverse(replay, slope, Point(*point)) for replay, slope in zip(replays, slopes, strict=True)]
        off = [replay.measured - each for replay, each in zip(replays, values, strict=True)]
        curvature = weights + sum(slope.T @ inverse @ slope for slope, inverse in zip(slopes, inverses, strict=True))
        terms = zip(slopes, inverses, off, strict=True)
        pull = sum(slope.T @ inverse @ each for slope, inverse, each in terms) - weights @ point
        covariance = np.linalg.inv(curvature)
        move = covariance @ pull
        move /= max(1.0, float(np.max(np.abs(move) / MOST_MOVE)))
        if np.all(np.abs(move) < near * np.sqrt(np.diag(covariance))):
            break
        point, values = _advance(replays, point, move, (weights, inverses, off))
    off = [replay.measured - each for replay, each in zip(replays, values, strict=True)]
    missed = sum(float(each @ inverse @ each) for each, inverse in zip(off, inverses, strict=True))
    return Solution(Point(*point.tolist()), covariance, prior, float(point @ weights @ point) + missed)


def _advance(
    replays: Sequence[Replay], point: Array, move: Array, known: tuple[Array, list[Array], list[Array]]
) -> tuple[Array, list[Array]]:
    """The point after a step, halved until it is better than where it began."""
    weights, inverses, off = known

    def cost(at: Array, left: list[Array]) -> float:
        missed = sum(each @ inverse @ each for each, inverse in zip(left, inverses, strict=True))
        return float(at @ weights @ at + missed)

    start = cost(point, off)
    for _ in range(4):
        there = point + move
        values = [replay.at(Point(*there)) for replay in replays]
        left = [replay.measured - each for replay, each in zip(replays, values, strict=True)]
        if cost(there, left) <= start:
            return there, values
        move = move / 2
    return point, [replay.measured - each for replay, each in zip(replays, off, strict=True)]


def _inverse(replay: Replay, slopes: Array, point: Point) -> Array:
    """Of the covariance of what one result is off by with the right factors."""
    own = np.append(OF_A_RUN, OF_A_RUN_PATH / point.seconds_a_unit)
    return np.linalg.inv((slopes * own**2) @ slopes.T + np.diag(_wrong(replay) ** 2 + replay.chance**2))


def _wrong(replay: Replay) -> Array:
    parts = (name.partition("_") for name in replay.names)
    wrong_rate = 0.02  # what a simulation gets wrong, beyond factors, as standard deviations of logarithms
    found = [WRONG[latency][statistic] if latency in WRONG else wrong_rate for latency, _, statistic in parts]
    return np.array(found) * (OTHER_LENGTHS if replay.result.means_only else 1.0)


def prior_of(replays: Sequence[Replay], *, over_http: bool) -> Array:
    """The covariance of what is looked for before anything was seen: intervals as they are without results."""
    about = np.array([replay.unknown()[:3] for replay in replays]).max(axis=0) / EIGHTY
    least_spread = 0.01  # no GPU time is known better than this before it was measured
    prompts, decodes = np.maximum(about[:2], least_spread)
    path_spreads = 0.9, 1.3  # Standard deviation of `Point.path`, for tokens in one program and text over HTTP: assumed
    spreads = np.array([about[2], prompts, decodes, path_spreads[over_http]])
    alike = np.eye(4)
    alike[1, 2] = alike[2, 1] = ALIKE
    return np.asarray(alike * np.outer(spreads, spreads))


def calibrate(
    deployment: Deployment, results: Sequence[Path | str | Result], *, asked: Asked | None = None,
    tell: Tell = lambda _: None,
) -> Calibration:  # fmt: skip
    """What measured ``results`` (files, folders or `Result`) say of a deployment; ``asked`` says what they do not."""
    if deployment.corrections is not None:
        raise InputError("the deployment is calibrated already; calibrate one without")
    found: list[Result] = []
    for each in results:
        found += [each] if isinstance(each, Result) else read_results([Path(each)], asked)
    if not found:
        raise InputError("there is no result to learn from; give at least one file")
    accepted = _mean([each.acceptance_length for each in found])
    if accepted is not None:
        if deployment.drafting is None:
            raise InputError(
                f"the results had {accepted:.2f} tokens a step by speculative decoding; say how with "
                "--speculative-config, or give results without"
            )
        deployment = with_acceptance(deployment, accepted)
    system = system_of(deployment)
    replays = []
    for result in found:
        tell(result.file)
        replays.append(Replay(system, result))
    prior = prior_of(replays, over_http=deployment.over_http)
    tell("all results")
    return _calibration(deployment, replays, solve(replays, prior), _left_out(replays, prior, tell))


def _calibration(
    deployment: Deployment, replays: Sequence[Replay], solution: Solution, left_out: Sequence[tuple[Pair, ...]]
) -> Calibration:
    both, results = zip(replays, left_out, strict=True), [each.result for each in replays]
    sources = tuple(
        _source(replay, _pairs(replay, solution.point), pairs, deployment.model.name) for replay, pairs in both
    )
    return Calibration(
        Fingerprint.of(deployment), **learned_of(solution), results=sources,
        prefix_hit_rate=_mean([each.prefix_hit_rate for each in results]),
        acceptance_length=_mean([each.acceptance_length for each in results]), version=__version__,
        title="these results",
    )  # fmt: skip


def _left_out(replays: Sequence[Replay], prior: Array, tell: Tell) -> list[tuple[Pair, ...]]:
    """Results forecast by the others; of many some are left out, evenly chosen."""
    found: list[tuple[Pair, ...]] = [()] * len(replays)
    if len(replays) > 1:
        most_left_out = 6  # results that are left out in turn, each of which takes as long as all of them
        chosen = np.unique(np.linspace(0, len(replays) - 1, min(len(replays), most_left_out)).round().astype(int))
        for place in chosen.tolist():
            tell(f"without {replays[place].result.file}")
            found[place] = _pairs(replays[place], solve([*replays[:place], *replays[place + 1 :]], prior).point)
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def learned_of(solution: Solution) -> dict[str, Learned]:
    point, spreads = solution.point, solution.spreads
    before = np.sqrt(np.diag(solution.before))
    found = {
        name: Learned(exp(getattr(point, name)), float(spreads[place]), float(before[place]))
        for place, name in enumerate(("host", "prefill", "decode"))
    }
    found["path"] = Learned(
        point.path_seconds, min(float(spreads[3]) * point.seconds_a_unit, 10.0), PATH_SCALE * sinh(before[3])
    )
    return found


def _pairs(replay: Replay, point: Point) -> tuple[Pair, ...]:
    values = np.exp([replay.measured, replay.estimated, replay.at(point)]).T.tolist()
    return tuple(Pair(name, *row) for name, row in zip(replay.names, values, strict=True))


def _source(replay: Replay, pairs: tuple[Pair, ...], left_out: tuple[Pair, ...], model: str) -> Source:
    result = replay.result
    named = (result.model or model).rsplit("/", 1)[-1]
    other = () if named.lower().startswith(model.lower()) else (f"{named}, which it names, is taken to be {model}",)
    return Source(
        file=result.file, sha256=result.sha256, kind=result.kind, load=result.workload.description,
        requests=len(result.workload.requests), pairs=pairs, left_out=left_out,
        assumptions=(*result.assumptions, *other),
    )  # fmt: skip


SAID = {
    "slow_host": ("host time",), "slow_gpu": ("GPU time",), "queue": ("saturated",), "cache": ("prefix hits",),
    "flag": ("--max-", "--gpu-memory", "--enable-prefix"),
}  # Words by which deviations tell causes  # fmt: skip


@dataclass(frozen=True, slots=True)
class Watched:
    seconds: float
    requests: int
    rate: float
    inputs: Lengths
    outputs: Lengths
    gauges: Mapping[str, float]  # running, waiting, kv_usage
    hits: float | None  # share of prompt tokens in the prefix cache while it was watched ...
    hits_before: float | None  # ... and before
    calibration: Calibration
    deviations: tuple[str, ...]

    @property
    def causes(self) -> dict[str, bool]:
        """Whether each kind of cause is among its deviations."""
        return {name: any(each in text for text in self.deviations for each in words) for name, words in SAID.items()}


def fetch(url: str, path: str = "/metrics") -> str:
    """A page of an engine at an address, with or without the path to its metrics or its API."""
    address = url if "://" in url else f"http://{url}"
    if not address.startswith(("http://", "https://")):
        raise InputError(f"{url!r} is no address of a server; give http://HOST:PORT")
    address = address.removesuffix("/").removesuffix("/v1").removesuffix("/metrics") + path
    try:
        with urllib.request.urlopen(address, timeout=10) as reply:
            largest = 64 * 2**20  # Bytes of a page of metrics
            return str(reply.read(largest).decode("utf-8", "replace"))
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "reason", problem)
        raise InputError(f"{address} does not answer: {reason}; is the engine running, with its metrics on?") from None


def as_vllm(values: Snapshot) -> dict[tuple[str, str], float]:
    """SGLang's metrics under vLLM's names, by what both show."""
    shown: dict[str, dict[str, str]] = {}
    for family in FAMILIES:
        rows = read_data(f"engines/{family}/metrics.toml")["names"].items()
        shown[family] = {name: row if isinstance(row, str) else row["value"] for name, row in rows}
    names = {value: name for name, value in reversed(shown["vllm"].items())}
    others = {name: names[value] for name, value in shown["sglang"].items() if value in names}
    found = dict(values)
    for (name, labels), value in values.items():
        part = re.search(r"_(?:bucket|sum|count)$", name)
        stem = name if part is None else name[: part.start()]
        if stem in others:
            suffix = part[0] if part is not None else ""
            total = "_total" if stem.endswith("_total") else ""
            found[f"{others[stem].removesuffix('_total')}{total}{suffix}", labels] = value
    queries = {labels: value for (name, labels), value in found.items() if name == "vllm:prompt_tokens_total"}
    for labels, value in queries.items():
        found.setdefault(("vllm:prefix_cache_queries_total", labels), value)
    return found


def between(first: Snapshot, second: Snapshot) -> Snapshot:
    """What was counted from one snapshot to the other, and other values as they are in the second."""
    counted = re.compile(r"_(?:total|bucket|sum|count)$")
    changes = {key: value - first.get(key, 0.0) if counted.search(key[0]) else value for key, value in second.items()}
    return {key: max(0.0, change) for key, change in changes.items()}


def total(values: Snapshot, name: str) -> float:
    return sum(value for (each, _), value in values.items() if each == name)


def _cumulated(values: Snapshot, name: str) -> dict[float, float]:
    by_edge: dict[float, float] = {}
    for (each, labels), value in values.items():
        edge = EDGE.search(labels) if each == f"{name}_bucket" else None
        if edge is not None:
            by_edge[float(edge[1])] = by_edge.get(float(edge[1]), 0.0) + value
    return by_edge


def lengths_of(values: Snapshot, name: str) -> Lengths:
    """Mean and spread of a histogram of tokens; within a bucket, values are taken to be in its middle."""
    count = total(values, f"{name}_count")
    mean = max(1.0, total(values, f"{name}_sum") / count)
    below, before, rows = 0.0, 0.0, []
    for end, cumulated in sorted(_cumulated(values, name).items()):
        upper = end if end < float("inf") else 2 * below
        if cumulated > before and upper > 0:
            lower = max(below, upper / 4)  # the first bucket begins at 0, which no prompt has
            rows.append((cumulated - before, log(sqrt(lower * upper)), log(upper / lower)))
        below, before = upper, cumulated
    if len(rows) < 2:
        return Lengths(mean)
    number = sum(weight for weight, _, _ in rows)
    middle = sum(weight * at for weight, at, _ in rows) / number
    within = sum(weight * width * width for weight, _, width in rows) / number / 12
    variance = max(0.0, sum(weight * (at - middle) ** 2 for weight, at, _ in rows) / number - within)
    return Lengths(mean, mean * sqrt(exp(variance) - 1))


def judge(deployment: Deployment, first: str, second: str, seconds: float, tell: Callable[[str], None]) -> Watched:
    before, after = as_vllm(parse_metrics(first)), as_vllm(parse_metrics(second))
    clocks = [total(each, "infercast:clock_seconds") for each in (before, after)]  # An emulated engine may run faster
    seconds = clocks[1] - clocks[0] if clocks[0] else seconds
    values = between(before, after)
    count = round(total(values, "vllm:request_prompt_tokens_count"))
    if count < FEWEST:
        raise InputError(
            f"{count} requests ended in {seconds:.0f} s, too few for a forecast; watch longer with --seconds, or send "
            f"at least {FEWEST}"
        )
    inputs, outputs = (lengths_of(values, f"vllm:request_{kind}_tokens") for kind in ("prompt", "generation"))
    queries, hits = (total(values, f"vllm:prefix_cache_{each}_total") for each in ("queries", "hits"))
    earlier = [total(before, f"vllm:prefix_cache_{each}_total") for each in ("queries", "hits")]
    share = hits / queries if queries else None
    share_before = earlier[1] / earlier[0] if earlier[0] else None
    names = {"running": "num_requests_running", "waiting": "num_requests_waiting", "kv_usage": "kv_cache_usage_perc"}
    gauges, earlier_gauges = (
        {name: total(each, f"vllm:{metric}") for name, metric in names.items()} for each in (after, before)
    )
    more = sum(gauges[each] - earlier_gauges[each] for each in ("running", "waiting"))
    started = earlier_gauges["running"] + earlier_gauges["waiting"]
    rate, arriving = count / seconds, (count + max(0.0, more)) / seconds
    asked = Asked(rate=arriving, input_len=str(inputs), output_len=str(outputs))
    result = read_snapshot(Path("metrics"), values, asked)
    accepted = result.acceptance_length
    if accepted is not None and deployment.drafting is not None:
        deployment = with_acceptance(deployment, accepted)
    tell("metrics")
    system = system_of(deployment)
    replays = [Replay(system, result)]
    queued = total(values, "vllm:request_queue_time_seconds_sum")
    queued /= total(values, "vllm:time_to_first_token_seconds_sum")
    gaps = _cumulated(values, "vllm:inter_token_latency_seconds")
    traces = Traces(
        queued, {edge: number / max(1.0, gaps[inf]) for edge, number in gaps.items()}, (gauges, earlier_gauges)
    )
    solution, told = _name_cause(system, replays, traces)
    if share is not None and share_before is not None and abs(share - share_before) > 0.1:
        change = f"prefix hits went from {share_before:.0%} to {share:.0%} of prompt tokens"
        told = [f"{change}: look at what clients send first, at routing, and at evictions", *told]
    grows = gauges["waiting"] > 0 and more > max(0.05 * count, 0.5 * started)
    if gauges["waiting"] > max(gauges["running"], earlier_gauges["waiting"]) or grows:
        # Latencies of a queue that grows are no measure of steps.
        grown = f"{gauges['waiting']:.0f} requests wait where {earlier_gauges['waiting']:.0f} did"
        told = [each for each in told if each.startswith("at most")] + [
            f"{grown}: {arriving:.3g} come a second and {rate:.3g} are served, so the engine is saturated and "
            "latencies grow with time"
        ]
    told = [*_other_flags(system, after), *told]
    learned = _calibration(deployment, replays, solution, [()])
    return Watched(seconds, count, rate, inputs, outputs, gauges, share, share_before, learned, tuple(told))


UNLIKELY = 4.0  # A fault has to explain so many more squares of standard deviations than what is usually uncertain


class Traces(NamedTuple):
    """What metrics show of a load besides means."""

    queued: float  # The share of TTFT in the engine's queue
    gaps: Mapping[float, float]  # The share of times between tokens up to each of these seconds
    gauges: Sequence[Mapping[str, float]]  # At the end and at the beginning

    @property
    def seats(self) -> int:
        running = {round(each["running"]) for each in self.gauges if each["waiting"] >= 1}
        most = max(round(each["running"]) for each in self.gauges)
        much, full = 0.2, 0.9  # Of TTFT, and of the KV cache, which keeps requests waiting itself
        is_odd = self.queued > much and all(each["kv_usage"] < full for each in self.gauges)
        nearly = 0.9  # A request may have ended a moment ago
        return most if is_odd and running and min(running) >= nearly * most else 0

    def cost(self, replay: Replay, point: Point) -> float:
        """Squares of what shares of times between tokens are off by: a slow host gives all steps one length."""
        gaps, counts = replay.served(point).gaps
        if not counts.size:
            return 0.0
        off = 0.05  # What a share is usually off by
        return sum(
            ((float(counts[gaps <= edge].sum() / counts.sum()) - share) / off) ** 2 for edge, share in self.gaps.items()
        )


def _name_cause(system: System, replays: Sequence[Replay], traces: Traces) -> tuple[Solution, list[str]]:
    """The factors by the likeliest cause: what is always uncertain, one fault, or fewer seats than were assumed."""
    prior = prior_of(replays, over_http=system.pools[0].deployment.over_http)

    def judged(prior: Array) -> Solution:
        found = solve(replays, prior)
        return found._replace(cost=found.cost + sum(traces.cost(each, found.point) for each in replays))

    best, names = judged(prior), set[str]()
    usual, noted = best.cost, 0.13  # A factor this far from 1 (as a logarithm) is said, if it is known better
    suspects = (0,), (1, 2), (1,), (2,)  # Places in `Point` of what one fault slows
    for places in suspects if usual > UNLIKELY else ():
        found = judged(_suspecting(prior, places))
        if found.cost + UNLIKELY < min(usual, best.cost + UNLIKELY * bool(names)):
            best, names = found, {Point._fields[place] for place in places}
    pool, seats = system.pools[0], traces.seats
    policy: Any = pool.replica.policy
    if 0 < seats < policy.max_num_seqs:
        key = "max_running_requests" if hasattr(policy, "max_running_requests") else "max_num_seqs"
        fewer = pool.of(replace(pool.replica, policy=replace(policy, **{key: seats})))
        cost = solve([Replay(system._replace(pools=(fewer,)), each.result) for each in replays], prior).cost
        waits = all(each["waiting"] >= 1 and round(each["running"]) == seats for each in traces.gauges)
        if waits or cost + UNLIKELY < best.cost:
            return best, [
                f"at most {seats} requests run and others wait, although the KV cache is not full: "
                f"--{key.replace('_', '-')} is {seats}, not {policy.max_num_seqs}"
            ]
    told = []
    for name, factor in learned_of(best).items():
        is_meant = name in names if names else factor.is_learned and abs(log(factor.value)) > 1.5 * factor.spread
        if name != "path" and is_meant and abs(log(factor.value)) > noted:
            side = "above" if factor.value > 1 else "below"
            told.append(f"{TITLES[name]} is {abs(factor.value - 1):.0%} {side} the forecast: {CHANGES[name]}")
    return best, told


def _suspecting(prior: Array, places: Sequence[int]) -> Array:
    """The covariance where these factors may be far from 1, and move together."""
    before = np.sqrt(np.diag(prior))
    alike, spreads = prior / np.outer(before, before), before.copy()
    spreads[[*places]] = 0.6  # Of the logarithm of a fault's factor: it may be any
    for one in places:
        for other in places:
            alike[one, other] = 1.0 if one == other else 0.95
    return np.asarray(alike * np.outer(spreads, spreads))


def _other_flags(system: System, values: Snapshot) -> list[str]:
    labels = next((text for name, text in values if name == "vllm:cache_config_info"), "")
    shown = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    replica, found = system.pools[0].replica, []
    blocks = int(shown["num_gpu_blocks"]) if shown.get("num_gpu_blocks", "").isdigit() else replica.num_blocks
    little = 0.05  # By how much blocks of equal settings differ between forecasts and engines
    if abs(log(max(1, blocks) / replica.num_blocks)) > little:
        found.append(
            f"the KV cache has {blocks:,} blocks where {replica.num_blocks:,} are forecast: --gpu-memory-utilization "
            f"({shown.get('gpu_memory_utilization', 'unknown')} there), --kv-cache-dtype or another process on the GPU"
        )
    if shown.get("enable_prefix_caching", str(replica.prefix_caching)) != str(replica.prefix_caching):
        state = "off" if replica.prefix_caching else "on"
        found.append(f"prefix caching is {state} there: --enable-prefix-caching is another than in the forecast")
    return found


def watch(
    deployment: Deployment, url: str, seconds: float = 30.0, tell: Callable[[str], None] = lambda _: None
) -> Watched:
    """Read the metrics of a running engine for a while, and say what deviates from the forecast at this load."""
    require(1 <= seconds <= 86400, "seconds", "be from 1 to 86,400", seconds)
    began, first = time.monotonic(), fetch(url)
    tell(f"{seconds:.0f} s of {url}")
    time.sleep(seconds)
    second = fetch(url)
    return judge(deployment, first, second, time.monotonic() - began, tell)
