"""What-if: chips that differ in a few numbers, and two runs whose difference is explained kernel by kernel."""

import re
from collections import Counter
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import infercast
from infercast.engines.base import Deployment
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.compare import compare_runs, compare_steps, reasons, side_by_side
from infercast.forecast.cost import price_of
from infercast.forecast.deploy import deploy, deploy_changed, parse_changes
from infercast.forecast.explain.step_log import watch_run
from infercast.forecast.kernels import decode_shape, estimate_step, prefill_shape, step_calls
from infercast.forecast.system import system_of
from infercast.hardware import load_gpu
from infercast.hardware.gpu import PROPERTIES, changed_gpu
from infercast.ops import Gemm
from infercast.predict.estimate import exposed_seconds
from infercast.predict.learned import Changed, make_predictor
from infercast.predict.roofline import overlapped_share, pipe_limits
from infercast.serve.step import StepShape
from infercast.serve.workload.synthetic import synthetic_workload

SETTINGS = infercast.EngineSettings(max_num_batched_tokens=2048, max_num_seqs=64, max_model_len=4096)
WORKLOAD = synthetic_workload(rate=6, count=30, input_lengths=500, output_lengths=40)


def asked(**keywords: object) -> "partial[Deployment]":
    return partial(deploy, "llama-3.1-8b", "h200-sxm", SETTINGS, **keywords)


def test_what_follows_from_a_number_moves_along() -> None:
    gpu = load_gpu("h200-sxm")
    other = changed_gpu(gpu, {"sms": "264", "dram_bytes": "2x", "boost_clock": "0.5x"})
    assert other.sms == 264
    assert other.tensor_flops["bf16"] == pytest.approx(gpu.tensor_flops["bf16"])
    assert other.driver_bytes == 2 * gpu.driver_bytes
    assert other.sustained_clock == pytest.approx(gpu.sustained_clock / 2)
    assert changed_gpu(gpu, {"dram_bandwidth": "7.2T"}).dram_bandwidth == pytest.approx(7.2e12)


def test_nothing_changed_is_the_same_chip() -> None:
    gpu = load_gpu("h200-sxm")
    assert changed_gpu(gpu, {}) is gpu
    same = changed_gpu(gpu, dict.fromkeys((name for name in PROPERTIES[:-1] if name != "fp4_flops"), "1x"))
    op, known = Gemm(np.array([1, 64, 4096]), 4096, 4096), make_predictor()
    np.testing.assert_allclose(Changed(known, gpu).seconds(op, same), known.seconds(op, gpu))


@pytest.mark.parametrize("change", ["dram_bandwidth=1.5x", "tensor_flops=1.5x", "sms=1.5x", "boost_clock=1.5x"])
def test_no_kernel_gains_more_than_what_grew(change: str) -> None:
    shape = decode_shape(32, 1024)
    before = estimate_step(asked()(), shape)
    after = estimate_step(deploy_changed(asked(), parse_changes(change)), shape)
    for one, other in zip(before.kernels, after.kernels, strict=True):
        assert other.seconds <= one.seconds * (1 + 1e-9)
        assert other.seconds >= one.seconds / 1.5 * (1 - 1e-9)


def test_bandwidth_of_a_sibling_gives_its_times() -> None:
    """An H100 with an H200's memory decodes as an H200 does; both were measured."""
    memory = load_gpu("h200-sxm")
    changes = parse_changes(f"dram_bandwidth={memory.dram_bandwidth},dram_bytes={memory.dram_bytes}")
    shape = decode_shape(32, 1400)
    real = estimate_step(asked()(), shape).gpu.seconds
    what_if = estimate_step(deploy_changed(partial(deploy, "llama-3.1-8b", "h100-sxm", SETTINGS), changes), shape)
    assert what_if.gpu.seconds == pytest.approx(real, rel=0.08)
    assert what_if.gpu.low < what_if.gpu.seconds < what_if.gpu.high


def test_differences_add_up_to_the_latencies() -> None:
    changed = deploy_changed(asked(predictor="roofline"), parse_changes("quantization=fp8,host_speed=2x"))
    runs = watch_run(system_of(asked(predictor="roofline")()), WORKLOAD), watch_run(system_of(changed), WORKLOAD)
    explained = compare_runs(*runs)
    before, after = (run.forecast for run in runs)
    assert explained["TTFT"].before == pytest.approx(before.ttft.mean)
    assert explained["TTFT"].after == pytest.approx(after.ttft.mean)
    assert before.tpot is not None
    assert explained["TPOT"].before == pytest.approx(before.tpot.mean)
    assert min(each.before for each in explained["TPOT"].differences) > -1e-12


