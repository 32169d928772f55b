"""What is simulated: replicas of one deployment behind a load balancer, or a prefill pool and a decode pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np

from infercast.engines.base import Deployment, shared_seconds
from infercast.engines.timer import KernelTimer
from infercast.errors import InputError, require
from infercast.hardware.load import networks
from infercast.lazy_classes import NamedTuple
from infercast.predict.families.collective import NETWORK_EFFICIENCY
from infercast.serve import Record, Replica, Workload, simulate
from infercast.serve.fleet.pool import MOST_ENGINES, Outages, Pool, same_engines, simulate_fleet
from infercast.serve.fleet.two_pools import Handover, Link, simulate_disaggregated
from infercast.serve.loop import Progress, StepObserver
from infercast.serve.record import ServedRequests
from infercast.serve.simulation import GoOn
from infercast.serve.step import StepTimer
from infercast.serve.workload.synthetic import capped

BOTH, PREFILL, DECODE = "both", "prefill", "decode"
PROXY_ROUTER = "least_loaded"  # How a proxy before two pools chooses replicas, if nothing else is said
DEFAULT_LINK, NVLINK = "infiniband-ndr", "nvlink"


class ServingPool(NamedTuple):
    """Equal replicas of one deployment behind one load balancer."""

    deployment: Deployment
    engines: Pool  # The replicas as the simulation sees them; all of them share one step timer
    role: str = BOTH
    instances: int = 1  # Independent copies of the deployment

    @property
    def gpus(self) -> int:
        return self.instances * self.deployment.layout.gpus

    @property
    def replica(self) -> Replica:
        return self.engines.replicas[0]

    @property
    def timer(self) -> KernelTimer:
        timer = self.replica.timer
        assert isinstance(timer, KernelTimer)
        return timer

    def of(self, replica: Replica) -> ServingPool:
        replicas = same_engines(replica, len(self.engines.replicas))
        return self._replace(engines=replace(self.engines, replicas=replicas))


class Run(NamedTuple):
    records: tuple[tuple[Record, ...], ...]  # Of each replica of each pool
    clients: ServedRequests
    handover: Handover | None = None  # When requests went from the prefill pool to the decode pool, if there are two


class System(NamedTuple):
    pools: tuple[ServingPool, ...]
    link: str | None = None  # The name of the link, and what it carries
    wire: Link | None = None
    weights: tuple[float, ...] = ()  # Of a fleet: what a replica of each pool serves compared with the others

    @property
    def is_fleet(self) -> bool:
        return self.wire is None and len(self.pools) > 1

    @property
    def engines(self) -> Pool:
        """The first pool, or all of a fleet."""
        first = self.pools[0].engines
        if not self.is_fleet:
            return first
        replicas = tuple(each for pool in self.pools for each in pool.engines.replicas)
        each = [weight for pool, weight in zip(self.pools, self.weights, strict=False) for _ in pool.engines.replicas]
        servers, weights = sum(pool.engines.servers for pool in self.pools), (*each,) if len({*each}) > 1 else ()
        return replace(first, replicas=replicas, weights=weights, servers=servers)

    @property
    def smallest(self) -> Replica:
        """The replica that decodes; of a fleet the one with the smallest KV cache."""
        of = self.pools if self.is_fleet else self.pools[-1:]
        return min((pool.replica for pool in of), key=lambda each: each.num_blocks * each.kv_shape.block_size)

    @property
    def gpus(self) -> int:
        return sum(pool.gpus for pool in self.pools)

    def failing(self, outages: Outages | None) -> System:
        """The same with one pool of replicas that are down at times."""
        pool, *others = self.pools
        return self._replace(pools=(pool._replace(engines=replace(pool.engines, outages=outages)), *others))

    def sequence_sizes(self, workload: Workload) -> list[float]:
        """Bytes of keys and values that each prompt of a workload leaves behind."""
        size_of = cache(self.pools[-1].deployment.model.sequence_bytes)
        return [size_of(request.num_input) for request in workload.requests]

    def as_served(self, workload: Workload) -> Workload:
        """The requests as they are answered: within a limit of tokens, or as one result of a prompt."""
        if self.pools[0].deployment.model.pools:
            return capped(workload, 1, "one result per prompt in place of answers")
        most = self.smallest.max_output
        return workload if most is None else capped(workload, most, f"answers of {most:,} tokens at most")

    def serve(
        self, workload: Workload, watch: Sequence[Sequence[StepObserver]] = (), progress: Progress | None = None,
        go_on: GoOn | None = None,
    ) -> Run:  # fmt: skip
        """Serve a workload; ``watch``: for each pool one step observer a replica.

        ``progress`` gets the number of requests served, and the clock. ``go_on`` may add requests when the last one is
        sent (of two pools, it also gets what clients saw); without it no part can be summed up.
        """
        first, workload = self.engines, self.as_served(workload)
        if self.wire is None:
            watchers = [each for pool in watch for each in pool]
            if len(first.replicas) == 1 and first.outages is None:
                watcher = watchers[0] if watchers else None
                records = [simulate(self.pools[0].replica, workload, progress=progress, watch=watcher, go_on=go_on)]
            else:
                records = simulate_fleet(first, workload, watchers, progress, go_on)
            rest = iter(records)
            by_pool = (tuple(islice(rest, len(pool.engines.replicas))) for pool in self.pools)
            return Run((*by_pool,), ServedRequests(records))
        second = self.pools[1]
        size = second.deployment.model.sequence_bytes
        more = None if go_on is None else lambda done: go_on([*done.prefill, *done.decode], _clients_of(done))
        done = simulate_disaggregated(first, second.engines, self.wire, size, workload, progress, watch, more)
        return Run((tuple(done.prefill), tuple(done.decode)), _clients_of(done), done)


def system_of(
    deployment: Deployment, router: str | None = None, *, instances: int = 1, timer: StepTimer | None = None
) -> System:
    """All replicas of ``instances`` copies of a deployment behind a load balancer, by default the engine's."""
    if router is not None and instances * deployment.layout.data == 1:
        raise InputError(f"router {router!r} has no meaning for one replica; deploy with data_parallel_size=N")
    chosen = router or deployment.engine.load_balancer
    return System((_pool(deployment, chosen, instances=instances, timer=timer),))


