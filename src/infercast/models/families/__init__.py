"""Which published architecture is read in which way."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from infercast.models.families import attention, hybrid, sparse
from infercast.models.families.fields import (
    Fields,
    HeadLayers,
    Layer,
    after_dense_layers,
    ernie_experts,
    experts_everywhere,
    gather,
    last_layer,
    qwen2_experts,
    qwen_experts,
)
from infercast.models.families.vision import VISION

__all__ = ["FAMILIES", "VISION", "Family", "Fields", "Layer", "architecture_of", "gather"]


class Family(NamedTuple):
    read: Callable[[Fields], list[Layer]]
    tied: bool = False  # Whether the head shares the embedding where the config does not say
    defaults: Mapping[str, Any] = {}  # What a config.json may leave out
    head_layers: HeadLayers = last_layer
    """The layers of a head that predicts further tokens, where the config counts any."""
    heads: int = 0  # Such heads where the config does not count them
    own_table: bool = False  # Whether each such head has a table of the vocabulary to itself


_grouped = attention.read_grouped
# Biases and norms by the flags that say whether there are any.
_biased = partial(_grouped, qkv_bias="attention_bias", output_bias="attention_bias")
_llama = partial(_biased, networks=partial(attention.plain_networks, bias="mlp_bias"))
_mistral = partial(_grouped, windows=attention.every_layer)
_qwen2 = partial(_grouped, windows=attention.upper_layers, qkv_bias=True)
_qwen3 = partial(_biased, windows=attention.upper_layers, qk_norm=True)
_olmo = partial(_biased, windows=attention.listed_layers, qk_norm=True)
_minimax = partial(experts_everywhere, shared="shared_intermediate_size", router_bias="use_routing_bias")
_gpt_oss = partial(experts_everywhere, router_bias=True, expert_bias=True)
_STEP = Family(
    attention.read_step, head_layers=attention.windowed_head, own_table=True, defaults={"use_head_wise_attn_gate": True}
)

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(_llama),
    "GraniteForCausalLM": Family(_llama),
    "SeedOssForCausalLM": Family(partial(_llama, output_bias="attention_out_bias")),
    "MistralForCausalLM": Family(_mistral),
    "Phi3ForCausalLM": Family(_mistral),
    "Qwen2ForCausalLM": Family(_qwen2),
    "MiMoForCausalLM": Family(_qwen2, heads=1),
    "Qwen3ForCausalLM": Family(_qwen3),
    "Olmo2ForCausalLM": Family(_olmo),
    "Olmo3ForCausalLM": Family(_olmo),
    "Glm4ForCausalLM": Family(partial(_grouped, qkv_bias="attention_bias", norms=4)),
    "GemmaForCausalLM": Family(_biased, tied=True),
    "Gemma2ForCausalLM": Family(partial(_grouped, windows=attention.every_other_layer, norms=4), tied=True),
    "Gemma3ForCausalLM": Family(
        partial(_grouped, windows=attention.once_a_period, qk_norm=True, norms=4),
        tied=True,
        # What equals the library's defaults (transformers, Gemma3TextConfig).
        defaults={
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
            "max_position_embeddings": 131072, "sliding_window": 4096,
        },
    ),
    "Gemma4ForCausalLM": Family(attention.read_gemma4, tied=True),
    "MixtralForCausalLM": Family(partial(_mistral, networks=experts_everywhere)),
    "Qwen2MoeForCausalLM": Family(partial(_qwen2, networks=qwen2_experts)),
    "Qwen3MoeForCausalLM": Family(partial(_qwen3, networks=qwen_experts)),
    "MiniMaxM2ForCausalLM": Family(
        partial(_grouped, qk_norm="use_qk_norm", norm_across=True, networks=_minimax)
    ),
    "MiniMaxM3ForCausalLM": Family(sparse.read_minimax_m3, defaults=sparse.DEFAULTS),
    "MiniMaxM3SparseForCausalLM": Family(sparse.read_minimax_m3, defaults=sparse.DEFAULTS),
    "Glm4MoeForCausalLM": Family(
        partial(_grouped, qk_norm="use_qk_norm", qkv_bias="attention_bias", networks=after_dense_layers),
        defaults={"topk_method": "noaux_tc"},  # of one group, as DeepSeek-V3 chooses
    ),
    "Ernie4_5_MoeForCausalLM": Family(partial(_grouped, networks=ernie_experts), tied=True),
    "GptOssForCausalLM": Family(
        partial(_biased, windows=attention.every_other_layer, sinks=True, networks=_gpt_oss),
        defaults={"attention_bias": True},
    ),
    "Llama4ForCausalLM": Family(attention.read_llama4),
    "MiMoV2FlashForCausalLM": Family(attention.read_mimo_v2_flash, head_layers=attention.windowed_head, heads=3),
    "DeepseekV2ForCausalLM": Family(attention.read_deepseek),
    "DeepseekV3ForCausalLM": Family(attention.read_deepseek),
    "Glm4MoeLiteForCausalLM": Family(attention.read_deepseek),
    "DeepseekV4ForCausalLM": Family(sparse.read_compressed, head_layers=sparse.windowed_head),
    "DeepseekV32ForCausalLM": Family(sparse.read_indexed, head_layers=sparse.indexed_head),
    "GlmMoeDsaForCausalLM": Family(sparse.read_indexed, head_layers=sparse.indexed_head),
    "Qwen3NextForCausalLM": Family(hybrid.read_qwen_hybrid, head_layers=hybrid.last_attention, heads=1),
    "Qwen3_5ForCausalLM": Family(hybrid.read_qwen_hybrid, head_layers=hybrid.last_attention),
    "Qwen3_5MoeForCausalLM": Family(hybrid.read_qwen_hybrid, head_layers=hybrid.last_attention),
    "KimiLinearForCausalLM": Family(hybrid.read_kimi_linear),
    "NemotronHForCausalLM": Family(hybrid.read_nemotron_h, head_layers=hybrid.nemotron_head),
    "DeciLMForCausalLM": Family(hybrid.read_decilm),
    "GraniteMoeHybridForCausalLM": Family(hybrid.read_granite_hybrid, tied=True),
    "BambaForCausalLM": Family(hybrid.read_bamba),
    "FalconH1ForCausalLM": Family(hybrid.read_falcon_h1),
    "Lfm2ForCausalLM": Family(hybrid.read_lfm2, tied=True),
    "Lfm2MoeForCausalLM": Family(hybrid.read_lfm2_moe, tied=True),
    "Step3p5ForCausalLM": _STEP,
    "Step3p7FlashForCausalLM": _STEP,
}  # fmt: skip

# Where a file names no architecture, its model_type does: the same name without capitals, in most cases.
_BY_TYPE = {
    re.sub("For(CausalLM|ConditionalGeneration)|_", "", name).lower(): name for name in (*FAMILIES, *VISION)
} | {
    "kimik2": "DeepseekV3ForCausalLM",
    "ministral3": "MistralForCausalLM",
    "minimaxm3vl": "MiniMaxM3SparseForConditionalGeneration",
}


def architecture_of(model_type: str) -> str:
    """What a file means that names no architecture: ``qwen2_moe`` is Qwen2Moe, ``llama4_text`` the text of Llama4."""
    name = _BY_TYPE.get(model_type.removesuffix("_text").replace("_", ""), model_type)
    return VISION[name].text if model_type.endswith("_text") and name in VISION else name
