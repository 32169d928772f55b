"""From names and options to deployments and workloads: models, GPUs, hosts, loads, traces and what-if changes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from inspect import Parameter, signature
from math import ceil
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np

from infercast.engines.base import Deployment, Engine, engine_named, engine_of, engines
from infercast.engines.base import build_deployment as deploy_resolved
from infercast.engines.host import HostCosts, read_host
from infercast.engines.settings import Settings, changed, read_setting
from infercast.errors import InputError, UnknownNameError, require
from infercast.forecast.option_table import OPTIONS, ROUTINGS, SAMPLINGS
from infercast.forecast.option_table import WORKLOAD as LOAD
from infercast.hardware import Gpu, load_gpu, with_network
from infercast.hardware import gpu as gpus
from infercast.hardware.host import MEASURED, HostProbe, probe_of, read_probe
from infercast.hardware.load import is_modelled
from infercast.lazy_classes import TypedDict, dataclass, fields, replace
from infercast.models.images import parse_images
from infercast.models.layout import ParallelLayout, with_base
from infercast.models.read import read_model, read_object, with_states
from infercast.models.spec import GREEDY, SORTED, TOP_P, Edits, ModelConfig
from infercast.predict.learned import Changed, make_predictor, ordering, power_limited
from infercast.predict.roofline import Predictor, Typical
from infercast.serve import Workload
from infercast.serve.workload.distributions import INPUT_LEN, OUTPUT_LEN, LengthDistribution
from infercast.serve.workload.request import Image, Reuse, without_too_long
from infercast.serve.workload.synthetic import CLIPPED, as_lengths, ended, scaled, session_workload, synthetic_workload

if TYPE_CHECKING:
    from infercast.forecast.calibration import Calibration

RUNNERS = ("auto", "generate", "pooling")
TASKS = {"auto": "", "generate": "generate"} | dict.fromkeys(
    ("embed", "embedding", "classify", "score", "reward"), RUNNERS[2]
)
ModelSource = str | Path | Mapping[str, Any] | ModelConfig
GpuSource = str | Path | Gpu
HostSource: TypeAlias = "str | Path | HostCosts | HostProbe | dict[str, Any] | None"
Lengths = LengthDistribution | str | int
RATES = ("rate", "concurrency", "session_rate")  # How much is sent, in one of three ways
SENT = ("images", "client_timeout", "retries", "cancel")  # What is added to requests of any kind


class ModelOptions(TypedDict, total=False):
    quantization: str | None
    dtype: str
    kv_cache_dtype: str
    moe_backend: str
    expert_routing: str
    sampling: str
    language_model_only: bool
    hf_overrides: Mapping[str, Any] | str | None
    mamba_cache_dtype: str
    mamba_ssm_cache_dtype: str
    gdn_prefill_backend: str
    runner: str
    task: str
    drop: str | None
    fuse: str | None
    overlap: str | None


class PlaceOptions(ModelOptions, total=False):
    """What `deploy` takes besides settings."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    pp_layer_partition: str | None
    data_parallel_size: int
    enable_expert_parallel: bool
    fuse_allreduce_rms: bool | None
    all2all_backend: str | None
    network: str | None
    pcie_topology: str | None
    power_limit_w: float | None
    gpu_clock_mhz: float | None
    api_server: bool
    chat: bool
    predictor: str | Predictor
    host: HostSource
    engine: str | None
    calibration: Path | str | Calibration | None
    at_ceiling: str | None


class DeployOptions(PlaceOptions, total=False):
    settings: Settings | None


OWN = [name for name in PlaceOptions.__annotations__ if name not in ModelOptions.__annotations__]
"""Those that are not of the model, which `load_model` takes, too."""


