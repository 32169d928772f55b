"""A day of traffic on a fleet."""

from dataclasses import replace

import numpy as np
import pytest

from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import InputError
from infercast.forecast import autoscaling
from infercast.forecast.autoscaling import (
    Autoscaler,
    Autoscaling,
    Goal,
    fixed,
    learn_curve,
    made_up_day,
    parse_profile,
    run_fleet,
    scheduled,
    traffic_of,
)
from infercast.forecast.day import autoscaler_row, capacity, chance_out
from infercast.forecast.deploy import deploy
from infercast.forecast.fleet import start_up
from infercast.forecast.slo import attainment, parse_slo
from infercast.forecast.system import replicas_of, system_of
from infercast.serve import Workload
from infercast.serve.workload.distributions import parse_lengths

SLO = "ttft_p99<2s,tpot_p95<60ms"
INPUTS, OUTPUTS = parse_lengths("uniform:50:400", "inputs"), parse_lengths("uniform:10:60", "outputs")


@pytest.fixture(scope="module", autouse=True)
def _short_simulations():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoscaling, "LEAST", 500)
        patch.setattr(autoscaling, "MOST", 3000)
        yield


@pytest.fixture(scope="module")
def deployment():
    return deploy("qwen2.5-7b", "l4", EngineSettings(max_model_len=4096, max_num_seqs=32), quantization="fp8")


def day(rate=8.0, hours=3, profile="flat"):
    return made_up_day(rate, profile, INPUTS, OUTPUTS, duration=3600.0 * hours)


@pytest.fixture(scope="module")
def curve(deployment):
    return learn_curve(system_of(deployment), day(), parse_slo(SLO))


def wave(traffic, minutes=20.0):
    """The same requests in waves of 20 minutes."""
    places = np.linspace(0.0, 1.0, 10_001)
    count = traffic.arrivals[-1] / 60.0 / minutes
    passed = places - 0.8 * np.sin(2 * np.pi * count * places) / (2 * np.pi * count)
    share = traffic.arrivals / traffic.arrivals[-1]
    return replace(traffic, arrivals=np.interp(share, passed / passed[-1], places) * traffic.arrivals[-1])


def test_a_curve_rises(curve):
    assert np.all(np.diff(curve.in_system) > 0)
    assert np.all(np.diff(curve.rates) >= 0)
    assert curve.rates[-1] == curve.full_rate
    numbers = np.linspace(0, 3 * curve.in_system[-1], 30)
    uses = [curve.use_of_limits(number) for number in numbers]
    assert uses[-1] > 1 > uses[0]
    assert curve.attained(0.0) > 0.99
    assert curve.attained(numbers[-1]) < 0.05
    most = curve.most_kept()
    assert curve.use_of_limits(0.99 * most) < 1 <= curve.use_of_limits(1.01 * most) + 0.02


