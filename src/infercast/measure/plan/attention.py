"""Which attention kernels to measure: head layouts, prompts with or without a cached prefix, decoding, both at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from infercast.measure.case import Case, Shape

Generator = np.random.Generator

# (heads, kv_heads, head_dim): groups of 1 to 16 queries a key, few and many heads, all head sizes.
LAYOUTS = (
    (32, 8, 128), (16, 8, 128), (28, 4, 128), (64, 8, 128), (40, 8, 128), (32, 4, 128), (8, 1, 128), (32, 32, 128),
    (16, 16, 128), (48, 8, 128), (8, 4, 128), (24, 8, 128), (16, 2, 128), (64, 4, 128), (20, 20, 128), (4, 1, 128),
    (14, 2, 64), (32, 8, 64), (64, 8, 64), (16, 16, 64), (8, 2, 64), (24, 4, 64), (71, 1, 64),
    (32, 8, 96), (32, 32, 96), (8, 4, 256), (16, 8, 256), (4, 1, 256), (16, 16, 256), (10, 1, 256), (32, 16, 256),
    (1, 1, 128), (4, 4, 128), (12, 12, 128), (40, 40, 128), (4, 2, 128), (32, 16, 128), (12, 4, 128), (16, 4, 128),
    (8, 2, 128), (10, 2, 128), (5, 1, 128), (6, 1, 128), (12, 2, 128), (24, 4, 128), (7, 1, 128), (14, 2, 128),
    (56, 8, 128), (16, 1, 128), (32, 2, 128), (96, 8, 128), (24, 2, 128), (128, 8, 128),
    (4, 4, 64), (12, 12, 64), (32, 32, 64), (8, 4, 64), (16, 8, 64), (7, 1, 64), (8, 1, 64), (16, 2, 64), (16, 4, 64),
    (9, 3, 64), (25, 5, 64), (48, 8, 64), (8, 8, 96), (16, 16, 96), (8, 2, 96), (24, 8, 96), (8, 4, 96), (20, 5, 96),
    (4, 4, 256), (8, 8, 256), (4, 2, 256), (8, 2, 256), (16, 4, 256), (8, 1, 256), (24, 4, 256), (2, 1, 256),
    (32, 32, 80), (16, 16, 80), (32, 8, 80),
)  # fmt: skip
WINDOWS = (0, 0, 0, 0, 128, 512, 1024, 4096)
MOST_KEYS = 1_000_000
# (heads, latent width, rotary width) of multi-head latent attention.
LATENT = tuple((heads, 512, 64) for heads in (16, 128, 32, 64, 8, 20, 4, 12, 24, 40, 48, 96))
# (heads, query-key width, value width) of the same attention over prompts.
EXPANDED = tuple((heads, 192, 128) for heads in (16, 32, 64, 128, 8, 20, 4, 12, 24, 40, 48, 96))
PLAIN: Shape = {"window": 0, "dtype": "bf16", "kv_dtype": "bf16"}
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)


def attention_cases(each: int = 66) -> Iterator[Case]:
    """All attention kernels of a sweep; ``each`` is how many of each kind a head layout gets."""
    generator = np.random.default_rng(1)
    for heads, kv_heads, head_dim in LAYOUTS:
        layout = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_dim": head_dim, "latent": False}
        for number in range(each):
            extra: Shape = {"dtype": "bf16", "kv_dtype": "fp8" if number % 9 == 8 else "bf16"}
            window = {"window": int(generator.choice(WINDOWS))}
            yield _case("attention_decode", {**_decodes(generator), **layout, **window, **extra})
            yield _case("attention_prefill", {**_prompts(generator), **layout, **window, **extra})
            if number % 3 == 0:
                both = {**_prompts(generator), "decodes": (few := _decodes(generator))["batch"]}
                both |= {"kv_len": few["kv_len"], "sigma": few["sigma"]}
                yield _case("attention_mixed", {**both, **layout, **window, "dtype": "bf16", "kv_dtype": "bf16"})
    for heads, latent, rotary in LATENT:
        layout = {"heads": heads, "kv_heads": 1, "head_dim": latent + rotary, "value_dim": latent, "latent": True}
        for _ in range(each):
            yield _case("attention_decode", {**_decodes(generator), **layout, **PLAIN})
    for heads, head_dim, value_dim in (*EXPANDED, *EXPANDED):
        layout = {"heads": heads, "kv_heads": heads, "head_dim": head_dim, "value_dim": value_dim, "latent": False}
        for _ in range(each // 2):
            yield _case("attention_prefill", {**_prompts(generator), **layout, **PLAIN})


def _case(family: str, shape: Shape) -> Case:
    """With the products of all query-key pairs, windows and causality left aside where that is small change."""
    queries, prefix = shape.get("q_len", 1), shape.get("prefix", shape.get("kv_len", 0))
    batch = shape["batch"]
    pairs = batch * queries * (prefix + queries / 2)
    if shape["window"]:
        pairs = min(pairs, batch * queries * shape["window"])
    return Case(family, shape, 2.0 * shape["heads"] * (shape["head_dim"] + shape["value_dim"]) * pairs)


def _decodes(generator: Generator) -> Shape:
    """A batch of sequences with one new token each."""
    while True:
        batch = int(generator.choice(BATCHES)) if generator.random() < 0.7 else int(2 ** generator.uniform(0, 9))
        kv_len = int(2 ** generator.uniform(4, 17))
        if batch * kv_len <= MOST_KEYS:
            return {"batch": batch, "kv_len": kv_len, "sigma": float(generator.choice((0.0, 0.0, 0.5, 1.0)))}


def _prompts(generator: Generator) -> Shape:
    """A few prompts, or chunks of prompts whose beginning is cached."""
    while True:
        batch = int(generator.choice((1, 1, 1, 2, 3, 4, 5, 8, 16, 32)))
        q_len = int(2 ** generator.uniform(2, 14.1))
        prefix = int(2 ** generator.uniform(5, 15.5)) if generator.random() < 0.4 else 0
        if batch * q_len <= 16_500 and batch * prefix <= 131_072:
            return {"batch": batch, "q_len": q_len, "prefix": prefix}
