"""Prompts on one pool of GPUs, decoding on another: what users would see, and what each pool and the wire did."""

from __future__ import annotations

from functools import partial

import numpy as np

from infercast.engine.deployment import Deployment
from infercast.engine.kv import sequence_bytes
from infercast.errors import InputError
from infercast.forecast.fleet import DEFAULT_ROUTER, EngineLoad, engine_loads, pool_of
from infercast.forecast.serving import Percentiles, percentiles
from infercast.hardware.network import networks
from infercast.records import dataclass
from infercast.serve import Workload
from infercast.serve.disaggregate import Link, simulate_disaggregated
from infercast.serve.served import Served

NVLINK = "nvlink"
NVLINK_LATENCY = 5e-6


@dataclass(frozen=True, slots=True)
class DisaggregatedForecast:
    """The result of a simulated run on two pools."""

    prefill: Deployment
    decode: Deployment
    link: str
    workload: Workload
    ttft: Percentiles
    tpot: Percentiles | None
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

    @property
    def gpus(self) -> int:
        """GPUs of both pools."""
        return self.prefill.layout.gpus + self.decode.layout.gpus


def forecast_disaggregated(
    prefill: Deployment,
    decode: Deployment,
    workload: Workload,
    *,
    link: str = "infiniband-ndr",
    router: str = DEFAULT_ROUTER,
) -> DisaggregatedForecast:
    """Simulate a workload on two pools of the same model, joined by a network or by NVLink within a node."""
    if prefill.model.name != decode.model.name or prefill.model.cache_dtype != decode.model.cache_dtype:
        raise InputError(
            f"both pools must serve one model with one KV-cache format, not {prefill.model.name} "
            f"({prefill.model.cache_dtype}) and {decode.model.name} ({decode.model.cache_dtype})"
        )
    wire = link_between(prefill, decode, link)
    size = partial(sequence_bytes, decode.model)
    done = simulate_disaggregated(pool_of(prefill, router), pool_of(decode, router), wire, size, workload)
    prompts, served = Served(done.prefill), Served(done.decode)
    tpot = served.tpot
    duration = float(served.last_token.max() - prompts.sent_at.min())
    sizes = np.array([size(request.num_input) for request in workload.requests])
    return DisaggregatedForecast(
        prefill=prefill,
        decode=decode,
        link=link,
        workload=workload,
        ttft=percentiles(served.first_token - prompts.sent_at),
        tpot=percentiles(tpot) if tpot.size else None,
        end_to_end=percentiles(served.last_token - prompts.sent_at),
        prompt=percentiles(done.ready - prompts.sent_at),
        transfer_wait=percentiles(done.began - done.ready),
        transfer=percentiles(done.received - done.began),
        first_step=percentiles(served.first_token - done.received),
        duration=duration,
        output_tokens_per_second=float(served.num_output.sum()) / duration,
        requests_per_second=len(workload.requests) / duration,
        link_use=float(np.bincount(prompts.engine, sizes).max()) / wire.sending / duration,
        prefill_engines=engine_loads(done.prefill, prompts, workload, duration),
        decode_engines=engine_loads(done.decode, served, workload, duration),
    )


def link_between(prefill: Deployment, decode: Deployment, name: str) -> Link:
    """What the GPUs of an engine of the first pool can send, and all of the second can take in."""
    senders, receivers = prefill.layout.replica_gpus, decode.layout.gpus
    if name == NVLINK:
        together = prefill.layout.gpus + receivers
        if prefill.gpu.name != decode.gpu.name or not prefill.gpu.is_linked(together):
            raise InputError(
                f"link nvlink needs both pools in one node of equal GPUs with direct links, and {together} GPUs of "
                f"{prefill.gpu.name} and {decode.gpu.name} are not; known networks: {', '.join(networks())}"
            )
        rate = prefill.gpu.nvlink_bandwidth
        return Link(senders * rate, receivers * rate, NVLINK_LATENCY)
    known = networks()
    if name not in known:
        raise InputError(f"unknown link {name!r}; known: {', '.join([NVLINK, *known])}")
    network = known[name]
    return Link(senders * network.bandwidth, receivers * network.bandwidth, network.latency)
