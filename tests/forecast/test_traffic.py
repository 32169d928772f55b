"""What a workload was drawn from is found again in its description."""

import numpy as np
import pytest

from infercast.forecast.traffic import describe_traffic, fit_lengths
from infercast.serve.workload.distributions import parse_lengths
from infercast.serve.workload.synthetic import session_workload, synthetic_workload


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


def test_one_request_and_one_length():
    found = describe_traffic(synthetic_workload(arrival="burst", count=1, input_lengths=9, output_lengths=3))
    assert found.command == "--arrival burst --input-len 9 --output-len 3"
    assert fit_lengths(np.array([5, 5])) == "5"
