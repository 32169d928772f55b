"""CUDA graphs: which steps replay one, and how batches are padded for it.

Facts of SGLang 0.5.16 (``server_args.py``, ``_generate_decode_cuda_graph_batch_sizes`` and its like for prompts;
``runner/prefill_cuda_graph_runner.py``).
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

from infercast.engines.engine import Launch

PREFILL_STRETCHES = (
    (4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256),
)  # fmt: skip
"""First, last and distance of the sizes that steps of prompts are recorded for; by 512 beyond."""
LONG, LONG_STEP = 4608, 512
MOST_PADDING = 2
"""A step of prompts that the next size would make so many times as long runs without a graph."""


def decode_sizes(largest: int, *, padded: bool = True) -> tuple[int, ...]:
    """Sequences of the decode steps that are recorded; the largest is always among them."""
    if not padded:
        return tuple(range(1, largest + 1))
    sizes = {1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, largest + 1, 32), largest}
    return tuple(sorted(size for size in sizes if size <= largest))


def prefill_sizes(largest: int) -> tuple[int, ...]:
    """Tokens of the steps of prompts that are recorded."""
    sizes = [size for first, last, step in PREFILL_STRETCHES for size in range(first, last + 1, step)]
    return tuple(size for size in (*sizes, *range(LONG, largest + 1, LONG_STEP)) if size <= largest)


def kept_sizes(sizes: tuple[int, ...], running: int, multiple: int = 1) -> tuple[int, ...]:
    """Of the sizes of decode steps, those that can come: as many as run at once, in multiples of a group's GPUs."""
    most = -(-running // multiple) * multiple
    wanted = {*sizes, most} if sizes and sizes[-1] > most else {*sizes}
    return tuple(sorted(size for size in wanted if size <= most and size % multiple == 0))


class SglangGraphs(NamedTuple):
    """The graphs an engine recorded at its start, of decode steps and of steps with prompts; no sizes: none."""

    decode: tuple[int, ...]
    prefill: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Token counts of either."""
        return tuple(sorted({*self.decode, *self.prefill}))

    def launch(self, num_tokens: int, is_decode: bool) -> tuple[Launch, int]:
        """How a step of that many tokens is launched, and how many are then computed: the next recorded size."""
        sizes = self.decode if is_decode else self.prefill
        if not sizes or num_tokens > sizes[-1]:
            return Launch.EAGER, num_tokens
        padded = sizes[bisect.bisect_left(sizes, num_tokens)]
        if is_decode:
            return Launch.FULL_GRAPH, padded
        if padded > MOST_PADDING * num_tokens:
            return Launch.EAGER, num_tokens
        return Launch.PIECEWISE_GRAPHS, padded
