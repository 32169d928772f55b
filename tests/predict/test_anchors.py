"""Anchors: a few measured points correct what was learned elsewhere."""

import numpy as np

from infercast.predict.anchors import learn, spread_out

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(400, 3))


def test_a_common_miss_is_learned_everywhere():
    correction = learn(FEATURES[:16], np.full(16, 0.4), FEATURES)
    assert np.allclose(correction(FEATURES), 0.4, atol=0.02)


def test_a_miss_that_varies_with_the_shape_is_learned_near_the_anchors():
    misses = 0.3 * np.tanh(FEATURES[:, 0])
    anchors = spread_out(FEATURES, 40)
    correction = learn(FEATURES[anchors], misses[anchors], FEATURES)
    assert np.mean(np.abs(correction(FEATURES) - misses)) < 0.4 * np.mean(np.abs(misses))


def test_an_odd_anchor_does_not_rule():
    misses = np.zeros(20)
    misses[3] = 5.0
    assert np.max(np.abs(learn(FEATURES[:20], misses, FEATURES)(FEATURES))) < 0.5


def test_anchors_lie_apart_and_are_chosen_once():
    chosen = spread_out(FEATURES, 32)
    assert len(set(chosen.tolist())) == 32
    assert np.array_equal(chosen, spread_out(FEATURES, 32))
    assert np.ptp(FEATURES[chosen, 0]) > 0.7 * np.ptp(FEATURES[:, 0])


def test_no_more_anchors_than_rows():
    assert sorted(spread_out(FEATURES[:5], 32).tolist()) == [0, 1, 2, 3, 4]
