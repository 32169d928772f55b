"""Published tables of board power: kernels that were repeated while the board's meter was read.

One parquet file of all families; ``board_w`` is the mean of the meter's readings in watts, ``latency_ms`` what one
launch took. A row of a whole attention module becomes the kernels that a step of its model runs. A *group* names the
rows that must never be split between fitting and testing, as in `fit.tables`.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.errors import FileFormatError
from infercast.hardware import load_gpu
from infercast.lab.fit.tables import MOE_FORMATS, UNGATED
from infercast.models.layout import ParallelLayout, Shard, WeightFormat
from infercast.models.mixers.mixer import LatentAttention, SequenceBatch
from infercast.models.read import read_model
from infercast.ops import (
    Attention,
    Call,
    Elementwise,
    EncoderAttention,
    Gemm,
    MoE,
    Op,
    Scan,
    ShortConvolution,
    StateUpdate,
)
from infercast.ops.mixers import GATED_DELTA, MAMBA2
from infercast.ops.op import quantise
from infercast.predict.board_power import copies_of, tabled_calls
from training.sparse_tables import lengths_of, module_calls, parts

Array = npt.NDArray[Any]

FORMATS = {"bfloat16": "bf16", "int4_wo": "int4", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4_a8"}
LEAST_MS = 1e-3
"""A launch that is said to have taken less was not timed."""
LATENT_MODEL = "deepseek-v3"
SPARSE_MODELS = {"DeepseekV32ForCausalLM": "deepseek-ai/DeepSeek-V3.2", "GlmMoeDsaForCausalLM": "zai-org/GLM-5"}
MODULE_FORMATS = {"bfloat16": "bf16", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}


@dataclass(frozen=True, slots=True)
class PowerRows:
    """Measured rows that differ in array sizes only."""

    family: str
    gpu: str
    engine: str
    kernel: str
    calls: tuple[tuple[Op, int], ...]
    """Operators with their launches; sizes are arrays, one element a row."""
    seconds: Array
    watts: Array
    group: Array
    copies: int
    """How many sets of operands the launches go round."""


def read_power(path: Path, families: tuple[str, ...] | None = None, every: int = 1) -> Iterator[PowerRows]:
    """All rows of a file, or every so many of them, operator by operator."""
    try:
        table = pandas.read_parquet(path)
    except (OSError, ValueError) as problem:
        raise FileFormatError(path, f"cannot be read as parquet: {problem}") from None
    for name in ("gpu", "family", "engine", "kernel_source", "latency_ms", "board_w"):
        if name not in table:
            raise FileFormatError(path, f"lacks the column {name!r}")
    table = table[(table.latency_ms >= LEAST_MS) & (table.board_w > 0)].iloc[::every]
    for family, read in _READERS.items():
        of_family = table[table.family == family]
        if not of_family.empty and (families is None or family in families):
            yield from read(of_family)


def _rows(
    part: pandas.DataFrame, family: str, calls: tuple[tuple[Op, int], ...], group: Any, copies: int = 1
) -> PowerRows:
    first = part.iloc[0]
    names = np.broadcast_to(np.asarray(group, dtype=object), len(part)).astype(str)
    seconds, watts = part.latency_ms.to_numpy(float) * 1e-3, part.board_w.to_numpy(float)
    return PowerRows(family, first.gpu, first.engine, first.kernel_source, calls, seconds, watts, names, copies)


def _ints(part: pandas.DataFrame, *names: str) -> list[Array]:
    return [part[name].to_numpy(dtype=np.int64) for name in names]


def _gemm(table: pandas.DataFrame) -> Iterator[PowerRows]:
    for part in parts(table, "gemm_dtype", "kernel_source"):
        m, n, k = _ints(part, "m", "n", "k")
        dtype = FORMATS.get(part.gemm_dtype.iloc[0], part.gemm_dtype.iloc[0])
        op = Gemm(m, n, k, dtype)
        copies = copies_of(op) if part.engine.iloc[0] == "vllm" else 1
        yield _rows(part, "gemm", tabled_calls(op), n * 1_000_000 + k, copies)


def _attention(table: pandas.DataFrame) -> Iterator[PowerRows]:
    layout = ("num_heads", "num_key_value_heads", "head_dim", "window_size", "attn_dtype", "kv_cache_dtype")
    for part in parts(table.assign(decodes=table.isl == 1), *layout, "kernel_source", "decodes"):
        heads, kv_heads, head_dim, window = (int(part[name].iloc[0]) for name in layout[:4])
        dtype, kv_dtype = (FORMATS.get(part[name].iloc[0], part[name].iloc[0]) for name in layout[4:])
        queries, keys, sequences = (each.astype(np.int64) for each in lengths_of(part))
        op = Attention(
            queries,
            keys,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            value_dim=head_dim,
            sequences=sequences,
            window=window,
            dtype=dtype,
            kv_dtype=kv_dtype,
        )
        family = "attention_decode" if part.decodes.iloc[0] else "attention_prefill"
        yield _rows(part, family, ((op, 1),), "|".join(str(part[name].iloc[0]) for name in layout))


def _towers(table: pandas.DataFrame) -> Iterator[PowerRows]:
    for part in parts(table, "num_heads", "head_dim", "kernel_source"):
        images, tokens = _ints(part, "batch_size", "isl")
        heads, head_dim = int(part.num_heads.iloc[0]), int(part.head_dim.iloc[0])
        op = EncoderAttention(images, tokens, heads=heads, head_dim=head_dim)
        yield _rows(part, "encoder_attention", ((op, 1),), f"{heads}|{head_dim}")


def _moe(table: pandas.DataFrame) -> Iterator[PowerRows]:
    layout = ("hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size", "moe_ep_size")
    for part in parts(table, *layout, "moe_dtype", "distribution", "kernel_source"):
        hidden, inter, experts, topk, tp, ep = (int(part[name].iloc[0]) for name in layout)
        dtype = FORMATS.get(part.moe_dtype.iloc[0], part.moe_dtype.iloc[0])
        compute, weight = MOE_FORMATS.get(dtype, (dtype, dtype))
        plain = (hidden, inter, experts, topk) in UNGATED and part.engine.iloc[0] == "vllm"
        op = MoE(
            part.num_tokens.to_numpy(dtype=np.int64),
            hidden=hidden,
            inter=inter // tp,
            experts=experts,
            topk=topk,
            local_experts=max(experts // ep, 1),
            dtype=compute,
            weight_dtype=weight,
            gated=not (plain or "nongated" in part.kernel_source.iloc[0]),
        )
        yield _rows(part, "moe", ((op, 1),), f"{hidden}|{inter}|{experts}|{topk}")


def _quantise(table: pandas.DataFrame) -> Iterator[PowerRows]:
    for part in parts(table, "k", "kernel_source"):
        width = int(part.k.iloc[0])
        yield _rows(part, "quantise", ((quantise(part.m.to_numpy(dtype=np.int64), width), 1),), width)


def _modules(family: str, calls_of: Callable[[pandas.DataFrame], list[Call]]) -> Callable[..., Iterator[PowerRows]]:
    layout = ("model", "num_heads", "kv_cache_dtype", "gemm_type", "mla_dtype", "kernel_source")

    def read(table: pandas.DataFrame) -> Iterator[PowerRows]:
        for part in parts(table.assign(decodes=table.isl == 1), *layout, "decodes"):
            calls = tuple((call.op, call.count) for call in calls_of(part))
            yield _rows(part, family, calls, f"{part.architecture.iloc[0]}|{part.num_heads.iloc[0]}")

    return read


def _batches(part: pandas.DataFrame) -> tuple[Array, Array, Array]:
    queries, keys, sequences = (each.astype(np.int64) for each in lengths_of(part))
    return queries, keys, sequences


def _sparse_calls(part: pandas.DataFrame) -> list[Call]:
    row = part.iloc[0].copy()
    row["model"] = SPARSE_MODELS[row.architecture]
    return module_calls("dsa", row, load_gpu(row.gpu), _batches(part))


def _latent_calls(part: pandas.DataFrame) -> list[Call]:
    """A module of dense attention over a latent, as DeepSeek-V3 has it."""
    first, lengths = part.iloc[0], _batches(part)
    config = read_model(LATENT_MODEL)
    found = next(stack.mixer for stack in config.stacks if isinstance(stack.mixer, LatentAttention))
    mixer = replace(found, heads=int(first.num_heads))
    name = MODULE_FORMATS[first.gemm_type]
    weights = WeightFormat(attention=name, activation_attention=name, name=name)
    shard = Shard(config.hidden, "", weights, "fp8" if first.kv_cache_dtype == "fp8" else "bf16", ParallelLayout())
    tokens = (lengths[0] * lengths[2]).sum(axis=-1)
    return [*mixer.token_calls(shard, tokens), *mixer.sequence_calls(shard, SequenceBatch(*lengths))]


def _recurrent(table: pandas.DataFrame) -> Iterator[PowerRows]:
    """Scans and convolutions of gated delta nets and of Mamba2, one kernel a row."""
    table = table.assign(
        heads=table.num_v_heads.fillna(table.nheads),
        key_heads=table.num_k_heads.fillna(table.n_groups),
        key_dim=table.head_k_dim.fillna(table.d_state),
        value_dim=table.head_v_dim.fillna(table.head_dim),
        chunk=table.chunk_size.fillna(64),
        seq_len=table.seq_len.fillna(1).clip(lower=1),
    )
    layout = ("heads", "key_heads", "key_dim", "value_dim", "chunk")
    for part in parts(table, *layout, "kernel_source", "phase"):
        sizes: dict[str, Any] = {name: int(part[name].iloc[0]) for name in layout}
        kernel, is_state_space = str(part.kernel_source.iloc[0]), bool(part.nheads.notna().iloc[0])
        batch, lengths = _ints(part, "batch_size", "seq_len")
        chunk = sizes.pop("chunk")
        kind = MAMBA2 if is_state_space else GATED_DELTA
        op: Op
        if kernel.startswith("causal_conv1d"):
            channels = 2 * sizes["key_heads"] * sizes["key_dim"] + sizes["heads"] * sizes["value_dim"]
            update = kernel.endswith("update")
            op = ShortConvolution(batch * (1 if update else lengths), batch, channels=channels, update=update)
        elif kernel.startswith("fused_recurrent"):
            op = StateUpdate(batch, kind=kind, **sizes)
        else:
            op = Scan(lengths[:, None], batch[:, None], kind=kind, chunk=chunk, **sizes)
        yield _rows(part, "recurrent", ((op, 1),), f"{kernel}|{sizes}")


_READERS: dict[str, Callable[[pandas.DataFrame], Iterator[PowerRows]]] = {
    "gemm": _gemm,
    "attention": _attention,
    "encoder_attention": _towers,
    "moe": _moe,
    "quantize": _quantise,
    "mla": _modules("mla", _latent_calls),
    "sparse_attention": _modules("sparse_attention", _sparse_calls),
    "linear_attention": _recurrent,
}


# Kernels whose joules a board's own counter gave: ``measurements/GPU/power_bursts.json.gz``.
#
# A kernel is launched again and again for a second or two, without a pause or for a share of the time (``duty``), so
# that
# the clock stays up although the kernel alone would reach the power limit. Power is that of the time in which it ran.


NOT_WORK = ("tiny", "zeros")
"""What tells of idle power, and of operands that no model has."""


@dataclass(frozen=True, slots=True)
class Counted:
    """One measured kernel."""

    name: str
    op: Op
    seconds: float
    """Of one launch."""
    watts: float
    """Mean board power while it ran."""
    is_steady: bool
    """Whether it ran without a pause, so that the power limit could bind."""
    warm: float
    """Share of its bytes that stay in L2 from launch to launch."""


def read_counted(path: Path, idle_watts: float) -> Iterator[Counted]:
    """All kernels of a file that do what kernels of models do."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = json.load(file)["kernels"]
        for row in rows:
            if not row["name"].startswith(NOT_WORK):
                yield _counted(row, idle_watts)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise FileFormatError(path, f"is no file of counted joules: {problem!r}") from None


def _counted(row: dict[str, Any], idle_watts: float) -> Counted:
    watts = (row["joules"] - idle_watts * (row["seconds"] - row["busy"])) / row["busy"]
    warm = 1.0 if row["name"].endswith("in L2") else 0.0
    return Counted(row["name"], _op(row), row["busy"] / row["launches"], watts, row["duty"] == 1.0, warm)


def _op(row: dict[str, Any]) -> Op:
    kind, _, rest = row["name"].partition(" ")
    sizes = [int(each) for each in re.findall(r"\d+", rest)]
    if kind in ("gemm", "fp8"):
        m, n, k = sizes[:3]
        return Gemm(m, n, k, "fp8" if kind == "fp8" else "bf16")
    if kind == "attention":
        batch, heads, length, head_dim = sizes
        lengths = np.array([length])
        return Attention(lengths, lengths, heads, heads, head_dim, head_dim, sequences=np.array([batch]))
    return Elementwise("activation", 1, float(row["bytes"]), 0.0, 0.0)
