"""Measured kernel latencies as operators: one parquet file a family, one row a measured shape.

Common columns are ``gpu``, ``engine``, ``engine_version`` and ``latency_us``; the others say the shape. Rows that share
everything that is not an array in an operator are read as one operator, and a *group* names the rows that must never
be split between fitting and testing: one (n, k) pair, one head layout, one expert layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from infercast.errors import FileFormatError
from infercast.hardware import load_gpu
from infercast.ops import Attention, Collective, Gemm, MoE, Op
from infercast.ops.elementwise import quantise

Array = npt.NDArray[Any]

COLLECTIVES = {"alltoall": "all_to_all"}
# How a table's MoE dtype computes and stores: (activations, weights).
MOE_FORMATS = {"int4": ("bf16", "int4"), "mxfp4": ("bf16", "mxfp4"), "mxfp4_a8": ("fp8", "mxfp4")}


# (hidden, inter, experts, topk) of Nemotron models: with three matrices they would beat the memory's bandwidth.
UNGATED = {
    (2688, 1856, 128, 6),
    (2048, 5120, 512, 22),
    (1024, 2688, 512, 22),
    (4096, 2688, 512, 22),
    (8192, 5120, 512, 22),
}
COLUMNS = {
    "gemm": ("dtype", "m", "n", "k"),
    "attention_prefill": ("dtype", "kv_dtype", "batch", "q_len", "heads", "kv_heads", "head_dim", "window"),
    "attention_decode": ("dtype", "kv_dtype", "batch", "kv_len", "heads", "kv_heads", "head_dim", "window"),
    "moe": ("dtype", "kernel", "routing", "tokens", "hidden", "inter", "topk", "experts", "tp", "ep"),
    "quantise": ("m", "k"),
    "collective": ("op", "gpus", "bytes"),
}


PLAUSIBLE = (1.0, 1e5)
"""Microseconds that the median kernel of any table lies between."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured rows of one operator type that differ in array sizes only."""

    family: str
    gpu: str
    engine: str
    dtype: str
    kernel: str
    """Name of the kernel where the table has one, else empty."""
    group: Array
    """For each row, what must stay together in a split."""
    op: Op
    seconds: Array
    index: Array
    """Row numbers in the file."""


def read_table(path: Path, family: str) -> Iterator[Rows]:
    """All rows of one file, operator by operator."""
    table = _checked(path, family)
    if "kernel" not in table:
        table["kernel"] = ""
    for column in table.select_dtypes("category"):
        table[column] = table[column].astype(str)
    table["index"] = np.arange(len(table))
    yield from _READERS[family](table)


def _checked(path: Path, family: str) -> pandas.DataFrame:
    """The file as a table, with the columns it needs and latencies that can be latencies."""
    try:
        table = pandas.read_parquet(path)
    except (OSError, ValueError) as problem:
        raise FileFormatError(path, f"cannot be read as parquet: {problem}") from None
    missing = [name for name in ("gpu", "engine", "latency_us", *COLUMNS[family]) if name not in table]
    if missing:
        raise FileFormatError(path, f"lacks the column {missing[0]!r}; {family} needs {', '.join(COLUMNS[family])}")
    if table.empty:
        raise FileFormatError(path, "has no rows")
    latency = table.latency_us.to_numpy()
    wrong = np.flatnonzero(~(np.isfinite(latency) & (latency > 0)))
    if wrong.size:
        raise FileFormatError(path, f"row {wrong[0]}: latency_us must be above 0, not {latency[wrong[0]]}")
    for name in table.gpu.unique():
        load_gpu(str(name))  # an unknown GPU is named with those that are known
    if not PLAUSIBLE[0] < np.median(latency) < PLAUSIBLE[1]:
        raise FileFormatError(path, f"has a median latency_us of {np.median(latency):.3g}: is it in some other unit?")
    return table


def _rows(part: pandas.DataFrame, family: str, dtype: str, op: Op, group: Array) -> Rows:
    first = part.iloc[0]
    return Rows(
        family=family,
        gpu=first.gpu,
        engine=first.engine,
        dtype=dtype,
        kernel=first.kernel,
        group=group,
        op=op,
        seconds=part.latency_us.to_numpy() * 1e-6,
        index=part["index"].to_numpy(),
    )


