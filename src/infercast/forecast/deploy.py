"""From names, files and changes of settings to a deployment: models, GPUs, hosts and what-if variants of them.

An idle engine with a tiny model shows nothing but its CPU. How many times faster it answers short prompts than the
bundled host would is taken as the speed of its single thread, and all costs are divided by it.

``dram_bandwidth=1.5x,sms=160`` changes numbers of the GPU, ``gpu=b200-sxm`` takes another one, ``host_speed=2x``
another CPU, ``engine=sglang`` another engine or release, and ``quantization=fp8,max_num_seqs=64`` changes what a
deployment was asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from math import isclose
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from infercast.engines.base import Deployment, Engine, engine_named, engine_of, engines
from infercast.engines.base import deploy as deploy_resolved
from infercast.engines.host import HostCosts, read_host
from infercast.engines.settings import Settings, changed, read_setting
from infercast.errors import FileFormatError, InputError, UnknownNameError
from infercast.forecast.calibration import Calibration, Fingerprint, carried, read_calibration, with_acceptance
from infercast.forecast.option_table import OPTIONS, ROUTINGS, SAMPLINGS
from infercast.hardware import Gpu, load_gpu, with_network
from infercast.hardware.gpu import PROPERTIES, changed_gpu, factor_of, limited_gpu, with_topology
from infercast.models.layout import ParallelLayout, with_base
from infercast.models.read import read_model, read_overrides, with_states
from infercast.models.spec import ModelConfig
from infercast.predict.adjust.changed import Changed, held_back
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import Predictor
from infercast.serve import Request, Workload, simulate

ModelSource = str | Path | Mapping[str, Any] | ModelConfig
GpuSource = str | Path | Gpu


class ModelOptions(TypedDict, total=False):
    """What `load_model` takes in addition to a model and an engine."""

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


class DeployOptions(ModelOptions, total=False):
    """What `deploy` takes in addition to a model and a GPU."""

    settings: Settings | None
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    enable_expert_parallel: bool
    fuse_allreduce_rms: bool | None
    all2all_backend: str | None
    network: str | None
    pcie_topology: str | None
    power_limit_w: float | None
    gpu_clock_mhz: float | None
    api_server: bool
    predictor: str | Predictor
    host: Path | HostCosts | str | None
    engine: str | None
    calibration: Path | str | Calibration | None


def load_model(
    source: ModelSource,
    *,
    quantization: str | None = None,
    dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    moe_backend: str = "auto",
    expert_routing: str = ROUTINGS[0],
    sampling: str = SAMPLINGS[0],
    language_model_only: bool = False,
    hf_overrides: Mapping[str, Any] | str | None = None,
    mamba_cache_dtype: str = "auto",
    mamba_ssm_cache_dtype: str = "auto",
    gdn_prefill_backend: str = "auto",
    engine: Engine | None = None,
) -> ModelConfig:
    """A model by bundled name, Hugging Face id, path to a config.json, or the config itself as a dict.

    Formats and kernels go by the names of the ``engine``, of the default one where none is given. ``hf_overrides``
    (fields, or the same as JSON) stand in place of what the config says. The next two are formats of the states of
    recurrent layers: of all of a state, and of its matrices, whichever the config says nothing of; the last says whose
    kernels scan prompts of gated delta nets.
    """
    names = (engine or engine_named()).names
    if quantization is not None and quantization in names.quantizations:
        quantization = names.quantizations[quantization] or None
    changes = read_overrides(hf_overrides) if isinstance(hf_overrides, str) else hf_overrides
    if isinstance(source, ModelConfig) and quantization not in (None, "none"):
        raise InputError(f"quantization {quantization!r} needs a config to read; give it when {source.name} is loaded")
    if isinstance(source, ModelConfig) and changes:
        raise InputError(f"hf_overrides need a config to read; give them when {source.name} is loaded")
    model = (
        source if isinstance(source, ModelConfig) else read_model(source, quantization=quantization, overrides=changes)
    )
    if language_model_only:
        model = replace(model, vision=None)
    if dtype not in names.dtypes:
        raise InputError(f"dtype {dtype!r} is not modelled; known: {', '.join(names.dtypes)}")
    if dtype != "auto":
        model = replace(model, weights=with_base(model.weights, names.dtypes[dtype]))
    _check_known("kv_cache_dtype", kv_cache_dtype, names.kv_cache_dtypes)
    if kv_cache_dtype != "auto":
        model = replace(model, kv_dtype=names.kv_cache_dtypes[kv_cache_dtype])
    model = with_states(model, mamba_cache_dtype, mamba_ssm_cache_dtype)
    _check_known("moe_backend", moe_backend, names.moe_backends)
    if moe_backend != "auto":
        kernel = names.moe_kernels.get(moe_backend, moe_backend)
        model = replace(model, weights=replace(model.weights, experts_kernel=kernel))
    _check_known("gdn_prefill_backend", gdn_prefill_backend, names.scan_backends)
    if gdn_prefill_backend != "auto":
        model = replace(model, weights=replace(model.weights, scans_kernel=gdn_prefill_backend))
    _check_known("sampling", sampling, SAMPLINGS)
    if sampling != SAMPLINGS[0]:
        model = replace(model, sampling=sampling)
    _check_known("expert_routing", expert_routing, ROUTINGS)
    if expert_routing == ROUTINGS[0]:
        return model
    return model.with_experts(lambda experts: replace(experts, routing=expert_routing))


def _check_known(option: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise InputError(f"unknown {option} {value!r}; known: {', '.join(known)}")


def load_device(source: GpuSource, network: str | None) -> Gpu:
    """A GPU by name or file, or as it is, with the network between its nodes."""
    return with_network(source if isinstance(source, Gpu) else load_gpu(source), network)


def deploy(
    model: ModelSource,
    gpu: GpuSource,
    settings: Settings | None = None,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    data_parallel_size: int = 1,
    enable_expert_parallel: bool = False,
    fuse_allreduce_rms: bool | None = None,
    all2all_backend: str | None = None,
    network: str | None = None,
    pcie_topology: str | None = None,
    power_limit_w: float | None = None,
    gpu_clock_mhz: float | None = None,
    api_server: bool = True,
    predictor: str | Predictor = "learned",
    host: Path | HostCosts | str | None = None,
    engine: str | None = None,
    calibration: Path | str | Calibration | None = None,
    **options: Unpack[ModelOptions],
) -> Deployment:
    """Put a model on GPUs, or say why it cannot be done. ``host`` is a name of `infercast hosts`, a file
    like the bundled one, or what it holds. ``options`` are those of `load_model`, such as ``quantization``.
    ``calibration`` is what `infercast calibrate` wrote, or `calibrate` returned.

    ``engine`` is an engine with its version, such as ``vllm@0.25``, in place of the one that the settings name.

    ``network`` joins nodes where a layout needs more GPUs than one holds, ``pcie_topology`` says how GPUs of a node are
    joined that have no direct links. ``fuse_allreduce_rms`` and ``all2all_backend`` of None are the engine's choice.
    ``power_limit_w`` and ``gpu_clock_mhz`` hold every GPU back, as ``nvidia-smi -pl`` and ``-lgc`` do.
    With ``api_server`` requests come as text over HTTP; without it as tokens from the same program.

    Raises `DoesNotFitError` if the weights or one sequence of the longest allowed length do not fit, and
    `InputError` for anything that an engine would refuse.
    """
    device = limited_gpu(with_topology(load_device(gpu, network), pcie_topology), power_limit_w, gpu_clock_mhz)
    wanted, chosen = asked_settings(settings, engine)
    backends = chosen.names.all2all_backends
    exchange = all2all_backend or backends[0]
    if exchange not in backends:
        raise InputError(f"unknown all2all_backend {exchange!r}; known: {', '.join(backends)}")
    if chosen.shares_copies and exchange != backends[0] and not (enable_expert_parallel and data_parallel_size > 1):
        raise InputError(
            f"all2all_backend {exchange} is for replicas that share experts; add enable_expert_parallel and a "
            "data_parallel_size of 2 or more, or leave it out"
        )
    config = load_model(model, engine=chosen, **options)
    layout = ParallelLayout(
        tensor_parallel_size,
        pipeline_parallel_size,
        data_parallel_size,
        experts=enable_expert_parallel,
        fused_norms=chosen.fuses_norms(config, device) if fuse_allreduce_rms is None else fuse_allreduce_rms,
        all_to_all=exchange != backends[0],
        library=chosen.family,
    )
    deployment = deploy_resolved(
        config,
        device,
        wanted,
        chosen.spread(wanted, config, layout, device),
        held_back(make_predictor(predictor, chosen.family) if isinstance(predictor, str) else predictor, device),
        host_of(chosen, host),
        over_http=api_server,
    )
    return deployment if calibration is None else calibrated(deployment, calibration)


def calibrated(deployment: Deployment, calibration: Path | str | Calibration) -> Deployment:
    if not isinstance(calibration, Calibration):
        calibration = read_calibration(Path(calibration))
    if calibration.acceptance_length is not None:
        deployment = with_acceptance(deployment, calibration.acceptance_length)
    corrections = carried(calibration, Fingerprint.of(deployment))
    return replace(deployment, host=corrections.corrected(deployment.host), corrections=corrections)


def layout_arguments(engine: Engine, layout: ParallelLayout) -> tuple[dict[str, Any], dict[str, Any]]:
    """What gives an engine a layout: arguments of `deploy`, and settings."""
    told = engine.sizes_for(layout)
    settings = {name: value for name, value in told.items() if name in engine.flags.options}
    return {name: value for name, value in told.items() if name not in settings}, settings


def asked_settings(settings: Settings | None, engine: str | None = None) -> tuple[Settings, Engine]:
    """What is asked of which engine; settings of None are the engine's choice."""
    if settings is None:
        chosen = engine_named(engine)
        return chosen.settings(), chosen
    wanted = settings if engine is None else changed(settings, engine=engine_named(engine).name)
    return wanted, engine_of(wanted)


