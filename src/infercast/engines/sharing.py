"""What copies that share experts do together in a step: the experts, and sending tokens to them and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.models.lower import token_calls
from infercast.predict.adjust.beside import felt_seconds

TOGETHER = ("experts", "experts_dispatch", "experts_combine")
FINENESS = 1.3
"""Ratio of two numbers of tokens that are estimated; in between, times lie on straight lines."""


def shared_seconds(deployment: Deployment) -> Callable[[float], float]:
    """Seconds of a step's shared part, by the tokens that each copy brings if all bring as many."""
    most = deployment.settings.max_num_batched_tokens
    sizes = np.unique(np.rint(np.geomspace(1, most, 2 + round(np.log(most) / np.log(FINENESS)))).astype(np.int64))
    seconds = np.zeros(sizes.size)
    for call in token_calls(deployment.model, deployment.layout, sizes):
        if call.name in TOGETHER:
            seconds += np.asarray(felt_seconds(call, deployment.predictor.seconds(call.op, deployment.gpu)))

    @lru_cache(maxsize=4096)
    def shared(tokens: float) -> float:
        return float(np.interp(tokens, sizes, seconds))

    return shared
