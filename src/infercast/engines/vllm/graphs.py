"""CUDA graphs: which steps replay one, and how batches are padded for it."""

from __future__ import annotations

import bisect
from typing import NamedTuple

from infercast.engines.engine import Launch

MODES = ("full_and_piecewise", "full_decode_only", "piecewise", "none")
"""vLLM's ``cudagraph_mode``: which kinds of steps have graphs."""


def capture_sizes(largest: int, max_num_batched_tokens: int, beside: int | None = None) -> tuple[int, ...]:
    """Token counts that vLLM records graphs for: 1, 2, 4, then by 8 to 256, then by 16 up to the largest.

    The most tokens that a step has is one of them where it is no larger, and so is ``beside``.
    """
    largest = min(largest, max_num_batched_tokens)
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)}
    if largest == max_num_batched_tokens:
        sizes.add(largest)
    if beside is not None:
        sizes.add(beside)
    return tuple(sorted(size for size in sizes if size <= largest))


class Graphs(NamedTuple):
    """The graphs an engine recorded at its start; no sizes: none."""

    sizes: tuple[int, ...]
    max_num_seqs: int
    mode: str = MODES[0]

    def launch(self, num_tokens: int, is_decode: bool) -> tuple[Launch, int]:
        """How a step of that many tokens is launched, and how many are then computed: the next recorded size."""
        if not self.sizes or num_tokens > self.sizes[-1]:
            return Launch.EAGER, num_tokens
        padded = self.sizes[bisect.bisect_left(self.sizes, num_tokens)]
        # Full graphs exist for as many sequences as can run. A batch that is padded beyond that has none.
        if is_decode and padded <= self.max_num_seqs and self.mode != "piecewise":
            return Launch.FULL_GRAPH, padded
        if self.mode == "full_decode_only":
            return Launch.EAGER, num_tokens
        return Launch.PIECEWISE_GRAPHS, padded
