"""What users of a deployment would see: a simulated run, summed up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from infercast.engines.deployment import Deployment
from infercast.engines.timer import KernelTimer
from infercast.errors import InputError
from infercast.forecast.explain.phases import Phase, summarise_phases, weakest_source
from infercast.forecast.latency import Percentiles
from infercast.forecast.outcome import outcome_of, part_of
from infercast.forecast.saturation import Saturation, State, find_state, judged
from infercast.forecast.shown import check_run, data_frame, one_line, plain_data, request_columns
from infercast.forecast.steady import SteadyState, find_steady
from infercast.predict.estimate import kind_of
from infercast.serve import Record, Replica, Workload
from infercast.serve import simulate as simulate_replica
from infercast.serve.loop import Progress, Watcher

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Level:
    """A quantity over the time in which steps ran."""

    mean: float
    peak: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """The result of a simulated run."""

    deployment: Deployment
    workload: Workload
    record: Record
    ttft: Percentiles
    tpot: Percentiles | None
    """None where no request has a second token."""
    inter_token: Percentiles | None
    end_to_end: Percentiles
    duration: float
    output_tokens_per_second: float
    requests_per_second: float
    running: Level
    waiting: Level
    kv_usage: Level
    prefix_hit_rate: float
    num_preemptions: int
    phases: tuple[Phase, ...]
    source: str
    """What the prices of the largest kernels rest on: the weakest of them."""
    state: State
    """Stable, backlogged or overloaded."""
    steady: SteadyState
    """Between ramp-up and drain."""
    steady_only: bool
    """Whether latencies and rates are those of that part, and not of the whole run."""
    replica: Replica
    """The engine as it was simulated, for those who simulate it again."""

    @property
    def saturation(self) -> Saturation | None:
        """Set where requests arrive faster than they can ever be served; latencies then tell how long the run was."""
        return self.state.saturation

    @property
    def kind(self) -> str:
        """``estimate``, or ``bound``: the least that hardware allows, not to be ranked beside an estimate."""
        return kind_of(self.source)

    def __repr__(self) -> str:
        return one_line(self)

    def to_dict(self, *, intervals: bool = True) -> dict[str, Any]:
        """What ``infercast simulate --json`` prints; 80 % intervals take a few short simulations more."""
        return plain_data(self, intervals=intervals)

    def per_request(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays over requests: when each was sent, its tokens, TTFT, TPOT and time to the last token."""
        return request_columns(self.workload, self.record)

    def to_dataframe(self) -> pandas.DataFrame:
        """The same as a table of pandas."""
        return data_frame(self.per_request())


def simulate(
    deployment: Deployment,
    workload: Workload,
    *,
    progress: Progress | None = None,
    timer: KernelTimer | None = None,
    watch: Watcher | None = None,
    steady: bool = False,
) -> Forecast:
    """Simulate a workload on a deployment; ``progress`` is told now and then how many requests were sent, and when.

    ``watch`` is told of every step. A ``timer`` of the deployment that exists already need not be made again. With
    ``steady``, latencies and rates leave out ramp-up and drain; it is an error if the run reached no steady state.
    """
    check_run(deployment, workload)
    if deployment.layout.data > 1:
        raise InputError(f"one engine is simulated here, not layout {deployment.layout}; use forecast_fleet")
    timer = timer or deployment.timer()
    replica = deployment.replica(timer)
    record = simulate_replica(replica, workload, progress=progress, watch=watch)
    steady_state = find_steady(record, workload)
    state = find_state(replica, workload, record, steady_state)
    steady_state = judged(steady_state, state)
    seen = outcome_of(record, part_of(steady_state, state, steady))
    busy = sum(phase.seconds for phase in record.phases.values())
    num_input = sum(request.num_input for request in workload.requests)
    phases = summarise_phases(deployment, record, timer)
    return Forecast(
        deployment=deployment,
        workload=workload,
        record=record,
        ttft=seen.ttft,
        tpot=seen.tpot,
        inter_token=seen.inter_token,
        end_to_end=seen.end_to_end,
        duration=seen.duration,
        output_tokens_per_second=seen.output_tokens_per_second,
        requests_per_second=seen.requests_per_second,
        running=Level(record.running.area / busy, record.running.peak),
        waiting=Level(record.waiting.area / busy, record.waiting.peak),
        kv_usage=Level(record.kv_usage.area / busy, record.kv_usage.peak),
        prefix_hit_rate=float(record.num_cached.sum()) / num_input,
        num_preemptions=record.num_preemptions,
        phases=phases,
        source=weakest_source(phases),
        state=state,
        steady=steady_state,
        steady_only=steady,
        replica=replica,
    )
