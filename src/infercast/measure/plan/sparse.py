"""Which kernels of sparse attention to measure: prompts behind prefixes of all lengths, and sequences that decode."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from infercast.measure.case import Case, Shape

Generator = np.random.Generator

INDEX_HEADS = (64, 32)
TOPK = (2048, 512)
# Heads of a GPU: FlashAttention takes any number, FlashMLA 64 and 128.
HEADS, PADDED_HEADS = (16, 8, 64, 128, 32), (64, 128)
# (heads, key-value heads, which are index heads too) of block-sparse attention, and its blocks.
GROUPED, BLOCKS = ((16, 1), (64, 4), (8, 1), (32, 2)), 16
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MOST_SCORES = 96_000_000
"""Scores of prompts are computed in parts that are no larger."""
MOST_KEYS = 2_000_000


def sparse_cases(each: int = 48) -> Iterator[Case]:
    """All kernels; ``each`` is how many shapes a layout of heads gets, prompts and decoding apart."""
    generator = np.random.default_rng(3)
    for heads in INDEX_HEADS:
        for _ in range(each):
            yield _case("index_scores", _prompts(generator), heads=heads)
            yield _case("index_scores_decode", _decodes(generator), heads=heads)
    for topk in TOPK:
        for _ in range(each):
            yield _case("top_k", _prompts(generator), topk=topk)
            yield _case("top_k_decode", _decodes(generator), topk=topk)
    for heads in HEADS:
        for number in range(each):
            lengths = _prompts(generator) if number % 2 else _decodes(generator)
            yield _case("mla", lengths, heads=heads, topk=TOPK[0])
    for heads in PADDED_HEADS:
        for number in range(each):
            lengths = _prompts(generator) if number % 4 == 1 else _decodes(generator)
            yield _case("mla_packed", lengths, heads=heads, topk=TOPK[0], kv_dtype="fp8")
            if number % 2:
                yield _case("mla_widened", _prompts(generator), heads=heads, topk=TOPK[0])
    for heads, kv_heads in GROUPED:
        group = {"heads": heads, "kv_heads": kv_heads, "topk": BLOCKS}
        for number in range(each // 2):
            yield _case("msa_scores", _prompts(generator), **group)
            yield _case("msa_choice", _prompts(generator), **group)
            yield _case("msa_decode_choice", _decodes(generator), **group)
            narrow = "fp8" if number % 4 == 3 else "bf16"
            yield _case("msa", _prompts(generator), **group, kv_dtype=narrow)
            yield _case("msa", _decodes(generator), **group, kv_dtype=narrow)


def _case(op: str, lengths: Shape, **layout: object) -> Case:
    """With columns that do not matter left at what they are mostly."""
    shape: Shape = {"op": op, "dtype": "bf16", "kv_dtype": "bf16", "heads": 0, "kv_heads": 1, "topk": 0}
    shape |= {**lengths, **layout}
    return Case("sparse", shape, _flops(shape))


def _flops(shape: Shape) -> float:
    """About as many products as heat the chip."""
    tokens: float = shape["batch"] * shape["q_len"]
    keys: float = shape["prefix"] + shape["q_len"] / 2
    heads: float = shape["heads"]
    if shape["op"].startswith("index_scores"):
        return 2.0 * heads * 128 * tokens * keys
    if shape["op"].startswith("mla"):
        return 2.0 * heads * (576 + 512) * tokens * min(keys, TOPK[0])
    if shape["op"] == "msa":
        return 4.0 * heads * 128 * tokens * min(keys, 128.0 * (BLOCKS + 1))
    return 16.0 * heads * tokens * keys if shape["op"] == "msa_scores" else 0.0


def _decodes(generator: Generator) -> Shape:
    """A batch of sequences with one new token each."""
    while True:
        batch = int(generator.choice(BATCHES)) if generator.random() < 0.8 else int(2 ** generator.uniform(0, 8))
        prefix = int(2 ** generator.uniform(6, 17.2))
        if batch * prefix <= MOST_KEYS:
            return {"batch": batch, "q_len": 1, "prefix": prefix}


def _prompts(generator: Generator) -> Shape:
    """A few prompts, or chunks of prompts whose beginning is cached."""
    while True:
        batch = int(generator.choice((1, 1, 1, 1, 2, 3, 4, 8)))
        q_len = int(2 ** generator.uniform(3, 13.1))
        prefix = int(2 ** generator.uniform(6, 16.5)) if generator.random() < 0.6 else 0
        tokens, keys = batch * q_len, batch * (q_len + prefix)
        if tokens <= 8_500 and tokens * keys <= MOST_SCORES:
            return {"batch": batch, "q_len": q_len, "prefix": prefix}
