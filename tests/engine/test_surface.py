"""The decode surface: exact on its grid, close in between, and never made of anything but prices."""

import numpy as np
import pytest

from infercast.engine.surface import DecodeSurface


def price(queries, keys):
    """Two kernels: one that grows with all keys, one with the number of sequences."""
    total = np.broadcast_to(keys, (keys.shape[0], max(keys.shape[1], queries.shape[1]))).sum(axis=1)
    return np.stack([2e-6 + 1e-9 * total, np.full(len(keys), 1e-6 * keys.shape[1])], axis=1)


@pytest.fixture(scope="module")
def surface():
    return DecodeSurface(price, max_sequences=256, max_keys=16384)


@pytest.mark.parametrize("count", [1, 2, 7, 33, 250, 256])
def test_close_to_the_price_everywhere(surface, count):
    mean = np.array([16.0, 100.0, 999.0, 5000.0, 16384.0])
    exact = price(np.ones((1, count)), np.broadcast_to(mean[:, None], (5, count)))
    assert np.allclose(surface(count, mean), exact, rtol=0.05)


def test_shorter_than_the_grid_is_its_first_point(surface):
    assert np.array_equal(surface(4, np.array([1.0])), surface(4, np.array([16.0])))


def test_one_sequence_engine_still_has_a_surface():
    assert DecodeSurface(price, 1, 20)(1, np.array([18.0])).shape == (1, 2)
