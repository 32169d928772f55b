"""Families of grouped attention: which layers have a window, and what else tells one from the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from infercast.models.families.fields import Answer, Fields
from infercast.models.families.layers import Layer, dense_feed_forward, grouped_attention, listed_windows, useful_window
from infercast.models.feed_forward import FeedForward


def plain_networks(fields: Fields, bias: Answer = False) -> list[FeedForward]:
    """The same dense network in every layer."""
    return [dense_feed_forward(fields, bias=fields.answer(bias))] * fields.layers


def read_grouped(
    fields: Fields,
    *,
    windows: Callable[[Fields], list[int]] = lambda fields: [0] * fields.layers,
    networks: Callable[[Fields], Sequence[FeedForward]] = plain_networks,
    norms: int = 2,
    **attention: Answer,
) -> list[Layer]:
    """Layers of grouped attention, with the window and the feed-forward network of each; ``attention`` is for all."""
    plain = grouped_attention(fields, **{name: fields.answer(said) for name, said in attention.items()})
    each = windows(fields)
    kinds = {window: replace(plain, window=useful_window(fields, window)) for window in set(each)}
    return [Layer(kinds[window], network, norms) for window, network in zip(each, networks(fields), strict=True)]


def every_layer(fields: Fields) -> list[int]:
    """Mistral, Phi and Mixtral: a window, where there is one, in every layer."""
    return _windows(fields, [fields.count("sliding_window") > 0] * fields.layers)


def every_other_layer(fields: Fields) -> list[int]:
    """Gemma 2 and gpt-oss: the first layer is windowed, the next is not."""
    return _windows(fields, [index % 2 == 0 for index in range(fields.layers)])


def once_a_period(fields: Fields) -> list[int]:
    """Gemma 3: five windowed layers, then one that sees everything."""
    period = fields.positive("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _windows(fields, [(index + 1) % period != 0 for index in range(fields.layers)])


def upper_layers(fields: Fields) -> list[int]:
    """Qwen: with ``use_sliding_window``, layers from ``max_window_layers`` on are windowed."""
    if not fields.flag("use_sliding_window"):
        return [0] * fields.layers
    first = fields.count("max_window_layers", default=fields.layers)
    return _windows(fields, [index >= first for index in range(fields.layers)])


def listed_layers(fields: Fields) -> list[int]:
    """OLMo 3: only where ``layer_types`` says so."""
    return _windows(fields, [False] * fields.layers)


def _windows(fields: Fields, otherwise: list[bool]) -> list[int]:
    """The window of each layer: ``sliding_window`` where layer_types, or ``otherwise``, has a windowed layer."""
    windowed = listed_windows(fields) or otherwise
    window = fields.positive("sliding_window") if any(windowed) else 0
    return [window if here else 0 for here in windowed]
