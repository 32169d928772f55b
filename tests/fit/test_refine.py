"""Refining: the same trees, better leaves."""

import numpy as np

from infercast.lab.fit.train import refine
from infercast.predict.fitted import Forest


def two_trees() -> Forest:
    """Two stumps on two features that know nothing yet."""
    return Forest(
        features=np.array([[0], [1]], dtype=np.uint8),
        borders=np.zeros((2, 1), dtype=np.float32),
        leaves=np.zeros((2, 2), dtype=np.float32),
        bias=0.0,
    )


def test_leaves_go_where_the_rows_are():
    features = np.random.default_rng(0).normal(size=(4000, 2))
    target = np.where(features[:, 0] > 0, 0.3, 0.1) + np.where(features[:, 1] > 0, 0.05, -0.05)
    refined = refine(two_trees(), features, target, rounds=40)
    assert np.abs(refined.predict(features) - target).max() < 0.01
    assert np.array_equal(refined.features, two_trees().features)


def test_few_rows_hardly_move_a_leaf():
    refined = refine(two_trees(), np.array([[1.0, 1.0]]), np.array([1.0]), rounds=1)
    assert 0 < refined.leaves[0, 1] < 0.1
    assert refined.leaves[0, 0] == 0
