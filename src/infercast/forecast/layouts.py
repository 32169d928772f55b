"""Every parallel layout of a model on a number of GPUs, compared as `simulate` has them; and cuts of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from typing import Any, Unpack

from infercast.engines.base import Deployment, check_nodes
from infercast.engines.settings import Settings, changed
from infercast.engines.stages import StepKind, cut_layout, request_steps, stage_seconds
from infercast.errors import DoesNotFitError, InputError, require
from infercast.forecast.cost import Cost, GpuPrice, Tariff
from infercast.forecast.deploy import (
    DeployOptions,
    GpuSource,
    ModelSource,
    deploy,
    layout_arguments,
    load_device,
    load_model,
    model_options,
    resolve_settings,
    with_keywords,
)
from infercast.forecast.energy import Energy, Facility, FacilityEnergy
from infercast.forecast.intervals import Intervals
from infercast.forecast.parallel import on_all_cores
from infercast.forecast.progress import clock, note_cut, share_of_time, stage_progress, time_budget, time_left
from infercast.forecast.result import Forecast, Verdict
from infercast.forecast.simulate import SystemRun, forecast_of, serve_system
from infercast.forecast.slo import Percentiles, Slo, parse_slo
from infercast.forecast.steady import LATE, State
from infercast.forecast.system import System, system_of
from infercast.hardware import Gpu
from infercast.hardware.gpu import with_topology
from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig, check_layout, stage_layers
from infercast.predict.estimate import basis_of, kind_of
from infercast.predict.learned import make_predictor, ordering
from infercast.serve import Workload
from infercast.serve.fleet.pool import MOST_ENGINES
from infercast.serve.workload.synthetic import synthetic_workload
from infercast.shown import PlottableResult, ReprMixin, ResultMixin
from infercast.units import format_figure, format_seconds

UNTRIED = "not tried within the time"
CONCURRENCY, NUM_INPUT, NUM_OUTPUT = 64, 1024, 256  # The default load: clients of a closed loop, and tokens of requests


@dataclass(frozen=True, slots=True, repr=False)
class LayoutCost(ReprMixin):
    """One layout on one kind of GPU; times in seconds."""

    gpu: Gpu
    layout: ParallelLayout
    weights: float = 0.0  # Bytes per GPU
    kv_tokens: int = 0  # Tokens that the caches of all replicas hold together
    running: float = 0.0  # Sequences that run at once on all replicas, on average
    ttft: Percentiles | None = None  # Time to first token, in seconds; None where nothing was simulated
    tpot: Percentiles | None = None  # Time per output token, in seconds; None without second tokens, or a simulation
    output_tokens_per_second: float = 0.0  # Output tokens per second of all GPUs together
    saturation: State | None = None
    intervals: Intervals | None = None  # 80 % intervals of latencies and throughput; None where nothing was simulated
    problem: str = ""  # Why it cannot be done
    source: str = ""  # What the weakest of the estimates that count rests on: one of `SOURCES`
    verdict: Verdict | None = None  # How it does by an SLO, where there is one and the layout keeps up
    price: GpuPrice | None = None
    cost: Cost | None = None  # None where no price is known
    energy: Energy | None = None  # What its GPUs draw; None where that is not known or nothing was simulated ...
    wall: FacilityEnergy | None = None  # ... and the same with servers and building.
    forecast: Forecast | None = None  # The run that all this is of

    def _words(self) -> str:
        what = f"{self.layout.gpus} x {self.gpu.name}, {self.layout}"
        if self.problem or self.ttft is None:
            return f"{what}: {self.problem or 'cannot keep up'}"
        tokens = format_figure(self.output_tokens_per_second)
        return f"{what}: TTFT {format_seconds(self.ttft.mean)}, {tokens} output tokens/s"

    @property
    def kind(self) -> str:
        """``estimate``, or ``bound``: the least that hardware allows, not to be ranked with estimates."""
        return kind_of(self.source)

    @property
    def output_tokens_per_second_a_gpu(self) -> float:
        """Output tokens per second and GPU."""
        return self.output_tokens_per_second / self.layout.gpus

    @property
    def ttft_interval(self) -> tuple[float, float] | None:
        """80 % interval of the mean TTFT."""
        return None if self.intervals is None else (self.intervals.ttft.low.mean, self.intervals.ttft.high.mean)

    @property
    def tpot_interval(self) -> tuple[float, float] | None:
        """80 % interval of the mean TPOT."""
        band = None if self.intervals is None else self.intervals.tpot
        return None if band is None else (band.low.mean, band.high.mean)

    @property
    def output_tokens_per_second_interval(self) -> tuple[float, float] | None:
        """80 % interval of the throughput."""
        return None if self.intervals is None else self.intervals.output_tokens_per_second


class Layouts(PlottableResult, tuple[LayoutCost, ...]):
    """Layouts that were compared, in the order of the question; a tuple that can show itself."""

    model: str
    workload: Workload
    tariff: Tariff

    @staticmethod
    def of(costs: Iterable[LayoutCost], model: str, workload: Workload, tariff: Tariff) -> Layouts:
        found = Layouts(costs)
        found.model, found.workload, found.tariff = model, workload, tariff
        return found

    def _words(self) -> str:
        fitting = sum(not each.problem for each in self)
        return f"{self.model}, {len(self)} layouts, {fitting} of which fit"


def compare(
    model: ModelSource, gpus: Sequence[GpuSource], *, num_gpus: Iterable[int] = (1, 2, 4, 8),
    workload: Workload | None = None, router: str | None = None, slo: Slo | str | None = None,
    price: Tariff | float | None = None, facility: Facility | None = None,
    tell: Callable[[str], None] | bool | None = None, time_limit: float | None = None, **options: Unpack[DeployOptions],
) -> Layouts:  # fmt: skip
    """Simulate every layout that the model allows on every kind and number of GPUs; some do not fit, and say so.

    ``router`` is the load balancer of layouts with several replicas. ``tell`` is called with each layout as it begins.
    An ``slo`` is judged for every layout that keeps up, which takes the full intervals of each. ``price`` is in dollars
    per GPU and hour, or a `Tariff`; ``facility`` describes servers and building. ``options`` are those of `deploy`; GPU
    factors of a ``calibration`` hold for layouts of the GPU that was measured. Runs that are not precise when their
    part of ``time_limit`` seconds is over end there.
    """
    slo = parse_slo(slo) if isinstance(slo, str) else slo
    tariff, facility = Tariff.of(price), facility or Facility()
    settings, given = with_keywords(options.pop("settings", None), options.get("engine"), options)
    of_model, others = model_options(given)
    wanted, engine = resolve_settings(settings, others.pop("engine", None))
    load = workload or synthetic_workload(concurrency=CONCURRENCY, input_lengths=NUM_INPUT, output_lengths=NUM_OUTPUT)
    config = load_model(model, engine=engine, **of_model)
    network, topology = others.pop("network", None), others.pop("pcie_topology", None)
    devices = [with_topology(load_device(each, network), topology) for each in gpus]
    predictor = others.pop("predictor", "learned")
    chosen = make_predictor(predictor, engine.family) if isinstance(predictor, str) else predictor
    start: Callable[..., Deployment] = partial(deploy, config, predictor=chosen, **others)
    found: list[tuple[Gpu, ParallelLayout, System | str]] = []
    with stage_progress(tell) as say, time_budget(time_limit):
        for device, layout in layouts_of(config, devices, num_gpus):
            if layout.pipeline > 1 and engine.drafts(wanted):
                continue  # not modelled
            sizes, further = layout_arguments(engine, layout if config.has_experts else replace(layout, apart=True))
            try:
                deployment = start(device, changed(wanted, **further), **sizes)
            except DoesNotFitError as problem:
                found.append((device, layout, str(problem)))
                continue
            found.append((device, layout, system_of(deployment, router if layout.data > 1 else None)))
        # Those first that take least time: of stages and of replicas in lockstep each step is simulated by itself.
        order = [place for place, (_, _, system) in enumerate(found) if isinstance(system, System)]
        order.sort(key=lambda place: (found[place][1].pipeline, found[place][1].data))
        until, serve = clock() + time_left(), partial(_served, load=load, slo=slo)
        done = on_all_cores(serve, [(found[place][2], until if place != order[0] else inf) for place in order])
        runs = {}
        for place in order:
            say(f"{found[place][1]} on {found[place][0].name}")
            runs[place] = next(done)
        costs: list[LayoutCost] = []
        for place, (device, layout, system) in enumerate(found):
            run = runs.get(place)
            if isinstance(system, str) or run is None:
                costs.append(LayoutCost(device, layout, problem=system if isinstance(system, str) else UNTRIED))
                continue
            served, intervals = run
            forecast = replace(forecast_of(system, served), tariff=tariff, facility=facility)
            if intervals is None:
                note_cut("intervals")
            else:
                forecast.keep("intervals", partial(replace, intervals))
            if slo is not None and forecast.state.is_steady:
                forecast = forecast.promised(slo)
            costs.append(_cost_of(forecast, layout, intervals))
        if any(run is None for run in runs.values()):
            note_cut("layouts")
    return Layouts.of(costs, config.name, load, tariff)


class _TimeIsOver(Exception):  # noqa: N818 - a reason to leave a layout out
    pass


def _served(asked: tuple[System, float], load: Workload, slo: Slo | None) -> tuple[SystemRun, Intervals | None] | None:
    """What takes time of a layout, with the intervals that an SLO needs; None if the time is over before it ends."""
    system, until = asked

    def stop(*_: object) -> None:
        if clock() > until:
            raise _TimeIsOver

    of_run = 0.5  # The share of the time that is for the run itself
    try:
        stop()
        with share_of_time(of_run):
            served = serve_system(system, load, slo=slo, progress=None if until == inf else stop)
    except _TimeIsOver:
        return None
    if slo is None and time_left() <= 0.0:
        return served, None
    return served, forecast_of(system, served).intervals


def count_layouts(
    model: ModelSource, gpus: Sequence[GpuSource], num_gpus: Iterable[int], network: str | None = None
) -> int:
    return len(list(layouts_of(load_model(model), [load_device(each, network) for each in gpus], num_gpus)))


def layouts_of(
    config: ModelConfig, devices: Sequence[Gpu], num_gpus: Iterable[int]
) -> Iterator[tuple[Gpu, ParallelLayout]]:
    counts = sorted(set(num_gpus))
    if not counts or counts[0] < 1 or counts[-1] > MOST_ENGINES:
        raise InputError(f"numbers of GPUs must be from 1 to {MOST_ENGINES:,}, not {counts}")
    for device in devices:
        for count in counts:
            for layout in valid_layouts(config, count, device):
                yield device, layout


def valid_layouts(config: ModelConfig, num_gpus: int, gpu: Gpu) -> Iterator[ParallelLayout]:
    """Layouts over exactly this number of GPUs that the model's dimensions and the GPUs' links allow."""
    for tensor in _divisors(num_gpus):
        for pipeline in _divisors(num_gpus // tensor):
            data = num_gpus // tensor // pipeline
            # Experts are spread over the GPUs of a stage; a single one has all of them anyway.
            for experts in (False, True) if config.has_experts and tensor * data > 1 else (False,):
                layout = ParallelLayout(tensor, pipeline, data, experts=experts)
                try:
                    check_layout(config, layout)
                    check_nodes(config, layout, gpu)
                except InputError:
                    continue
                yield layout


def _divisors(number: int) -> list[int]:
    return [size for size in range(number, 0, -1) if number % size == 0]


def _cost_of(forecast: Forecast, layout: ParallelLayout, intervals: Intervals | None) -> LayoutCost:
    gpu, memory = forecast.deployment.gpu, forecast.deployment.memory
    families = (family for phase in forecast.phases for family in phase.families if family.source)
    return LayoutCost(
        gpu=gpu, layout=layout, weights=memory.weights, kv_tokens=layout.data * memory.num_tokens,
        running=forecast.running.mean, ttft=forecast.ttft, tpot=forecast.tpot,
        output_tokens_per_second=forecast.output_tokens_per_second, saturation=forecast.saturation,
        intervals=intervals, source=basis_of((each.source, each.seconds) for each in families),
        verdict=forecast.verdict, price=forecast.tariff.price(gpu.name, forecast.facility), cost=forecast.cost,
        energy=forecast.energy, wall=forecast.wall, forecast=forecast,
    )  # fmt: skip


def comparison_notes(costs: Sequence[LayoutCost]) -> list[str]:
    """Announced figures, kernels that are out of order, or were put in order, and what the time limit cut."""
    gpus = {cost.gpu.name: cost.gpu for cost in costs}
    announced = [note for gpu in gpus.values() for note in gpu.announced_notes]
    runs = sum(cost.forecast is not None and cost.forecast.steady.stopped == LATE for cost in costs)
    late = f"the time limit ended the runs of {runs} layouts: a longer --time-limit narrows them" if runs else ""
    ordered = ordering().notes([*gpus.values()]) if len(gpus) > 1 else []
    return [*announced, *ordered, *([late] if late else [])]


def ranked(costs: Iterable[LayoutCost]) -> list[LayoutCost]:
    """Best first: keeps its promise, most tokens a GPU (at a rate: fewest GPUs, shortest answers), bounds, does not
    fit.
    """

    def place(cost: LayoutCost) -> tuple[bool, bool, bool, bool, float, float]:
        broken = cost.verdict is not None and not cost.verdict.holds
        worst = bool(cost.problem), bool(cost.saturation), cost.kind == "bound", broken
        if cost.forecast is None or cost.forecast.workload.rate is None:
            return *worst, -cost.output_tokens_per_second_a_gpu, 0.0
        return *worst, cost.layout.gpus, cost.forecast.end_to_end.mean

    return sorted(costs, key=place)


class Cut(NamedTuple):
    """By stage; times are of its GPU, in seconds, without the host."""

    layers: tuple[int, ...]
    request_seconds: list[float]  # Both steps below, decode steps by the request's share of the batch
    prefill_seconds: list[float]  # The step of a prompt
    decode_seconds: list[float]  # A decode step
    weight_bytes: list[float]
    kv_tokens: list[int]  # Room of the KV cache; an engine takes that of the stage with least
    fits: bool


@dataclass(frozen=True, slots=True, repr=False)
class Partition(ResultMixin):
    """A pipeline under the engine's own cut and another one."""

    deployment: Deployment
    usual: Cut  # The engine's own
    cut: Cut  # The one that was asked for, or the best
    num_input: int  # Tokens of a prompt
    num_output: int  # Tokens of an answer
    batch: int  # Sequences of a decode step

    @property
    def saved_share(self) -> float:
        """Share of the slowest stage's time, which paces a full pipeline, that the cut saves."""
        return 1.0 - max(self.cut.request_seconds) / max(self.usual.request_seconds)

    def _words(self) -> str:
        cuts = [",".join(map(str, each.layers)) for each in (self.cut, self.usual)]
        where = f"{self.deployment.model.name} on {self.deployment.gpu.title}, {self.deployment.layout}"
        return f"{where}: {cuts[0]} saves {self.saved_share:.1%} against {cuts[1]}"

    def document(self) -> dict[str, Any]:
        deployment, about, found = self.deployment, dict[str, Any](), dict[str, Any]()
        stages: list[dict[str, Any]] = [{"gpu": deployment.gpu.at(at).name} for at in range(len(self.cut.layers))]
        for of, cut in (("default_", self.usual), ("", self.cut)):
            slowest, busy = max(cut.request_seconds), sum(cut.request_seconds) / len(stages)
            found |= {
                f"{of}partition": ",".join(map(str, cut.layers)), f"{of}slowest_stage_seconds": slowest,
                f"{of}requests_per_second": 1.0 / slowest, f"{of}output_tokens_per_second": self.num_output / slowest,
                f"{of}bubble_share": 1.0 - busy / slowest, f"{of}kv_tokens": min(cut.kv_tokens), f"{of}fits": cut.fits,
            }  # fmt: skip
            for name in Cut._fields[: 2 if of else -1]:
                for stage, value in zip(stages, getattr(cut, name), strict=True):
                    stage[f"{of}{name}"] = value
        about |= {"model": deployment.model.name, "engine": deployment.engine.name, "layout": str(deployment.layout)}
        about |= {"input_len": self.num_input, "output_len": self.num_output, "batch": self.batch}
        setting = f"{deployment.engine.commands.layer_partition}={found['partition']}"
        return about | found | {"saved_time_share": self.saved_share, "set": setting, "stages": stages}


