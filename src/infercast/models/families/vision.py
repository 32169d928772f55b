"""Parameters of image encoders, split and whole, as in vLLM 0.25's modules; they take memory without images, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from infercast.models.families.fields import Fields
from infercast.models.images import ImageEncoder, ImageRule
from infercast.models.spec import VisionPart


def _encoder(
    count: int, hidden: int, inter: int, *, gated: bool = False, bias: bool = True, split: int = 0, whole: int = 0,
    images: ImageEncoder | None = None,
) -> VisionPart:  # fmt: skip
    """Equal layers of attention and feed-forward, with two norms each, and further ``split`` or ``whole`` weights."""
    images = images and images._replace(inter=inter, gated=gated)
    matrices = 4 * hidden * hidden + (3 if gated else 2) * hidden * inter
    biases = 5 * hidden + (2 if gated else 1) * inter if bias else 0
    return VisionPart(count * matrices + split, count * (biases + 2 * hidden) + whole, count, hidden, images)


def _seen(fields: Fields, patch: int, *projector: tuple[int, int], merge: int = 2, **rule: int) -> ImageEncoder:
    """How images are cut by the rule that is named, and the products behind the layers."""
    ((name, most),) = [(name, most) for name, most in rule.items() if name != "least"]
    cut = ImageRule(name, fields.positive("patch_size", default=14), merge, most, rule.get("least", 0))
    heads = fields.positive("num_attention_heads", "num_heads", "vt_num_attention_heads", default=16)
    return ImageEncoder(cut, heads, 0, patch, projector)


def _merged(fields: Fields, hidden: int) -> int:
    """The width of patches that are merged before the language model sees them."""
    return hidden * fields.positive("spatial_merge_size", default=2) ** 2


def _patch(fields: Fields, default: int | None = None, frames: int = 1) -> int:
    """Values of one patch of an image, or of several frames."""
    colours = 3
    return colours * frames * fields.positive("patch_size", default=default) ** 2


def qwen3(fields: Fields, text_hidden: int) -> VisionPart:
    """Qwen3-VL: three more mergers feed inner layers to the language model (deepstack)."""
    hidden, depth = fields.positive("hidden_size"), fields.positive("depth")
    merged, patch = _merged(fields, hidden), _patch(fields, frames=fields.positive("temporal_patch_size", default=2))
    mergers = 1 + len(fields.numbers("deepstack_visual_indexes") or [])
    # Norms have biases too; those of the inner mergers are over merged patches.
    beside = hidden * (patch + 1 + fields.positive("num_position_embeddings") + 2 * depth + 2)
    return _encoder(
        depth, hidden, fields.positive("intermediate_size"),
        whole=beside + mergers * (merged + text_hidden) + (mergers - 1) * 2 * merged,
        split=mergers * merged * (merged + text_hidden),
        images=_seen(fields, patch, *((merged, merged), (merged, text_hidden)) * mergers, area=4096**2, least=256**2),
    )  # fmt: skip


def qwen2(fields: Fields, text_hidden: int, gated: bool = False) -> VisionPart:
    """Qwen2-VL, and Qwen2.5-VL with gated layers and norms without biases."""
    depth, hidden = fields.positive("depth"), fields.positive("hidden_size" if gated else "embed_dim")
    inter = fields.positive("intermediate_size") if gated else hidden * fields.positive("mlp_ratio", default=4)
    merged, patch = _merged(fields, hidden), _patch(fields, 14, fields.positive("temporal_patch_size", default=2))
    whole = hidden * (patch + (1 if gated else 2 + 2 * depth)) + merged + text_hidden
    images = _seen(fields, patch, (merged, merged), (merged, text_hidden), area=16_384 * 28**2, least=56**2)
    if gated:
        window = fields.positive("window_size", default=112) // fields.positive("patch_size", default=14)
        usual = 4  # Layers that see all of an image
        images = images._replace(window=window, whole=len(fields.numbers("fullatt_block_indexes") or range(usual)))
    return _encoder(
        depth, hidden, inter, gated=gated, split=merged * (merged + text_hidden), whole=whole, images=images
    )


def siglip(fields: Fields, text_hidden: int) -> VisionPart:
    """Gemma 3: SigLIP and one matrix to the language model."""
    hidden, count = fields.positive("hidden_size"), fields.positive("num_hidden_layers")
    positions = (fields.positive("image_size") // fields.positive("patch_size")) ** 2
    whole = hidden * (_patch(fields) + 1 + positions + 2 * count + 2 + 1 + text_hidden)
    side, kept = fields.positive("image_size"), 16  # Tokens along the side of an image
    merge = side // (kept * fields.positive("patch_size"))
    images = _seen(fields, _patch(fields), (hidden, text_hidden), merge=merge, square=side)
    return _encoder(count, hidden, fields.positive("intermediate_size"), whole=whole, images=images)


def gemma4(fields: Fields, text_hidden: int) -> VisionPart:
    """Gemma 4: four norms a layer and norms on queries and keys; every GPU holds all of it."""
    hidden, count = fields.positive("hidden_size"), fields.positive("num_hidden_layers")
    layers = _encoder(count, hidden, fields.positive("intermediate_size"), gated=True, bias=False)
    norms = count * (2 * hidden + 2 * fields.positive("head_dim"))
    ends = hidden * (_patch(fields) + 2 * fields.positive("position_embedding_size") + text_hidden)
    scales = 2 * hidden if fields.flag("standardize") else 0
    sound = _conformer(fields.section("audio_config"), text_hidden) if fields.raw("audio_config") else 0
    seen = _seen(fields, _patch(fields), (hidden, text_hidden), merge=3, tokens=280)
    images = seen._replace(inter=fields.positive("intermediate_size"), gated=True)
    return VisionPart(0, layers.parameters + norms + ends + scales + sound, count, hidden, images)


def _conformer(fields: Fields, text_hidden: int) -> int:
    """The encoder of sound of Gemma 4 E2B and E4B: attention with a convolution, between two feed-forwards."""
    hidden, out = fields.positive("hidden_size"), fields.positive("output_proj_dims")
    first, second = fields.numbers("subsampling_conv_channels") or [128, 32]
    scales = hidden // fields.positive("num_attention_heads")
    layer = hidden * (24 * hidden + 9 + fields.positive("conv_kernel_size")) + scales
    # Two convolutions of 3 x 3 leave a fourth of the 128 bands, each with the channels of the second.
    start = 9 * first * (1 + second) + first + second + 32 * second * hidden
    return fields.positive("num_hidden_layers") * layer + start + out * (hidden + 1 + text_hidden)


def llama4(fields: Fields, text_hidden: int) -> VisionPart:
    """Llama 4: an adapter of two matrices after the encoder, and one to the language model."""
    hidden, count = fields.positive("hidden_size"), fields.positive("num_hidden_layers")
    inter, middle = fields.positive("intermediate_size"), fields.positive("projector_input_dim")
    positions = (fields.positive("image_size") // fields.positive("patch_size")) ** 2 + 1
    adapter = inter * middle + middle * fields.positive("projector_output_dim")
    split = hidden * _patch(fields) + adapter + fields.positive("vision_output_dim") * text_hidden
    products = (inter, middle), (middle, middle), (fields.positive("vision_output_dim"), text_hidden)
    images = _seen(fields, _patch(fields), *products, canvas=16, least=fields.positive("image_size"))
    return _encoder(count, hidden, inter, whole=hidden * (1 + positions + 2 * count + 4), split=split, images=images)


def pixtral(fields: Fields, text_hidden: int) -> VisionPart:
    """Mistral 3: Pixtral, with patches merged by four."""
    hidden, count = fields.positive("hidden_size"), fields.positive("num_hidden_layers")
    whole, split = hidden * (_patch(fields) + 2 + _merged(fields, hidden)), text_hidden * (hidden + text_hidden)
    inter = fields.positive("intermediate_size")
    merge, products = fields.positive("spatial_merge_size", default=2), ((hidden, text_hidden), (text_hidden,) * 2)
    longest = fields.positive("image_size")
    images = _seen(fields, _patch(fields), (_merged(fields, hidden), hidden), *products, merge=merge, side=longest)
    return _encoder(count, hidden, inter, gated=True, bias=False, whole=whole, split=split, images=images)


def moonvit(fields: Fields, text_hidden: int) -> VisionPart:
    """Kimi-K2.5: MoonViT; every GPU holds the matrices to the language model."""
    hidden, count = fields.positive("vt_hidden_size"), fields.positive("vt_num_hidden_layers")
    positions = fields.positive("init_pos_emb_height") * fields.positive("init_pos_emb_width")
    merged = 4 * hidden
    ends = hidden * (_patch(fields) + 1 + positions + 2 * count + 4) + text_hidden
    whole = ends + merged * (merged + 1 + text_hidden)
    images = _seen(fields, _patch(fields), (merged, merged), (merged, text_hidden), patches=16_384, least=512)
    return _encoder(count, hidden, fields.positive("vt_intermediate_size"), whole=whole, images=images)


def internvl(fields: Fields, text_hidden: int) -> VisionPart:
    """InternVL: tiles of one size, merged by four, and two matrices to the language model."""
    hidden, count, side = fields.positive("hidden_size"), fields.positive("num_hidden_layers"), 448
    positions, merged = (side // fields.positive("patch_size", default=14)) ** 2 + 1, 4 * hidden
    whole = hidden * (_patch(fields, 14) + positions + 2 + 2 * count) + 2 * merged + 2 * text_hidden
    products = (merged, text_hidden), (text_hidden, text_hidden)
    images = _seen(fields, _patch(fields, 14), *products, crops=12, least=side)
    split = text_hidden * (merged + text_hidden)
    return _encoder(count, hidden, fields.positive("intermediate_size"), split=split, whole=whole, images=images)


def moonvit3(fields: Fields, text_hidden: int) -> VisionPart:
    """Kimi-K3: MoonViT without biases, its heads wider than the hidden size together."""
    hidden, count = fields.positive("vt_hidden_size"), fields.positive("vt_num_hidden_layers")
    heads, inter = fields.positive("qkv_hidden_size", default=hidden), fields.positive("vt_intermediate_size")
    positions = fields.positive("init_pos_emb_height") * fields.positive("init_pos_emb_width")
    merged = 4 * hidden
    whole = hidden * (_patch(fields) + positions + 2 * count + 1) + merged * (merged + text_hidden) + text_hidden
    return VisionPart(count * 2 * hidden * (2 * heads + inter), whole, count, hidden)


def minimax(fields: Fields, text_hidden: int) -> VisionPart:
    """MiniMax-M3: two matrices to the language model, then two more for every four patches."""
    hidden, count = fields.positive("hidden_size"), fields.positive("num_hidden_layers")
    compression = fields.section("img_token_compression_config")
    patch = _patch(fields, frames=compression.positive("temporal_patch_size", default=2))
    middle = fields.positive("projector_hidden_size", default=text_hidden)
    split = middle * (hidden + text_hidden + _merged(compression, text_hidden) + text_hidden)
    whole = hidden * (patch + 2 + 2 * count) + 2 * (middle + text_hidden)
    return _encoder(count, hidden, fields.positive("intermediate_size"), split=split, whole=whole)


def perception(fields: Fields, text_hidden: int) -> VisionPart:
    """Step-3.7: a perception encoder, two convolutions that merge sixteen patches, one matrix to the language model."""
    hidden, count = fields.positive("width"), fields.positive("layers")
    inter = int(hidden * fields.number("mlp_ratio", default=4.0))
    positions = (fields.positive("image_size") // fields.positive("patch_size")) ** 2
    merging = 9 * hidden * 2 * hidden + 9 * 2 * hidden * 4 * hidden + 6 * hidden
    whole = hidden * (_patch(fields) + positions + 2 * count + 4) + merging
    return _encoder(count, hidden, inter, whole=whole, split=4 * hidden * text_hidden)


qwen2_5 = partial(qwen2, gated=True)
VisionReader = Callable[[Fields, int], VisionPart]


def read_vision(read: VisionReader, fields: Fields, text_hidden: int) -> VisionPart | None:
    if fields.raw("vision_config") is None:
        return None
    inner = fields.section("vision_config")
    # What the projector needs may stand outside.
    outside = {key: fields.raw(key) for key in ("spatial_merge_size", "projector_hidden_size", "audio_config")}
    values = {**{key: value for key, value in outside.items() if value is not None}, **inner.values}
    values |= {key: side[0] for key in ("patch_size", "image_size") if isinstance(side := values.get(key), list)}
    return read(Fields(values, inner.where), text_hidden)
