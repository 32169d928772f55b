"""The question of a plan (workload, SLO, axes of the search, objectives, budgets) and its answer.

A further axis is one more record: its values for a candidate that has a value on every earlier axis, and the candidate
with the value. Axes that step times depend on come first, so that candidates that share a step timer are neighbours. A
step timer is the costly part of a deployment. Candidates that differ in replicas share one; for a quick estimate, so do
those that differ in settings of the scheduler, with a rough one: larger steps than it knows take as long as several.
Simulated candidates have a timer of their own, so that a row equals the result of `simulate`.

A power budget limits what the servers draw at the wall while every GPU is in its step with the highest power, as a
circuit must carry it, without cooling (PUE).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from math import inf
from typing import Any

import numpy as np

from infercast.engines.base import Deployment, engine_named
from infercast.engines.settings import changed
from infercast.engines.timer import KernelTimer
from infercast.errors import InputError, UnknownNameError, require
from infercast.forecast.calibration import Calibration
from infercast.forecast.deploy import deploy, layout_arguments, load_device, load_model
from infercast.forecast.energy import Facility, facility_watts, server_around
from infercast.forecast.layouts import valid_layouts
from infercast.forecast.plan.candidate import Candidate, PowerDraw, Row, Settings, Stage
from infercast.forecast.slo import Array, Slo
from infercast.forecast.system import DEFAULT_LINK
from infercast.hardware import Gpu
from infercast.hardware.gpu import LEAST_POWER
from infercast.hardware.load import Server
from infercast.lazy_classes import NamedTuple, dataclass, field, replace
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig
from infercast.predict.board_power import board_power
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import Predictor
from infercast.serve import Workload
from infercast.serve.fleet.pool import MOST_ENGINES
from infercast.serve.workload.synthetic import redrawn_with
from infercast.shown import PlottableResult
from infercast.units import format_watts


class PlanAxis(NamedTuple):
    name: str  # Of the field of a candidate that has the choice, where there is one
    values: Callable[[Question, Candidate], Iterable[Any]] | tuple[Any, ...] | str
    """Values for a candidate, the same for all, or the name of a field of the question."""
    put: Callable[[Candidate, Any], Candidate] | None = None
    """The candidate with the value; None: in the field of this name. Questions are pickled, so no lambda."""

    def choices(self, question: Question, candidate: Candidate) -> Iterator[Candidate]:
        given = getattr(question, self.values) if isinstance(self.values, str) else self.values
        for value in given(question, candidate) if callable(given) else given:
            yield replace(candidate, **{self.name: value}) if self.put is None else self.put(candidate, value)


@lru_cache(maxsize=64)
def model_of(model: str, quantization: str | None, kv_cache_dtype: str, engine: str) -> ModelConfig | None:
    try:
        return load_model(model, quantization=quantization, kv_cache_dtype=kv_cache_dtype, engine=engine_named(engine))
    except InputError:
        if quantization is None and kv_cache_dtype == "auto":
            raise
        return None


@lru_cache(maxsize=64)
def device_of(gpu: str, network: str | None) -> Gpu:
    return load_device(gpu, network)


def config_of(question: Question, candidate: Candidate) -> ModelConfig | None:
    return model_of(question.model, candidate.quantization, candidate.kv_cache_dtype, candidate.engine)


def _formats(question: Question, candidate: Candidate) -> Iterable[tuple[str | None, str]]:
    """Formats of weights and of keys and values, those left out that change nothing or cannot be had."""
    seen = set()
    for quantization in question.quantizations:
        for kv_cache_dtype in question.kv_cache_dtypes:
            made = config_of(question, replace(candidate, quantization=quantization, kv_cache_dtype=kv_cache_dtype))
            if made is not None and (key := (made.weights, made.cache_dtype)) not in seen:
                seen.add(key)
                yield quantization, kv_cache_dtype


def _layouts(question: Question, candidate: Candidate) -> Iterable[ParallelLayout]:
    """All layouts of one replica, which fills its nodes; data parallelism is for routed experts."""
    config, gpu = config_of(question, candidate), device_of(candidate.gpu, question.network)
    if config is None:
        return
    for count in range(1, question.max_gpus + 1):
        if count > gpu.gpus_per_node and count % gpu.gpus_per_node:
            continue
        for layout in valid_layouts(config, count, gpu):
            if layout.data == 1 or config.has_experts:
                yield layout


def _settings(question: Question, candidate: Candidate) -> Iterable[tuple[tuple[str, Any], ...]]:
    return engine_named(candidate.engine).commands.tried if question.settings is None else question.settings


def setting_axis(name: str, values: tuple[Any, ...]) -> PlanAxis:
    """One more setting of the engine, by its own name, combined with all others."""
    return PlanAxis(name, tuple(((name, value),) for value in values), put_settings)


def put_settings(candidate: Candidate, value: Settings) -> Candidate:
    return candidate.with_settings(**dict(value))


def _power_limits(question: Question, candidate: Candidate) -> Iterable[float | None]:
    gpu = device_of(candidate.gpu, question.network)
    asked = (None if limit is None or limit >= gpu.tdp else limit for limit in question.power_limits)
    return [limit for limit in dict.fromkeys(asked) if limit is None or limit >= LEAST_POWER * gpu.tdp]


def check_power_limits(limits: Iterable[float | None], gpus: Iterable[str], network: str | None) -> None:
    """Refuse a power limit that is too low for every one of these GPUs; higher ones than a board's own are no limit."""
    given = [limit for limit in limits if limit is not None]
    if not given:
        return
    least = {gpu: LEAST_POWER * device_of(gpu, network).tdp for gpu in gpus}
    for limit in given:
        if not limit >= min(least.values()):
            known = ", ".join(f"{gpu} from {watts:g} W" for gpu, watts in least.items())
            raise InputError(f"a power limit of {limit:g} W is lower than these GPUs take: {known} on")


