"""What an encoder of images changes: less static memory, and no graphs of prompts.

Facts of SGLang 0.5.16 (``server_args.py``, ``adjust_mem_fraction_for_vlm``; ``configs/model_config.py``).
"""

from __future__ import annotations

from infercast.models.spec import ModelConfig

USUAL_FACTOR, SENSITIVITY, LEAST, MOST = 0.95, 0.1, 0.8, 1.05
USUAL_PARAMETERS = 24 * 12 * 1024**2
"""Weights of the encoder that the factor is for: 24 layers of 1,024 (ViT-L)."""
GRAPHED = (
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration", "Cohere2VisionForConditionalGeneration",
    "KimiK25ForConditionalGeneration", "MiniMaxM3SparseForConditionalGeneration",
)  # fmt: skip
"""Architectures with an encoder whose steps of prompts have graphs all the same."""


def static_factor(model: ModelConfig) -> float:
    """What the static share of memory is multiplied by: less for a large encoder."""
    if model.vision is None:
        return 1.0
    larger = (model.vision.split + model.vision.whole) / USUAL_PARAMETERS - 1.0
    return USUAL_FACTOR * max(LEAST, min(MOST, 1.0 - SENSITIVITY * larger))


def prompt_graphs(model: ModelConfig) -> bool:
    """Whether steps of prompts may have graphs."""
    return model.vision is None or model.architecture in GRAPHED
