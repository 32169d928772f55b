"""Fleets, two pools and layouts side by side, as a user asks for them."""

import numpy as np
import pytest

import infercast
from infercast.engines.base import engine_named
from infercast.errors import InputError
from infercast.forecast.explain.breakdown import break_down
from infercast.forecast.explain.step_log import watch_run
from infercast.forecast.intervals import forecast_intervals
from infercast.forecast.kernels import decode_shape, estimate_step, prefill_shape
from infercast.forecast.layouts import UNTRIED, ranked
from infercast.forecast.system import link_between, system_of, two_pools
from infercast.report.plan import choice_of
from infercast.serve.workload.synthetic import synthetic_workload


def workload(**changes):
    options = {"concurrency": 8, "count": 24, "input_lengths": 200, "output_lengths": 20, **changes}
    return synthetic_workload(**options)


def test_a_fleet_serves_everything_and_says_who_did():
    deployment = infercast.deploy("qwen2.5-0.5b", "l4", data_parallel_size=3)
    forecast = infercast.simulate(deployment, workload())
    assert sum(engine.requests for engine in forecast.engines) == 24
    assert all(0 < engine.busy <= 1 for engine in forecast.engines)
    assert forecast.output_tokens_per_second_a_gpu == pytest.approx(forecast.output_tokens_per_second / 3)
    assert forecast.saturation is None


def test_three_copies_carry_three_times_the_rate():
    settings = infercast.EngineSettings(max_model_len=1024, max_num_seqs=32)
    one, three = (infercast.deploy("qwen2.5-7b", "l4", settings, data_parallel_size=size) for size in (1, 3))
    load = workload(concurrency=None, rate=100.0, count=400, input_lengths=800)
    alone = infercast.simulate(one, load).saturation
    together = infercast.simulate(three, load).saturation
    assert together.capacity == pytest.approx(3 * alone.capacity)


@pytest.mark.parametrize("spread", [False, True])
def test_copies_share_their_experts_and_hold_more_keys_and_values(spread):
    alone, shared = (
        infercast.deploy("qwen3-30b-a3b", "h200-sxm", data_parallel_size=size, enable_expert_parallel=spread)
        for size in (1, 4)
    )
    assert shared.memory.weights < alone.memory.weights / 2
    assert shared.memory.num_blocks > alone.memory.num_blocks
    assert shared.shares_experts
    assert not alone.shares_experts
    assert infercast.simulate(shared, workload()).ttft.mean > 0


def test_copies_that_share_experts_wait_for_each_other():
    deployment = infercast.deploy("qwen3-30b-a3b", "h200-sxm", data_parallel_size=2)
    dense = infercast.deploy("qwen2.5-7b", "h200-sxm", data_parallel_size=2)
    assert system_of(deployment).pools[0].engines.lockstep
    assert not system_of(dense).pools[0].engines.lockstep


def test_stages_hold_more_and_answer_one_request_no_sooner():
    one, two = (infercast.deploy("qwen2.5-7b", "a100-sxm", pipeline_parallel_size=size) for size in (1, 2))
    assert two.memory.num_blocks > 2 * one.memory.num_blocks
    assert len(two.stages) == 2
    assert sum(two.stages) == pytest.approx(1.0)
    alone = workload(concurrency=1, count=2)
    assert infercast.simulate(two, alone).tpot.mean > infercast.simulate(one, alone).tpot.mean
    full = workload(concurrency=64, count=128, input_lengths=2000)  # long prompts, which the GPU decides
    rates = [infercast.simulate(each, full).output_tokens_per_second for each in (one, two)]
    assert rates[1] > 1.2 * rates[0]