def load_model(source: ModelSource, *, engine: Engine | None = None, **options: Unpack[ModelOptions]) -> ModelConfig:
    """A model by bundled name, Hugging Face id, path to a config.json, or the config itself as a dict.

    Formats and kernels have the names of the ``engine``. ``hf_overrides`` (a mapping or JSON) replace fields of the
    config. ``mamba_cache_dtype`` is the format of recurrent states, ``mamba_ssm_cache_dtype`` of their matrices, and
    ``gdn_prefill_backend`` the kernels that scan prompts of gated delta nets. A ``runner`` of ``pooling``, or a
    ``task`` that takes it, gives a vector or a score for each prompt and no tokens.
    """
    engine = engine or engine_named()
    names, given = engine.names, _checked(options, engine.names)
    quantization, changes = given["quantization"], given["hf_overrides"]
    if quantization is not None and quantization in names.quantizations:
        quantization = names.quantizations[quantization] or None
    changes = read_object(changes, "--hf-overrides") if isinstance(changes, str) else changes
    if isinstance(source, ModelConfig) and quantization not in (None, "none"):
        raise InputError(f"quantization {quantization!r} needs a config to read; give it when {source.name} is loaded")
    if isinstance(source, ModelConfig) and changes:
        raise InputError(f"hf_overrides need a config to read; give them when {source.name} is loaded")
    model = (
        source if isinstance(source, ModelConfig) else read_model(source, quantization=quantization, overrides=changes)
    )
    if given["language_model_only"]:
        model = replace(model, vision=None)
    if (dtype := given["dtype"]) != "auto":
        model = replace(model, weights=with_base(model.weights, names.dtypes[dtype]))
    model = with_states(model, given["mamba_cache_dtype"], given["mamba_ssm_cache_dtype"])
    if (cache := given["kv_cache_dtype"]) != "auto":
        model = replace(model, kv_dtype=names.kv_cache_dtypes[cache])
    if (backend := given["moe_backend"]) != "auto":
        model = replace(model, weights=replace(model.weights, experts_kernel=names.moe_kernels.get(backend, backend)))
    if (backend := given["gdn_prefill_backend"]) != "auto":
        model = replace(model, weights=replace(model.weights, scans_kernel=backend))
    asked = (given["runner"], TASKS[given["task"]])
    if model.pools and "generate" in asked:
        raise InputError(f"{model.name} ({model.architecture}) gives no tokens; leave runner and task out")
    model = model.pooling() if "pooling" in asked else model
    if (sampling := given["sampling"]) == TOP_P:
        sampling = SORTED if engine.fact("sorts_logits") else GREEDY
    if sampling != SAMPLINGS[0]:
        model = replace(model, sampling=sampling)
    model = replace(model, edits=_edits_of(given)) if any(given[name] for name in Edits._fields) else model
    if (routing := given["expert_routing"]) == ROUTINGS[0]:
        return model
    return model.with_experts(lambda experts: replace(experts, routing=routing))


def _edits_of(given: Mapping[str, Any]) -> Edits:
    texts = (given[name] or "" for name in Edits._fields)
    return Edits(*(tuple(tuple(each.split("+")) for each in text.split(";") if each) for text in texts))


def _checked(options: Mapping[str, Any], names: Any) -> dict[str, Any]:
    """All options of a model, those that are given among what the engine has a name for."""
    for name in options:
        if name not in ModelOptions.__annotations__:
            raise UnknownNameError("option", name, ModelOptions.__annotations__)
    given = defaults(ModelOptions.__annotations__) | {**options}
    if given["dtype"] not in names.dtypes:
        raise InputError(f"dtype {given['dtype']!r} is not modelled; known: {', '.join(names.dtypes)}")
    known = {
        "kv_cache_dtype": names.kv_cache_dtypes, "moe_backend": names.moe_backends,
        "gdn_prefill_backend": names.scan_backends, "sampling": SAMPLINGS, "expert_routing": ROUTINGS,
        "runner": RUNNERS, "task": TASKS,
    }  # fmt: skip
    for option, values in known.items():
        _check_known(option, given[option], values)
    return given


def defaults(names: Iterable[str]) -> dict[str, Any]:
    """Options of these names as they are where they are not given; an engine is that of the settings."""
    return {name: OPTIONS[name].default if name in OPTIONS and name != "engine" else None for name in names}


