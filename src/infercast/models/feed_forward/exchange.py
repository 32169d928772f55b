"""Tokens on their way to experts on other GPUs: how evenly GPUs are loaded, and what they send each other."""

from __future__ import annotations

import numpy as np

from infercast.models.layout import ParallelLayout
from infercast.models.shard import Shard
from infercast.ops import Call, Collective
from infercast.ops.dtypes import bytes_of
from infercast.ops.op import Size


def hottest_load(tokens: Size, topk: int, layout: ParallelLayout) -> Size:
    """Tokens that would load every GPU as the hottest one is loaded.

    Copies bring as many tokens each. Where every GPU holds a share of each expert, all are loaded alike. With spread
    experts and uniform routing the rows of a GPU are close to a Poisson count; the largest of n such counts lies about
    sqrt(2 ln n) deviations above their mean, and no GPU gets more than all rows.
    """
    together = tokens * layout.sharing if layout.sharing > 1 else tokens
    if layout.expert_gpus == 1:
        return together
    gpus = layout.expert_gpus
    rows = together * topk / gpus
    above = np.sqrt(2 * np.log(gpus) * (1 - 1 / gpus) / np.maximum(rows, 1e-9))
    return np.asarray(together * np.minimum(1 + above, gpus))


def exchange_calls(shard: Shard, topk: int, tokens: Size, layers: int, width: int) -> list[Call]:
    """Tokens of all copies, ``width`` values each, to the GPUs of their experts, and results back.

    By default an engine gathers all tokens everywhere and scatters the sums. Otherwise each GPU sends its tokens to the
    GPUs that hold one of their ``topk`` experts, fewer than ``topk`` where several lie on the same.
    """
    layout, weights = shard.layout, shard.weights
    # With spread experts all GPUs bring tokens together, a share of a copy's each; otherwise one GPU of every copy.
    gpus = layout.expert_gpus if layout.experts else layout.sharing
    sent, returned = (int(width * bytes_of(dtype)) for dtype in (weights.activation_experts, weights.base))
    if layout.all_to_all:
        reached = gpus * (1 - (1 - 1 / gpus) ** topk)
        copies = np.asarray(tokens * reached / layout.tensor)  # GPUs of one copy send a share of its tokens each
        dispatch = Collective("all_to_all", copies * sent, gpus)
        combine = Collective("all_to_all", copies * returned, gpus)
    else:
        together = tokens * layout.sharing
        dispatch = Collective("all_gather", together * sent, gpus)
        combine = Collective("reduce_scatter", together * returned, gpus)
    return [Call("experts_dispatch", dispatch, layers), Call("experts_combine", combine, layers)]
