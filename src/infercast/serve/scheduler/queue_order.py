"""The order in which requests that wait are looked at: those of whose beginning the cache has most come first.

Of several that begin alike, none of which the cache knows, one goes first and the others wait until they find what it
has left.
"""

from __future__ import annotations

from collections import deque
from math import inf

from infercast.serve.cache.radix import RadixTree
from infercast.serve.cache.radix_cache import RadixCache
from infercast.serve.scheduler.decode_batch import DeclaredSequence

MOST_SORTED = 128
"""A longer queue is left as it is."""
ALIKE = 32
"""Tokens: what the cache has at most of a beginning that it does not know, and what two that begin alike share."""


def by_longest_match(waiting: deque[DeclaredSequence], cache: RadixCache) -> deque[DeclaredSequence]:
    """The queue in a new order; equals stay as they are."""
    if len(waiting) > MOST_SORTED or not cache.caching:
        return waiting
    seen, ranks = RadixTree(1), dict[DeclaredSequence, float]()
    for sequence in waiting:
        known = sequence.num_known
        matched = cache.match(sequence.lease, known)
        ranks[sequence] = -min(matched, known - 1)
        if matched > ALIKE:
            continue
        content = sequence.lease.content
        met = seen.walk(content, known)
        alike = met[0].end
        if alike >= ALIKE:
            ranks[sequence] = inf
        elif alike < known:
            seen.add(met, content, known)
    return deque(sorted(waiting, key=ranks.__getitem__))
