"""Releases of vLLM: flags, settings tried by a plan, measured setups, and the simulated replica."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from math import lcm
from pathlib import PurePosixPath
from typing import Any

from infercast.bundled import read_data
from infercast.engines.base import Deployment, Engine, Tell, untuned_factors
from infercast.engines.host import DraftPasses, Graphs, HostModel
from infercast.engines.settings import EngineNames, MeasuredSetup, flags_in
from infercast.engines.speculation import Drafting
from infercast.engines.timer import encoder_of
from infercast.engines.vllm import kv_cache, versions
from infercast.engines.vllm.host import VllmHost, VllmHostModel, VllmPasses, launch_work
from infercast.engines.vllm.kernels import EXPERT_LAUNCHES, choose_kernels, default_block_size, expert_multiples, is_new
from infercast.engines.vllm.memory import check_state_blocks, plan_memory, weight_waits, with_adapters
from infercast.engines.vllm.settings import EngineSettings, ResolvedSettings, check_blocks, redundant_experts, resolve
from infercast.engines.vllm.versions import (
    ENGINES,
    MEASURED,
    MEASURED_AGAIN,
    NEWEST,
    EngineVersion,
    Rule,
    engine_version,
)
from infercast.errors import Fields, InputError
from infercast.hardware import Gpu
from infercast.lazy_classes import dataclass, fields, replace
from infercast.models.layout import ParallelLayout
from infercast.models.mixers.mixer import LatentAttention
from infercast.models.mixers.recurrent import GatedDeltaNet, RecurrentMixer
from infercast.models.read import read_object
from infercast.models.spec import ModelConfig
from infercast.ops import Op
from infercast.predict.board_power import SETTLE_SECONDS
from infercast.serve import FcfsPolicy, Replica
from infercast.serve.cache.tiers import Offload
from infercast.serve.scheduler.base import ORDERS
from infercast.serve.step import StepTimer
from infercast.serve.timeline import LAUNCH_SPREAD, WarmupCosts
from infercast.units import AUTO, GIB, format_many

GRAPH_SETTINGS = ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
"""Fields read from ``--compilation-config``."""
READ = frozenset({"compilation_config", "decode_context_parallel_size"})  # Flags that are no settings but decide some
_DATA = dict(read_data("engines/vllm/flags.toml"))
TOLD: dict[str, str] = _DATA.pop("told")  # What is left out where a setting is given
FLAGS = flags_in(_DATA, READ | {field.name for field in fields(EngineSettings)})
OLDEST = (7, 0)  # Compute capability below which vLLM 0.25 does not start: its compiler's kernels (Triton) need Volta
BOUNDS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
STATED: dict[str, type] = {
    "max_num_batched_tokens": int, "max_num_seqs": int, "max_model_len": int, "gpu_memory_utilization": float,
    "block_size": int,
}  # fmt: skip
"""Required settings in every file."""
FORMATS = ("mamba_cache_dtype", "mamba_ssm_cache_dtype", "gdn_prefill_backend")


def settings_of(given: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    values = {name: value for name, value in given.items() if name not in READ}
    if (size := given.get("decode_context_parallel_size", 1)) != 1:
        raise InputError(f"--decode-context-parallel-size {size} is not modelled; leave it at 1: less KV cache fits")
    for name, about in TOLD.items():
        if (value := values.get(name)) not in (None, False, 0):
            tell(f"{name}{'' if value is True else f' {value}'}: {about}")
    if isinstance(sizes := values.get("cudagraph_capture_sizes"), str):
        parts = [part.strip() for part in sizes.split(",")]
        if not all(part.isdigit() for part in parts):
            raise InputError(f"--cudagraph-capture-sizes must be whole numbers with commas between them, not {sizes!r}")
        values["cudagraph_capture_sizes"] = tuple(int(part) for part in parts)
    if isinstance(layers := values.get("kv_cache_dtype_skip_layers"), str):
        values["kv_cache_dtype_skip_layers"] = tuple(layers.replace(",", " ").split())
    graphs = _graph_settings(text, tell) if (text := given.get("compilation_config")) else {}
    return graphs | values


def _graph_settings(text: str, tell: Tell) -> dict[str, Any]:
    """CUDA graph settings of a compilation config; a plain number is its compilation mode."""
    values = {"mode": text} if text.strip().isdigit() else read_object(text, "--compilation-config")
    if unread := [name for name in values if name not in GRAPH_SETTINGS]:
        tell(f"--compilation-config: {', '.join(unread)} ignored; read are {', '.join(GRAPH_SETTINGS)}")
    found = {name: values[name] for name in GRAPH_SETTINGS if values.get(name) is not None}
    if "cudagraph_mode" in found:
        found["cudagraph_mode"] = str(found["cudagraph_mode"]).lower()
    largest, sizes = found.get("max_cudagraph_capture_size"), found.get("cudagraph_capture_sizes")
    if largest is not None and type(largest) is not int:
        raise InputError(f"--compilation-config: max_cudagraph_capture_size must be a whole number, not {largest!r}")
    if sizes is not None:
        if not isinstance(sizes, list) or not all(type(size) is int for size in sizes):
            raise InputError(f"--compilation-config: cudagraph_capture_sizes must be whole numbers, not {sizes!r}")
        found["cudagraph_capture_sizes"] = tuple(sizes)
    return found


def measured_setup(config: Fields) -> MeasuredSetup:
    """Parse a file's config; ``engine_args`` may have more of vLLM's arguments, under its names."""
    arguments = config.inner("engine_args")
    over_http = bool(config.holder.get("api_server"))  # Its clients may know nothing of the engine
    stated = {name: config.get(name, kind) for name, kind in STATED.items() if name in config or not over_http}
    # Fields of `EngineSettings` among the engine's other arguments; the rest does not affect the simulation.
    kinds = {"bool": bool, "int": int, "float": float, "str": str}
    further: dict[str, Any] = {}
    for each in fields(EngineSettings):
        if each.name in arguments and each.name != "speculative_config":
            further[each.name] = arguments.get(each.name, kinds.get(str(each.type).split(" ", maxsplit=1)[0], list))
    if "cudagraph_capture_sizes" in further:
        further["cudagraph_capture_sizes"] = tuple(further["cudagraph_capture_sizes"])
    if "num_gpu_blocks_override" not in further and "num_gpu_blocks_override" in config:  # its older place
        further["num_gpu_blocks_override"] = config.get("num_gpu_blocks_override", int)
    usual = {"async_scheduling": bool(config.holder.get("async_scheduling", True)), "enable_prefix_caching": True}
    release = ".".join(config.word("vllm").split(".")[:2])
    engine = f"vllm@{release}" if release else NEWEST if over_http else MEASURED
    settings = EngineSettings(**{**stated, **usual, "engine": engine, **further})
    if "speculative_config" in arguments:
        # The config as given; the drafter is named by its folder, which was on another machine
        values = dict(arguments.inner("speculative_config").holder)
        if isinstance(model := values.get("model"), str):
            values["model"] = PurePosixPath(model).name
        settings = replace(settings, speculative_config=json.dumps(values), dummy_weights=True)
    blocks = None if over_http and "num_gpu_blocks" not in config else config.at_least("num_gpu_blocks", 1)
    return MeasuredSetup(
        settings=settings,
        num_gpu_blocks=blocks,
        with_those_blocks=replace(settings, num_gpu_blocks_override=blocks),
        blocks_were_set=settings.num_gpu_blocks_override is not None,
        tensor_parallel_size=config.get("tensor_parallel_size", int)
        if config.holder.get("tensor_parallel_size")
        else 1,
        over_http=over_http,
        model={
            "quantization": config.word("quant") or None,
            "kv_cache_dtype": config.word("kv_cache_dtype", "auto"),
            "hf_overrides": arguments.inner("hf_overrides").holder,
            "language_model_only": bool(arguments.holder.get("language_model_only")),
            **{name: arguments.word(name, "auto") for name in FORMATS},
        },
    )


@cache
def _named_alike() -> tuple[list[str], list[Rule]]:
    """Settings, and rules of a release, that are fields of the policy under the same name."""
    ours, theirs = ({each.name: None for each in fields(kind)} for kind in (FcfsPolicy, ResolvedSettings))
    return [name for name in ours if name in theirs], [rule for rule in Rule if rule.value in ours]


def vllm_replica(deployment: Deployment, settings: ResolvedSettings, timer: StepTimer, warmed_up: bool) -> Replica:
    host, version, stages = deployment.host, settings.version, deployment.layout.pipeline
    is_v2, drafting = kv_cache.runs_v2(deployment.model, version), settings.drafting
    if drafting is not None and stages > 1:
        is_v2 &= drafting.v2_runner
    shape = deployment.memory.kv.shape._replace(retained=max(0, settings.read_ahead - 1))
    first_uses = None
    if not warmed_up:
        largest_graph = max(settings.capture_sizes, default=0)
        is_recorded = drafting is not None and drafting.v2_runner and drafting.passes > 1
        known_rows = largest_graph if is_recorded else 0
        first_uses = WarmupCosts(largest_graph, settings.max_num_batched_tokens, settings.max_num_seqs, known_rows)
    names, rules = _named_alike()
    same = {name: getattr(settings, name) for name in names} | {rule.value: rule in version.rules for rule in rules}
    same |= {"max_num_seqs": settings.most_running, "max_num_scheduled_tokens": settings.max_num_scheduled_tokens or 0}
    policy = FcfsPolicy(
        **same,  # settings and rules of a release that go by the policy's own names
        chunked_prefill=settings.enable_chunked_prefill,
        adaptive_threshold=settings.long_prefill_token_threshold_adaptive,
        prefill_interval=settings.prefill_schedule_interval,
        # In a pipeline without asynchronous scheduling, each sequence belongs to one of the batches.
        waits_for_tokens=(stages > 1 and not settings.async_scheduling)
        or not (drafting is None or drafting.asynchronous),
        decode_stride=stages if settings.async_scheduling and is_v2 else 1,
        allow_partial_block=not version.has(Rule.NEEDS_WHOLE_BLOCKS),
        last_token_own_step=version.has(Rule.PARTS_LAST),
        reserves_prompts=settings.scheduler_reserve_full_isl,
        by_priority=settings.scheduling_policy != "fcfs",
        order=order if callable(order := settings.scheduling_policy) else ORDERS.get(order),
    )
    return Replica(
        timer=timer,
        policy=policy,
        num_blocks=deployment.memory.request_blocks,
        kv_shape=shape if settings.tier is None else shape.of_one_size,
        prefix_caching=settings.enable_prefix_caching,
        sparse_windows=settings.retention_interval is not None,
        retained_every=settings.retention_interval or 0,
        steps_under_way=settings.steps_under_way(stages, v2_runner=is_v2),
        request_path_seconds=host.request_path,
        request_token_seconds=host.request_token,
        server=host.server(settings.stream_interval, over_http=deployment.over_http),
        num_servers=settings.api_server_count or 1,
        token_path_seconds=host.token_path,
        token_turn_seconds=host.token_turn
        + (host.stream_part / settings.stream_interval if deployment.over_http else 0.0),
        wake_up_seconds=host.wake_up,
        first_uses=first_uses,
        max_model_len=settings.max_model_len + deployment.model.pools,  # what is pooled takes no position
        max_output=settings.max_output,
        stages=deployment.stages,
        launch_spread=LAUNCH_SPREAD,
        settle_seconds=SETTLE_SECONDS,
        max_adapters=settings.max_loras if settings.enable_lora else None,
        encoder=encoder_of(deployment, host.eager_kernel, settings.max_num_batched_tokens),
        tells_load=version.has(Rule.WEIGHS_CACHE),
        stages_in_turn=stages > 1 and settings.async_scheduling and not is_v2,
        offload=_offload(deployment, settings, is_v2=is_v2),
        speculation=None
        if drafting is None
        else drafting.speculation(
            slots_by_step=version.has(Rule.SLOTS_BY_STEP), pads_new=True, pads_first=version.has(Rule.PADS_FIRST),
            names_results=version.has(Rule.NAMES_RESULTS), **_keys_of_blocks(drafting, settings),
        ),
    )  # fmt: skip


def _keys_of_blocks(drafting: Drafting, settings: ResolvedSettings) -> dict[str, Any]:
    """Keys that cover what a drafter reads after a block, of which none is then dropped, where a release has them."""
    ahead = settings.version.has(Rule.HASHES_AHEAD) and settings.enable_prefix_caching and settings.tier is None
    asked = read_object(settings.speculative_config or "{}", "--speculative-config")
    if asked.get("disable_eagle_block_drop"):
        return {"drops_block": False}
    if not ahead or not drafting.drops_block or asked.get("disable_lookahead_block_hashes"):
        return {}
    return {"drops_block": False, "hash_ahead": drafting.read_ahead or 1}


def _offload(deployment: Deployment, settings: ResolvedSettings, *, is_v2: bool) -> Offload | None:
    asked, kv = settings.tier, deployment.memory.kv
    if asked is None:
        return None
    if not settings.enable_prefix_caching:
        raise InputError("kv_offloading_size without prefix caching is not modelled; leave one of the two out")
    # The V1 model runner stores all layers of a block contiguously if they have the same width.
    whole = not is_v2 and len(kv.shape.windows) == 1
    model, version = deployment.model, settings.version
    latent = all(isinstance(stack.mixer, LatentAttention) for stack in model.stacks)
    layout, gpu = deployment.layout, deployment.gpu
    method = None if settings.drafting is None else settings.drafting.method
    kinds = whole, latent, version, method
    return kv_cache.offload_of(asked, kv, model.layers, layout, gpu, *kinds)


def _resolve(settings: EngineSettings, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> ResolvedSettings:
    settings, states = versions.with_defaults(settings), kv_cache.States.of(model)
    if not states.kept and not states.beside_tokens:  # an encoder sees all of a prompt at once
        settings = replace(settings, enable_chunked_prefill=False, enable_prefix_caching=False)
    if settings.max_model_len == AUTO:
        whole = _resolve(replace(settings, max_model_len=None), model, layout, gpu)
        longest = plan_memory(model, layout, gpu, whole).longest_sequence(whole.most_under_way(layout.pipeline))
        return replace(whole, max_model_len=max(1, min(longest, whole.max_model_len)))
    size, drafting = default_block_size(model, gpu), _drafting(settings, model, layout)
    resolved = resolve(
        settings, gpu, model.max_positions, model.architecture, block_size=size, states=states, drafting=drafting
    )
    least = resolved.block_size
    if resolved.kv_cache_dtype_skip_layers:
        least = kv_cache.shared_block_size(model, least)
    if states.kept and model.has_mixer(LatentAttention):
        least = max(least, resolved.version.latent_unit)
    if (
        resolved.mamba_cache_mode == kv_cache.ALIGN
        and resolved.version.deltas_unit
        and _scans_by_flashinfer(model, gpu)
    ):
        least, resolved = lcm(least, resolved.version.deltas_unit), replace(resolved, exports_deltas=True)
    size = kv_cache.hybrid_block_size(model, layout, least, resolved.state_blocks)
    if resolved.mamba_cache_mode == kv_cache.ALIGN and resolved.version.has(Rule.NEEDS_WHOLE_BLOCKS):
        tokens, threshold = resolved.max_num_batched_tokens, resolved.long_prefill_token_threshold
        kv_cache.check_aligned(size, tokens, threshold, chunked_prefill=resolved.enable_chunked_prefill)
    resolved = replace(resolved, block_size=size)
    shard = model.shard(layout)
    check_blocks(resolved, [cache for stack in model.stacks for cache in stack.mixer.caches(shard)])
    return resolved


def _scans_by_flashinfer(model: ModelConfig, gpu: Gpu) -> bool:
    """True if all states are of gated delta nets, and FlashInfer's kernel scans prompts."""
    mixers = [stack.mixer for stack in model.stacks if isinstance(stack.mixer, RecurrentMixer)]
    has_kernel = gpu.architecture in ("hopper", "blackwell", "blackwell-ultra", "blackwell-rtx")
    asked = model.weights.scans_kernel in ("", "flashinfer")
    return has_kernel and asked and bool(mixers) and all(isinstance(each, GatedDeltaNet) for each in mixers)


