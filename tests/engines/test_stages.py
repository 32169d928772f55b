"""Cuts of a model into pipeline stages: the engines' own, the best one, and stages on different GPUs."""

from __future__ import annotations

from itertools import combinations
from random import Random

import numpy as np
import pytest

from infercast import EngineSettings, deploy, simulate
from infercast.engines.base import engine_named
from infercast.engines.stages import DECODE, PROMPT, best_cut, stage_seconds, stage_shares
from infercast.errors import DoesNotFitError, InputError
from infercast.forecast.kernels import decode_shape, estimate_step, prefill_shape
from infercast.forecast.layouts import estimate_partition
from infercast.forecast.memory import fit_memory
from infercast.models.layout import ParallelLayout
from infercast.models.read import read_model
from infercast.models.spec import stage_layers
from infercast.serve.workload.synthetic import synthetic_workload


def cuts_of(layers: int, stages: int):
    for ends in combinations(range(1, layers), stages - 1):
        yield tuple(np.diff([0, *ends, layers]).tolist())


def vllm_rule(layers, stages):
    """``get_pp_indices`` of vLLM 0.25 and 0.32: a layer more from the last stage but one backwards."""
    counts = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        counts[-place] += 1
    return tuple(counts)


def sglang_rule(layers, stages):
    """``get_pp_indices`` of SGLang 0.5.16 to 0.5.23: a layer more in the last stages."""
    return tuple(layers // stages + (stage >= stages - layers % stages) for stage in range(stages))


@pytest.mark.parametrize(
    ("engine", "rule"), [("vllm@0.25", vllm_rule), ("vllm@0.32", vllm_rule), ("sglang", sglang_rule)]
)
def test_each_engine_has_its_own_cut(engine, rule):
    chosen, model = engine_named(engine), read_model("qwen3-0.6b")
    for stages in range(2, 9):
        layout = chosen.spread(chosen.settings(), model, ParallelLayout(pipeline=stages), None)
        for layers in range(stages, 62):
            assert stage_layers(layers, layout) == rule(layers, stages)
    assert (vllm_rule(61, 4), sglang_rule(61, 4), sglang_rule(62, 4)) == (
        (15, 15, 16, 15),
        (15, 15, 15, 16),
        (15, 15, 16, 16),
    )


@pytest.mark.parametrize("seed", range(12))
def test_no_cut_is_better_than_the_best(seed):
    draw = Random(seed)
    layers, stages = draw.randint(4, 11), draw.randint(2, 4)
    each = np.array(
        [[draw.choice([1.0, 1.0, 2.5]) * draw.choice([1, 3]) for _ in range(layers)] for _ in range(stages)]
    )
    until = np.cumsum(np.hstack([np.zeros((stages, 1)), each]), axis=1)
    costs = until[:, None, :] - until[:, :, None] + np.array([draw.random() for _ in range(stages)])[:, None, None]
    costs[:, np.tri(layers + 1, dtype=bool)] = np.inf

    def slowest(cut):
        ends = np.cumsum((0, *cut))
        return max(costs[stage, ends[stage], ends[stage + 1]] for stage in range(stages))

    usual = stage_layers(layers, ParallelLayout(pipeline=stages))
    found, least = best_cut(costs, usual), min(map(slowest, cuts_of(layers, stages)))
    assert slowest(found) == pytest.approx(least)
    off = {cut: sum((a - b) ** 2 for a, b in zip(cut, usual, strict=True)) for cut in cuts_of(layers, stages)}
    assert off[found] == min(off[cut] for cut in off if slowest(cut) <= least * (1 + 1e-9))


@pytest.mark.parametrize(("model", "tensor"), [("llama-3.1-8b", 1), ("deepseek-v2-lite", 1), ("gemma-3-12b", 2)])
def test_stages_together_take_what_the_step_takes(model, tensor):
    deployment = deploy(model, "h200-sxm", tensor_parallel_size=tensor, pipeline_parallel_size=4)
    for kind, shape in ((DECODE, decode_shape(32, 1023)), (PROMPT, prefill_shape(1024))):
        whole = float(estimate_step(deployment, shape).gpu.seconds)
        assert sum(stage_seconds(deployment, kind)) == pytest.approx(whole, rel=0.02)


def test_the_best_cut_spares_the_stage_with_the_head():
    found = estimate_partition("gemma-3-27b", "h100-sxm", pipeline_parallel_size=4)
    assert found.usual.layers == (15, 16, 16, 15)
    assert found.cut.layers[-1] < 15
    assert 0.03 < found.saved_share < 0.08
    document = found.to_dict()
    assert document["set"] == "VLLM_PP_LAYER_PARTITION=16,16,16,14"
    assert document["bubble_share"] < document["default_bubble_share"] < 0.1
    assert document["requests_per_second"] == pytest.approx(1 / max(found.cut.request_seconds))
    # Prompts alone hardly have a head, so the head no longer matters much.
    prompts = estimate_partition("gemma-3-27b", "h100-sxm", pipeline_parallel_size=4, output_len=0)
    assert prompts.cut.layers[-1] > found.cut.layers[-1]
    assert repr(found).endswith("16,16,16,14 saves 4.9% against 15,16,16,15>")


def test_dense_layers_count_for_less_than_experts():
    shares = stage_shares(deploy("deepseek-v2-lite", "h200-sxm", pipeline_parallel_size=3))
    assert shares[0] < shares[1] < shares[2]  # nine layers each: one dense, none, and the head


def test_memory_and_run_follow_the_cut():
    asked = {"pipeline_parallel_size": 4}
    usual, uneven = (
        fit_memory("llama-3.1-8b", "h100-sxm", pp_layer_partition=cut, **asked) for cut in (None, "5,9,9,9")
    )
    assert uneven.memory.num_blocks < usual.memory.num_blocks
    assert uneven.memory.kv.block_bytes == 9 * usual.memory.kv.block_bytes // 8
    load = synthetic_workload(concurrency=128, count=384, input_lengths=512, output_lengths=32)
    runs = {
        cut: simulate(deploy("llama-3.1-8b", "h100-sxm", pp_layer_partition=cut, engine="vllm@0.25", **asked), load)
        for cut in (None, "8,8,8,8", "14,6,6,6", "auto")
    }
    rates = {cut: run.output_tokens_per_second for cut, run in runs.items()}
    assert rates["8,8,8,8"] == rates[None]
    assert rates["14,6,6,6"] < 0.8 * rates[None] < rates["auto"]
    shares = stage_shares(runs["14,6,6,6"].deployment)
    assert shares[0] / shares[1] == pytest.approx(14 / 6)


def test_stages_on_different_gpus():
    mixed = {"pipeline_parallel_size": 4, "network": "infiniband-ndr"}
    found = estimate_partition("llama-3.1-8b", "2xh200-sxm+2xa100-sxm", **mixed)
    first, *_, last = found.cut.layers
    assert first > 2 * last
    assert found.saved_share > 0.4
    assert found.to_dict()["bubble_share"] < 0.1 < found.to_dict()["default_bubble_share"]
    slow, fast = (
        estimate_partition("llama-3.1-8b", "2xh200-sxm+2xa100-sxm", pipeline_parallel_size=4, network=network)
        for network in (None, "infiniband-ndr")
    )
    assert slow.usual.decode_seconds[1] != fast.usual.decode_seconds[1]  # what is sent to another GPU
    assert slow.usual.decode_seconds[0] == fast.usual.decode_seconds[0]
    load = synthetic_workload(concurrency=64, count=128, input_lengths=64, output_lengths=32)
    mixed["engine"] = "vllm@0.25"
    names = ("h200-sxm", "2xh200-sxm+2xa100-sxm", "a100-sxm")
    rates = [simulate(deploy("llama-3.1-8b", gpu, **mixed), load).output_tokens_per_second for gpu in names]
    assert rates[0] > rates[1] > rates[2]
    best = simulate(deploy("llama-3.1-8b", names[1], pp_layer_partition="auto", **mixed), load)
    assert best.output_tokens_per_second > 1.2 * rates[1]
    assert best.energy is None
    assert best.cost is not None


def test_memory_decides_where_the_quicker_gpu_is_the_smaller():
    options = {"pipeline_parallel_size": 2, "settings": EngineSettings(max_model_len=4096)}
    with pytest.raises(DoesNotFitError):
        deploy("llama-3.1-70b", "h100-sxm+rtx-pro-6000", pp_layer_partition="44,36", **options)
    found = estimate_partition("llama-3.1-70b", "h100-sxm+rtx-pro-6000", **options)
    assert found.cut.fits
    assert found.cut.request_seconds[0] < found.cut.request_seconds[1]  # more layers would balance it
    more = ",".join(str(count + by) for count, by in zip(found.cut.layers, (1, -1), strict=True))
    with pytest.raises(DoesNotFitError):
        deploy("llama-3.1-70b", "h100-sxm+rtx-pro-6000", pp_layer_partition=more, **options)


@pytest.mark.parametrize(
    "text", ["8,8,8", "8,8,8,9", "0,16,8,8", "8,8,8,-8", "x", "", "8,8,8,8,", "9" * 30, "auto,auto"]
)
def test_a_cut_that_is_none_is_refused_with_one_that_is(text):
    with pytest.raises(InputError, match=r"pp_layer_partition .*each of 4 stages, 32 in all, such as 8,8,8,8"):
        deploy("llama-3.1-8b", "h100-sxm", pipeline_parallel_size=4, pp_layer_partition=text)


@pytest.mark.parametrize(
    ("gpu", "options", "said"),
    [
        ("h100-sxm", {"pp_layer_partition": "auto"}, "needs a pipeline_parallel_size of 2"),
        ("h100-sxm+l4", {"pipeline_parallel_size": 3}, "is for a pipeline_parallel_size of 2, not 3"),
        ("h100-sxm+h100-sxm", {"pipeline_parallel_size": 2}, "say --gpu h100-sxm"),
        ("h100-sxm+l4", {"pipeline_parallel_size": 2, "power_limit_w": 300.0}, "GPUs of one kind"),
        ("h100-sxm+nothing", {"pipeline_parallel_size": 2}, "unknown GPU 'nothing'"),
    ],
)
def test_what_cannot_be_is_said(gpu, options, said):
    with pytest.raises(InputError, match=said):
        deploy("llama-3.1-8b", gpu, **options)


def test_a_step_on_different_gpus_is_not_taken_for_one_on_the_first():
    with pytest.raises(InputError, match=r"h100-sxm\+l4 is estimated by stage"):
        estimate_step("llama-3.1-8b", decode_shape(8, 100), gpu="h100-sxm+l4", pipeline_parallel_size=2)


def test_a_partition_needs_stages_and_tokens():
    for options in ({}, {"pipeline_parallel_size": 2, "input_len": 0, "output_len": 0}):
        with pytest.raises(InputError, match="a partition needs"):
            estimate_partition("llama-3.1-8b", "h100-sxm", **options)
    with pytest.raises(InputError, match=r"input_len 200000, .* is above what the engine takes, 131072 tokens"):
        estimate_partition("llama-3.1-8b", "h100-sxm", pipeline_parallel_size=2, input_len=200_000)
    with pytest.raises(InputError, match="batch must be from 1"):
        estimate_partition("llama-3.1-8b", "h100-sxm", pipeline_parallel_size=2, batch=0)
