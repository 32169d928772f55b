"""What fits: weights, activations, CUDA graphs, and the KV blocks that the rest of the memory holds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from infercast.engines.vllm.expert_padding import expert_multiples
from infercast.engines.vllm.kv import KvLayout, kv_layout
from infercast.engines.vllm.settings import ResolvedSettings
from infercast.errors import DoesNotFitError, InputError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import step_calls
from infercast.models.rank import stage_weight_bytes
from infercast.models.spec import ModelConfig
from infercast.models.spread import check_layout
from infercast.ops.dtypes import bytes_of
from infercast.units import KIB, MIB, format_bytes

# Memory of a recorded graph for each kernel in it, and what libraries take beside torch's allocator. Read off the
# block counts of vLLM 0.25 on an H200 for five models: see docs/engine.md.
GRAPH_BYTES_A_KERNEL = 16 * KIB
LIBRARY_BYTES = 100 * MIB
MOST_GPUS = 1024
"""As many of a node are tried where a model does not fit on fewer."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the memory of one GPU goes, in bytes."""

    total: float
    usable: float
    weights: float
    activations: float
    graphs: float
    libraries: float
    kv: KvLayout
    num_blocks: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of all KV blocks."""
        return self.num_blocks * self.kv.block_bytes

    @property
    def needed(self) -> float:
        """What must fit before the first KV block does."""
        return self.weights + self.activations + self.graphs + self.libraries

    @property
    def num_tokens(self) -> int:
        """Tokens that all blocks hold, of sequences that no window has cut anything off."""
        shape = self.kv.shape.even
        return self.num_blocks * shape.block_size // len(shape.windows)

    def most_sequences(self, num_tokens: int, chunk: int) -> int:
        """Sequences of that many tokens that fit at once; the engine sets one block aside."""
        return max(0, self.num_blocks - 1) // self.kv.shape.most_blocks(num_tokens, chunk)

    def longest_sequence(self, chunk: int) -> int:
        """Tokens of the longest sequence that fits alone."""
        shape, blocks = self.kv.shape, max(0, self.num_blocks - 1)
        low, high = 0, blocks * max(shape.sizes) // shape.block_size
        while low < high:
            middle = (low + high + 1) // 2
            fits = shape.most_blocks(middle * shape.block_size, chunk) <= blocks
            low, high = (middle, high) if fits else (low, middle - 1)
        return low * shape.block_size


def plan_memory(config: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: ResolvedSettings) -> Memory:
    """The memory of one GPU, as the engine divides it at its start. ``num_blocks`` may come out as 0.

    All stages of a pipeline have as many blocks as the one with least room; the plan is that one's.
    """
    usable = gpu.driver_bytes * settings.gpu_memory_utilization
    activations = peak_activation_bytes(config, layout, settings)
    graphs = graph_bytes(config, layout, settings)
    multiples = expert_multiples(config, gpu)
    plans = []
    for stage in range(layout.pipeline):
        weights = stage_weight_bytes(config, layout, stage, multiples)
        kv = kv_layout(config, layout, settings.block_size, stage)
        left = usable - weights - activations - graphs - LIBRARY_BYTES
        plans.append(
            Memory(
                total=gpu.driver_bytes,
                usable=usable,
                weights=weights,
                activations=activations,
                graphs=graphs,
                libraries=LIBRARY_BYTES,
                kv=kv,
                num_blocks=max(0, int(left // kv.block_bytes)),
            )
        )
    plan = min(plans, key=lambda memory: (memory.num_blocks, -memory.weights))
    return replace(plan, num_blocks=settings.num_gpu_blocks_override or plan.num_blocks)


def require_fit(config: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: ResolvedSettings) -> Memory:
    """The memory plan, or the reason why there is none and the smallest layout that helps."""
    memory = plan_memory(config, layout, gpu, settings)
    chunk = settings.most_in_flight(layout.pipeline)
    if memory.most_sequences(settings.max_model_len, chunk):
        return memory
    where = f"{layout.replica_gpus} x {gpu.name}"
    remedy = _remedy(config, layout, gpu, settings)
    longest = memory.longest_sequence(chunk)
    if longest == 0:
        raise DoesNotFitError(
            f"{config.name} ({config.weights.name}) does not fit on {where}: weights, activations and graphs need "
            f"{format_bytes(memory.needed)} of {format_bytes(memory.usable)} usable a GPU; {remedy}"
        )
    raise DoesNotFitError(
        f"one sequence of max_model_len {settings.max_model_len} does not fit in the KV cache of {config.name} on "
        f"{where}, whose {memory.num_blocks} blocks hold {longest} tokens; lower max_model_len, or: {remedy}"
    )


def peak_activation_bytes(config: ModelConfig, layout: ParallelLayout, settings: ResolvedSettings) -> float:
    """The most that activations take: the widest layer of a full step, or the logits of a full batch."""
    value = bytes_of(config.weights.base)
    tokens = settings.max_num_batched_tokens
    shard = config.shard(layout)
    widest = max(stack.feed_forward.live_values(shard) for stack in config.stacks)
    in_layers = tokens * (2 * config.hidden + widest) * value
    # Logits in the model's format and in fp32, beside the hidden states they come from.
    in_head = settings.max_num_seqs * config.vocabulary * (value + 4) + tokens * config.hidden * value
    return max(in_layers, in_head)


def graph_bytes(config: ModelConfig, layout: ParallelLayout, settings: ResolvedSettings) -> float:
    """Memory of the recorded CUDA graphs, which grows with their number and their kernels."""
    sizes = settings.capture_sizes
    if not sizes:
        return 0.0
    one = np.array([1])
    num_kernels = sum(call.count for call in step_calls(config, layout, one, one, sampled=1))
    num_full = sum(size <= settings.max_num_seqs for size in sizes)
    num_graphs = {"full_decode_only": num_full, "piecewise": len(sizes)}.get(
        settings.cudagraph_mode, len(sizes) + num_full
    )
    return float(GRAPH_BYTES_A_KERNEL * num_kernels * num_graphs) / layout.pipeline


def _remedy(config: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: ResolvedSettings) -> str:
    """The smallest tensor parallelism within a node that the model allows and that fits, or pipeline parallelism."""
    in_node = min(gpu.gpus_per_node, MOST_GPUS)
    for size in range(layout.tensor + 1, in_node // layout.pipeline + 1):
        wider = replace(layout, tensor=size)
        if _is_valid(config, wider) and _fits(config, wider, gpu, settings):
            return f"tensor_parallel_size={size} fits"
    for size in range(layout.pipeline + 1, in_node // layout.tensor + 1):
        deeper = replace(layout, pipeline=size)
        if _is_valid(config, deeper) and _fits(config, deeper, gpu, settings):
            return f"pipeline_parallel_size={size} fits"
    return f"no layout within the {gpu.gpus_per_node} GPUs of a node fits"


def _is_valid(config: ModelConfig, layout: ParallelLayout) -> bool:
    """Whether the model's dimensions allow the layout."""
    try:
        check_layout(config, layout)
    except InputError:
        return False
    return True


def _fits(config: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: ResolvedSettings) -> bool:
    memory = plan_memory(config, layout, gpu, settings)
    return memory.most_sequences(settings.max_model_len, settings.most_in_flight(layout.pipeline)) > 0
