"""One block of one layer: how many tokens it holds, and how large it is."""

from __future__ import annotations

from typing import NamedTuple

from infercast.models.mixers import Cache

Member = tuple[int, "Kind"]
"""A cache of one layer, by the layer's place in the model."""


class Kind(NamedTuple):
    """Caches of layers whose blocks are alike."""

    cache: Cache
    block_size: int
    padded_bytes: int = 0

    @property
    def page_bytes(self) -> int:
        """One block of one layer: so many tokens, or the state of one sequence."""
        return self.padded_bytes or round(self.cache.bytes_per_token * self.block_size + self.cache.bytes_per_sequence)

    @property
    def span(self) -> tuple[int, bool, bool]:
        """Which tokens are kept, and whether any are."""
        return self.cache.window, self.cache.chunked, self.cache.bytes_per_token > 0
