"""What one step of a model launches: what the host does by hand, and what the GPU idles between kernels."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from infercast.bundled import read_data
from infercast.engines.vllm.block_size import default_block_size
from infercast.engines.vllm.kv import kv_layout
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls, token_calls
from infercast.models.spec import ModelConfig
from infercast.ops import Call, Scan
from infercast.ops.elementwise import FUSED_NORM

EXPERT_KERNELS, HEAD_KERNELS = 7, 8
"""Kernels that a layer of routed experts has beside the one it is counted as, and those of head and sampling."""
PACKED_EXPERTS = ("GptOssForCausalLM",)
"""Architectures whose 4-bit experts run OpenAI's Triton kernels on Hopper; those of others run Marlin's."""
RECURRENT = ("scan", "state_update", "convolution")
"""Kernels that the host's time for a recurrent layer holds."""
SCANS = {"gdn": "gdn", "kda": "delta", "mamba2": "mamba"}
"""What the host pays for a layer with a scan goes by its kind."""
PROMPT = np.array([2])
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
    grouped_choice_layers: int
    """Those whose experts are chosen from groups by plain scores, for which vLLM has no kernel: many operations."""
    kv_groups: int = 1
    """Groups of layers that have a block table of their own."""
    stages: int = 1
    """Processes that launch a part of the layers each."""
    recurrent_layers: int = 0
    """Layers with a state and no scan: short convolutions."""
    delta_layers: int = 0
    """Gated delta nets and Kimi's, whose convolutions, scans and copies of states Python launches one by one."""
    fused_delta_layers: int = 0
    """Gated delta nets whose scan is one call of FlashInfer's, and the rest the same."""
    mamba_layers: int = 0
    """Mamba2, the same."""
    sparse_layers: int = 0
    """Layers that choose what they look at: the indexer and attention run apart, each by hand."""
    packed_expert_layers: int = 0
    """Those whose 4-bit experts run OpenAI's Triton kernels, which Python sets up anew each time."""

    @property
    def scanned_layers(self) -> int:
        """All whose prompts are scanned; sequences that decode beside them run kernels of their own."""
        return self.delta_layers + self.fused_delta_layers + self.mamba_layers

    @property
    def gap_seconds(self) -> float:
        """What the GPU idles between the kernels of one step."""
        return GAP_SECONDS * (self.kernels + EXPERT_KERNELS * self.expert_layers + HEAD_KERNELS)


def _is_fused(call: Call) -> bool:
    """The compiler fuses quantising into the kernel before it, and norms into an all-reduce where it may."""
    return call.op.family == "quantise" or getattr(call.op, "kind", "") == FUSED_NORM


def _composed_layers(config: ModelConfig, layout: ParallelLayout) -> Counter[str]:
    """Layers whose token mixer is made of many operations, by what these are: a scan, a state, a choice or neither."""
    shard, counts = config.shard(layout), Counter[str]()
    for stack in config.stacks:
        if stack.mixer.is_composed:
            calls = stack.mixer.sequence_calls(shard, 1, PROMPT, PROMPT)
            scans = [call.op.kind for call in calls if isinstance(call.op, Scan)]
            caches = stack.mixer.caches(shard)
            kind = "sparse" if len(caches) > 1 else "latent"
            kind = "recurrent" if any(cache.bytes_per_sequence for cache in caches) else kind
            counts[SCANS[scans[0]] if scans else kind] += stack.layers
    return counts


def compiles_kernels(config: ModelConfig, layout: ParallelLayout) -> bool:
    """Whether layers have scans or indexers, whose kernels are compiled and tuned as the engine starts."""
    return any(_composed_layers(config, layout)[kind] for kind in ("gdn", "delta", "mamba", "sparse"))


@lru_cache
def launch_work(config: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> LaunchWork:
    """Count what a step of the model takes to launch."""
    calls = [*token_calls(config, layout, 2), *attention_calls(config, layout, PROMPT, PROMPT)]
    composed = _composed_layers(config, layout)
    experts = [stack for stack in config.stacks if stack.feed_forward.experts]
    weights = config.weights
    scans = weights.scans_kernel or read_data("engines/vllm/kernels.toml")["scans"].get(gpu.kernels, {}).get("gdn", "")
    is_fused = scans == "flashinfer"
    # Other chips have kernels of their own for them (Marlin, FlashInfer).
    is_packed = (
        config.architecture in PACKED_EXPERTS
        and weights.experts == "mxfp4"
        and not weights.experts_kernel
        and gpu.kernels == "hopper"
    )
    grouped = (stack.layers for stack in experts if stack.feed_forward.has_plain_groups)
    # The compiler makes one kernel of the norm after one half of a layer and the norm before the next.
    joined = sum((stack.norms - 2) * stack.layers for stack in config.stacks if stack.norms > 2)
    return LaunchWork(
        layers=sum(stack.layers for stack in config.stacks if not stack.mixer.is_empty),
        kernels=sum(call.count for call in calls if not _is_fused(call) and call.op.family not in RECURRENT) - joined,
        latent_layers=composed["latent"],
        recurrent_layers=composed["recurrent"],
        delta_layers=composed["delta"] + (0 if is_fused else composed["gdn"]),
        fused_delta_layers=composed["gdn"] if is_fused else 0,
        mamba_layers=composed["mamba"],
        sparse_layers=composed["sparse"],
        expert_layers=sum(stack.layers for stack in experts),
        grouped_choice_layers=sum(grouped),
        stages=layout.pipeline,
        kv_groups=kv_layout(config, layout, default_block_size(config, gpu)).shape.num_tables,
        packed_expert_layers=sum(stack.layers for stack in experts) if is_packed else 0,
    )
