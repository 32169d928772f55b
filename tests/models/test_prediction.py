"""Heads that predict further tokens: how many, which layers, how many parameters and bytes."""

import pytest

from infercast.models.layout import ParallelLayout
from infercast.models.parameters import parameter_count, prediction_parameter_count, weight_bytes
from infercast.models.rank import prediction_bytes, rank_weight_bytes
from infercast.models.read import read_model

# Heads, copies of the model's tables that the files hold for them (engines do not load these), and all that the
# safetensors files hold; DeepSeek's count the scales of blocks too.
FILES = {
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
    copied = tables * config.vocabulary * config.hidden
    assert parameter_count(config) + prediction_parameter_count(config) + copied == pytest.approx(total, rel=1e-4)


def test_heads_take_memory_only_when_they_are_asked_for():
    config = read_model("deepseek-v3")
    one, eight = ParallelLayout(), ParallelLayout(8)
    assert rank_weight_bytes(config, one) == pytest.approx(weight_bytes(config).total, rel=0.01)
    experts = 3 * 256 * 7168 * 2048
    assert prediction_bytes(config, one) > experts
    assert experts / 8 < prediction_bytes(config, eight) < prediction_bytes(config, one) / 4
    assert prediction_bytes(read_model("llama-3.1-8b"), one) == 0


def test_windowed_attention_and_a_dense_network_predict_in_mimo_v2_flash():
    (stack,) = read_model("mimo-v2-flash").prediction.stacks
    assert (stack.layers, stack.mixer.window, stack.feed_forward.experts) == (1, 128, 0)
