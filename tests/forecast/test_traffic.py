"""What a workload was drawn from is found again in its description."""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from infercast.forecast.traffic import describe_traffic, fit_lengths
from infercast.serve.workload.distributions import parse_lengths
from infercast.serve.workload.request import Request, Reuse, Segment
from infercast.serve.workload.synthetic import session_workload, synthetic_workload, workload_from_requests
from infercast.serve.workload.traces import read_trace


def test_rate_lengths_and_prefix_are_found_again():
    drawn = synthetic_workload(
        rate=7.0, count=4000, input_lengths="lognormal:700:0.9", output_lengths="lognormal:180:0.8:4:1000",
        prefix_length=512, prefix_groups=4, seed=5,
    )  # fmt: skip
    found = describe_traffic(drawn)
    options = dict(found.options)
    assert float(options["rate"]) == pytest.approx(7.0, rel=0.05)
    assert options["arrival"] == "poisson"
    assert (options["prefix-len"], options["prefix-groups"]) == ("512", "4")
    for name, text in (("input-len", "lognormal:700:0.9"), ("output-len", "lognormal:180:0.8:4:1000")):
        fitted, known = parse_lengths(options[name], name), parse_lengths(text, name)
        assert fitted.mean == pytest.approx(known.mean, rel=0.1)
        samples = (each.sample(20_000, np.random.default_rng(3)) for each in (fitted, known))
        middle, as_known = (np.quantile(each, [0.1, 0.5, 0.95]) for each in samples)
        assert middle == pytest.approx(as_known, rel=0.1)
    expected = 512 * (4000 - 4) / sum(request.num_input for request in drawn.requests)
    assert found.reuse == pytest.approx(expected, rel=1e-6)
    assert sum(found.rates) * found.span_s / len(found.rates) == pytest.approx(4000)


@pytest.mark.parametrize(("arrival", "burstiness"), [("gamma", 0.25), ("constant", 1.0)])
def test_burstiness(arrival, burstiness):
    drawn = synthetic_workload(rate=5.0, count=5000, arrival=arrival, burstiness=burstiness, seed=1)
    options = dict(describe_traffic(drawn).options)
    assert options["arrival"] == arrival
    assert float(options.get("burstiness", 1.0)) == pytest.approx(burstiness, rel=0.15)


def test_sessions():
    drawn = session_workload(
        session_rate=1.0, count=3000, turns=4, input_lengths=300, turn_lengths=80, output_lengths=50,
        think="exponential:9",
    )  # fmt: skip
    found = describe_traffic(drawn)
    options = dict(found.options)
    assert found.sessions.turns == pytest.approx(4, abs=0.01)
    assert float(options["session-rate"]) == pytest.approx(1.0, rel=0.1)
    assert (options["turn-len"], options["output-len"], options["input-len"]) == ("80", "50", "300")
    assert float(options["think"].partition(":")[2]) == pytest.approx(9.0, rel=0.15)


def test_recorded_minutes_and_prompts_that_continue_earlier_ones(tmp_path):
    """What a trace with bursts and reuse is described by gives such a trace again."""
    rng = np.random.default_rng(2)
    bursts = np.sort(rng.choice(np.arange(0.0, 1200.0, 60.0), 2000) + rng.exponential(0.5, 2000))
    lengths: dict[str, Any] = {
        "input_lengths": "lognormal:900:0.8:16:8000", "output_lengths": "uniform:5:40", "prefix_length": 64,
    }  # fmt: skip
    reuse = Reuse(
        0.5, *(parse_lengths(text, "") for text in ("lognormal:700:0.7", "lognormal:60000:0.8", "30")), longest=20_000
    )
    drawn = synthetic_workload(count=2000, seed=4, recorded=tuple(bursts.tolist()), reuse=reuse, **lengths)
    rows = [{"arrival": each.arrival, "input": each.num_input, "output": each.num_output} for each in drawn.requests]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert dict(describe_traffic(path).options)["arrivals-of"] == str(path)
    gaps = [np.diff([each.arrival for each in workload.requests]) for workload in (drawn, read_trace(path))]
    assert np.sort(gaps[0]) == pytest.approx(np.sort(gaps[1]))
    assert len({each.arrival // 10 for each in drawn.requests}) <= 2 * 20  # bursts stay whole
    assert drawn.rate == pytest.approx(1999 / (bursts[-1] - bursts[0]))
    whole = [sum(piece.num_tokens for piece in each.prefix) for each in drawn.requests]
    assert whole == [each.num_input for each in drawn.requests]
    continued = [each for each in drawn.requests if each.prefix[-1].num_tokens == 30]
    assert len(continued) == pytest.approx(1000, abs=20)
    common = [each.num_input - 30 - 64 for each in continued]
    assert np.median(common) == pytest.approx(700 * np.exp(-0.245), rel=0.1)
    found = dict(describe_traffic(drawn).options)
    assert (found["prefix-len"], found["prefix-groups"]) == ("64", "1")


def test_a_trace_of_years_is_drawn_from_at_once():
    drawn = synthetic_workload(count=30, recorded=(0.0, 1.0, 3e9))
    assert len(drawn.requests) == 30
    assert all(before.arrival <= after.arrival for before, after in pairwise(drawn.requests))


def test_reuse_says_how_far_back():
    """Blocks of a trace: half of all prompts repeat the one eight requests before it, and add a block."""
    blocks = iter(range(10**6))
    requests: list[Request] = []
    for number in range(400):
        before = requests[number - 8].prefix if number % 2 and number >= 8 else ()
        prefix = (*before, *(Segment(next(blocks), 512) for _ in range(4 - len(before) % 4)))
        requests.append(Request(float(number), 512 * len(prefix), 10, prefix))
    found = dict(describe_traffic(workload_from_requests(requests)).options)
    assert float(found["reuse"]) == pytest.approx(0.49, abs=0.005)
    between = sum(each.num_input + 10 for each in requests[300:307])
    distance = parse_lengths(found["reuse-distance"], "")
    assert distance.points[3] < between < distance.maximum


def test_one_request_and_one_length():
    found = describe_traffic(synthetic_workload(arrival="burst", count=1, input_lengths=9, output_lengths=3))
    assert found.command == "--arrival burst --input-len 9 --output-len 3"
    assert fit_lengths(np.array([5, 5])) == "5"