def _put_formats(candidate: Candidate, pair: tuple[str, str]) -> Candidate:
    return replace(candidate, quantization=pair[0], kv_cache_dtype=pair[1])


AXES = (
    PlanAxis("engine", "engines"), PlanAxis("gpu", "gpus"), PlanAxis("power_limit", _power_limits),
    PlanAxis("formats", _formats, _put_formats), PlanAxis("layout", _layouts),
    PlanAxis("settings", _settings, put_settings),
)  # fmt: skip


ROUGH_TOKENS = 4096  # Tokens of the largest step that a quick estimate asks for


class SharedDeployOptions(NamedTuple):
    model: str
    network: str | None
    pcie_topology: str | None
    api_server: bool
    predictor: str
    calibration: Calibration | None = None


@lru_cache(maxsize=16)
def _predictor(name: str, family: str) -> Predictor:
    return make_predictor(name, family)


@lru_cache(maxsize=4096)
def deployed(shared: SharedDeployOptions, unit: Candidate) -> Deployment:
    """One replica; raises what `deploy` raises where it does not fit or would not start."""
    engine = engine_named(unit.engine)
    sizes, settings = layout_arguments(engine, unit.layout)
    config = model_of(shared.model, unit.quantization, unit.kv_cache_dtype, unit.engine)
    assert config is not None
    return deploy(
        config, device_of(unit.gpu, shared.network), engine.settings({**settings, **dict(unit.settings)}), **sizes,
        pcie_topology=shared.pcie_topology, power_limit_w=unit.power_limit, api_server=shared.api_server,
        predictor=_predictor(shared.predictor, engine.family), calibration=shared.calibration,
    )  # fmt: skip


@lru_cache(maxsize=32)
def own_timer(shared: SharedDeployOptions, unit: Candidate) -> KernelTimer:
    """The step timer of a candidate, with steps as large as its settings allow and no larger."""
    return deployed(shared, unit).timer()


def rough_timer(shared: SharedDeployOptions, units: tuple[Candidate, ...]) -> KernelTimer:
    """One timer for units that differ in settings alone, with steps of up to `ROUGH_TOKENS` tokens."""
    found = [deployed(shared, unit) for unit in units]
    sequences = max(each.settings.max_num_seqs for each in found)
    tokens_name, sequences_name, _ = found[0].engine.bounds
    bounds = {sequences_name: sequences, tokens_name: max(ROUGH_TOKENS, sequences)}
    return replace(found[0], settings=changed(found[0].settings, **bounds)).timer()


def least_watts(question: Question, candidate: Candidate) -> float:
    """The least power of its servers at the wall, with idle GPUs."""
    idle = [board_power(device_of(pool.gpu, question.network)).idle_watts for pool in candidate.pools]
    placed = zip(candidate.pools, idle, strict=True)
    return facility_watts([(*_placed(question, pool), watts) for pool, watts in placed], 1.0)


def rough_joules(question: Question, candidate: Candidate) -> float:
    """Rough energy of an output token at the wall, with GPUs at a usual share of their limit."""
    limits = [pool.power_limit or device_of(pool.gpu, question.network).tdp for pool in candidate.pools]
    busy = 0.6  # Rough share of its limit that a board draws while it serves: for an order before anything is timed
    boards = [(*_placed(question, pool), busy * most) for pool, most in zip(candidate.pools, limits, strict=True)]
    return facility_watts(boards, question.facility.pue or 1.0) / question.output_tokens_per_second


