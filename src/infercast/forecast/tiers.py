"""What a pool did with the tier of its KV cache in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.serve import Record


class Way(NamedTuple):
    """Copies in one direction, of all GPUs."""

    copies: int
    num_bytes: int
    seconds: float
    """Of one GPU's link, as an engine counts them: with handing over, without waiting for each other."""
    use: float
    """Share of the run in which the busiest replica's link was in use."""


class TierRun(NamedTuple):
    """Over all replicas of a pool."""

    peak_use: float
    """The most of the tier that was filled, of the fullest replica."""
    hit_rate: float
    """Share of all prompt tokens that came from the tier."""
    queries: int
    """Tokens that the GPU did not have, of requests when they started ..."""
    hits: int
    """... and those of them that the tier had."""
    load: Way
    store: Way
    num_refused: int
    """Times when the tier had no room, because copies were under way to or from all of its blocks."""
    held_up: float
    """Seconds in which steps waited until blocks that they wanted were stored."""
    num_loaded: int
    """Requests that waited for a copy ..."""
    mean_wait: float
    """... and how long each waited, from being looked at to its first step."""


def tier_run(deployment: Deployment, records: Sequence[Record], num_input: int, duration: float) -> TierRun | None:
    """Sum up what the replicas did; None without a tier."""
    tiers = [record.tier for record in records if record.tier is not None]
    if not tiers:
        return None
    gpus = deployment.layout.tensor * deployment.layout.pipeline
    waits = np.concatenate([record.started_at - record.tier.load_began for record in records if record.tier])
    waits = waits[~np.isnan(waits)]

    def way(name: str) -> Way:
        links = [getattr(tier, name) for tier in tiers]
        return Way(
            copies=sum(link.num_copies for link in links),
            num_bytes=sum(link.num_bytes for link in links) * gpus,
            seconds=sum(link.seconds for link in links),
            use=min(1.0, max(link.seconds for link in links) / duration),
        )

    return TierRun(
        peak_use=max(tier.peak_blocks / tier.num_blocks for tier in tiers),
        hit_rate=float(sum(tier.num_loaded.sum() for tier in tiers)) / num_input,
        queries=sum(tier.num_queried for tier in tiers),
        hits=sum(tier.num_hit for tier in tiers),
        load=way("load"),
        store=way("store"),
        num_refused=sum(tier.num_refused for tier in tiers),
        held_up=sum(tier.waited for tier in tiers),
        num_loaded=int(waits.size),
        mean_wait=float(waits.mean()) if waits.size else 0.0,
    )