def host_of(engine: Engine, host: Path | HostCosts | str | None) -> HostCosts:
    """What the engine costs a host: one by the name of its CPU, by its file, or as it is; None: as measured."""
    if isinstance(host, str):
        return engine.default_host().on_cpu(host)
    return read_host(host, engine.host_type) if isinstance(host, Path) else host or engine.default_host()


SHORT = 512
"""Prompts up to this length run in graphs and leave the GPU idle most of the time."""
ROOM = (8192, 256, 16_384)
"""Tokens and sequences of a step, and tokens of a sequence, that the watched engine was started for."""


ADDRESS = re.compile(r"localhost|\[?[0-9a-f]*:[0-9a-f:]*\]?|\d+(\.\d+){3}", re.IGNORECASE)
"""What an engine's own ``--host`` takes."""


def host_from(source: str | Path, gpu: str, engine: str | None = None) -> HostCosts:
    """The host of a preset or of a ``.toml`` file, or the bundled one at the speed that a ``host.json`` shows."""
    name, chosen = str(source), engine_named(engine)
    if ADDRESS.fullmatch(name):
        raise InputError(
            f"--host {name} is an address, as an engine's --host takes it; here nothing listens, and --host says which "
            "CPU is beside the GPU: a name from `infercast hosts`, a host.json or a .toml; leave it out"
        )
    path = Path(name)
    if path.suffix not in (".json", ".toml") and not path.exists():
        return host_of(chosen, name)
    if path.suffix != ".json":
        return host_of(chosen, path)
    ratios = list(_predicted_over_measured(path, _read(path), gpu, chosen))
    if not ratios:
        raise FileFormatError(path, f"has no first token of a prompt of up to {SHORT} tokens")
    speed = float(np.median(ratios))
    title = f"your host (from {path.name}), {speed:.2f} times as fast as the measured one"
    found = chosen.default_host().sped_up(speed, title, "an idle engine on this machine")
    return replace(found, is_measured=True)


