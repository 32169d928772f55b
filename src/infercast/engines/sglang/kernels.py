"""Which attention and expert kernels SGLang runs for a model on a GPU, and how it launches them.

Facts of SGLang 0.5.16 (``layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py``): small tiles up to as many
tokens as experts, and tiles of 64 rows, 64 columns and 32 deep beyond, with which long prompts take nearly twice as
long as with the good ones that were measured. A configuration file is looked up in the folder of its Triton release
first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from infercast.engines import base
from infercast.engines.base import Configuration, ExpertLaunches
from infercast.engines.sglang.settings import ARCHITECTURES
from infercast.errors import InputError, UnknownNameError
from infercast.hardware import Gpu
from infercast.models.feed_forward import UNPADDED, ExpertFeedForward, Multiples
from infercast.models.layout import ParallelLayout
from infercast.models.mixers.mixer import GroupedAttention, LatentAttention, Mixer
from infercast.models.mixers.sparse import BlockSparseAttention, CompressedAttention, SparseLatentAttention
from infercast.models.spec import ModelConfig

DATACENTER_BLACKWELL = ("blackwell", "blackwell-ultra")
PAGES: Mapping[str, list[int]] = ARCHITECTURES["pages"]
RENAMED = {"nsa": "dsa"}
EAGER_BACKENDS = ("torch_native", "flex_attention")


def attention_backend(model: ModelConfig, gpu: Gpu, asked: str | None) -> str:
    if model.has_mixer(CompressedAttention):
        return "dsv4"  # whatever is asked for
    if asked is not None:
        named = RENAMED.get(asked, asked)
        if named not in PAGES:
            raise UnknownNameError("attention_backend", asked, PAGES)
        return named
    if gpu.vendor.lower() != "nvidia":
        return "aiter"
    if model.has_mixer(SparseLatentAttention):
        return "dsa"
    return _for_latents(model, gpu) if model.has_mixer(LatentAttention) else _for_heads(model, gpu)


def _for_latents(model: ModelConfig, gpu: Gpu) -> str:
    if gpu.architecture in DATACENTER_BLACKWELL:
        return "trtllm_mla" if model.architecture in ARCHITECTURES["trtllm_latent"] else "flashinfer"
    return "fa3" if gpu.architecture == "hopper" else "triton"


def _for_heads(model: ModelConfig, gpu: Gpu) -> str:
    if gpu.architecture in DATACENTER_BLACKWELL:
        if model.has_mixer(BlockSparseAttention):
            return "fa4"
        return "flashinfer" if model.architecture in ARCHITECTURES["flashinfer_on_blackwell"] else "trtllm_mha"
    if model.architecture in ARCHITECTURES["triton_before_blackwell"]:
        return "triton"
    if gpu.architecture == "hopper":
        return "fa3"
    return "triton" if model.architecture in ARCHITECTURES["triton_elsewhere"] else "flashinfer"


def page_size(model: ModelConfig, backend: str, asked: int | None) -> int:
    """Tokens per page: as requested if the kernels support it, otherwise the engine's replacement."""
    pages = PAGES[backend]
    if not pages:
        block_page = 128
        return asked or (block_page if model.has_mixer(BlockSparseAttention) else 1)
    return asked if asked in pages else pages[0]


def check_backend(backend: str, gpu: Gpu) -> None:
    if backend in ("trtllm_mha", "trtllm_mla", "cutlass_mla") and gpu.architecture not in DATACENTER_BLACKWELL:
        raise InputError(f"attention_backend {backend} needs a Blackwell datacentre GPU, which {gpu.name} is not")
    if backend == "aiter" and gpu.vendor.lower() == "nvidia":
        raise InputError(f"attention_backend aiter needs an AMD GPU, which {gpu.name} is not")
    if backend in ("fa3", "flashmla") and gpu.architecture != "hopper":
        raise InputError(f"attention_backend {backend} needs a Hopper GPU in this release, which {gpu.name} is not")


untuned_factors = partial(base.untuned_factors, family="sglang")


def expert_multiples(model: ModelConfig, gpu: Gpu) -> Multiples:
    if model.weights.experts != "mxfp4":
        return UNPADDED
    if gpu.vendor.lower() != "nvidia":
        return 256, 256
    # TensorRT-LLM's on Blackwell, Marlin's on its RTX chips (layers/quantization/mxfp4.py), Triton's elsewhere
    by_kernels: dict[str, Multiples] = {"blackwell": (256, 256), "blackwell-rtx": (256, 128)}
    return by_kernels.get(gpu.kernels, (1, 64))


def experts_kernel(model: ModelConfig, gpu: Gpu, layout: ParallelLayout) -> str:
    """The kernel's name; empty if determined by format and GPU, or set by the user."""
    weights = model.weights
    if weights.experts_kernel or layout.all_to_all:
        return weights.experts_kernel
    if gpu.architecture not in DATACENTER_BLACKWELL:
        is_nemotron = model.architecture in ARCHITECTURES["flashinfer_on_blackwell"]
        return "cutlass" if is_nemotron and weights.experts in ("bf16", "fp8") else ""
    known = (row["formats"] for row in ARCHITECTURES["trtllm_experts"] if model.architecture in row["models"])
    if weights.experts in next(known, ()):
        return "trtllm"
    # DeepGEMM's multiply what all-to-all dispatches; of Hopper tables hold them in place of Triton's, as long as those.
    return "triton" if layout.experts and weights.experts == "fp8_block" else ""


