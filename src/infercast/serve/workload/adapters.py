"""Which LoRA adapter each request asks for: some are far more popular than others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from infercast.errors import InputError
from infercast.serve.workload.request import Adapters, Request, Segment, Workload

MOST_ADAPTERS = 1_000_000
NAME_BITS = 20
"""Of the name of a prompt's first segment that tell adapters apart."""
STREAM = 104_729
"""Beside the seed: adapters have random numbers of their own."""


def asking_for(request: Request, adapter: int | None) -> Request:
    """The same request with an adapter: what it computes is of use to others with the same one alone."""
    if adapter is None or not request.prefix:
        return replace(request, adapter=adapter)
    first, *others = request.prefix
    renamed = Segment((first.content << NAME_BITS) + adapter + 1, first.num_tokens)
    return replace(request, adapter=adapter, prefix=(renamed, *others))


def with_adapters(workload: Workload, mix: Adapters, *, seed: int = 0) -> Workload:
    """The same requests, each of which asks for an adapter by chance; all of a session for the same."""
    if not 1 <= mix.count <= MOST_ADAPTERS:
        raise InputError(f"adapters must be 1 to {MOST_ADAPTERS:,}, not {mix.count!r}")
    if not (0 <= mix.skew <= 10 and 0 < mix.share <= 1):
        raise InputError(f"the skew of adapters must be 0 to 10 and their share above 0 and up to 1, not {mix!r}")
    if any(request.adapter is not None for request in workload.requests):
        raise InputError("the workload names the adapters of its requests; leave out --adapters")
    rng = np.random.default_rng((seed, STREAM))
    weights = np.arange(1, mix.count + 1, dtype=float) ** -mix.skew
    count = len(workload.requests)
    chosen = rng.choice(mix.count, size=count, p=weights / weights.sum()).tolist()
    asks = (rng.random(count) < mix.share).tolist()
    of_sessions: dict[int, int | None] = {}
    found = []
    for request, number, does in zip(workload.requests, chosen, asks, strict=True):
        adapter = number if does else None
        if request.session is not None:
            adapter = of_sessions.setdefault(request.session, adapter)
        found.append(asking_for(request, adapter))
    shared = "" if mix.share == 1.0 else f" for {mix.share:.0%} of requests"
    words = f"{workload.description}; {mix.count:,} LoRA adapters, Zipf {mix.skew:g}{shared}"
    return replace(workload, requests=tuple(found), adapters=mix, description=words)
