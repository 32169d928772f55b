"""A command explained: what each flag does, what users would see, and what should be different."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.engines.base import Deployment, Engine, engine_of
from infercast.engines.settings import NOT_MODELLED, READ, REFUSED
from infercast.errors import DoesNotFitError, InfercastError, InputError
from infercast.forecast.command.flags import OF_DEPLOY, Flag, FlagPoint, Reading, known_flags
from infercast.forecast.command.pasted import Pasted, read_command
from infercast.forecast.cost import Tariff
from infercast.forecast.deploy import GpuSource, load_device
from infercast.forecast.diagnosis.changes import ANSWERS, FREE, GPUS, Change, changes_of, label_of
from infercast.forecast.diagnosis.trials import Gain, Trials
from infercast.forecast.energy import Facility
from infercast.forecast.intervals import Intervals
from infercast.forecast.kernels import decode_shape, estimate_shape, prefill_shape
from infercast.forecast.memory import Fit
from infercast.forecast.parallel import on_all_cores
from infercast.forecast.progress import OVER, note_cut, share_of_time, time_left
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import most_requests_per_second, simulate_system
from infercast.forecast.slo import Slo
from infercast.forecast.system import system_of
from infercast.models.library import checkpoint
from infercast.models.read import read_object
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import Predictor
from infercast.serve import Workload
from infercast.serve.step import StepShape, constant_timer
from infercast.serve.workload.synthetic import drawn_with, synthetic_workload
from infercast.shown import ResultMixin
from infercast.units import format_bytes, format_percent, format_seconds

LEAST = 0.02  # Smaller changes of a number are not worth a setting ...
LEAST_GAIN = 0.002  # ... and of the mean over all numbers, not its place in a command.


class MetricDelta(NamedTuple):
    load: str
    of: Gain
    is_aim: bool  # Whether it is what matters most under this load

    @property
    def is_real(self) -> bool:
        return abs(self.of.gain) > max(self.of.error, LEAST)

    @property
    def gain(self) -> float:
        """Positive where it is better; nothing where it may be noise."""
        return self.of.gain if self.is_real else 0.0

    @property
    def name(self) -> str:
        return self.of.aim.name

    @property
    def change(self) -> float:
        return self.of.ratio - 1.0

    @property
    def noise(self) -> float:
        return exp(self.of.error) - 1.0


@dataclass(frozen=True, slots=True)
class Advice:
    change: Change
    gpus: float  # Times as many GPUs
    effects: tuple[MetricDelta, ...]

    @property
    def label(self) -> str:
        return self.change.label

    @property
    def answers(self) -> bool:
        return self.change.cost == ANSWERS

    @property
    def real(self) -> list[MetricDelta]:
        return sorted((each for each in self.effects if each.is_real), key=lambda each: -abs(each.of.gain))

    @property
    def gain(self) -> float:
        """The mean over all numbers, as a logarithm; what matters most counts as much as all others."""
        parts = [[each.gain for each in self.effects if each.is_aim is which] for which in (True, False)]
        means = [sum(gains) / len(gains) for gains in parts if gains]
        return sum(means) / max(1, len(means))

    @property
    def worst(self) -> float:
        return min((each.gain for each in self.effects), default=0.0)


@dataclass(frozen=True, slots=True)
class Advised:
    ranked: tuple[Advice, ...]  # What helps on the same GPUs, best first
    other_gpus: tuple[Advice, ...]  # The same with more or fewer GPUs, whatever it does
    worse: tuple[Advice, ...]
    without_effect: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]  # What the engine would not start with, and why
    applied: dict[str, Any]  # The values of the recommended command that differ from the given one ...
    together: Advice | None  # ... and what they do together.
    untried: tuple[str, ...] = ()  # What the time limit left no time for


def advise(loads: Sequence[tuple[str, Forecast]], tell: Callable[[str], None] = lambda _: None) -> Advised:
    trials = [(name, Trials(forecast)) for name, forecast in loads]
    found: list[Advice] = []
    quiet: list[str] = []
    refused: list[tuple[str, str]] = []
    # A balancer of its own is nothing that a command starts.
    changes = [each for each in changes_of(loads[-1][1]) if each.router is None]
    untried: list[str] = []
    for change, advice in zip(changes, on_all_cores(partial(_tried, trials=trials), changes, later=1.0), strict=True):
        tell(change.label)
        if advice is None:
            untried.append(change.label)
            note_cut("advice")
        elif isinstance(advice, InfercastError):
            refused.append((change.label, str(advice)))
        elif advice.real:
            found.append(advice)
        else:
            quiet.append(change.label)
    found.sort(key=lambda advice: -advice.gain)
    same = [each for each in found if each.change.cost != GPUS]
    helpful = tuple(each for each in same if each.gain > LEAST_GAIN)
    together = _combine(helpful, trials)
    return Advised(
        ranked=helpful, other_gpus=tuple(each for each in found if each.change.cost == GPUS),
        worse=tuple(each for each in same if each.gain <= LEAST_GAIN), without_effect=tuple(quiet),
        refused=tuple(refused), applied={} if together is None else dict(together.change.values), together=together,
        untried=tuple(untried),
    )  # fmt: skip


def _tried(change: Change, trials: Sequence[tuple[str, Trials]]) -> Advice | InfercastError | None:
    """What a change does, why the engine refuses it, or None if the time is over."""
    if time_left() <= OVER:
        return None
    try:
        return _try(change, trials)
    except InfercastError as problem:
        return problem


def _try(change: Change, trials: Sequence[tuple[str, Trials]]) -> Advice:
    before = trials[0][1].forecast.system
    system = change.applied(before)
    effects = [
        MetricDelta(name, gain, gain.aim == trial.aim)
        for name, trial in trials
        for gain in trial.change(change, system)[1]
    ]
    return Advice(change, system.gpus / before.gpus, tuple(effects))


def _combine(ranked: Sequence[Advice], trials: Sequence[tuple[str, Trials]]) -> Advice | None:
    """Add one change after the other, best first, as long as users gain and nothing gets much worse."""
    best: Advice | None = None
    trade = 0.05  # The recommended command makes no number worse by more than this, or than what is gained on average
    for advice in ranked:
        change = advice.change
        if time_left() <= 0.0:
            break
        taken = {} if best is None else best.change.values
        if change.cost != FREE or {*change.values} & {*taken}:
            continue
        both = change._replace(values={**taken, **change.values}, kernels=True)
        try:
            now = _try(both, trials)
        except InfercastError:
            continue
        if now.worst > -max(trade, now.gain) and now.gain > (0.0 if best is None else best.gain) + LEAST_GAIN:
            best = now
    return best


TIMES = (1, 2, 4, 8, 16)


class Fix(NamedTuple):
    values: dict[str, Any]
    answers: bool  # Whether the model's numeric formats, and so its answers, change
    gpus: float  # Times as many GPUs

    @property
    def label(self) -> str:
        return label_of(self.values)


def changes_that_fit(point: FlagPoint, fit: Fit) -> Iterator[Fix]:
    """For the checkpoint's own format and narrower ones: shorter sequences on these GPUs, and the fewest GPUs."""
    own = fit.model.weights.name in ("bf16", "fp16") and not point.options.get("quantization")
    useful = 2048  # shorter sequences are of no use
    narrow = ("fp8", "int4")  # Formats of weights to try; the second needs a checkpoint of its own
    for weights in (None, *(narrow if own else ())):
        formats: dict[str, Any] = {} if weights is None else {"quantization": weights}
        shorter_said = False
        for times in TIMES:
            tensor = times * fit.layout.tensor
            if tensor * fit.layout.pipeline > fit.gpu.gpus_per_node:
                break
            values = formats | ({"tensor_parallel_size": tensor} if times > 1 else {})
            try:
                point.changed(values).deploy()
            except DoesNotFitError:
                longest = point.changed(values).fit(fit.context).longest_sequence // 1024 * 1024
                if useful <= longest < fit.settings.max_model_len and not shorter_said:
                    shorter_said = True
                    yield Fix(values | {point.engine.bounds[2]: longest}, weights is not None, float(times))
                continue
            except InputError:  # a layout that the model does not allow
                continue
            yield Fix(values, weights is not None, float(times))
            break


