"""How vLLM divides memory: weights, activations, CUDA graphs, and KV blocks in the rest."""

from __future__ import annotations

import numpy as np

from infercast.engines.memory import Memory
from infercast.engines.vllm.draft_memory import cached_model, draft_buffers, draft_graphs, draft_weights
from infercast.engines.vllm.expert_padding import expert_multiples
from infercast.engines.vllm.kv import kv_layout
from infercast.engines.vllm.launches import compiles_kernels
from infercast.engines.vllm.lora import slots_bytes
from infercast.engines.vllm.settings import ResolvedSettings
from infercast.engines.vllm.sparse_memory import sparse_memory
from infercast.engines.vllm.states import States, runs_v2
from infercast.engines.vllm.verify_graphs import VerifyGraphs
from infercast.engines.vllm.versions import MEASURED, engine_version
from infercast.errors import DoesNotFitError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import lora_calls, step_calls
from infercast.models.rank import stage_weight_bytes
from infercast.models.spec import ModelConfig
from infercast.ops.dtypes import bytes_of
from infercast.units import GIB, KIB, MIB

# Memory of a recorded graph for each kernel in it, and what libraries take beside torch's allocator. Read off the
# block counts of vLLM 0.25 on an H200 for five models: see docs/engine.md.
GRAPH_BYTES_A_KERNEL = 16 * KIB
# What the V2 model runner sets aside for a graph since it profiles them: at least this much, or by its kernels. A model
# of 24 layers and 220 kernels was seen to lose 105 MiB for 102 graphs to the V1 runner's profile, whose least is the
# same (vLLM 0.26 on an RTX PRO 6000, issue 50159 of vLLM): no graph of it takes more.
LEAST_PROFILED_BYTES = 1 * MIB
PROFILED_BYTES_A_KERNEL = 4.7 * KIB
LIBRARY_BYTES = 100 * MIB
# What recurrent and sparse layers take more, whose kernels are compiled and tuned while the engine measures its memory.
# Their engines have 1.9, 1.8 and 1.7 GiB less for blocks than the rest explains (Qwen3.5-35B-A3B, Nemotron 3 Nano, and
# six layers of GLM-5).
COMPILED_BYTES = 1.8 * GIB


def plan_memory(config: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: ResolvedSettings) -> Memory:
    """The memory of one GPU, as the engine divides it at its start. ``num_blocks`` may come out as 0.

    All stages of a pipeline have as many blocks as the one with least room; the plan is that one's.
    """
    usable = gpu.driver_bytes * settings.gpu_memory_utilization
    activations = peak_activation_bytes(config, layout, settings)
    graphs = graph_bytes(config, layout, settings)
    multiples = expert_multiples(config, gpu)
    libraries = LIBRARY_BYTES + (COMPILED_BYTES if compiles_kernels(config, layout) else 0.0)
    plans = []
    for stage in range(layout.pipeline):
        weights = stage_weight_bytes(config, layout, stage, multiples) + draft_weights(layout, gpu, settings)
        weights += slots_bytes(config, layout)
        kv = kv_layout(cached_model(config, settings), layout, settings.block_size, stage, settings.state_blocks)
        left = usable - weights - activations - graphs - libraries
        plans.append(
            Memory(
                total=gpu.driver_bytes,
                usable=usable,
                weights=weights,
                activations=activations,
                graphs=graphs,
                libraries=libraries,
                kv=kv,
                num_blocks=max(0, int(left // kv.block_bytes)),
                spare_blocks=1,  # the empty block
            )
        )
    plan = min(plans, key=lambda memory: (memory.num_blocks, -memory.weights))
    return plan._replace(num_blocks=settings.num_gpu_blocks_override or plan.num_blocks)


def check_state_blocks(config: ModelConfig, settings: ResolvedSettings, memory: Memory) -> None:
    """Refuse more sequences than blocks where each needs a state: full graphs of so many could not be recorded."""
    records_full = settings.capture_sizes and settings.cudagraph_mode != "piecewise"
    if States.of(config).kept and records_full and settings.max_num_seqs > memory.num_blocks:
        raise DoesNotFitError(
            f"max_num_seqs {settings.max_num_seqs} is above the {memory.num_blocks} KV blocks of {config.name}, whose "
            f"recurrent layers need one for the state of every sequence; lower max_num_seqs to {memory.num_blocks}"
        )


def peak_activation_bytes(config: ModelConfig, layout: ParallelLayout, settings: ResolvedSettings) -> float:
    """The most that activations take: the widest layer of a full step, or the logits of a full batch."""
    value = bytes_of(config.weights.base)
    tokens = settings.max_num_batched_tokens
    shard = config.shard(layout)
    widest = max(stack.feed_forward.live_values(shard) for stack in config.stacks)
    kept_for_drafts = draft_buffers(config, settings)
    in_layers = tokens * (2 * config.hidden + widest) * value + kept_for_drafts
    # Logits in the model's format and in fp32, beside the hidden states they come from.
    rows = settings.max_num_seqs * settings.width
    in_head = rows * config.vocabulary * (value + 4) + tokens * config.hidden * value + kept_for_drafts
    sparse = sparse_memory(config, layout, settings)
    if sparse is None:
        return max(in_layers, in_head)
    # Experts and sparse attention share a buffer that stays.
    kept = max(sparse.kept, tokens * widest * value)
    streams = 1 + max(stack.streams for stack in config.stacks)
    return kept + max(tokens * streams * config.hidden * value + sparse.beside, in_head)


def graph_bytes(config: ModelConfig, layout: ParallelLayout, settings: ResolvedSettings) -> float:
    """Memory of the recorded CUDA graphs, which grows with their number and their kernels."""
    sizes = settings.capture_sizes
    if not sizes:
        return 0.0
    one = np.array([1])
    num_kernels = sum(call.count for call in step_calls(config, layout, one, one, sampled=1))
    graphs = settings.graphs
    num_full = sum(size <= settings.max_num_seqs for size in sizes)
    if isinstance(graphs, VerifyGraphs):
        num_full = graphs.num_full
    num_graphs = {"full_decode_only": num_full, "piecewise": len(sizes)}.get(
        settings.cudagraph_mode, len(sizes) + num_full
    )
    if config.adapters is not None:
        # Every size is recorded twice: with adapters, and without for steps that have none.
        num_kernels = 2 * num_kernels + sum(call.count for call in lora_calls(config, layout, 1))
    recorded = float(GRAPH_BYTES_A_KERNEL * num_kernels * num_graphs) / layout.pipeline
    draft_kernels, num_draft_graphs = draft_graphs(layout, settings)
    recorded += GRAPH_BYTES_A_KERNEL * draft_kernels * num_draft_graphs
    if not _newly_reserves(config, settings):
        return recorded
    a_graph = max(LEAST_PROFILED_BYTES, PROFILED_BYTES_A_KERNEL * num_kernels / layout.pipeline)
    return recorded + num_graphs * a_graph


def _newly_reserves(config: ModelConfig, settings: ResolvedSettings) -> bool:
    """Whether graphs are profiled that were not in the measured release: V1's were, and V2's were not."""
    return settings.version.reserves_graphs and runs_v2(config, engine_version(MEASURED))
