"""A whole system of engines: copies of a model behind a router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from infercast.engines.deployment import Deployment
from infercast.engines.timer import KernelTimer
from infercast.errors import InputError
from infercast.forecast.capacity import kept_full
from infercast.forecast.explain.phases import Phase, summarise_phases, weakest_source
from infercast.forecast.latency import Percentiles
from infercast.forecast.outcome import outcome_of, part_of
from infercast.forecast.saturation import Saturation, State, find_state, judged
from infercast.forecast.serving import Level
from infercast.forecast.shown import check_run, data_frame, one_line, plain_data, request_columns
from infercast.forecast.steady import SteadyState, find_steady
from infercast.predict.estimate import kind_of
from infercast.serve import Record, Workload, simulate
from infercast.serve.fleet.pool import MOST_ENGINES, Pool, same_engines, simulate_fleet
from infercast.serve.fleet.served import Served
from infercast.serve.loop import Progress, Watcher

if TYPE_CHECKING:
    import pandas


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
    running: Level
    """On all engines together, as the next two ..."""
    waiting: Level
    kv_usage: Level
    """... and of the fullest."""
    prefix_hit_rate: float
    num_preemptions: int
    phases: tuple[Phase, ...]
    """Of the engine that took most steps."""
    engines: tuple[EngineLoad, ...]
    state: State
    steady: SteadyState
    steady_only: bool
    pool: Pool
    """The engines as they were simulated, for those who simulate them again ..."""
    records: tuple[Record, ...]
    """... and what each of them did."""

    def __repr__(self) -> str:
        return one_line(self)

    def to_dict(self, *, intervals: bool = True) -> dict[str, Any]:
        """What ``infercast simulate --json`` prints; 80 % intervals take a few short simulations more."""
        return plain_data(self, intervals=intervals)

    def per_request(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays over requests: when each was sent, its tokens, TTFT, TPOT, time to the last token, its replica."""
        return request_columns(self.workload, Served(self.records))

    def to_dataframe(self) -> pandas.DataFrame:
        """The same as a table of pandas."""
        return data_frame(self.per_request())

    @property
    def saturation(self) -> Saturation | None:
        """Set where requests arrive faster than they can ever be served."""
        return self.state.saturation

    @property
    def source(self) -> str:
        """What the prices of the largest kernels rest on: the weakest of them."""
        return weakest_source(self.phases)

    @property
    def kind(self) -> str:
        """``estimate``, or ``bound``: the least that hardware allows, not to be ranked beside an estimate."""
        return kind_of(self.source)

    @property
    def output_tokens_per_second_a_gpu(self) -> float:
        """What one GPU of all contributes."""
        return self.output_tokens_per_second / self.deployment.layout.gpus


def pool_of(deployment: Deployment, router: str | None = None, *, instances: int = 1) -> Pool:
    """The engines of a deployment as the simulation sees them; all of them share one step timer.

    ``instances``: so many of the deployment, each for itself.
    """
    layout, lockstep = deployment.layout, is_in_lockstep(deployment)
    count = instances * layout.data
    if count > MOST_ENGINES:
        name = "data_parallel_size" if instances == 1 else "the number of engines"
        raise InputError(f"{name} {count:,} is more replicas than can be simulated together; use 1 to {MOST_ENGINES:,}")
    if lockstep and instances > 1:
        raise InputError(
            f"{instances} instances of layout {layout}, whose replicas share experts, cannot be simulated; use one "
            "instance, or instances without data parallelism"
        )
    shared = deployment.engine.shared_seconds(deployment) if lockstep else None
    balancer = router or deployment.engine.load_balancer
    return Pool(same_engines(deployment.replica(), count), balancer, lockstep, shared)


def is_in_lockstep(deployment: Deployment) -> bool:
    """Whether its replicas share experts, so that they step together."""
    return deployment.shares_experts


