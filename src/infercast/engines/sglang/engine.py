"""SGLang, release by release: flags, data-parallel layouts, measured setups, and the simulated replica.

``--speculative-*`` says the method, the tree of drafts, and the KV slots of a sequence. Facts of SGLang 0.5.16:
``arg_groups/speculative_hook.py`` (defaults), ``mem_cache/allocation_sizing.py`` (slots).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.engines import speculation as drafts
from infercast.engines.base import Deployment, Engine, Tell, Version, engine_named
from infercast.engines.host import Launch, next_size
from infercast.engines.memory import slots_of
from infercast.engines.settings import EngineNames, MeasuredSetup, filled, flags_in, read_setting
from infercast.engines.sglang import kernels, memory
from infercast.engines.sglang.host import SglangHost, SglangHostModel, SglangPasses
from infercast.engines.sglang.settings import (
    ARCHITECTURES,
    EARLY_GRAPHS,
    ENGINES,
    MEASURED,
    MEASURED_AGAIN,
    PREFILL_GRAPHS,
    USUAL,
    ResolvedSglang,
    SglangSettings,
    check,
    facts_of,
    rules_of,
)
from infercast.engines.speculation import Drafting
from infercast.engines.timer import encoder_of
from infercast.errors import Fields, InputError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.mixers.mixer import LatentAttention
from infercast.models.mixers.recurrent import KimiDeltaAttention
from infercast.models.mixers.sparse import CompressedAttention
from infercast.models.spec import ModelConfig
from infercast.predict.board_power import SETTLE_SECONDS
from infercast.predict.identity import kernel_profile
from infercast.serve import PrefillFirstPolicy, Replica
from infercast.serve.scheduler.base import Priorities
from infercast.serve.speculation import MOST_DRAFTS
from infercast.serve.step import StepTimer
from infercast.serve.timeline import LAUNCH_SPREAD
from infercast.units import format_many

ALGORITHMS = {
    "EAGLE": drafts.EAGLE, "NEXTN": drafts.EAGLE, "EAGLE3": drafts.EAGLE_3, "STANDALONE": drafts.DRAFT_MODEL,
    "NGRAM": drafts.NGRAM,
}  # fmt: skip
TREE_BACKENDS = ("flashinfer", "fa3", "triton")
LOOKED_UP, BREADTH = 12, 10  # Tokens verified and branches of n-gram lookups
USUAL_FACTOR, SENSITIVITY, LEAST, MOST = 0.95, 0.1, 0.8, 1.05
USUAL_LAYERS, USUAL_HIDDEN = 24, 1024  # Of the encoder that the factor is for (ViT-L)
FLAGS = flags_in(dict(read_data("engines/sglang/flags.toml")), [field.name for field in fields(SglangSettings)])
FUSING_GPUS = ("hopper", "blackwell", "blackwell-ultra")
FIRST_RATIO, LEAST_SHARE, DECAY_STEPS = 0.7, 0.14, 600
"""Initial share of declared outputs reserved on admission, its minimum, and the steps of its decay (``environ.py``,
``scheduler_components/new_token_ratio_tracker.py``)."""
TUNED_SINCE = {name: tuple(since) for name, since in ARCHITECTURES["tuned_since"].items()}
PREFILL_GRAPHS_SINCE, BUFFERED_STATES_SINCE = (0, 5, 10), (0, 5, 13)
BESIDE_SINCE = (0, 5, 9)  # Shared experts on a stream of their own: up to 0.5.6 DeepSeek-R1 on B200 decodes as without
OLDEST = (7, 5)  # Compute capability below which SGLang's kernels (FlashInfer's, Triton's) are not built
BOUNDS = ("chunked_prefill_size", "max_running_requests", "context_length")
PREFILL_STRETCHES = (
    (4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256),
)  # fmt: skip
"""First, last and distance of the captured prefill sizes; by 512 beyond."""
LONG, LONG_STEP = 4608, 512
USUAL_SEQUENCES, MOST_SEQUENCES, CONTEXTS = 2048, 4096, 512  # Default, by longest contexts that the pool holds
LATENT_GRAPH, LONG_LATENT_GRAPH = 2048, 8192  # Tokens of the largest prefill graph with latent attention, by release


def tree_of(asked: SglangSettings, target: ModelConfig, method: str) -> tuple[int, int, int]:
    """Steps, branches and verified tokens, with the engine's defaults."""
    steps, branches, tokens = (
        asked.speculative_num_steps, asked.speculative_eagle_topk, asked.speculative_num_draft_tokens
    )  # fmt: skip
    if method == drafts.NGRAM:
        tokens = tokens or LOOKED_UP
        return steps or max(1, tokens // BREADTH), BREADTH, tokens
    if steps is branches is tokens is None:
        branched = method != drafts.DRAFT_MODEL and target.architecture in ARCHITECTURES["branched"]
        return (5, 4, 8) if branched else (3, 1, 4)
    if steps is None or branches is None or (branches > 1 and tokens is None):
        raise InputError(
            "SGLang needs all or none of speculative_num_steps, speculative_eagle_topk and, above 1 branch, "
            f"speculative_num_draft_tokens, which are {steps}, {branches} and {tokens}"
        )
    return steps, branches, steps + 1 if branches == 1 else tokens or 0


def draft_slots(steps: int, branches: int, tokens: int, page: int, *, has_cache: bool) -> int:
    """KV slots beyond a sequence's tokens: of two steps, as the last one's result is not known."""
    if has_cache and page > 1 and branches > 1:  # each branch has pages of its own
        steps = (2 * (page - 1) + steps) // page * page
    return 2 * max(steps * branches, tokens)


def drafting_of(
    asked: SglangSettings, target: ModelConfig, layout: ParallelLayout, backend: str, page: int
) -> drafts.Drafting:
    name, path = str(asked.speculative_algorithm).upper(), asked.speculative_draft_model_path
    if (method := ALGORITHMS.get(name, "")) == "":
        known = ", ".join(ALGORITHMS)
        raise InputError(f"speculative_algorithm {name} is not modelled; TPOT is likely lower with it; known: {known}")
    steps, branches, tokens = tree_of(asked, target, method)
    by_tree = TREE_BACKENDS[:1] if method == drafts.NGRAM else TREE_BACKENDS
    failing = {
        "pipeline parallelism": layout.pipeline > 1,
        "enable_dp_attention": asked.enable_dp_attention and method in (drafts.DRAFT_MODEL, drafts.NGRAM),
        "LoRA adapters": asked.has_adapters and method != drafts.NGRAM,
        f"{branches} branches of drafts in pages of {page}": branches > 1 and page > 1 and backend not in by_tree,
    }
    if reason := next((each for each, fails in failing.items() if fails), ""):
        raise InputError(f"SGLang does not start with speculative_algorithm {name} and {reason}; leave one out")
    if method == drafts.EAGLE and target.prediction is not None:
        own_heads = ("nextn", "mtp")  # In names of checkpoints with the target's own prediction heads
        method = drafts.MTP if path is None or any(each in path.lower() for each in own_heads) else method
    if path is None and method not in (drafts.MTP, drafts.NGRAM):
        raise InputError(f"speculative_algorithm {name} needs speculative_draft_model_path")
    if path is not None and path.startswith((".", "/", "~")) and not os.path.exists(path):
        path = PurePosixPath(path).name  # a folder of another machine
    draft, note = drafts.draft_of(method, path, target, asked.speculative_draft_model_quantization)
    is_lookup = method == drafts.NGRAM
    num_drafts = tokens - 1 if is_lookup else steps
    accepted = drafts.usual(target.name, method, num_drafts)
    if asked.acceptance:
        accepted = drafts.read_acceptance(asked.acceptance, num_drafts)
    elif is_lookup:
        accepted = accepted._replace(rates=tuple(drafts.MATCH_SHARE * rate for rate in accepted.rates))
    return drafts.Drafting(
        method, num_drafts, accepted, draft, layout.tensor, num_verified=tokens, branches=1 if is_lookup else branches,
        lookahead=draft_slots(steps, branches, tokens, page, has_cache=not is_lookup),
        drops_block=method in drafts.BY_HEADS, heads_all=True, note=note,
    )  # fmt: skip


def decode_sizes(largest: int, *, padded: bool = True, drafts: bool = False) -> tuple[int, ...]:
    """Captured decode sizes, in sequences; the largest is always included."""
    if not padded:
        return tuple(range(1, largest + 1))
    if drafts:
        sizes = {*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, largest + 1, 16)}
        return tuple(sorted(size for size in {*sizes, largest} if size <= largest))
    sizes = {1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, largest + 1, 32), largest}
    return tuple(sorted(size for size in sizes if size <= largest))