def _drafting(settings: EngineSettings, model: ModelConfig, layout: ParallelLayout) -> Drafting | None:
    if settings.speculative_config is None:
        if settings.acceptance is not None:
            raise InputError("acceptance has no meaning without --speculative-config")
        return None
    from infercast.engines.vllm.speculation import drafting_of  # noqa: PLC0415 - most engines do not draft

    version = engine_version(settings.engine)
    return drafting_of(
        settings.speculative_config, settings.acceptance, model, layout, version,
        asynchronous=bool(settings.async_scheduling), v2_target=kv_cache.runs_v2(model, version),
        dummy_weights=settings.dummy_weights,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Vllm(Engine):
    rules: EngineVersion
    title = "vLLM"
    close_since = (0, 20)
    load_balancer = "vllm"
    servers_by_rank = True
    names = EngineNames(**read_data("engines/vllm/names.toml"))
    commands_file = "engines/vllm/commands.toml"
    settings_type = EngineSettings
    bounds = BOUNDS
    shown = (*BOUNDS, "gpu_memory_utilization", "enable_prefix_caching")
    oldest_gpu = OLDEST, "Volta, such as v100-sxm"
    own_drafts = """--speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'"""
    expert_launches = EXPERT_LAUNCHES
    quicker_experts_since = 0, 33
    host_type = VllmHost
    settings_from = staticmethod(settings_of)
    resolve = staticmethod(_resolve)
    expert_multiples = staticmethod(expert_multiples)
    plan_memory = staticmethod(plan_memory)
    weight_waits = staticmethod(weight_waits)
    check_memory = staticmethod(check_state_blocks)
    replica = staticmethod(vllm_replica)
    measured_setup = staticmethod(measured_setup)
    before = staticmethod(versions.before)
    known_before = staticmethod(versions.known_before)

    def describe(self, settings: ResolvedSettings) -> str:
        tier = settings.tier
        return (
            f"up to {settings.max_num_batched_tokens:,} tokens, "
            f"{format_many(settings.max_num_seqs, 'sequence')} per step; max_model_len {settings.max_model_len:,}; "
            f"prefix caching {'on' if settings.enable_prefix_caching else 'off'}"
            + ("" if tier is None else f"; {tier.num_bytes / GIB:,.4g} GiB of KV cache in host memory")
        )

    def spread(self, asked: EngineSettings, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> ParallelLayout:
        return replace(layout, redundant=redundant_experts(asked), balanced=asked.enable_eplb)

    def with_settings(self, asked: EngineSettings, model: ModelConfig) -> ModelConfig:
        return with_adapters(asked, kv_cache.unquantised_in(model, asked.kv_cache_dtype_skip_layers))

    def fuses_norms(self, model: ModelConfig, gpu: Gpu) -> bool:
        has_kernel = gpu.kernels in ("hopper", "blackwell")  # FlashInfer's, for an all-reduce and the norm behind it
        return has_kernel and self.before(self.version, model)[1].get("fuse_allreduce_rms", True)

    @property
    def tied_routers(self) -> tuple[str, ...]:
        return () if self.rules.has(Rule.UNIT_DUMMY_NORMS) else super().tied_routers

    def choose_kernels(self, model: ModelConfig, gpu: Gpu, layout: ParallelLayout | None = None) -> ModelConfig:
        since = self.quicker_experts_since
        model = choose_kernels(model, gpu, is_recent=since is not None and self.version >= since)
        if layout is None or not self.fact("small_tiles"):
            return model
        where = gpu, layout, self.family
        return model.with_experts(lambda spec: replace(spec, slower=untuned_factors(model, spec, *where)))

    def fact(self, kind: str) -> Any:
        return versions.fact_before(kind, self.version)

    def is_new_kernel(self, op: Op, gpu: Gpu) -> bool:
        return is_new(self.rules, op, gpu)

    def has_new_runner(self, model: ModelConfig) -> bool:
        return kv_cache.runs_v2(model, self.rules) and not kv_cache.runs_v2(model, ENGINES[MEASURED])

    def graphs(self, settings: ResolvedSettings) -> Graphs:
        return settings.graphs

    def drafts(self, asked: EngineSettings) -> bool:
        return asked.speculative_config is not None

    def most_tokens(self, given: Mapping[str, Any]) -> int:
        if given.get("speculative_config") is None:
            return 1
        from infercast.engines.vllm.speculation import most_tokens  # noqa: PLC0415 - most engines do not draft

        return most_tokens(given["speculative_config"])

    def draft_passes(self, deployment: Deployment) -> DraftPasses:
        return VllmPasses(deployment)

    def tokens_under_way(self, settings: ResolvedSettings, layout: ParallelLayout) -> int:
        return settings.most_under_way(layout.pipeline)

    def host_model(
        self, host: VllmHost, model: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: ResolvedSettings
    ) -> HostModel:
        return VllmHostModel(host, launch_work(model, layout, gpu), settings.mamba_cache_mode)


def _release(name: str) -> Vllm:
    first, again = (each.partition("@")[2] for each in (MEASURED, MEASURED_AGAIN))
    note = "" if name == MEASURED else f"rules by its source, host times as measured on {again}, kernels on {first}"
    return Vllm(name=name, note=note, is_measured=name == MEASURED, flags=FLAGS, rules=ENGINES[name])


RELEASES = {name: _release(name) for name in ENGINES}
