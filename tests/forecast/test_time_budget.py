"""Answers within a time: how long a run becomes depends on the time, and nothing else does."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import infercast
from infercast.errors import InputError
from infercast.forecast import progress
from infercast.forecast.command import explain
from infercast.forecast.diagnosis.diagnose import diagnose_run
from infercast.forecast.progress import Pace, share_of_time, time_budget, time_left
from infercast.forecast.result import Forecast
from infercast.report.diagnosis import change_words

NEAR = {"gpu": "l4", "rate": 30.0, "input_len": 300, "output_len": 60}  # Near what it serves at most


class Clock:
    """One that goes on by some seconds whenever it is read."""

    def __init__(self, each: float) -> None:
        self.now, self.each = 0.0, each

    def __call__(self) -> float:
        self.now += self.each
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    monkeypatch.setattr(progress, "_cuts", [])
    return lambda each: monkeypatch.setattr(progress, "clock", Clock(each))


def near(**others: Any) -> Forecast:
    return infercast.simulate("qwen2.5-0.5b", **{**NEAR, **others})


def test_a_run_that_is_cut_says_so_and_what_would_do(clock: Callable[[float], None]) -> None:
    whole = near()
    clock(1.0)
    short = near(time_limit=6.0)
    assert short.steady.stopped == "time"
    assert len(short.workload.requests) < len(whole.workload.requests)
    assert short.steady.num_needed is not None
    assert f"{short.steady.num_needed:,}" in short.headline
    assert progress.was_cut()
    assert whole.steady.stopped != "time"


def test_the_stage_alone_decides_what_is_said(clock: Callable[[float], None]) -> None:
    found: dict[int, list[str]] = {}
    for each in (1.0, 1.5, 3.0, 0.01):
        clock(each)
        made = near(time_limit=6.0)
        found.setdefault(len(made.workload.requests), []).append(repr((made.ttft, made.tpot, made.state, made.steady)))
    assert len(found) > 1
    for same in found.values():
        assert len(set(same)) == 1


@pytest.mark.parametrize(
    ("load", "least"),
    [({"rate": None, "concurrency": 300}, 3 * 300), ({"rate": 90.0, "data_parallel_size": 6}, 6 * 100)],
)
def test_no_run_is_so_short_that_it_says_nothing_of_the_load(
    load: dict[str, Any], least: int, clock: Callable[[float], None]
) -> None:
    clock(100.0)
    assert len(near(**load, time_limit=1.0).workload.requests) >= least


def test_a_length_that_is_given_is_served_whatever_it_takes(clock: Callable[[float], None]) -> None:
    clock(100.0)
    made = near(num_requests=400, time_limit=1.0)
    assert len(made.workload.requests) == 400
    assert made.steady.stopped == "asked"
    assert not progress.was_cut()


def test_without_a_limit_no_clock_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "time_left", lambda: float("inf"))
    assert Pace().affordable(100, 1000) == 1000


def test_lengths_are_halves_of_what_is_wanted(clock: Callable[[float], None]) -> None:
    clock(0.0)
    with time_budget(100.0):
        pace = Pace()
        progress.clock.now, pace._began = 10.0, 0.0  # type: ignore[attr-defined]
        assert pace.affordable(1000, 4000) == 4000
        assert not pace.is_late
        assert pace.affordable(1000, 21_000) == 6000
        assert pace.is_late
        assert pace.affordable(1000, 9000, again=True) == 9000
        progress.clock.now = 99.0  # type: ignore[attr-defined]
        assert pace.affordable(1000, 9000) == 1000


def test_shares_of_the_time_and_budgets_within_budgets(clock: Callable[[float], None]) -> None:
    clock(0.0)
    assert time_left() == float("inf")
    with time_budget(8.0):
        with share_of_time(0.25):
            assert time_left() == 2.0
            with time_budget(100.0):
                assert time_left() == 2.0
        assert time_left() == 8.0
        with time_budget(None):
            assert time_left() == 8.0
    with share_of_time(0.5):
        assert time_left() == float("inf")
    with pytest.raises(InputError, match="time_limit must be seconds above 0, not 0"), time_budget(0):
        pass


def test_no_time_is_left_for_changes(clock: Callable[[float], None]) -> None:
    forecast = near(num_requests=300, rate=4.0)
    clock(1.0)
    with time_budget(1.5):
        found = diagnose_run(forecast)
    assert found.is_late
    assert not found.tried
    assert "time limit" in change_words(found)
    clock(1.0)
    with time_budget(0.5):
        advised = explain.advise([("as asked", forecast)])
    assert advised.untried
    assert not advised.ranked


def test_an_edge_is_then_between_two_rates(clock: Callable[[float], None]) -> None:
    clock(1.0)
    load = {"input_len": 300, "output_len": 60, "num_requests": 150}
    found = infercast.sweep("qwen2.5-0.5b", "l4", rates=[2, 400], slo="ttft_p50<60ms", time_limit=2.0, **load)
    assert found.promise is not None
    assert (found.promise.value, found.promise.fails_at) == (2, 400)


ALL_CORES = """
import os
from infercast.forecast import parallel
import infercast
from infercast.units import json_text
def both(function, *given, **options):
    texts = []
    for width in (1, 2):
        parallel.PATIENCE, parallel.processors = 0.0, lambda: width
        found = function(*given, **options)
        texts.append(json_text(found.to_dict()))
    assert texts[0] == texts[1]
load = {"input_len": 300, "output_len": 40, "num_requests": 150}
both(infercast.sweep, "qwen2.5-0.5b", "l4", rates=[2, 4, 6], slo="ttft_p99<1s", **load)
both(infercast.sweep, "qwen2.5-0.5b", "l4", vary=("max_num_seqs", [8, 64, 128]), rate=4, **load)
def where(item):
    if item == 3:
        raise ValueError("three")
    return os.getpid()
parallel.PATIENCE, parallel.processors = 0.0, lambda: 2
found = list(parallel.on_all_cores(where, [0, 1, 2]))
assert found[0] == os.getpid() and os.getpid() not in found[1:], found
try:
    list(parallel.on_all_cores(where, [0, 1, 2, 3]))
except ValueError as problem:
    print(problem)
print("equal")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_all_cores_say_what_one_says() -> None:
    done = subprocess.run([sys.executable, "-c", ALL_CORES], capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout == "three\nequal\n", done.stderr
