"""Which experts and memory-bound kernels to measure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from infercast.measure.case import Case

# (hidden, inter, experts, topk): spread over their logarithms; the last ones have a tuned configuration in vLLM.
EXPERTS = (
    (1024, 512, 32, 4), (1536, 512, 64, 6), (2048, 1024, 16, 2), (3072, 1408, 64, 6), (2560, 1536, 32, 4),
    (2880, 2880, 32, 4), (3072, 1024, 96, 8), (4096, 1536, 128, 8), (3072, 14336, 8, 2), (5120, 8192, 16, 1),
    (6144, 2048, 64, 4), (1024, 256, 128, 8), (2048, 512, 256, 8), (7168, 2048, 64, 8), (3584, 2560, 60, 4),
    (2560, 768, 128, 8), (4096, 768, 128, 8), (2048, 384, 128, 8), (4096, 6400, 16, 2), (6144, 16384, 8, 2),
    (5120, 1536, 160, 6), (2048, 1024, 64, 8), (4096, 1792, 72, 6), (1536, 768, 40, 8),
)  # fmt: skip
EXPERT_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 3072, 4096, 8192, 16384)
ROUTINGS = ("uniform", "balanced", "power_law_1.2")
FP8_EXPERTS = 8
MOST_ROWS = 131_072

# Each width of each expression is compiled by itself, which takes longer than measuring it: few widths, many rows.
WIDTHS = {
    "norm": (1024, 2048, 2880, 4096, 6144, 8192),
    "add_norm": (1024, 2048, 2880, 4096, 5120, 8192),
    "norm_quant": (2048, 4096, 8192),
    "add_norm_quant": (1536, 3072, 4096, 6144),
    "quant": (1024, 4096, 14336, 8192),
    "add": (2048, 5120),
    "silu_mul": (768, 3072, 6144, 9728, 14336, 28672),
    "gelu_mul": (2560, 9216, 15360),
    "silu_mul_quant": (1536, 6144, 14336, 18944),
    "embedding": (1024, 4096, 8192),
}
ROWS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384)
# (query heads, key heads, width of a head) that are rotated or normed.
ROTATED = ((32, 8, 128), (16, 8, 128), (64, 8, 128), (32, 32, 96), (14, 2, 64), (8, 4, 256))
# (heads, width) whose keys and values are written.
WRITTEN = ((8, 128), (4, 128), (2, 64), (32, 96), (4, 256), (1, 128), (16, 128))
VOCABULARIES = (32_000, 51_200, 102_400, 128_256, 151_936, 201_088, 262_144)


def expert_cases() -> Iterator[Case]:
    """Fused experts, from sorting the tokens to adding up their results."""
    for number, (hidden, inter, experts, topk) in enumerate(EXPERTS):
        for dtype in ("bf16", "fp8") if number % 3 == 0 else ("bf16",):
            for place, tokens in enumerate(EXPERT_TOKENS):
                if tokens * topk > MOST_ROWS:
                    continue
                routing = ROUTINGS[(place + number) % 3] if place % 2 else ROUTINGS[0]
                shape = {"dtype": dtype, "tokens": tokens, "hidden": hidden, "inter": inter}
                shape |= {"experts": experts, "topk": topk, "routing": routing}
                yield Case("moe", shape, 6.0 * tokens * topk * hidden * inter, dtype)


def elementwise_cases() -> Iterator[Case]:
    """Norms, activations, rotations, writes, look-ups, quantising and sampling."""
    generator = np.random.default_rng(2)
    for op, widths in WIDTHS.items():
        for width in widths:
            for rows in ROWS:
                yield _elementwise(op, rows, width, 1, generator)
    for heads, kv_heads, width in ROTATED:
        for rows in ROWS:
            yield _elementwise("rope", rows, width, heads + kv_heads, generator)
            yield _elementwise("head_norm", rows, width, heads, generator)
    for heads, width in WRITTEN:
        for rows in ROWS:
            yield _elementwise("kv_write", rows, width, heads, generator)
    for vocabulary in VOCABULARIES:
        for rows in ROWS:
            if rows <= 256:
                yield _elementwise("to_float", rows, vocabulary, 1, generator)
                yield _elementwise("sample", rows, vocabulary, 1, generator)
    for experts, topk in ((8, 2), (32, 4), (64, 6), (128, 8), (256, 8), (60, 4)):
        for rows in ROWS:
            yield _elementwise("topk", rows, experts, topk, generator)
    for megabytes in (1, 4, 16, 64, 256, 1024):
        yield _elementwise("copy", 1, megabytes * 2**19, 1, generator)


def _elementwise(op: str, rows: int, width: int, heads: int, generator: np.random.Generator) -> Case:
    """Some row counts move off the round numbers."""
    if rows > 64 and generator.random() < 0.3:
        rows = int(rows * generator.uniform(0.8, 1.2))
    return Case("elementwise", {"dtype": "bf16", "op": op, "rows": rows, "width": width, "heads": heads})