PROMPT = 1024  # tokens of the prompts that a full step is made of here


class FlagExplanation(NamedTuple):
    flag: Flag
    default: str
    text: str


class FlagContext(NamedTuple):
    fit: Fit  # As the command says ...
    usual: Fit | None  # ... and without the flag; None where that is refused.
    deployment: Deployment | None  # As the command says, if it fits
    usual_deployment: Callable[[], Deployment]


def explain_flags(point: FlagPoint, reading: Reading, fit: Fit, deployment: Deployment | None) -> list[FlagExplanation]:
    found = []
    for flag in reading.flags:
        if flag.status == READ:
            without = point.changed({flag.field: None})
            try:
                usual = without.fit(fit.context)
            except InfercastError:
                usual = None
            around = FlagContext(fit, usual, deployment, without.deploy)
            found.append(FlagExplanation(flag, _default(flag.field, usual), _sentence(flag, around)))
    return found


def _default(field: str, usual: Fit | None) -> str:
    if usual is None:
        return "needed"
    if field in ("quantization", "dtype", "kv_cache_dtype"):
        return usual.model.cache_dtype if field == "kv_cache_dtype" else usual.model.weights.name
    if field == "num_gpu_blocks_override":
        return f"{usual.memory.num_blocks:,}"
    sizes = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size"}
    if field in OF_DEPLOY or field in sizes:
        return "1" if field in sizes else "off" if OF_DEPLOY[field] is bool else "auto"
    value = getattr(usual.settings, field, None)
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else "engine's" if value is None else str(value)


