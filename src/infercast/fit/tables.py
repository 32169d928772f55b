"""Measured kernel latencies as operators: one parquet file a family, one row a measured shape.

Common columns are ``gpu``, ``engine``, ``engine_version`` and ``latency_us``; the others say the shape. Rows that share
everything that is not an array in an operator are read as one operator, and a *group* names the rows that must never
be split between fitting and testing: one (n, k) pair, one head layout, one expert layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from infercast.fit.checks import in_microseconds, read_checked
from infercast.fit.expert_runs import takes_whole_tokens
from infercast.fit.recurrent_tables import RECURRENT_FILES, read_recurrent
from infercast.fit.repeats import merge_repeats
from infercast.fit.rows import Rows
from infercast.fit.sparse_modules import MODULE_FILES, read_module
from infercast.fit.sparse_tables import SPARSE_FILES, read_sparse
from infercast.hardware import load_gpu
from infercast.ops import Attention, Collective, Gemm, MoE, Op
from infercast.ops.elementwise import quantise
from infercast.predict.identity import expert_kernel_named, kernel_named, kernel_of
from infercast.predict.physics.expert_routing import WHOLE

Array = npt.NDArray[Any]
Part = dict[str, Array]
"""Some rows of a table, column by column."""

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


def read_table(path: Path, family: str) -> Iterator[Rows]:
    """All rows of one file, operator by operator."""
    if family in SPARSE_FILES:
        yield from read_sparse(path, family)
        return
    if family in RECURRENT_FILES:
        yield from read_recurrent(path, family)
        return
    if family in MODULE_FILES:
        yield from read_module(path, family)
        return
    table = read_checked(path, COLUMNS[family], MOE_FORMATS if family == "moe" else ())
    if "kernel" not in table:
        table["kernel"] = ""
    table["index"] = np.arange(len(table))
    checked = in_microseconds(path, _READERS[family](table))
    if family == "collective":
        # Each row is looked at before it disappears in a median.
        for _ in checked:
            pass
        checked = _collective(merge_repeats(table))
    yield from checked


def _parts(table: pandas.DataFrame, *columns: str) -> Iterator[Part]:
    """Rows that share GPU, engine and the values of these columns, in the order of those values."""
    number = table.groupby(["gpu", "engine", *columns]).ngroup().to_numpy()
    order = np.argsort(number, kind="stable")
    arrays = {name: table[name].to_numpy()[order] for name in table}
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
        yield {name: values[start:stop] for name, values in arrays.items()}


def _rows(part: Part, family: str, dtype: str, op: Op, group: Array, kernel: str | None = None) -> Rows:
    return Rows(
        family=family,
        gpu=part["gpu"][0],
        engine=part["engine"][0],
        dtype=dtype,
        kernel=part["kernel"][0] if kernel is None else kernel,
        group=group,
        op=op,
        seconds=part["latency_us"] * 1e-6,
        index=part["index"],
    )


def _gemm(table: pandas.DataFrame) -> Iterator[Rows]:
    for part in _parts(table, "dtype", "kernel"):
        m, n, k = (part[name] for name in "mnk")
        dtype = part["dtype"][0]
        op = Gemm(m, n, k, dtype, quantiser=part["engine"][0])
        named = kernel_named("gemm", part["kernel"][0])
        kernel = named or kernel_of(op, load_gpu(part["gpu"][0]), part["engine"][0])
        yield _rows(part, "gemm", dtype, op, n * 1_000_000 + k, kernel)


def _attention(family: str) -> Callable[[pandas.DataFrame], Iterator[Rows]]:
    layout = ("heads", "kv_heads", "head_dim", "window", "dtype", "kv_dtype")
    prefill = family == "attention_prefill"

    def read(table: pandas.DataFrame) -> Iterator[Rows]:
        # A prompt of one token is run by the kernel that decodes, so that it is an operator of its own.
        table["decodes"] = table.q_len == 1 if prefill else True
        for part in _parts(table, *layout, "kernel", "decodes"):
            heads, kv_heads, head_dim, window, dtype, kv_dtype = values = [part[name][0] for name in layout]
            queries = part["q_len"] if prefill else np.ones(len(part["batch"]), dtype=np.int64)
            keys = queries if prefill else part["kv_len"] + 1
            op = Attention(
                queries[:, None],
                keys[:, None],
                heads=int(heads),
                kv_heads=int(kv_heads),
                head_dim=int(head_dim),
                value_dim=int(head_dim),
                sequences=part["batch"][:, None],
                window=int(window),
                dtype=dtype,
                kv_dtype=kv_dtype,
                kernel=kernel_named("attention", part["kernel"][0]),
            )
            group = np.full(len(queries), "|".join(map(str, values)))
            version = str(part["engine_version"][0]) if "engine_version" in part else ""
            kernel = kernel_of(op, load_gpu(part["gpu"][0]), part["engine"][0], version)
            yield _rows(part, family, f"{dtype}/{kv_dtype}", replace(op, kernel=kernel), group, kernel)

    return read


def _moe(table: pandas.DataFrame) -> Iterator[Rows]:
    layout = ("hidden", "inter", "experts", "topk", "tp", "ep")
    table["whole"] = takes_whole_tokens(table)
    for part in _parts(table, "kernel", "dtype", "routing", *layout, "whole"):
        hidden, inter, experts, topk, tp, ep = (int(part[name][0]) for name in layout)
        dtype, routing = part["dtype"][0], part["routing"][0]
        compute, weight = MOE_FORMATS.get(dtype, (dtype, dtype))
        op = MoE(
            part["tokens"],
            hidden=hidden,
            inter=inter // tp,
            experts=experts,
            topk=topk,
            local_experts=experts // ep,
            dtype=compute,
            weight_dtype=weight,
            routing=f"{routing}{WHOLE}" if part["whole"][0] else routing,
            gated=not _runs_without_gate(part),
            kernel=expert_kernel_named(part["kernel"][0]),
        )
        group = np.full(len(part["tokens"]), f"{hidden}|{inter}|{experts}|{topk}")
        yield _rows(part, "moe", f"{dtype}/{routing}", op, group)


def _runs_without_gate(part: Part) -> bool:
    """Nemotron's experts have no gate. vLLM 0.24 measured them so; its 0.14 rows (A100) and SGLang's are gated.

    TensorRT-LLM's say so in the kernel's name.
    """
    if part["engine"][0] == "trtllm":
        return "nongated" in part["kernel"][0]
    layout = tuple(int(part[name][0]) for name in ("hidden", "inter", "experts", "topk"))
    return part["engine"][0] == "vllm" and part["gpu"][0] != "a100-sxm" and layout in UNGATED


def _quantise(table: pandas.DataFrame) -> Iterator[Rows]:
    for part in _parts(table, "kernel", "k"):
        width = int(part["k"][0])
        yield _rows(part, "quantise", "bf16", quantise(part["m"], width), np.full(len(part["m"]), width))


def _collective(table: pandas.DataFrame) -> Iterator[Rows]:
    for part in _parts(table, "kernel", "op", "gpus"):
        kind, gpus, size = part["op"][0], int(part["gpus"][0]), part["bytes"]
        op = Collective(COLLECTIVES.get(kind, kind), size, gpus, library=part["engine"][0])
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
FILES |= {**SPARSE_FILES, **MODULE_FILES, **RECURRENT_FILES}
