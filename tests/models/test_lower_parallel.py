"""The kernels of a step on more than one GPU."""

from dataclasses import replace

import numpy as np
import pytest

from infercast.models.feed_forward import hottest_load
from infercast.models.layout import ParallelLayout
from infercast.models.lower import step_calls
from infercast.models.read import read_model


def step(model, layout, tokens=8):
    config = read_model(model) if isinstance(model, str) else model
    ones = np.ones(tokens, dtype=np.int64)
    return {call.name: call for call in step_calls(config, layout, ones, 100 * ones, sampled=tokens)}


def test_tensor_parallelism_reduces_twice_a_layer():
    calls = step("llama-3.1-8b", ParallelLayout(4))
    assert calls["all_reduce"].count == 2 * 32
    assert calls["all_reduce"].op.message_bytes == 8 * 4096 * 2
    assert calls["all_reduce"].op.gpus == 4


def test_copies_alone_talk_to_nobody():
    alone, copies = (step("llama-3.1-8b", ParallelLayout(data=size)) for size in (1, 4))
    assert list(alone) == list(copies)


def test_stages_send_hidden_states_and_residuals():
    calls = step("llama-3.1-8b", ParallelLayout(2, pipeline=4))
    sent = calls["stage_send"]
    assert (sent.count, sent.op.kind, sent.op.message_bytes) == (3, "send_recv", 2 * 8 * 4096 * 2 // 2)
    assert calls["qkv_proj"].count == 32  # every layer is computed by some stage


def test_fused_norms_have_no_launch_of_their_own():
    plain, fused = (step("llama-3.1-8b", ParallelLayout(2, fused_norms=fused)) for fused in (False, True))
    assert plain["norm"].op.kind == "add_norm"
    assert fused["norm"].op.kind == "fused_norm"
    alone = step("llama-3.1-8b", ParallelLayout(1, fused_norms=True))
    assert alone["norm"].op.kind == "add_norm"


def test_norms_across_heads_need_a_sum_over_gpus():
    assert "qk_norm_reduce" not in step("minimax-m2.5", ParallelLayout(1))
    assert step("minimax-m2.5", ParallelLayout(4))["qk_norm_reduce"].op.message_bytes == 8 * 2 * 4
    assert "qk_norm_reduce" not in step("qwen3-30b-a3b", ParallelLayout(4))


def test_experts_are_split_or_spread():
    split = step("qwen3-30b-a3b", ParallelLayout(4))["experts"].op
    spread = step("qwen3-30b-a3b", ParallelLayout(4, experts=True))["experts"].op
    assert (split.inter, split.num_local) == (768 // 4, 128)
    assert (spread.inter, spread.num_local) == (768, 32)


def test_copies_that_share_experts_exchange_tokens():
    calls = step("qwen3-30b-a3b", ParallelLayout(2, data=2, experts=True))
    assert calls["experts"].op.num_local == 32
    assert calls["all_reduce"].count == 48  # after attention alone
    for name in ("experts_dispatch", "experts_combine"):
        assert calls[name].op.message_bytes == 2 * 8 * 2048 * 2
        assert calls[name].op.gpus == 4


def test_copies_that_split_experts_bring_all_tokens_to_each():
    calls = step("qwen3-30b-a3b", ParallelLayout(2, data=4))
    experts = calls["experts"].op
    assert (experts.inter, experts.num_local, experts.tokens) == (768 // 8, 128, 4 * 8)
    # One GPU of each copy gathers the tokens of all; what it scatters is still to be added up within a copy.
    for name in ("experts_dispatch", "experts_combine"):
        assert (calls[name].op.message_bytes, calls[name].op.gpus) == (4 * 8 * 2048 * 2, 4)
    assert calls["all_reduce"].count == 2 * 48


def test_tokens_may_go_to_their_experts_alone():
    layout = ParallelLayout(2, data=8, experts=True, all_to_all=True)
    sent = step("qwen3-30b-a3b", layout)["experts_dispatch"].op
    everywhere = step("qwen3-30b-a3b", replace(layout, all_to_all=False))["experts_dispatch"].op
    assert (sent.kind, everywhere.kind) == ("all_to_all", "all_gather")
    # Eight of 128 experts lie on 6.4 of 16 GPUs on average.
    assert sent.message_bytes == pytest.approx(8 / 2 * 6.45 * 2048 * 2, rel=0.01)
    assert sent.link_bytes < everywhere.link_bytes


def test_the_hottest_gpu_gets_more_than_its_share_but_never_more_than_all():
    topk = read_model("qwen3-30b-a3b").stacks[0].feed_forward.topk
    layout = ParallelLayout(8, experts=True)
    tokens = np.array([1, 16, 256, 8192])
    loads = hottest_load(tokens, topk, layout) / tokens
    assert (loads > 1).all()
    assert (np.diff(loads) < 0).all()
    assert loads[0] <= 8
    assert loads[-1] == pytest.approx(1.0, abs=0.05)
    assert hottest_load(tokens, topk, ParallelLayout(8)) is tokens


def test_a_named_kernel_pads_its_experts():
    config = read_model("gpt-oss-120b")
    marlin = replace(config, weights=replace(config.weights, experts_kernel="marlin"))
    plain, padded = (step(each, ParallelLayout(2))["experts"].op for each in (config, marlin))
    assert (plain.hidden, plain.inter, plain.kernel) == (2880, 1472, "")
    assert (padded.hidden, padded.inter, padded.kernel) == (3072, 1536, "marlin")


@pytest.mark.parametrize(("gpus", "width"), [(1, 2880), (2, 1472), (4, 768), (8, 384)])
def test_mxfp4_experts_are_as_wide_as_kernels_hold_them(gpus, width):
    # fused_moe/oracle/mxfp4.py rounds the width on a GPU up to 64 for Triton's kernels and to more for all others.
    config = read_model("gpt-oss-120b")
    assert step(config, ParallelLayout(gpus))["experts"].op.inter == width
    marlin = replace(config, weights=replace(config.weights, experts_kernel="marlin"))
    assert step(marlin, ParallelLayout(gpus))["experts"].op.inter == -(-width // 128) * 128


def test_a_gate_on_shared_experts_is_three_kernels():
    # A profile of Qwen3.5-35B-A3B has a product of one column, a sigmoid and a multiplication in each of 40 layers.
    calls = step("qwen3.5-35b-a3b", ParallelLayout(1))
    assert [calls[name].count for name in ("shared_gate", "shared_sigmoid", "shared_gating")] == [40, 40, 40]
    assert calls["shared_gate"].op.n == 1
    assert "shared_gate" not in step("deepseek-v2-lite", ParallelLayout(1))
