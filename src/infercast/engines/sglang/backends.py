"""Which attention kernels SGLang runs, and how many tokens a page of the KV cache has for them.

Facts of SGLang 0.5.16 (``server_args.py``, ``_get_default_attn_backend``; ``arg_groups/overrides.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

from infercast.errors import InputError, UnknownNameError
from infercast.hardware import Gpu
from infercast.models.mixers import BlockSparseAttention, LatentAttention, SparseLatentAttention
from infercast.models.spec import ModelConfig

DATACENTER_BLACKWELL = ("blackwell", "blackwell-ultra")
PAGES: Mapping[str, tuple[int, ...]] = {
    "fa3": (), "flashinfer": (), "triton": (), "aiter": (), "torch_native": (), "flex_attention": (),
    "fa4": (128,), "flashmla": (64,), "cutlass_mla": (128,), "dsa": (64,),
    "trtllm_mla": (64, 32), "trtllm_mha": (64, 32, 16),
}  # fmt: skip
"""Attention backends by SGLang's names, and the pages that their kernels take, the default first; none: any."""
RENAMED = {"nsa": "dsa"}
"""Older names of them."""
BLOCK_PAGE = 128
"""Of models that choose whole blocks."""
EAGER_BACKENDS = ("torch_native", "flex_attention")
"""Those that switch graphs off."""
TRTLLM_LATENT = (
    "DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration", "MistralLarge3ForCausalLM", "LongcatFlashForCausalLM",
)  # fmt: skip
"""Architectures with latent attention that run TensorRT-LLM's kernels on Blackwell; others run FlashInfer's."""
TRITON_ELSEWHERE = ("GptOssForCausalLM", "Llama4ForCausalLM", "Llama4ForConditionalGeneration")
"""Those that run Triton's attention where neither Hopper's nor Blackwell's kernels are to be had."""
FLASHINFER_ON_BLACKWELL = ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM")
TRITON_BEFORE_BLACKWELL = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
"""Those that run it on Hopper, too."""


def is_latent(model: ModelConfig) -> bool:
    """Whether layers keep latents in place of keys and values."""
    return any(isinstance(stack.mixer, LatentAttention) for stack in model.stacks)


def is_block_sparse(model: ModelConfig) -> bool:
    """Whether layers choose whole blocks of keys (MiniMax-M3)."""
    return any(isinstance(stack.mixer, BlockSparseAttention) for stack in model.stacks)


def attention_backend(model: ModelConfig, gpu: Gpu, asked: str | None) -> str:
    """The one asked for, or the engine's choice."""
    if asked is not None:
        named = RENAMED.get(asked, asked)
        if named not in PAGES:
            raise UnknownNameError("attention_backend", asked, PAGES)
        return named
    if gpu.vendor.lower() != "nvidia":
        return "aiter"
    if any(isinstance(stack.mixer, SparseLatentAttention) for stack in model.stacks):
        return "dsa"
    return _for_latents(model, gpu) if is_latent(model) else _for_heads(model, gpu)


def _for_latents(model: ModelConfig, gpu: Gpu) -> str:
    if gpu.architecture in DATACENTER_BLACKWELL:
        return "trtllm_mla" if model.architecture in TRTLLM_LATENT else "flashinfer"
    return "fa3" if gpu.architecture == "hopper" else "triton"


def _for_heads(model: ModelConfig, gpu: Gpu) -> str:
    if gpu.architecture in DATACENTER_BLACKWELL:
        if is_block_sparse(model):
            return "fa4"
        return "flashinfer" if model.architecture in FLASHINFER_ON_BLACKWELL else "trtllm_mha"
    if model.architecture in TRITON_BEFORE_BLACKWELL:
        return "triton"
    if gpu.architecture == "hopper":
        return "fa3"
    return "triton" if model.architecture in TRITON_ELSEWHERE else "flashinfer"


def page_size(model: ModelConfig, backend: str, asked: int | None) -> int:
    """Tokens of a page: what was asked for if the kernels take it, or what the engine puts in its place."""
    pages = PAGES[backend]
    if not pages:
        return asked or (BLOCK_PAGE if is_block_sparse(model) else 1)
    return asked if asked in pages else pages[0]


def check_backend(backend: str, gpu: Gpu) -> None:
    """Refuse kernels that a GPU does not have."""
    if backend in ("trtllm_mha", "trtllm_mla", "cutlass_mla") and gpu.architecture not in DATACENTER_BLACKWELL:
        raise InputError(f"attention_backend {backend} needs a Blackwell datacentre GPU, which {gpu.name} is not")
    if backend == "aiter" and gpu.vendor.lower() == "nvidia":
        raise InputError(f"attention_backend aiter needs an AMD GPU, which {gpu.name} is not")
    if backend in ("fa3", "flashmla") and gpu.architecture != "hopper":
        raise InputError(f"attention_backend {backend} needs a Hopper GPU in this release, which {gpu.name} is not")
