"""Failures of replicas in a forecast and over a day: what they cost, and whether one more replica is enough."""

import pytest

from infercast import capacity, deploy, simulate
from infercast.errors import InputError
from infercast.forecast.fleet import parse_outages, start_up
from infercast.report.forecast import outage_rows

LOAD = {"rate": 9.0, "input_len": 700, "output_len": 170, "seed": 3}
SLO = "ttft_p99<2s,tpot_p95<60ms"


@pytest.fixture(scope="module")
def two():
    return deploy("llama-3.1-8b", "l40s", data_parallel_size=2, max_model_len=8192)


@pytest.fixture(scope="module")
def failed(two):
    return simulate(two, **LOAD, router="least_loaded", slo=SLO, fail="1@20s+20s")


def test_an_outage_breaks_the_slo_and_one_more_replica_keeps_it(failed, two):
    found = failed.outages
    (outage,) = found.outages
    assert (outage["replica"], outage["begin_s"], outage["end_s"]) == (1, 20.0, 40.0)
    assert found.retried == outage["retried"] > 0
    assert 0 < found.tokens_share < 0.05
    assert found.meanwhile < found.overall < found.otherwise
    assert found.overall == failed.verdict.attainment
    assert not failed.verdict.holds
    assert found.spare_holds
    assert found.with_spare > found.overall
    assert failed.clients.sent_at.max() >= 79.0
    assert len(failed.spare.engines) == 3
    healthy = simulate(two, failed.workload, router="least_loaded", slo=SLO)
    assert healthy.verdict.holds
    assert healthy.outages is None
    assert failed.state.is_steady


def test_it_is_told(failed):
    told = failed.to_dict(intervals=False)["outages"]
    assert told["outages"][0]["retried"] == failed.outages.retried
    assert {"meanwhile", "otherwise", "overall", "with_spare", "spare_holds"} <= {*told}
    rows = dict(outage_rows(failed))
    assert rows["outages"].startswith("replica 1 at 20 to 40 s; ")
    assert "with one more replica" in rows["within SLO"]


def test_a_run_of_a_given_length_may_have_no_failure(two):
    late = simulate(two, **LOAD, num_requests=200, fail="0@1h")
    assert late.outages.outages == ()
    plain = simulate(two, **LOAD, num_requests=200)
    assert late.ttft == plain.ttft
    assert late.inter_token == plain.inter_token
    assert late.outages.meanwhile is None


def test_same_seed_same_failures(two):
    runs = [simulate(two, **{**LOAD, "rate": 3.0, "seed": seed}, fail="mtbf=40s+5s") for seed in (1, 1, 2)]
    assert runs[0].outages == runs[1].outages
    assert runs[0].outages.outages != runs[2].outages.outages
    assert len(runs[0].outages.outages) >= 2
    assert 0.01 < runs[0].outages.down_share < 0.4


def test_a_start_is_the_usual_outage(two):
    found = simulate(two, **LOAD, num_requests=100, fail="0@1s")
    back = found.system.pools[0].engines.outages.named[0][2]
    assert back == start_up(two, gpus=1).seconds < start_up(two).seconds


def test_a_day_with_failures_takes_more_replicas():
    one = deploy("llama-3.1-8b", "l40s", max_model_len=8192)
    day = {"rate": 6.0, "profile": "flat", "slo": "ttft_p99<3s,tpot_p95<60ms", "check": False, "time_limit": 4.0}
    found = capacity(one, **day, fail="mtbf=3h+10min")
    assert found.outages.fleet_without < found.smallest_fleet
    assert 0.02 < found.outages.down_share < 0.1
    fixed = found.policies[0]
    assert fixed.ready.min() < fixed.paid.min() == found.smallest_fleet
    assert found.outages.meanwhile <= found.outages.otherwise
    assert found.to_dict()["outages"]["fleet_without"] == found.outages.fleet_without


@pytest.mark.parametrize(
    "text",
    ["1", "1@", "soon", "1@soon", "1@60s+", "mtbf", "mtbf=0s", "0@1s,mtbf=2h", "mtbf=1h,mtbf=2h", "-1@3s", "5@3s"],
)
def test_other_words_are_refused(text):
    with pytest.raises(InputError, match="fail"):
        parse_outages(text, 70.0, replicas=4)


def test_words():
    assert parse_outages("1@60s", 70.0).named == ((1, 60.0, 70.0),)
    assert parse_outages("2@5min+30s, 0@1h", 70.0).named == ((0, 3600.0, 70.0), (2, 300.0, 30.0))
    assert parse_outages("mtbf=2h", 70.0, seed=4) == parse_outages("mtbf=120min+70s", 9.0, seed=4)
    with pytest.raises(InputError, match="down until 90 s"):
        parse_outages("1@60s+30s,1@80s", 70.0)


def test_where_it_is_not_modelled(two):
    with pytest.raises(InputError, match="two pools are not modelled"):
        simulate("llama-3.1-8b", gpu="h200-sxm", prefill_gpu="h200-sxm", rate=2.0, num_requests=20, fail="0@3s")
    with pytest.raises(InputError, match="leave client_timeout"):
        simulate(two, **LOAD, num_requests=50, client_timeout="5s", fail="0@1s")
    with pytest.raises(InputError, match="num-requests"):
        simulate(two, concurrency=8, fail="0@1s")
    with pytest.raises(InputError, match="earlier time"):
        simulate(two, rate=30.0, fail="0@3h")
    with pytest.raises(InputError, match="offloading"):
        simulate("llama-3.1-8b", gpu="h100-sxm", kv_offloading_size=10, rate=2.0, fail="0@1s")
    with pytest.raises(InputError, match="share experts"):
        simulate(
            "qwen3-30b-a3b", gpu="h100-sxm", data_parallel_size=2, enable_expert_parallel=True, rate=2.0, fail="0@1s"
        )
