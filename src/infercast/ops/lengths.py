"""Uneven batches that a few numbers describe: lengths as the quantiles of a log-normal distribution."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def spread_lengths(count: int, mean: int, sigma: float) -> npt.NDArray[np.int64]:
    """``count`` lengths of about this mean, in an order that looks random and is always the same.

    ``sigma`` is the standard deviation of the logarithm: 0 makes all equal, 1 is as uneven as chat traffic.
    """
    if sigma == 0:
        return np.full(count, mean, dtype=np.int64)
    from statistics import NormalDist  # noqa: PLC0415 - few need it, and it loads decimals and fractions

    normal = NormalDist()
    quantiles = np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)])
    lengths = np.exp(sigma * quantiles)
    lengths = np.maximum(np.rint(lengths * (mean / lengths.mean())), 1).astype(np.int64)
    return np.asarray(np.random.default_rng(count).permutation(lengths))
