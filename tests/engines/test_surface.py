"""The decode surface: exact on its grid, close in between, and never made of anything but estimates."""

import numpy as np
import pytest

from infercast.engines.tables import PAGE, DecodeSurface, PromptSurface


def estimate(queries, keys, sequences=1):
    """Two kernels: one that grows with all keys, one with the number of sequences."""
    _, keys, counts = np.broadcast_arrays(queries, keys, sequences)
    return np.stack([2e-6 + 1e-9 * (keys * counts).sum(axis=1), 1e-6 * counts.sum(axis=1)], axis=1)


@pytest.fixture(scope="module")
def surface():
    return DecodeSurface(estimate, max_sequences=256, max_keys=16384)


@pytest.mark.parametrize("count", [1, 2, 7, 33, 250, 256])
def test_close_to_the_price_everywhere(surface, count):
    for mean in (16, 100, 999, 5000, 16384):
        exact = estimate(np.ones((1, count)), np.full((1, count), mean))[0]
        assert np.allclose([column[0] for column in surface(count, mean * count)], exact, rtol=0.05)


def test_a_stretch_is_its_steps_one_by_one(surface):
    for total in (7 * 300, 7 * 300 + 3):
        together = surface(7, total, 40)
        alone = [surface(7, total + 7 * step) for step in range(40)]
        assert together == [[columns[kernel][0] for columns in alone] for kernel in range(2)]


def test_between_two_whole_lengths_is_the_line_between_their_estimates(surface):
    (low, high), (middle,) = surface(4, 400, 2)[0], surface(4, 402)[0]
    assert middle == pytest.approx((low + high) / 2, rel=1e-12)


def test_an_answer_ends_with_its_page(surface):
    assert len(surface(1, PAGE - 3, 10)[0]) == 3


def test_shorter_than_the_grid_is_its_first_point(surface):
    assert surface(4, 4) == surface(4, 64)


def test_one_sequence_engine_still_has_a_surface():
    assert len(DecodeSurface(estimate, 1, 20)(1, 18)) == 2


def test_a_whole_prompt_is_the_edge_of_the_grid():
    surface = PromptSurface(estimate, 1024, 4096)
    for length in (2, 3, 100, 777, 1024, 5000):
        edge, beside = surface([(length, 0)]), surface([(length, 1e-9)])
        assert np.allclose(edge, beside, rtol=1e-9)
