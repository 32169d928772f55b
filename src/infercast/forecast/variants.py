"""Models that do not exist, by the million: what a step would cost if one were wider, deeper or had other heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from infercast.engines.base import engine_named
from infercast.engines.host import HostModel
from infercast.errors import InputError
from infercast.forecast.slo import Array
from infercast.hardware import Gpu, load_gpu
from infercast.models.layout import ParallelLayout
from infercast.models.read import read_model
from infercast.ops import Attention, Gemm, Op
from infercast.ops.op import embedding, gated_activation, kv_write, norm, rope, sampling
from infercast.predict.board_power import throttle_decoding
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import Predictor
from infercast.shown import Shown

Sizes = dict[str, Array]
LIKE = "llama-3.1-8b"
"""A model like these, for what a host needs to know."""
NAMES = ("layers", "hidden", "heads", "kv_heads", "inter", "head_dim", "vocabulary")


@dataclass(frozen=True, slots=True, repr=False)
class Variants(Shown):
    """One element per variant."""

    seconds: Array
    """Seconds of a step, as its GPU or the default engine's host takes longer."""
    gpu_seconds: Array
    """GPU time of its kernels, in seconds."""
    parameters: Array
    """Number of parameters of the model."""

    def _words(self) -> str:
        return f"{np.size(self.seconds):,} variants"


def estimate_variants(
    gpu: str | Path | Gpu,
    *,
    batch: int = 1,
    context: int = 1024,
    predictor: str | Predictor = "learned",
    head_dim: Any = 128,
    vocabulary: Any = 128_256,
    **sizes: Any,
) -> Variants:
    """A decode step of dense models with ``layers``, ``hidden``, ``heads``, ``kv_heads``, ``inter``: numbers or arrays.

    Models are like Llama's: grouped attention, a gated feed-forward of ``inter`` values, 16-bit weights, a head of its
    own. Variants that agree in a kernel's sizes share its estimate, so a grid of a million costs little.
    """
    missing = [name for name in NAMES[:5] if name not in sizes]
    unknown = [name for name in sizes if name not in NAMES]
    if missing or unknown:
        wrong = f"needs {', '.join(missing)}" if missing else f"has no {', '.join(unknown)}"
        raise InputError(f"a variant {wrong}; it takes {', '.join(NAMES)}")
    given = {**sizes, "head_dim": head_dim, "vocabulary": vocabulary}
    if smallest := [name for name in NAMES if np.min(given[name]) < 1]:
        raise InputError(f"{smallest[0]} must be at least 1, not {np.min(given[smallest[0]])}")
    columns = np.broadcast_arrays(*(np.asarray(given[name], dtype=np.int64) for name in NAMES))
    all_sizes = dict(zip(NAMES, columns, strict=True))
    device = gpu if isinstance(gpu, Gpu) else load_gpu(gpu)
    chosen = make_predictor(predictor) if isinstance(predictor, str) else predictor
    by_part = {part: np.zeros(columns[0].shape) for part in ("products", "others", "sequences")}
    for names, build, count in _kernels(batch, context):
        used = [all_sizes[name] for name in names]
        family = build(*(int(size.flat[0]) for size in used)).family
        by_part[_PARTS.get(family, "others")] += (all_sizes["layers"] if count == "layer" else 1) * _estimate_distinct(
            chosen, device, used, build
        )
    products, others, sequences = by_part.values()
    slower = throttle_decoding(device, 2.0 * batch * _weights(all_sizes), products + others)
    gpu_seconds = slower * products + others + sequences
    gaps, host_seconds = _host(batch, all_sizes["layers"], device)
    return Variants(np.maximum(gpu_seconds + gaps, host_seconds), gpu_seconds, _parameters(all_sizes))


def _host(batch: int, layers: Array, gpu: Gpu) -> tuple[Array, float]:
    """What the GPU idles between kernels, by layers, and what the default engine's host takes for a step."""
    engine, model, layout = engine_named(), read_model(LIKE), ParallelLayout()
    host, settings = engine.default_host().behind_server(), engine.resolve(engine.settings(), model, layout, gpu)

    def of(count: int) -> HostModel:
        deep = replace(model, stacks=(replace(model.stacks[0], layers=count),))
        return engine.host_model(host, deep, layout, gpu, settings)

    values, where = np.unique(layers, return_inverse=True)
    gaps = np.array([of(count).gap_seconds for count in values.tolist()])
    launch, _ = engine.graphs(settings).launch(batch, is_decode=True)
    return gaps[where].reshape(layers.shape), of(int(values[0])).cost(launch, batch, batch, 0).total