def serve_pool(pool: Pool, workload: Workload) -> tuple[list[Record], Record | Served]:
    """Serve a workload: what each engine did, and what clients saw of all."""
    if len(pool.replicas) == 1:
        record = simulate(pool.replicas[0], workload)
        return [record], record
    records = simulate_fleet(pool, workload)
    return records, Served(records)


def forecast_fleet(
    deployment: Deployment,
    workload: Workload,
    router: str | None = None,
    *,
    watch: Sequence[Watcher] = (),
    progress: Progress | None = None,
    steady: bool = False,
) -> FleetForecast:
    """Simulate a workload on every copy of a deployment behind a load balancer; that of the engine if none is named.

    ``watch``: told of each engine's steps. ``progress`` is told now and then how many requests were answered, and when.
    With ``steady``, latencies and rates leave out ramp-up and drain.
    """
    check_run(deployment, workload)
    pool = pool_of(deployment, router)
    records = simulate_fleet(pool, workload, watch, progress)
    served = Served(records)
    levels = [(record.running, record.waiting, record.kv_usage, _busy(record)) for record in records if _busy(record)]
    steady_state = find_steady(served, workload)
    state = pool_state(pool, workload, served, steady_state)
    steady_state = judged(steady_state, state)
    seen = outcome_of(served, part_of(steady_state, state, steady))
    return FleetForecast(
        deployment=deployment,
        workload=workload,
        router=router or deployment.engine.load_balancer,
        ttft=seen.ttft,
        tpot=seen.tpot,
        inter_token=seen.inter_token,
        end_to_end=seen.end_to_end,
        duration=seen.duration,
        output_tokens_per_second=seen.output_tokens_per_second,
        requests_per_second=seen.requests_per_second,
        running=Level(sum(each[0].area / each[3] for each in levels), sum(each[0].peak for each in levels)),
        waiting=Level(sum(each[1].area / each[3] for each in levels), sum(each[1].peak for each in levels)),
        kv_usage=Level(max(each[2].area / each[3] for each in levels), max(each[2].peak for each in levels)),
        prefix_hit_rate=float(served.num_cached.sum()) / sum(request.num_input for request in workload.requests),
        num_preemptions=sum(record.num_preemptions for record in records),
        phases=summarise_phases(deployment, busiest(records), timer_of(pool)),
        engines=engine_loads(records, served, workload, seen.duration),
        state=state,
        steady=steady_state,
        steady_only=steady,
        pool=pool,
        records=tuple(records),
    )


def pool_state(pool: Pool, workload: Workload, served: Record | Served, steady: SteadyState) -> State:
    """How a pool copes; engines in lockstep serve less than each of them could alone."""
    first, engines = pool.replicas[0], len(pool.replicas)

    def together() -> float:
        return kept_full(first, workload, lambda requests: serve_pool(pool, requests)[1], engines)

    capacity = together if pool.lockstep else None
    return find_state(first, workload, served, steady, engines=engines, capacity=capacity)


def timer_of(pool: Pool) -> KernelTimer:
    """The step timer that all engines of a pool share."""
    timer = pool.replicas[0].timer
    assert isinstance(timer, KernelTimer)
    return timer


def busiest(records: Sequence[Record]) -> Record:
    """What the engine did that took most steps."""
    return max(records, key=lambda record: sum(phase.steps for phase in record.phases.values()))


def _busy(record: Record) -> float:
    """Seconds in which steps ran."""
    return sum(phase.seconds for phase in record.phases.values())


def engine_loads(
    records: Sequence[Record], served: Served, workload: Workload, duration: float
) -> tuple[EngineLoad, ...]:
    """Each engine's part of a run of ``duration`` seconds."""
    prompts = [0] * len(records)
    for engine, request in zip(served.engine.tolist(), workload.requests, strict=True):
        prompts[engine] += request.num_input
    loads = []
    for number, record in enumerate(records):
        seconds = _busy(record)
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
