"""Replicas of several kinds behind one load balancer, which gives each what it can serve."""

from itertools import product

import numpy as np
import pytest

from infercast import deploy, simulate
from infercast.errors import InputError
from infercast.forecast.cost import Tariff
from infercast.forecast.fleet import parse_fleet
from infercast.forecast.simulate import simulate_system
from infercast.forecast.system import fleet_of, system_of
from infercast.serve.fleet.router import Engines, Loads, make_policy
from infercast.serve.workload.clients import Arrival
from infercast.serve.workload.request import Request
from infercast.serve.workload.synthetic import synthetic_workload

MODEL, MIXED = "llama-3.1-8b", "2xh100-sxm + 3xl40s:q=fp8,max_model_len=16384"
TIMES = ("sent_at", "started_at", "first_token", "last_token", "engine")


def load(rate=30.0, count=400):
    return synthetic_workload(
        rate=rate, count=count, input_lengths="uniform:100:900", output_lengths=100, prefix_length=60, prefix_groups=20
    )


@pytest.fixture(scope="module")
def mixed():
    return simulate(MODEL, fleet=MIXED, rate=45.0, seed=2, slo="ttft_p99<1s,tpot_p95<40ms")


@pytest.mark.parametrize("router", ["least_loaded", "round_robin", "prefix_aware"])
def test_equal_groups_are_the_plain_deployment(router):
    one = deploy(MODEL, "h100-sxm")
    plain = simulate_system(system_of(one, router, instances=3), load())
    groups = simulate(MODEL, load(), fleet="2xh100-sxm + 1xh100-sxm", router=router)
    for name in TIMES:
        assert getattr(groups.clients, name).tolist() == getattr(plain.clients, name).tolist()
    assert (groups.ttft, groups.tpot, groups.inter_token) == (plain.ttft, plain.tpot, plain.inter_token)
    assert (groups.state, groups.steady) == (plain.state, plain.steady)
    assert groups.engines == plain.engines
    assert groups.prefix_hit_rate == plain.prefix_hit_rate
    assert groups.cost == plain.cost
    assert groups.intervals.ttft.high.p50 == pytest.approx(plain.intervals.ttft.high.p50, rel=0.02)
    assert groups.running.mean == pytest.approx(plain.running.mean)
    single = simulate(MODEL, load(), fleet="3xh100-sxm", router=router)
    assert single.clients.last_token.tolist() == plain.clients.last_token.tolist()
    assert single.groups == ()


def test_each_group_has_its_share(mixed):
    fast, slow = mixed.groups
    assert fast.share + slow.share == pytest.approx(1.0)
    assert fast.weight == 1.0
    assert 0.1 < slow.weight < 0.7
    assert fast.share / fast.replicas > slow.share / slow.replicas
    assert fast.tpot.p50 < slow.tpot.p50
    assert fast.ttft.p50 < mixed.ttft.p90
    assert fast.usd_per_hour + slow.usd_per_hour == pytest.approx(mixed.cost.per_hour)
    assert (fast.gpus, slow.gpus, mixed.gpus) == (2, 3, 5)
    assert sum(each.requests for each in mixed.engines) == len(mixed.workload.requests)
    assert mixed.running.mean == pytest.approx(sum(each.running for each in mixed.engines), rel=0.02)
    told = mixed.to_dict(intervals=False)
    assert [each["group"] for each in told["groups"]] == [fast.name, slow.name]
    assert told["groups"][1]["ttft_ms"]["p50"] == pytest.approx(1e3 * slow.ttft.p50)
    assert mixed.router == "least_loaded"
    assert mixed.verdict.holds


def test_weights_keep_the_slow_ones_from_falling_behind(mixed):
    workload = load(80.0, 1500)
    known = mixed.system
    weighted = simulate_system(known, workload)
    alike = simulate_system(known._replace(weights=(1.0, 1.0)), workload)
    assert weighted.tpot.p95 < alike.tpot.p95
    assert weighted.groups[0].share > alike.groups[0].share


def shares(name, weights, count=6000, down=()):
    engines = Engines(len(weights), weights=weights, down=down)
    policy, loads = make_policy(name, engines), Loads(len(weights))
    chosen = []
    for number in range(count):
        request = Request(float(number), 100, 10)
        engine = policy(Arrival(float(number), number, float(number), request), loads)
        loads.sent(engine, request)
        chosen.append(engine)
    return np.bincount(chosen, minlength=len(weights)) / count