Build = Callable[..., Op]
Kernel = tuple[tuple[str, ...], Build, str]
"""The sizes that a kernel depends on, how it is made of them, and what it is launched for."""


def _kernels(batch: int, context: int) -> Iterator[Kernel]:
    heads = ("heads", "kv_heads", "head_dim")
    yield ("hidden",), lambda hidden: embedding(batch, hidden), "step"
    yield ("hidden",), lambda hidden: norm(batch, hidden, residual=True), "layer"
    yield ("hidden",), lambda hidden: norm(batch, hidden, residual=True), "layer"
    yield ("hidden",), lambda hidden: norm(batch, hidden, residual=True), "step"
    yield ("hidden", *heads), lambda hidden, q, kv, dim: Gemm(batch, (q + 2 * kv) * dim, hidden), "layer"
    yield heads, lambda q, kv, dim: rope(batch, q + kv, dim), "layer"
    yield heads[1:], lambda kv, dim: kv_write(batch, 2 * kv * dim), "layer"
    yield heads, lambda q, kv, dim: _attention(batch, context, q, kv, dim), "layer"
    yield ("hidden", "heads", "head_dim"), lambda hidden, q, dim: Gemm(batch, hidden, q * dim), "layer"
    yield ("hidden", "inter"), lambda hidden, inter: Gemm(batch, 2 * inter, hidden), "layer"
    yield ("inter",), lambda inter: gated_activation(batch, inter), "layer"
    yield ("hidden", "inter"), lambda hidden, inter: Gemm(batch, hidden, inter), "layer"
    yield ("hidden", "vocabulary"), lambda hidden, words: Gemm(batch, words, hidden, family="lm_head"), "step"
    yield ("vocabulary",), lambda words: sampling(batch, words), "step"


_PARTS = {"gemm": "products", "attention": "sequences", "lm_head": "sequences", "sampling": "sequences"}
"""What the power limit slows down, and what it is not counted in; see `throttle_decoding`."""


def _attention(batch: int, context: int, heads: int, kv_heads: int, head_dim: int) -> Attention:
    queries, keys = np.ones(batch, dtype=np.int64), np.full(batch, context + 1)
    return Attention(queries, keys, heads, kv_heads, head_dim, head_dim)


def _estimate_distinct(predictor: Predictor, gpu: Gpu, used: list[Array], build: Build) -> Array:
    """Seconds of a kernel for every variant, each distinct shape estimated once."""
    key = np.zeros(used[0].size, dtype=np.int64)  # one number for each combination of sizes
    for size in used:
        key = key * (int(size.max()) + 1) + size.ravel()
    _, first, where = np.unique(key, return_index=True, return_inverse=True)
    rows = np.stack([size.ravel()[first] for size in used])
    if build(*(int(size) for size in rows[:, 0])).family == "attention":  # heads come one layout at a time
        seconds = np.array([float(np.ravel(predictor.seconds(build(*row), gpu))[0]) for row in rows.T.tolist()])
    else:
        seconds = np.broadcast_to(predictor.seconds(build(*rows), gpu), rows.shape[1])
    return np.asarray(seconds[where].reshape(used[0].shape))


def _weights(sizes: Sizes) -> Array:
    """Weights that a layer's products multiply with, of all layers."""
    hidden, width = sizes["hidden"], sizes["head_dim"]
    attention = hidden * width * (2 * sizes["heads"] + 2 * sizes["kv_heads"])
    return np.asarray(sizes["layers"] * (attention + 3 * hidden * sizes["inter"]))


def _parameters(sizes: Sizes) -> Array:
    """Those, the embedding and the head, and two norms a layer."""
    hidden = sizes["hidden"]
    return np.asarray(_weights(sizes) + 2 * hidden * sizes["layers"] + 2 * sizes["vocabulary"] * hidden + hidden)
