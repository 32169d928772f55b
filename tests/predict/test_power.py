"""The power limit: felt by long steps of dense products only."""

from dataclasses import replace

import numpy as np

from infercast.hardware import load_gpu
from infercast.predict.board_power import longest_limited, power_limits, throttle, throttle_decoding, weight_of

GPU = load_gpu("h200-sxm")
PEAK = GPU.dense_flops("bf16")


def test_short_steps_lose_less():
    assert 1.0 < throttle(GPU, 0.9 * PEAK * 0.002, 0.002) < 1.005
    assert 1.0 < throttle(GPU, 0.9 * PEAK * 0.02, 0.02) < throttle(GPU, 0.9 * PEAK * 0.2, 0.2)


def test_steps_that_wait_for_memory_run_at_the_full_clock():
    assert throttle(GPU, 0.3 * PEAK * 1.0, 1.0) == 1.0


def test_long_dense_steps_lose_what_the_sustained_clock_costs():
    lost = throttle(GPU, 0.8 * PEAK * 0.5, 0.5)
    assert 1.1 < lost < 1.0 / GPU.sustained_fraction


def test_more_work_in_the_same_time_never_loses_less():
    lost = [throttle(GPU, share * PEAK * 0.3, 0.3) for share in np.linspace(0.1, 1.0, 20)]
    assert (np.diff(lost) >= 0).all()


def test_a_chip_that_sustains_its_boost_clock_loses_nothing():
    free = replace(GPU, sustained_clock=GPU.boost_clock)
    assert throttle(free, 0.9 * PEAK * 0.5, 0.5) == 1.0


def test_narrow_formats_draw_less():
    assert 0.5 <= weight_of("fp8") < 1.0
    assert weight_of("bf16") == 1.0


def test_few_products_are_free_however_long_they_take():
    for products in (1e11, 1e12, 1e13, 1e14):
        seconds = float(longest_limited(GPU, products))
        assert throttle(GPU, products, 1.001 * seconds) == 1.0
        assert seconds < 0.01 or throttle(GPU, products, 0.9 * seconds) > 1.0


def test_decoding_feels_it_by_how_much_it_multiplies():
    shares = np.array([0.0, 0.1, 0.4, 0.9, 1.0])
    lost = throttle_decoding(GPU, shares * PEAK * 0.007, 0.007)
    assert lost[0] == 1.0
    assert (np.diff(lost) >= 0).all()
    assert 1.02 < lost[1] < 1.05
    assert lost[-1] == lost[-2] == 1.0 + power_limits(GPU).max_slowdown