@pytest.mark.parametrize("name", ["round_robin", "random", "least_loaded", "session_affinity"])
def test_requests_are_dealt_out_by_weight(name):
    weights = (1.0, 0.5, 0.25, 0.25)
    assert shares(name, weights) == pytest.approx([0.5, 0.25, 0.125, 0.125], abs=0.02)
    assert shares(name, weights, down={0}) == pytest.approx([0.0, 0.5, 0.25, 0.25], abs=0.02)


def test_round_robin_by_weight_is_even():
    engines = Engines(2, weights=(1.0, 0.5))
    policy = make_policy("round_robin", engines)
    assert [policy(None, None) for _ in range(6)] == [0, 1, 0, 0, 1, 0]


def test_a_fleet_may_have_other_engines_and_failures():
    found = simulate(MODEL, fleet="h100-sxm:engine=sglang + h100-sxm", rate=20.0, num_requests=200, fail="1@3s+3s")
    assert {pool.deployment.engine.family for pool in found.pools} == {"sglang", "vllm"}
    assert found.outages.outages[0]["replica"] == 1
    assert not np.isnan(found.clients.last_token).any()


def test_deployments_make_a_fleet():
    one, other = deploy(MODEL, "h100-sxm"), deploy(MODEL, "l40s", max_model_len=8192)
    found = simulate_system(fleet_of([("new", one, 1), ("old", other, 2)], "round_robin"), load(10.0, 200))
    assert [(each.name, each.replicas) for each in found.groups] == [("new", 1), ("old", 2)]


def test_groups_in_words():
    found = parse_fleet("h100-sxm + h100-sxm+2 x h100-sxm + 0-3xl4", lambda gpu: None)
    numbers = [("h100-sxm", [1]), ("h100-sxm #2", [1]), ("h100-sxm #3", [2]), ("l4", [0, 1, 2, 3])]
    assert [(name, [*counts]) for name, _, counts in found] == numbers


@pytest.mark.parametrize("rate", [26.0, 38.0])
def test_no_mix_is_cheaper_than_the_one_chosen(rate):
    slo, workload = "ttft_p99<1s,tpot_p95<40ms", load(rate, 600)
    asked = {"slo": slo, "router": "least_loaded"}
    chosen = simulate(MODEL, workload, fleet="0-2xh100-sxm + 0-2xl40s:q=fp8,max_model_len=16384", **asked)
    assert chosen.verdict.holds
    prices, tried = [Tariff().price(gpu).per_hour for gpu in ("h100-sxm", "l40s")], 0
    for fast, slow in product(range(3), range(3)):
        parts = [f"{fast}xh100-sxm"] * bool(fast) + [f"{slow}xl40s:q=fp8,max_model_len=16384"] * bool(slow)
        if prices[0] * fast + prices[1] * slow >= chosen.cost.per_hour - 1e-6 or not parts:
            continue
        tried += 1
        assert not simulate(MODEL, workload, fleet=" + ".join(parts), **asked).verdict.holds
    assert tried >= 1


def test_where_no_mix_can_be_chosen():
    with pytest.raises(InputError, match="need an SLO"):
        simulate(MODEL, load(), fleet="0-2xh100-sxm")
    with pytest.raises(InputError, match="mixes that can serve the rate"):
        simulate(MODEL, load(), fleet="1-2xh100-sxm", slo="ttft_p99<1ms")


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        ("", "groups of replicas"), ("2xh100-sxm:", "groups of replicas"), ("h100-sxm,l40s", "groups of replicas"),
        ("0xh100-sxm", "a replica of each"),
        ("3-2xh100-sxm", "a replica of each"), ("h100-sxm:tp", "name=value"), ("h100-sxm:foo=3", "unknown"),
        ("h100-sxm:gpu=l4 + l40s", "before the colon"), ("h100-sxm:tp=2,dp=2", "unknown"),
    ],
)  # fmt: skip
def test_other_words_are_refused(fleet, words):
    with pytest.raises(InputError, match=words):
        simulate(MODEL, fleet=fleet, rate=2.0)


def test_what_is_no_fleet():
    with pytest.raises(InputError, match="leave gpu"):
        simulate(MODEL, gpu="h100-sxm", fleet="h100-sxm", rate=2.0)
    with pytest.raises(InputError, match="router vllm"):
        simulate(MODEL, fleet="h100-sxm + h200-sxm", rate=2.0, router="vllm")


def test_a_group_that_serves_nothing_is_an_answer():
    found = simulate("qwen2.5-0.5b", fleet="1xl4 + 3xh200-sxm", rate=1.0, num_requests=2)
    assert [group.share for group in found.groups] == [0.0, 1.0]
    assert found.to_dict()["requests_per_s"] > 0
