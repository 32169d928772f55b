"""The cases of a sweep: kernel families and the shapes to measure, in the order in which a sweep runs them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from infercast.bundled import read_data
from infercast.errors import UnknownNameError

# One thing to measure: a kernel family and a shape, and what a kernel must be able to do to be measured.


Shape = dict[str, Any]


@dataclass(frozen=True)
class Case:
    family: str
    shape: Shape
    flops: float = 0.0
    """How hard it is on the chip; 0 where memory is all that matters."""

    @property
    def key(self) -> str:
        """What makes a point the same one when a sweep is taken up again."""
        return f"{self.family} {json.dumps(self.shape, sort_keys=True)}"


class Launch(Protocol):
    """A kernel ready to run."""

    engine: str
    """Whose kernel it is: ``vllm`` or ``torch``."""

    def touch(self) -> None:
        """Write what the kernel before would have written, so that it is as warm as in a model."""

    def __call__(self) -> None:
        """Launch the kernel once."""


# Anchors: the few shapes of each kernel that tell most about all others, for a GPU that nobody measured.


DEFAULT = 64
"""Of each kernel; a list has no more."""
FILE = "anchors.toml"


def anchor_cases(each: int = DEFAULT) -> list[Case]:
    """The first ``each`` of every list, the best of all kernels first."""
    places = []
    for number, table in enumerate(read_data(FILE).values()):
        for rank, values in enumerate(table["shapes"][:each]):
            shape = dict(zip(table["columns"], values, strict=True))
            places.append((rank, number, Case(table["family"], shape, _anchor_flops(table["family"], shape))))
    return [case for _, _, case in sorted(places, key=lambda place: place[:2])]


def _anchor_flops(family: str, shape: Shape) -> float:
    sizes = {name: float(value) for name, value in shape.items() if isinstance(value, int)}
    if family == "gemm":
        return 2.0 * sizes["m"] * sizes["n"] * sizes["k"]
    if family == "moe":
        return 6.0 * sizes["tokens"] * sizes["topk"] * sizes["hidden"] * sizes["inter"]
    queries, prefix = sizes.get("q_len", 1.0), sizes.get("prefix", sizes.get("kv_len", 0.0))
    pairs = sizes["batch"] * queries * (prefix + queries / 2)
    return 2.0 * sizes["heads"] * (sizes["head_dim"] + sizes["value_dim"]) * pairs


# Which attention kernels to measure: head layouts, prompts with or without a cached prefix, decoding, both at once.


Generator = np.random.Generator

# (heads, kv_heads, head_dim): groups of 1 to 16 queries a key, few and many heads, all head sizes.
ATTENTION_LAYOUTS = (
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
ATTENTION_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)


def attention_cases(each: int = 66) -> Iterator[Case]:
    """All attention kernels of a sweep; ``each`` is how many of each kind a head layout gets."""
    generator = np.random.default_rng(1)
    for heads, kv_heads, head_dim in ATTENTION_LAYOUTS:
        layout = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_dim": head_dim, "latent": False}
        for number in range(each):
            extra: Shape = {"dtype": "bf16", "kv_dtype": "fp8" if number % 9 == 8 else "bf16"}
            window = {"window": int(generator.choice(WINDOWS))}
            yield _attention_case("attention_decode", {**_attention_decodes(generator), **layout, **window, **extra})
            yield _attention_case("attention_prefill", {**_attention_prompts(generator), **layout, **window, **extra})
            if number % 3 == 0:
                both = {**_attention_prompts(generator), "decodes": (few := _attention_decodes(generator))["batch"]}
                both |= {"kv_len": few["kv_len"], "sigma": few["sigma"]}
                yield _attention_case(
                    "attention_mixed", {**both, **layout, **window, "dtype": "bf16", "kv_dtype": "bf16"}
                )
    for heads, latent, rotary in LATENT:
        layout = {"heads": heads, "kv_heads": 1, "head_dim": latent + rotary, "value_dim": latent, "latent": True}
        for _ in range(each):
            yield _attention_case("attention_decode", {**_attention_decodes(generator), **layout, **PLAIN})
    for heads, head_dim, value_dim in (*EXPANDED, *EXPANDED):
        layout = {"heads": heads, "kv_heads": heads, "head_dim": head_dim, "value_dim": value_dim, "latent": False}
        for _ in range(each // 2):
            yield _attention_case("attention_prefill", {**_attention_prompts(generator), **layout, **PLAIN})


def _attention_case(family: str, shape: Shape) -> Case:
    """With the products of all query-key pairs, windows and causality left aside where that is small change."""
    queries, prefix = shape.get("q_len", 1), shape.get("prefix", shape.get("kv_len", 0))
    batch = shape["batch"]
    pairs = batch * queries * (prefix + queries / 2)
    if shape["window"]:
        pairs = min(pairs, batch * queries * shape["window"])
    return Case(family, shape, 2.0 * shape["heads"] * (shape["head_dim"] + shape["value_dim"]) * pairs)


def _attention_decodes(generator: Generator) -> Shape:
    """A batch of sequences with one new token each."""
    while True:
        batch = (
            int(generator.choice(ATTENTION_BATCHES)) if generator.random() < 0.7 else int(2 ** generator.uniform(0, 9))
        )
        kv_len = int(2 ** generator.uniform(4, 17))
        if batch * kv_len <= MOST_KEYS:
            return {"batch": batch, "kv_len": kv_len, "sigma": float(generator.choice((0.0, 0.0, 0.5, 1.0)))}


def _attention_prompts(generator: Generator) -> Shape:
    """A few prompts, or chunks of prompts whose beginning is cached."""
    while True:
        batch = int(generator.choice((1, 1, 1, 2, 3, 4, 5, 8, 16, 32)))
        q_len = int(2 ** generator.uniform(2, 14.1))
        prefix = int(2 ** generator.uniform(5, 15.5)) if generator.random() < 0.4 else 0
        if batch * q_len <= 16_500 and batch * prefix <= 131_072:
            return {"batch": batch, "q_len": q_len, "prefix": prefix}


# Which matrix products to measure: weight shapes spread evenly over their logarithms, tied to no model.


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


# Which experts and memory-bound kernels to measure.


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
ELEMENTWISE_ROWS = (
    2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384,
)  # fmt: skip
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
            yield from ((op, rows, width, 1) for rows in ELEMENTWISE_ROWS[number % 2 :: 2])


def _by_heads() -> Iterator[Named]:
    for number, (heads, kv_heads, width) in enumerate(ROTATED):
        for rows in ELEMENTWISE_ROWS[number % 2 :: 2]:
            yield "rope", rows, width, heads + kv_heads
            yield "head_norm", rows, width, heads
    for number, heads in enumerate(LATENT_HEADS):
        yield from (("latent_rope", rows, 192, heads) for rows in ELEMENTWISE_ROWS[number % 2 :: 2])
    for number, (heads, width) in enumerate(WRITTEN):
        yield from (("kv_write", rows, width, heads) for rows in ELEMENTWISE_ROWS[number % 2 :: 2])


def _by_vocabulary() -> Iterator[Named]:
    """What happens to logits; no step samples more than a few hundred rows."""
    for vocabulary in VOCABULARIES:
        for rows in ELEMENTWISE_ROWS:
            if rows <= MOST_SAMPLED:
                yield "to_float", rows, vocabulary, 1
                yield "sample", rows, vocabulary, 1


def _by_experts() -> Iterator[Named]:
    """Choosing experts: their number in place of a width, how many each token goes to in place of heads."""
    for number, (experts, topk) in enumerate(ROUTED):
        yield from (("topk", rows, experts, topk) for rows in ELEMENTWISE_ROWS[number % 2 :: 2])


def _copies() -> Iterator[Named]:
    yield from (("copy", 1, megabytes * 2**19, 1) for megabytes in (1, 4, 16, 64, 256, 1024))


# Which kernels of recurrent layers to measure: few layouts of heads, since each is compiled and tuned by itself.
#
# Lengths and batches are many instead: short and long prompts, alone and together, of equal and of uneven lengths.


@dataclass(frozen=True, slots=True)
class Layout:
    """Heads of one layer on one GPU, as operators name them."""

    kind: str
    heads: int
    key_heads: int
    key_dim: int = 128
    value_dim: int = 128
    chunk: int = 64

    @property
    def columns(self) -> Shape:
        names = ("kind", "heads", "key_heads", "key_dim", "value_dim")
        return {"dtype": "bf16", **{name: getattr(self, name) for name in names}}

    @property
    def channels(self) -> int:
        """That its convolution is over, or each of three."""
        if self.kind == "kda":
            return self.heads * self.value_dim
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim


LAYOUTS = (
    Layout("gdn", 32, 16),
    Layout("gdn", 48, 16),
    Layout("gdn", 16, 16),
    Layout("gdn", 64, 16),
    Layout("gdn", 16, 8),
    Layout("mamba2", 64, 8, 128, 64, 128),
    Layout("mamba2", 128, 8, 128, 64, 128),
    Layout("mamba2", 256, 8, 256, 64, 128),
    Layout("mamba2", 128, 1, 128, 64, 256),
    Layout("kda", 32, 32),
    Layout("kda", 16, 16),
)
SCANS, CONVOLUTIONS = 44, 26
SCAN_BATCHES = (1, 1, 1, 2, 3, 4, 8, 16, 32, 64)
SIGMAS = (0.0, 0.0, 0.5, 1.0)
MOST_TOKENS, MOST_VALUES = 65_536, 2**28
"""Of a batch: tokens, and values of all heads."""
UPDATE_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
GATING_TOKENS = (1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16_384)
MOST_STATES = 2**30


def recurrent_cases() -> Iterator[Case]:
    """Scans over prompts, updates of states by one token, convolutions, and what lies between them."""
    generator = np.random.default_rng(3)
    widths: set[int] = set()
    for layout in LAYOUTS:
        for _ in range(SCANS):
            prompts = _scan_prompts(generator, layout.heads * layout.value_dim)
            yield Case("scan", {**prompts, **layout.columns, "chunk": layout.chunk, "state_dtype": "fp32"})
        yield from _updates(layout)
        if layout.kind == "gdn":
            yield from _gating(layout)
        if layout.channels not in widths:
            widths.add(layout.channels)
            yield from _convolutions(generator, layout.channels)


def _scan_prompts(generator: Generator, width: int) -> Shape:
    """A batch of prompts; one in four lengths is a whole number of chunks."""
    while True:
        batch, q_len = int(generator.choice(SCAN_BATCHES)), int(2 ** generator.uniform(3, 15))
        q_len = max(64, q_len // 64 * 64) if generator.random() < 0.25 else q_len
        sigma = float(generator.choice(SIGMAS)) if batch > 1 else 0.0
        if batch * q_len <= MOST_TOKENS and batch * q_len * width <= MOST_VALUES:
            return {"batch": batch, "q_len": q_len, "sigma": sigma}


def _updates(layout: Layout) -> Iterator[Case]:
    state = layout.heads * layout.key_dim * layout.value_dim
    for place, rows in enumerate(UPDATE_ROWS):
        # Gated delta nets keep their states in fp32 or in the model's own format.
        narrow = layout.kind != "kda" and place % 3 == 0
        for dtype in ("fp32", "bf16") if narrow else ("fp32",):
            if rows * state <= MOST_STATES:
                yield Case("state_update", {"rows": rows, **layout.columns, "state_dtype": dtype})


def _gating(layout: Layout) -> Iterator[Case]:
    """Memory-bound kernels that no other layer has."""
    for op, rows in ((op, rows) for op in ("scan_inputs", "gated_norm") for rows in GATING_TOKENS):
        sizes = {"width": layout.value_dim, "heads": layout.heads, "key_heads": layout.key_heads}
        yield Case("gating", {"dtype": "bf16", "op": op, "rows": rows, **sizes})


def _convolutions(generator: Generator, channels: int) -> Iterator[Case]:
    for _ in range(CONVOLUTIONS):
        prompts = _scan_prompts(generator, channels)
        yield Case("convolution", {"dtype": "bf16", "update": False, **prompts, "channels": channels, "taps": 4})
    for rows in UPDATE_ROWS:
        shape = {"dtype": "bf16", "update": True, "batch": rows, "q_len": 1, "sigma": 0.0}
        yield Case("convolution", {**shape, "channels": channels, "taps": 4})


# Which kernels of sparse attention to measure: prompts behind prefixes of all lengths, and sequences that decode.


INDEX_HEADS = (64, 32)
TOPK = (2048, 512)
# Heads of a GPU: FlashAttention takes any number, FlashMLA 64 and 128.
HEADS, PADDED_HEADS = (16, 8, 64, 128, 32), (64, 128)
# (heads, key-value heads, which are index heads too) of block-sparse attention, and its blocks.
GROUPED, BLOCKS = ((16, 1), (64, 4), (8, 1), (32, 2)), 16
SPARSE_BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MOST_SCORES = 96_000_000
"""Scores of prompts are computed in parts that are no larger."""
MOST_SPARSE_KEYS = 2_000_000


def sparse_cases(each: int = 48) -> Iterator[Case]:
    """All kernels; ``each`` is how many shapes a layout of heads gets, prompts and decoding apart."""
    generator = np.random.default_rng(3)
    for heads in INDEX_HEADS:
        for _ in range(each):
            yield _sparse_case("index_scores", _sparse_prompts(generator), heads=heads)
            yield _sparse_case("index_scores_decode", _sparse_decodes(generator), heads=heads)
    for topk in TOPK:
        for _ in range(each):
            yield _sparse_case("top_k", _sparse_prompts(generator), topk=topk)
            yield _sparse_case("top_k_decode", _sparse_decodes(generator), topk=topk)
    for heads in HEADS:
        for number in range(each):
            lengths = _sparse_prompts(generator) if number % 2 else _sparse_decodes(generator)
            yield _sparse_case("mla", lengths, heads=heads, topk=TOPK[0])
    for heads in PADDED_HEADS:
        for number in range(each):
            lengths = _sparse_prompts(generator) if number % 4 == 1 else _sparse_decodes(generator)
            yield _sparse_case("mla_packed", lengths, heads=heads, topk=TOPK[0], kv_dtype="fp8")
            if number % 2:
                yield _sparse_case("mla_widened", _sparse_prompts(generator), heads=heads, topk=TOPK[0])
    for heads, kv_heads in GROUPED:
        group = {"heads": heads, "kv_heads": kv_heads, "topk": BLOCKS}
        for number in range(each // 2):
            yield _sparse_case("msa_scores", _sparse_prompts(generator), **group)
            yield _sparse_case("msa_choice", _sparse_prompts(generator), **group)
            yield _sparse_case("msa_decode_choice", _sparse_decodes(generator), **group)
            narrow = "fp8" if number % 4 == 3 else "bf16"
            yield _sparse_case("msa", _sparse_prompts(generator), **group, kv_dtype=narrow)
            yield _sparse_case("msa", _sparse_decodes(generator), **group, kv_dtype=narrow)


def _sparse_case(op: str, lengths: Shape, **layout: object) -> Case:
    """With columns that do not matter left at what they are mostly."""
    shape: Shape = {"op": op, "dtype": "bf16", "kv_dtype": "bf16", "heads": 0, "kv_heads": 1, "topk": 0}
    shape |= {**lengths, **layout}
    return Case("sparse", shape, _sparse_flops(shape))


def _sparse_flops(shape: Shape) -> float:
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


def _sparse_decodes(generator: Generator) -> Shape:
    """A batch of sequences with one new token each."""
    while True:
        batch = int(generator.choice(SPARSE_BATCHES)) if generator.random() < 0.8 else int(2 ** generator.uniform(0, 8))
        prefix = int(2 ** generator.uniform(6, 17.2))
        if batch * prefix <= MOST_SPARSE_KEYS:
            return {"batch": batch, "q_len": 1, "prefix": prefix}


def _sparse_prompts(generator: Generator) -> Shape:
    """A few prompts, or chunks of prompts whose beginning is cached."""
    while True:
        batch = int(generator.choice((1, 1, 1, 1, 2, 3, 4, 8)))
        q_len = int(2 ** generator.uniform(3, 13.1))
        prefix = int(2 ** generator.uniform(6, 16.5)) if generator.random() < 0.6 else 0
        tokens, keys = batch * q_len, batch * (q_len + prefix)
        if tokens <= 8_500 and tokens * keys <= MOST_SCORES:
            return {"batch": batch, "q_len": q_len, "prefix": prefix}


# Small kernels that published tables hold only inside of others: KV writes, quantisers, attention, bare rates.
#
# One table, ``probe``: ``op`` says what is done, ``by`` whose kernel does it (Triton's need no engine).


# (key-value heads, width of a head) and tokens of writes; formats are the cache's.
PROBED_WRITES = ((8, 128), (4, 128), (2, 64), (1, 128), (32, 128), (16, 256), (8, 64))
WRITTEN_TOKENS = (1, 4, 16, 64, 192, 512, 1024, 2048, 4096, 8192, 16384)
QUANTISED_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384)
QUANTISED_WIDTHS = (512, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 14336, 18432, 28672)
ENGINES = ("triton", "vllm")
# (heads, key-value heads, width) of attention; PyTorch's FlashAttention is version 2 and takes bf16 only.
PROBED_LAYOUTS = ((32, 8, 128), (32, 32, 128), (8, 1, 128), (64, 8, 64), (28, 4, 128), (16, 2, 256))
PROMPTS = ((1, 64), (1, 256), (1, 1024), (1, 2048), (1, 4096), (1, 8192), (4, 512), (4, 2048), (16, 128), (16, 512))
DECODES = tuple((batch, length) for batch in (1, 4, 16, 64, 128) for length in (128, 1024, 4096, 16384))
MOST_PROBED_KEYS = 1_100_000
LOOPS = {"mma_sync": (1000, 3000), "wgmma": (1500, 4500)}


def probe_cases() -> Iterator[Case]:
    for dtype in ("bf16", "fp8"):
        for heads, width in PROBED_WRITES:
            yield from (
                _probe_case("kv_write", by, dtype, rows, width, heads) for rows in WRITTEN_TOKENS for by in ENGINES
            )
    for op in ("quantise_token", "quantise_block"):
        for number, width in enumerate(QUANTISED_WIDTHS):
            rows_of = QUANTISED_ROWS[number % 2 :: 2]
            yield from (_probe_case(op, by, "fp8", rows, width) for rows in rows_of for by in ENGINES)
    for heads, kv_heads, width in PROBED_LAYOUTS:
        for by, dtype in (("triton", "bf16"), ("triton", "fp8"), ("flash2", "bf16"), ("cudnn", "bf16")):
            for batch, length in PROMPTS:
                flops = 2.0 * batch * heads * width * length * length
                shape = _shape("prompts", by, dtype, batch, width, heads) | {"kv_heads": kv_heads, "length": length}
                yield Case("probe", shape, min(flops, LONGEST_FLOPS))
            for batch, length in DECODES if by != "cudnn" else ():
                if batch * length <= MOST_PROBED_KEYS:
                    shape = _shape("decode", by, dtype, batch, width, heads)
                    yield Case("probe", shape | {"kv_heads": kv_heads, "length": length})
    for op, loops_of in LOOPS.items():
        for dtype in ("bf16", "fp8"):
            yield from (_rate(op, dtype, loops) for loops in loops_of)


def _rate(op: str, dtype: str, loops: int) -> Case:
    """Heavy: at the power limit, and after a pause."""
    return Case("probe", _shape(op, "cuda", dtype, loops, 0, 1), 1e11)


def _probe_case(op: str, by: str, dtype: str, rows: int, width: int, heads: int = 1) -> Case:
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


# How large a share of any beginning each family gets; the first points are what a short sweep lives on.
SHARES = {
    "gemm": 0.40,
    "attention_decode": 0.16,
    "attention_prefill": 0.16,
    "attention_mixed": 0.04,
    "moe": 0.10,
    "elementwise": 0.14,
}
FAMILIES = tuple(SHARES)
# Measured where they are named only: they are compiled or tuned for longer than all their shapes are measured.
RECURRENT = {"scan": 0.4, "state_update": 0.25, "convolution": 0.25, "gating": 0.1}
ON_REQUEST = {**RECURRENT, "sparse": 0.4, "probe": 0.4}
NAMES = (*FAMILIES, *ON_REQUEST)
SOURCES: dict[tuple[str, ...], Callable[[], Iterator[Case]]] = {
    ("gemm",): gemm_cases,
    ("attention_decode", "attention_prefill", "attention_mixed"): attention_cases,
    ("moe",): expert_cases,
    ("elementwise",): elementwise_cases,
    tuple(RECURRENT): recurrent_cases,
    ("sparse",): sparse_cases,
    ("probe",): probe_cases,
}


def sweep_cases(families: Sequence[str] | None = None) -> list[Case]:
    """All cases, most useful first; the same list for every GPU."""
    wanted, shares = families or FAMILIES, SHARES | ON_REQUEST
    for family in wanted:
        if family not in shares:
            raise UnknownNameError("kernel family", family, NAMES)
    by_family: dict[str, list[Case]] = defaultdict(list)
    for members, cases_of in SOURCES.items():
        for case in cases_of() if {*members} & {*wanted} else ():
            if case.family in wanted:
                by_family[case.family].append(case)
    places: list[tuple[float, Case]] = []
    for family, cases in by_family.items():
        order = np.random.default_rng(len(cases)).permutation(len(cases))
        places += [((rank + 0.5) / shares[family], cases[index]) for rank, index in enumerate(order)]
    first: dict[str, Case] = {}
    for _, case in sorted(places, key=lambda place: place[0]):
        first.setdefault(case.key, case)
    return list(first.values())