def replicas_of(deployment: Deployment, count: int) -> System:
    """Independent copies of one deployment behind a load balancer that counts the requests of each."""
    return System((_pool(deployment, PROXY_ROUTER, instances=count),))


def fleet_of(groups: Sequence[tuple[str, Deployment, int]], router: str | None = None) -> System:
    """Copies of several deployments of one model behind one load balancer: names, deployments, and how many of each."""
    if any(deployment.shares_experts for _, deployment, _ in groups):
        raise InputError("replicas that share experts cannot be part of a fleet; leave out enable_expert_parallel")
    if any(deployment.model.name != groups[0][1].model.name for _, deployment, _ in groups):
        raise InputError("a fleet serves one model; simulate each model by itself")
    pools = (_pool(each, router or PROXY_ROUTER, name if groups[1:] else BOTH, count) for name, each, count in groups)
    return System(tuple(pools))


def two_pools(
    prefill: Deployment, decode: Deployment, *, instances: tuple[int, int] = (1, 1), link: str = DEFAULT_LINK,
    router: str = PROXY_ROUTER, timers: tuple[StepTimer | None, StepTimer | None] = (None, None),
) -> System:  # fmt: skip
    """A prefill and a decode pool of one model, joined by network or NVLink; ``timers``: theirs, if made before."""
    if prefill.model.pools:
        raise InputError(
            f"{prefill.model.name} gives no tokens, so that a decode pool has nothing to do; simulate one pool"
        )
    if prefill.model.name != decode.model.name or prefill.model.cache_dtype != decode.model.cache_dtype:
        raise InputError(
            f"both pools must serve one model with one KV-cache format, not {prefill.model.name} "
            f"({prefill.model.cache_dtype}) and {decode.model.name} ({decode.model.cache_dtype})"
        )
    for role, count in zip((PREFILL, DECODE), instances, strict=True):
        require(count >= 1, f"{role}_instances", "be at least 1", count)
    wire = link_between(prefill, decode, link, instances)
    plans = zip((prefill, decode), (PREFILL, DECODE), instances, timers, strict=True)
    return System(tuple(_pool(each, router, role, count, timer) for each, role, count, timer in plans), link, wire)


def _pool(
    deployment: Deployment, router: str, role: str = BOTH, instances: int = 1, timer: StepTimer | None = None
) -> ServingPool:
    layout, lockstep = deployment.layout, deployment.shares_experts
    count = instances * layout.data
    if count > MOST_ENGINES:
        name = "data_parallel_size" if instances == 1 else "the number of engines"
        raise InputError(f"{name} {count:,} is more replicas than can be simulated together; use 1 to {MOST_ENGINES:,}")
    if lockstep and instances > 1:
        raise InputError(
            f"{instances} instances of layout {layout}, whose replicas share experts, cannot be simulated; use one "
            "instance, or instances without data parallelism"
        )
    shared = shared_seconds(deployment) if lockstep else None
    servers = count if deployment.engine.servers_by_rank else instances
    engines = Pool(same_engines(deployment.replica(timer), count), router, lockstep, shared, servers)
    return ServingPool(deployment, engines, role, instances)


def link_between(prefill: Deployment, decode: Deployment, name: str, instances: tuple[int, int] = (1, 1)) -> Link:
    """What the GPUs of a replica of the first pool can send, and all of the second can take in."""
    senders, receivers = prefill.layout.replica_gpus, instances[1] * decode.layout.gpus
    if name == NVLINK:
        together = instances[0] * prefill.layout.gpus + receivers
        if prefill.gpu.name != decode.gpu.name or not prefill.gpu.is_linked(together):
            raise InputError(
                f"link nvlink needs both pools in one node of equal GPUs with direct links, and {together} GPUs of "
                f"{prefill.gpu.name} and {decode.gpu.name} are not; known networks: {', '.join(networks())}"
            )
        rate, latency = prefill.gpu.nvlink_bandwidth, 5e-6
    elif name in networks():
        rate, latency = networks()[name].bandwidth, networks()[name].latency
    else:
        raise InputError(f"unknown link {name!r}; known: {', '.join([NVLINK, *networks()])}")
    rate *= NETWORK_EFFICIENCY
    return Link(senders * rate, receivers * rate, latency)


def _clients_of(done: Handover) -> ServedRequests:
    """What clients saw of both pools: tokens come from the second, requests went to the first."""
    served, prompts = ServedRequests(done.decode), ServedRequests(done.prefill)
    served.sent_at = prompts.sent_at
    # Started as if it had waited for both pools before the first.
    served.started_at = prompts.started_at + np.maximum(0.0, served.started_at - done.received)
    return served


def busiest(records: Sequence[Record]) -> Record:
    """What the replica did that took most steps."""
    return max(records, key=lambda record: sum(phase.steps for phase in record.phases.values()))
