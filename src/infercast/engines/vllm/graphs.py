"""CUDA graphs of vLLM: which steps replay one, how batches are padded, and graphs of steps that verify drafts.

Facts of vLLM 0.25 and 0.32: ``v1/worker/gpu/cudagraph_utils.py`` (V2 model runner), ``config/compilation.py`` (V1).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import cached_property

from infercast.engines.host import Launch

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


def round_up(size: int, width: int) -> int:
    return -(-size // width) * width


def rounded_sizes(sizes: tuple[int, ...], width: int) -> tuple[int, ...]:
    """The V1 runner's: all sizes as multiples of the tokens of a sequence, as far as they are no larger than before."""
    largest = max(sizes, default=0)
    return tuple(sorted({size for each in sizes if (size := round_up(each, width)) <= largest}))


def with_whole_sequences(sizes: tuple[int, ...], most: int, width: int) -> tuple[int, ...]:
    """With what newer releases add: sizes of whole numbers of sequences, at most so many, none larger than before."""
    counts = {1, 2, 4, *range(8, min(most + 1, 256), 8), *range(256, most + 1, 16), most} if most else set()
    largest = max(sizes, default=0)
    return tuple(sorted({*sizes, *(size for each in counts if each <= most and (size := each * width) <= largest)}))


@dataclass(frozen=True)
class Graphs:
    """The graphs an engine recorded at its start; no sizes: none."""

    sizes: tuple[int, ...]
    max_num_seqs: int
    mode: str = MODES[0]
    width: int = 1
    """Tokens of a sequence in a step that is one graph: several where drafts are verified."""
    has_holes: bool = False
    """Whether a size for any step hides a larger one for uniform steps (V2 runner up to 0.31)."""

    @cached_property
    def _full_sizes(self) -> list[int]:
        """Token counts of full graphs, which exist for as many sequences as can run."""
        if not self.sizes or self.mode == "piecewise":
            return []
        most = min(self.sizes[-1], self.max_num_seqs * self.width)
        return sorted({size for each in self.sizes if (size := round_up(each, self.width)) <= most})

    @property
    def num_full(self) -> int:
        return len(self._full_sizes)

    def launch(self, num_tokens: int, is_decode: bool) -> tuple[Launch, int]:
        """How a step is launched, and how many tokens are then computed; decoding: all have ``width`` tokens."""
        full = _next(self._full_sizes, num_tokens) if is_decode else None
        pieces = _next(self.sizes, num_tokens) if self.mode != "full_decode_only" else None
        if full is not None and not (self.has_holes and pieces is not None and pieces < full):
            return Launch.FULL_GRAPH, full
        if pieces is not None:
            hidden = _next(self._full_sizes, num_tokens) if self.has_holes else None
            if hidden is None or hidden >= pieces:
                return Launch.PIECEWISE_GRAPHS, pieces
        return Launch.EAGER, num_tokens


def _next(sizes: list[int] | tuple[int, ...], num_tokens: int) -> int | None:
    place = bisect.bisect_left(sizes, num_tokens)
    return sizes[place] if place < len(sizes) else None