LONG = synthetic_workload(rate=6, count=30, input_lengths=1500, output_lengths=40)
"""Prompts that the GPU decides, also where every stage has a host of its own."""
LAYOUTS = {
    "replicas": ("llama-3.1-8b", {"data_parallel_size": 3}),
    "stages": ("llama-3.1-8b", {"pipeline_parallel_size": 2}),
    "both": ("llama-3.1-8b", {"data_parallel_size": 2, "pipeline_parallel_size": 2}),
    "shared experts": ("qwen3-30b-a3b", {"data_parallel_size": 2, "enable_expert_parallel": True}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_differences_add_up_with_replicas_and_stages(name: str) -> None:
    model, sizes = LAYOUTS[name]
    plain: dict[str, Any] = {"predictor": "roofline", "api_server": False}
    before = watch_run(system_of(deploy(model, "h200-sxm", SETTINGS, **plain)), LONG)
    after = watch_run(system_of(deploy(model, "h200-sxm", SETTINGS, **plain, **sizes)), LONG)
    explained = compare_runs(before, after)
    assert explained["TTFT"].after == pytest.approx(after.forecast.ttft.mean)
    assert after.forecast.tpot is not None
    assert explained["TPOT"].after == pytest.approx(after.forecast.tpot.mean)
    for comparison in explained.values():
        assert min(each.after for each in comparison.differences) > -1e-9
        kernels = sum(each.after for each in comparison.differences if each.family != "host")
        assert kernels > 0.3 * comparison.after


def test_replicas_and_their_load_balancer_can_be_changed() -> None:
    changes = parse_changes("data_parallel_size=2,router=round_robin")
    assert deploy_changed(asked(), changes).layout.data == 2
    assert changes.router == "round_robin"


def test_differences_add_up_to_the_step() -> None:
    shape = decode_shape(8, 100)
    before, after = (estimate_step(each, shape) for each in (asked()(), asked(quantization="fp8")()))
    comparison = compare_steps(before, after)
    assert comparison.before == pytest.approx(before.seconds)
    assert comparison.after == pytest.approx(after.seconds)


def test_settings_and_gpu_can_be_changed() -> None:
    other = deploy_changed(asked(), parse_changes("gpu=b200-sxm, max-num-seqs=8, enforce_eager=on"))
    assert other.gpu.name == "b200-sxm"
    assert other.settings.max_num_seqs == 8
    assert other.settings.capture_sizes == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dram_bandwidth", "name=value"),
        ("dram_bandwidth=fast", "1.5x"),
        ("sms=0", "above 0"),
        ("dram_bandwidth=1.5", r"is 1.5 where this GPU has 4.8e\+12; say 1.5x for so many .* units \(4.8T\)"),
        ("dram_bytes=141", "say 141x"),
        ("max_num_seqs=many", "whole number"),
        ("enforce_eager=perhaps", "on or off"),
        ("", "changes nothing"),
    ],
)
def test_what_is_not_understood_is_named(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        deploy_changed(asked(), parse_changes(text))


def test_unknown_names_get_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="dram_bandwidth"):
        parse_changes("dram_bandwith=2x")


def test_a_changed_chip_costs_what_the_chip_costs() -> None:
    assert price_of("h100-sxm+dram_bandwidth=1.5x") == price_of("h100-sxm")


def test_a_reason_for_both_sides_is_said_once() -> None:
    workload = synthetic_workload(rate=2, count=4, input_lengths=50, output_lengths=4)
    run = watch_run(system_of(deploy("qwen3-0.6b", "h200-sxm", engine="vllm@0.32")), workload)
    said = reasons(side_by_side((run, run), ("one", "two")))
    assert len(said) == len({*said})
    assert any("was not measured" in sentence for sentence in said)


MODELS = [("llama-3.1-8b", 2), ("qwen3-30b-a3b", 1), ("deepseek-v2-lite", 1)]


def of_step(model: str, tensor: int, shape: StepShape, change: str = "") -> dict[str, float]:
    call = partial(deploy, model, "h200-sxm", SETTINGS, tensor_parallel_size=tensor)
    found = estimate_step(deploy_changed(call, parse_changes(change)) if change else call(), shape)
    spent = dict[str, float]()
    for each in found.kernels:
        spent[each.name] = spent.get(each.name, 0.0) + each.seconds
    return spent


