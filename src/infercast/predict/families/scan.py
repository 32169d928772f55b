"""Scans over the prompts of recurrent layers."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Scan
from infercast.ops.dtypes import tensor_rate_of
from infercast.ops.op import Quantity
from infercast.ops.recurrent import GATED_DELTA, KIMI_DELTA, MAMBA2
from infercast.predict.families.family import Ceiling, Family, Shape, Values
from infercast.predict.families.pipes import Array, Pipes, dram_seconds
from infercast.predict.physics.attention_batch import Lengths
from infercast.predict.physics.scan import SCAN_FEATURES, TRITON, Scanning, batch_of, single_of

if TYPE_CHECKING:
    from infercast.predict.profile import KernelProfile


def scan_kernel(op: Scan, gpu: Gpu, profile: KernelProfile) -> str:
    """Whose kernel scans these prompts on this GPU."""
    return op.kernel or profile.scans.get(gpu.kernels, {}).get(op.kind, TRITON)


def _variants(op: Scan, gpu: Gpu, profile: KernelProfile) -> tuple[str, ...]:
    """Nothing measured of another library stands for it: they take a batch apart in different ways."""
    return (f"{op.kind}/{scan_kernel(op, gpu, profile)}",)


def _pipes(op: Scan, gpu: Gpu) -> Pipes:
    """Products of chunks with themselves and with states, and tokens and states moved once."""
    return {"tensor": op.flops / gpu.dense_flops(tensor_rate_of(op.dtype)), "dram": dram_seconds(op, gpu)}


def _limits(op: Scan, gpu: Gpu) -> dict[str, Array]:
    tensor = np.ravel(op.least_flops) / gpu.dense_flops(tensor_rate_of(op.dtype))
    return {"tensor": tensor, "dram": np.ravel(dram_seconds(op, gpu))}


def _work(op: Scan, batch: Lengths) -> tuple[Quantity, Quantity]:
    """Products that no chunking saves; the states before, which lie in memory."""
    state = op.heads * op.key_dim * op.value_dim
    one = replace(op, queries=np.ones(1, dtype=np.int64), sequences=1)
    return 4.0 * state * batch.total(batch.queries), one.state_bytes * batch.total((batch.queries > 0) * 1.0)


def _ceiling_shape(op: Scan, gpu: Gpu) -> list[Any]:
    sequences = np.maximum(np.ravel(op.num_sequences), 1)
    blocks = np.log2(sequences * op.heads / gpu.sms)
    return [blocks, np.log2(np.maximum(np.ravel(op.most_chunks), 1)), np.log2(np.ravel(op.num_tokens) / sequences)]


def _shape(kind: str, value_dim: int, chunk: int) -> Shape:
    """Prompts of one length; one row an element where sizes are arrays."""

    def build(values: Values) -> Scan:
        lengths, batch = (each.reshape(-1, 1) for each in np.broadcast_arrays(values["q_len"], values["batch"]))
        names = ("heads", "key_heads", "key_dim", "value_dim", "chunk")
        sizes: dict[str, Any] = {name: int(values[name]) for name in names}
        return Scan(lengths, batch, kind=kind, dtype=values["dtype"], state_dtype=values["state_dtype"], **sizes)

    defaults = {"key_dim": 128, "value_dim": value_dim, "chunk": chunk, "dtype": "bf16", "state_dtype": "fp32"}
    return Shape(("batch", "q_len", "heads", "key_heads"), defaults, build)


SCAN = Family(
    name="scan",
    archive="recurrent",
    position=6,
    op=Scan,
    shapes={
        "gdn_scan": _shape(GATED_DELTA, 128, 64),
        "kda_scan": _shape(KIMI_DELTA, 128, 64),
        "mamba2_scan": _shape(MAMBA2, 64, 128),
    },
    step_sizes=("queries", "sequences"),
    sizes=batch_of,
    size_of_one=single_of,
    kind=attrgetter("kind", "kernel", "dtype"),
    core=Scanning,
    core_key=attrgetter("heads", "key_heads", "key_dim", "value_dim", "chunk", "state_dtype"),
    named=lambda op, variant: op if op.kernel else replace(op, kernel=variant.partition("/")[2]),
    features={"scan": SCAN_FEATURES},
    shares=("launch", "row", "chain", "rounds", "parallel", "dram", "state"),
    pipes=_pipes,
    limits=_limits,
    work=_work,
    variants=_variants,
    spread={"scan": 12.0},
    typical=lambda _: ("scan",),
    ceiling=Ceiling(
        features=("log_blocks", "log_chunks", "log_mean"), shape=_ceiling_shape, variant=attrgetter("kind")
    ),
)
