"""What users of a system would see: a simulated run, summed up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infercast.engines.deployment import Deployment
from infercast.errors import InputError
from infercast.forecast.by_part import ClassRun, SessionsRun, classes_of, sessions_of
from infercast.forecast.cost import Cost, cost_of, facility_of
from infercast.forecast.energy import Energy, energy_of
from infercast.forecast.explain.phases import Phase, weakest_source
from infercast.forecast.money import Tariff
from infercast.forecast.outcome import Outcome
from infercast.forecast.pools import EngineLoad, Level, LinkRun, PoolRun
from infercast.forecast.saturation import FILLING, OVERLOADED, Saturation, State
from infercast.forecast.slo import Slo, keeps
from infercast.forecast.steady import CUT, SteadyState
from infercast.forecast.system import System
from infercast.forecast.verdict import Verdict, judge
from infercast.forecast.wall import Facility, Wall, at_the_wall
from infercast.predict.estimate import kind_of
from infercast.serve import Record, Request, Workload
from infercast.serve.fleet.served import Served
from infercast.shown import Plotted
from infercast.units import MILLI, format_seconds

if TYPE_CHECKING:
    import pandas

    from infercast.forecast.intervals.intervals import Intervals


@dataclass(frozen=True, slots=True, repr=False)
class Forecast(Plotted, Outcome):
    """The result of a simulated run: what clients saw, and what each pool of replicas did."""

    workload: Workload
    system: System
    """As it was simulated, for those who simulate it again."""
    pools: tuple[PoolRun, ...]
    """One, or a prefill pool and a decode pool."""
    link: LinkRun | None
    """Between two pools."""
    clients: Served
    """The times of every request, as clients saw them."""
    state: State
    """Stable, backlogged or overloaded."""
    steady: SteadyState
    """Between ramp-up and drain."""
    steady_only: bool
    """Whether latencies and rates are those of that part, and not of the whole run."""
    verdict: Verdict | None = None
    """How it does by a promise, where one was made (`promised`)."""
    tariff: Tariff = field(default_factory=Tariff)
    """Whose prices its cost is worked out by."""
    facility: Facility = field(default_factory=Facility)
    """What stands around its GPUs: servers, building, grid."""
    kept: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What was worked out of it and is not worked out again."""

    @property
    def headline(self) -> str:
        """The first thing to say of it: how the deployment copes, and what the numbers are of."""
        count = len(self.workload.requests)
        if self.state.word == FILLING:
            limit = f"; cut at {count:,} requests" if self.steady.stopped == CUT else f" ({count:,} requests)"
            enough = "" if self.steady.num_needed is None else f"; about {self.steady.num_needed:,} would do"
            return f"{self.state.sentence}{limit}{enough}. Latencies grow with the run: there is no cost and no odds."
        if self.state.word == OVERLOADED:
            return f"{self.state.sentence}. There is no cost and no odds."
        cut = " The run was cut at a limit before its medians were known to a few per cent." if self.was_cut else ""
        if self.window is None:
            return f"{self.state.sentence}. Numbers are of all {count:,} requests, ramp-up and drain included.{cut}"
        return f"{self.state.sentence}. Numbers are of {self.steady.num_requests:,} requests of the steady state.{cut}"

    @property
    def was_cut(self) -> bool:
        """Whether the run would have gone on for better numbers, and was cut at a limit."""
        return self.steady.stopped == CUT

    @property
    def window(self) -> tuple[float, float] | None:
        """From when to when the requests that count were sent, where they are those of the steady part; in seconds."""
        if not self.steady_only:
            return None
        start = float(self.clients.sent_at.min())
        return start + self.steady.begin, start + self.steady.end

    @property
    def deployment(self) -> Deployment:
        """What was put where; of two pools the first."""
        return self.pools[0].deployment

    @property
    def records(self) -> tuple[Record, ...]:
        """What each replica of all pools did."""
        return tuple(record for pool in self.pools for record in pool.records)

    @property
    def engines(self) -> tuple[EngineLoad, ...]:
        """The load of each replica of all pools."""
        return tuple(load for pool in self.pools for load in pool.engines)

    @property
    def running(self) -> Level:
        """Sequences on all replicas together."""
        return Level(sum(pool.running.mean for pool in self.pools), sum(pool.running.peak for pool in self.pools))

    @property
    def waiting(self) -> Level:
        """Requests on all replicas together."""
        return Level(sum(pool.waiting.mean for pool in self.pools), sum(pool.waiting.peak for pool in self.pools))

    @property
    def kv_usage(self) -> Level:
        """Share of the KV blocks that are held, of the fullest replica."""
        return Level(max(pool.kv_usage.mean for pool in self.pools), max(pool.kv_usage.peak for pool in self.pools))

    @property
    def num_preemptions(self) -> int:
        """On all replicas together."""
        return sum(pool.num_preemptions for pool in self.pools)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Steps with prompt tokens and steps without, of the busiest replica of each pool."""
        return tuple(phase for pool in self.pools for phase in pool.phases)

    @property
    def router(self) -> str | None:
        """The load balancer before several replicas; None where there is one."""
        several = any(len(pool.records) > 1 for pool in self.pools)
        return self.pools[0].pool.engines.router if several else None

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return self.system.gpus

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the prompt tokens that were in a cache."""
        return self.pools[0].prefix_hit_rate

    @property
    def sessions(self) -> SessionsRun | None:
        """What turns and whole sessions saw; None where requests stand alone."""
        return sessions_of(self)

    @property
    def classes(self) -> tuple[ClassRun, ...]:
        """What each class of requests saw, and how many keep its SLO."""
        return classes_of(self.workload, self.clients)

    @property
    def tier_hit_rate(self) -> float | None:
        """Share of the prompt tokens that came from the host's memory; None without such a tier."""
        return self.pools[0].tier_hit_rate

    @property
    def output_tokens_per_second_a_gpu(self) -> float:
        """What one GPU of all contributes."""
        return self.output_tokens_per_second / self.gpus

    @property
    def cost(self) -> Cost | None:
        """Dollars an hour, a request and a million tokens; None where a price is not known."""
        return cost_of(self)

    @property
    def energy(self) -> Energy | None:
        """Joules of all GPUs, in all and a token; None where their power is not known."""
        if "energy" not in self.kept:
            self.kept["energy"] = energy_of(self)
        found: Energy | None = self.kept["energy"]
        return found

    @property
    def wall(self) -> Wall | None:
        """The same at the wall, with servers and building; None where the power of the GPUs is not known."""
        energy = self.energy
        return None if energy is None else at_the_wall(energy, self.system, facility_of(self))

    @property
    def saturation(self) -> Saturation | None:
        """Set where requests arrive faster than they can ever be served; latencies then tell how long the run was."""
        return self.state.saturation

    @property
    def source(self) -> str:
        """What the estimates of the largest kernels rest on: the weakest of them."""
        return weakest_source(self.phases)

    @property
    def kind(self) -> str:
        """``estimate``, or ``bound``: the least that hardware allows, not to be ranked beside an estimate."""
        return kind_of(self.source)

    @property
    def title(self) -> str:
        """The model and its GPUs."""
        gpus = ", ".join(f"{pool.pool.gpus} x {pool.deployment.gpu.name}" for pool in self.pools)
        return f"{self.deployment.model.name} on {gpus}"

    def _words(self) -> str:
        each = "" if self.tpot is None else f", TPOT p50 {format_seconds(self.tpot.p50)}"
        return (
            f"{self.title}, {len(self.workload.requests):,} requests: TTFT p50 "
            f"{format_seconds(self.ttft.p50)}{each}, {self.output_tokens_per_second:,.0f} output tokens/s"
        )

    def promised(self, slo: Slo | str, intervals: Intervals | None = None) -> Forecast:
        """The same forecast held against an SLO such as ``ttft_p99<1s,tpot_p95<40ms``."""
        return replace(self, verdict=judge(self, slo, intervals))

    def to_dict(self, *, intervals: bool = True) -> dict[str, Any]:
        """What ``infercast simulate --json`` prints; 80 % intervals take a few short simulations more."""
        from infercast.forecast.intervals.intervals import forecast_intervals  # noqa: PLC0415 - it imports this

        # It belongs to the layer above, where imports do not point; so it goes by name.
        write = import_module("infercast.report.forecast").forecast_dict
        written: dict[str, Any] = write(self, forecast_intervals(self) if intervals else None)
        return written

    def per_request(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays over requests, in order of arrival: when each was sent, its tokens, latencies, and its replica.

        TPOT is not a number for an answer of one token. Of two pools the replica is that of the decode pool. With an
        SLO (`promised`) there is a column that says which requests keep it, 1 or 0; with a KV cache in the host's
        memory, one for the tokens that came from there.
        """
        served, requests = self.clients, self.workload.requests
        num_output = np.array([request.num_output for request in requests])
        tpot = np.full(num_output.size, np.nan)
        tpot[num_output > 1] = served.tpot
        tiers = [record.tier for record in self.records if record.tier is not None]
        return {
            "sent_s": served.sent_at,
            "input_tokens": np.array([request.num_input for request in requests]),
            "cached_tokens": np.sum([record.num_cached for record in self.records], axis=0),
            **({} if not tiers else {"loaded_tokens": np.sum([tier.num_loaded for tier in tiers], axis=0)}),
            "output_tokens": num_output,
            "ttft_ms": served.ttft / MILLI,
            "tpot_ms": tpot / MILLI,
            "end_to_end_ms": served.end_to_end / MILLI,
            "replica": served.engine,
            **_labels(requests),
            **({} if self.verdict is None else {"keeps_slo": keeps(served, self.verdict.slo).astype(np.int64)}),
        }

    def to_dataframe(self) -> pandas.DataFrame:
        """The same as a table of pandas, which is not one of our dependencies."""
        try:
            import pandas  # noqa: PLC0415 - most who simulate do without
        except ImportError:
            raise InputError(
                "to_dataframe needs pandas: pip install pandas; per_request() gives arrays without"
            ) from None
        return pandas.DataFrame(self.per_request())


def _labels(requests: tuple[Request, ...]) -> dict[str, npt.NDArray[Any]]:
    """Sessions, classes and adapters of requests, as far as any have them; -1 where one has none."""
    found = {}
    for name in ("session", "adapter"):
        values = [getattr(request, name) for request in requests]
        if any(value is not None for value in values):
            found[name] = np.array([-1 if value is None else value for value in values])
    if any(request.slo_class for request in requests):
        found["class"] = np.array([request.slo_class for request in requests])
    return found