def beyond_budget(question: Question, cost: float | None, drawn: PowerDraw | None) -> str:
    power, money = question.power_budget, question.budget
    if money is not None and cost is not None and cost > money:
        return f"costs ${cost:,.2f} per hour with electricity, above the budget of ${money:,.2f}"
    if power is not None and drawn is not None and drawn.peak_watts > power:
        return f"draws {format_watts(drawn.peak_watts)} at most, above the power budget of {format_watts(power)}"
    return ""


def _placed(question: Question, pool: Candidate) -> tuple[int, Server]:
    server = server_around(device_of(pool.gpu, question.network), question.facility)
    return pool.replicas * pool.layout.gpus, server


class Objective(NamedTuple):
    name: str
    says: str  # The winner in words: ``costs least``
    known: Callable[[Question, Candidate], float] | None  # Its value before any timing; None if not known
    value: Callable[[Row], float]  # Its value of a simulated candidate
    finds_rate: bool = False  # Whether it maximises the request rate
    rough: bool = False  # Whether ``known`` is only approximate


def _or_worst(value: float | None) -> float:
    """Unknown values sort last."""
    return inf if value is None else value


def joules_per_token(row: Row) -> float:
    drawn = None if row.figures is None else row.figures.drawn
    return inf if drawn is None else drawn.wall_joules_per_output_token


OBJECTIVES = {
    each.name: each
    for each in (
        Objective(
            "cost", "costs least", lambda question, candidate: _or_worst(question.cost(candidate)),
            lambda row: _or_worst(row.cost),
        ),
        Objective("gpus", "needs fewest GPUs", lambda _, candidate: float(candidate.gpus), lambda row: float(row.gpus)),
        Objective(
            "energy", "takes least energy at the wall for each output token", rough_joules, joules_per_token, rough=True
        ),
        Objective(
            "latency", "answers soonest", None, lambda row: inf if row.figures is None else row.figures.end_to_end.mean
        ),
        Objective(
            "throughput", "serves most requests per second", None, lambda row: -(row.rate or 0.0), finds_rate=True
        ),
    )
}  # fmt: skip


def length_for(model: str, workload: Workload) -> int:
    """Tokens of the longest sequence that a workload needs, rounded up to a power of two."""
    longest = max(request.num_input + request.num_output for request in workload.requests)
    usual_lengths = 8192  # Tokens that the longest allowed sequence has at least, where a model has as many positions
    return min(max(usual_lengths, 1 << (longest - 1).bit_length()), load_model(model).max_positions)


class Lengths(NamedTuple):
    new_inputs: Array  # Tokens of each prompt that nothing could have left in a cache
    outputs: Array


@dataclass(frozen=True)
class Question:
    """A model, a workload and an SLO, and the space to search. All of it can be pickled."""

    model: str
    workload: Workload
    slo: Slo
    gpus: tuple[str, ...]
    engines: tuple[str, ...]
    prices: tuple[float | None, ...] = ()  # Dollars per hour of one GPU of each kind; None if not known
    max_gpus: int = 8
    budget: float | None = None  # Most money an hour
    power_budget: float | None = None  # Most watts of all servers at the wall, without the building, at their peak
    power_limits: tuple[float | None, ...] = (None,)  # Watts that boards may be held at; None: as many as they take
    facility: Facility = field(default_factory=Facility)  # Servers, building and grid
    left_out: tuple[str, ...] = ()  # Why kinds of GPU that were named are not among them, a sentence each
    metered: tuple[str, ...] = ()  # Owned kinds of GPU, with electricity on top of their price
    quantizations: tuple[str | None, ...] = (None,)
    kv_cache_dtypes: tuple[str, ...] = ("auto",)
    settings: tuple[Settings, ...] | None = None  # What is tried of settings; None: what each engine says of itself
    max_model_len: int | None = None  # None: as long as the workload needs, rounded up to a power of two
    disaggregate: bool = False  # Whether a prefill pool and a decode pool are looked at, too
    objective: str = "cost"
    least_odds: float = 0.0  # The SLO must hold with this probability; 0: it holds by the forecast's own numbers
    network: str | None = DEFAULT_LINK  # Between nodes; None: no engine spans two
    link: str = DEFAULT_LINK
    pcie_topology: str | None = None
    api_server: bool = True
    predictor: str = "learned"
    calibration: Calibration | None = None
    axes: tuple[PlanAxis, ...] = AXES  # Dimensions of the search, other than the number of replicas

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UnknownNameError("objective", self.objective, OBJECTIVES)
        require(1 <= self.max_gpus <= MOST_ENGINES, "max_gpus", f"be from 1 to {MOST_ENGINES:,}", self.max_gpus)
        require(0.0 <= self.least_odds < 1.0, "least_odds", "be a probability from 0 to below 1", self.least_odds)
        require(self.budget is None or 0 < self.budget < inf, "budget", "be dollars per hour above 0", self.budget)
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
        return self.prices or (None,) * len(self.gpus)

    @cached_property
    def price_of(self) -> dict[str, float | None]:
        return dict(zip(self.gpus, self.all_prices, strict=True))

    @property
    def goal(self) -> Objective:
        return OBJECTIVES[self.objective]

    @cached_property
    def longest(self) -> int:
        return max(request.num_input + request.num_output for request in self.workload.requests)

    @cached_property
    def model_len(self) -> int:
        """``max_model_len`` of every candidate."""
        return self.max_model_len or length_for(self.model, self.workload)

    @cached_property
    def shared(self) -> SharedDeployOptions:
        return SharedDeployOptions(
            self.model, self.network, self.pcie_topology, self.api_server, self.predictor, self.calibration
        )

    @cached_property
    def rate(self) -> float:
        """Requests a second; of a trace, on average."""
        if self.workload.rate is not None:
            return self.workload.rate
        requests = self.workload.requests
        span = requests[-1].arrival - requests[0].arrival
        return (len(requests) - 1) / span if span > 0 else float(len(requests))

    @cached_property
    def lengths(self) -> Lengths:
        requests = self.workload.requests
        new = [max(1, each.num_input - sum(part.num_tokens for part in each.prefix)) for each in requests]
        return Lengths(np.array(new, dtype=float), np.array([each.num_output for each in requests], dtype=float))

    @cached_property
    def output_tokens_per_second(self) -> float:
        """Mean output tokens per second of the workload."""
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

    def whole_cost(self, candidate: Candidate, drawn: PowerDraw | None) -> float | None:
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
            found = [choice for each in found for choice in axis.choices(self, each)]
        for each in found:
            yield each.with_settings(**{engine_named(each.engine).bounds[2]: self.model_len, **dict(each.settings)})

    def at_rate(self, factor: float) -> Question:
        """The same with a request rate scaled by a factor."""
        if factor == 1.0:
            return self
        rate = None if self.workload.rate is None else self.workload.rate * factor
        if self.workload.open_ended and (drawn := redrawn_with(self.workload, rate=rate)) is not None:
            return replace(self, workload=drawn)
        requests = tuple(replace(each, arrival=each.arrival / factor) for each in self.workload.requests)
        found = replace(self.workload, requests=requests, rate=rate, drawn=None, open_ended=False)
        return replace(self, workload=found)