def test_two_pools_add_up_to_the_first_token():
    prefill = infercast.deploy("qwen2.5-7b", "h100-sxm")
    decode = infercast.deploy("qwen2.5-7b", "a100-sxm", data_parallel_size=2)
    forecast = infercast.simulate(decode, workload(), prefill=prefill)
    link = forecast.link
    parts = (link.prompt, link.wait, link.transfer, link.first_step)
    assert forecast.ttft.mean == pytest.approx(sum(part.mean for part in parts))
    assert forecast.gpus == 3
    slow = infercast.simulate(decode, workload(), prefill=prefill, link="ethernet-100")
    assert slow.ttft.mean > forecast.ttft.mean


@pytest.mark.parametrize("sizes", [{}, {"pipeline_parallel_size": 2}, {"data_parallel_size": 2}])
def test_every_second_of_two_pools_is_accounted_for(sizes):
    prefill = infercast.deploy("qwen2.5-7b", "h100-sxm")
    decode = infercast.deploy("qwen2.5-7b", "a100-sxm", **sizes)
    run = watch_run(two_pools(prefill, decode, link="ethernet-100"), workload())
    forecast, breakdown = run.forecast, break_down(run)
    assert breakdown.side_by_side == 1 + sum(sizes.values() or (1,))
    parts = sum(each.total for each in breakdown.kernels) + breakdown.host.total + breakdown.idle_seconds
    assert parts == pytest.approx(breakdown.whole)
    first, later = breakdown.first_tokens, breakdown.later_tokens
    np.testing.assert_allclose(sum(first.parts.values()), forecast.clients.ttft, rtol=1e-9)
    np.testing.assert_allclose(first.total, forecast.clients.ttft, rtol=1e-9)
    np.testing.assert_allclose(sum(later.parts.values()), forecast.clients.tpot, rtol=1e-9)
    assert all((part >= -1e-9).all() for part in first.parts.values())
    assert breakdown.steps["prefill"] == sum(record.prefilling.steps for record in forecast.pools[0].records)


def test_pools_that_do_not_go_together():
    deployment = infercast.deploy("qwen2.5-7b", "l40s")
    other = infercast.deploy("qwen2.5-0.5b", "l40s")
    with pytest.raises(InputError, match="both pools must serve one model"):
        infercast.simulate(other, workload(), prefill=deployment)
    with pytest.raises(InputError, match=r"link nvlink needs both pools in one node .* known networks: infiniband-hdr"):
        link_between(deployment, deployment, "nvlink")
    with pytest.raises(InputError, match="unknown link 'wet string'; known: nvlink, infiniband-hdr"):
        link_between(deployment, deployment, "wet string")


def test_more_gpus_than_a_node_need_a_network():
    with pytest.raises(InputError, match=r"TP16 needs 16 GPUs .* above the 8 of a node of h100-sxm; .* infiniband-ndr"):
        infercast.deploy("llama-3.1-8b", "h100-sxm", tensor_parallel_size=16)
    far = infercast.deploy("llama-3.1-8b", "h100-sxm", tensor_parallel_size=16, network="infiniband-ndr")
    assert far.layout.gpus == 16
    infercast.deploy("llama-3.1-8b", "h100-sxm", data_parallel_size=16)  # copies need not talk


def test_layouts_side_by_side():
    load = synthetic_workload(concurrency=8, count=24, input_lengths=1024, output_lengths=32)
    costs = infercast.compare("llama-3.3-70b", ["h100-sxm", "l40s"], num_gpus=(4,), workload=load)
    by_name = {(cost.gpu.name, str(cost.layout)): cost for cost in costs}
    assert {str(cost.layout) for cost in costs} == {
        "TP4", "TP2+PP2", "TP2+DP2", "TP1+PP4", "TP1+PP2+DP2", "TP1+DP4",
    }  # fmt: skip
    assert "does not fit" in by_name["h100-sxm", "TP1+DP4"].problem
    assert by_name["h100-sxm", "TP4"].tpot.mean > 0
    best = ranked(costs)
    assert not best[0].problem
    assert best[-1].problem


