"""Published tables of recurrent layers: one file a kind of layer, each with its scans, updates and convolutions.

A *group* is one layout of heads, or one width of a convolution: all its lengths and batches are hidden together.

Of several versions of an engine the latest is read, and of several engines vLLM's where it has the GPU. Left out are:
convolutions over prompts of vLLM 0.22 and of its Kimi branch, which wait for the host (0.2 to 0.8 ms for one token);
SGLang 0.5.14 on an H200, where another process shared the memory (twice the tokens take four times as long); SGLang
0.5.9 and 0.5.10, all that there is of an A100: convolutions take the same time whatever the width, and updates move
states in fp32 faster than the memory can; rows that verify drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas

from infercast.errors import FileFormatError
from infercast.fit.checks import in_microseconds
from infercast.fit.rows import Array, Rows
from infercast.ops import Scan, ShortConvolution, StateUpdate
from infercast.ops.recurrent import GATED_DELTA, KIMI_DELTA, MAMBA2

RECURRENT_FILES = {kind: f"sparse-and-recurrent/{kind}.parquet" for kind in (GATED_DELTA, KIMI_DELTA, MAMBA2)}
KIMI, SGLANG = "0.1.dev19262", "0.5.14"
MOST = ("h100-sxm", "h200-sxm", "b200-sxm", "l40s")
SHARED = "h200-sxm"
"""The GPU whose memory another process used while SGLang 0.5.14 was measured."""
CONVOLUTIONS = 3
"""That a row of Kimi's prompts has: queries, keys and values."""


class Source(NamedTuple):
    """Rows that are read: of which kernel, of which version of whose engine, and on which GPUs."""

    rows: str
    engine: str
    version: str
    family: str
    library: str
    gpus: tuple[str, ...] = MOST


_HERE = tuple(gpu for gpu in MOST if gpu != SHARED)
SOURCES: dict[str, tuple[Source, ...]] = {
    GATED_DELTA: (
        Source("chunk_gated_delta_rule_flashinfer", "vllm", "0.24.0", "scan", "flashinfer"),
        Source("chunk_gated_delta_rule_triton", "vllm", "0.24.0", "scan", "triton"),
        Source("chunk_gated_delta_rule", "vllm", "0.22.0", "scan", "triton"),
        Source("chunk_gated_delta_rule", "sglang", SGLANG, "scan", "triton", _HERE),
        Source("fused_recurrent_gated_delta_rule_packed_decode", "vllm", "0.24.0", "state_update", ""),
        Source("causal_conv1d_fn", "vllm", "0.24.0", "convolution", "triton"),
        Source("causal_conv1d_update", "vllm", "0.24.0", "convolution", "triton"),
    ),
    KIMI_DELTA: (
        Source("flashkda_fwd", "vllm", KIMI, "scan", "flashkda"),
        Source("chunk_kda_with_fused_gate", "vllm", KIMI, "scan", "triton"),
        Source("chunk_kda", "sglang", "0.5.16", "scan", "triton"),
        Source("fused_recurrent_kda_packed_decode", "vllm", KIMI, "state_update", ""),
        Source("causal_conv1d_fn_qkv3", "sglang", "0.5.16", "convolution", "triton"),
        Source("causal_conv1d_update", "vllm", KIMI, "convolution", "kimi"),
    ),
    MAMBA2: (
        Source("mamba_chunk_scan_combined", "trtllm", "1.3.0rc15", "scan", "cute"),
        Source("causal_conv1d_fn", "trtllm", "1.3.0rc20", "convolution", "cuda"),
        Source("causal_conv1d_update", "trtllm", "1.3.0rc20", "convolution", "cuda"),
    ),
}
NAMES = {"num_v_heads": "heads", "num_k_heads": "key_heads", "head_k_dim": "key_dim", "head_v_dim": "value_dim"}
NAMES |= {"nheads": "heads", "n_groups": "key_heads", "d_state": "key_dim", "head_dim": "value_dim"}
NAMES |= {"chunk_size": "chunk", "batch_size": "batch", "seq_len": "q_len"}
LAYOUT = ["heads", "key_heads", "key_dim", "value_dim", "chunk"]
NEEDED = ("gpu", "engine", "engine_version", "kernel_source", "phase", "latency_ms", "batch", "q_len", *LAYOUT)


def read_recurrent(path: Path, kind: str) -> Iterator[Rows]:
    """All rows of one file that are read, operator by operator."""
    yield from in_microseconds(path, _read(path, kind))


def _read(path: Path, kind: str) -> Iterator[Rows]:
    try:
        table = pandas.read_parquet(path)
    except (OSError, ValueError) as problem:
        raise FileFormatError(path, f"cannot be read as parquet: {problem}") from None
    table = table.rename(columns=NAMES).assign(index=np.arange(len(table)))
    if "chunk" not in table:
        table["chunk"] = 64
    missing = [name for name in NEEDED if name not in table]
    if missing:
        raise FileFormatError(path, f"lacks the column {missing[0]!r}")
    table = table[(table.phase != "verify") & (table.latency_ms > 0)]
    for source in SOURCES[kind]:
        named = (table.kernel_source == source.rows) & (table.engine_version == source.version)
        of_source = table[named & (table.engine == source.engine) & table.gpu.isin(source.gpus)]
        for _, part in of_source.groupby(["gpu", *LAYOUT]):
            yield _MAKERS[source.family](kind, source, part)


def _rows(source: Source, part: pandas.DataFrame, op: Any, kernel: str, group: str) -> Rows:
    seconds: Array = part.latency_ms.to_numpy() * 1e-3
    return Rows(
        family=source.family,
        gpu=part.gpu.iloc[0],
        engine=source.engine,
        dtype=kernel.replace("/", " "),
        kernel=kernel,
        group=np.full(len(part), group),
        op=op,
        seconds=seconds,
        index=part["index"].to_numpy(),
    )


def _layout(part: pandas.DataFrame) -> dict[str, Any]:
    return {name: int(part[name].iloc[0]) for name in LAYOUT}


def _group(part: pandas.DataFrame) -> str:
    return "|".join(map(str, _layout(part).values()))


def _scan(kind: str, source: Source, part: pandas.DataFrame) -> Rows:
    lengths, batch = part.q_len.to_numpy()[:, None], part.batch.to_numpy()[:, None]
    op = Scan(lengths, batch, kind=kind, kernel=source.library, **_layout(part))
    return _rows(source, part, op, f"{kind}/{source.library}", _group(part))


def _update(kind: str, source: Source, part: pandas.DataFrame) -> Rows:
    layout = _layout(part)
    del layout["chunk"]
    return _rows(source, part, StateUpdate(part.batch.to_numpy(), kind=kind, **layout), kind, _group(part))


def _convolution(kind: str, source: Source, part: pandas.DataFrame) -> Rows:
    layout = _layout(part)
    keys, values = layout["key_heads"] * layout["key_dim"], layout["heads"] * layout["value_dim"]
    update = source.rows.endswith("update")
    each = kind == KIMI_DELTA and not update
    op = ShortConvolution(
        (part.batch * part.q_len).to_numpy(),
        part.batch.to_numpy(),
        channels=values if each else 2 * keys + values,
        update=update,
        kernel=source.library,
    )
    timed = part.assign(latency_ms=part.latency_ms / CONVOLUTIONS) if each else part
    variant = f"{'update' if update else 'prompts'}/{source.library}"
    return _rows(source, timed, op, variant, str(op.channels))


_MAKERS: dict[str, Callable[[str, Source, pandas.DataFrame], Rows]] = {
    "scan": _scan,
    "state_update": _update,
    "convolution": _convolution,
}
