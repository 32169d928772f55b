"""Measured latency / predicted latency on kernel tables, by family and GPU.

    pip install pandas pyarrow && python benchmarks/accuracy/kernel_tables.py DATA

DATA is a folder with gemm.parquet, attention_prefill.parquet, attention_decode.parquet, moe.parquet, quantize.parquet
and collective.parquet: one row a measured shape, columns `gpu`, `latency_us` and the shape.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas

from infercast.hardware import load_gpu
from infercast.ops import Attention, Collective, Gemm, MoE, Op
from infercast.ops.op import quantise
from infercast.predict.roofline import Roofline

COLLECTIVES = {"alltoall": "all_to_all"}
WEIGHT_ONLY = {"int4": "int4", "mxfp4": "mxfp4", "mxfp4_a8": "mxfp4"}


def gemm(rows: pandas.DataFrame) -> Iterator[tuple[np.ndarray, Op]]:
    for dtype, part in rows[(rows.n >= 512) & (rows.k >= 512)].groupby("dtype", observed=True):
        yield part.index, Gemm(part.m.to_numpy(), part.n.to_numpy(), part.k.to_numpy(), dtype)


def attention(rows: pandas.DataFrame) -> Iterator[tuple[np.ndarray, Op]]:
    keys = ["heads", "kv_heads", "head_dim", "window", "kv_dtype"]
    for (heads, kv_heads, head_dim, window, kv_dtype), part in rows.groupby(keys, observed=True):
        prefill = "q_len" in part
        queries = part.q_len.to_numpy() if prefill else np.ones(len(part), dtype=np.int64)
        total = queries if prefill else part.kv_len.to_numpy() + 1
        yield (
            part.index,
            Attention(
                queries[:, None],
                total[:, None],
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                value_dim=head_dim,
                window=int(window),
                sequences=part.batch.to_numpy()[:, None],
                kv_dtype="fp8" if "fp8" in kv_dtype else "bf16",
            ),
        )


def moe(rows: pandas.DataFrame) -> Iterator[tuple[np.ndarray, Op]]:
    keys = ["hidden", "inter", "experts", "topk", "tp", "dtype"]
    for (hidden, inter, experts, topk, tp, dtype), part in rows[rows.ep == 1].groupby(keys, observed=True):
        weight = WEIGHT_ONLY.get(dtype)
        compute = "bf16" if weight else dtype
        op = MoE(part.tokens.to_numpy(), hidden, inter // tp, experts, topk, dtype=compute, weight_dtype=weight)
        yield part.index, op


def quantize(rows: pandas.DataFrame) -> Iterator[tuple[np.ndarray, Op]]:
    for width, part in rows.groupby("k"):
        yield part.index, quantise(part.m.to_numpy(), int(width))


def collective(rows: pandas.DataFrame) -> Iterator[tuple[np.ndarray, Op]]:
    for (kind, gpus), part in rows.groupby(["op", "gpus"], observed=True):
        yield part.index, Collective(COLLECTIVES.get(kind, kind), part.bytes.to_numpy(), int(gpus))


TABLES = {
    "gemm": gemm,
    "attention_prefill": attention,
    "attention_decode": attention,
    "moe": moe,
    "quantize": quantize,
    "collective": collective,
}


def main(folder: Path) -> None:
    predictor = Roofline()
    print(f"{'table':18} {'gpu':10} {'rows':>8} {'mean':>7} {'median':>7} {'q10':>6} {'q50':>6} {'q90':>6}")
    for table, operators in TABLES.items():
        pooled = []
        for gpu, rows in pandas.read_parquet(folder / f"{table}.parquet").groupby("gpu", observed=True):
            parts = [
                rows.latency_us.to_numpy()[index] * 1e-6 / predictor.seconds(op, load_gpu(str(gpu)))
                for index, op in operators(rows.reset_index(drop=True))
            ]
            pooled.append(np.concatenate(parts))
            show(table, str(gpu), pooled[-1])
        show(table, "all", np.concatenate(pooled))


def show(table: str, gpu: str, ratio: np.ndarray) -> None:
    """One line: absolute percentage error of latency, and quantiles of measured / predicted."""
    error = np.abs(1 / ratio - 1)
    q10, q50, q90 = np.quantile(ratio, [0.1, 0.5, 0.9])
    print(
        f"{table:18} {gpu:10} {ratio.size:8} {error.mean():7.1%} {np.median(error):7.1%} "
        f"{q10:6.2f} {q50:6.2f} {q90:6.2f}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