def test_layouts_that_are_not_begun_when_time_is_over_are_named() -> None:
    load = synthetic_workload(concurrency=8, input_lengths=64, output_lengths=8)
    costs = infercast.compare("qwen2.5-0.5b", ["l4"], num_gpus=(1, 2), workload=load, time_limit=1e-6)
    tried = {str(cost.layout): cost.problem for cost in costs}
    assert tried == {"TP1": "", **dict.fromkeys(("TP2", "TP1+PP2", "TP1+DP2"), UNTRIED)}
    assert f"{UNTRIED}: TP2 (2), TP1+PP2 (2), TP1+DP2 (2)" in costs._repr_html_()


def test_of_layouts_that_keep_up_with_a_rate_the_shortest_answers_come_first() -> None:
    costs = infercast.compare(
        "qwen2.5-0.5b", ["l4"], num_gpus=(1, 2), workload=workload(concurrency=None, rate=3.0, count=40)
    )
    best, *others = [each for each in ranked(costs) if each.forecast is not None]
    alike = [each for each in others if each.layout.gpus == best.layout.gpus]
    assert best.layout.gpus == 1
    assert all(best.forecast.end_to_end.mean <= each.forecast.end_to_end.mean for each in alike)
    two = [each for each in others if each.layout.gpus == 2]
    assert two[0].forecast.end_to_end.mean == min(each.forecast.end_to_end.mean for each in two)
    assert "the shortest answers of the fewest GPUs" in choice_of(costs)[1]


@pytest.mark.parametrize(("model", "gpu", "load"), [
    ("qwen2.5-7b", "a100-sxm", {"concurrency": 12, "count": 24}),
    ("qwen3-30b-a3b", "h200-sxm", {"concurrency": 12, "count": 24}),
    ("qwen2.5-7b", "l40s", {"concurrency": None, "rate": 30.0, "count": 40}),
])  # fmt: skip
def test_every_row_is_what_simulate_says_of_it(model: str, gpu: str, load: dict[str, object]) -> None:
    asked = workload(**load, output_lengths="lognormal:20:0.5")
    told = []
    costs = infercast.compare(model, [gpu], num_gpus=(1, 4), workload=asked, tell=told.append)
    assert len(told) == len(costs) > 6
    for cost in costs:
        layout = cost.layout
        deployment = infercast.deploy(
            model,
            gpu,
            tensor_parallel_size=layout.tensor,
            pipeline_parallel_size=layout.pipeline,
            data_parallel_size=layout.data,
            enable_expert_parallel=layout.experts,
        )
        forecast = infercast.simulate(deployment, asked)
        assert (cost.ttft, cost.tpot) == (forecast.ttft, forecast.tpot)
        assert cost.output_tokens_per_second == forecast.output_tokens_per_second
        assert cost.weights == deployment.memory.weights


def test_intervals_of_rows_are_about_those_of_simulations():
    asked = workload(concurrency=16, count=32)
    for cost in infercast.compare("qwen2.5-7b", ["a100-sxm"], num_gpus=(1, 2), workload=asked):
        layout = cost.layout
        sizes = {"tensor_parallel_size": layout.tensor, "data_parallel_size": layout.data}
        deployment = infercast.deploy("qwen2.5-7b", "a100-sxm", pipeline_parallel_size=layout.pipeline, **sizes)
        band = forecast_intervals(infercast.simulate(deployment, asked)).tpot
        low, high = cost.tpot_interval
        assert high / low - 1 == pytest.approx(band.high.mean / band.low.mean - 1, rel=0.3)


def test_numbers_of_gpus_that_cannot_be():
    with pytest.raises(InputError, match="numbers of GPUs must be from 1 to 1,024"):
        infercast.compare("llama-3.1-8b", ["l4"], num_gpus=(0,))
    with pytest.raises(InputError, match="numbers of GPUs must be from 1 to 1,024"):
        infercast.compare("llama-3.1-8b", ["l4"], num_gpus=(100_000,))


