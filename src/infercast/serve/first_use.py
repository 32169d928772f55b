"""Kernels that an engine has not used since its start.

CUDA loads a kernel when it is first launched, and that blocks the host until the GPU is idle. Libraries choose among
many kernels by the number of rows, so the first steps of a new size show it: the host cannot run ahead, and the
tokens of the step before stay where they are until the GPU is done. An engine that has served for a while has met
all sizes; one that was just started has met those of its own warm-up.
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.serve.step import StepShape

TOKENS_ALIKE = 64
"""Eager steps whose tokens need as many tiles of this size are taken to run the same kernels ..."""
ROWS_ALIKE = 8
"""... and so are heads over as many tiles of rows."""


class News(NamedTuple):
    """Where a step launches kernels for the first time."""

    in_layers: bool
    in_head: bool


NOTHING_NEW = News(in_layers=False, in_head=False)


class FirstUses:
    """What one engine has met since its start; ``largest_graph`` and below are recorded before it serves.

    ``known_rows``: heads over at most so many rows are in graphs that were recorded, as those that draft are.
    """

    def __init__(self, largest_graph: int, max_num_batched_tokens: int, max_num_seqs: int, known_rows: int = 0) -> None:
        self._largest_graph = largest_graph
        # An engine measures its memory with the largest step there can be.
        self._tokens = {-(-max_num_batched_tokens // TOKENS_ALIKE)}
        self._rows = {-(-max_num_seqs // ROWS_ALIKE), *range(known_rows // ROWS_ALIKE + 1)}

    def knows(self, shape: StepShape) -> bool:
        """Whether nothing is new about a step of decoding."""
        eager = shape.num_tokens > self._largest_graph
        return -(-shape.head_rows // ROWS_ALIKE) in self._rows and not (
            eager and -(-shape.num_tokens // TOKENS_ALIKE) not in self._tokens
        )

    def meet(self, shape: StepShape) -> News:
        """What is new about a step; it is not new any more afterwards."""
        rows = -(-shape.head_rows // ROWS_ALIKE)
        new_rows = rows not in self._rows
        self._rows.add(rows)
        if shape.num_tokens <= self._largest_graph:
            return News(in_layers=False, in_head=new_rows)
        tokens = -(-shape.num_tokens // TOKENS_ALIKE)
        new_tokens = tokens not in self._tokens
        self._tokens.add(tokens)
        return News(in_layers=new_tokens, in_head=new_rows)
