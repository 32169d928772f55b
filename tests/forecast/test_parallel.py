"""Fleets, two pools and layouts side by side, as a user asks for them."""

import pytest

import infercast
from infercast.errors import InputError
from infercast.forecast.disaggregate import link_between
from infercast.forecast.layouts import Load, ranked

CHEAP = {"predictor": "roofline"}


def workload(**changes):
    options = {"concurrency": 8, "count": 24, "input_lengths": 200, "output_lengths": 20, **changes}
    return infercast.synthetic_workload(**options)


def test_a_fleet_serves_everything_and_says_who_did():
    deployment = infercast.deploy("qwen2.5-0.5b", "l4", data_parallel_size=3, **CHEAP)
    forecast = infercast.forecast_fleet(deployment, workload())
    assert sum(engine.requests for engine in forecast.engines) == 24
    assert all(0 < engine.busy <= 1 for engine in forecast.engines)
    assert forecast.output_tokens_per_second_a_gpu == pytest.approx(forecast.output_tokens_per_second / 3)
    assert forecast.saturation is None


def test_three_copies_carry_three_times_the_rate():
    settings = infercast.EngineSettings(max_model_len=1024, max_num_seqs=32)
    one, three = (infercast.deploy("qwen2.5-7b", "l4", settings, data_parallel_size=size, **CHEAP) for size in (1, 3))
    load = workload(concurrency=None, rate=100.0, count=400, input_lengths=800)
    alone = infercast.simulate(one, load).saturation
    together = infercast.forecast_fleet(three, load).saturation
    assert together.capacity == pytest.approx(3 * alone.capacity)


def test_copies_that_share_experts_hold_more_keys_and_values():
    alone, shared = (
        infercast.deploy("qwen3-30b-a3b", "h200-sxm", data_parallel_size=4, enable_expert_parallel=on, **CHEAP)
        for on in (False, True)
    )
    assert shared.memory.weights < alone.memory.weights / 2
    assert shared.memory.num_blocks > alone.memory.num_blocks
    assert infercast.forecast_fleet(shared, workload()).ttft.mean > 0


def test_stages_hold_more_and_answer_one_request_no_sooner():
    one, two = (infercast.deploy("qwen2.5-7b", "a100-sxm", pipeline_parallel_size=size, **CHEAP) for size in (1, 2))
    assert two.memory.num_blocks > 2 * one.memory.num_blocks
    assert len(two.stages) == 2
    assert sum(two.stages) == pytest.approx(1.0)
    alone = workload(concurrency=1, count=2)
    assert infercast.simulate(two, alone).tpot.mean > infercast.simulate(one, alone).tpot.mean
    full = workload(concurrency=32, count=96)
    rates = [infercast.simulate(each, full).output_tokens_per_second for each in (one, two)]
    assert rates[1] > 1.2 * rates[0]


def test_two_pools_add_up_to_the_first_token():
    prefill = infercast.deploy("qwen2.5-7b", "h100-sxm", **CHEAP)
    decode = infercast.deploy("qwen2.5-7b", "a100-sxm", data_parallel_size=2, **CHEAP)
    forecast = infercast.forecast_disaggregated(prefill, decode, workload())
    parts = (forecast.prompt, forecast.transfer_wait, forecast.transfer, forecast.first_step)
    assert forecast.ttft.mean == pytest.approx(sum(part.mean for part in parts))
    assert forecast.gpus == 3
    slow = infercast.forecast_disaggregated(prefill, decode, workload(), link="ethernet-100")
    assert slow.ttft.mean > forecast.ttft.mean


def test_pools_that_do_not_go_together():
    deployment = infercast.deploy("qwen2.5-7b", "l40s", **CHEAP)
    other = infercast.deploy("qwen2.5-0.5b", "l40s", **CHEAP)
    with pytest.raises(InputError, match="both pools must serve one model"):
        infercast.forecast_disaggregated(deployment, other, workload())
    with pytest.raises(InputError, match=r"link nvlink needs both pools in one node .* known networks: infiniband-hdr"):
        link_between(deployment, deployment, "nvlink")
    with pytest.raises(InputError, match="unknown link 'wet string'; known: nvlink, infiniband-hdr"):
        link_between(deployment, deployment, "wet string")


