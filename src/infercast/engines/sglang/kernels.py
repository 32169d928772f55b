"""Kernels that SGLang launches otherwise than vLLM, whose compiler fuses small ones.

Facts of SGLang 0.5.16, seen in the profiles of real engines on an H200 as well:

- hand-written kernels rotate, norm heads and store (``fused_rope_kernel``, ``fused_qknorm_warp``, ``store_kvcache``);
- attention backends ask for contiguous queries, which are a slice of the joined product (``q.contiguous()`` in
  ``layers/attention/flashattention_backend.py``, ``trtllm_mha_backend.py`` and ``flashinfer_backend.py``);
- some models write the cache in the kernel that rotates (``enable_fused_set_kv_buffer`` in ``models/utils.py``), where
  the cache is bf16 and has no windows;
- norms and activations write bf16, and a kernel of its own quantises (``layers/quantization/fp8_utils.py``).
"""

from __future__ import annotations

from dataclasses import replace

from infercast.engines.sglang.backends import DATACENTER_BLACKWELL
from infercast.engines.sglang.expert_launches import untuned_factors
from infercast.engines.sglang.experts import experts_kernel, joined_experts
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import GroupedAttention, Mixer, SparseLatentAttention
from infercast.models.spec import ModelConfig

STORING = ("Qwen3MoeForCausalLM", "GptOssForCausalLM", "BailingMoeForCausalLM", "Gemma4ForCausalLM")
"""Architectures whose rotary kernel writes the cache."""

FLASH_ATTENTION_3 = (2.0e-6, 1.08)
"""On Hopper: seconds that its attention over pages of one token saves in decoding, whose parts are joined by a smaller
grid (1.4 us for 2.7 in vLLM), and how many times as long prompts take. Profiles of engines on an H200."""

FP8_TILES = (16, 32, 0.8)
"""On Hopper: rows of fp8 products that have a tile of 32 rows (sgl-kernel), where vLLM's
has 64, and how many times as long they take: 34.1 us for 41.2, 12.2 for 16.0 and 9.3 for 11.2 in Llama 3.1 8B."""


def choose_kernels(model: ModelConfig, gpu: Gpu, layout: ParallelLayout) -> ModelConfig:
    """The model with SGLang's kernels."""
    has_windows = any(isinstance(stack.mixer, GroupedAttention) and stack.mixer.window for stack in model.stacks)
    stores = model.architecture in STORING and model.cache_dtype == "bf16" and not has_windows

    def chosen(mixer: Mixer) -> Mixer:
        if not isinstance(mixer, GroupedAttention):
            return mixer
        saved, slower = FLASH_ATTENTION_3 if gpu.kernels == "hopper" else (0.0, 1.0)
        return replace(mixer, by_hand=True, stores_rotated=stores, decode_saved=saved, prompts_slower=slower)

    if gpu.architecture in DATACENTER_BLACKWELL and model.kv_dtype == "auto":
        # Sparse attention keeps its latents in fp8 there, unless it is told otherwise.
        sparse = any(isinstance(stack.mixer, SparseLatentAttention) for stack in model.stacks)
        model = replace(model, kv_dtype="fp8") if sparse else model
    weights = replace(
        model.weights,
        quantised_apart=True,
        quicker_rows=FP8_TILES if gpu.kernels == "hopper" else (0, 0, 1.0),
        experts_kernel=experts_kernel(model, gpu, layout),
    )
    stacks = tuple(replace(stack, mixer=chosen(stack.mixer)) for stack in model.stacks)
    model = replace(model, stacks=stacks, weights=weights)
    model = model.with_experts(lambda spec: replace(spec, joined=joined_experts(model, spec, layout)))
    return model.with_experts(lambda spec: replace(spec, slower=untuned_factors(model, spec, gpu, layout)))
