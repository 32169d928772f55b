"""Choose the shapes that `infercast measure` runs, and write data/lab/shapes.json.gz.

    PYTHONPATH=src python benchmarks/measure/choose_shapes.py

Grids of sizes are in shapes.toml beside it; what lies between them is drawn, the same each time.
"""

from __future__ import annotations

import gzip
import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from infercast.lab.measure.rows import SHAPES, Case, Shape, flops_of

Generator = np.random.Generator
GRIDS = tomllib.loads(Path(__file__).with_name("shapes.toml").read_text(encoding="utf-8"))
GEMM, ATTENTION, MOE, ELEMENTWISE, RECURRENT_GRID, SPARSE = (
    GRIDS[name] for name in ("gemm", "attention", "moe", "elementwise", "recurrent", "sparse")
)

# Which attention kernels to measure: head layouts, prompts with or without a cached prefix, decoding, both at once.

ATTENTION_SHAPES, SPARSE_SHAPES = 66, 48  # of each kind of kernel, for each layout of heads
MOST_KEYS = 1_000_000
LATENT, ROTARY = 512, 64
EXPANDED_KEY, EXPANDED_VALUE = 192, 128
PLAIN: Shape = {"window": 0, "dtype": "bf16", "kv_dtype": "bf16"}


def attention_cases() -> Iterator[Case]:
    generator = np.random.default_rng(1)

    def case(family: str, *parts: Shape) -> Case:
        shape = {name: value for part in parts for name, value in part.items()}
        return Case(family, shape, flops_of(family, shape))

    for heads, kv_heads, head_dim in ATTENTION["layouts"]:
        layout = _heads(heads, kv_heads, head_dim, head_dim)
        for number in range(ATTENTION_SHAPES):
            extra: Shape = {"dtype": "bf16", "kv_dtype": "fp8" if number % 9 == 8 else "bf16"}
            window = {"window": int(generator.choice(ATTENTION["windows"]))}
            yield case("attention_decode", _attention_decodes(generator), layout, window, extra)
            yield case("attention_prefill", _attention_prompts(generator), layout, window, extra)
            if number % 3 == 0:
                prompts, few = _attention_prompts(generator), _attention_decodes(generator)
                decodes = {"decodes": few.pop("batch"), **few}
                yield case("attention_mixed", prompts, decodes, layout, PLAIN | window)
    for heads in ATTENTION["latent_heads"]:
        layout = _heads(heads, 1, LATENT + ROTARY, LATENT, latent=True)
        for _ in range(ATTENTION_SHAPES):
            yield case("attention_decode", _attention_decodes(generator), layout, PLAIN)
    for heads in 2 * ATTENTION["expanded_heads"]:
        layout = _heads(heads, heads, EXPANDED_KEY, EXPANDED_VALUE)
        for _ in range(ATTENTION_SHAPES // 2):
            yield case("attention_prefill", _attention_prompts(generator), layout, PLAIN)


def _heads(heads: int, kv_heads: int, head_dim: int, value_dim: int, *, latent: bool = False) -> Shape:
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_dim": value_dim, "latent": latent}


def _attention_decodes(generator: Generator) -> Shape:
    """A batch of sequences with one new token each."""
    while True:
        batch = _batch(generator, ATTENTION["batches"], 0.7, 9)
        kv_len = int(2 ** generator.uniform(4, 17))
        if batch * kv_len <= MOST_KEYS:
            return {"batch": batch, "kv_len": kv_len, "sigma": float(generator.choice((0.0, 0.0, 0.5, 1.0)))}


def _batch(generator: Generator, usual: Sequence[int], share: float, largest: int) -> int:
    """One of the usual batches, or now and then any up to a power of two."""
    return int(generator.choice(usual)) if generator.random() < share else int(2 ** generator.uniform(0, largest))


def _attention_prompts(generator: Generator) -> Shape:
    """A few prompts, or chunks of prompts with a cached beginning."""
    while True:
        batch = int(generator.choice((1, 1, 1, 2, 3, 4, 5, 8, 16, 32)))
        q_len = int(2 ** generator.uniform(2, 14.1))
        prefix = int(2 ** generator.uniform(5, 15.5)) if generator.random() < 0.4 else 0
        if batch * q_len <= 16_500 and batch * prefix <= 131_072:
            return {"batch": batch, "q_len": q_len, "prefix": prefix}


# Which matrix products to measure: weight shapes spread evenly over their logarithms, tied to no model.


# How many weight shapes of a format, and one in how many token counts of each.
FORMATS = {"bf16": (800, 2), "fp8": (450, 2), "fp16": (24, 4), "tf32": (16, 6)}
LONGEST_FLOPS = 8e12  # about ten milliseconds on a large GPU; longer products run at the same rate
LARGEST_WEIGHT = 2**31
GOLDEN = 0.7548776662466927, 0.5698402909980532
"""Steps of the two-dimensional additive sequence of which every beginning is spread evenly (Roberts, 2018)."""


def gemm_cases() -> Iterator[Case]:
    generator = np.random.default_rng(0)
    for dtype, (pairs, thinning) in FORMATS.items():
        for number, (n, k) in enumerate(weight_shapes(pairs)):
            for place, tokens in enumerate(GEMM["tokens"]):
                if (place + number) % thinning:
                    continue
                # Every other count moves to a place between: a model of tiles must not learn round numbers only.
                moves = tokens > 64 and generator.random() < 0.4
                m = int(tokens * (1 + 0.2 * generator.random())) if moves else tokens
                shape = {"dtype": dtype, "m": m, "n": n, "k": k}
                if flops_of("gemm", shape) <= LONGEST_FLOPS and m * n <= LARGEST_WEIGHT:
                    yield Case("gemm", shape, flops_of("gemm", shape))


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


MOST_ROWS = 131_072
MOST_SAMPLED = 256  # no step samples more rows than a few hundred


def expert_cases() -> Iterator[Case]:
    for number, (hidden, inter, experts, topk) in enumerate(MOE["layers"]):
        for dtype in ("bf16", "fp8") if number % 2 == 0 else ("bf16",):
            for place, tokens in enumerate(MOE["tokens"]):
                if (place + number) % 2 or tokens * topk > MOST_ROWS:
                    continue
                routing = MOE["routings"][(place // 2 + number) % 3 if place % 4 > 1 else 0]
                shape = {"dtype": dtype, "tokens": tokens, "hidden": hidden, "inter": inter}
                shape |= {"experts": experts, "topk": topk, "routing": routing}
                yield Case("moe", shape, flops_of("moe", shape))


def elementwise_cases() -> Iterator[Case]:
    """Norms, activations, rotations, writes, look-ups, quantising and sampling; some row counts off the round ones."""
    generator = np.random.default_rng(2)
    for op, rows, width, heads in _elementwise():
        moves = rows > 64 and generator.random() < 0.3
        count = int(rows * generator.uniform(0.8, 1.2)) if moves else rows
        yield Case("elementwise", {"dtype": "bf16", "op": op, "rows": count, "width": width, "heads": heads})


def _elementwise() -> Iterator[tuple[str, int, int, int]]:
    """(operation, rows, width, heads); of routers the experts and how many a token goes to."""
    grid = ELEMENTWISE

    def rows_of(number: int) -> Sequence[int]:
        found: Sequence[int] = grid["rows"][number % 2 :: 2]
        return found

    for op, widths in grid["widths"].items():
        for number, width in enumerate(widths):
            yield from ((op, rows, width, 1) for rows in rows_of(number))
    for number, (heads, kv_heads, width) in enumerate(grid["rotated"]):
        for rows in rows_of(number):
            yield "rope", rows, width, heads + kv_heads
            yield "head_norm", rows, width, heads
    for number, heads in enumerate(grid["latent_heads"]):
        yield from (("latent_rope", rows, 192, heads) for rows in rows_of(number))
    for number, (heads, width) in enumerate(grid["written"]):
        yield from (("kv_write", rows, width, heads) for rows in rows_of(number))
    for vocabulary in grid["vocabularies"]:
        for rows in grid["rows"]:
            if rows <= MOST_SAMPLED:
                yield "to_float", rows, vocabulary, 1
                yield "sample", rows, vocabulary, 1
    for number, (experts, topk) in enumerate(grid["routed"]):
        yield from (("topk", rows, experts, topk) for rows in rows_of(number))
    yield from (("copy", 1, megabytes * 2**19, 1) for megabytes in (1, 4, 16, 64, 256, 1024))


# Which kernels of recurrent layers to measure: few layouts of heads, since each is compiled by itself, many lengths.

COLUMNS = ("kind", "heads", "key_heads", "key_dim", "value_dim")
LAYOUTS = [dict(zip((*COLUMNS, "chunk"), layout, strict=True)) for layout in RECURRENT_GRID["layouts"]]
SCANS, CONVOLUTIONS = 44, 26
MOST_TOKENS, MOST_VALUES = 65_536, 2**28  # of a batch: tokens, and values of all heads
MOST_STATES = 2**30


def recurrent_cases() -> Iterator[Case]:
    """Scans over prompts, updates of states by one token, convolutions, and what lies between them."""
    generator = np.random.default_rng(3)
    widths: set[int] = set()
    for layout in LAYOUTS:
        columns = {"dtype": "bf16", **{name: layout[name] for name in COLUMNS}}
        kind, heads, key_heads, key_dim, value_dim = (layout[name] for name in COLUMNS)
        for _ in range(SCANS):
            prompts = _scan_prompts(generator, heads * value_dim)
            yield Case("scan", {**prompts, **columns, "chunk": layout["chunk"], "state_dtype": "fp32"})
        for place, rows in enumerate(RECURRENT_GRID["update_rows"]):
            # Gated delta nets keep their states in fp32 or in the model's own format.
            for dtype in ("fp32", "bf16") if kind != "kda" and place % 3 == 0 else ("fp32",):
                if rows * heads * key_dim * value_dim <= MOST_STATES:
                    yield Case("state_update", {"rows": rows, **columns, "state_dtype": dtype})
        if kind == "gdn":  # memory-bound kernels that no other layer has
            sizes = {"width": value_dim, "heads": heads, "key_heads": key_heads}
            for op in ("scan_inputs", "gated_norm"):
                for rows in RECURRENT_GRID["gating_rows"]:
                    yield Case("gating", {"dtype": "bf16", "op": op, "rows": rows, **sizes})
        # Of Kimi's three convolutions one is measured.
        channels = heads * value_dim + (0 if kind == "kda" else 2 * key_heads * key_dim)
        if channels not in widths:
            widths.add(channels)
            yield from _convolutions(generator, channels)


def _scan_prompts(generator: Generator, width: int) -> Shape:
    """A batch of prompts; one in four lengths is a whole number of chunks."""
    while True:
        batch, q_len = int(generator.choice(RECURRENT_GRID["batches"])), int(2 ** generator.uniform(3, 15))
        q_len = max(64, q_len // 64 * 64) if generator.random() < 0.25 else q_len
        sigma = float(generator.choice((0.0, 0.0, 0.5, 1.0))) if batch > 1 else 0.0
        if batch * q_len <= MOST_TOKENS and batch * q_len * width <= MOST_VALUES:
            return {"batch": batch, "q_len": q_len, "sigma": sigma}


def _convolutions(generator: Generator, channels: int) -> Iterator[Case]:
    shape = {"dtype": "bf16", "channels": channels, "taps": 4}
    for _ in range(CONVOLUTIONS):
        yield Case("convolution", {"update": False, **_scan_prompts(generator, channels), **shape})
    for rows in RECURRENT_GRID["update_rows"]:
        yield Case("convolution", {"update": True, "batch": rows, "q_len": 1, "sigma": 0.0, **shape})


# Which kernels of sparse attention to measure: prompts behind prefixes of all lengths, and sequences that decode.

INDEX_HEADS = (64, 32)
TOPK = (2048, 512)
# Heads of a GPU: FlashAttention takes any number, FlashMLA 64 and 128.
HEADS, PADDED_HEADS = (16, 8, 64, 128, 32), (64, 128)
BLOCKS = 16  # chosen blocks of block-sparse attention
MOST_SCORES = 96_000_000  # scores of prompts are computed in parts that are no larger
MOST_SPARSE_KEYS = 2_000_000


def sparse_cases() -> Iterator[Case]:
    each, generator = SPARSE_SHAPES, np.random.default_rng(3)
    prompts, decodes = partial(_sparse_prompts, generator), partial(_sparse_decodes, generator)
    for heads in INDEX_HEADS:
        for _ in range(each):
            yield _sparse_case("index_scores", prompts(), heads=heads)
            yield _sparse_case("index_scores_decode", decodes(), heads=heads)
    for topk in TOPK:
        for _ in range(each):
            yield _sparse_case("top_k", prompts(), topk=topk)
            yield _sparse_case("top_k_decode", decodes(), topk=topk)
    for heads in HEADS:
        for number in range(each):
            yield _sparse_case("mla", prompts() if number % 2 else decodes(), heads=heads, topk=TOPK[0])
    for heads in PADDED_HEADS:
        for number in range(each):
            lengths = prompts() if number % 4 == 1 else decodes()
            yield _sparse_case("mla_packed", lengths, heads=heads, topk=TOPK[0], kv_dtype="fp8")
            if number % 2:
                yield _sparse_case("mla_widened", prompts(), heads=heads, topk=TOPK[0])
    for heads, kv_heads in SPARSE["grouped"]:
        group = {"heads": heads, "kv_heads": kv_heads, "topk": BLOCKS}
        for number in range(each // 2):
            yield _sparse_case("msa_scores", prompts(), **group)
            yield _sparse_case("msa_choice", prompts(), **group)
            yield _sparse_case("msa_decode_choice", decodes(), **group)
            narrow = "fp8" if number % 4 == 3 else "bf16"
            yield _sparse_case("msa", prompts(), **group, kv_dtype=narrow)
            yield _sparse_case("msa", decodes(), **group, kv_dtype=narrow)


def _sparse_case(op: str, lengths: Shape, **layout: object) -> Case:
    """With columns that do not matter at their usual values."""
    shape: Shape = {"op": op, "dtype": "bf16", "kv_dtype": "bf16", "heads": 0, "kv_heads": 1, "topk": 0}
    shape |= {**lengths, **layout}
    tokens: float = shape["batch"] * shape["q_len"]
    keys: float = shape["prefix"] + shape["q_len"] / 2
    if op.startswith("index_scores"):
        each = 2.0 * 128 * keys
    elif op.startswith("mla"):
        each = 2.0 * (576 + 512) * min(keys, TOPK[0])
    elif op == "msa":
        each = 4.0 * 128 * min(keys, 128.0 * (BLOCKS + 1))
    else:
        each = 16.0 * keys if op == "msa_scores" else 0.0
    return Case("sparse", shape, shape["heads"] * tokens * each)


def _sparse_decodes(generator: Generator) -> Shape:
    while True:
        batch = _batch(generator, SPARSE["batches"], 0.8, 8)
        prefix = int(2 ** generator.uniform(6, 17.2))
        if batch * prefix <= MOST_SPARSE_KEYS:
            return {"batch": batch, "q_len": 1, "prefix": prefix}


def _sparse_prompts(generator: Generator) -> Shape:
    while True:
        batch = int(generator.choice((1, 1, 1, 1, 2, 3, 4, 8)))
        q_len = int(2 ** generator.uniform(3, 13.1))
        prefix = int(2 ** generator.uniform(6, 16.5)) if generator.random() < 0.6 else 0
        tokens, keys = batch * q_len, batch * (q_len + prefix)
        if tokens <= 8_500 and tokens * keys <= MOST_SCORES:
            return {"batch": batch, "q_len": q_len, "prefix": prefix}


SOURCES: tuple[Callable[[], Iterator[Case]], ...] = (
    gemm_cases,
    attention_cases,
    expert_cases,
    elementwise_cases,
    recurrent_cases,
    sparse_cases,
)


def tables() -> dict[str, dict[str, list[object]]]:
    """Columns of each family, with FLOP where they do not follow from a shape."""
    found: dict[str, list[Case]] = {}
    for cases_of in SOURCES:
        for case in cases_of():
            found.setdefault(case.family, []).append(case)
    columns = {}
    for family, cases in found.items():
        assert len({tuple(case.shape) for case in cases}) == 1, "one set of columns a family"
        columns[family] = {name: [case.shape[name] for case in cases] for name in cases[0].shape}
        if any(case.flops != flops_of(family, case.shape) for case in cases):
            columns[family]["flops"] = [case.flops for case in cases]
    return columns


if __name__ == "__main__":
    SHAPES.write_bytes(gzip.compress(json.dumps(tables(), separators=(",", ":")).encode(), 9, mtime=0))
