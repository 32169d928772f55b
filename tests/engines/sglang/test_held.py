"""What groups of DP attention hold, and which shared experts join the routed ones."""

from dataclasses import replace

import pytest

from infercast.engines.sglang.kernels import choose_kernels, joined_experts
from infercast.engines.sglang.memory import cells, weight_bytes
from infercast.engines.sglang.settings import SglangSettings
from infercast.hardware.load import load_gpu
from infercast.models.feed_forward import ExpertFeedForward
from infercast.models.layout import ParallelLayout
from infercast.models.read import read_model

H200, B200 = load_gpu("h200-sxm"), load_gpu("b200-sxm")
GROUPS = SglangSettings(enable_dp_attention=True)
TOGETHER, APART = ParallelLayout(tensor=8), ParallelLayout(tensor=1, data=8)


def test_groups_split_head_dense_layers_and_shared_experts() -> None:
    model = read_model("glm-5.2-fp8")
    together = weight_bytes(model, TOGETHER, H200, SglangSettings())
    apart = weight_bytes(model, APART, H200, GROUPS)
    copies = weight_bytes(model, APART, H200, SglangSettings())
    # Beside attention and the embedding, which every group has, nothing is held more than once.
    table = model.vocabulary * model.hidden * 2 * 7 / 8
    attention = sum(
        stack.layers * (stack.mixer.held_bytes(model.shard(APART)) - stack.mixer.held_bytes(model.shard(TOGETHER)))
        for stack in model.stacks
    )
    assert apart - together == pytest.approx(table + attention, rel=1e-3)
    assert copies - apart > 4e9


def test_shared_experts_are_whole_where_tokens_are_sent_to_experts() -> None:
    model = read_model("glm-5.2-fp8")
    sent = replace(APART, experts=True, all_to_all=True)
    assert weight_bytes(model, sent, H200, GROUPS) > weight_bytes(model, APART, H200, GROUPS) + 2e9


@pytest.mark.parametrize(
    ("name", "layout", "joined"),
    [
        ("deepseek-r1", TOGETHER, 1),
        ("deepseek-v3.2", TOGETHER, 0),
        ("kimi-k2", TOGETHER, 0),
        ("glm-4.6", TOGETHER, 1),
        ("glm-5.2-fp8", APART, 1),
        ("glm-5.2-fp8", replace(APART, experts=True, all_to_all=True), 0),
        ("deepseek-r1", replace(TOGETHER, experts=True), 0),
    ],
)
def test_shared_experts_join_the_routed_ones_of_some_models(name: str, layout: ParallelLayout, joined: int) -> None:
    model = choose_kernels(read_model(name), H200, layout)
    specs = [stack.feed_forward for stack in model.stacks if isinstance(stack.feed_forward, ExpertFeedForward)]
    assert {spec.joined for spec in specs} == {joined}


def test_joined_experts_replace_kernels_of_their_own() -> None:
    model = choose_kernels(read_model("deepseek-r1"), H200, TOGETHER)
    (spec,) = (stack.feed_forward for stack in model.stacks if isinstance(stack.feed_forward, ExpertFeedForward))
    names = {call.name for call in spec.calls(model.shard(TOGETHER), 4)}
    assert not any(name.startswith("shared") for name in names)
    blackwell = choose_kernels(read_model("deepseek-r1"), B200, TOGETHER)
    assert joined_experts(blackwell, spec, TOGETHER) == 0


def test_pools_have_room_for_layers_that_read_what_earlier_ones_cached():
    config, settings = read_model("gemma-4-e2b"), SglangSettings()
    held = cells(config, ParallelLayout(), settings)
    assert (held.full, held.windowed) == (7 * 2 * 512 * 2, 28 * 2 * 256 * 2)
