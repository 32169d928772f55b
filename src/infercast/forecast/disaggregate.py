"""Prompts on one pool of GPUs, decoding on another: what users would see, and what each pool and the wire did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engines.deployment import Deployment
from infercast.errors import InputError
from infercast.forecast.capacity import full_rate, typical
from infercast.forecast.fleet import EngineLoad, busiest, engine_loads, pool_of
from infercast.forecast.intervals.intervals import MOST_REQUESTS, Intervals, around
from infercast.forecast.intervals.luck import luck_of
from infercast.forecast.intervals.results import chance_in, results_of
from infercast.forecast.intervals.uncertainty import EIGHTY, ELSEWHERE, Uncertainty, slowed, uncertainty_of
from infercast.forecast.latency import Percentiles, percentiles
from infercast.forecast.outcome import outcome_of, part_of
from infercast.forecast.saturation import Saturation, State, find_state, judged
from infercast.forecast.steady import SteadyState, find_steady
from infercast.hardware.network import networks
from infercast.predict.physics.collective import NETWORK_EFFICIENCY
from infercast.serve import Replica, Workload
from infercast.serve.fleet.pool import Pool, same_engines
from infercast.serve.fleet.served import Served
from infercast.serve.fleet.two_pools import Handover, Link, receiving, simulate_disaggregated
from infercast.serve.loop import Progress

Array = npt.NDArray[Any]

PROXY_ROUTER = "least_loaded"
"""How a proxy before both pools chooses engines, if nothing else is said."""
NVLINK = "nvlink"
NVLINK_LATENCY = 5e-6
LINK_SPREAD = 0.2
"""Standard deviation of the logarithm of what a link carries: no transfer between pools was measured."""


@dataclass(frozen=True, slots=True)
class DisaggregatedForecast:
    """The result of a simulated run on two pools."""

    prefill: Deployment
    decode: Deployment
    link: str
    workload: Workload
    ttft: Percentiles
    tpot: Percentiles | None
    inter_token: Percentiles | None
    end_to_end: Percentiles
    prompt: Percentiles
    """From sending a request to the end of its prompt on the first pool."""
    transfer_wait: Percentiles
    """Until the link is free."""
    transfer: Percentiles
    """On the link."""
    first_step: Percentiles
    """From the arrival of keys and values to the first token."""
    duration: float
    output_tokens_per_second: float
    requests_per_second: float
    link_use: float
    """Share of the run in which the busiest sender's link carried something."""
    prefill_engines: tuple[EngineLoad, ...]
    decode_engines: tuple[EngineLoad, ...]
    state: State
    steady: SteadyState
    steady_only: bool
    pools: tuple[Pool, Pool]
    """The engines as they were simulated, for those who simulate them again ..."""
    handover: Handover
    """... and what each of them did."""
    instances: tuple[int, int] = (1, 1)
    """So many of each deployment."""

    @property
    def saturation(self) -> Saturation | None:
        """Set where requests arrive faster than they can ever be served."""
        return self.state.saturation

    @property
    def gpus(self) -> int:
        """GPUs of both pools."""
        return self.instances[0] * self.prefill.layout.gpus + self.instances[1] * self.decode.layout.gpus


def forecast_disaggregated(
    prefill: Deployment,
    decode: Deployment,
    workload: Workload,
    *,
    prefill_instances: int = 1,
    decode_instances: int = 1,
    link: str = "infiniband-ndr",
    router: str = PROXY_ROUTER,
    progress: Progress | None = None,
    steady: bool = False,
) -> DisaggregatedForecast:
    """Simulate a workload on two pools of the same model, joined by a network or by NVLink within a node.

    A pool is so many instances of its deployment, each for itself, behind one load balancer. With ``steady``, latencies
    and rates of clients leave out ramp-up and drain.
    """
    if prefill.model.name != decode.model.name or prefill.model.cache_dtype != decode.model.cache_dtype:
        raise InputError(
            f"both pools must serve one model with one KV-cache format, not {prefill.model.name} "
            f"({prefill.model.cache_dtype}) and {decode.model.name} ({decode.model.cache_dtype})"
        )
    for name, count in (("prefill_instances", prefill_instances), ("decode_instances", decode_instances)):
        if count < 1:
            raise InputError(f"{name} must be at least 1, not {count}")
    instances = prefill_instances, decode_instances
    wire = link_between(prefill, decode, link, instances)
    pools = (
        pool_of(prefill, router, instances=prefill_instances),
        pool_of(decode, router, instances=decode_instances),
    )
    size = decode.model.sequence_bytes
    done = simulate_disaggregated(*pools, wire, size, workload, progress)
    prompts, served = Served(done.prefill), clients_of(done)
    steady_state = find_steady(served, workload)
    sizes = np.array([size(request.num_input) for request in workload.requests])
    state = _state(pools, wire, float(sizes.mean()), workload, served, steady_state)
    steady_state = judged(steady_state, state)
    seen = outcome_of(served, part_of(steady_state, state, steady))
    duration = seen.duration
    return DisaggregatedForecast(
        prefill=prefill,
        decode=decode,
        link=link,
        workload=workload,
        ttft=seen.ttft,
        tpot=seen.tpot,
        inter_token=seen.inter_token,
        end_to_end=seen.end_to_end,
        prompt=percentiles(done.ready - served.sent_at),
        transfer_wait=percentiles(done.began - done.ready),
        transfer=percentiles(done.received - done.began),
        first_step=percentiles(served.first_token - done.received),
        duration=duration,
        output_tokens_per_second=seen.output_tokens_per_second,
        requests_per_second=seen.requests_per_second,
        link_use=float(np.bincount(prompts.engine, sizes).max()) / wire.sending / duration,
        prefill_engines=engine_loads(done.prefill, prompts, workload, duration),
        decode_engines=engine_loads(done.decode, served, workload, duration),
        state=state,
        steady=steady_state,
        steady_only=steady,
        pools=pools,
        handover=done,
        instances=instances,
    )


