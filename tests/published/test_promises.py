"""Promises: the odds are those of the shape, buckets count right, and those of the measured runs mean what they say."""

import json
from math import exp
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from infercast.forecast.uncertainty import SLOWER_UNDER_LOAD
from infercast.lab.validate.compare import Comparison, Parts, RunComparison, validate
from infercast.lab.validate.measured import read_measured, shipped_runs
from published.promises import (
    BUCKETS,
    LIMITS,
    Promises,
    both,
    main,
    orders_of,
    promises_of,
    reliability,
    reliability_of,
    reliability_svg,
    worst_of,
)


def test_a_promise_holds_where_the_measured_value_keeps_the_limit() -> None:
    latency = promises_of(Comparison(measured=1.2, predicted=1.0, half_width=0.2), slower=0.0)
    assert np.array_equal(latency.held, LIMITS >= 1.2)
    assert np.all(np.diff(latency.odds) > 0)
    rate = promises_of(Comparison(measured=1.2, predicted=1.0, half_width=0.2), slower=0.0, is_rate=True)
    assert np.array_equal(rate.held, LIMITS <= 1.2)
    assert np.all(np.diff(rate.odds) < 0)


def test_slower_than_forecast_makes_every_promise_less_likely() -> None:
    pair = Comparison(measured=1.0, predicted=1.0, half_width=0.2)
    for is_rate in (False, True):
        plain, loaded = (promises_of(pair, slower, is_rate=is_rate) for slower in (0.0, 0.3))
        assert np.all(loaded.odds < plain.odds)


def test_buckets_count_what_was_said_and_what_held() -> None:
    odds, held = np.array([0.05] * 30 + [0.95, 1.0]), np.array([False] * 27 + [True] * 5)
    buckets = reliability(Promises(odds, held))
    assert len(buckets) == BUCKETS
    assert (buckets[0].count, buckets[0].odds, buckets[0].held) == (30, pytest.approx(0.05), pytest.approx(0.1))
    assert (buckets[4].count, buckets[4].odds, buckets[4].held) == (0, None, None)
    assert (buckets[9].count, buckets[9].off) == (2, None)
    assert worst_of(buckets) == pytest.approx(0.05)
    assert worst_of(reliability(Promises(np.empty(0), np.empty(0, dtype=bool)))) is None


def test_two_limits_are_as_likely_as_the_less_likely_one() -> None:
    first = Promises(np.array([0.2, 0.9]), np.array([False, True]))
    second = Promises(np.array([0.5]), np.array([True]))
    joint = both(first, second)
    assert joint.odds.tolist() == [0.2, 0.5]
    assert joint.held.tolist() == [False, True]


def fake_run(file: str, measured: float, predicted: float) -> RunComparison:
    pair = Comparison(measured, predicted, 0.2)
    return RunComparison(file, "poisson", "poisson 4/s", pair, pair, pair, pair, parts=Parts(False, 100))


def test_the_order_of_engines_with_one_load() -> None:
    straight = orders_of([fake_run(f"{number}", 1.0 + number, 2.0 + number) for number in range(6)])
    turned = orders_of([fake_run(f"{number}", 1.0 + number, 9.0 - number) for number in range(6)])
    few = orders_of([fake_run(f"{number}", 1.0 + number, 2.0 + number) for number in range(3)])
    assert all(each.of_one_load == pytest.approx(1.0) and each.of_all == pytest.approx(1.0) for each in straight)
    assert {each.loads for each in straight} == {1}
    assert all(each.of_one_load == pytest.approx(-1.0) for each in turned)
    assert {(each.of_one_load, each.loads) for each in few} == {(None, 0)}


def test_right_odds_are_found_to_be_right_and_wrong_ones_wrong() -> None:
    """Errors drawn from the shape itself, and errors three times as large."""
    draw = np.random.default_rng(0)
    errors = 0.2 * draw.standard_t(2, 2000) / 1.8856
    right = reliability_of([fake_run("one", exp(error), 1.0) for error in errors])[0]
    wrong = reliability_of([fake_run("one", exp(3 * error), 1.0) for error in errors])[0]
    assert right.worst is not None
    assert wrong.worst is not None
    assert right.worst < 0.03
    assert wrong.worst > 0.1


def test_promises_about_measured_runs_hold_as_often_as_they_say() -> None:
    """Four engines of different kinds; all of them are counted in docs/odds.md."""
    names = ("llama-3.1-8b.", "qwen3-30b-a3b.", "gemma-2-9b.", "llama-3.1-8b__small.")
    files = [read_measured(path) for path in shipped_runs("vllm@0.25") if path.name.startswith(names)]
    runs = validate(files).runs
    assert {run.slower for run in runs} == {0.0, SLOWER_UNDER_LOAD}
    groups = {group.about: group for group in reliability_of(runs)}
    surest = groups["all"].buckets[-1]
    assert surest.held == pytest.approx(surest.odds, abs=0.05)
    least = groups["all"].buckets[0]
    assert least.held == pytest.approx(least.odds, abs=0.05)


def test_the_picture_is_drawn(tmp_path: Any, capsys: Any) -> None:
    measured, picture = (
        next(path for path in shipped_runs("vllm@0.25") if "small" in path.name),
        tmp_path / "promises.svg",
    )
    main([str(measured), "--plot", str(picture), "--json"])
    groups = json.loads(capsys.readouterr().out)["reliability"]
    assert set(groups) == {"all", "static", "under_load", "two_limits"}
    count = 6 * len([run for run in read_measured(measured).runs if run.kind != "warmup"])
    assert sum(bucket["count"] for bucket in groups["all"]["buckets"]) == count * LIMITS.size
    text = picture.read_text("utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "under load" in text


def test_a_picture_without_promises_is_still_one() -> None:
    assert ElementTree.fromstring(reliability_svg(reliability_of([]))).tag.endswith("svg")
