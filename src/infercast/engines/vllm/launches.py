"""What one step of a model launches: what the host does by hand, and what the GPU idles between kernels."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from infercast.engines.vllm.block_size import default_block_size
from infercast.engines.vllm.kv import kv_layout
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls, token_calls
from infercast.models.spec import ModelConfig
from infercast.ops import Call
from infercast.ops.elementwise import FUSED_NORM

EXPERT_KERNELS, HEAD_KERNELS = 7, 8
"""Kernels that a layer of routed experts has beside the one it is counted as, and those of head and sampling."""
PACKED_EXPERTS = ("GptOssForCausalLM",)
"""Architectures whose 4-bit experts run OpenAI's Triton kernels on Hopper; those of others run Marlin's."""
GAP_SECONDS = 0.15e-6
"""What a GPU idles between two kernels of a step beyond what their estimates hold, from decode steps on an H200."""


class LaunchWork(NamedTuple):
    """Counts over all layers of a model."""

    layers: int
    kernels: int
    """Kernels of an eager step with a prompt, the experts of a layer counted as one."""
    latent_layers: int
    """Layers with latent attention, which is made of many small operations in Python."""
    expert_layers: int
    """Layers with routed experts, whose kernels are launched from Python one after the other."""
    shared_expert_layers: int
    """Those with shared experts beside them."""
    kv_groups: int = 1
    """Groups of layers that have a block table of their own."""
    stages: int = 1
    """Processes that launch a part of the layers each."""
    recurrent_layers: int = 0
    """Layers with a state, whose convolutions, scans and updates Python launches one after the other."""
    sparse_layers: int = 0
    """Layers that choose what they look at: the indexer and attention run apart, each by hand."""
    packed_expert_layers: int = 0
    """Those whose 4-bit experts run OpenAI's Triton kernels, which Python sets up anew each time."""

    @property
    def gap_seconds(self) -> float:
        """What the GPU idles between the kernels of one step."""
        return GAP_SECONDS * (self.kernels + EXPERT_KERNELS * self.expert_layers + HEAD_KERNELS)


def _is_fused(call: Call) -> bool:
    """The compiler fuses quantising into the kernel before it, and norms into an all-reduce where it may."""
    return call.op.family == "quantise" or getattr(call.op, "kind", "") == FUSED_NORM


def _composed_layers(config: ModelConfig, layout: ParallelLayout) -> Counter[str]:
    """Layers whose token mixer is made of many operations, by what these are: a state, a choice or neither."""
    shard, counts = config.shard(layout), Counter[str]()
    for stack in config.stacks:
        if stack.mixer.is_composed:
            caches = stack.mixer.caches(shard)
            kind = "sparse" if len(caches) > 1 else "latent"
            counts["recurrent" if any(cache.bytes_per_sequence for cache in caches) else kind] += stack.layers
    return counts


@lru_cache
def launch_work(config: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> LaunchWork:
    """Count what a step of the model takes to launch."""
    prompt = np.array([2])
    calls = [*token_calls(config, layout, 2), *attention_calls(config, layout, prompt, prompt)]
    composed = _composed_layers(config, layout)
    experts = [stack for stack in config.stacks if stack.feed_forward.experts]
    weights = config.weights
    # Other chips have kernels of their own for them (Marlin, FlashInfer).
    is_packed = (
        config.architecture in PACKED_EXPERTS
        and weights.experts == "mxfp4"
        and not weights.experts_kernel
        and gpu.kernels == "hopper"
    )
    shared = (stack.layers for stack in experts if stack.feed_forward.shared_inter)
    # The compiler makes one kernel of the norm after one half of a layer and the norm before the next.
    joined = sum((stack.norms - 2) * stack.layers for stack in config.stacks if stack.norms > 2)
    return LaunchWork(
        layers=sum(stack.layers for stack in config.stacks if not stack.mixer.is_empty),
        kernels=sum(call.count for call in calls if not _is_fused(call)) - joined,
        latent_layers=composed["latent"],
        recurrent_layers=composed["recurrent"],
        sparse_layers=composed["sparse"],
        expert_layers=sum(stack.layers for stack in experts),
        shared_expert_layers=sum(shared),
        stages=layout.pipeline,
        kv_groups=kv_layout(config, layout, default_block_size(config, gpu)).shape.num_tables,
        packed_expert_layers=sum(stack.layers for stack in experts) if is_packed else 0,
    )
