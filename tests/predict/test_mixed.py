"""Prompts and decoding sequences in one launch."""

import numpy as np
import pytest

from infercast.predict.adjust.mixed import ADDED_SHARE, SLOWED_SHARE, join, together
from infercast.predict.estimate import Estimate


def test_both_take_longer_than_one_and_short_halves_less_than_their_sum():
    prompts, decodes = np.array([1e-3, 20e-6, 5e-6]), np.array([100e-6, 400e-6, 6e-6])
    both = together(prompts, decodes)
    assert (both >= np.maximum(prompts, decodes)).all()
    assert (both <= (1 + SLOWED_SHARE) * prompts + ADDED_SHARE * decodes).all()
    assert (both[1:] <= prompts[1:] + ADDED_SHARE * decodes[1:]).all()


def test_long_prompts_slow_down_beside_sequences_that_decode():
    alone, beside = 1373.7e-6, 59.8e-6
    # 7,332 tokens of 64 heads and 127 sequences of 252 tokens took 1,888 us on an H200.
    assert together(alone, beside) == pytest.approx(1888e-6, rel=0.05)
    assert together(alone, 0.0) == pytest.approx(alone)


def test_what_each_launch_needs_once_is_counted_once():
    assert together(32 * 50e-6, 32 * 8e-6, 32) == pytest.approx(32 * together(50e-6, 8e-6))


def test_the_longer_half_names_the_bound():
    prompts, decodes = (Estimate(s, 0.9 * s, 1.2 * s, "measured", b) for s, b in ((2e-4, "tensor"), (1e-4, "dram")))
    both = join(prompts, decodes)
    assert both.bound == "tensor"
    assert both.low < both.seconds < both.high
