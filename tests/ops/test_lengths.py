"""Uneven batches described by a count, a mean and a spread."""

import numpy as np
import pytest

from infercast.ops.op import spread_lengths


def test_no_spread_makes_all_equal() -> None:
    assert spread_lengths(5, 300, 0.0).tolist() == [300] * 5


@pytest.mark.parametrize("count", [1, 2, 7, 64, 512])
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_the_mean_is_kept(count: int, sigma: float) -> None:
    lengths = spread_lengths(count, 2000, sigma)
    assert len(lengths) == count
    assert lengths.min() >= 1
    assert lengths.mean() == pytest.approx(2000, rel=1e-3)


def test_the_logarithm_spreads_as_asked() -> None:
    assert np.log(spread_lengths(512, 5000, 0.5)).std() == pytest.approx(0.5, rel=0.02)


def test_always_the_same_and_not_sorted() -> None:
    first, second = spread_lengths(64, 1000, 1.0), spread_lengths(64, 1000, 1.0)
    assert (first == second).all()
    assert (np.diff(first) < 0).any()
    assert (np.diff(first) > 0).any()


def test_short_sequences_have_at_least_one_token() -> None:
    assert spread_lengths(256, 2, 1.0).min() == 1
