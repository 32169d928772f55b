"""What one GPU of a layout holds."""

import pytest

from infercast.models.layout import ParallelLayout
from infercast.models.read import read_model
from infercast.models.spec import rank_weight_bytes, stage_config, stage_range, stage_weight_bytes, weight_bytes

FOUR = ParallelLayout(pipeline=4)


def test_one_gpu_holds_everything():
    config = read_model("llama-3.1-8b")
    assert rank_weight_bytes(config, ParallelLayout()) == weight_bytes(config).total
    assert stage_config(config, ParallelLayout(), 0) is config


def test_scarce_key_value_heads_are_held_by_every_gpu():
    config = read_model("qwen2.5-7b")  # 4 key-value heads of 128 over 28 layers
    even = (weight_bytes(config).total - weight_bytes(config).other) / 14 + weight_bytes(config).other
    beyond = 28 * config.hidden * 2 * 128 * (1 - 4 / 14) * 2
    assert rank_weight_bytes(config, ParallelLayout(14)) == pytest.approx(even + beyond)


def test_stages_hold_their_layers_and_one_table():
    config = read_model("llama-3.1-8b")
    two = rank_weight_bytes(config, ParallelLayout(pipeline=2))
    parts = weight_bytes(config)
    layers = parts.attention + parts.feed_forward + parts.other
    assert two == pytest.approx(layers / 2 + parts.head, rel=1e-6)
    assert [stage_config(config, ParallelLayout(pipeline=3), stage).layers for stage in range(3)] == [11, 11, 10]


def test_stages_hold_the_layers_of_their_place_in_the_model():
    # 61 layers of which the first three are dense: stage 2 of 4 has one layer more, and all of them have experts.
    config = read_model("deepseek-v3")
    assert [stage_range(61, FOUR, stage).start for stage in range(4)] == [0, 15, 30, 46]
    counts = [
        [(stack.layers, stack.feed_forward.inter) for stack in stage_config(config, FOUR, n).stacks] for n in (0, 2)
    ]
    assert counts == [[(3, 18432), (12, 2048)], [(16, 2048)]]
    layout = ParallelLayout(8, pipeline=4)
    assert (
        rank_weight_bytes(config, layout) == stage_weight_bytes(config, layout, 2) == pytest.approx(23.35e9, rel=1e-3)
    )


def test_layers_that_alternate_are_counted_where_they_are():
    config = read_model("gemma-3-27b")  # 62 layers, every sixth without a window
    counts = [[stack.layers for stack in stage_config(config, FOUR, stage).stacks] for stage in range(4)]
    assert counts == [[13, 2], [13, 3], [14, 2], [12, 3]]


def test_experts_are_spread_over_all_copies():
    config = read_model("qwen3-30b-a3b")
    parts = weight_bytes(config)
    rest = parts.total - parts.experts
    for layout in (ParallelLayout(data=4, experts=True), ParallelLayout(data=8, experts=True)):
        assert rank_weight_bytes(config, layout) == pytest.approx(rest + parts.experts / layout.gpus)


@pytest.mark.parametrize(("layout", "gigabytes"), [(ParallelLayout(data=2), 32.07), (ParallelLayout(2, data=4), 8.80)])
def test_copies_split_the_width_of_their_experts(layout, gigabytes):
    assert rank_weight_bytes(read_model("qwen3-30b-a3b"), layout) / 1e9 == pytest.approx(gigabytes, abs=0.005)


def test_copies_of_a_model_without_experts_hold_all_of_it():
    config = read_model("llama-3.1-8b")
    assert rank_weight_bytes(config, ParallelLayout(data=4)) == weight_bytes(config).total


def test_a_quantised_latent_is_kept_in_both_formats():
    config = read_model("deepseek-v3")
    copy = 61 * 512 * 128 * (128 + 128) * 2  # layers, latent, heads, keys and values, bf16
    assert rank_weight_bytes(config, ParallelLayout()) == pytest.approx(weight_bytes(config).total + copy, rel=1e-6)
    plain = read_model("deepseek-v2-lite")
    assert rank_weight_bytes(plain, ParallelLayout()) == pytest.approx(weight_bytes(plain).total)


def test_keys_that_serve_as_values_are_held_twice():
    config = read_model("gemma-4-31b")
    again = 10 * config.hidden * 4 * 512 * 2  # full layers, heads, head size, bf16
    whole = weight_bytes(config).total
    assert rank_weight_bytes(config, ParallelLayout()) == pytest.approx(whole + again, rel=1e-9)
