"""Which shapes a minute of measuring takes."""

import numpy as np

from measure.choose_anchors import choose

FEATURES = np.random.default_rng(0).normal(size=(400, 3))


def test_anchors_lie_apart_and_are_chosen_once():
    chosen = choose("collective", FEATURES, 32)
    assert len(set(chosen.tolist())) == 32
    assert np.array_equal(chosen, choose("collective", FEATURES, 32))
    assert np.ptp(FEATURES[chosen, 0]) > 0.7 * np.ptp(FEATURES[:, 0])


def test_no_more_anchors_than_rows():
    assert sorted(choose("collective", FEATURES[:5], 32).tolist()) == [0, 1, 2, 3, 4]
