"""Which LoRA adapter each request asks for: some are far more popular than others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from infercast.errors import InputError
from infercast.serve.workload.request import Adapters, Workload

MOST_ADAPTERS = 1_000_000
STREAM = 104_729
"""Beside the seed: adapters have random numbers of their own."""


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
        found.append(replace(request, adapter=adapter))
    shared = "" if mix.share == 1.0 else f" for {mix.share:.0%} of requests"
    words = f"{workload.description}; {mix.count:,} LoRA adapters, Zipf {mix.skew:g}{shared}"
    return replace(workload, requests=tuple(found), adapters=mix, description=words)