def _sentence(flag: Flag, around: FlagContext) -> str:
    if flag.field not in SENTENCES:
        text = read_data("flag_sentences.toml").get(flag.field, "")
        by_value = text if isinstance(text, dict) else {"other": text}
        return str(by_value.get(str(flag.value).lower(), by_value.get("other", ""))).format(flag.value, fit=around.fit)
    try:
        return SENTENCES[flag.field](flag, around)
    except InfercastError:
        return ""


def _layout(_: Flag, around: FlagContext) -> str:
    layout, memory = around.fit.layout, around.fit.memory
    each = f"{format_bytes(memory.weights)} of weights and {format_bytes(memory.kv.first_token_bytes)} per token"
    return f"{layout.tensor} GPUs share every layer: {each} on each" if layout.tensor > 1 else f"one GPU has {each}"


def _step(flag: Flag, around: FlagContext) -> str:
    tokens = int(flag.value)
    if around.deployment is None:
        return f"a step computes at most {tokens:,} tokens"
    length = min(PROMPT, tokens, around.deployment.settings.max_model_len)
    count = max(1, tokens // length)
    step = estimate_shape(around.deployment, StepShape([length] * count, [0] * count, count))
    return f"a step full of prompts takes {format_seconds(step.seconds)}, and decoding waits that long"


def _sequences(flag: Flag, around: FlagContext) -> str:
    fit = around.fit
    room = f"the KV cache has room for {fit.most_sequences:,} of {fit.context:,} tokens"
    decides = "this flag decides" if fit.most_sequences > flag.value else "the cache decides"
    return f"{room}: {decides} how many run"


def _longest(_: Flag, around: FlagContext) -> str:
    memory = around.fit.memory
    if not memory.request_blocks:
        return "no sequence fits"
    share = memory.kv.shape.most_blocks(around.fit.settings.max_model_len, 1) / memory.request_blocks
    return f"one sequence of that length takes {format_percent(share)} of the KV cache"


def _memory(_: Flag, around: FlagContext) -> str:
    memory = around.fit.memory
    text = f"{format_bytes(memory.kv_bytes)} of KV cache, {memory.num_tokens:,} tokens"
    if around.usual is not None and around.usual.memory.num_tokens != memory.num_tokens:
        text += f"; the default holds {around.usual.memory.num_tokens:,}"
    return text


def _weights(_: Flag, around: FlagContext) -> str:
    text = f"weights are {around.fit.model.weights.name}, {format_bytes(around.fit.memory.weights)} a GPU"
    return text if around.usual is None else f"{text} in place of {format_bytes(around.usual.memory.weights)}"


def _token(_: Flag, around: FlagContext) -> str:
    memory = around.fit.memory
    text = f"{format_bytes(memory.kv.first_token_bytes)} per token and GPU"
    if around.usual is None:
        return text
    usual = around.usual.memory
    return (
        f"{text} in place of {format_bytes(usual.kv.first_token_bytes)}; {memory.num_tokens:,} tokens fit in place of "
        f"{usual.num_tokens:,}"
    )


def _eager(flag: Flag, around: FlagContext) -> str:
    if not flag.value or around.deployment is None:
        return "CUDA graphs are recorded" if not flag.value else "no CUDA graphs"
    one = prefill_shape(1) if around.deployment.model.pools else decode_shape(1, PROMPT)
    now, usual = (estimate_shape(each, one).seconds for each in (around.deployment, around.usual_deployment()))
    return f"no CUDA graphs: a token of one sequence takes {format_seconds(now)} in place of {format_seconds(usual)}"


def _graphs(_: Flag, around: FlagContext) -> str:
    sizes = engine_of(around.fit.settings).graphs(around.fit.settings).sizes
    return f"{len(sizes)} CUDA graphs, up to {sizes[-1]:,} tokens" if sizes else "no CUDA graphs"


def _drafts(_: Flag, around: FlagContext) -> str:
    drafting = None if around.deployment is None else around.deployment.drafting
    if drafting is None or around.usual is None:
        return ""
    memory, before = around.fit.memory, around.usual.memory
    weights = format_bytes(max(0.0, memory.weights - before.weights))
    token = format_bytes(max(0.0, memory.kv.first_token_bytes - before.kv.first_token_bytes))
    length = f"{drafting.acceptance.length:.2f} tokens a step of each sequence by {drafting.acceptance.source}"
    return f"{drafting.title}, {drafting.num_drafts} drafts: {length}; {weights} of weights and {token} more per token"


def _tier(_: Flag, around: FlagContext) -> str:
    if around.deployment is None or (tier := around.deployment.replica(constant_timer(0.0)).offload) is None:
        return ""
    memory = around.fit.memory
    blocks = tier.num_blocks * tier.factor
    token = memory.kv.first_token_bytes / tier.load.rate
    return (
        f"{blocks / memory.request_blocks:,.3g} times the GPU's KV cache in host memory; a token comes back in "
        f"{format_seconds(token)}"
    )


_FIELDS: dict[Callable[[Flag, FlagContext], str], str] = {
    _weights: "quantization dtype hf_overrides",
    _memory: "gpu_memory_utilization num_gpu_blocks_override mem_fraction_static max_total_tokens "
    "swa_full_tokens_ratio kv_cache_memory_bytes",
    _tier: "kv_offloading_size kv_transfer_config enable_hierarchical_cache hicache_ratio hicache_size",
    _graphs: "compilation_config cudagraph_capture_sizes max_cudagraph_capture_size cuda_graph_max_bs cuda_graph_bs "
    "cuda_graph_max_bs_prefill cuda_graph_backend_prefill disable_prefill_cuda_graph disable_decode_cuda_graph",
    _eager: "enforce_eager disable_cuda_graph",
    _sequences: "max_num_seqs max_running_requests",
    _longest: "max_model_len context_length",
    _token: "kv_cache_dtype",
    _layout: "tensor_parallel_size",
    _step: "max_num_batched_tokens",
    _drafts: "speculative_config speculative_algorithm",
}
SENTENCES: dict[str, Callable[[Flag, FlagContext], str]] = {
    **{field: sentence for sentence, fields in _FIELDS.items() for field in fields.split()},
    "data_parallel_size": lambda flag, around: (
        f"{flag.value} replicas, {flag.value * around.fit.memory.num_tokens:,} tokens of KV cache together"
    ),
    "chunked_prefill_size": lambda flag, around: (
        _step(flag, around) if flag.value > 0 else "a prompt is computed in one step, and decoding waits that long"
    ),
    "schedule_conservativeness": lambda flag, _: (
        f"at first a request starts if {format_percent(min(0.7 * flag.value, 1.0))} of all declared answers have room"
    ),
}


FORMATS = ("quantization", "dtype", "hf_overrides")  # without these it would be another checkpoint
USUAL_NETWORK = "infiniband-ndr"  # between nodes, if none is named
LOADS = {"light": 0.2, "heavy": 0.8}  # shares of the saturated rate, if no load is given


@dataclass(frozen=True, slots=True)
class ServedLoad:
    name: str
    forecast: Forecast
    intervals: Intervals


@dataclass(frozen=True, slots=True, repr=False)
class Explained(ResultMixin):
    """A command, explained."""

    pasted: Pasted
    reading: Reading
    engine: Engine
    meanings: tuple[FlagExplanation, ...]
    notes: tuple[str, ...]
    fit: Fit
    problem: str  # Why the engine would not start; empty if it does
    capacity: float | None  # Requests per second that can be served, of requests like these
    served: tuple[ServedLoad, ...]
    advised: Advised | None
    would_fit: tuple[Fix, ...]  # What would let it start, if it does not

    def _words(self) -> str:
        flags = f"{len(self.reading.flags)} flags"
        state = self.problem or "starts"
        return f"{self.reading.model} on {self.fit.gpu.name}, {self.engine.name}, {flags}: {state}"

    @property
    def command(self) -> str:
        """The command in one line."""
        return command_line(self.reading, self.engine)

    @property
    def recommended(self) -> str | None:
        """The command with the advice; None if there is none."""
        if self.advised is None or not self.advised.applied:
            return None
        return command_line(self.reading, self.engine, self.advised.applied)


def as_modelled(point: FlagPoint, reading: Reading) -> tuple[FlagPoint, Reading, Deployment | DoesNotFitError]:
    """A command without the values that are not modelled, each said to be left out; and what it starts."""
    while True:
        try:
            return point, reading, point.deploy()
        except DoesNotFitError as problem:
            return point, reading, problem
        except InputError as problem:
            flag = next((each for each in reversed(reading.flags) if _is_about(problem, each, point)), None)
            if flag is None:
                raise
            point = point.changed({flag.field: None})
            left = replace(flag, status=NOT_MODELLED, note=f"{problem}; forecast without it", field="", value=None)
            reading = replace(reading, flags=tuple(left if each is flag else each for each in reading.flags))


def _is_about(problem: InputError, flag: Flag, point: FlagPoint) -> bool:
    """Whether an error goes with a flag that the engine takes: a name, an object, or what is said to be unmodelled."""
    plain = not isinstance(flag.value, str) and "not modelled" not in str(problem)
    if flag.status != READ or plain or flag.field in (*FORMATS, "eplb_config"):
        return False
    choices = known_flags(point.engine).find(f"--{flag.name}", strict=True).argument.choices
    if choices and flag.value not in choices:
        return False
    try:
        point.changed({flag.field: None}).deploy()
    except InfercastError as other:
        return str(other) != str(problem)
    return True


def _mended(point: FlagPoint, problem: InputError, pasted: Pasted, gpu: GpuSource, notes: list[str]) -> FlagPoint:
    """The command with what a person would add to make it start, which ``notes`` say; else the ``problem`` stands."""
    if "--network" in str(problem) and point.given["network"] is None:
        notes.append(f"no network joins the nodes: {USUAL_NETWORK} is assumed; --network says which it is")
        return replace(point, gpu=load_device(gpu, USUAL_NETWORK), given={**point.given, "network": USUAL_NETWORK})
    if not (found := re.match(r"\w+ (\d+) is above the \d+ positions", str(problem))):
        raise problem
    variable = point.engine.commands.longer_contexts
    if variable not in pasted.environment:
        notes.append(f"{problem}: the engine starts with {variable}=1 alone, which is assumed")
    overrides = read_object(point.options.get("hf_overrides") or "{}", "--hf-overrides")
    return point.changed({"hf_overrides": json.dumps({**overrides, "max_position_embeddings": int(found[1])})})


def explain_command(
    text: str, gpu: GpuSource, workload: Workload | None = None, *, like: Workload | None = None,
    slo: Slo | None = None, tariff: Tariff | None = None, facility: Facility | None = None, service: str | None = None,
    engine: str | None = None, advice: bool = True, network: str | None = None, predictor: str | Predictor = "learned",
    tell: Callable[[str], None] = lambda _: None, **given: Any,
) -> Explained:  # fmt: skip
    """Explain a command line, a ``docker run``, a compose file or a Kubernetes manifest; the text is never executed.
    Without a ``workload``, requests ``like`` these random ones (or the default ones) come at a light and a heavy rate.
    With an ``slo``, forecasts have a verdict and advice is ranked by headroom. ``service`` names one of several
    commands in the text. ``engine`` selects a release; the default is the one that the text names, or the newest with
    all of its flags. ``given`` are further options of `deploy`.
    """
    chosen, pasted, reading, why = read_command(text, engine, service)
    kernels = make_predictor(predictor, chosen.family) if isinstance(predictor, str) else predictor
    bench = " ".join(chosen.commands.bench[-2:])
    benchmarked = "the load of the benchmark is not read: give --rate or --concurrency, --input-len and --output-len"
    notes = ([why] if why else []) + ([benchmarked] if bench and bench in " ".join(text.split()) else [])
    if (cut := pasted.environment.get(chosen.commands.layer_partition)) is not None:
        given = {**given, "pp_layer_partition": cut}
        notes.append(f"{chosen.commands.layer_partition} cuts the layers into stages of {cut}")
    point = FlagPoint.of(
        reading, load_device(gpu, network), chosen, {**given, "network": network, "predictor": kernels}
    )
    point = replace(point, model=loaded_model(reading))
    try:
        point, reading, started = as_modelled(point, reading)
    except InputError as problem:
        point, reading, started = as_modelled(_mended(point, problem, pasted, gpu, notes), reading)
    chosen.settings(reading.settings, notes.append)
    inputs, outputs = "lognormal:700:0.9:16:8000", "lognormal:180:0.8:4:1000"
    load = workload or like or synthetic_workload(rate=1.0, input_lengths=inputs, output_lengths=outputs)
    # Tokens of an average sequence halfway through its answer.
    context = sum(each.num_input + each.num_output / 2 for each in load.requests) / len(load.requests)
    fit = point.fit(max(1, round(context)))
    notes += _notes(pasted, fit, chosen)
    common = pasted, reading, chosen
    if isinstance(started, DoesNotFitError):
        meanings = tuple(explain_flags(point, reading, fit, None))
        would_fit = tuple(changes_that_fit(point, fit)) if advice else ()
        return Explained(*common, meanings, tuple(notes), fit, str(started), None, (), None, would_fit)
    system = system_of(started)
    capacity = most_requests_per_second(system, load)
    loads = light_and_heavy(load, capacity) if workload is None else {"as asked": workload}
    served = []
    later = 2.0 if advice else 0.5  # Times as much as a load takes that is for what comes after them
    for number, (name, requests) in enumerate(loads.items()):
        tell(f"{name} load")
        with share_of_time(1.0 / (len(loads) - number + later)):
            forecast = simulate_system(system, requests, capacity=lambda: capacity, slo=slo)
        forecast = replace(forecast, tariff=tariff or Tariff(), facility=facility or Facility())
        served.append(ServedLoad(name, forecast if slo is None else forecast.promised(slo), forecast.intervals))
    meanings = tuple(explain_flags(point, reading, fit, started))
    advised = advise([(each.name, each.forecast) for each in served], tell) if advice else None
    return Explained(*common, meanings, tuple(notes), fit, "", capacity, tuple(served), advised, ())


def light_and_heavy(like: Workload, capacity: float) -> dict[str, Workload]:
    if like.drawn is None:
        raise InputError("the requests of a light and a heavy load must be drawn; give a workload to have it served")
    rates = {name: float(f"{share * capacity:.2g}") for name, share in LOADS.items()}
    count = {"count": None} if like.open_ended else {}
    return {name: drawn_with(like.drawn, rate=rate, **count) for name, rate in rates.items()}


def command_line(reading: Reading, engine: Engine, changes: dict[str, Any] | None = None) -> str:
    left = dict(changes or {})
    negates = engine.commands.negates
    words = [*engine.commands.serve, reading.model]
    for flag in reading.flags:
        if flag.field and flag.field in (changes or {}):
            if flag.field in left:
                words += _words(flag.field, left.pop(flag.field), negates=negates)
        elif flag.status != REFUSED:
            words += [f"--{flag.name}", *flag.words]
    for field, value in left.items():
        words += _words(field, value, negates=negates)
    return shlex.join(words)


def _words(field: str, value: Any, *, negates: bool) -> list[str]:
    name = field.replace("_", "-")
    if value is None or (value is False and not negates):
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def loaded_model(reading: Reading) -> str:
    """What a command loads: the name that clients know it by where its path says nothing, such as ``/model``."""
    served = next((each.text for each in reading.flags if each.name == "served-model-name"), "")
    unsaid = not os.path.exists(reading.model) and checkpoint(reading.model) is None
    return served if served and unsaid and checkpoint(served) else reading.model


def _notes(pasted: Pasted, fit: Fit, engine: Engine) -> list[str]:
    found = [each for each in fit.model.notes if each == fit.model.assumed or "left out" in each]
    known = {*engine.commands.idle_variables, engine.commands.layer_partition}
    own = [name for name in pasted.environment if name.startswith(engine.commands.environment) and name not in known]
    if own:
        found.append(f"environment variables are not modelled: {', '.join(sorted(own))}")
    devices = pasted.environment.get("CUDA_VISIBLE_DEVICES", "")
    gpus = pasted.gpus or (len(devices.split(",")) if devices and devices[0].isdigit() else None)
    if gpus is not None and gpus != fit.layout.gpus:
        what = "more than" if fit.layout.gpus > gpus else "fewer than"
        found.append(f"the flags use {fit.layout.gpus} GPUs, {what} the {gpus} that the command is given")
    if pasted.replicas > 1:
        found.append(f"{pasted.replicas} replicas are started; the forecast is of one, with the load of one")
    return found