def test_more_gpus_than_a_node_need_a_network():
    with pytest.raises(InputError, match=r"TP16 needs 16 GPUs .* above the 8 of a node of h100-sxm; .* infiniband-ndr"):
        infercast.deploy("llama-3.1-8b", "h100-sxm", tensor_parallel_size=16, **CHEAP)
    far = infercast.deploy("llama-3.1-8b", "h100-sxm", tensor_parallel_size=16, network="infiniband-ndr", **CHEAP)
    assert far.layout.gpus == 16
    infercast.deploy("llama-3.1-8b", "h100-sxm", data_parallel_size=16, **CHEAP)  # copies need not talk


def test_layouts_side_by_side():
    costs = infercast.compare_layouts("llama-3.3-70b", ["h100-sxm", "l40s"], num_gpus=(4,), **CHEAP)
    by_name = {(cost.gpu.name, str(cost.layout)): cost for cost in costs}
    assert {str(cost.layout) for cost in costs} == {
        "TP4", "TP2+PP2", "TP2+DP2", "TP1+PP4", "TP1+PP2+DP2", "TP1+DP4",
    }  # fmt: skip
    assert "does not fit" in by_name["h100-sxm", "TP1+DP4"].problem
    split = by_name["h100-sxm", "TP4"]
    assert split.tpot > 0
    assert split.ttft < by_name["h100-sxm", "TP1+PP4"].ttft
    best = ranked(costs)
    assert not best[0].problem
    assert best[-1].problem


def test_a_load_that_cannot_be():
    with pytest.raises(InputError, match="must be at least 1"):
        infercast.compare_layouts("llama-3.1-8b", ["l4"], load=Load(concurrency=0), **CHEAP)
    with pytest.raises(InputError, match="num_input 139744 \\+ num_output 256 are above the 131072 positions"):
        infercast.compare_layouts("llama-3.1-8b", ["l4"], load=Load(num_input=139_744), **CHEAP)


@pytest.mark.parametrize("gpu", ["l4", "h200-sxm"])
def test_more_sequences_than_a_step_has_tokens_fill_the_cache(gpu: str) -> None:
    loads = [Load(concurrency=count, num_input=8, num_output=8) for count in (8192, 100_000)]
    few, many = (infercast.compare_layouts("smollm2-135m", [gpu], num_gpus=(1,), load=load, **CHEAP) for load in loads)
    assert not few[0].problem
    assert many == few
    assert many[0].batch <= 8192


def test_named_expert_kernels_change_prices_and_unknown_ones_are_refused():
    auto, marlin = (infercast.deploy("gpt-oss-20b", "h200-sxm", moe_backend=name) for name in ("auto", "marlin"))
    shape = infercast.prefill_shape(4096)
    assert infercast.price_step(marlin, shape).seconds > 1.2 * infercast.price_step(auto, shape).seconds
    with pytest.raises(InputError, match="unknown moe_backend 'fast'; known: auto, triton"):
        infercast.deploy("gpt-oss-20b", "h200-sxm", moe_backend="fast")


def test_a_server_before_the_engine_delays_the_first_token_alone():
    plain, served = (infercast.deploy("llama-3.1-8b", "h200-sxm", api_server=on, **CHEAP) for on in (False, True))
    one = workload(concurrency=1, count=1, input_lengths=1000)
    before, after = (infercast.simulate(each, one) for each in (plain, served))
    assert after.ttft.mean - before.ttft.mean == pytest.approx(0.006 + 1000 * 4e-6, rel=0.01)
    assert after.tpot.mean == pytest.approx(before.tpot.mean)


def test_uneven_routing_reaches_fewer_experts():
    even, uneven = (
        infercast.deploy("qwen3-30b-a3b", "h200-sxm", expert_routing=name) for name in ("uniform", "power_law_1.2")
    )
    shape = infercast.decode_shape(32, 1000)
    assert infercast.price_step(uneven, shape).seconds < infercast.price_step(even, shape).seconds
    with pytest.raises(InputError, match="unknown expert_routing 'odd'; known: uniform, balanced"):
        infercast.deploy("qwen3-30b-a3b", "h200-sxm", expert_routing="odd")


def test_an_engine_that_nobody_measured_is_less_certain():
    alone = infercast.deploy("qwen2.5-7b", "a100-sxm", api_server=False)
    served = infercast.deploy("qwen2.5-7b", "a100-sxm")
    two = infercast.deploy("qwen2.5-7b", "a100-sxm", tensor_parallel_size=2, api_server=False)
    widths = []
    for deployment in (alone, served, two):
        forecast = infercast.simulate(deployment, workload())
        band = infercast.forecast_intervals(forecast).tpot
        widths.append(band.high.mean / band.low.mean)
    assert widths[0] < min(widths[1:])