class Nearest(NamedTuple):
    """The nearest question that has an answer."""

    row: Row  # What would be the answer
    sentence: str  # What would have to be asked instead


USUAL_ODDS = 0.8  # How sure a plan is that the SLO holds, where nothing else is asked for
ODDS = (0.5, USUAL_ODDS, 0.9, 0.95, 0.99)  # Others that it is compared with


@dataclass(frozen=True, slots=True, repr=False)
class Plan(PlottableResult):
    """The answer; rows are sorted, best first, and `winner` is the first of them if there is one."""

    question: Question
    winner: Row | None
    front: tuple[Row, ...]  # Those that keep the SLO and none beats in cost, TTFT and TPOT together; cheapest first
    rows: tuple[Row, ...]  # Every candidate that was looked at, best first, those that were refused last
    runner_up: Row | None
    why: str  # Why the runner-up lost, or which constraint fails if there is no winner; one sentence
    changes: tuple[str, ...]  # What would change the decision, a sentence each
    nearest: tuple[Nearest, ...] = ()  # What is nearest to an answer, if there is no winner
    notes: tuple[str, ...] = ()
    num_candidates: int = 0  # Number of candidates that the question allows, also those never looked at
    cut: str = ""  # When a search was cut before its end, and what it did not come to; empty where it was not

    def _words(self) -> str:
        what = f"{self.question.model}, {self.question.slo}"
        return f"{what}: {self.why if self.winner is None else self.winner.candidate}"

    @property
    def by_odds(self) -> list[tuple[float, Row]]:
        """The best of what was simulated, by the least probability that the SLO holds; only those that change it."""
        goal, found = self.question.goal, list[tuple[float, Row]]()
        kept = [row for row in self.rows if row.figures is not None and replace(row.figures, asked_odds=0.0).holds]
        for odds in sorted({*ODDS, self.question.least_odds} - {0.0}):
            sure = [row for row in kept if row.figures is not None and (row.figures.odds or 0.0) >= odds]
            best = min(
                sure, key=lambda row: (goal.value(row), -(row.headroom or 0.0), str(row.candidate)), default=None
            )
            if best is not None and (not found or found[-1][1] is not best):
                found.append((odds, best))
        return found

    @property
    def num_unseen(self) -> int:
        """Candidates that were not looked at: others need fewer GPUs or less money, unless the search was cut."""
        return max(0, self.num_candidates - len(self.rows))

    def count(self, stage: Stage) -> int:
        """Candidates that came so far and no further."""
        return sum(row.stage is stage for row in self.rows)
