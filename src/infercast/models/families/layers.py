"""The halves of a layer as most families publish them, and layers gathered into stacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from infercast.errors import FileFormatError, UnsupportedModelError
from infercast.models.families.fields import Fields
from infercast.models.feed_forward import DenseFeedForward, FeedForward
from infercast.models.mixers import GroupedAttention, Mixer
from infercast.models.spec import Stack


class Layer(NamedTuple):
    """One layer, in its place in the model."""

    mixer: Mixer
    feed_forward: FeedForward
    norms: int = 2
    streams: int = 1
    residuals: int = 0


def gather(layers: Sequence[Layer]) -> tuple[tuple[Stack, ...], tuple[int, ...]]:
    """Stacks of equal layers, in the order in which each kind first appears, and the stack of every layer.

    The second is empty where stacks simply follow each other.
    """
    counts = Counter(layers)
    stacks = tuple(Stack(count, *layer) for layer, count in counts.items())
    numbers = {layer: number for number, layer in enumerate(counts)}
    order = tuple(numbers[layer] for layer in layers)
    return stacks, () if list(order) == sorted(order) else order


def grouped_attention(fields: Fields, *, window: int = 0, **options: bool) -> GroupedAttention:
    """Attention from the usual keys: ``num_attention_heads``, ``num_key_value_heads``, ``head_dim``."""
    heads = fields.positive("num_attention_heads")
    if fields.raw("head_dim") is None and fields.positive("hidden_size") % heads:
        raise fields.wrong("hidden_size", f"a multiple of num_attention_heads = {heads} where head_dim is absent")
    head_dim = fields.positive("head_dim", default=max(1, fields.positive("hidden_size") // heads))
    return GroupedAttention(
        heads=heads,
        kv_heads=checked_kv_heads(fields, "num_key_value_heads", heads),
        head_dim=head_dim,
        value_dim=head_dim,
        rotary_dim=rotary_dim(fields, head_dim),
        window=useful_window(fields, window),
        **options,
    )


def checked_kv_heads(fields: Fields, key: str, heads: int) -> int:
    """The number under ``key`` (all ``heads`` when absent), which must divide ``heads``."""
    kv_heads = fields.positive(key, default=heads)
    if heads % kv_heads:
        raise FileFormatError(fields.where, f"{heads} attention heads cannot be shared by {key} = {kv_heads}")
    return kv_heads


def rotary_dim(fields: Fields, head_dim: int) -> int:
    """Dimensions of a head that are rotated."""
    if fields.raw("rotary_dim") is not None:
        if fields.positive("rotary_dim") > head_dim:
            raise fields.wrong("rotary_dim", f"at most head_dim = {head_dim}")
        return fields.positive("rotary_dim")
    rope = fields.section("rope_parameters")
    factor = fields.fraction("partial_rotary_factor", rope.fraction("partial_rotary_factor"))
    return int(head_dim * factor)


def useful_window(fields: Fields, window: int) -> int:
    """``window``, or 0 where it is no shorter than the longest context and so never cuts anything off."""
    return 0 if window >= fields.positive("max_position_embeddings", default=window + 1) else window


LAYER_TYPES = {"full_attention": False, "sliding_attention": True, "chunked_attention": True}


def listed_windows(fields: Fields) -> list[bool] | None:
    """Whether each layer is windowed, as ``layer_types`` says; None without that list."""
    names = fields.words("layer_types")
    if not names:
        return None
    unknown = sorted(set(names) - set(LAYER_TYPES))
    if unknown:
        raise UnsupportedModelError(
            f"{fields.where}: {unknown[0]} layers are not modelled yet; known layer_types: {', '.join(LAYER_TYPES)}"
        )
    return [LAYER_TYPES[name] for name in fields.a_layer("layer_types", names)]


def dense_feed_forward(fields: Fields, bias: bool = False) -> DenseFeedForward:
    """The gated feed-forward network of ``intermediate_size``."""
    return DenseFeedForward(fields.positive("intermediate_size"), gated=True, bias=bias)
