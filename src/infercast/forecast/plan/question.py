"""What is asked of a plan: the model, what users send, what they were promised, and what may be chosen from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from infercast.engines.registry import engine_named
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.calibration.record import Calibration
from infercast.forecast.deploy import load_model
from infercast.forecast.plan.axes import AXES, Axis, check_power_limits
from infercast.forecast.plan.candidate import Candidate, Settings
from infercast.forecast.plan.deployed import Site
from infercast.forecast.plan.objectives import OBJECTIVES, Objective
from infercast.forecast.plan.power import Drawn, least_watts
from infercast.forecast.slo import Slo
from infercast.forecast.system import DEFAULT_LINK
from infercast.forecast.wall import Facility
from infercast.serve import Workload
from infercast.serve.fleet.pool import MOST_ENGINES
from infercast.serve.workload.redraw import redrawn_with

USUAL_LENGTHS = 8192
"""Tokens that the longest allowed sequence has at least, where a model has as many positions."""


def length_for(model: str, workload: Workload) -> int:
    """Tokens of the longest sequence that a workload needs, rounded up to a power of two."""
    longest = max(request.num_input + request.num_output for request in workload.requests)
    return min(max(USUAL_LENGTHS, 1 << (longest - 1).bit_length()), load_model(model).max_positions)


@dataclass(frozen=True)
class Question:
    """A model, a workload and an SLO, and the space to search. All of it can be pickled."""

    model: str
    workload: Workload
    slo: Slo
    gpus: tuple[str, ...]
    engines: tuple[str, ...]
    prices: tuple[float | None, ...] = ()
    """Money an hour of one of each of these GPUs; None where nobody knows."""
    max_gpus: int = 8
    budget: float | None = None
    """Most money an hour."""
    power_budget: float | None = None
    """Most watts of all servers at the wall, without the building, while every GPU draws most."""
    power_limits: tuple[float | None, ...] = (None,)
    """Watts that boards may be held at; None: as many as they take."""
    facility: Facility = field(default_factory=Facility)
    """What stands around the GPUs."""
    metered: tuple[str, ...] = ()
    """Kinds of GPU whose electricity comes on top of their price: those that are owned."""
    quantizations: tuple[str | None, ...] = (None,)
    kv_cache_dtypes: tuple[str, ...] = ("auto",)
    settings: tuple[Settings, ...] | None = None
    """What is tried of settings; None: what each engine says of itself."""
    max_model_len: int | None = None
    """None: as long as the workload needs, rounded up to a power of two."""
    disaggregate: bool = False
    """Whether a prefill pool and a decode pool are looked at, too."""
    objective: str = "cost"
    least_odds: float = 0.0
    """The probability that the SLO holds must be as large; 0: it holds by the forecast's own numbers."""
    network: str | None = DEFAULT_LINK
    """Between nodes; None: no engine spans two."""
    link: str = DEFAULT_LINK
    """Between two pools."""
    pcie_topology: str | None = None
    api_server: bool = True
    predictor: str = "learned"
    calibration: Calibration | None = None
    axes: tuple[Axis, ...] = AXES
    """What candidates differ in, beside the number of replicas."""

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UnknownNameError("objective", self.objective, OBJECTIVES)
        if not 1 <= self.max_gpus <= MOST_ENGINES:
            raise InputError(f"max_gpus must be from 1 to {MOST_ENGINES:,}, not {self.max_gpus}")
        if not 0.0 <= self.least_odds < 1.0:
            raise InputError(f"least_odds must be a probability from 0 to below 1, not {self.least_odds:g}")
        if self.budget is not None and not 0 < self.budget < inf:
            raise InputError(f"budget must be dollars per hour above 0, not {self.budget:g}")
        if self.power_budget is not None and not 0 < self.power_budget < inf:
            raise InputError(f"power_budget must be watts above 0, not {self.power_budget:g}")
        if not self.gpus:
            raise InputError("a plan needs at least one kind of GPU to choose from; name some with gpus")
        check_power_limits(self.power_limits, self.gpus, self.network)
        if self.prices and len(self.prices) != len(self.gpus):
            raise InputError(f"{len(self.prices)} prices were given for {len(self.gpus)} kinds of GPU; give one each")
        if self.workload.concurrency is not None:
            raise InputError("a plan needs requests that come at a rate or by a trace, not a closed loop of clients")
        unknown = [gpu for gpu, price in zip(self.gpus, self.all_prices, strict=True) if price is None]
        if unknown and (self.objective == "cost" or self.budget is not None):
            raise InputError(
                f"the price of {', '.join(unknown)} is not known; give price_per_gpu_hour or a file of prices, leave "
                f"{'it' if len(unknown) == 1 else 'them'} out, or ask for objective gpus without a budget"
            )

    @property
    def all_prices(self) -> tuple[float | None, ...]:
        """One for each kind of GPU."""
        return self.prices or (None,) * len(self.gpus)

    @cached_property
    def price_of(self) -> dict[str, float | None]:
        """Money an hour by GPU."""
        return dict(zip(self.gpus, self.all_prices, strict=True))

    @property
    def goal(self) -> Objective:
        """What is best."""
        return OBJECTIVES[self.objective]

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(request.num_input + request.num_output for request in self.workload.requests)

    @cached_property
    def model_len(self) -> int:
        """Tokens of the longest sequence that every candidate is told to serve."""
        return self.max_model_len or length_for(self.model, self.workload)

    @cached_property
    def site(self) -> Site:
        """What all candidates have in common, for those who keep what they have made."""
        return Site(self.model, self.network, self.pcie_topology, self.api_server, self.predictor, self.calibration)

    @cached_property
    def rate(self) -> float:
        """Requests a second; of a trace, on average."""
        if self.workload.rate is not None:
            return self.workload.rate
        requests = self.workload.requests
        span = requests[-1].arrival - requests[0].arrival
        return (len(requests) - 1) / span if span > 0 else float(len(requests))

    @cached_property
    def output_tokens_per_second(self) -> float:
        """Tokens that are asked for a second, on average."""
        requests = self.workload.requests
        return self.rate * sum(request.num_output for request in requests) / len(requests)

    def cost(self, candidate: Candidate) -> float | None:
        """Money an hour of all its GPUs."""
        total = 0.0
        for pool in candidate.pools:
            price = self.price_of.get(pool.gpu)
            if price is None:
                return None
            total += pool.replicas * pool.layout.gpus * price
        return total

    def whole_cost(self, candidate: Candidate, drawn: Drawn | None) -> float | None:
        """The same with the electricity of GPUs that are owned, by what a simulation says is drawn."""
        cost = self.cost(candidate)
        owned = sum(pool.replicas * pool.layout.gpus for pool in candidate.pools if pool.gpu in self.metered)
        if cost is None or not owned or drawn is None or drawn.usd_per_hour is None:
            return cost
        return cost + drawn.usd_per_hour * owned / candidate.gpus

    def allows(self, candidate: Candidate) -> bool:
        """Whether it is within the number of GPUs and both budgets, as far as the candidate alone says."""
        cost = self.cost(candidate)
        affordable = self.budget is None or cost is None or cost <= self.budget
        return candidate.gpus <= self.max_gpus and affordable and self.allows_power(candidate)

    def allows_power(self, candidate: Candidate) -> bool:
        """Whether its GPUs may idle within the power budget."""
        return self.power_budget is None or least_watts(self, candidate) <= self.power_budget

    def units(self) -> Iterator[Candidate]:
        """One replica of every kind, all axes combined, those that share step times next to each other."""
        found = [Candidate(engine="", gpu="")]
        for axis in self.axes:
            found = [axis.put(each, value) for each in found for value in axis.values(self, each)]
        for each in found:
            yield each.with_settings(**{engine_named(each.engine).bounds[2]: self.model_len, **dict(each.settings)})

    def at_rate(self, factor: float) -> Question:
        """The same with requests that come so many times as fast."""
        if factor == 1.0:
            return self
        rate = None if self.workload.rate is None else self.workload.rate * factor
        if self.workload.open_ended and (drawn := redrawn_with(self.workload, rate=rate)) is not None:
            return replace(self, workload=drawn)
        requests = tuple(replace(each, arrival=each.arrival / factor) for each in self.workload.requests)
        found = replace(self.workload, requests=requests, rate=rate, drawn=None, open_ended=False)
        return replace(self, workload=found)
