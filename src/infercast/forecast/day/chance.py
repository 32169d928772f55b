"""How likely it is that the few requests of one minute break a percentile that holds for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.forecast.slo import Slo

Array = npt.NDArray[Any]


def chance_out(slo: Slo, counts: Array, beyond: Array) -> Array:
    """The probability that a limit does not hold in each window.

    ``counts`` are the requests of each, ``beyond`` the share of requests beyond each limit (columns). Each request is
    beyond a limit or not, by itself; limits are broken together, so the likelier one decides.
    """
    chances = []
    for limit, shares in zip(slo.limits, beyond.T, strict=True):
        if limit.percentile is None:
            chances.append(np.asarray(shares >= 0.5, dtype=float))
        else:
            # So many may be beyond it: a percentile lies between the ranks beside it.
            allowed = np.floor((1.0 - limit.percentile / 100.0) * np.maximum(counts - 1, 0) + 1e-9)
            chances.append(more_than(allowed, counts, shares))
    return np.where(counts > 0, np.max(chances, axis=0), 0.0)


def more_than(allowed: Array, counts: Array, shares: Array) -> Array:
    """The probability of more than ``allowed`` of ``counts`` independent events, each with its share."""
    share = np.clip(shares, 1e-12, 1.0 - 1e-12)
    at_most, logarithm = np.zeros(counts.size), counts * np.log1p(-share)
    for number in range(int(allowed.max(initial=0.0)) + 1):
        at_most += np.where(number <= np.minimum(allowed, counts), np.exp(logarithm), 0.0)
        left = np.maximum(counts - number, 1e-300)
        logarithm = logarithm + np.log(left / (number + 1)) + np.log(share) - np.log1p(-share)
    return np.clip(1.0 - at_most, 0.0, 1.0)
