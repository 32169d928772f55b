"""Heads that predict further tokens: how many, which layers, how many parameters and bytes."""

import pytest

from infercast.models.draft import prediction_draft
from infercast.models.layout import ParallelLayout
from infercast.models.library import bundled_config
from infercast.models.read import read_model
from infercast.models.spec import parameter_count, prediction_parameter_count, rank_weight_bytes, weight_bytes

# Heads, copies of the model's tables that the files hold for them (engines do not load these), and all that the
# safetensors files hold; DeepSeek's count the scales of blocks too.
# Those of Qwen3.5 hold the encoder of images too.
FILES = {
    "qwen3.5-27b": (1, 0, 27_781_427_952),
    "qwen3.5-35b-a3b": (1, 0, 35_951_822_704),
    "qwen3.5-122b-a10b": (1, 0, 125_086_497_008),
    "qwen3.5-397b-a17b": (1, 0, 403_397_928_944),
    "qwen3-next-80b-a3b": (1, 0, 81_324_862_720),
    "deepseek-v3": (1, 2, 684_531_386_000),
    "glm-4.5": (1, 2, 358_337_791_296),
    "mimo-7b": (1, 0, 7_833_409_536),
    "mimo-v2-flash": (3, 0, 309_785_000_000),
}


@pytest.mark.parametrize("name", FILES)
def test_model_and_heads_are_what_the_files_hold(name):
    heads, tables, total = FILES[name]
    config = read_model(name)
    assert config.prediction.heads == heads
    copied = tables * config.vocabulary * config.hidden + (config.vision.parameters if config.vision else 0)
    assert parameter_count(config) + prediction_parameter_count(config) + copied == pytest.approx(total, rel=1e-4)


def test_heads_take_memory_only_when_they_are_asked_for():
    config = read_model("deepseek-v3")
    one, eight = ParallelLayout(), ParallelLayout(8)
    assert rank_weight_bytes(config, one) == pytest.approx(weight_bytes(config).total, rel=0.01)
    experts = 3 * 256 * 7168 * 2048
    assert prediction_draft(config).weight_bytes(one) > experts
    assert experts / 8 < prediction_draft(config).weight_bytes(eight) < prediction_draft(config).weight_bytes(one) / 4
    assert read_model("llama-3.1-8b").prediction is None


def test_attention_and_experts_predict_in_nemotron_3():
    part = read_model("nemotron-3-super-120b-a12b").prediction
    assert [(stack.mixer.is_empty, stack.feed_forward.is_empty, stack.norms) for stack in part.stacks] == [
        (False, True, 1),
        (True, False, 1),
    ]
    assert read_model("nemotron-3-nano-30b-a3b").prediction is None


def test_heads_of_step_have_a_table_of_their_own():
    config = read_model("step-3.7-flash")
    (stack,) = config.prediction.stacks
    assert (config.prediction.heads, stack.mixer.window, stack.feed_forward.inter) == (3, 512, 11264)
    assert prediction_parameter_count(config) > 3 * config.vocabulary * config.hidden


def test_checkpoints_may_leave_heads_unquantised():
    values = bundled_config("qwen3.5-35b-a3b")
    settings = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["mtp*"]}
    leaving = read_model({**values, "quantization_config": settings})
    taking = read_model({**values, "quantization_config": {**settings, "ignore": []}})
    assert (leaving.prediction.quantised, taking.prediction.quantised) == (False, True)
    assert prediction_draft(leaving).weight_bytes(ParallelLayout()) == pytest.approx(
        2 * prediction_parameter_count(leaving), rel=1e-3
    )
    assert (
        prediction_draft(taking).weight_bytes(ParallelLayout())
        < prediction_draft(leaving).weight_bytes(ParallelLayout()) / 2
    )


def test_windowed_attention_and_a_dense_network_predict_in_mimo_v2_flash():
    (stack,) = read_model("mimo-v2-flash").prediction.stacks
    assert (stack.layers, stack.mixer.window, stack.feed_forward.experts) == (1, 128, 0)
