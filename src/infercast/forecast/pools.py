"""What the replicas of a pool did in a simulated run, and what happened between two pools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.forecast.explain.phases import Phase, summarise_phases
from infercast.forecast.latency import Percentiles, percentiles
from infercast.forecast.system import DECODE, Run, ServingPool, System, busiest
from infercast.forecast.tiers import TierRun, tier_run
from infercast.serve import Record, Workload
from infercast.serve.fleet.served import Served
from infercast.serve.fleet.two_pools import Handover
from infercast.shown import Shown


class Level(NamedTuple):
    """A quantity over the time in which steps ran."""

    mean: float
    peak: float


class EngineLoad(NamedTuple):
    """What one replica of a pool did."""

    requests: int
    busy: float
    """Share of the run in which a step was under way."""
    running: float
    """Sequences on average, while steps ran."""
    kv_peak: float
    prefix_hit_rate: float
    """Share of the prompt tokens it was sent that were in its cache."""
    num_preemptions: int


@dataclass(frozen=True, slots=True, repr=False)
class PoolRun(Shown):
    """What the replicas of one pool did."""

    pool: ServingPool
    records: tuple[Record, ...]
    """Of each replica."""
    phases: tuple[Phase, ...]
    """Of the replica that took most steps."""
    engines: tuple[EngineLoad, ...]
    running: Level
    """Sequences on all replicas together, as the next ..."""
    waiting: Level
    kv_usage: Level
    """... and of the fullest replica."""
    prefix_hit_rate: float
    """Share of the prompt tokens that were in a cache."""
    num_preemptions: int
    tier: TierRun | None = None
    """What the tier of its KV cache in the host's memory did, if it has one."""

    def _words(self) -> str:
        return f"{self.role}, {len(self.records)} x {self.deployment!r}"

    @property
    def tier_hit_rate(self) -> float | None:
        """Share of the prompt tokens that came from that tier."""
        return None if self.tier is None else self.tier.hit_rate

    @property
    def deployment(self) -> Deployment:
        """What was put where."""
        return self.pool.deployment

    @property
    def role(self) -> str:
        """``both``, ``prefill`` or ``decode``."""
        return self.pool.role


class LinkRun(NamedTuple):
    """What happened between a prefill pool and a decode pool: the parts of the time to first token."""

    name: str
    use: float
    """Share of the run in which the busiest sender's link carried something."""
    prompt: Percentiles
    """From sending a request to the end of its prompt on the prefill pool."""
    wait: Percentiles
    """Until the link is free."""
    transfer: Percentiles
    """On the link."""
    first_step: Percentiles
    """From the arrival of keys and values to the first token."""
    handover: Handover


def pool_run(pool: ServingPool, records: tuple[Record, ...], workload: Workload, duration: float) -> PoolRun:
    """Sum up what the replicas of a pool did in a run of ``duration`` seconds."""
    seconds = [_step_seconds(record) for record in records]
    worked = [(record, busy) for record, busy in zip(records, seconds, strict=True) if busy]

    def together(name: str, combine: Callable[[Iterable[float]], float] = sum) -> Level:
        gauges = [(getattr(record, name), busy) for record, busy in worked]
        return Level(combine(gauge.area / busy for gauge, busy in gauges), combine(gauge.peak for gauge, _ in gauges))

    num_input = sum(request.num_input for request in workload.requests)
    return PoolRun(
        pool=pool,
        records=records,
        phases=summarise_phases(pool.deployment, busiest(records), pool.timer, takes_in=pool.role == DECODE),
        engines=_engine_loads(records, seconds, workload, duration),
        running=together("running"),
        waiting=together("waiting"),
        kv_usage=together("kv_usage", max),
        prefix_hit_rate=float(sum(record.num_cached.sum() for record in records)) / num_input,
        num_preemptions=sum(record.num_preemptions for record in records),
        tier=tier_run(pool.deployment, records, num_input, duration),
    )


def link_run(system: System, run: Run, workload: Workload, duration: float) -> LinkRun | None:
    """Sum up what happened between two pools; None for one."""
    done, clients = run.handover, run.clients
    if done is None or system.link is None or system.wire is None:
        return None
    carried = np.bincount(Served(done.prefill).engine, system.sequence_sizes(workload))
    return LinkRun(
        name=system.link,
        use=float(carried.max()) / system.wire.sending / duration,
        prompt=percentiles(done.ready - clients.sent_at),
        wait=percentiles(done.began - done.ready),
        transfer=percentiles(done.received - done.began),
        first_step=percentiles(clients.first_token - done.received),
        handover=done,
    )


def _step_seconds(record: Record) -> float:
    """Seconds in which steps ran."""
    return sum(phase.seconds for phase in record.phases.values())


def _engine_loads(
    records: Sequence[Record], seconds: Sequence[float], workload: Workload, duration: float
) -> tuple[EngineLoad, ...]:
    """Each replica's part of the run."""
    inputs = np.array([request.num_input for request in workload.requests])
    loads = []
    for record, busy in zip(records, seconds, strict=True):
        served = ~np.isnan(record.last_token)
        prompts = int(inputs[served].sum())
        loads.append(
            EngineLoad(
                requests=int(served.sum()),
                busy=min(1.0, busy / (record.span or duration)),
                running=record.running.area / busy if busy else 0.0,
                kv_peak=record.kv_usage.peak,
                prefix_hit_rate=float(record.num_cached.sum()) / prompts if prompts else 0.0,
                num_preemptions=record.num_preemptions,
            )
        )
    return tuple(loads)