def prefill_sizes(largest: int) -> tuple[int, ...]:
    sizes = [size for first, last, step in PREFILL_STRETCHES for size in range(first, last + 1, step)]
    return tuple(size for size in (*sizes, *range(LONG, largest + 1, LONG_STEP)) if size <= largest)


def kept_sizes(sizes: tuple[int, ...], running: int, multiple: int = 1) -> tuple[int, ...]:
    """Decode sizes that can occur: up to the running sequences, in multiples of a group's GPUs."""
    most = -(-running // multiple) * multiple
    wanted = {*sizes, most} if sizes and sizes[-1] > most else {*sizes}
    return tuple(sorted(size for size in wanted if size <= most and size % multiple == 0))


class SglangGraphs(NamedTuple):
    """CUDA graphs captured at the engine's start, for decode and prefill steps; no sizes: none."""

    decode: tuple[int, ...]
    prefill: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({*self.decode, *self.prefill}))

    def launch(self, num_tokens: int, is_decode: bool) -> tuple[Launch, int]:
        """How a step of this many tokens is launched, and its padded size: the next captured one."""
        padded = next_size(self.decode if is_decode else self.prefill, num_tokens)
        most_padding = 2  # A prefill step that padding would enlarge by more than this factor runs without a graph
        if padded is None or not (is_decode or padded <= most_padding * num_tokens):
            return Launch.EAGER, num_tokens
        return Launch.FULL_GRAPH if is_decode else Launch.PIECEWISE_GRAPHS, padded


