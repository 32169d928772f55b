"""What one GPU of a layout holds."""

import pytest

from infercast.models.layout import ParallelLayout
from infercast.models.parameters import weight_bytes
from infercast.models.rank import fullest_stage, rank_weight_bytes
from infercast.models.read import read_model


def test_one_gpu_holds_everything():
    config = read_model("llama-3.1-8b")
    assert rank_weight_bytes(config, ParallelLayout()) == weight_bytes(config).total
    assert fullest_stage(config, ParallelLayout()) is config


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
    assert fullest_stage(config, ParallelLayout(pipeline=3)).layers == 11


def test_experts_are_spread_over_all_copies():
    config = read_model("qwen3-30b-a3b")
    parts = weight_bytes(config)
    rest = parts.total - parts.experts
    for layout in (ParallelLayout(data=4, experts=True), ParallelLayout(data=8, experts=True)):
        assert rank_weight_bytes(config, layout) == pytest.approx(rest + parts.experts / layout.gpus)


def test_copies_without_shared_experts_hold_all_of_them():
    config = read_model("qwen3-30b-a3b")
    assert rank_weight_bytes(config, ParallelLayout(data=4)) == weight_bytes(config).total