def test_steps_end_where_as_many_leave_as_come(curve):
    number = 0.0
    for _ in range(200):
        number = curve.after(number, 0.5 * curve.full_rate)
    assert curve.rate_at(number) == pytest.approx(0.5 * curve.full_rate, rel=1e-6)
    for _ in range(10):  # more than can be served: all of the rest stays
        before, number = number, curve.after(number, 2 * curve.full_rate)
    assert number - before == pytest.approx(10.0 * curve.full_rate, rel=1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_steps_agree_with_a_simulation_of_every_request(deployment, curve, count):
    traffic = wave(day(rate=0.62 * curve.full_rate * count, hours=0.2), minutes=6.0)
    steps = replace(traffic, window=10.0)
    curves = {1: curve}
    if count > 1:
        curves[count] = learn_curve(replicas_of(deployment, count), day(), parse_slo(SLO), count)
    done = run_fleet(curves, steps.load(np.ones(traffic.arrivals.size)), fixed(count))
    stepped = float((done.attained * steps.counts).sum() / steps.counts.sum())
    served = replicas_of(deployment, count).serve(traffic.between(0.0, 3600.0)).clients
    simulated = attainment(served, parse_slo(SLO))
    assert 0.3 < simulated < 0.995, "neither too easy nor hopeless"
    assert stepped == pytest.approx(simulated, abs=0.08)


@pytest.fixture(scope="module")
def plan(deployment):
    traffic = made_up_day(9.0, "sine:1.9:12", INPUTS, OUTPUTS)
    return capacity(deployment, traffic, SLO, price=1.0, check=False)


def test_a_day_shows_itself(plan):
    assert repr(plan).startswith("<DayPlan: qwen2.5-7b, replicas of 1 x l4: a fixed fleet of ")
    assert plan._repr_html_().count("<table>") >= 3
    pytest.importorskip("pandas")
    assert list(plan.to_frame()["name"]) == ["fixed", "scheduled", "autoscaled"]
    pytest.importorskip("matplotlib")
    assert plan.plot()._repr_png_().startswith(b"\x89PNG")


def test_a_day_with_three_policies(plan):
    plain, timed, scaled = plan.policies
    assert plain.keeps(plan.goal)
    assert plain.ready.min() == plain.ready.max() == plan.smallest_fleet > 1
    assert timed.keeps(plan.goal)
    assert timed.gpu_hours < plain.gpu_hours
    assert scaled.keeps(plan.goal)
    assert scaled.gpu_hours < plain.gpu_hours
    assert len(plan.hours) == 24
    assert plan.hours[12] == max(plan.hours) > min(plan.hours)
    assert plain.cost == pytest.approx(plain.gpu_hours) == pytest.approx(24 * plan.smallest_fleet, rel=0.001)


def test_the_check_simulates_the_busiest_minutes(deployment):
    traffic = wave(day(rate=4.0, hours=0.5))
    check = capacity(deployment, traffic, SLO, goal=Goal(0.95, "requests")).check
    assert 0 < check.requests < 7000
    assert check.begin < traffic.arrivals[np.argmax(traffic.counts[traffic.places])] < check.end
    assert check.stepped == pytest.approx(check.simulated, abs=0.06)
    assert "simulated one by one" in check.sentence


def test_an_slo_that_never_holds_is_refused(deployment, monkeypatch):
    monkeypatch.setattr(autoscaling, "LEAST", 100)  # an idle replica tells
    monkeypatch.setattr(autoscaling, "MOST", 800)
    with pytest.raises(InputError, match="an idle replica already takes"):
        capacity(deployment, day(), "ttft_p99<1ms")


def test_new_replicas_serve_after_their_start():
    rules = Autoscaler(interval=30.0, down_delay=60.0, most=4)
    scale = Autoscaling(rules, target=0.5, full_rate=1.0, step=10.0, lag=45.0, first=1)
    rates = [0.4] * 3 + [1.9] * 20 + [0.4] * 30
    seen = [scale(step, rate, 0.0) for step, rate in enumerate(rates)]
    asked = next(step for step, (_, paid) in enumerate(seen) if paid > 1)
    serving = next(step for step, (ready, _) in enumerate(seen) if ready > 1)
    assert 10.0 * (serving - asked) == pytest.approx(50.0)  # the first step after 45 s
    assert max(paid for _, paid in seen) == 4
    assert seen[-1] == (1, 1)
    down = next(step for step in range(30, len(seen)) if seen[step][0] < 4)
    assert 10.0 * (down - 23) >= 60.0


def test_a_queue_is_scaled_on_too():
    rules = Autoscaler(measure="queue", interval=10.0)
    scale = Autoscaling(rules, target=5.0, full_rate=1.0, step=10.0, lag=0.0, first=1)
    scale(0, 1.0, 24.0)
    assert scale(1, 1.0, 24.0) == (5, 5)


def test_a_timetable_starts_replicas_ahead():
    scale = scheduled([1, 3, 2], step=60.0, lag=120.0)
    assert scale(57, 0.0, 0.0) == (1, 1)
    assert scale(58, 0.0, 0.0) == (1, 3)
    assert scale(60, 0.0, 0.0) == (3, 3)
    assert scale(999, 0.0, 0.0) == (2, 2)


def test_a_start_is_weights_graphs_and_the_rest(deployment):
    start = start_up(deployment, bandwidth=1e9, other=10.0)
    assert start.weights == pytest.approx(deployment.memory.weights / 1e9)
    assert start.seconds == pytest.approx(start.weights + start.graphs + 10.0)
    with pytest.raises(InputError, match="load bandwidth"):
        start_up(deployment, bandwidth=0.0)


def test_a_made_up_day_has_its_peak_where_it_was_asked_for():
    traffic = made_up_day(5.0, "sine:1.8:9", INPUTS, OUTPUTS)
    by_hour = np.bincount((traffic.arrivals // 3600).astype(int))
    assert by_hour.sum() / 86_400 == pytest.approx(5.0, rel=0.01)
    assert by_hour[8:10].mean() / by_hour.mean() == pytest.approx(1.8, rel=0.03)
    assert traffic.num_windows == 1440
    again = made_up_day(5.0, "sine:1.8:9", INPUTS, OUTPUTS)
    assert np.array_equal(again.arrivals, traffic.arrivals)
    assert parse_profile("flat")[0] == 1.0
    for wrong in ("sine", "sine:3", "sine:1.5:30", "cosine:1.5", "sine:a", "sine:1.5:2:3"):
        with pytest.raises(InputError, match="must be flat or sine:FACTOR"):
            parse_profile(wrong)


def test_a_day_of_a_trace():
    load = day(hours=1).between(0.0, 3600.0)
    traffic = traffic_of(load, 60.0)
    assert traffic.counts.sum() == len(load.requests)
    assert traffic.between(600.0, 660.0).requests[0].arrival < 1.0
    with pytest.raises(InputError, match="a closed loop has none"):
        traffic_of(Workload(load.requests, concurrency=3))
    with pytest.raises(InputError, match="a window must be 10 to 3600 s"):
        traffic_of(load, 0.01)


def test_the_row_for_an_autoscaler(plan):
    row = autoscaler_row(plan)
    assert row["max_requests_per_s_at_slo"] < row["max_requests_per_s"]
    assert 0 < row["alpha_ms"] < 60
    assert row["beta_ms_per_sequence"] > 0
    assert row["delta_ms_per_input_token"] > 0
    mean = row["fixed_ms_per_request"] + row["ms_per_input_token"] * 225 + row["ms_per_output_token"] * 35
    assert 1000 / mean == pytest.approx(row["max_requests_per_s"], rel=0.15)


def test_few_requests_break_a_percentile_by_chance():
    counts = np.array([0, 1, 100, 100, 100, 10_000, 10_000])
    beyond = np.array([[0.5], [0.02], [0.0], [0.01], [0.5], [0.005], [0.02]])
    out = chance_out(parse_slo("ttft_p99<1s"), counts, beyond)
    assert out[0] == 0.0
    assert out[1] == pytest.approx(0.02)  # its p99 is its only request
    assert out[2] == pytest.approx(0.0, abs=1e-9)
    assert out[3] == pytest.approx(1 - 0.99**100, rel=1e-6)  # 1 % of the 99 others: none may be beyond
    assert out[4] == pytest.approx(1.0)
    assert out[5] < 1e-6
    assert out[6] > 1 - 1e-6
    assert chance_out(parse_slo("ttft_mean<1s"), counts[1:3], np.array([[1.0], [0.0]])).tolist() == [1.0, 0.0]
