"""Which published architecture is read by which function, and which ones are refused and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from infercast.models.families.deepseek import read_deepseek
from infercast.models.families.dense import (
    read_glm4,
    read_llama,
    read_mistral,
    read_olmo2,
    read_qwen2,
    read_qwen3,
    read_seed_oss,
)
from infercast.models.families.experts import (
    read_glm4_moe,
    read_gpt_oss,
    read_llama4,
    read_mimo_v2_flash,
    read_minimax_m2,
    read_mixtral,
    read_qwen2_moe,
    read_qwen3_moe,
)
from infercast.models.families.fields import Fields
from infercast.models.families.gemma import (
    GEMMA3_DEFAULTS,
    read_gemma,
    read_gemma2,
    read_gemma3,
    read_gemma4,
)
from infercast.models.families.layers import Layer, gather

__all__ = ["FAMILIES", "PREDICTION", "REFUSED", "VISION", "Family", "Fields", "Layer", "architecture_of", "gather"]

PREDICTION = "multi-token prediction layers left out"


class Family(NamedTuple):
    """How one architecture is read."""

    read: Callable[[Fields], list[Layer]]
    tied: bool = False
    """Whether the head shares the embedding where the config does not say."""
    defaults: Mapping[str, Any] | None = None
    """What a config.json may leave out."""
    note: str = ""


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(read_llama),
    "GraniteForCausalLM": Family(read_llama),
    "MistralForCausalLM": Family(read_mistral),
    "Phi3ForCausalLM": Family(read_mistral),
    "Qwen2ForCausalLM": Family(read_qwen2),
    "MiMoForCausalLM": Family(read_qwen2, note=PREDICTION),
    "Qwen3ForCausalLM": Family(read_qwen3),
    "Olmo2ForCausalLM": Family(read_olmo2),
    "Olmo3ForCausalLM": Family(read_olmo2),
    "Glm4ForCausalLM": Family(read_glm4),
    "SeedOssForCausalLM": Family(read_seed_oss),
    "GemmaForCausalLM": Family(read_gemma, tied=True),
    "Gemma2ForCausalLM": Family(read_gemma2, tied=True),
    "Gemma3ForCausalLM": Family(read_gemma3, tied=True, defaults=GEMMA3_DEFAULTS),
    "Gemma4ForCausalLM": Family(read_gemma4, tied=True),
    "MixtralForCausalLM": Family(read_mixtral),
    "Qwen2MoeForCausalLM": Family(read_qwen2_moe),
    "Qwen3MoeForCausalLM": Family(read_qwen3_moe),
    "MiniMaxM2ForCausalLM": Family(read_minimax_m2),
    "Glm4MoeForCausalLM": Family(read_glm4_moe),
    "GptOssForCausalLM": Family(read_gpt_oss),
    "Llama4ForCausalLM": Family(read_llama4),
    "MiMoV2FlashForCausalLM": Family(read_mimo_v2_flash, note=PREDICTION),
    "DeepseekV2ForCausalLM": Family(read_deepseek),
    "DeepseekV3ForCausalLM": Family(read_deepseek),
    "Glm4MoeLiteForCausalLM": Family(read_deepseek),
}

# Models with a vision part, and the family that reads their text part.
VISION: dict[str, str] = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Mistral3ForConditionalGeneration": "MistralForCausalLM",
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
}

# Known and not modelled, each with what stands in the way.
REFUSED: dict[str, str] = {
    "DeepseekV32ForCausalLM": "sparse attention (an indexer that picks tokens) is not modelled yet",
    "DeepseekV4ForCausalLM": "compressed sparse attention and hyper-connections are not modelled yet",
    "GlmMoeDsaForCausalLM": "sparse attention (an indexer that picks tokens) is not modelled yet",
    "MiniMaxM3ForCausalLM": "block-sparse attention is not modelled yet",
    "MiniMaxM1ForCausalLM": "lightning (linear) attention layers are not modelled yet",
    "MiniMaxText01ForCausalLM": "lightning (linear) attention layers are not modelled yet",
    "NemotronHForCausalLM": "Mamba layers are not modelled yet",
    "MambaForCausalLM": "Mamba layers are not modelled yet",
    "Mamba2ForCausalLM": "Mamba layers are not modelled yet",
    "JambaForCausalLM": "Mamba layers are not modelled yet",
    "BambaForCausalLM": "Mamba layers are not modelled yet",
    "FalconH1ForCausalLM": "Mamba layers are not modelled yet",
    "GraniteMoeHybridForCausalLM": "Mamba layers are not modelled yet",
    "Zamba2ForCausalLM": "Mamba layers are not modelled yet",
    "Qwen3NextForCausalLM": "gated delta net layers are not modelled yet",
    "Qwen3_5ForCausalLM": "gated delta net layers are not modelled yet",
    "Qwen3_5ForConditionalGeneration": "gated delta net layers are not modelled yet",
    "Qwen3_5MoeForCausalLM": "gated delta net layers are not modelled yet",
    "Qwen3_5MoeForConditionalGeneration": "gated delta net layers are not modelled yet",
    "KimiLinearForCausalLM": "Kimi delta attention (linear attention) layers are not modelled yet",
    "KimiK3ForConditionalGeneration": "Kimi delta attention (linear attention) layers are not modelled yet",
    "Lfm2ForCausalLM": "short convolution layers are not modelled yet",
    "RecurrentGemmaForCausalLM": "recurrent layers are not modelled yet",
    "RwkvForCausalLM": "recurrent layers are not modelled yet",
    "DeciLMForCausalLM": "layers without attention (block_configs with no_op) are not modelled yet",
    "Step3p5ForCausalLM": "head-wise gated attention is not modelled yet",
    "Step3p7FlashForCausalLM": "head-wise gated attention is not modelled yet",
    "Gemma3nForConditionalGeneration": "per-layer embeddings and alternating updates are not modelled yet",
    "Gemma3nForCausalLM": "per-layer embeddings and alternating updates are not modelled yet",
    "MllamaForConditionalGeneration": "cross-attention layers are not modelled yet",
    "CohereForCausalLM": "attention and feed-forward side by side are not modelled yet",
    "Cohere2ForCausalLM": "attention and feed-forward side by side are not modelled yet",
    "FalconForCausalLM": "attention and feed-forward side by side are not modelled yet",
    "T5ForConditionalGeneration": "an encoder beside the decoder is not modelled yet",
    "WhisperForConditionalGeneration": "an encoder beside the decoder is not modelled yet",
    "BertModel": "an encoder generates no tokens",
    "LongcatFlashForCausalLM": "two attention blocks a layer and experts that do nothing are not modelled yet",
}

# Where a file names no architecture, its model_type tells: the same name without capitals, in most cases.
_BY_TYPE = {
    re.sub("For(CausalLM|ConditionalGeneration)|_", "", name).lower(): name for name in (*FAMILIES, *VISION)
} | {"kimik2": "DeepseekV3ForCausalLM", "ministral3": "MistralForCausalLM"}


def architecture_of(model_type: str) -> str:
    """What a file means that names no architecture: ``qwen2_moe`` is Qwen2Moe, ``llama4_text`` the text of Llama4."""
    name = _BY_TYPE.get(model_type.removesuffix("_text").replace("_", ""), model_type)
    return VISION.get(name, name) if model_type.endswith("_text") else name