def _predicted_over_measured(path: Path, document: dict[str, Any], gpu: str, engine: Engine) -> Iterator[float]:
    """For each short prompt of each tiny model."""
    try:
        for model in document["models"]:
            config = {**document["config"], "num_hidden_layers": model["layers"]}
            settings = engine.settings(engine.room_for(*ROOM))
            replica = deploy(config, gpu, settings, api_server=False).replica()
            for tokens, milliseconds in model["first_token_ms"].items():
                if int(tokens) <= SHORT:
                    run = simulate(replica, Workload((Request(0.0, int(tokens), 2),)))
                    yield 1e3 * float(run.ttft[0]) / float(milliseconds)
    except KeyError as missing:
        raise FileFormatError(path, f"is not what `infercast measure --host` writes: {missing} is missing") from None
    except (AttributeError, TypeError, ValueError, ZeroDivisionError) as problem:
        raise FileFormatError(path, f"is not what `infercast measure --host` writes: {problem}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise FileFormatError(path, f"cannot be read: {problem.strerror or problem}") from None
    except UnicodeDecodeError:
        raise FileFormatError(path, "is not UTF-8 text, so not JSON") from None
    except ValueError as problem:
        raise FileFormatError(path, f"is not JSON: {problem}") from None
    if not isinstance(document, dict):
        raise FileFormatError(path, "is not what `infercast measure --host` writes: not an object")
    return document


CHANGEABLE = {option.name: option.type for option in OPTIONS.values() if option.what_if}
"""Options of `deploy` that a what-if may change, with their types."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be different."""

    text: str
    gpu: str | None
    properties: dict[str, str]
    host_speed: float
    options: dict[str, Any]
    settings: dict[str, Any]
    router: str | None = None
    """Another load balancer before several replicas."""
    engine: str | None = None
    """Another engine, or another release of it."""

    @property
    def is_engine_alone(self) -> bool:
        others = (self.gpu, self.router, self.properties, self.options, self.settings)
        return self.engine is not None and not any(others) and self.host_speed == 1.0


def parse_changes(text: str) -> Changes:
    """Read ``name=value,name=value``."""
    gpu, router, engine, host_speed = None, None, None, 1.0
    properties: dict[str, str] = {}
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    seen: set[str] = set()
    known = {name: kind for engine in engines().values() for name, kind in engine.setting_types.items()}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = name.replace("-", "_")
        if not equals or not value:
            raise InputError(f"what-if {part!r} must be name=value, such as dram_bandwidth=1.5x or gpu=b200-sxm")
        if name in seen:
            raise InputError(f"what-if {part!r} gives {name} a second time; say it once")
        seen.add(name)
        if name == "gpu":
            gpu = value
        elif name == "router":
            router = value
        elif name == "engine":
            engine = engine_named(value).name
        elif name == "host_speed":
            host_speed = factor_of(name, value, 1.0)
        elif name in PROPERTIES:
            properties[name] = value
        elif name in CHANGEABLE:
            options[name] = read_setting(CHANGEABLE, name, value, "what-if")
        elif name in known:
            settings[name] = read_setting(known, name, value, "what-if")
        else:
            every = ("gpu", "engine", *PROPERTIES, "host_speed", "router", *CHANGEABLE, *known)
            raise UnknownNameError("what-if", name, dict.fromkeys(every))
    if not (gpu or router or engine or properties or options or settings or host_speed != 1.0):
        raise InputError("what-if changes nothing; say for example dram_bandwidth=1.5x,sms=160 or gpu=b200-sxm")
    return Changes(text, gpu, properties, host_speed, options, settings, router, engine)


def deploy_changed(asked: partial[Deployment], changes: Changes) -> Deployment:
    """Deploy what was asked for (model, GPU and settings, then keywords of `deploy`) with the changes."""
    model, source, settings = asked.args
    keywords = {**asked.keywords, **changes.options}
    gpu = load_gpu(changes.gpu) if changes.gpu else source if isinstance(source, Gpu) else load_gpu(source)
    other = changed_gpu(gpu, changes.properties)
    if other is not gpu:
        predictor = keywords.get("predictor", "learned")
        known = make_predictor(predictor) if isinstance(predictor, str) else predictor
        keywords["predictor"] = Changed(known, gpu)
    before, engine = asked_settings(settings, keywords.pop("engine", None))
    if changes.engine is not None:
        first = engine
        before, engine = for_engine(before, first, changes.engine)
        keywords["host"] = same_machine(keywords.get("host"), first, engine)
    if strange := [name for name in changes.settings if name not in engine.setting_types]:
        raise InputError(f"what-if {strange[0]} is no setting of {engine.title}")
    if changes.host_speed != 1.0:
        host, speed = host_of(engine, keywords.get("host")), changes.host_speed
        keywords["host"] = host.sped_up(speed, f"{host.title}, {speed:g} times as fast")
    return deploy(model, other, changed(before, **changes.settings), **keywords)


def for_engine(settings: Settings, engine: Engine, name: str) -> tuple[Settings, Engine]:
    """The same settings for another engine; of another family, the bounds of steps and sequences that were given.

    All else is that engine's own choice: two engines have few settings in common.
    """
    other = engine_named(name)
    if other.family == engine.family:
        return changed(settings, engine=name), other
    pairs = zip(engine.bounds, other.bounds, strict=True)
    given = {theirs: getattr(settings, ours, None) for ours, theirs in pairs}
    return other.settings({theirs: value for theirs, value in given.items() if value is not None}), other


def same_machine(host: Any, engine: Engine, other: Engine) -> Any:
    """What another engine costs the machine of a first one, if its times are the measured ones times a factor."""
    if not isinstance(host, HostCosts) or other.family == engine.family:
        return host
    measured = engine.default_host()
    speed = measured.request_path / host.request_path
    scaled = measured.sped_up(speed, host.title, host.source)
    pairs = [(getattr(scaled, each.name), getattr(host, each.name)) for each in fields(scaled)]
    if all(one == two if isinstance(one, str) else isclose(one, two) for one, two in pairs):
        return other.default_host().sped_up(speed, host.title, host.source)
    return host
