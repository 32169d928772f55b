"""Fields of a config that a user replaces."""

import pytest

from infercast.errors import InputError
from infercast.forecast.deploy import load_model
from infercast.models.library import bundled_config
from infercast.models.read import overridden, read_model


def test_fewer_layers_take_their_items_of_lists_with_them() -> None:
    config = {"num_hidden_layers": 4, "layer_types": ["a", "b", "a", "b"], "pattern": "MEM*", "act": "gelu", "n": 3}
    cut = overridden(config, {"num_hidden_layers": 2})
    assert cut == {"num_hidden_layers": 2, "layer_types": ["a", "b"], "pattern": "ME", "act": "gelu", "n": 3}


def test_objects_are_merged_and_lists_may_count_drafts() -> None:
    inner = {"num_hidden_layers": 3, "num_nextn_predict_layers": 1, "ratios": [0, 4, 128, 4]}
    cut = overridden({"text_config": inner, "model_type": "x"}, {"text_config": {"num_hidden_layers": 2}})
    assert cut == {"text_config": {**inner, "num_hidden_layers": 2, "ratios": [0, 4]}, "model_type": "x"}


def test_a_model_is_read_with_them() -> None:
    assert load_model("gpt-oss-20b", hf_overrides='{"num_hidden_layers": 6}').layers == 6
    deep = bundled_config("deepseek-v3")
    model = load_model(deep, hf_overrides={"num_hidden_layers": 5})
    assert [stack.layers for stack in model.stacks] == [3, 2]


def test_they_must_be_an_object_and_come_with_the_config() -> None:
    with pytest.raises(InputError, match="JSON object"):
        load_model("llama-3.1-8b", hf_overrides="[1]")
    with pytest.raises(InputError, match="hf_overrides"):
        load_model(load_model("llama-3.1-8b"), hf_overrides={"num_hidden_layers": 2})


def test_yarn_stretches_the_positions():
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert read_model("qwen3-8b", overrides={"rope_scaling": rope}).max_positions == 131072
    assert read_model("qwen3-8b", overrides={"rope_scaling": {**rope, "rope_type": "llama3"}}).max_positions == 40960
    longer = {"text_config": {"rope_parameters": {**rope, "original_max_position_embeddings": 262144}}}
    assert read_model("Qwen/Qwen3.6-27B-FP8", overrides=longer).max_positions == 1048576
