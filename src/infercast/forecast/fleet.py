"""Replicas of several kinds, from words such as ``2xh100-sxm:tp=2 + 4xl40s``; how replicas start, when they fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, product
from math import ceil, inf
from operator import mul
from typing import Any

import numpy as np

from infercast.engines.base import Deployment
from infercast.errors import InputError, require
from infercast.forecast.deploy import call_of, deploy_changed, parse_changes
from infercast.forecast.run import SimulatedRun
from infercast.forecast.slo import Slo, keeps
from infercast.forecast.steady import full_rate
from infercast.forecast.system import System, fleet_of
from infercast.forecast.uncertainty import longest_taken
from infercast.lazy_classes import NamedTuple, replace
from infercast.serve import Workload
from infercast.serve.fleet.pool import Outages, same_engines
from infercast.serve.workload.synthetic import extended
from infercast.units import GIGA

Group = tuple[str, partial[Deployment], range]
"""A kind of replicas as it was written, the call that deploys one, and how many there may be."""


def parse_fleet(text: str, deploy_on: Callable[[str], partial[Deployment]]) -> list[Group]:
    """``deploy_on``: the call of `deploy` with a GPU and what is said for all groups."""
    found: list[Group] = []
    short = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "q": "quantization"}
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(?:(\d+)(?:-(\d+))?\s*x\s*)?(([^:=,\s]+)\s*(?::(.+))?)", part)
        if match is None:
            raise InputError(
                f"fleet {text!r} must be groups of replicas as COUNTxGPU:OPTION=VALUE,... with + between them, such as "
                "2xh100-sxm:tp=2 + 4xl40s:quantization=fp8"
            )
        name, asked = match[3].strip(), deploy_on(match[4])
        least, most = int(match[1] or 1), int(match[2] or match[1] or 1)
        require(most >= max(least, 1), "fleet", "have a replica of each group, or numbers such as 0-4x", repr(part))
        if match[5] is not None:
            words = (each.strip().partition("=") for each in match[5].split(","))
            try:
                changes = parse_changes(",".join(f"{short.get(one, one)}{sign}{value}" for one, sign, value in words))
            except InputError as problem:
                raise InputError(f"fleet: {str(problem).removeprefix('what-if ')}") from None
            if changes.gpu is not None or changes.router is not None:
                raise InputError(f"fleet group {name!r} takes options of its replicas; the GPU is before the colon")
            asked = call_of(deploy_changed(asked, changes))
        same = sum(each.partition(" #")[0] == name for each, *_ in found)
        found.append((f"{name} #{same + 1}" if same else name, asked, range(least, most + 1)))
    return found


def deployed(
    groups: Sequence[Group], router: str | None, workload: Workload, price_of: Callable[[Deployment], float | None],
    keeps: Callable[[System], bool] | None,
) -> System:  # fmt: skip
    """The cheapest of the mixes that ``keeps`` accepts, in the order of prices: the first is never a wrong one.

    Mixes that cannot serve the rate at all are not tried. Without numbers to choose from there is one mix.
    """
    calls = [(name, call(), counts) for name, call, counts in groups]

    def mix_of(numbers: Sequence[int]) -> tuple[System, list[int]]:
        kept = [place for place, number in enumerate(numbers) if number]
        found = [(f"{numbers[place]}x{calls[place][0]}", calls[place][1], numbers[place]) for place in kept]
        return fleet_of(found, router), kept

    if all(len(counts) == 1 for *_, counts in calls):
        return mix_of([counts[0] for *_, counts in calls])[0]
    prices = [price for _, deployment, _ in calls if (price := price_of(deployment)) is not None]
    if keeps is None or len(prices) < len(calls):
        raise InputError("numbers of replicas to choose from, as in 0-4xl40s, need an SLO and the prices of all GPUs")
    rates = [full_rate(deployment.replica(), workload) for _, deployment, _ in calls]
    mixes = sorted(
        (sum(map(mul, numbers, prices)), numbers) for numbers in product(*(counts for *_, counts in calls))
        if any(numbers) and sum(map(mul, numbers, rates)) >= (workload.rate or 0.0)
    )  # fmt: skip
    for _, numbers in mixes:
        system, kept = mix_of(numbers)
        if len(kept) > 1:
            system = system._replace(weights=tuple(rates[place] / max(rates[each] for each in kept) for place in kept))
        if keeps(system):
            return system
    raise InputError(f"none of {len(mixes)} mixes that can serve the rate keeps the SLO; allow more replicas")


LOAD_BANDWIDTH = 2.0 * GIGA  # bytes of weights a second that a replica reads: a local disk or a good network volume
OTHER_SECONDS = 45.0
"""The container and Python (30 s), compiled code from its cache and the memory profile (15 s), by the same logs."""


class StartUp(NamedTuple):
    """Seconds of a replica's start, by what they are spent on."""

    weights: float
    graphs: float
    other: float

    @property
    def seconds(self) -> float:
        return self.weights + self.graphs + self.other

    @property
    def sentence(self) -> str:
        return (
            f"{self.seconds:,.0f} s: weights {self.weights:,.0f} s, CUDA graphs {self.graphs:,.0f} s, "
            f"all else {self.other:,.0f} s"
        )


