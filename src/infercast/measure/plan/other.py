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
    (2304, 896, 128, 8), (2048, 1280, 64, 6), (4608, 12288, 8, 2), (2880, 1440, 128, 4), (4096, 512, 512, 10),
    (2048, 1536, 48, 4), (1024, 1024, 24, 2), (3584, 896, 96, 6), (5120, 3072, 32, 2), (7168, 512, 128, 8),
    (6144, 2560, 160, 8), (4608, 1152, 80, 4), (2304, 640, 144, 8), (3072, 7168, 16, 2), (1280, 384, 192, 6),
    (8192, 1024, 32, 4), (2560, 2048, 20, 1), (5120, 768, 256, 8), (3840, 1920, 56, 5), (4096, 3584, 16, 4),
)  # fmt: skip
EXPERT_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 3072, 4096, 8192, 16384)
ROUTINGS = ("uniform", "balanced", "power_law_1.2")
MOST_ROWS = 131_072

# Each width of each expression is compiled by itself; every other one takes the even places of the rows below.
WIDTHS = {
    "norm": (768, 896, 1024, 1536, 2048, 2560, 2880, 3584, 4096, 5120, 6144, 7168, 8192),
    "add_norm": (768, 896, 1024, 1280, 1536, 2048, 2304, 2560, 2880, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 12288),
    "norm_quant": (1024, 1536, 2048, 3072, 4096, 5120, 7168, 8192),
    "add_norm_quant": (1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192),
    "quant": (1024, 2048, 3072, 4096, 5120, 8192, 14336, 28672),
    "add": (1024, 2048, 4096, 5120, 7168),
    "silu_mul": (768, 1408, 2048, 2816, 3072, 4096, 4864, 6144, 7168, 8192, 9728, 11008, 12288, 14336, 18944, 28672),
    "gelu_mul": (2560, 4096, 6912, 9216, 15360, 24576),
    "silu_mul_quant": (1536, 3072, 4096, 6144, 9728, 11008, 14336, 18944, 28672),
    "embedding": (1024, 2048, 4096, 5120, 8192),
}
ROWS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384)
# (query heads, key heads, width of a head) that are rotated or normed.
ROTATED = (
    (32, 8, 128), (16, 8, 128), (64, 8, 128), (32, 32, 96), (14, 2, 64), (8, 4, 256), (28, 4, 128), (32, 4, 128),
    (64, 8, 64), (16, 16, 128), (8, 1, 128), (32, 16, 256), (40, 8, 128), (16, 4, 64), (24, 8, 64), (48, 8, 96),
)  # fmt: skip
# Heads whose last 64 of 192 numbers are rotated, with one key for all of them.
LATENT_HEADS = (16, 128, 8, 32, 64)
# (heads, width) whose keys and values are written.
WRITTEN = ((8, 128), (4, 128), (2, 64), (32, 96), (4, 256), (1, 128), (16, 128), (8, 64), (32, 128), (16, 256))
VOCABULARIES = (32_000, 51_200, 102_400, 128_256, 151_936, 201_088, 262_144)
MOST_SAMPLED = 256
# (experts, experts of a token) of routers.
ROUTED = ((8, 2), (16, 1), (32, 4), (60, 4), (64, 6), (64, 8), (128, 8), (128, 4), (160, 6), (256, 8))
Named = tuple[str, int, int, int]
"""Operation, rows, width, heads."""


def expert_cases() -> Iterator[Case]:
    """Fused experts, from sorting the tokens to adding up their results."""
    for number, (hidden, inter, experts, topk) in enumerate(EXPERTS):
        for dtype in ("bf16", "fp8") if number % 2 == 0 else ("bf16",):
            for place, tokens in enumerate(EXPERT_TOKENS):
                if (place + number) % 2 or tokens * topk > MOST_ROWS:
                    continue
                routing = ROUTINGS[(place // 2 + number) % 3] if place % 4 > 1 else ROUTINGS[0]
                shape = {"dtype": dtype, "tokens": tokens, "hidden": hidden, "inter": inter}
                shape |= {"experts": experts, "topk": topk, "routing": routing}
                yield Case("moe", shape, 6.0 * tokens * topk * hidden * inter)


def elementwise_cases() -> Iterator[Case]:
    """Norms, activations, rotations, writes, look-ups, quantising and sampling; some row counts off the round ones."""
    generator = np.random.default_rng(2)
    for op, rows, width, heads in (*_by_width(), *_by_heads(), *_by_vocabulary(), *_by_experts(), *_copies()):
        moves = rows > 64 and generator.random() < 0.3
        count = int(rows * generator.uniform(0.8, 1.2)) if moves else rows
        yield Case("elementwise", {"dtype": "bf16", "op": op, "rows": count, "width": width, "heads": heads})


def _by_width() -> Iterator[Named]:
    for op, widths in WIDTHS.items():
        for number, width in enumerate(widths):
            yield from ((op, rows, width, 1) for rows in ROWS[number % 2 :: 2])


def _by_heads() -> Iterator[Named]:
    for number, (heads, kv_heads, width) in enumerate(ROTATED):
        for rows in ROWS[number % 2 :: 2]:
            yield "rope", rows, width, heads + kv_heads
            yield "head_norm", rows, width, heads
    for number, heads in enumerate(LATENT_HEADS):
        yield from (("latent_rope", rows, 192, heads) for rows in ROWS[number % 2 :: 2])
    for number, (heads, width) in enumerate(WRITTEN):
        yield from (("kv_write", rows, width, heads) for rows in ROWS[number % 2 :: 2])


def _by_vocabulary() -> Iterator[Named]:
    """What happens to logits; no step samples more than a few hundred rows."""
    for vocabulary in VOCABULARIES:
        for rows in ROWS:
            if rows <= MOST_SAMPLED:
                yield "to_float", rows, vocabulary, 1
                yield "sample", rows, vocabulary, 1


def _by_experts() -> Iterator[Named]:
    """Choosing experts: their number in place of a width, how many each token goes to in place of heads."""
    for number, (experts, topk) in enumerate(ROUTED):
        yield from (("topk", rows, experts, topk) for rows in ROWS[number % 2 :: 2])


def _copies() -> Iterator[Named]:
    yield from (("copy", 1, megabytes * 2**19, 1) for megabytes in (1, 4, 16, 64, 256, 1024))
