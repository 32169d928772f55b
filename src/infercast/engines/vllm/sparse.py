"""Sparse attention in vLLM: which GPUs it has kernels for, and which it takes.

Facts of vLLM 0.25 (``platforms/cuda.py``, ``v1/attention/backends/mla``): on Hopper FlashAttention reads a bf16 cache,
and FlashMLA an fp8 one in a format of its own, for 64 or 128 heads. Blackwell in datacentres has FlashInfer for fp8
and for few heads and FlashMLA, for 128 heads, otherwise. The kernels of other Blackwell chips read FlashMLA's format
alone. Older chips have none, and no DeepGEMM, which computes the scores of an indexer. Compressed attention
(``models/deepseek_v4``) is FlashMLA's in its own format everywhere but on these other chips, which do not pad heads.
"""

from __future__ import annotations

from dataclasses import replace

from infercast.engines.vllm.block_size import DATACENTER_BLACKWELL
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import CompressedAttention, Mixer, SparseLatentAttention
from infercast.models.spec import ModelConfig
from infercast.ops.dtypes import PACKED_LATENT

WITHOUT_KERNELS = ("pascal", "volta", "turing", "ampere", "ampere-ga10x", "ada")
OTHER_BLACKWELL = ("blackwell-rtx",)
PADDED_HEADS, BLACKWELL_HEADS, FEW_HEADS = 64, 128, 16


def choose_sparse_kernels(model: ModelConfig, gpu: Gpu, _: ParallelLayout | None = None) -> ModelConfig:
    """The model with the cache format and the padding of the kernels that this GPU runs for sparse attention."""
    kinds = {type(stack.mixer) for stack in model.stacks}
    if not kinds & {SparseLatentAttention, CompressedAttention}:
        return model
    if gpu.architecture in WITHOUT_KERNELS:
        raise InputError(
            f"vLLM does not run {model.name} on {gpu.name}: it has kernels for sparse attention on Hopper and "
            "Blackwell alone (such as h200-sxm, b200-sxm or rtx-pro-6000)"
        )
    narrow = model.cache_dtype != model.weights.base
    packed = CompressedAttention in kinds or gpu.architecture in OTHER_BLACKWELL
    packed = packed or (narrow and gpu.architecture == "hopper")
    stacks = (replace(stack, mixer=_with_kernels(stack.mixer, gpu, narrow)) for stack in model.stacks)
    return replace(model, stacks=tuple(stacks), kv_dtype=PACKED_LATENT if packed else model.kv_dtype)


def _with_kernels(mixer: Mixer, gpu: Gpu, narrow: bool) -> Mixer:
    """A mixer as the engine's kernels compute it, with a ``narrow`` cache or one in the base format."""
    if isinstance(mixer, CompressedAttention):
        return replace(mixer, head_multiple=1 if gpu.architecture in OTHER_BLACKWELL else PADDED_HEADS)
    if not isinstance(mixer, SparseLatentAttention):
        return mixer
    is_hopper = gpu.architecture == "hopper"
    multiple, unpadded = (PADDED_HEADS, 0) if is_hopper and narrow else (1, 0)
    if gpu.architecture in DATACENTER_BLACKWELL and not narrow:
        multiple, unpadded = BLACKWELL_HEADS, FEW_HEADS
    # FlashAttention alone takes the two parts of a query as they are.
    joins = narrow or not is_hopper
    return replace(mixer, head_multiple=multiple, unpadded_heads=unpadded, joins_queries=joins)
