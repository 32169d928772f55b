"""Estimates a second with the learned predictor on one core: single calls, a thousand and a million shapes at once.

Shapes are drawn anew for every measurement, so nothing is remembered. Processor time, best of three. First the
public call with sizes by name; the others ask the predictor. Of a million shapes as they are drawn here half are
different for decode, and some ten thousand for prompts, experts and norms; equal ones are estimated once.

    python benchmarks/speed/kernel_estimates.py [kernels.npz]
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np

import infercast
from infercast.hardware import load_gpu
from infercast.ops import Attention, Collective, Gemm, MoE, Op
from infercast.ops.op import norm
from infercast.predict.learned import make_predictor

SINGLE, RUNS = 2000, 3
HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128, "value_dim": 128}
GPU = load_gpu("h200-sxm")
PREDICTOR = make_predictor(sys.argv[1] if len(sys.argv) > 1 else "learned")
RANDOM = np.random.default_rng(0)


def sizes(count: int, low: float, high: float, step: int = 1) -> np.ndarray:
    """Whole numbers, evenly spread over their logarithm."""
    return step * np.exp2(RANDOM.uniform(low, high, count)).astype(int)


def products(count: int) -> tuple[np.ndarray, ...]:
    """m up to 16,384, n up to 65,536, k up to 32,768."""
    return sizes(count, 0, 14), sizes(count, 3, 12, 16), sizes(count, 3, 11, 16)


# How a family's operators are made of random sizes: many at once, or one by one.
FAMILIES: dict[str, Callable[[int], Op]] = {
    "gemm bf16": lambda count: Gemm(*products(count)),
    "gemm fp8": lambda count: Gemm(*products(count), dtype="fp8"),
    "decode": lambda count: Attention(
        np.ones((count, 1), dtype=int), sizes(count, 5, 15)[:, None], sequences=sizes(count, 0, 8)[:, None], **HEADS
    ),
    "prefill": lambda count: Attention(lengths := sizes(count, 4, 14)[:, None], lengths, **HEADS),
    "experts": lambda count: MoE(sizes(count, 0, 13), 2048, 768, 128, 8),
    "norm": lambda count: norm(sizes(count, 0, 13), 4096, residual=True),
    "all-reduce": lambda count: Collective("all_reduce", sizes(count, 10, 28), 8),
}


def best_seconds(make: Callable[[], list], estimate: Callable[..., object]) -> float:
    """Processor seconds to estimate all operators, making them not counted."""
    times = []
    for _ in range(RUNS):
        operators = make()
        start = time.process_time()
        for op in operators:
            estimate(op)
        times.append(time.process_time() - start)
    return min(times)


def single(family: str) -> list[Op]:
    """Operators one by one, with plain integers where the family has them."""
    if family.startswith("gemm"):
        rows = zip(*(each.tolist() for each in products(SINGLE)), strict=True)
        return [Gemm(*row, dtype=family.split()[1]) for row in rows]
    return [FAMILIES[family](1) for _ in range(SINGLE // 10)]


def public_rows(**columns: np.ndarray | int) -> list[dict[str, int]]:
    """Sizes by name of single kernels."""
    lists = [each.tolist() if isinstance(each, np.ndarray) else [each] * SINGLE for each in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


LAYOUT = {name: HEADS[name] for name in ("heads", "kv_heads", "head_dim")}
PUBLIC: dict[str, Callable[[], list[dict[str, int]]]] = {
    "gemm": lambda: public_rows(**dict(zip("mnk", products(SINGLE), strict=True))),
    "decode": lambda: public_rows(batch=sizes(SINGLE, 0, 8), kv_len=sizes(SINGLE, 5, 15), **LAYOUT),
    "prefill": lambda: public_rows(batch=1, q_len=sizes(SINGLE, 4, 14), **LAYOUT),
    "moe": lambda: public_rows(tokens=sizes(SINGLE, 0, 13), hidden=2048, inter=768, experts=128, topk=8),
    "norm": lambda: public_rows(rows=sizes(SINGLE, 0, 13), width=4096),
    "all_reduce": lambda: public_rows(bytes=sizes(SINGLE, 10, 28), gpus=8),
}

results: dict[str, dict[str, float]] = {}
print(f"{'family':12} {'one estimate':>12} {'1,000 at once':>15} {'1,000,000 at once':>19}")
for family, make_rows in PUBLIC.items():

    def estimate_publicly(row: dict[str, int], family: str = family) -> object:
        return infercast.estimate(family, GPU, predictor=PREDICTOR, **row)

    estimate_publicly(make_rows()[0])
    public = best_seconds(make_rows, estimate_publicly) / SINGLE
    results[f"infercast.estimate {family}"] = {"one_us": 1e6 * public}
    print(f"{'estimate(' + family + ')':18} {public * 1e6:6.1f} us")
million = best_seconds(
    lambda: [dict(zip("mnk", products(1_000_000), strict=True))],
    lambda row: infercast.estimate("gemm", GPU, predictor=PREDICTOR, **row),
)
results["infercast.estimate gemm"]["1000000_at_once_per_s"] = 1_000_000 / million
print(f"{'estimate(gemm)':12} {1 / million:46.2f} M a s")
for family, make in FAMILIES.items():
    PREDICTOR.estimate(make(1), GPU)
    operators = single(family)
    one = best_seconds(lambda family=family: single(family), lambda op: PREDICTOR.estimate(op, GPU)) / len(operators)
    results[family] = {"one_us": 1e6 * one}
    cells = [f"{one * 1e6:9.1f} us"]
    for count in (1000, 1_000_000):
        seconds = best_seconds(lambda make=make, count=count: [make(count)], lambda op: PREDICTOR.seconds(op, GPU))
        results[family][f"{count}_at_once_per_s"] = count / seconds
        cells.append(f"{count / seconds / 1e6:8.2f} M a s")
    print(f"{family:12} {cells[0]:>12} {cells[1]:>15} {cells[2]:>19}")
print(json.dumps(results))
