"""What a run did with the tier of its KV cache in the host's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class LinkTotals:
    """Copies in one direction."""

    num_copies: int
    num_bytes: int
    """Of one GPU."""
    seconds: float
    """What the copies took, without waiting for each other but with being handed over."""


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
    load_began: npt.NDArray[Any]
    """When each request's first copy from the tier was handed over; not a number for those without."""