def test_simulate_serves_every_replica():
    one, four = (infercast.deploy("qwen2.5-0.5b", "l4", data_parallel_size=size) for size in (1, 4))
    full = workload(concurrency=64, count=256)
    forecast = infercast.simulate(four, full)
    assert len(forecast.engines) == 4
    assert forecast.output_tokens_per_second > 1.8 * infercast.simulate(one, full).output_tokens_per_second
    assert infercast.simulate(four, full, router="round_robin").router == "round_robin"
    with pytest.raises(InputError, match="router 'round_robin' has no meaning for one replica"):
        infercast.simulate(one, full, router="round_robin")


def test_more_replicas_than_can_be_simulated():
    deployment = infercast.deploy("qwen2.5-0.5b", "l4", data_parallel_size=100_000)
    with pytest.raises(InputError, match=r"data_parallel_size 100,000 is more replicas .*; use 1 to 1,024"):
        infercast.simulate(deployment, workload())


def test_named_expert_kernels_change_prices_and_unknown_ones_are_refused():
    auto, marlin = (infercast.deploy("gpt-oss-20b", "h200-sxm", moe_backend=name) for name in ("auto", "marlin"))
    shape = prefill_shape(4096)
    assert estimate_step(marlin, shape).seconds > 1.2 * estimate_step(auto, shape).seconds
    with pytest.raises(InputError, match="unknown moe_backend 'fast'; known: auto, triton"):
        infercast.deploy("gpt-oss-20b", "h200-sxm", moe_backend="fast")


def test_a_server_before_the_engine_delays_the_first_token_alone():
    plain, served = (infercast.deploy("llama-3.1-8b", "h200-sxm", api_server=on) for on in (False, True))
    one = workload(concurrency=1, count=1, input_lengths=1000)
    before, after = (infercast.simulate(each, one) for each in (plain, served))
    turns, part = 3.6e-3 - 0.10e-3, 0.038e-3  # of the server's thread, and what its first part of an answer takes
    assert after.ttft.mean - before.ttft.mean == pytest.approx(1.9e-3 + 1000 * 1.5e-6 + turns + part)
    assert after.tpot.mean == pytest.approx(before.tpot.mean)


def test_uneven_routing_reaches_fewer_experts():
    even, uneven = (
        infercast.deploy("qwen3-30b-a3b", "h200-sxm", expert_routing=name) for name in ("uniform", "power_law_1.2")
    )
    shape = decode_shape(32, 1000)
    assert estimate_step(uneven, shape).seconds < estimate_step(even, shape).seconds
    with pytest.raises(InputError, match="unknown expert_routing 'odd'; known: uniform, balanced"):
        infercast.deploy("qwen3-30b-a3b", "h200-sxm", expert_routing="odd")


SPREAD = {"tensor_parallel_size": 8, "enable_expert_parallel": True}


def balanced(engine: str = "vllm", routing: str = "uniform", **settings: object) -> infercast.Deployment:
    how = SPREAD if engine == "vllm" else {"tensor_parallel_size": 8}
    asked = engine_named(engine).settings(settings)
    return infercast.deploy("deepseek-v3", "h200-sxm", asked, expert_routing=routing, **how)


def experts_seconds(deployment: infercast.Deployment, tokens: int = 8192) -> float:
    shard = deployment.model.shard(deployment.layout)
    calls = deployment.model.stacks[-1].feed_forward.calls(shard, np.array([tokens]))
    op = next(call.op for call in calls if call.name == "experts")
    return float(np.ravel(deployment.predictor.seconds(op, deployment.gpu))[0])


