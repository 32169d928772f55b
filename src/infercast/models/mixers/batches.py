"""Batches of prompts and decoding sequences, told apart where an engine runs other kernels for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from infercast.ops.attention import Lengths
from infercast.ops.op import Size


class Form(NamedTuple):
    """The part of a batch that one form of kernels computes: prompts, or single new tokens."""

    is_prompt: bool
    queries: Lengths
    keys: Lengths
    sequences: Lengths | int

    @property
    def batch(self) -> tuple[Lengths, Lengths, Lengths | int]:
        """As operators take it."""
        return self.queries, self.keys, self.sequences

    def num_entries(self, tokens: int = 1) -> Size:
        """Entries of all sequences, one for so many tokens; one that has begun counts."""
        return self._sum(-(-self.keys // tokens))

    def num_recent(self, window: int) -> Size:
        """Tokens of all sequences that a new one sees in its window."""
        return self._sum(np.minimum(self.keys, self.queries + window - 1))

    def _sum(self, each: Lengths) -> Size:
        total: Size = np.add.reduce(each * self.sequences, axis=-1)
        return total

    def name(self, kernel: str) -> str:
        """The kernel's name in this form."""
        return f"{kernel}_prompt" if self.is_prompt else kernel


def split_forms(queries: Lengths, keys: Lengths, sequences: Lengths | int) -> Iterator[Form]:
    """Prompts, then single new tokens. An array of batches is of one form throughout; a single batch may hold both."""
    decoding = queries == 1
    if decoding.all() or not decoding.any():
        yield Form(not decoding.any(), queries, keys, sequences)
        return
    for is_prompt, chosen in ((True, ~decoding), (False, decoding)):
        yield Form(is_prompt, queries[chosen], keys[chosen], sequences)
