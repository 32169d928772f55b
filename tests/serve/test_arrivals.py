from __future__ import annotations

import math

import numpy as np
import pytest

from infercast.errors import InputError, UnknownNameError
from infercast.serve.workload.distributions import arrival_times


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(("kind", "burstiness"), [("poisson", 1.0), ("gamma", 0.25), ("gamma", 1.0), ("gamma", 4.0)])
def test_random_gaps_have_the_asked_rate_and_variation(kind: str, burstiness: float) -> None:
    times = arrival_times(kind, 12.0, 200_000, rng(), burstiness)
    gaps = np.diff(times, prepend=0.0)
    assert gaps.mean() == pytest.approx(1 / 12.0, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.02)
    assert (gaps >= 0).all()
    assert times[0] > 0


def test_gamma_of_burstiness_one_is_poisson() -> None:
    poisson = arrival_times("poisson", 3.0, 1000, rng(7))
    assert poisson.tobytes() == arrival_times("gamma", 3.0, 1000, rng(7), 1.0).tobytes()


def test_poisson_counts_per_second_have_equal_mean_and_variance() -> None:
    counts = np.bincount(arrival_times("poisson", 20.0, 100_000, rng(3)).astype(int))[:-1]
    assert counts.mean() == pytest.approx(20.0, rel=0.02)
    assert counts.var() == pytest.approx(20.0, rel=0.1)


def test_constant_starts_at_zero_and_keeps_its_gap() -> None:
    assert arrival_times("constant", 4.0, 5, rng()).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_burst_is_everything_at_zero() -> None:
    assert arrival_times("burst", None, 3, rng()).tolist() == [0.0, 0.0, 0.0]


def test_same_seed_same_bytes() -> None:
    first = arrival_times("gamma", 5.0, 500, rng(11), 0.5)
    assert first.tobytes() == arrival_times("gamma", 5.0, 500, rng(11), 0.5).tobytes()
    assert first.tobytes() != arrival_times("gamma", 5.0, 500, rng(12), 0.5).tobytes()


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan, 1e-320])
def test_rate_must_be_positive_and_finite(rate: float) -> None:
    with pytest.raises(InputError, match="rate must be a positive, finite number of requests per second, not "):
        arrival_times("poisson", rate, 10, rng())


@pytest.mark.parametrize("burstiness", [0.0, -0.5, math.inf, math.nan])
def test_burstiness_must_be_positive_and_finite(burstiness: float) -> None:
    with pytest.raises(InputError, match="burstiness must be a positive, finite number"):
        arrival_times("gamma", 1.0, 10, rng(), burstiness)


def test_count_must_be_at_least_one() -> None:
    with pytest.raises(InputError, match="count must be at least 1 request, not 0"):
        arrival_times("poisson", 1.0, 0, rng())


def test_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="unknown arrival kind 'poison'; did you mean poisson"):
        arrival_times("poison", 1.0, 10, rng())


def test_burst_refuses_a_rate_and_the_others_need_one() -> None:
    with pytest.raises(InputError, match=r"rate 2\.0 was given, but a burst has none"):
        arrival_times("burst", 2.0, 10, rng())
    for kind in ("poisson", "gamma", "constant"):
        with pytest.raises(InputError, match=f"rate is missing: {kind} arrivals need requests per second"):
            arrival_times(kind, None, 10, rng())


@pytest.mark.parametrize(("kind", "rate"), [("poisson", 1.0), ("constant", 1.0), ("burst", None)])
def test_burstiness_belongs_to_gamma(kind: str, rate: float | None) -> None:
    with pytest.raises(InputError, match=f"burstiness 0.5 has no meaning for {kind} arrivals; use gamma"):
        arrival_times(kind, rate, 10, rng(), 0.5)


@pytest.mark.parametrize(("kind", "burstiness"), [("constant", 1.0), ("poisson", 1.0), ("gamma", 5e-324)])
def test_times_beyond_floating_point_are_refused(kind: str, burstiness: float) -> None:
    with pytest.raises(InputError, match="gives arrival times too large for a clock"):
        arrival_times(kind, 1e-308, 100, rng(), burstiness)
