"""The encoders of images that stand beside language models: how many parameters GPUs split and how many each holds.

An engine loads them with the language model, so they take memory even where nobody sends an image. Shapes as in vLLM
0.25's modules of the same models; sums are checked against published files in the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from infercast.models.families.fields import Fields
from infercast.models.spec import VisionPart

COLOURS = 3


def _layers(count: int, hidden: int, inter: int, *, gated: bool = False, bias: bool = True) -> VisionPart:
    """Equal layers of attention and feed-forward, with two norms each."""
    matrices = 4 * hidden * hidden + (3 if gated else 2) * hidden * inter
    biases = 5 * hidden + (2 if gated else 1) * inter if bias else 0
    return VisionPart(count * matrices, count * (biases + 2 * hidden))


def _sum(*parts: VisionPart, whole: int = 0, split: int = 0) -> VisionPart:
    return VisionPart(sum(part.split for part in parts) + split, sum(part.whole for part in parts) + whole)


def _qwen3(fields: Fields, text_hidden: int) -> VisionPart:
    """Qwen3-VL: three more mergers feed inner layers to the language model (deepstack)."""
    hidden, depth = fields.positive("hidden_size"), fields.positive("depth")
    merged = hidden * fields.positive("spatial_merge_size", default=2) ** 2
    patch = COLOURS * fields.positive("temporal_patch_size", default=2) * fields.positive("patch_size") ** 2
    mergers = 1 + len(fields.numbers("deepstack_visual_indexes") or [])
    return _sum(
        _layers(depth, hidden, fields.positive("intermediate_size")),
        # Norms have biases too; those of the inner mergers are over merged patches.
        whole=hidden * (patch + 1 + fields.positive("num_position_embeddings") + 2 * depth + 2)
        + mergers * (merged + text_hidden)
        + (mergers - 1) * 2 * merged,
        split=mergers * merged * (merged + text_hidden),
    )


def _qwen2_5(fields: Fields, text_hidden: int) -> VisionPart:
    """Qwen2.5-VL: gated layers."""
    hidden = fields.positive("hidden_size")
    return _sum(
        _layers(fields.positive("depth"), hidden, fields.positive("intermediate_size"), gated=True),
        _qwen_ends(fields, hidden, text_hidden, norms=1),
    )


def _qwen2(fields: Fields, text_hidden: int) -> VisionPart:
    """Qwen2-VL."""
    hidden, depth = fields.positive("embed_dim"), fields.positive("depth")
    inter = hidden * fields.positive("mlp_ratio", default=4)
    return _sum(
        _layers(depth, hidden, inter),
        _qwen_ends(fields, hidden, text_hidden, norms=2),
        whole=2 * depth * hidden,
    )


def _qwen_ends(fields: Fields, hidden: int, text_hidden: int, norms: int) -> VisionPart:
    """Patches in, merged patches out."""
    merged = hidden * fields.positive("spatial_merge_size", default=2) ** 2
    patch = COLOURS * fields.positive("temporal_patch_size", default=2) * fields.positive("patch_size", default=14) ** 2
    return VisionPart(merged * (merged + text_hidden), hidden * (patch + norms) + merged + text_hidden)


def _siglip(fields: Fields, text_hidden: int) -> VisionPart:
    """Gemma 3: SigLIP and one matrix to the language model."""
    hidden, count = fields.positive("hidden_size"), fields.positive("num_hidden_layers")
    patch = fields.positive("patch_size")
    positions = (fields.positive("image_size") // patch) ** 2
    return _sum(
        _layers(count, hidden, fields.positive("intermediate_size")),
        whole=hidden * (COLOURS * patch**2 + 1 + positions + 2 * count + 2 + 1 + text_hidden),
    )


def _gemma4(fields: Fields, text_hidden: int) -> VisionPart:
    """Gemma 4: four norms a layer and norms on queries and keys; every GPU holds all of it."""
    hidden, count = fields.positive("hidden_size"), fields.positive("num_hidden_layers")
    layers = _layers(count, hidden, fields.positive("intermediate_size"), gated=True, bias=False)
    norms = count * (2 * hidden + 2 * fields.positive("head_dim"))
    positions = 2 * fields.positive("position_embedding_size")
    ends = hidden * (COLOURS * fields.positive("patch_size") ** 2 + positions + text_hidden)
    scales = 2 * hidden if fields.flag("standardize") else 0
    return VisionPart(0, layers.parameters + norms + ends + scales)


def _llama4(fields: Fields, text_hidden: int) -> VisionPart:
    """Llama 4: an adapter of two matrices after the encoder, and one to the language model."""
    hidden, count = fields.positive("hidden_size"), fields.positive("num_hidden_layers")
    inter, patch = fields.positive("intermediate_size"), fields.positive("patch_size")
    middle, out = fields.positive("projector_input_dim"), fields.positive("projector_output_dim")
    positions = (fields.positive("image_size") // patch) ** 2 + 1
    return _sum(
        _layers(count, hidden, inter),
        whole=hidden * (1 + positions + 2 * count + 4),
        split=hidden * COLOURS * patch**2
        + inter * middle
        + middle * out
        + fields.positive("vision_output_dim") * text_hidden,
    )


def _pixtral(fields: Fields, text_hidden: int) -> VisionPart:
    """Mistral 3: Pixtral, whose patches are merged by four."""
    hidden = fields.positive("hidden_size")
    layers = _layers(
        fields.positive("num_hidden_layers"),
        hidden,
        fields.positive("intermediate_size"),
        gated=True,
        bias=False,
    )
    merged = hidden * fields.positive("spatial_merge_size", default=2) ** 2
    return _sum(
        layers,
        whole=hidden * (COLOURS * fields.positive("patch_size") ** 2 + 2) + merged * hidden,
        split=text_hidden * (hidden + text_hidden),
    )


def _moonvit(fields: Fields, text_hidden: int) -> VisionPart:
    """Kimi-K2.5: MoonViT; every GPU holds the matrices to the language model."""
    hidden, count = fields.positive("vt_hidden_size"), fields.positive("vt_num_hidden_layers")
    positions = fields.positive("init_pos_emb_height") * fields.positive("init_pos_emb_width")
    merged = 4 * hidden
    return _sum(
        _layers(count, hidden, fields.positive("vt_intermediate_size")),
        whole=hidden * (COLOURS * fields.positive("patch_size") ** 2 + 1 + positions + 2 * count + 4)
        + merged * (merged + 1 + text_hidden)
        + text_hidden,
    )


class VisionFamily(NamedTuple):
    """An architecture with an encoder: the family that reads its text part, and what the encoder holds."""

    text: str
    read: Callable[[Fields, int], VisionPart]


VISION = {
    "Gemma3ForConditionalGeneration": VisionFamily("Gemma3ForCausalLM", _siglip),
    "Gemma4ForConditionalGeneration": VisionFamily("Gemma4ForCausalLM", _gemma4),
    "KimiK25ForConditionalGeneration": VisionFamily("DeepseekV3ForCausalLM", _moonvit),
    "Llama4ForConditionalGeneration": VisionFamily("Llama4ForCausalLM", _llama4),
    "Mistral3ForConditionalGeneration": VisionFamily("MistralForCausalLM", _pixtral),
    "Qwen2VLForConditionalGeneration": VisionFamily("Qwen2ForCausalLM", _qwen2),
    "Qwen2_5_VLForConditionalGeneration": VisionFamily("Qwen2ForCausalLM", _qwen2_5),
    "Qwen3VLForConditionalGeneration": VisionFamily("Qwen3ForCausalLM", _qwen3),
    "Qwen3VLMoeForConditionalGeneration": VisionFamily("Qwen3MoeForCausalLM", _qwen3),
}


def read_vision(architecture: str, fields: Fields, text_hidden: int) -> VisionPart | None:
    """The encoder of a model, from the ``vision_config`` in its file; None where there is none."""
    if architecture not in VISION or fields.raw("vision_config") is None:
        return None
    inner = fields.section("vision_config")
    # What the projector needs may stand outside.
    merge = fields.raw("spatial_merge_size")
    values = {**({} if merge is None else {"spatial_merge_size": merge}), **inner.values}
    return VISION[architecture].read(Fields(values, inner.where), text_hidden)
