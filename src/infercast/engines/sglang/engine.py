"""SGLang, release by release: flags, data-parallel layouts, measured setups, and the simulated replica.

Prompts have had CUDA graphs by default since 0.5.10 (pull request 16331 of sgl-project/sglang; issue 18267 still has
them as an option), and all-reduces carry norms without being told since about then for more than a few models. Experts
in bf16 ran Triton's kernel on Blackwell before that: TensorRT-LLM's came for blocks of fp8 (pull requests 11816 and
13489, 2025), and for bf16 in 2026 (20214). States of recurrent layers had no buffers of their own, so that steps were
not planned ahead: its page of server arguments said so, and pull request 26127 of May 2026 asked for another default.

Facts of SGLang 0.5.16 (``server_args.py``; ``arg_groups/overrides.py``, ``_flashinfer_allreduce_fusion_auto_enable``).
Copies of data parallelism are servers of their own. Under DP attention the GPUs of ``tp_size`` are divided into
``dp_size`` groups instead: each has its own requests and cache, and all share the experts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from infercast.bundled import read_data
from infercast.engines.base import Deployment, Engine, Tell, Version
from infercast.engines.settings import Fields, MeasuredSetup, ProfiledStep, read_setting
from infercast.engines.sglang.host import SglangHost, SglangHostModel
from infercast.engines.sglang.kernels import EXPERT_LAUNCHES, choose_kernels, expert_multiples
from infercast.engines.sglang.kv_cache import cells, offload_of
from infercast.engines.sglang.memory import plan_memory
from infercast.engines.sglang.resolve import SglangGraphs, resolve
from infercast.engines.sglang.settings import NEWEST, ResolvedSglang, SglangSettings
from infercast.engines.vocabulary import Commands, Flags, Names
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig
from infercast.predict.board_power import SETTLE_SECONDS
from infercast.serve import PrefillFirst, Replica
from infercast.serve.step import StepTimer
from infercast.serve.timeline import LAUNCH_SPREAD

FLAGS = Flags(
    options=frozenset(field.name for field in fields(SglangSettings)), **read_data("engines/sglang/flags.toml")
)


def settings_of(given: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Fields of the settings from the values of flags; what is not modelled is refused, or told."""
    values = dict(given)
    if isinstance(sizes := values.get("cuda_graph_bs"), str):
        values["cuda_graph_bs"] = read_setting({"cuda_graph_bs": tuple}, "cuda_graph_bs", sizes)
    return values


FUSING_GPUS = ("hopper", "blackwell", "blackwell-ultra")
FUSING_MODELS = frozenset({
    "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GptOssForCausalLM", "GlmMoeDsaForCausalLM",
    "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM", "MistralLarge3ForCausalLM", "Qwen3MoeForCausalLM",
    "Qwen3VLMoeForConditionalGeneration", "Qwen3NextForCausalLM", "KimiK25ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration", "NemotronHForCausalLM",
})  # fmt: skip
"""Architectures whose all-reduces carry the norm that follows, unless the engine is told otherwise."""


def fuses_norms(model: ModelConfig, gpu: Gpu) -> bool:
    return model.architecture in FUSING_MODELS and gpu.architecture in FUSING_GPUS


