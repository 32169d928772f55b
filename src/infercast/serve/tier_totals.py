"""What a run did with the tier of its KV cache in the host's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class LinkTotals:
    """Copies in one direction."""

    num_copies: int
    num_bytes: int
    """Of one GPU."""
    seconds: float
    """What the copies took, without waiting for each other but with being handed over."""

    def __add__(self, other: LinkTotals) -> LinkTotals:
        return LinkTotals(
            self.num_copies + other.num_copies, self.num_bytes + other.num_bytes, self.seconds + other.seconds
        )


@dataclass(frozen=True, slots=True)
class TierTotals:
    """Sums over a run, in the terms of vLLM's counters where it has them."""

    num_blocks: int
    peak_blocks: int
    """The most blocks that were used at the same time."""
    num_refused: int
    """Times when there was no room for new blocks, because copies were under way to or from all others."""
    num_queried: int
    """Tokens that the GPU did not have, of requests that started, and preempted ones that started again ..."""
    num_hit: int
    """... and those that the tier had (``external_prefix_cache_queries`` and ``_hits``)."""
    load: LinkTotals
    store: LinkTotals
    waited: float
    """Seconds in which steps waited until blocks that they wanted were copied to the host."""
    num_loaded: npt.NDArray[Any]
    """Of each request, prompt tokens that came from the tier when it first started."""

    def __add__(self, other: TierTotals) -> TierTotals:
        return TierTotals(
            self.num_blocks + other.num_blocks,
            self.peak_blocks + other.peak_blocks,
            self.num_refused + other.num_refused,
            self.num_queried + other.num_queried,
            self.num_hit + other.num_hit,
            self.load + other.load,
            self.store + other.store,
            self.waited + other.waited,
            np.asarray(self.num_loaded + other.num_loaded),
        )