def estimate_partition(
    model: ModelSource, gpu: GpuSource, settings: Settings | None = None, *, input_len: int = 1024,
    output_len: int = 256, batch: int = 32, pp_layer_partition: str | None = None, **options: Any,
) -> Partition:  # fmt: skip
    """Cut a model into pipeline stages so that the slowest is quickest, or as ``pp_layer_partition`` says. What counts
    is the time that a stage spends on a request: its prompt of ``input_len`` tokens, and ``output_len`` decode steps
    that it shares with a ``batch``; 0 leaves one of both out. ``options`` are those of `deploy`.
    """
    for name, value, least in (("input_len", input_len, 0), ("output_len", output_len, 0), ("batch", batch, 1)):
        require(least <= value <= 1 << 20, name, f"be from {least} to {1 << 20:,}", value)
    if not input_len + output_len or options.get("pipeline_parallel_size", 1) < 2:
        raise InputError("a partition needs tokens of requests, and a pipeline_parallel_size of 2 or more")
    asked = "auto" if pp_layer_partition is None else pp_layer_partition
    try:
        found = deploy(model, gpu, settings, **options)
    except DoesNotFitError:  # perhaps cut otherwise
        found = deploy(model, gpu, settings, pp_layer_partition=asked, **options)
    longest, most = found.settings.max_model_len, found.settings.max_num_seqs
    if input_len + output_len > longest or batch > most:
        asked_for = f"input_len {input_len}, output_len {output_len} or batch {batch}"
        raise InputError(f"{asked_for} is above what the engine takes, {longest} tokens and {most} sequences")
    work = request_steps(input_len, output_len, batch)
    layouts = replace(found.layout, cut=()), cut_layout(found, asked, work)
    usual, cut = (_cut(replace(found, layout=layout), work) for layout in layouts)
    return Partition(found, usual, cut, input_len, output_len, batch)


def _cut(deployment: Deployment, work: tuple[StepKind, StepKind]) -> Cut:
    engine, settings, layout, model = deployment.engine, deployment.settings, deployment.layout, deployment.model
    prompt, decode = (stage_seconds(deployment, kind) for kind in work)
    whole = [work[0].times * one + work[1].times * other for one, other in zip(prompt, decode, strict=True)]
    memories = [engine.plan_memory(model, layout, deployment.gpu, settings, at) for at in range(layout.pipeline)]
    held = [each.weights for each in memories], [each.num_tokens for each in memories]
    chunk = engine.tokens_under_way(settings, layout)
    fits = all(each.most_sequences(settings.max_model_len, chunk) for each in memories)
    return Cut(stage_layers(model.layers, layout), whole, prompt, decode, *held, fits)