def spread(asked: SglangSettings, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> ParallelLayout:
    """The layout of ``tp_size``, ``dp_size`` and ``ep_size``, which come as tensor, data and a setting."""
    tensor, data = layout.tensor, layout.data
    in_groups = asked.enable_dp_attention and data > 1
    if in_groups:
        _check_groups(model, tensor, data)
    elif layout.all_to_all:
        raise InputError(
            "moe_a2a_backend is modelled for groups of DP attention alone; add --enable-dp-attention and --dp-size, or "
            "leave it out"
        )
    expert_gpus = tensor if layout.all_to_all else asked.ep_size
    if expert_gpus not in (1, tensor):
        known = " or ".join(map(str, sorted({1, tensor})))
        raise InputError(f"ep_size {expert_gpus} is not modelled with tp_size {tensor}; use {known}")
    fused = layout.fused_norms and not in_groups
    if asked.enable_flashinfer_allreduce_fusion:
        fused = gpu.architecture in FUSING_GPUS
    if asked.enforce_disable_flashinfer_allreduce_fusion:
        fused = False
    return replace(
        layout,
        tensor=tensor // data if in_groups else tensor,
        experts=layout.experts or expert_gpus > 1,
        fused_norms=fused,
        apart=data > 1 and not in_groups,
    )


def _check_groups(model: ModelConfig, tensor: int, data: int) -> None:
    if not model.has_experts:
        raise InputError(
            f"enable_dp_attention is modelled for models with experts, and {model.name} has none; leave it out"
        )
    if tensor % data:
        raise InputError(
            f"enable_dp_attention divides the {tensor} GPUs of tp_size into dp_size groups, and {data} does not divide "
            "them; make tp_size a multiple of dp_size"
        )


def sizes_for(layout: ParallelLayout) -> dict[str, Any]:
    """What the engine is told to have a layout, by the names of options and settings."""
    in_groups = layout.data > 1 and not layout.apart
    tensor = layout.tensor * layout.data if in_groups else layout.tensor
    sizes = {
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": layout.pipeline,
        "data_parallel_size": layout.data,
    }
    return {
        **{name: size for name, size in sizes.items() if size > 1},
        **({"enable_dp_attention": True} if in_groups else {}),
        **({"ep_size": tensor} if layout.experts and tensor > 1 else {}),
    }


KINDS = {"bool": bool, "int": int, "float": float, "str": str}
STATED: dict[str, tuple[str, type]] = {
    "mem_fraction_static": ("gpu_memory_utilization", float), "chunked_prefill_size": ("max_num_batched_tokens", int),
    "max_running_requests": ("max_num_seqs", int), "context_length": ("max_model_len", int),
    "page_size": ("block_size", int),
}  # fmt: skip
"""Settings that every file must have, and what they are called there."""
FURTHER = ("max_prefill_tokens", "schedule_policy", "schedule_conservativeness", "attention_backend")
"""Settings that a file may state under their own names."""
DECODE, PROMPTS = re.compile(r"step\[DECODE bs=(\d+)"), re.compile(r"step\[EXTEND bs=(\d+) toks=(\d+)")
"""How steps are named in a profile: sequences, and tokens of prompts."""


def measured_setup(config: Fields) -> MeasuredSetup:
    """What the config of a file says: what the engine ended up with, and in ``engine_args`` what it was told beside."""
    arguments = config.inner("engine_args")
    kinds = {each.name: KINDS.get(str(each.type).split(" ", maxsplit=1)[0]) for each in fields(SglangSettings)}
    stated: dict[str, Any] = {name: config.get(*called) for name, called in STATED.items()}
    stated |= {name: config.get(name, kinds[name] or str) for name in FURTHER if name in config}
    stated |= {name: arguments.get(name, kind) for name, kind in kinds.items() if kind and name in arguments}
    if arguments.holder.get("disable_prefill_cuda_graph"):
        stated["cuda_graph_backend_prefill"] = "disabled"
    if sizes := config.holder.get("cudagraph_sizes"):
        stated["cuda_graph_bs"] = tuple(sizes)
    settings = SglangSettings(
        **{
            "disable_radix_cache": not config.holder.get("radix_cache", True),
            "disable_overlap_schedule": not config.holder.get("async_scheduling", True),
            "enable_mixed_chunk": bool(config.holder.get("mixed_chunk")),
            **stated,
            "engine": NEWEST,
        }
    )
    tokens = config.at_least("max_total_num_tokens", 1)
    return MeasuredSetup(
        settings=settings,
        num_gpu_blocks=tokens // (settings.page_size or 1),
        with_those_blocks=replace(settings, max_total_tokens=tokens),
        blocks_were_set=settings.max_total_tokens is not None,
        tensor_parallel_size=arguments.get("tp_size", int) if "tp_size" in arguments else 1,
        model={
            "quantization": config.word("quant", "") or None,
            "kv_cache_dtype": config.word("kv_cache_dtype"),
            "hf_overrides": arguments.inner("hf_overrides").holder,
        },
    )


def profiled_step(name: str) -> ProfiledStep | None:
    if (decode := DECODE.match(name)) is not None:
        return ProfiledStep(0, 0, int(decode[1]))
    prompts = PROMPTS.match(name)
    return None if prompts is None else ProfiledStep(int(prompts[1]), int(prompts[2]), 0)


FIRST_RATIO, LEAST_SHARE, DECAY_STEPS = 0.7, 0.14, 600
"""Of declared answers, the share that a start must have room for, what it falls to, and in how many steps
(``environ.py``, ``scheduler_components/new_token_ratio_tracker.py``)."""
GROUPED = 0.3
"""Groups of DP attention are so much less careful (``server_args.py``, ``_handle_data_parallelism``)."""


def sglang_replica(deployment: Deployment, settings: ResolvedSglang, timer: StepTimer, warmed_up: bool) -> Replica:
    host, stages = deployment.host, deployment.layout.pipeline
    conservativeness = settings.schedule_conservativeness * (GROUPED if settings.groups > 1 else 1.0)
    first = min(FIRST_RATIO * conservativeness, 1.0)
    policy = PrefillFirst(
        max_running_requests=settings.max_running_requests,
        chunked_prefill_size=settings.chunk,
        max_prefill_tokens=settings.max_prefill_tokens,
        max_prompts=settings.prefill_max_requests,
        mixed_chunk=settings.enable_mixed_chunk and settings.chunk is not None,
        order="longest_match" if settings.schedule_policy == "lpm" and not settings.disable_radix_cache else "arrival",
        first_ratio=first,
        least_ratio=first * LEAST_SHARE,
        ratio_decay=(first - first * LEAST_SHARE) / DECAY_STEPS,
        tries_always=cells(deployment.model, deployment.layout, settings).windowed > 0,
        # Requests that declare what they produce are those of benchmarks, which ignore the end of a text; it matters
        # without a radix cache alone.
        ignores_end=True,
    )
    return Replica(
        timer=timer,
        policy=policy,
        num_blocks=deployment.memory.request_blocks,
        kv_shape=deployment.memory.kv.shape,
        prefix_caching=not settings.disable_radix_cache,
        steps_under_way=stages if stages > 1 else 1 if settings.disable_overlap_schedule else 2,
        request_path_seconds=host.request_path,
        request_token_seconds=host.request_token,
        request_turn_seconds=host.server_turn if deployment.over_http else 0.0,
        token_path_seconds=host.token_path,
        token_turn_seconds=host.token_turn,
        wake_up_seconds=host.wake_up,
        looks_every=settings.scheduler_recv_interval,
        max_model_len=settings.max_model_len,
        stages=deployment.stages,
        launch_spread=LAUNCH_SPREAD,
        settle_seconds=SETTLE_SECONDS,
        offload=offload_of(
            settings,
            deployment.memory.kv.shape,
            deployment.memory.kv.block_bytes,
            deployment.memory.request_blocks,
            deployment.model.layers,
            deployment.layout,
            deployment.gpu,
        ),
    )


PREFILL_GRAPHS, BUFFERED_STATES = (0, 5, 10), (0, 5, 13)
TUNED_SINCE: Mapping[str, Version] = {"cdna3": (0, 5, 10), "cdna4": (0, 5, 7)}
"""Kernels of AMD's GPUs: decode steps of DeepSeek-R1 with four clients took 18.5 ms on MI355X in December 2025, 14.5 at
the beginning of January and 9.9 from its end on; on MI300X 21 to 27 ms up to 0.5.9 and 14.6 with 0.5.12 (published by
InferenceX)."""

FUSED_EARLY = ("deepseek", "gpt-oss", "kimi")
"""How the names of models begin whose all-reduces carried norms before."""


def before(version: Version, model: ModelConfig) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Settings and options of `deploy`; none of a version that is unknown."""
    if not version or version >= BUFFERED_STATES:
        return {}, {}
    settings: dict[str, Any] = {"mamba_radix_cache_strategy": "no_buffer"}
    if version >= PREFILL_GRAPHS:
        return settings, {}
    name = model.name.lower().rpartition("/")[2]
    options: dict[str, Any] = {} if name.startswith(FUSED_EARLY) else {"fuse_allreduce_rms": False}
    if model.has_experts and model.weights.experts == "bf16":
        options["moe_backend"] = "triton"
    return {**settings, "cuda_graph_backend_prefill": "disabled"}, options


OLDEST = (7, 5)
"""Compute capability below which SGLang's kernels (FlashInfer's, Triton's) are not built."""
TRIED = (
    (),
    (("chunked_prefill_size", 512),),
    (("chunked_prefill_size", 2048),),
    (("chunked_prefill_size", 16384),),
    (("max_running_requests", 128),),
    (("enable_mixed_chunk", True),),
)
"""What a plan tries: the engine's own choice, smaller and larger chunks, fewer requests, decoding beside prompts."""
BOUNDS = ("chunked_prefill_size", "max_running_requests", "context_length")


def _tier(settings: ResolvedSglang) -> str:
    size, ratio = settings.hicache_size, settings.hicache_ratio
    return f"{size:,} GB of host memory a GPU" if size else f"{ratio:g} times as large in host memory"


class Sglang(Engine):
    """One release of SGLang."""

    title = "SGLang"
    close_since = (0, 5, 16)
    load_balancer = "round_robin"
    shares_copies = False
    names = Names(**read_data("engines/sglang/names.toml"))
    commands = Commands(**read_data("engines/sglang/commands.toml"))
    settings_type = SglangSettings
    bounds = BOUNDS
    shown = (*BOUNDS, "mem_fraction_static", "disable_radix_cache")
    tried = TRIED
    oldest_gpu = OLDEST, "Turing, such as t4"
    expert_launches = EXPERT_LAUNCHES
    ties_groups = False
    tuned_since = TUNED_SINCE
    host_type = SglangHost

    settings_from = staticmethod(settings_of)
    resolve = staticmethod(resolve)
    spread = staticmethod(spread)
    sizes_for = staticmethod(sizes_for)
    fuses_norms = staticmethod(fuses_norms)
    choose_kernels = staticmethod(choose_kernels)
    expert_multiples = staticmethod(expert_multiples)
    plan_memory = staticmethod(plan_memory)
    host_model = staticmethod(SglangHostModel)
    replica = staticmethod(sglang_replica)
    measured_setup = staticmethod(measured_setup)
    profiled_step = staticmethod(profiled_step)
    before = staticmethod(before)

    def describe(self, settings: ResolvedSglang) -> str:
        chunk = "whole prompts" if settings.chunk is None else f"prompts in chunks of {settings.chunk:,} tokens"
        return (
            f"{chunk}, up to {settings.max_running_requests:,} requests; context_length {settings.context_length:,}; "
            f"mem_fraction_static {settings.mem_fraction_static:g}; radix cache "
            f"{'off' if settings.disable_radix_cache else 'on'}"
            + (f"; hierarchical cache, {_tier(settings)}" if settings.enable_hierarchical_cache else "")
        )

    def graphs(self, settings: ResolvedSglang) -> SglangGraphs:
        return SglangGraphs(settings.decode_sizes, settings.prefill_sizes)


RELEASES = {NEWEST: Sglang(name=NEWEST, flags=FLAGS)}