def static_factor(model: ModelConfig) -> float:
    """Factor on the static memory share: less for a large encoder."""
    if model.vision is None:
        return 1.0
    layers = USUAL_LAYERS if model.architecture in ARCHITECTURES["other_names"] else model.vision.layers
    larger = layers * model.vision.hidden**2 / (USUAL_LAYERS * USUAL_HIDDEN**2) - 1.0
    return USUAL_FACTOR * max(LEAST, min(MOST, 1.0 - SENSITIVITY * larger))


def prompt_graphs(model: ModelConfig, pipeline: int, backend: str, facts: Mapping[str, bool]) -> bool:
    """True if prefill steps may have graphs; TensorRT-LLM's prefill of latents would be another one in them."""
    if pipeline > 1 and (facts["no_pipelines"] or model.architecture in ARCHITECTURES["compiled"]):
        return False
    if model.architecture in ARCHITECTURES["compiled"]:
        return True
    if model.has_mixer(LatentAttention):
        other = backend == "trtllm_mla" and model.architecture == "DeepseekV3ForCausalLM"
        if other or not facts["latent"] or model.has_mixer(KimiDeltaAttention):
            return False
    return model.vision is None or model.architecture in ARCHITECTURES["graphed"]


def _early_graphs(model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> bool:
    """The same of releases that compiled graphs: not with experts of TensorRT-LLM, which choose for themselves."""
    named = kernels.experts_kernel(model, gpu, layout)
    by_format = kernel_profile("sglang").experts.get(gpu.kernels, {}).get(model.weights.experts, "")
    chosen_inside = model.has_experts and (named or by_format) == "trtllm" and model.architecture != "GptOssForCausalLM"
    listed = model.architecture in ARCHITECTURES["never_compiled"]
    return not (chosen_inside or listed or model.vision or layout.pipeline > 1)


def resolve(asked: SglangSettings, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> ResolvedSglang:
    asked = filled(asked, {**USUAL, **before(engine_named(asked.engine).version, model)[0]})
    check(asked, model.max_positions)
    if asked.enable_priority_scheduling and layout.pipeline > 1:
        raise InputError("enable_priority_scheduling is not modelled with pipeline parallelism; leave one out")
    if model.has_mixer(CompressedAttention):
        asked = memory.compressed_defaults(asked)
    backend = kernels.attention_backend(model, gpu, asked.attention_backend)
    if asked.speculative_algorithm is not None:
        backend = draft_backend(asked, model, gpu, backend)
        drafting_sequences = 48  # Running sequences by default with drafts
        asked = replace(
            asked, max_running_requests=asked.max_running_requests or drafting_sequences, enable_mixed_chunk=False
        )
    kernels.check_backend(backend, gpu)
    page = kernels.page_size(model, backend, asked.page_size)
    drafting = _drafting(asked, model, layout, backend, page)
    context = asked.context_length or model.max_positions
    groups = layout.sharing if asked.enable_dp_attention else 1
    usual_chunk, largest_graph = memory.by_memory(gpu, layout.tensor * groups)
    chunk = asked.chunked_prefill_size or usual_chunk
    without = asked.disable_cuda_graph or backend in kernels.EAGER_BACKENDS
    graphs = not (without or (layout.all_to_all and asked.deepep_mode == "normal"))
    decode = _decode_sizes(asked, largest_graph)
    replays = graphs and not asked.disable_decode_cuda_graph
    prefill = (
        _prefill_sizes(asked, model, layout, gpu, chunk, backend)
        if graphs and not asked.disable_prefill_cuda_graph
        else ()
    )
    share = asked.mem_fraction_static
    if share is None:
        reserved = memory.Reserved(
            tokens=chunk if chunk > 0 else asked.max_prefill_tokens, gpus=layout.tensor * groups * layout.pipeline,
            largest_graph=max(decode), decode_graphs=replays, num_prefill_sizes=len(prefill),
            is_latent=model.has_mixer(LatentAttention), dp_copies=groups if asked.enable_dp_attention else 0,
            deepep=layout.all_to_all,
        )  # fmt: skip
        share = reserved.static_share(gpu) * static_factor(model)
    states = memory.state_pool(model, layout, asked)
    room = memory.budget(model, layout, gpu, asked, share, drafting)
    tokens = memory.tokens_that_fit(room, asked, page)
    running = _running(asked, tokens, context, groups)
    if states.state_bytes:
        running = min(running, room.states // states.per_request(asked))
    running = max(1, running)
    return ResolvedSglang(
        **{
            **asdict(asked), "mem_fraction_static": share, "max_running_requests": running,
            "chunked_prefill_size": chunk // groups if chunk > 0 else chunk, "context_length": context,
            "page_size": page, "attention_backend": backend, "disable_overlap_schedule": not states.overlaps,
            "mamba_radix_cache_strategy": states.strategy,
            "decode_sizes": kept_sizes(decode if replays else (), running, layout.tensor if groups > 1 else 1),
            "prefill_sizes": prefill, "longest": max(1, min(context, tokens)), "groups": groups, "drafting": drafting,
        }
    )  # fmt: skip


def draft_backend(asked: SglangSettings, model: ModelConfig, gpu: Gpu, usual: str) -> str:
    """Attention with drafts: kernels of Hopper and Blackwell by default only where a chain is asked for."""
    branches = asked.speculative_eagle_topk or (2 if usual == "trtllm_mha" else 1)
    if asked.attention_backend is not None or branches == 1 or usual not in ("fa3", "trtllm_mha"):
        return usual
    return usual if model.has_mixer(LatentAttention) else "flashinfer"


def _drafting(
    asked: SglangSettings, model: ModelConfig, layout: ParallelLayout, backend: str, page: int
) -> Drafting | None:
    if asked.speculative_algorithm is None:
        if asked.acceptance is not None:
            raise InputError("acceptance has no meaning without --speculative-algorithm")
        return None
    if asked.enable_hierarchical_cache:
        raise InputError("enable_hierarchical_cache is not modelled with speculative_algorithm; leave one out")
    return drafting_of(asked, model, layout, backend, page)


def _running(asked: SglangSettings, tokens: int, context: int, groups: int) -> int:
    """Maximum running requests, limited by room for two tokens each."""
    usual = min(max(tokens * CONTEXTS // context, USUAL_SEQUENCES), MOST_SEQUENCES)
    return min(usual if asked.max_running_requests is None else asked.max_running_requests // groups, tokens // 2)


def _decode_sizes(asked: SglangSettings, default: int) -> tuple[int, ...]:
    if asked.cuda_graph_bs is not None:
        return tuple(sorted(set(asked.cuda_graph_bs)))
    largest, drafts = asked.cuda_graph_max_bs or default, asked.speculative_algorithm is not None
    return decode_sizes(largest, padded=not asked.disable_cuda_graph_padding, drafts=drafts)


def _prefill_sizes(
    asked: SglangSettings, model: ModelConfig, layout: ParallelLayout, gpu: Gpu, chunk: int, backend: str
) -> tuple[int, ...]:
    facts = facts_of(asked.engine, "graphs")
    off = asked.has_adapters or layout.all_to_all or asked.enable_dp_attention
    if asked.cuda_graph_backend_prefill == EARLY_GRAPHS:
        off |= not _early_graphs(model, layout, gpu)
    else:
        off |= asked.cuda_graph_backend_prefill != PREFILL_GRAPHS[0]
        off |= not prompt_graphs(model, layout.pipeline, backend, facts)
    if off or gpu.vendor != "NVIDIA":
        return ()
    # By default a graph is as large as a chunk, or the whole cache; none is longer than a sequence.
    usual = chunk
    if model.has_mixer(LatentAttention):
        usual = min(LONG_LATENT_GRAPH, chunk) if facts["long_latent"] else LATENT_GRAPH
    largest = asked.cuda_graph_max_bs_prefill or min(usual, asked.max_total_tokens or usual)
    return prefill_sizes(min(largest, asked.context_length or largest))


def settings_of(given: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    values = dict(given)
    if isinstance(sizes := values.get("cuda_graph_bs"), str):
        values["cuda_graph_bs"] = read_setting({"cuda_graph_bs": tuple}, "cuda_graph_bs", sizes)
    return values


def spread(asked: SglangSettings, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> ParallelLayout:
    """The layout for ``tp_size``, ``dp_size`` and ``ep_size``, which come as tensor, data and a setting."""
    tensor, data = layout.tensor, layout.data
    in_groups = asked.enable_dp_attention and data > 1
    if in_groups and not model.has_experts:
        raise InputError(
            f"enable_dp_attention is modelled for models with experts, and {model.name} has none; leave it out"
        )
    if in_groups and tensor % data:
        raise InputError(
            f"enable_dp_attention divides the {tensor} GPUs of tp_size into dp_size groups, and {data} does not divide "
            "them; make tp_size a multiple of dp_size"
        )
    if layout.all_to_all and not in_groups:
        raise InputError(
            "moe_a2a_backend is modelled for groups of DP attention alone; add --enable-dp-attention and --dp-size, or "
            "leave it out"
        )
    if asked.enable_two_batch_overlap and not layout.all_to_all:
        raise InputError("enable_two_batch_overlap is modelled with moe_a2a_backend alone; add it or leave it out")
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
        layout, extra_last=layout.pipeline > 1, tensor=tensor // data if in_groups else tensor,
        experts=layout.experts or expert_gpus > 1, fused_norms=fused, apart=data > 1 and not in_groups,
        redundant=asked.ep_num_redundant_experts, balanced=asked.enable_eplb or asked.init_expert_location != "trivial",
    )  # fmt: skip


def sizes_for(layout: ParallelLayout) -> dict[str, Any]:
    """Options and settings by name that yield a layout."""
    in_groups = layout.data > 1 and not layout.apart
    tensor = layout.tensor * layout.data if in_groups else layout.tensor
    sizes = {"tensor": tensor, "pipeline": layout.pipeline, "data": layout.data}
    return {
        **{f"{name}_parallel_size": size for name, size in sizes.items() if size > 1},
        **({"enable_dp_attention": True} if in_groups else {}),
        **({"ep_size": tensor} if layout.experts and tensor > 1 else {}),
    }


KINDS = {"bool": bool, "int": int, "float": float, "str": str}
STATED: dict[str, tuple[str, type]] = {
    "mem_fraction_static": ("gpu_memory_utilization", float), "chunked_prefill_size": ("max_num_batched_tokens", int),
    "max_running_requests": ("max_num_seqs", int), "context_length": ("max_model_len", int),
    "page_size": ("block_size", int),
}  # fmt: skip
"""Required settings in every file, and their names there."""
FURTHER = ("max_prefill_tokens", "schedule_policy", "schedule_conservativeness", "attention_backend")
"""Settings a file may contain under their own names."""


def measured_setup(config: Fields) -> MeasuredSetup:
    """Parse a file's config: the engine's resolved values, and in ``engine_args`` what else it was given."""
    arguments = config.inner("engine_args")
    kinds = {each.name: KINDS.get(str(each.type).split(" ", maxsplit=1)[0]) for each in fields(SglangSettings)}
    stated: dict[str, Any] = {name: config.get(*called) for name, called in STATED.items()}
    stated |= {name: config.get(name, kinds[name] or str) for name in FURTHER if name in config}
    stated |= {name: arguments.get(name, kind) for name, kind in kinds.items() if kind and name in arguments}
    if arguments.holder.get("disable_prefill_cuda_graph"):
        stated["cuda_graph_backend_prefill"] = "disabled"
    if length := config.holder.get("simulated_accept_length"):
        stated["acceptance"] = f"length={length}"
    if sizes := config.holder.get("cudagraph_sizes"):
        stated["cuda_graph_bs"] = tuple(sizes)
    settings = SglangSettings(
        **{
            "disable_radix_cache": not config.holder.get("radix_cache", True),
            "disable_overlap_schedule": not config.holder.get("async_scheduling", True),
            "enable_mixed_chunk": bool(config.holder.get("mixed_chunk")),
            **stated,
            "engine": f"sglang@{release}" if (release := config.word("sglang")) else MEASURED,
        }
    )
    tokens = config.at_least("max_total_num_tokens", 1)
    return MeasuredSetup(
        settings=settings, num_gpu_blocks=tokens // (settings.page_size or 1),
        with_those_blocks=replace(settings, max_total_tokens=tokens),
        blocks_were_set=settings.max_total_tokens is not None,
        tensor_parallel_size=arguments.get("tp_size", int) if "tp_size" in arguments else 1,
        over_http=bool(config.holder.get("api_server")),
        model={
            "quantization": config.word("quant") or None, "kv_cache_dtype": config.word("kv_cache_dtype", "auto"),
            "hf_overrides": arguments.inner("hf_overrides").holder,
        },
    )  # fmt: skip


def sglang_replica(deployment: Deployment, settings: ResolvedSglang, timer: StepTimer, warmed_up: bool) -> Replica:
    host, stages = deployment.host, deployment.layout.pipeline
    grouped = 0.3  # DP attention groups reserve less by this factor (``server_args.py``, ``_handle_data_parallelism``)
    conservativeness = settings.schedule_conservativeness * (grouped if settings.groups > 1 else 1.0)
    first = min(FIRST_RATIO * conservativeness, 1.0)
    sign, preempts = 1 if settings.schedule_low_priority_values_first else -1, not settings.disable_priority_preemption
    priorities = Priorities(sign, preempts, settings.priority_scheduling_preemption_threshold)
    policy = PrefillFirstPolicy(
        max_running_requests=settings.max_running_requests,
        chunked_prefill_size=settings.chunk,
        max_prefill_tokens=settings.max_prefill_tokens,
        max_prompts=settings.prefill_max_requests,
        mixed_chunk=settings.enable_mixed_chunk and settings.chunk is not None,
        order="longest_match" if settings.schedule_policy == "lpm" and not settings.disable_radix_cache else "arrival",
        first_ratio=first,
        least_ratio=first * LEAST_SHARE,
        ratio_decay=(first - first * LEAST_SHARE) / DECAY_STEPS,
        tries_always=memory.cells(deployment.model, deployment.layout, settings).windowed > 0,
        # Requests that declare what they produce come from benchmarks, which ignore EOS; it matters only without a
        # radix cache.
        ignores_end=True,
        rules=rules_of(settings.engine),
        priorities=priorities if settings.enable_priority_scheduling else None,
    )
    return Replica(
        timer=timer, policy=policy, num_blocks=deployment.memory.request_blocks, kv_shape=deployment.memory.kv.shape,
        prefix_caching=not settings.disable_radix_cache,
        steps_under_way=stages if stages > 1 else 1 if settings.disable_overlap_schedule else 2,
        request_path_seconds=host.request_path, request_token_seconds=host.request_token,
        server=host.server(over_http=deployment.over_http), token_path_seconds=host.token_path,
        token_turn_seconds=host.token_turn, wake_up_seconds=host.wake_up,
        poll_interval=settings.scheduler_recv_interval, max_model_len=settings.max_model_len, stages=deployment.stages,
        launch_spread=LAUNCH_SPREAD, settle_seconds=SETTLE_SECONDS,
        offload=memory.offload_of(
            settings, deployment.memory, deployment.model.layers, deployment.layout, deployment.gpu
        ),
        encoder=encoder_of(deployment, host.eager_kernel),
        max_adapters=settings.max_loras_per_batch if settings.has_adapters else None,
        speculation=None if settings.drafting is None else settings.drafting.speculation(),
    )  # fmt: skip


def before(version: Version, model: ModelConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and options of `deploy`; none for an unknown version."""
    if not version or version >= BUFFERED_STATES_SINCE:
        return {}, {}
    settings: dict[str, Any] = {"mamba_radix_cache_strategy": "no_buffer"}
    if version >= PREFILL_GRAPHS_SINCE:
        return {**settings, "cuda_graph_backend_prefill": EARLY_GRAPHS}, {}
    name = model.name.lower().rpartition("/")[2]
    early = name.startswith(tuple(ARCHITECTURES["fused_early"]))
    options: dict[str, Any] = {} if early else {"fuse_allreduce_rms": False}
    if model.has_experts and model.weights.experts == "bf16":
        options["moe_backend"] = "triton"
    return {**settings, "cuda_graph_backend_prefill": "disabled"}, options


def known_before(version: Version) -> list[str]:
    found = ["cuda_graph_backend_prefill disabled", "norms fused in few models", "bf16 experts by Triton"]
    found = found if version < PREFILL_GRAPHS_SINCE else [f"cuda_graph_backend_prefill {EARLY_GRAPHS}"]
    found = [*found, "mamba_radix_cache_strategy no_buffer"] if version < BUFFERED_STATES_SINCE else []
    found = [*found, "shared experts after routed ones"] if version < BESIDE_SINCE else found
    return [*found, *(f"kernels on {name}" for name, since in TUNED_SINCE.items() if version < since)]


def _tier(settings: ResolvedSglang) -> str:
    size, ratio = settings.hicache_size, settings.hicache_ratio
    return f"{size:,} GB of host memory per GPU" if size else f"{ratio:g} times as large in host memory"


class Sglang(Engine):
    title = "SGLang"
    close_since = (0, 5, 16)
    load_balancer = "round_robin"
    shares_copies = False
    names = EngineNames(**read_data("engines/sglang/names.toml"))
    commands_file = "engines/sglang/commands.toml"
    settings_type = SglangSettings
    bounds = BOUNDS
    shown = (*BOUNDS, "mem_fraction_static", "disable_radix_cache")
    oldest_gpu = OLDEST, "Turing, such as t4"
    own_drafts = "--speculative-algorithm NEXTN"
    expert_launches = kernels.EXPERT_LAUNCHES
    tuned_since = TUNED_SINCE
    quicker_experts_since = 0, 5, 23
    host_type = SglangHost

    settings_from = staticmethod(settings_of)
    resolve = staticmethod(resolve)
    spread = staticmethod(spread)
    sizes_for = staticmethod(sizes_for)
    expert_multiples = staticmethod(kernels.expert_multiples)
    plan_memory = staticmethod(memory.plan_memory)
    host_model = staticmethod(SglangHostModel)
    replica = staticmethod(sglang_replica)
    measured_setup = staticmethod(measured_setup)
    before = staticmethod(before)
    known_before = staticmethod(known_before)

    def fuses_norms(self, model: ModelConfig, gpu: Gpu) -> bool:
        by_default = self.before(self.version, model)[1].get("fuse_allreduce_rms", True)
        return by_default and model.architecture in ARCHITECTURES["fusing"] and gpu.architecture in FUSING_GPUS

    @property
    def tied_routers(self) -> tuple[str, ...]:
        return ("biased",)

    def choose_kernels(self, model: ModelConfig, gpu: Gpu, layout: ParallelLayout) -> ModelConfig:
        if not model.weights.experts_kernel and "moe_backend" in (older := before(self.version, model)[1]):
            model = replace(model, weights=replace(model.weights, experts_kernel=older["moe_backend"]))
        model = kernels.choose_kernels(model, gpu, layout)
        if not self.version or self.version >= BESIDE_SINCE:
            return model
        return model.with_experts(lambda spec: replace(spec, beside=0))

    def describe(self, settings: ResolvedSglang) -> str:
        chunk = "whole prompts" if settings.chunk is None else f"prompts in chunks of {settings.chunk:,} tokens"
        return (
            f"{chunk}, up to {format_many(settings.max_running_requests, 'request')}; "
            f"context_length {settings.context_length:,}; "
            f"mem_fraction_static {settings.mem_fraction_static:g}; radix cache "
            f"{'off' if settings.disable_radix_cache else 'on'}"
            + (f"; hierarchical cache, {_tier(settings)}" if settings.enable_hierarchical_cache else "")
        )

    def graphs(self, settings: ResolvedSglang) -> SglangGraphs:
        width = 1 if settings.drafting is None else settings.drafting.width
        return SglangGraphs(tuple(size * width for size in settings.decode_sizes), settings.prefill_sizes)

    def with_settings(self, asked: SglangSettings, model: ModelConfig) -> ModelConfig:
        usual_rank = 16  # Of adapters whose files are not at hand
        slots = asked.max_loras_per_batch, asked.max_lora_rank or usual_rank
        model = model.pooling() if asked.is_embedding else model
        model = kernels.with_products(model, asked.fp8_gemm_backend)
        return replace(model, adapters=slots_of(*slots, model)) if asked.has_adapters else model

    def drafts(self, asked: SglangSettings) -> bool:
        return asked.speculative_algorithm is not None

    def most_tokens(self, given: Mapping[str, Any]) -> int:
        return MOST_DRAFTS if given.get("speculative_algorithm") else 1

    def draft_passes(self, deployment: Deployment) -> SglangPasses:
        settings, host = deployment.settings, deployment.host
        assert isinstance(settings, ResolvedSglang)
        assert isinstance(host, SglangHost)
        assert settings.drafting is not None
        return SglangPasses(host, settings.drafting, replace(deployment.layout, pipeline=1), settings.decode_sizes)


def _release(name: str) -> Sglang:
    first = MEASURED.partition("@")[2]
    notes = {
        MEASURED: "",
        MEASURED_AGAIN: f"scheduling by its source, host times as measured on it, kernels on {first}",
    }
    note = notes.get(name, f"scheduling by its source, costs as in {first}")
    return Sglang(name=name, note=note, is_measured=name in notes, flags=FLAGS)


RELEASES = {name: _release(name) for name in ENGINES}
