"""Dense matrix products."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from infercast.hardware import Gpu, load_gpu
from infercast.ops import Gemm
from infercast.ops.dtypes import bytes_of, tensor_rate_of
from infercast.ops.elementwise import quantise
from infercast.ops.op import Quantity
from infercast.predict.families.family import Ceiling, Family, Shape
from infercast.predict.families.pipes import Array, Pipes, dram_seconds, product_limits, quantised_waves
from infercast.predict.identity import SWEEP, kernel_of
from infercast.predict.physics import cutlass_fp8, gemm

if TYPE_CHECKING:
    from infercast.predict.profile import KernelProfile

CUTLASS_FP8 = "gemm fp8 cutlass"
# Output tiles a library can choose from. Small ones waste less of a thin matrix and fill the chip sooner.
TILES = ((16, 64), (32, 64), (64, 64), (64, 128), (128, 128), (128, 256))
TILE = 128
"""Rows and columns of the usual one."""
COPIES = 6
"""Tables go round so many copies of the weights."""
USUAL = "usual"
"""The kernel that multiplies a format on most chips: cuBLAS, CUTLASS by the row, DeepGEMM by the block."""
SERVED = 9.0
"""Base-two logarithm of the n and k of products that models are made of: anchors are chosen for those."""


def _pipes(op: Gemm, gpu: Gpu) -> Pipes:
    """The best tile of the menu, against moving both operands and the result once."""
    rate = gpu.dense_flops(tensor_rate_of(op.dtype))
    best: Any = np.inf
    for rows, columns in TILES:
        blocks = op.batch * np.ceil(np.asarray(op.m) / rows) * np.ceil(np.asarray(op.n) / columns)
        flops = 2.0 * rows * columns * op.k * blocks
        best = np.minimum(best, flops / rate * quantised_waves(blocks, gpu.sms))
    return {"tensor": best, "dram": dram_seconds(op, gpu)}


def _work(op: Gemm, size: tuple[Any, Any, Any]) -> tuple[Quantity, Quantity]:
    m, n, k = size
    return 2.0 * op.batch * m * n * k, op.batch * bytes_of(op.weight_dtype or op.dtype) * n * k


def product_variant(dtype: str, kernel: str) -> str:
    """Products of a format that several kernels multiply are learned by kernel; the usual one needs no name."""
    return f"{dtype}/{kernel}" if kernel and kernel != USUAL else dtype


def _variants(op: Gemm, gpu: Gpu, profile: KernelProfile) -> tuple[str, ...]:
    if not gpu.supports(tensor_rate_of(op.dtype)) or op.dtype == "fp16":
        return ("bf16",)
    return tuple(dict.fromkeys((product_variant(op.dtype, kernel_of(op, gpu, profile.engine)), op.dtype)))


def _feature_set(gpu: str, engine: str, variant: str) -> str:
    """Products of a sweep in fp8 start from kernels that are known by name where a GPU has them."""
    is_known = (engine, variant) == (SWEEP, "fp8") and cutlass_fp8.is_known(Gemm(1, 1, 1, "fp8"), load_gpu(gpu))
    return CUTLASS_FP8 if is_known else "gemm"


def _worth_measuring(features: Array) -> Array:
    """Products that models are made of; all where there are none."""
    smaller = np.minimum(*(features[:, gemm.FEATURES.index(name)] for name in ("log_n", "log_k")))
    served = np.flatnonzero(smaller >= SERVED)
    return served if served.size else np.arange(len(features))


def _quantised(op: Gemm) -> Quantity | None:
    """Quantised products of published tables were timed with the quantising of their input."""
    widest = np.asarray(quantise(np.ravel(np.asarray(op.m)), 1).bytes_read) * np.ravel(np.asarray(op.k))
    return None if op.dtype == "bf16" else np.asarray(1.5 * widest)


def _ceiling_shape(op: Gemm, gpu: Gpu) -> list[Any]:
    m, n, k = (np.ravel(np.asarray(size, dtype=np.float64)) for size in (op.m, op.n, op.k))
    blocks = op.batch * np.ceil(m / TILE) * np.ceil(n / TILE)
    return [np.log2(m), np.log2(k), np.log2(blocks / gpu.sms), (n * k) % 64 == 0]


GEMM = Family(
    name="gemm",
    position=0,
    op=Gemm,
    shapes={
        "gemm": Shape(
            ("m", "n", "k"),
            {"dtype": "bf16", "weight_dtype": None},
            lambda values: Gemm(values["m"], values["n"], values["k"], values["dtype"], values["weight_dtype"]),
        )
    },
    step_sizes=("m",),
    sizes=gemm.sizes_of,
    size_of_one=lambda op: (op.m, op.n, op.k),
    kind=attrgetter("dtype", "weight_dtype", "out_dtype", "batch", "quantiser"),
    core=gemm.Products,
    swept_core=gemm.swept_products,
    timed_by=lambda op, engine: op if op.quantiser else replace(op, quantiser=engine),
    features={"gemm": gemm.FEATURES, CUTLASS_FP8: cutlass_fp8.FEATURES},
    feature_set=_feature_set,
    shares=("tensor", "l2", "latency", "dram", "store", "reduce", "launch", "quantise"),
    worth_measuring=_worth_measuring,
    pipes=_pipes,
    limits=lambda op, gpu: product_limits(op, gpu, op.bytes_read + op.bytes_written),
    work=_work,
    has_weights=True,
    throttled=("gemm",),
    variants=_variants,
    # The ratio overstates what memory bandwidth does to kernels whose operands are warm (H100 and H200).
    trust={"fp8": 0.75, "fp8_block": 0.75, "nvfp4": 0.75},
    between_kernels={"": (1.03, 0.5e-6), "fp8": (1.0, 0.0)},
    spread={"gemm": 3.7, "lm_head": 1.9},
    typical=lambda op: (f"gemm/{op.dtype}", "gemm"),
    ceiling=Ceiling(
        features=("log_m", "log_k", "log_rounds", "aligned"),
        shape=_ceiling_shape,
        variant=lambda op: op.dtype if op.dtype != "fp16" else "bf16",
        read_again=lambda op: COPIES * np.ravel(op.weight_bytes),
        beside=_quantised,
    ),
)