def start_up(
    deployment: Deployment, *, bandwidth: float = LOAD_BANDWIDTH, other: float = OTHER_SECONDS, gpus: int | None = None
) -> StartUp:
    """The weights of ``gpus``, all by default, at ``bandwidth`` bytes a second, the graphs, and ``other`` seconds."""
    require(bandwidth > 0, "load bandwidth", "be above 0 bytes/s", bandwidth)
    require(0 <= other < 1e6, "other start-up seconds", "be at least 0", other)
    weights = deployment.memory.weights * (gpus or deployment.layout.gpus)
    capture = 0.35  # for each size of CUDA graph; logs of vLLM 0.8 to 0.11 that users published have 0.25 to 0.55
    return StartUp(weights / bandwidth, capture * len(deployment.graphs.sizes), other)


def parse_outages(text: str, usual: float, *, seed: int = 0, replicas: float = inf) -> Outages:
    """From ``0@60s+300s,1@20min`` (replica, time, duration) or ``mtbf=2h+5min``; ``usual`` is how long one lasts."""
    from infercast.serve.workload.patience import parse_seconds  # noqa: PLC0415 - few runs have failures

    found = [re.fullmatch(r"\s*(mtbf=|\d+@)([^+]+?)(?:\+(.+))?", part) for part in text.split(",")]
    parts = [(*each[1].strip("=@").split(), parse_seconds("fail", each[2]), each[3]) for each in found if each]
    if len(parts) < len(found) or ("mtbf" in {each[0] for each in parts} and len(parts) > 1):
        raise InputError(
            f"fail {text!r} must be REPLICA@TIME, such as 1@60s, 1@60s+300s for an outage of 300 seconds, several of "
            "these with commas, or mtbf=2h for failures at random"
        )
    timed = [(name, time, usual if lasts is None else parse_seconds("fail", lasts)) for name, time, lasts in parts]
    (name, first, seconds), *_ = timed
    if name == "mtbf":
        return Outages(seconds, mtbf=first, seed=seed)
    named = sorted((int(name), time, lasts) for name, time, lasts in timed)
    require(named[-1][0] < replicas, "fail", f"name replicas 0 to {replicas - 1:g}", text)
    for (number, begin, lasts), (other, later, _) in pairwise(named):
        if number == other and begin + lasts > later:
            raise InputError(f"fail {text!r}: replica {number} is down until {begin + lasts:g} s; say a later time")
    return Outages(usual, tuple(named))


