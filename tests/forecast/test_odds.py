"""The odds of a limit: the interval keeps its meaning, the middle is slower under load, and tails are heavy."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from infercast.forecast.deploy import deploy
from infercast.forecast.result import chance_below
from infercast.forecast.uncertainty import (
    EIGHTY,
    SLOWER_ELSEWHERE,
    SLOWER_UNDER_LOAD,
    is_at_once,
    odds_within,
    slower_by,
)
from infercast.serve.workload.synthetic import synthetic_workload


def test_an_interval_holds_eighty_percent() -> None:
    assert odds_within(0.2, 0.2) - odds_within(-0.2, 0.2) == pytest.approx(0.8)
    assert odds_within(0.0, 0.2) == pytest.approx(0.5)


def test_tails_are_heavier_and_the_middle_is_denser_than_of_a_normal_distribution() -> None:
    assert 1 - odds_within(0.4, 0.2) > 0.0052  # twice the half width: a normal distribution's odds
    assert odds_within(0.05, 0.2) > 0.6257


def test_no_width_is_certainty() -> None:
    assert odds_within(np.array([-0.1, 0.0, 0.1]), 0.0).tolist() == [0.0, 1.0, 1.0]


def test_each_side_has_its_own_width() -> None:
    assert chance_below(1.0, 1.0, 0.5, 1.2) == pytest.approx(0.5)
    assert chance_below(1.2, 1.0, 0.5, 1.2) == pytest.approx(0.9)
    assert chance_below(0.5, 1.0, 0.5, 1.2) == pytest.approx(0.1)
    assert chance_below(0.9, 1.0, 1.0, 1.2) == 0.0  # nothing is faster than a bound


def test_ends_of_intervals_are_where_odds_are_a_tenth_and_nine_tenths() -> None:
    width, slower = 0.2, 0.3
    middle = width * slower / EIGHTY
    low, high = exp(middle - width), exp(middle + width)
    assert chance_below(low, 1.0, low, high, slower=slower) == pytest.approx(0.1)
    assert chance_below(high, 1.0, low, high, slower=slower) == pytest.approx(0.9)
    for limit in (0.7, 0.95, 1.01, 1.04, 1.5):
        said = chance_below(limit, 1.0, low, high, slower=slower)
        assert said == pytest.approx(float(odds_within(log(limit), width, slower)))


def test_what_is_slower_than_its_forecast() -> None:
    loaded = synthetic_workload(count=20, rate=4.0, input_lengths="100", output_lengths="10")
    burst = replace(loaded, requests=tuple(replace(each, arrival=0.0) for each in loaded.requests), rate=None)
    alone = deploy("qwen3-0.6b", "h200-sxm", api_server=False, engine="vllm@0.25")
    served = deploy("qwen3-0.6b", "h200-sxm", api_server=True)
    assert is_at_once(burst)
    assert not is_at_once(loaded)
    assert not is_at_once(replace(burst, concurrency=4))
    assert slower_by([alone], burst) == 0.0
    assert slower_by([alone], loaded) == SLOWER_UNDER_LOAD
    assert slower_by([served], loaded) == slower_by([served], burst) == SLOWER_ELSEWHERE
    assert slower_by([alone, alone], loaded) == SLOWER_ELSEWHERE
