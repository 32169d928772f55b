"""A running engine beside its forecast: an emulated one whose host is slow, or whose prompts share less."""

from math import inf

import numpy as np
import pytest

from infercast.calibrate.learn import Watched, between, fetch, judge, lengths_of, parse
from infercast.emulate.emulator import Call, Emulator
from infercast.errors import InputError
from infercast.forecast.deploy import deploy
from infercast.forecast.intervals import slowed
from infercast.forecast.system import system_of
from infercast.serve.workload.distributions import parse_lengths
from infercast.serve.workload.synthetic import synthetic_workload


def watched(engine: str = "vllm", host: float = 1.0, shared_later: float = 0.6, count: int = 300) -> Watched:
    """An emulated engine on a clock without a wall, with two snapshots of its metrics."""
    deployment = deploy("qwen3-0.6b", "h200-sxm", engine=engine)
    system = system_of(deployment)
    pool = system.pools[0]
    system = system._replace(pools=(pool.of(slowed(pool.replica, host=host)),))
    time = [0.0]
    emulator = Emulator(system, parse_lengths("lognormal:60:0.5:4:300", ""), clock=lambda: time[0])
    workload = synthetic_workload(rate=20, count=count, input_lengths="lognormal:500:0.5:64:2000", output_lengths=1)
    rng = np.random.default_rng(0)
    common, requests, first, begin = rng.integers(1, 1000, 2000).tolist(), [*workload.requests], "", 0.0
    while requests or emulator.live.next_event < inf:
        arrival = requests[0].arrival if requests else inf
        time[0] = min(arrival, emulator.live.next_event)
        emulator.catch_up()
        if not first and len(requests) <= 2 * count // 3:
            first, begin = emulator.metrics_text(), time[0]
        if arrival <= time[0]:
            length = requests.pop(0).num_input
            shared = int((shared_later if first else 0.6) * length)
            ids = [*common[:shared], *rng.integers(1, 50_000, length - shared).tolist()]
            emulator.start(Call(), 0, ids, 1000)
    return judge(deployment, first, emulator.metrics_text(), time[0] - begin, lambda _: None)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_slow_host_is_found(engine: str) -> None:
    found = watched(engine, host=1.2)
    assert any("host time" in each and "above" in each for each in found.deviations)
    assert found.calibration.host.value == pytest.approx(1.2, rel=0.08)
    assert found.outputs.mean == pytest.approx(60, rel=0.15)


def test_fewer_prefix_hits_are_found_and_a_host_as_forecast_is_not() -> None:
    found = watched(shared_later=0.1)
    assert any("prefix hits went from" in each for each in found.deviations)
    assert not any("host" in each for each in found.deviations)


def test_too_few_requests_are_said() -> None:
    with pytest.raises(InputError, match="too few"):
        judge(deploy("qwen3-0.6b", "h200-sxm"), "", "", 30.0, lambda _: None)


def test_nobody_at_an_address() -> None:
    with pytest.raises(InputError, match="does not answer"):
        fetch("http://127.0.0.1:9/v1")
    with pytest.raises(InputError, match="no address"):
        fetch("file:///etc/passwd")


def test_spread_of_a_histogram() -> None:
    counts = {100: 10, 200: 60, 500: 95, "+Inf": 100}
    lines = [f'x_bucket{{le="{edge}"}} {count}' for edge, count in counts.items()]
    values = parse("\n".join([*lines, "x_sum{} 20000", "x_count{} 100", "no line of it", "# HELP x y"]))
    found = lengths_of(values, "x")
    assert found.mean == 200
    assert 50 < found.spread < 200
    assert "x_count{} 100.0" in between({}, values)