def _gemm(table: pandas.DataFrame) -> Iterator[Rows]:
    for (_, _, dtype), part in table.groupby(["gpu", "engine", "dtype"]):
        m, n, k = (part[name].to_numpy() for name in "mnk")
        yield _rows(part, "gemm", dtype, Gemm(m, n, k, dtype), n * 1_000_000 + k)


def _attention(family: str) -> Callable[[pandas.DataFrame], Iterator[Rows]]:
    layout = ["heads", "kv_heads", "head_dim", "window", "dtype", "kv_dtype"]

    def read(table: pandas.DataFrame) -> Iterator[Rows]:
        for (_, _, *values), part in table.groupby(["gpu", "engine", *layout]):
            heads, kv_heads, head_dim, window, dtype, kv_dtype = values
            prefill = family == "attention_prefill"
            queries = part.q_len.to_numpy() if prefill else np.ones(len(part), dtype=np.int64)
            keys = queries if prefill else part.kv_len.to_numpy() + 1
            op = Attention(
                queries[:, None],
                keys[:, None],
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                value_dim=head_dim,
                sequences=part.batch.to_numpy()[:, None],
                window=int(window),
                dtype=dtype,
                kv_dtype=kv_dtype,
            )
            group = np.full(len(part), "|".join(map(str, values)))
            yield _rows(part, family, f"{dtype}/{kv_dtype}", op, group)

    return read


def _moe(table: pandas.DataFrame) -> Iterator[Rows]:
    layout = ["hidden", "inter", "experts", "topk", "tp", "ep"]
    for (_, _, _, dtype, routing, *values), part in table.groupby(
        ["gpu", "engine", "kernel", "dtype", "routing", *layout]
    ):
        hidden, inter, experts, topk, tp, ep = values
        compute, weight = MOE_FORMATS.get(dtype, (dtype, dtype))
        op = MoE(
            part.tokens.to_numpy(),
            hidden=hidden,
            inter=inter // tp,
            experts=experts,
            topk=topk,
            local_experts=experts // ep,
            dtype=compute,
            weight_dtype=weight,
            routing=routing,
            gated=not _runs_without_gate(part.iloc[0]),
        )
        group = np.full(len(part), f"{hidden}|{inter}|{experts}|{topk}")
        yield _rows(part, "moe", f"{dtype}/{routing}", op, group)


def _runs_without_gate(row: pandas.Series) -> bool:
    """Nemotron's experts have no gate. vLLM 0.24 measured them so; its 0.14 rows (A100) and SGLang's are gated."""
    layout = (row.hidden, row.inter, row.experts, row.topk)
    return row.engine == "vllm" and row.gpu != "a100-sxm" and layout in UNGATED


def _quantise(table: pandas.DataFrame) -> Iterator[Rows]:
    for (_, _, _, width), part in table.groupby(["gpu", "engine", "kernel", "k"]):
        op = quantise(part.m.to_numpy(), int(width))
        yield _rows(part, "quantise", "bf16", op, np.full(len(part), width))


def _collective(table: pandas.DataFrame) -> Iterator[Rows]:
    for (_, _, _, kind, gpus, _), part in table.groupby(["gpu", "engine", "kernel", "op", "gpus", "dtype"]):
        size = part.bytes.to_numpy()
        op = Collective(COLLECTIVES.get(kind, kind), size, int(gpus))
        yield _rows(part, "collective", f"{kind}/{gpus}", op, size)


_READERS: dict[str, Callable[[pandas.DataFrame], Iterator[Rows]]] = {
    "gemm": _gemm,
    "attention_prefill": _attention("attention_prefill"),
    "attention_decode": _attention("attention_decode"),
    "moe": _moe,
    "quantise": _quantise,
    "collective": _collective,
}
FILES = {family: f"{'quantize' if family == 'quantise' else family}.parquet" for family in _READERS}