def _check_known(option: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise InputError(f"unknown {option} {value!r}; known: {', '.join(known)}")


def load_device(source: GpuSource, network: str | None) -> Gpu:
    """A GPU, or one for each stage of a pipeline: ``2xh200-sxm+2xa100-sxm``."""
    if not isinstance(source, str) or "+" not in source or Path(source).is_file():
        return with_network(source if isinstance(source, Gpu) else load_gpu(source), network)
    parts = [re.fullmatch(r"(?:([1-9]\d?)x)?(.*)", part.strip()) for part in source.split("+")]
    kinds = {part[2]: with_network(load_gpu(part[2]), network) for part in parts if part}
    stages = tuple(kinds[part[2]] for part in parts if part for _ in range(int(part[1] or 1)))
    if len({each.name for each in stages}) < 2:
        raise InputError(f"gpu {source} names one kind of GPU for all stages; say --gpu {stages[0].name}")
    return replace(stages[0], title=source, stages=stages)


def deploy(
    model: ModelSource, gpu: GpuSource, settings: Settings | None = None, **options: Unpack[PlaceOptions]
) -> Deployment:
    """Put a model on GPUs.

    ``host`` is a name of `infercast hosts`, a file of `infercast measure --host` or like the bundled one, or its
    contents. ``options`` are those of `load_model`, such as ``quantization``. ``calibration`` is what `infercast
    calibrate` wrote, or `calibrate` returned. ``engine`` is an engine with its version, such as ``vllm@0.25``, in place
    of that of the settings. Without ``settings`` those of the engine are options as well, such as ``max_num_seqs=64``.

    ``gpu`` may name one for each stage of a pipeline (``2xh200-sxm+2xa100-sxm``), and ``pp_layer_partition`` the layers
    of each: ``20,20,21,19``, or ``auto`` for the cut that makes the slowest one quickest. ``network`` joins nodes where
    a layout needs more GPUs than one holds, ``pcie_topology`` GPUs of a node without direct links.
    ``fuse_allreduce_rms`` and ``all2all_backend`` of None are the engine's choice. ``power_limit_w`` and
    ``gpu_clock_mhz`` limit every GPU, as ``nvidia-smi -pl`` and ``-lgc`` do. With ``api_server`` requests come as text
    over HTTP; without it as tokens from the same program. With ``chat`` a server renders them by a template, which vLLM
    0.11.0 parses for each.

    Raises `DoesNotFitError` if the weights or one sequence of the longest allowed length do not fit, and `InputError`
    for anything that an engine would refuse.
    """
    settings, given = with_keywords(settings, options.get("engine"), options)
    asked = defaults(OWN) | given
    deployment = replace(put_on(model, gpu, settings, asked), asked=partial(deploy, model, gpu, settings, **asked))
    if asked["calibration"] is None:
        return deployment
    from infercast.forecast.calibration import calibrated  # noqa: PLC0415 - most runs have none

    return calibrated(deployment, asked["calibration"])


SHOWN = [
    *[*signature(deploy).parameters.values()][:3],
    *(Parameter(name, Parameter.KEYWORD_ONLY, default=each) for name, each in defaults(OWN).items()),
    Parameter("options", Parameter.VAR_KEYWORD),
]
setattr(deploy, "__signature__", signature(deploy).replace(parameters=SHOWN))  # noqa: B010 - all of it, for notebooks


def put_on(
    model: ModelSource, gpu: GpuSource, settings: Settings | None, asked: Mapping[str, Any], *, must_fit: bool = True
) -> Deployment:
    """A deployment by all options of `deploy`; one that need not fit is of its memory alone."""
    device, data = load_device(gpu, asked["network"]), asked["data_parallel_size"]
    limits = asked["pcie_topology"], asked["power_limit_w"], asked["gpu_clock_mhz"]
    if device.stages and any(limits):
        raise InputError(f"pcie_topology, power_limit_w and gpu_clock_mhz are for GPUs of one kind, not {device.title}")
    device = gpus.limited_gpu(gpus.with_topology(device, limits[0]), *limits[1:])
    wanted, chosen = resolve_settings(settings, asked["engine"])
    backends, experts = chosen.names.all2all_backends, asked["enable_expert_parallel"]
    exchange = asked["all2all_backend"] or backends[0]
    _check_known("all2all_backend", exchange, backends)
    if chosen.shares_copies and exchange != backends[0] and not (experts and data > 1):
        raise InputError(
            f"all2all_backend {exchange} is for replicas that share experts; add enable_expert_parallel and a "
            "data_parallel_size of 2 or more, or leave it out"
        )
    config = load_model(model, engine=chosen, **model_options(asked)[0])
    norms, sizes = asked["fuse_allreduce_rms"], (asked["tensor_parallel_size"], asked["pipeline_parallel_size"], data)
    norms = chosen.fuses_norms(config, device) if norms is None else norms
    exchanges = exchange != backends[0]
    layout = ParallelLayout(*sizes, experts=experts, fused_norms=norms, all_to_all=exchanges, library=chosen.family)
    layout, cut = chosen.spread(wanted, config, layout, device), asked["pp_layer_partition"]
    if not must_fit:
        roofline = make_predictor("learned" if cut else "roofline")
        return deploy_resolved(config, device, wanted, layout, roofline, partition=cut, must_fit=False)
    predictor = asked["predictor"]
    known = make_predictor(predictor, chosen.family) if isinstance(predictor, str) else predictor
    machine = host_of(chosen, asked["host"], device)
    how: Any = {"over_http": asked["api_server"], "chat": asked["chat"], "partition": cut}
    made = deploy_resolved(config, device, wanted, layout, power_limited(known, device), machine, **how)
    return _with_kernels(made, asked["at_ceiling"]) if asked["at_ceiling"] or config.edits.names else made


def _with_kernels(made: Deployment, at_ceiling: str | None) -> Deployment:
    """The same with kernels at their ceilings, if those that are to be changed are there."""
    from infercast.models.lower import step_calls, token_calls  # noqa: PLC0415 - few runs ask for kernels that nobody has
    from infercast.predict.ceilings import AtCeiling, default_ceilings, signature_of  # noqa: PLC0415

    best = at_ceiling.split("+") if at_ceiling else []
    plain = replace(made.model, edits=Edits())
    calls = step_calls(plain, made.layout, np.array([2, 1]), np.array([2, 2]), sampled=2)
    known = dict.fromkeys(call.name for call in calls)
    edits, by_tokens = made.model.edits, {call.name for call in token_calls(plain, made.layout, 2)}
    if strange := [name for name in (*edits.names, *best) if name not in known and name != "all"]:
        raise UnknownNameError(f"kernel of {made.model.name}", strange[0], known)
    apart = [name for name in known if name not in by_tokens]
    for what, names in [*(("fuse", each) for each in edits.fuse), *(("overlap", each) for each in edits.overlap)]:
        if len({*names}) < 2 or not by_tokens.issuperset(names):
            raise InputError(f"{what} {'+'.join(names)} must be two kernels or more, none of {', '.join(apart)}")
    if lost := [name for names in edits.drop for name in names if name in apart]:
        raise InputError(f"drop: {lost[0]} cannot be left out; see --at-ceiling")
    if not best:
        return made
    chosen = None if "all" in best else {signature_of(call.op) for call in calls if call.name in best}
    return replace(made, predictor=AtCeiling(made.predictor, default_ceilings(), chosen))


def call_of(deployment: Deployment) -> partial[Deployment]:
    """The call of `deploy` that made it."""
    if deployment.asked is None:
        raise InputError(f"{deployment!r} was not deployed by names, so that nothing of it can be changed")
    asked: partial[Deployment] = deployment.asked
    return asked


def redeploy(deployment: Deployment, values: Mapping[str, Any]) -> Deployment:
    """The same with other options of `deploy` and settings of its engine, by name; None leaves one out."""
    asked = call_of(deployment)
    (model, gpu, settings), keywords = asked.args, {**asked.keywords}
    before, _ = resolve_settings(settings, keywords.pop("engine"))
    options = {name: value for name, value in values.items() if name in DeployOptions.__annotations__}
    others = {name: value for name, value in values.items() if name not in options}
    if "pipeline_parallel_size" in values:  # other stages need another cut
        keywords["pp_layer_partition"] = None
    options = {name: defaults([name])[name] if value is None else value for name, value in options.items()}
    return deploy(model, gpu, changed(before, **others), **{**keywords, **options})


def estimate_notes(deployment: Deployment) -> list[str]:
    """Caveats: estimates bound by another GPU's, from typical GPUs, or for an assumed PCIe topology."""
    gpu = deployment.gpu
    if deployment.predictor.is_bound:
        return ["Estimates are the least that the hardware allows; engines take longer."]
    if not is_modelled(gpu):
        return [f"Estimates are {Typical().describe(gpu)}."]
    if gpu.stages:
        link = "the network" if gpu.network_bandwidth else "PCIe (--network names a network)"
        return [f"Stages on {gpu.title} are joined by {link}; kernels and intervals are of {gpu.name}, without energy."]
    return [*gpu.announced_notes, *ordering(deployment.engine.family).notes([gpu]), *_of_pcie(deployment)]


def _of_pcie(deployment: Deployment) -> list[str]:
    """Collectives over PCIe, where it is not said how the cards are joined."""
    gpu, joined = deployment.gpu, deployment.layout.tensor
    if joined == 1 or not gpus.is_left_open(gpu, joined):
        return []
    known = "; ".join(f"{name}: {each.title}" for name, each in gpus.TOPOLOGIES.items())
    return [
        f"{joined} of {gpu.name} talk over PCIe, which servers differ in by up to eight times: estimates are of one "
        f"with two sockets, and intervals hold the others. Say which with --pcie-topology ({known})."
    ]


def model_options(options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Options of `load_model`, and the other options of `deploy`."""
    of_model = {name: value for name, value in options.items() if name in ModelOptions.__annotations__}
    return of_model, {name: value for name, value in options.items() if name not in of_model}


def layout_arguments(engine: Engine, layout: ParallelLayout) -> tuple[dict[str, Any], dict[str, Any]]:
    """What gives an engine a layout: arguments of `deploy`, and settings."""
    told = engine.sizes_for(layout)
    settings = {name: value for name, value in told.items() if name in engine.flags.options}
    return {name: value for name, value in told.items() if name not in settings}, settings


def resolve_settings(settings: Settings | None, engine: str | None = None) -> tuple[Settings, Engine]:
    if settings is None:
        chosen = engine_named(engine)
        return chosen.settings(), chosen
    wanted = settings if engine is None else changed(settings, engine=engine_named(engine).name)
    return wanted, engine_of(wanted)


def with_keywords(
    settings: Settings | None, engine: str | None, options: Mapping[str, Any]
) -> tuple[Settings | None, dict[str, Any]]:
    """Settings, and options of `deploy` without those that are settings of the engine."""
    own = {name: value for name, value in options.items() if name not in DeployOptions.__annotations__}
    if not own:
        return settings, {**options}
    wanted, chosen = resolve_settings(settings, engine)
    known = _setting_names(chosen)
    for name in own:
        if name not in known:
            raise UnknownNameError("option", name, {*DeployOptions.__annotations__, *known})
        if settings is not None:
            raise InputError(
                f"{name} is a setting of {chosen.title}, of which there are settings already; say it there"
            )
    return changed(wanted, **own), {name: value for name, value in options.items() if name not in own}


def _setting_names(engine: Engine) -> set[str]:
    return {each.name for each in fields(engine.settings_type)} - {"engine"}


def host_of(engine: Engine, host: HostSource = None, gpu: Gpu | None = None) -> HostCosts:
    """Host costs by the name of a CPU, by a file, or as given; None: as measured, or of the CPU that the GPU has."""
    if host is None or isinstance(host, HostCosts):
        return host or engine.default_host().on_cpu(MEASURED if gpu is None else gpu.cpu)
    if isinstance(host, dict):
        host = probe_of(host, Path("the probe"))
    if isinstance(host, HostProbe):
        return engine.default_host().on_machine(host)
    if not isinstance(host, str | Path):
        raise InputError(f"host {host!r} is no CPU's name, no path of a host.json or a .toml, and no contents of one")
    address = r"localhost|\[?[0-9a-f]*:[0-9a-f:]*\]?|\d+(\.\d+){3}"  # What an engine's own ``--host`` takes
    if re.fullmatch(address, str(host), re.IGNORECASE):
        raise InputError(
            f"--host {host} is an address, as an engine's --host takes it; here nothing listens, and --host says which "
            "CPU the server has: a name from `infercast hosts`, a host.json or a .toml; leave it out"
        )
    path = Path(host)
    if path.suffix == ".json":
        return engine.default_host().on_machine(read_probe(path))
    if isinstance(host, Path) or path.suffix == ".toml" or path.exists():
        return read_host(path, engine.host_type, engine.version)
    return engine.default_host().on_cpu(host)


CHANGEABLE = {option.name: option.type for option in OPTIONS.values() if option.what_if}
"""Options of `deploy` that a what-if may change, with their types."""


@dataclass(frozen=True, slots=True)
class Changes:
    text: str
    gpu: str | None
    properties: dict[str, str]
    host_speed: float
    options: dict[str, Any]
    settings: dict[str, Any]
    router: str | None = None
    engine: str | None = None

    @property
    def is_engine_alone(self) -> bool:
        others = (self.gpu, self.router, self.properties, self.options, self.settings)
        return self.engine is not None and not any(others) and self.host_speed == 1.0


def parse_changes(text: str) -> Changes:
    words: dict[str, str] = {}
    properties: dict[str, str] = {}
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    known = {name: kind for engine in engines().values() for name, kind in engine.setting_types.items()}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = name.replace("-", "_")
        if not equals or not value:
            raise InputError(f"what-if {part!r} must be name=value, such as dram_bandwidth=1.5x or gpu=b200-sxm")
        if any(name in given for given in (words, properties, options, settings)):
            raise InputError(f"what-if {part!r} gives {name} a second time; say it once")
        if name in ("gpu", "engine", "host_speed", "router"):
            words[name] = value
        elif name in gpus.PROPERTIES:
            properties[name] = value
        elif name in CHANGEABLE:
            options[name] = read_setting(CHANGEABLE, name, value, "what-if")
        elif name in known:
            settings[name] = read_setting(known, name, value, "what-if")
        else:
            every = ("gpu", "engine", *gpus.PROPERTIES, "host_speed", "router", *CHANGEABLE, *known)
            raise UnknownNameError("what-if", name, dict.fromkeys(every))
    speed = gpus.factor_of("host_speed", words.pop("host_speed", "1x"), 1.0)
    engine = engine_named(words.pop("engine")).name if "engine" in words else None
    if not (words or engine or properties or options or settings or speed != 1.0):
        raise InputError("what-if changes nothing; say for example dram_bandwidth=1.5x,sms=160 or gpu=b200-sxm")
    return Changes(text, words.get("gpu"), properties, speed, options, settings, words.get("router"), engine)


def deploy_changed(asked: partial[Deployment], changes: Changes) -> Deployment:
    """Deploy a model on a GPU with settings (``asked``) after changes."""
    model, source, settings = asked.args
    settings, keywords = with_keywords(settings, asked.keywords.get("engine"), {**asked.keywords, **changes.options})
    gpu = load_device(changes.gpu or source, None)
    other = gpus.changed_gpu(gpu, changes.properties)
    if other is not gpu:
        predictor = keywords.get("predictor", "learned")
        known = make_predictor(predictor) if isinstance(predictor, str) else predictor
        keywords["predictor"] = Changed(known, gpu)
    before, engine = resolve_settings(settings, keywords.pop("engine", None))
    if changes.engine is not None:
        before, engine = for_engine(before, engine, changes.engine)
    if strange := [name for name in changes.settings if name not in engine.setting_types]:
        raise InputError(f"what-if {strange[0]} is no setting of {engine.title}")
    if changes.host_speed != 1.0:
        host, speed = host_of(engine, keywords.get("host"), other), changes.host_speed
        keywords["host"] = host.sped_up(speed, f"{host.title}, {speed:g} times as fast")
    return deploy(model, other, changed(before, **changes.settings), **keywords)


def for_engine(settings: Settings, engine: Engine, name: str) -> tuple[Settings, Engine]:
    """The same settings for another engine; of another family, only the bounds of steps and sequences."""
    other = engine_named(name)
    if other.family == engine.family:
        return changed(settings, engine=name), other
    pairs = zip(engine.bounds, other.bounds, strict=True)
    given = {theirs: getattr(settings, ours, None) for ours, theirs in pairs}
    return other.settings({theirs: value for theirs, value in given.items() if value is not None}), other


def random_requests(
    given: Mapping[str, Any], longest: int, default_count: int | None = None, named: int | None = None
) -> Workload:
    """Requests by options of these names, with default lengths clipped to what the model allows, ``named`` so."""
    usual = {option.name: option.default for option in LOAD}
    given = usual | {name: value for name, value in given.items() if value is not None}
    recorded, reuse = _recorded(given["arrivals_of"]), None
    if not recorded and not any(given[name] is not None for name in RATES) and given["arrival"] != "burst":
        raise InputError("say how requests arrive: --rate R, --concurrency N, --arrival burst or --trace FILE")
    if given["session_rate"] is not None and given["turns"] is None:
        raise InputError("--session-rate needs --turns, how many turns a session has, or --trace with conversations")
    prefix_length = given["prefix_len"]
    inputs, outputs, is_clipped = lengths_within(given["input_len"], given["output_len"], longest - prefix_length)
    count = default_count if given["num_requests"] is None else given["num_requests"]
    require(count is None or isinstance(count, int), "num_requests", "be a whole number", count)
    common: dict[str, Any] = {
        "count": count, "input_lengths": inputs, "output_lengths": outputs, "prefix_length": prefix_length,
        **{name: given[name] for name in ("arrival", "rate", "concurrency", "burstiness", "prefix_groups", "seed")},
    }  # fmt: skip
    common["recorded"] = recorded
    if given["reuse"] and given["turns"] is not None:
        raise InputError("prompts of sessions begin as the turn before; leave out either reuse or turns")
    if given["reuse"]:
        common_len, distance, new_len = (
            as_lengths(given[name], name) for name in ("reuse_len", "reuse_distance", "turn_len")
        )
        reuse = Reuse(given["reuse"], common_len, distance, new_len, longest)
    if given["turns"] is None:
        workload = synthetic_workload(**common, reuse=reuse)
    else:
        names = ("session_rate", "turns", "think", "tool_share", "tool_time", "sub_agents")
        of_sessions = {name: given[name] for name in names}
        lengths = {"turn_lengths": given["turn_len"], "tool_lengths": given["tool_len"]}
        workload = session_workload(**common, **of_sessions, **lengths)
    if is_clipped:
        workload = replace(workload, description=f"{workload.description}{CLIPPED}{named or longest:,}")
    return without_too_long(workload, longest) if given["too_long"] == "skip" else workload


def _recorded(path: str | PathLike[str] | None) -> tuple[float, ...]:
    if path is None:
        return ()
    from infercast.serve.workload.traces import read_trace  # noqa: PLC0415 - most runs read none

    return tuple(request.arrival for request in read_trace(path).requests)


def taken_by(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Of these options, those that a function takes besides those of `deploy`, but for the engine, which its settings
    name.
    """
    known = {*(function.__kwdefaults__ or ()), *PlaceOptions.__annotations__} - {"engine"}
    return {name: value for name, value in given.items() if name in known}


def lengths_within(
    input_len: Lengths, output_len: Lengths, room: int
) -> tuple[LengthDistribution, LengthDistribution, bool]:
    """Lengths of prompts and answers, and whether the default ones were clipped to what the model allows."""
    inputs, outputs = as_lengths(input_len, "--input-len"), as_lengths(output_len, "--output-len")
    if inputs.maximum + outputs.maximum <= room:
        return inputs, outputs, False
    asked_for = inputs, outputs
    if output_len == OUTPUT_LEN:
        outputs = _clipped(outputs, room // 4 if input_len == INPUT_LEN else room - inputs.maximum)
    if input_len == INPUT_LEN:
        inputs = _clipped(inputs, room - outputs.maximum)
    return inputs, outputs, (inputs, outputs) != asked_for


def _clipped(lengths: LengthDistribution, most: int) -> LengthDistribution:
    """The same up to ``most`` tokens; where there is no room at all they stay, and requests are found too long."""
    if most < 1:
        return lengths
    return lengths._replace(minimum=min(lengths.minimum, most), maximum=min(lengths.maximum, most))


Deployable = Deployment | ModelSource  # A deployment, or a model to deploy with ``gpu`` and the options of `deploy`
Servable = Workload | str | PathLike[str] | None
"""A workload, the file of a trace, or None: random requests by ``rate`` or ``concurrency``."""


class LoadOptions(TypedDict, total=False):
    """How requests arrive and how long they are, as on the command line: requests per second, tokens, seconds."""

    arrival: str
    rate: float
    num_requests: int
    concurrency: int
    input_len: Lengths
    output_len: Lengths
    burstiness: float
    arrivals_of: str | PathLike[str]
    reuse: float
    reuse_len: Lengths
    reuse_distance: Lengths
    prefix_len: int
    prefix_groups: int
    declared_output_len: int
    ignore_eos: bool
    images: str
    client_timeout: str | float
    retries: int
    cancel: str
    seed: int
    turns: Lengths
    session_rate: float
    turn_len: Lengths
    think: str | float
    tool_share: float
    tool_time: str | float
    tool_len: Lengths
    sub_agents: str


class RunOptions(LoadOptions, DeployOptions, total=False):
    """Options of a load and of a deployment."""


KEYWORDS = {option.spelled[2:].replace("-", "_"): option.name for option in OPTIONS.values()}
"""Keywords by what the command line calls them."""
RENAMED = {
    **{"count": "num_requests", "input_lengths": "input_len", "output_lengths": "output_len"},
    **{"prefix_length": "prefix_len", "declared_length": "declared_output_len"},
}
"""Keywords that 1.0 drops, and what they are now."""


def resolve_run(
    deployment: Deployable, workload: Servable, gpu: GpuSource | None, options: Mapping[str, Any]
) -> tuple[Deployment, Workload]:
    load, others = load_options(options), deploy_options(options)
    _check_options({**load, **others}, RunOptions.__annotations__)
    found = resolve_deployment(deployment, gpu, others)
    return found, resolve_workload(workload, load, found.settings.max_model_len, found.model)


def load_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the load, by their names of today."""
    if old := [name for name in options if name in RENAMED]:
        said = ", ".join(f"{name} is {RENAMED[name]} now" for name in old)
        warnings.warn(f"{said}; 1.0 drops the old names", DeprecationWarning, 4)
    known = {RENAMED.get(name, name): value for name, value in options.items()}
    return {name: value for name, value in known.items() if name in LoadOptions.__annotations__}


def deploy_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not of the load."""
    return {name: each for name, each in options.items() if RENAMED.get(name, name) not in LoadOptions.__annotations__}


def resolve_deployment(deployment: Deployable, gpu: GpuSource | None, options: Mapping[str, Any]) -> Deployment:
    if not isinstance(deployment, Deployment):
        return resolve_call(deployment, gpu, options)()
    if given := [*(["gpu"] if gpu is not None else []), *options]:
        raise InputError(f"{given[0]} is an option of deploy, and {deployment!r} is deployed already; leave it out")
    return deployment


def resolve_call(deployment: Deployable, gpu: GpuSource | None, options: Mapping[str, Any]) -> partial[Deployment]:
    """The call of `deploy` that makes a deployment, or made it."""
    if isinstance(deployment, Deployment):
        return call_of(resolve_deployment(deployment, gpu, options))
    if not isinstance(deployment, (str, Path, Mapping, ModelConfig)):
        raise InputError(
            f"a simulation needs a deployment or a model with gpu=..., not {short(deployment)}; "
            "infercast.deploy(model, gpu) makes one"
        )
    if gpu is None:
        raise InputError(
            f"{short(deployment)} is a model, which needs a GPU to run on: gpu='h200-sxm', say "
            "(`infercast gpus` lists them), or infercast.deploy(model, gpu)"
        )
    _check_options(options, DeployOptions.__annotations__)
    others = {name: value for name, value in options.items() if name != "settings"}
    return partial(deploy, deployment, gpu, options.get("settings"), **others)


def _check_options(options: Mapping[str, Any], known: Collection[str]) -> None:
    strange = [name for name in options if name not in known]
    if not strange:
        return
    _, engine = resolve_settings(options.get("settings"), options.get("engine"))
    own = _setting_names(engine)
    for name in strange:
        if name not in own:
            here = KEYWORDS.get(name, "")
            hint = f"; settings of {engine.title} are options, too"
            raise UnknownNameError("option", name, [*known, *sorted(own)], hint, near=[here] if here in known else None)


def resolve_workload(
    workload: Servable, load: Mapping[str, Any], longest: int, model: ModelConfig | None = None
) -> Workload:
    """A given workload, the requests of a trace, or random ones of at most ``longest`` tokens; ``model`` for images."""
    if any(load.get(name) for name in SENT) and not isinstance(workload, Workload):
        mix = image_mix(load.get("images"), model)
        plain = {name: value for name, value in load.items() if name not in SENT}
        return as_sent(resolve_workload(workload, plain, longest - most_image_tokens(mix)), mix, load)
    if workload is None:
        if all(load.get(name) is None for name in (*RATES, "arrivals_of")) and load.get("arrival") != "burst":
            raise InputError("say how requests arrive: rate=12 per second, concurrency=32 clients, or a workload")
        return ended(random_requests(load, longest), load.get("declared_output_len"), load.get("ignore_eos"))
    if isinstance(workload, (str, PathLike)):
        return _trace(workload, load)
    require_workload(workload)
    if load:
        raise InputError(
            f"{next(iter(load))} says how requests are made, and there is a workload already; leave it out"
        )
    return workload


def image_mix(text: str | None, model: ModelConfig | None) -> tuple[tuple[float, Image], ...]:
    """What the model's processor makes of images like ``1:1024x1024``, with how many of them a request has."""
    if not text or model is None:
        return ()
    return tuple((mean, image_of(model, width, height)) for mean, width, height in parse_images(text))


def image_of(model: ModelConfig, width: int, height: int) -> Image:
    encoder = None if model.vision is None else model.vision.images
    if encoder is None:
        how = "has no images" if model.vision is None else "cuts images by a rule that is not known"
        raise InputError(
            f"images of {width}x{height} cannot be sent: {model.name} {how}; qwen2.5-vl-7b takes some, say"
        )
    picture = encoder.picture(width, height)
    return Image(picture.num_tokens, picture.num_embeds, picture.grid, pixels=width * height)


def most_image_tokens(mix: Iterable[tuple[float, Image]]) -> int:
    """Of one request."""
    return sum(ceil(mean) * image.num_tokens for mean, image in mix)


def as_sent(workload: Workload, mix: tuple[tuple[float, Image], ...], given: Mapping[str, Any]) -> Workload:
    """The same requests with these images, of clients that leave as the options say."""
    if mix:
        from infercast.serve.workload.classes import with_images  # noqa: PLC0415 - few runs have any

        workload = with_images(workload, mix, seed=given.get("seed") or 0)
    if any(given.get(name) for name in SENT[1:]):
        from infercast.serve.workload.patience import parse_patience, with_patience  # noqa: PLC0415 - as above

        patience = parse_patience(given.get("client_timeout"), given.get("retries") or 0, given.get("cancel"))
        workload = workload if patience is None else with_patience(workload, patience, seed=given.get("seed") or 0)
    return workload


def require_workload(workload: object) -> None:
    if not isinstance(workload, Workload):
        raise InputError(
            f"a simulation needs a workload, not {short(workload)}; rate=12 or the file of a trace "
            "does, and so does what the functions of infercast.serve.workload.synthetic make"
        )


def _trace(path: str | PathLike[str], load: Mapping[str, Any]) -> Workload:
    from infercast.serve.workload.traces import read_trace  # noqa: PLC0415 - most runs replay no trace

    changeable = ("rate", "num_requests", "declared_output_len", "ignore_eos")
    for name in load:
        if name not in changeable:
            raise InputError(
                f"{name} has no meaning with a trace, which brings its own; rate and num_requests change it"
            )
    workload = scaled(read_trace(path), rate=load.get("rate"), limit=load.get("num_requests"))
    return ended(workload, load.get("declared_output_len"), load.get("ignore_eos"))


def short(value: Any) -> str:
    text = repr(value)
    return f"the {type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
