"""CUDA graphs: which steps replay one, and how batches are padded for it."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from enum import Enum


class Launch(Enum):
    """How a step's kernels reach the GPU."""

    FULL_GRAPH = "full graph"
    """The whole step is one graph: steps in which every sequence computes one token."""
    PIECEWISE_GRAPHS = "piecewise graphs"
    """Attention is launched by hand between graphs of the rest."""
    EAGER = "eager"
    """Every kernel is launched by itself."""


def capture_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Token counts that vLLM records graphs for: 1, 2, 4, then by 8 to 256, then by 16 up to 512."""
    largest = min(2 * max_num_seqs, 512)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    return tuple(size for size in sizes if size <= largest) or (1,)


@dataclass(frozen=True, slots=True)
class Graphs:
    """The graphs an engine recorded at its start; no sizes: none."""

    sizes: tuple[int, ...]
    max_num_seqs: int

    def launch(self, num_tokens: int, is_decode: bool) -> Launch:
        """How a step of that many tokens is launched."""
        if not self.sizes or num_tokens > self.sizes[-1]:
            return Launch.EAGER
        # Full graphs exist for as many sequences as can run; larger ones would never be replayed.
        return Launch.FULL_GRAPH if is_decode and num_tokens <= self.max_num_seqs else Launch.PIECEWISE_GRAPHS

    def padded(self, num_tokens: int) -> int:
        """Tokens that are really computed: the next recorded size, or just what is asked beyond the last."""
        position = bisect.bisect_left(self.sizes, num_tokens)
        return self.sizes[position] if position < len(self.sizes) else num_tokens
