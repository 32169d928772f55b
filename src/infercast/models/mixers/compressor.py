"""Compression of keys (DeepSeek-V4): one entry of the cache for several tokens, a weighted sum of what each brings.

Facts of vLLM 0.25 (``models/deepseek_v4/compressor.py``): every GPU runs the whole compressor, in the base format. What
tokens bring waits in fp32 in a cache of its own until an entry is complete. Entries of four tokens overlap by half.
"""

from __future__ import annotations

from dataclasses import dataclass

from infercast.models.mixers.cache import Cache
from infercast.models.shard import Shard
from infercast.ops import Call, Gemm
from infercast.ops.elementwise import copy
from infercast.ops.op import Size

OVERLAPPING = 4
"""Entries of so many tokens also hold the ones before."""
STATE_BLOCKS = {4: 4, 128: 8}
"""Tokens in a block of waiting states."""


@dataclass(frozen=True, slots=True)
class Compressor:
    """Entries of ``head_dim`` for every ``tokens`` tokens."""

    tokens: int
    head_dim: int
    entry_bytes: float
    """What an entry takes in the cache."""

    @property
    def spans(self) -> int:
        """Entries that a token is part of."""
        return 2 if self.tokens == OVERLAPPING else 1

    @property
    def _width(self) -> int:
        """What a token brings: a part and its weight for each entry."""
        return 2 * self.spans * self.head_dim

    def vectors(self, hidden: int) -> int:
        """The projection, a position's weights, and the norm of an entry; none of it is quantised."""
        return hidden * self._width + self.tokens * self.spans * self.head_dim + self.head_dim

    def token_calls(self, shard: Shard, tokens: Size, layers: int, prefix: str) -> list[Call]:
        """What tokens bring, its way into the cache of states, and entries out of it: all beside queries and keys."""
        project = Gemm(tokens, self._width, shard.hidden, shard.weights.base, out_dtype="fp32")
        state, entry = 4.0 * self._width, self.entry_bytes / self.tokens
        return [
            Call(f"{prefix}compress_proj", project, layers, beside=True),
            Call(f"{prefix}compress_save", copy(tokens, state, state), layers, beside=True),
            Call(f"{prefix}compress", copy(tokens, state, entry), layers, beside=True),
        ]

    def caches(self) -> tuple[Cache, ...]:
        """Entries, and the states of the tokens that the next entry is made of."""
        window = self.spans * self.tokens
        block = STATE_BLOCKS.get(self.tokens, 0)
        return (
            Cache(self.entry_bytes / self.tokens, compress=self.tokens),
            Cache(4.0 * self._width, window=window, block=block),
        )