def test_copies_of_experts_take_memory():
    expert = 3 * 7168 * 2048  # bytes in fp8, scales aside
    plain, moved = balanced(), balanced(enable_eplb=True)
    copied = balanced(enable_eplb=True, eplb_config='{"num_redundant_experts": 32}')
    # Experts that arrive need room for those of one layer; of 32 copies each of 8 GPUs has 4 in 58 layers.
    assert moved.memory.weights - plain.memory.weights == pytest.approx(32 * expert, rel=0.01)
    assert copied.memory.weights - moved.memory.weights == pytest.approx((58 + 1) * 4 * expert, rel=0.01)
    sglang = [balanced("sglang", ep_size=8, ep_num_redundant_experts=count) for count in (0, 32)]
    assert sglang[1].memory.weights - sglang[0].memory.weights == pytest.approx(58 * 4 * expert, rel=0.01)


def test_balanced_experts_take_what_hot_ones_cost_more():
    even, hot = (experts_seconds(balanced(routing=name)) for name in ("uniform", "power_law_1.2"))
    moved = experts_seconds(balanced(routing="power_law_1.2", enable_eplb=True))
    assert hot > 1.2 * moved
    assert moved == pytest.approx(even, rel=0.1)
    assert experts_seconds(balanced(enable_eplb=True)) == even
    idle, used = (balanced("sglang", ep_size=8, ep_num_redundant_experts=32, enable_eplb=on) for on in (False, True))
    assert experts_seconds(idle) > experts_seconds(used)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"num_redundant_experts": 8}, "num_redundant_experts 8 needs enable_eplb; add it or leave them out"),
        ({"enable_eplb": True, "eplb_config": "8"}, "--eplb-config must be a JSON object, not '8'"),
        ({"enable_eplb": True, "eplb_config": '{"redundant": 8}'}, "unknown field of --eplb-config 'redundant'"),
        ({"enable_eplb": True, "num_redundant_experts": -8}, "must be a whole number of at least 0, not -8"),
        ({"enable_eplb": True, "num_redundant_experts": 3}, "and 3 redundant ones of deepseek-v3 over 8 GPUs"),
        ({"enable_eplb": True, "num_redundant_experts": 3}, "valid: 1, 7, 37, or 8 redundant experts"),
    ],
)
def test_copies_that_an_engine_refuses(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError) as raised:
        balanced(**settings)
    assert problem in str(raised.value)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_balancing_needs_spread_experts(engine: str) -> None:
    with pytest.raises(InputError, match="enable_eplb needs experts spread over GPUs"):
        infercast.deploy("qwen3-30b-a3b", "h200-sxm", engine_named(engine).settings({"enable_eplb": True}))


@pytest.mark.parametrize(("engine", "lengths"), [("vllm@0.25", {}), ("vllm@0.33", {"output_lengths": 100})])
def test_an_engine_that_nobody_measured_is_less_certain(engine: str, lengths: dict[str, int]) -> None:
    """Two GPUs of either release, and a server before 0.25; that of 0.33 was measured as its engine was.

    Of short answers on 0.33 the host decides, which is as uncertain beside one GPU as beside two.
    """
    alone = infercast.deploy("qwen2.5-7b", "a100-sxm", api_server=False, engine=engine)
    served = infercast.deploy("qwen2.5-7b", "a100-sxm", engine=engine)
    two = infercast.deploy("qwen2.5-7b", "a100-sxm", tensor_parallel_size=2, api_server=False, engine=engine)
    widths = []
    for deployment in (alone, served, two):
        forecast = infercast.simulate(deployment, workload(**lengths))
        band = forecast_intervals(forecast).tpot
        widths.append(band.high.mean / band.low.mean)
    assert widths[0] < min(widths[2:] if engine == "vllm@0.33" else widths[1:])


def test_layouts_of_prompts_of_one_token_have_intervals_too():
    one_token = workload(concurrency=2, count=4, input_lengths=1, output_lengths=4)
    costs = infercast.compare("qwen2.5-0.5b", ["l4"], num_gpus=[1], workload=one_token)
    assert all(cost.ttft_interval[0] < cost.ttft.mean < cost.ttft_interval[1] for cost in costs)
