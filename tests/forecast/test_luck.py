"""The draw of arrivals and lengths is part of the intervals, where chance made the requests."""

from dataclasses import replace

import numpy as np
import pytest

from infercast.engines.vllm.settings import EngineSettings
from infercast.forecast.deploy import deploy
from infercast.forecast.intervals import forecast_intervals
from infercast.forecast.simulate import simulate
from infercast.forecast.slo import NAMES
from infercast.forecast.uncertainty import chance_in, luck_of, results_of
from infercast.serve import simulate as simulate_replica
from infercast.serve.workload.synthetic import redrawn, scaled, synthetic_workload

SEEDS = 8
LOAD = {"count": 200, "input_lengths": "lognormal:300:0.8:16:2000", "output_lengths": "lognormal:40:0.7:2:200"}


@pytest.fixture(scope="module")
def small():
    deployment = deploy("qwen3-0.6b", "l4", EngineSettings(max_num_seqs=16, max_model_len=4096))
    return deployment.replica()


@pytest.mark.parametrize("rate", [3.0, 15.0])
def test_another_seed_lies_within_four_times_out_of_five(small, rate):
    """Over all pairs of eight seeds; few enough for a test, so the bounds are wide."""
    loads = [synthetic_workload(rate=rate, seed=seed, **LOAD) for seed in range(SEEDS)]
    records = [simulate_replica(small, load) for load in loads]
    results = np.log([results_of(record) for record in records])
    widths = [
        luck_of(load, record, small, lambda other: simulate_replica(small, other))
        for load, record in zip(loads, records, strict=True)
    ]
    inside = np.mean(
        [
            np.abs(results[other] - results[own]) <= widths[own]
            for own in range(SEEDS)
            for other in range(SEEDS)
            if own != other
        ],
        axis=0,
    )
    assert 0.7 < inside.mean() < 0.95
    by_rank = [
        np.abs(results[other] - results[own]) <= chance_in(records[own])
        for own in range(SEEDS)
        for other in range(SEEDS)
        if own != other
    ]
    tail = NAMES.index("p99")
    assert inside[tail] > 0.6
    assert np.mean(by_rank, axis=0)[tail] < inside[tail]


def test_a_long_steady_run_shows_by_itself_what_chance_does():
    """Ten times as long as a draw must be; a shorter one is drawn again. Over all pairs of eight seeds."""
    deployment = deploy("qwen3-0.6b", "l4", EngineSettings(max_num_seqs=16, max_model_len=4096))
    forecasts = [
        simulate(deployment, synthetic_workload(rate=3.0, seed=k, **{**LOAD, "count": 1400})) for k in range(8)
    ]

    def luck(of, steady):
        drawn, small = [], of.system.pools[0].replica

        def serve(other):
            drawn.append(other)
            return simulate_replica(small, other)

        return luck_of(of.workload, of.clients, small, serve, steady=steady), len(drawn)

    assert luck(forecasts[0], None)[1] == 4
    found = [luck(each, each.steady_window) for each in forecasts]
    assert not any(count for _, count in found)
    results = np.log([results_of(each.clients) for each in forecasts])
    pairs = [(own, other) for own in range(8) for other in range(8) if own != other]
    inside = np.mean([np.abs(results[other] - results[own]) <= found[own][0] for own, other in pairs], axis=0)
    assert 0.7 < inside.mean() < 0.95
    assert inside[NAMES.index("p99")] > 0.6


def test_intervals_hold_it(small):
    deployment = deploy("qwen3-0.6b", "l4", EngineSettings(max_num_seqs=16, max_model_len=4096))
    forecast = simulate(deployment, synthetic_workload(rate=10, **LOAD))
    given = replace(forecast, workload=replace(forecast.workload, drawn=None))
    drawn, fixed = (forecast_intervals(each) for each in (forecast, given))
    assert drawn.ttft.high.p99 > fixed.ttft.high.p99
    assert drawn.output_tokens_per_second[1] > 1.02 * fixed.output_tokens_per_second[1]
    assert forecast_intervals(forecast) == drawn, "same seed, same bytes"


def test_what_was_given_is_not_drawn_again():
    load = synthetic_workload(rate=10, **LOAD)
    assert redrawn(load, seed=1, count=50) == synthetic_workload(rate=10, seed=1, **{**LOAD, "count": 50})
    assert redrawn(load, seed=0, count=200) == load
    for changed in (scaled(load, rate_scale=2.0), scaled(load, limit=10), replace(load, drawn=None)):
        assert redrawn(changed, seed=1, count=5) is None


def test_a_longer_request_of_another_seed_is_cut_to_what_the_model_takes():
    """Without bounds some seed draws a request that this engine would refuse."""
    deployment = deploy("qwen3-0.6b", "h200-sxm", EngineSettings(max_model_len=2048))
    load = synthetic_workload(rate=10, count=60, input_lengths="lognormal:300:0.9", output_lengths="lognormal:40:0.9")
    longest = max(request.num_input + request.num_output for request in load.requests)
    assert longest < 2048
    assert forecast_intervals(simulate(deployment, load)).ttft.high.p99 > 0


def test_closed_loops_and_bursts_are_drawn_again_too(small):
    for how in ({"concurrency": 4}, {"arrival": "burst"}):
        load = synthetic_workload(**{**LOAD, **how, "count": 60})
        record = simulate_replica(small, load)
        widths = luck_of(load, record, small, lambda other: simulate_replica(small, other))
        assert widths is not None
        assert np.all(widths[:-1] > 0)
