"""A whole system of engines: copies of a model behind a router."""

from __future__ import annotations

from collections.abc import Sequence

from infercast.engine.deployment import Deployment
from infercast.forecast.saturation import Saturation, find_saturation
from infercast.forecast.serving import Percentiles, percentiles, replica_of
from infercast.records import dataclass
from infercast.serve import Record, Workload, simulate
from infercast.serve.fleet import Pool, same_engines, simulate_fleet
from infercast.serve.served import Served

DEFAULT_ROUTER = "least_loaded"


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What one engine of a pool did."""

    requests: int
    busy: float
    """Share of the run in which a step was under way."""
    running: float
    """Sequences on average, while steps ran."""
    kv_peak: float
    prefix_hit_rate: float
    """Share of the prompt tokens it was sent that were in its cache."""
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class FleetForecast:
    """The result of a simulated run on several engines."""

    deployment: Deployment
    workload: Workload
    router: str
    ttft: Percentiles
    tpot: Percentiles | None
    inter_token: Percentiles | None
    end_to_end: Percentiles
    duration: float
    output_tokens_per_second: float
    requests_per_second: float
    engines: tuple[EngineLoad, ...]
    saturation: Saturation | None
    pool: Pool
    """The engines as they were simulated, for those who simulate them again ..."""
    records: tuple[Record, ...]
    """... and what each of them did."""

    @property
    def output_tokens_per_second_a_gpu(self) -> float:
        """What one GPU of all contributes."""
        return self.output_tokens_per_second / self.deployment.layout.gpus


def pool_of(deployment: Deployment, router: str = DEFAULT_ROUTER) -> Pool:
    """The engines of a deployment as the simulation sees them; all of them share one step timer."""
    layout = deployment.layout
    replica = replica_of(deployment, deployment.timer())
    return Pool(same_engines(replica, layout.data), router, lockstep=layout.copies_sharing_experts > 1)


def serve_fleet(deployment: Deployment, workload: Workload, router: str = DEFAULT_ROUTER) -> Record | Served:
    """Serve a workload by every copy of a deployment."""
    if deployment.layout.data == 1:
        return simulate(replica_of(deployment, deployment.timer()), workload)
    return Served(simulate_fleet(pool_of(deployment, router), workload))


def forecast_fleet(deployment: Deployment, workload: Workload, router: str = DEFAULT_ROUTER) -> FleetForecast:
    """Simulate a workload on every copy of a deployment behind a router."""
    pool = pool_of(deployment, router)
    records = simulate_fleet(pool, workload)
    served = Served(records)
    tpot, (gaps, counts) = served.tpot, served.gaps
    duration = float(served.last_token.max() - served.sent_at.min())
    return FleetForecast(
        deployment=deployment,
        workload=workload,
        router=router,
        ttft=percentiles(served.ttft),
        tpot=percentiles(tpot) if tpot.size else None,
        inter_token=percentiles(gaps, counts) if gaps.size else None,
        end_to_end=percentiles(served.end_to_end),
        duration=duration,
        output_tokens_per_second=float(served.num_output.sum()) / duration,
        requests_per_second=len(workload.requests) / duration,
        engines=engine_loads(records, served, workload, duration),
        saturation=find_saturation(pool.replicas[0], workload, served, engines=len(records)),
        pool=pool,
        records=tuple(records),
    )


def engine_loads(
    records: Sequence[Record], served: Served, workload: Workload, duration: float
) -> tuple[EngineLoad, ...]:
    """Each engine's part of a run of ``duration`` seconds."""
    prompts = [0] * len(records)
    for engine, request in zip(served.engine.tolist(), workload.requests, strict=True):
        prompts[engine] += request.num_input
    loads = []
    for number, record in enumerate(records):
        seconds = sum(phase.seconds for phase in record.phases.values())
        loads.append(
            EngineLoad(
                requests=int((served.engine == number).sum()) if prompts[number] else 0,
                busy=min(1.0, seconds / duration),
                running=record.running.area / seconds if seconds else 0.0,
                kv_peak=record.kv_usage.peak,
                prefix_hit_rate=float(record.num_cached.sum()) / prompts[number] if prompts[number] else 0.0,
                num_preemptions=record.num_preemptions,
            )
        )
    return tuple(loads)
