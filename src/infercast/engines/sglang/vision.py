"""What an encoder of images changes: less static memory, and no graphs of prompts.

Facts of SGLang 0.5.16 (``server_args.py``, ``adjust_mem_fraction_for_vlm``; ``configs/model_config.py``).
"""

from __future__ import annotations

from infercast.models.spec import ModelConfig

USUAL_FACTOR, SENSITIVITY, LEAST, MOST = 0.95, 0.1, 0.8, 1.05
USUAL_LAYERS, USUAL_HIDDEN = 24, 1024
"""Of the encoder that the factor is for (ViT-L)."""
OTHER_NAMES = (
    "Qwen2_5_VLForConditionalGeneration", "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration", "Step3p7ForConditionalGeneration",
)  # fmt: skip
"""Architectures whose configs count layers under a name that SGLang does not look for, so that it takes the usual."""
GRAPHED = ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")
"""Architectures with an encoder whose steps of prompts have graphs all the same."""
COMPILED = (
    "Cohere2VisionForConditionalGeneration", "KimiK25ForConditionalGeneration",
    "MiniMaxM3SparseForConditionalGeneration",
)  # fmt: skip
"""Those whose graphs are of another kind (``tc_piecewise``), which takes latents too, but no pipelines."""


def static_factor(model: ModelConfig) -> float:
    """What the static share of memory is multiplied by: less for a large encoder."""
    if model.vision is None:
        return 1.0
    layers = USUAL_LAYERS if model.architecture in OTHER_NAMES else model.vision.layers
    larger = layers * model.vision.hidden**2 / (USUAL_LAYERS * USUAL_HIDDEN**2) - 1.0
    return USUAL_FACTOR * max(LEAST, min(MOST, 1.0 - SENSITIVITY * larger))


def prompt_graphs(model: ModelConfig, *, is_latent: bool, pipeline: int) -> bool:
    """Whether steps of prompts may have graphs."""
    if model.architecture in COMPILED:
        return pipeline == 1
    return not is_latent and (model.vision is None or model.architecture in GRAPHED)