@pytest.mark.parametrize(("model", "tensor"), MODELS)
@pytest.mark.parametrize("shape", [decode_shape(1, 500), decode_shape(64, 500), prefill_shape(2000)])
def test_kernels_side_by_side_are_no_faster_than_each_alone_or_any_pipe(
    model: str, tensor: int, shape: StepShape
) -> None:
    deployment = deploy(model, "h200-sxm", SETTINGS, tensor_parallel_size=tensor)
    predictor, gpu = deployment.predictor, deployment.gpu
    calls = step_calls(deployment, shape).by_tokens
    for both in combinations(calls, 2):
        alone = [float(np.ravel(exposed_seconds(call, predictor.seconds(call.op, gpu)))[0]) for call in both]
        together = float(np.ravel(overlapped_share(both, predictor, gpu))[0]) * sum(alone)
        assert max(alone) * (1 - 1e-9) <= together <= sum(alone) * (1 + 1e-9)
        pipes = Counter[str]()
        for call in both:
            for pipe, seconds in pipe_limits(call.op, gpu).items():
                pipes[pipe] += call.count * float(np.ravel(seconds)[0])
        assert together >= min(max(pipes.values()), sum(alone)) * (1 - 1e-9)


def test_kernels_side_by_side_leave_the_others_as_they_are() -> None:
    alone, both = (of_step("llama-3.1-8b", 2, decode_shape(64, 500), change) for change in ("", "overlap=norm+o_proj"))
    assert {name for name in alone if abs(both[name] / alone[name] - 1) > 1e-3} == {"norm", "o_proj"}
    assert both["norm"] + both["o_proj"] >= max(alone["norm"], alone["o_proj"]) * 0.99


def test_what_is_dropped_takes_no_time_and_what_is_fused_no_longer_than_both() -> None:
    for shape in (decode_shape(64, 500), prefill_shape(2000)):
        alone = of_step("llama-3.1-8b", 1, shape)
        without = of_step("llama-3.1-8b", 1, shape, "drop=rope+norm")
        assert alone.keys() - without.keys() == {"rope", "norm"}
        fused = of_step("llama-3.1-8b", 1, shape, "fuse=gate_up_proj+activation;o_proj+norm")
        assert "activation" not in fused  # all that it reads is what the product had written
        assert alone["norm"] / 4 < fused["norm"] < alone["norm"]  # half of the norms, and those keep the residual
        best = of_step("llama-3.1-8b", 1, shape, "at_ceiling=all")
        assert all(best[name] <= alone[name] * 1.02 for name in alone)


def test_runs_feel_kernels_that_nobody_has() -> None:
    load: Any = {"rate": 6, "num_requests": 30, "seed": 1}
    plain = infercast.simulate("llama-3.1-8b", gpu="l40s", **load)
    for change in ({"drop": "activation"}, {"overlap": "gate_up_proj+activation"}, {"at_ceiling": "all"}):
        assert infercast.simulate("llama-3.1-8b", gpu="l40s", **load, **change).tpot.mean < plain.tpot.mean


def test_kernels_that_are_not_there_or_cannot_be_joined_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown kernel of llama-3\.1-8b 'nrom'; did you mean norm"):
        deploy("llama-3.1-8b", "l40s", drop="nrom")
    for what, names in (("fuse", "norm"), ("overlap", "norm+norm"), ("overlap", "attention+norm")):
        with pytest.raises(
            InputError, match=rf"{what} {re.escape(names)} must be two kernels or more, none of attention"
        ):
            deploy("llama-3.1-8b", "l40s", **{what: names})
    with pytest.raises(InputError, match="drop: attention cannot be left out"):
        deploy("llama-3.1-8b", "l40s", drop="norm+attention")
    with pytest.raises(InputError, match=r"fuse qkv_proj\+o_proj: one of two neighbours must work value by value"):
        deploy("llama-3.1-8b", "l40s", fuse="qkv_proj+o_proj").simulate(rate=1, num_requests=2)


def test_odd_numbers_of_bits_lie_between_those_that_were_measured() -> None:
    formats = ("int3", "int4", "int5", "int6", "none")
    for model, gpu in (("llama-3.1-8b", "h200-sxm"), ("qwen3-30b-a3b", "h100-sxm")):
        found = [deploy(model, gpu, SETTINGS, quantization=each) for each in formats]
        steps = [estimate_step(each, decode_shape(8, 1000)).seconds for each in found]
        assert steps == sorted(steps)
        assert [each.memory.weights for each in found] == sorted(each.memory.weights for each in found)
    assert "no engine has such kernels" in " ".join(found[0].model.notes)
    kernel = infercast.estimate("gemm", "h200-sxm", m=8, n=4096, k=4096, weight_dtype="int5")
    assert kernel.source == "physics"
    assert kernel.high > 1.5 * kernel.seconds
