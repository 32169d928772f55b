"""Which kernels of recurrent layers to measure: few layouts of heads, since each is compiled and tuned by itself.

Lengths and batches are many instead: short and long prompts, alone and together, of equal and of uneven lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from infercast.measure.case import Case, Shape

Generator = np.random.Generator


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
        """As a table has them."""
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
"""Of each layout."""
BATCHES = (1, 1, 1, 2, 3, 4, 8, 16, 32, 64)
SIGMAS = (0.0, 0.0, 0.5, 1.0)
MOST_TOKENS, MOST_VALUES = 65_536, 2**28
"""Of a batch: tokens, and values of all heads."""
ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
TOKENS = (1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16_384)
MOST_STATES = 2**30
"""Values of the states of a batch."""


def recurrent_cases() -> Iterator[Case]:
    """Scans over prompts, updates of states by one token, convolutions, and what lies between them."""
    generator = np.random.default_rng(3)
    widths: set[int] = set()
    for layout in LAYOUTS:
        for _ in range(SCANS):
            prompts = _prompts(generator, layout.heads * layout.value_dim)
            yield Case("scan", {**prompts, **layout.columns, "chunk": layout.chunk, "state_dtype": "fp32"})
        yield from _updates(layout)
        if layout.kind == "gdn":
            yield from _gating(layout)
        if layout.channels not in widths:
            widths.add(layout.channels)
            yield from _convolutions(generator, layout.channels)


def _prompts(generator: Generator, width: int) -> Shape:
    """A batch of prompts; one in four lengths is a whole number of chunks."""
    while True:
        batch, q_len = int(generator.choice(BATCHES)), int(2 ** generator.uniform(3, 15))
        q_len = max(64, q_len // 64 * 64) if generator.random() < 0.25 else q_len
        sigma = float(generator.choice(SIGMAS)) if batch > 1 else 0.0
        if batch * q_len <= MOST_TOKENS and batch * q_len * width <= MOST_VALUES:
            return {"batch": batch, "q_len": q_len, "sigma": sigma}


def _updates(layout: Layout) -> Iterator[Case]:
    state = layout.heads * layout.key_dim * layout.value_dim
    for place, rows in enumerate(ROWS):
        # Gated delta nets keep their states in fp32 or in the model's own format.
        narrow = layout.kind != "kda" and place % 3 == 0
        for dtype in ("fp32", "bf16") if narrow else ("fp32",):
            if rows * state <= MOST_STATES:
                yield Case("state_update", {"rows": rows, **layout.columns, "state_dtype": dtype})


def _gating(layout: Layout) -> Iterator[Case]:
    """Memory-bound kernels that no other layer has."""
    for op, rows in ((op, rows) for op in ("scan_inputs", "gated_norm") for rows in TOKENS):
        sizes = {"width": layout.value_dim, "heads": layout.heads, "key_heads": layout.key_heads}
        yield Case("gating", {"dtype": "bf16", "op": op, "rows": rows, **sizes})


def _convolutions(generator: Generator, channels: int) -> Iterator[Case]:
    for _ in range(CONVOLUTIONS):
        prompts = _prompts(generator, channels)
        yield Case("convolution", {"dtype": "bf16", "update": False, **prompts, "channels": channels, "taps": 4})
    for rows in ROWS:
        shape = {"dtype": "bf16", "update": True, "batch": rows, "q_len": 1, "sigma": 0.0}
        yield Case("convolution", {**shape, "channels": channels, "taps": 4})
