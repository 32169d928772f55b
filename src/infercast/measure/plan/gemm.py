"""Which matrix products to measure: weight shapes spread evenly over their logarithms, tied to no model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from infercast.measure.case import Case

# Tokens of a step: graph sizes and their neighbours while small, tile edges and beyond when large.
TOKENS = (
    1, 2, 3, 4, 5, 8, 12, 16, 17, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 144, 160, 192, 208, 224, 256, 272, 320,
    384, 400, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192,
    12288, 16384,
)  # fmt: skip
# How many weight shapes of a format, and one in how many token counts of each.
FORMATS = {"bf16": (800, 2), "fp8": (450, 2), "fp16": (24, 4), "tf32": (16, 6)}
LONGEST_FLOPS = 8e12
"""About ten milliseconds on a large GPU; longer products run at the same rate."""
LARGEST_WEIGHT = 2**31
GOLDEN = 0.7548776662466927, 0.5698402909980532
"""Steps of the two-dimensional additive sequence whose every beginning is spread evenly (Roberts, 2018)."""


def gemm_cases() -> Iterator[Case]:
    """All products of a sweep; whatever order they run in."""
    generator = np.random.default_rng(0)
    for dtype, (pairs, thinning) in FORMATS.items():
        for number, (n, k) in enumerate(weight_shapes(pairs)):
            for place, tokens in enumerate(TOKENS):
                if (place + number) % thinning:
                    continue
                # Every other count moves to a place between: a model of tiles must not learn round numbers only.
                moves = tokens > 64 and generator.random() < 0.4
                m = int(tokens * (1 + 0.2 * generator.random())) if moves else tokens
                if 2.0 * m * n * k <= LONGEST_FLOPS and m * n <= LARGEST_WEIGHT:
                    yield Case("gemm", {"dtype": dtype, "m": m, "n": n, "k": k}, 2.0 * m * n * k)


def weight_shapes(count: int) -> Iterator[tuple[int, int]]:
    """(n, k) pairs: mostly layers, with some routers (small n) and vocabularies (large n) among them."""
    found = 0
    for index in range(1, 100 * count):
        first, second = ((0.5 + index * step) % 1.0 for step in GOLDEN)
        kind = index % 12
        if kind == 0:
            low, high, multiple = 16, 512, 8
        elif kind == 1:
            low, high, multiple = 32_000, 262_144, 64
        else:
            low, high, multiple = 384, 65_536, 64 if index % 3 else 256
        n = _round(low * (high / low) ** first, multiple)
        widest = 8_192 if kind < 2 else 32_768
        k = _round(256 * (widest / 256) ** second, multiple if kind > 1 else 128)
        if n * k <= LARGEST_WEIGHT and n * k >= 2**15:
            found += 1
            yield n, k
        if found == count:
            return


def _round(value: float, multiple: int) -> int:
    return max(1, round(value / multiple)) * multiple