def _state(
    pools: tuple[Pool, Pool], wire: Link, size: float, workload: Workload, served: Served, steady: SteadyState
) -> State:
    """How both pools cope: the slower one, or the link, says how many requests can be served."""
    prefill, decode = pools
    first, second = prefill.replicas[0], receiving(decode.replicas[0])

    def capacity() -> float:
        mix = typical(workload, second)
        prompts = replace(mix, requests=tuple(replace(each, num_output=1) for each in mix.requests))
        return min(
            len(prefill.replicas) * full_rate(first, prompts),
            len(decode.replicas) * full_rate(second, mix),
            min(len(prefill.replicas) * wire.sending, wire.receiving) / size,
        )

    return find_state(second, workload, served, steady, engines=len(decode.replicas), capacity=capacity)


def clients_of(done: Handover) -> Served:
    """What clients saw of both pools: tokens come from the second, requests went to the first."""
    served, prompts = Served(done.decode), Served(done.prefill)
    served.sent_at = prompts.sent_at
    # Started as if it had waited for both pools before the first.
    served.started_at = prompts.started_at + np.maximum(0.0, served.started_at - done.received)
    return served


def disaggregated_intervals(forecast: DisaggregatedForecast) -> Intervals:
    """80 % intervals: both pools are off alike, by what prices and hosts may be, and the link by itself."""
    deployments, pools = (forecast.prefill, forecast.decode), forecast.pools
    records = (busiest(forecast.handover.prefill), busiest(forecast.handover.decode))
    abouts = [uncertainty_of(*each, ELSEWHERE) for each in zip(deployments, records, strict=True)]
    workload = replace(forecast.workload, requests=forecast.workload.requests[:MOST_REQUESTS])
    wire, size = (
        link_between(*deployments, forecast.link, forecast.instances),
        forecast.decode.model.sequence_bytes,
    )

    def results(gpu: bool = False, host: bool = False, slower: float = 1.0) -> Array:
        first, second = (
            replace(pool, replicas=same_engines(_longer(pool.replicas[0], about, gpu, host), len(pool.replicas)))
            for pool, about in zip(pools, abouts, strict=True)
        )
        link = replace(wire, sending=wire.sending / slower, receiving=wire.receiving / slower)
        return results_of(clients_of(simulate_disaggregated(first, second, link, size, workload)))

    base, link_end = results(), exp(EIGHTY * LINK_SPREAD)
    moved = [np.log(each / base) for each in (results(gpu=True), results(host=True), results(slower=link_end))]
    luck = luck_of(
        forecast.workload,
        clients_of(forecast.handover),
        pools[1].replicas[0],
        lambda other: clients_of(simulate_disaggregated(*pools, wire, size, other)),
    )
    chance = chance_in(clients_of(forecast.handover)) if luck is None else luck
    return around(forecast, np.sqrt(np.square([*moved, chance]).sum(axis=0)))


def _longer(replica: Replica, about: Uncertainty, gpu: bool, host: bool) -> Replica:
    """An engine at the upper end of its GPU's interval, or of its host's."""
    return slowed(
        replica,
        prompts=exp(about.prompts) if gpu else 1.0,
        decodes=exp(about.decodes) if gpu else 1.0,
        host=exp(about.host) if host else 1.0,
    )


def link_between(prefill: Deployment, decode: Deployment, name: str, instances: tuple[int, int] = (1, 1)) -> Link:
    """What the GPUs of an engine of the first pool can send, and all of the second can take in."""
    senders, receivers = prefill.layout.replica_gpus, instances[1] * decode.layout.gpus
    if name == NVLINK:
        together = instances[0] * prefill.layout.gpus + receivers
        if prefill.gpu.name != decode.gpu.name or not prefill.gpu.is_linked(together):
            raise InputError(
                f"link nvlink needs both pools in one node of equal GPUs with direct links, and {together} GPUs of "
                f"{prefill.gpu.name} and {decode.gpu.name} are not; known networks: {', '.join(networks())}"
            )
        rate = prefill.gpu.nvlink_bandwidth * NETWORK_EFFICIENCY
        return Link(senders * rate, receivers * rate, NVLINK_LATENCY)
    known = networks()
    if name not in known:
        raise InputError(f"unknown link {name!r}; known: {', '.join([NVLINK, *known])}")
    rate = known[name].bandwidth * NETWORK_EFFICIENCY
    return Link(senders * rate, receivers * rate, known[name].latency)