def joined_experts(model: ModelConfig, spec: ExpertFeedForward, layout: ParallelLayout) -> int:
    """Shared experts fused with the routed ones: none if these are distributed, or use other kernels."""
    weights = model.weights
    apart = weights.experts_kernel in ("trtllm", "cutlass") or weights.experts == "int4"
    wanted = ARCHITECTURES["joining"].get(model.architecture)
    if layout.experts or layout.all_to_all or apart or wanted is None or spec.experts != (wanted or spec.experts):
        return 0
    return 1 if spec.shared_inter == spec.inter and weights.experts == weights.feed_forward else 0


def rule_of_thumb(tokens: int, experts: int, dtype: str) -> Configuration:
    """Without a tuned file; by whether there are more tokens than experts."""
    if dtype == "fp8_block":
        return Configuration(64, 128, 128, 32, 4, 3)
    if dtype == "fp8":
        few, many = Configuration(64, 128, 128, 1, 4, 4), Configuration(128, 256, 128, 32, 8, 4)
    else:
        few, many = Configuration(16, 32, 64, 1, 4, 3), Configuration(64, 64, 32, 8, 4, 3)
    return few if tokens <= experts else many


def with_products(model: ModelConfig, backend: str) -> ModelConfig:
    """FlashInfer's products in blocks are as quick as with one scale: tables hold DeepGEMM's, which pack scales."""
    names = ("attention", "feed_forward", "activation_attention", "activation_feed_forward")
    changed: dict[str, Any] = {name: "fp8" for name in names if getattr(model.weights, name) == "fp8_block"}
    return replace(model, weights=replace(model.weights, **changed)) if backend == "flashinfer_trtllm" else model


EXPERT_LAUNCHES = ExpertLaunches(
    "sglang", folder_variable="SGLANG_MOE_CONFIG_DIR", rule_of_thumb=rule_of_thumb, folder="configs/triton_3_6_0/",
    blocks="[128, 128]",
)  # fmt: skip


def choose_kernels(model: ModelConfig, gpu: Gpu, layout: ParallelLayout) -> ModelConfig:
    # On Hopper: seconds saved by decode attention over one-token pages, whose splits are combined by a smaller grid
    # (1.4 us instead of 2.7 in vLLM), and the slowdown factor of prompts, from profiles of engines on an H200; rows
    # of fp8 GEMMs with a tile of 32 rows (sgl-kernel) where vLLM has 64, and their relative time: 34.1 us instead of
    # 41.2, 12.2 instead of 16.0 and 9.3 instead of 11.2 in Llama 3.1 8B.
    is_hopper = gpu.kernels == "hopper"
    saved, slower = (2.0e-6, 1.08) if is_hopper else (0.0, 1.0)
    quicker_rows = (16, 32, 0.8) if is_hopper else (0, 0, 1.0)
    has_windows = any(isinstance(stack.mixer, GroupedAttention) and stack.mixer.window for stack in model.stacks)
    stores = model.architecture in ARCHITECTURES["storing"] and model.cache_dtype == "bf16" and not has_windows

    def chosen(mixer: Mixer) -> Mixer:
        if isinstance(mixer, CompressedAttention):
            return replace(mixer, head_multiple=64)  # as models/deepseek_v4.py pads queries
        if not isinstance(mixer, GroupedAttention):
            return mixer
        return replace(mixer, by_hand=True, stores_rotated=stores, decode_saved=saved, prompts_slower=slower)

    if gpu.architecture in DATACENTER_BLACKWELL and model.kv_dtype == "auto":
        # Sparse attention keeps its latents in fp8 there by default.
        model = replace(model, kv_dtype="fp8") if model.has_mixer(SparseLatentAttention) else model
    weights = replace(
        model.weights, quantised_apart=True, quicker_rows=quicker_rows,
        experts_kernel=experts_kernel(model, gpu, layout),
    )  # fmt: skip
    model = replace(model.with_mixers(chosen), weights=weights)
    largest_graph = 512  # Tokens of decoding
    beside = largest_graph if weights.experts_kernel == "trtllm" else 0  # forward_normal_dual_stream, in graphs alone
    of_router = tuple(map(tuple, ARCHITECTURES["router_rows"]))
    wide = gpu.vendor.lower() == "nvidia" and model.architecture in ARCHITECTURES["wide_routers"]
    changed: dict[str, Any] = {"beside": beside, **({"wide_router": True, "router_slower": of_router} if wide else {})}
    model = model.with_experts(lambda spec: replace(spec, joined=joined_experts(model, spec, layout), **changed))
    return model.with_experts(lambda spec: replace(spec, slower=untuned_factors(model, spec, gpu, layout)))