def with_outages(system: System, text: str | None, seed: int = 0) -> System:
    """The same with replicas that fail, if any do."""
    if text is None:
        return system
    pool, deployment, two = system.pools[0], system.pools[0].deployment, system.wire is not None
    if two or pool.engines.lockstep or any(each.replica.offload is not None for each in system.pools):
        what = "of two pools" if two else "that share experts" if pool.engines.lockstep else "with KV offloading"
        raise InputError(f"failures of replicas {what} are not modelled; use independent replicas, or leave out fail")
    usual = start_up(deployment, gpus=deployment.layout.replica_gpus).seconds
    outages = parse_outages(text, usual, seed=seed, replicas=len(system.engines.replicas))
    return system.failing(outages)


def with_spare(system: System) -> System:
    """The same with one more replica, in a fleet of the last kind."""
    *others, pool = system.pools
    engines, count = pool.engines, len(pool.engines.replicas)
    servers = engines.servers + (engines.servers == count)
    engines = replace(engines, replicas=same_engines(pool.replica, count + 1), servers=servers)
    return system._replace(pools=(*others, pool._replace(engines=engines)))


def covering(system: System, workload: Workload) -> Workload:
    """A workload of open length for as long as outages that are named and what they leave behind, or some at random."""
    pool, rate = system.engines, workload.rate
    if (outages := pool.outages) is None or not workload.open_ended:
        return workload
    if rate is None:
        raise InputError("clients in a closed loop with replicas that fail need a number of requests: --num-requests")
    longest_run, failures, recovery = 20_000, 5, 60.0  # requests, failures of a run, and seconds
    if outages.mtbf is not None:
        count = min(longest_run, ceil(rate * (failures * outages.mtbf / len(pool.replicas) + outages.seconds)))
    else:
        count = ceil(rate * max(begin + seconds + max(seconds, recovery) for _, begin, seconds in outages.named))
        if count > 5 * longest_run:
            raise InputError(f"fail takes {count:,} requests until the last replica is back; say an earlier time")
    longer = extended(workload, max(count, len(workload.requests)), longest_taken(workload, system.smallest))
    return replace(longer, open_ended=False)


class OutageRun(NamedTuple):
    """What failures of replicas did to a run; attainments are of an SLO, None without one."""

    outages: tuple[dict[str, Any], ...]  # Each with its replica, seconds, and what it cost
    retried: int  # Requests that were sent again
    tokens: int  # Computed in vain ...
    tokens_share: float  # ... as a share of all computed.
    down_share: float  # Of the time of all replicas
    meanwhile: float | None  # Attainment of requests that were in the system while a replica was down ...
    otherwise: float | None  # ... and of the others
    overall: float | None = None
    with_spare: float | None = None  # With one more replica ...
    spare_holds: bool | None = None  # ... and whether the SLO then holds.


def outages_of(run: SimulatedRun, slo: Slo | None) -> OutageRun | None:
    """Of a run with replicas that may fail; None of any other."""
    if run.pools[0].pool.engines.outages is None:
        return None
    named = [(number, each) for number, record in enumerate(run.records) for each in record.outages]
    clients, start = run.clients, float(run.clients.sent_at.min())
    end, meanwhile, down = start + run.duration, np.zeros(clients.sent_at.size, dtype=bool), 0.0
    for _, each in named:
        meanwhile |= (clients.last_token > each.begin) & (clients.sent_at < each.end)
        down += max(0.0, min(each.end, end) - max(each.begin, start))
    retried, tokens = sum(each.retried for _, each in named), sum(each.wasted for _, each in named)
    computed = sum(phase.tokens for record in run.records for phase in record.phases.values())
    kept = None if slo is None else keeps(clients, slo)
    of = [None if kept is None or not which.any() else float(kept[which].mean())
          for which in (meanwhile, ~meanwhile, meanwhile | True)]  # fmt: skip
    rows = ({"replica": number, "begin_s": each.begin, "end_s": each.end, "retried": each.retried,
             "tokens": each.wasted} for number, each in sorted(named, key=lambda pair: pair[1].begin))  # fmt: skip
    down_share = down / run.duration / len(run.records)
    return OutageRun(tuple(rows), retried, tokens, tokens / max(computed, 1), down_share, of[0], of[1], of[2])
