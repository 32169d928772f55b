"""Forests: all ways to walk them give the same sum, and that sum is what the trees say."""

import numpy as np
import pytest

from infercast.predict import fitted as module
from infercast.predict.fitted import Forest


def stump() -> Forest:
    """One tree of depth two: is the first feature above 1, is the second above 10?"""
    return Forest(
        features=np.array([[0, 1]], dtype=np.uint8),
        borders=np.array([[1.0, 10.0]], dtype=np.float32),
        leaves=np.array([[1.0, 2.0, 4.0, 8.0]], dtype=np.float32),
        bias=0.5,
    )


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([0.5, 5.0], 1.5),  # no, no: leaf 0
        ([1.5, 5.0], 2.5),  # yes, no: leaf 1
        ([0.5, 11.0], 4.5),  # no, yes: leaf 2
        ([1.5, 11.0], 8.5),  # yes, yes: leaf 3
        ([1.0, 10.0], 1.5),  # a value on its border is not above it
    ],
)
def test_answers_are_the_bits_of_a_leaf(row, expected):
    assert stump().predict(np.array([row])).tolist() == [expected]


def test_one_row_a_few_and_many_agree(monkeypatch, random_forest):
    rows = np.random.default_rng(0).normal(size=(500, 7))
    one = np.concatenate([random_forest().predict(rows[i : i + 1]) for i in range(500)])
    few = random_forest().predict(rows)
    monkeypatch.setattr(module, "MANY", 0)
    monkeypatch.setattr(module, "CHUNK", 64)
    assert np.allclose(random_forest().predict(rows), few, rtol=0, atol=1e-5)
    assert np.allclose(one, few, rtol=0, atol=1e-5)


def test_leaf_numbers_pick_the_leaves_that_are_added(random_forest):
    forest = random_forest()
    rows = np.random.default_rng(0).normal(size=(30, 7))
    picked = forest.leaves[np.arange(40), forest.leaf_numbers(rows)]
    assert np.allclose(forest.bias + picked.sum(axis=1), forest.predict(rows), atol=1e-5)


def test_no_rows_give_no_answers(random_forest):
    assert random_forest().predict(np.empty((0, 7))).shape == (0,)
