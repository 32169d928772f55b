"""From what a user types to a deployment: names and files become models and GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from infercast.engines.deployment import Deployment
from infercast.engines.deployment import deploy as deploy_resolved
from infercast.engines.host import HostCosts, read_host
from infercast.engines.registry import AnyEngine, engine_named, engine_of
from infercast.engines.settings import Settings, changed
from infercast.errors import InputError
from infercast.forecast.calibration.carry import carried
from infercast.forecast.calibration.drafts import with_acceptance
from infercast.forecast.calibration.file import read_calibration
from infercast.forecast.calibration.record import Calibration, Fingerprint
from infercast.hardware import Gpu, load_gpu, with_network
from infercast.hardware.limited import limited_gpu
from infercast.hardware.pcie import with_topology
from infercast.models.formats import with_base
from infercast.models.layout import ParallelLayout
from infercast.models.overrides import read_overrides
from infercast.models.read import read_model
from infercast.models.spec import GREEDY, SORTED, ModelConfig
from infercast.models.state_formats import with_states
from infercast.predict.adjust.limited import held_back
from infercast.predict.default import make_predictor
from infercast.predict.roofline import Predictor

ModelSource = str | Path | Mapping[str, Any] | ModelConfig
GpuSource = str | Path | Gpu

# How tokens spread over experts: each as likely as any other, equal counts, or as uneven as measured tables have it.
ROUTINGS = ("uniform", "balanced", "power_law_1.01", "power_law_1.2")


# How tokens are picked: the most likely one, or by top-p from logits that are sorted, as vLLM 0.11.1 to 0.16 did.
SAMPLINGS = (GREEDY, SORTED)


class ModelOptions(TypedDict, total=False):
    """What `load_model` takes beside a model and an engine, for those who pass it on."""

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
    engine: AnyEngine | None = None,
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
    """A deployment with what measured results say of it."""
    if not isinstance(calibration, Calibration):
        calibration = read_calibration(Path(calibration))
    if calibration.acceptance_length is not None:
        deployment = with_acceptance(deployment, calibration.acceptance_length)
    corrections = carried(calibration, Fingerprint.of(deployment))
    return replace(deployment, host=corrections.corrected(deployment.host), corrections=corrections)


def layout_arguments(engine: AnyEngine, layout: ParallelLayout) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an engine is told to have a layout: arguments of `deploy`, and settings."""
    told = engine.sizes_for(layout)
    settings = {name: value for name, value in told.items() if name in engine.flags.options}
    return {name: value for name, value in told.items() if name not in settings}, settings


def asked_settings(settings: Settings | None, engine: str | None = None) -> tuple[Settings, AnyEngine]:
    """What is asked of which engine; settings of None are the engine's choice."""
    if settings is None:
        chosen = engine_named(engine)
        return chosen.settings(), chosen
    wanted = settings if engine is None else changed(settings, engine=engine_named(engine).name)
    return wanted, engine_of(wanted)


def host_of(engine: AnyEngine, host: Path | HostCosts | str | None) -> HostCosts:
    """What the engine costs a host: one by the name of its CPU, by its file, or as it is; None: as measured."""
    if isinstance(host, str):
        return engine.default_host().on_cpu(host)
    return read_host(host, engine.host_type) if isinstance(host, Path) else host or engine.default_host()
