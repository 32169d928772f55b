"""Anchors: a few measured points correct what was learned elsewhere."""

import numpy as np

from infercast.predict.families import FAMILIES
from infercast.predict.families.gemm import FP8_FEATURES
from infercast.predict.kernels import learn

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(400, 3))


def test_a_common_miss_is_learned_everywhere():
    correction = learn("collective", FEATURES[:16], np.full(16, 0.4), FEATURES)
    assert np.allclose(correction(FEATURES), 0.4, atol=0.05)


def test_a_miss_that_varies_with_the_shape_is_learned_near_the_anchors():
    misses = 0.3 * np.tanh(FEATURES[:, 0])
    anchors = np.argsort(FEATURES[:, 0])[5::10]
    correction = learn("collective", FEATURES[anchors], misses[anchors], FEATURES)
    assert np.mean(np.abs(correction(FEATURES) - misses)) < 0.4 * np.mean(np.abs(misses))


def test_an_odd_anchor_does_not_rule():
    misses = np.zeros(20)
    misses[3] = 5.0
    assert np.max(np.abs(learn("collective", FEATURES[:20], misses, FEATURES)(FEATURES))) < 0.5


def test_the_interval_is_wider_far_from_the_anchors_and_where_they_disagree():
    misses = 0.3 * np.tanh(FEATURES[:, 0])
    noisy = misses + RNG.normal(size=400) * 0.3
    near, far = FEATURES[:40], FEATURES[:40] + 30.0
    calm, rough = (learn("collective", FEATURES[:40], given[:40], FEATURES) for given in (misses, noisy))
    assert calm.spread(near).mean() < calm.spread(far).mean()
    assert calm.spread(near).mean() < rough.spread(near).mean()


def test_anchors_that_agree_by_chance_leave_the_interval_of_the_process():
    """They lie apart, so that a few of them say little of how far off other kernels are."""
    widths = [learn("collective", FEATURES[:count], np.zeros(count), FEATURES).widening for count in (4, 32, 128)]
    assert 1.7 > widths[0] > widths[1] > 1.0 > widths[2] > 0.4


def test_anchors_of_a_chip_whose_sibling_was_learned_from_leave_less():
    near, far = (
        learn("collective", FEATURES[:32], np.zeros(32), FEATURES, near=near).widening for near in (True, False)
    )
    assert 0.5 * far < near < 0.7 * far


def test_a_pipe_that_is_slower_everywhere_is_found_from_a_few_shares():
    """Half of the launch takes twice as long: kernels that are all launch are off by more."""
    names = FAMILIES["moe"].features["moe"]
    features, launch = np.zeros((200, len(names))), names.index("launch_share")
    features[:, launch] = np.linspace(0.0, 1.0, 200)
    misses = np.log(1.0 + 0.5 * features[:, launch])
    few = learn("moe", features[::25], misses[::25], features)
    assert np.max(np.abs(few(features) - misses)) < 0.05


def test_products_of_a_sweep_have_features_of_their_own():
    features = RNG.normal(size=(60, len(FP8_FEATURES)))
    correction = learn("gemm", features[:20], np.full(20, 0.2), features)
    assert np.allclose(correction(features), 0.2, atol=0.05)
    assert correction.spread(features).min() > 0.0
