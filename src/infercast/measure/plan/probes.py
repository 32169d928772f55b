"""Small kernels that published tables hold only inside of others: KV writes, quantisers, attention, bare rates.

One table, ``probe``: ``op`` says what is done, ``by`` whose kernel does it (Triton's need no engine).
"""

from __future__ import annotations

from collections.abc import Iterator

from infercast.measure.case import Case, Shape
from infercast.measure.plan.gemm import LONGEST_FLOPS

# (key-value heads, width of a head) and tokens of writes; formats are the cache's.
WRITTEN = ((8, 128), (4, 128), (2, 64), (1, 128), (32, 128), (16, 256), (8, 64))
WRITTEN_TOKENS = (1, 4, 16, 64, 192, 512, 1024, 2048, 4096, 8192, 16384)
QUANTISED_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384)
QUANTISED_WIDTHS = (512, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 14336, 18432, 28672)
ENGINES = ("triton", "vllm")
# (heads, key-value heads, width) of attention; PyTorch's FlashAttention is version 2 and takes bf16 only.
LAYOUTS = ((32, 8, 128), (32, 32, 128), (8, 1, 128), (64, 8, 64), (28, 4, 128), (16, 2, 256))
PROMPTS = ((1, 64), (1, 256), (1, 1024), (1, 2048), (1, 4096), (1, 8192), (4, 512), (4, 2048), (16, 128), (16, 512))
DECODES = tuple((batch, length) for batch in (1, 4, 16, 64, 128) for length in (128, 1024, 4096, 16384))
MOST_KEYS = 1_100_000
LOOPS = {"mma_sync": (1000, 3000), "wgmma": (1500, 4500)}


def probe_cases() -> Iterator[Case]:
    """All of them, in no order."""
    for dtype in ("bf16", "fp8"):
        for heads, width in WRITTEN:
            yield from (_case("kv_write", by, dtype, rows, width, heads) for rows in WRITTEN_TOKENS for by in ENGINES)
    for op in ("quantise_token", "quantise_block"):
        for number, width in enumerate(QUANTISED_WIDTHS):
            rows_of = QUANTISED_ROWS[number % 2 :: 2]
            yield from (_case(op, by, "fp8", rows, width) for rows in rows_of for by in ENGINES)
    for heads, kv_heads, width in LAYOUTS:
        for by, dtype in (("triton", "bf16"), ("triton", "fp8"), ("flash2", "bf16"), ("cudnn", "bf16")):
            for batch, length in PROMPTS:
                flops = 2.0 * batch * heads * width * length * length
                shape = _shape("prompts", by, dtype, batch, width, heads) | {"kv_heads": kv_heads, "length": length}
                yield Case("probe", shape, min(flops, LONGEST_FLOPS))
            for batch, length in DECODES if by != "cudnn" else ():
                if batch * length <= MOST_KEYS:
                    shape = _shape("decode", by, dtype, batch, width, heads)
                    yield Case("probe", shape | {"kv_heads": kv_heads, "length": length})
    for op, loops_of in LOOPS.items():
        for dtype in ("bf16", "fp8"):
            yield from (_rate(op, dtype, loops) for loops in loops_of)


def _rate(op: str, dtype: str, loops: int) -> Case:
    """Heavy: at the power limit, and after a pause."""
    return Case("probe", _shape(op, "cuda", dtype, loops, 0, 1), 1e11)


def _case(op: str, by: str, dtype: str, rows: int, width: int, heads: int = 1) -> Case:
    return Case("probe", _shape(op, by, dtype, rows, width, heads))


def _shape(op: str, by: str, dtype: str, rows: int, width: int, heads: int) -> Shape:
    """With columns that do not matter left at what they are mostly."""
    return {
        "op": op,
        "by": by,
        "dtype": dtype,
        "rows": rows,
        "width": width,
        "heads": heads,
        "kv_heads": 0,
        "length": 0,
    }
