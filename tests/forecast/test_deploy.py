import json

import pytest

from infercast.engines.base import engine_named
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.deploy import deploy, load_model
from infercast.hardware import load_gpu
from infercast.models.library import bundled_config


@pytest.fixture
def config():
    """A published config.json as a dict."""
    return {key: value for key, value in bundled_config("qwen3-0.6b").items() if key != "infercast"}


def test_by_name_path_dict_and_config_it_is_the_same_model(config, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(config))
    named = deploy("qwen3-0.6b", "h200-sxm")
    for source in (str(path), path, config, named.model):
        assert deploy(source, "h200-sxm").memory == named.memory
        assert load_model(source).stacks == named.model.stacks


def test_a_gpu_by_name_alias_or_itself():
    gpus = [deploy("qwen3-0.6b", gpu).gpu for gpu in ("h200-sxm", "H200", load_gpu("h200-sxm"))]
    assert gpus[0] == gpus[1] == gpus[2]


def test_unknown_names_suggest_near_ones():
    with pytest.raises(UnknownNameError, match=r"did you mean .*h200-sxm"):
        deploy("qwen3-0.6b", "h20O-sxm")
    with pytest.raises(UnknownNameError, match=r"did you mean .*qwen3-0.6b"):
        deploy("qwen3-0.6bb", "h200-sxm")


def test_quantising_shrinks_the_weights():
    plain, narrow = (deploy("llama-3.1-8b", "h200-sxm", quantization=name) for name in (None, "fp8"))
    assert narrow.memory.weights < 0.6 * plain.memory.weights


def test_quantising_a_config_that_is_read_already_is_refused_not_ignored():
    model = load_model("llama-3.1-8b")
    with pytest.raises(InputError, match="quantization 'fp8'"):
        load_model(model, quantization="fp8")
    assert load_model(model, quantization="none") is model


@pytest.mark.parametrize(("name", "dtype"), engine_named().names.kv_cache_dtypes.items())
def test_cache_formats_under_vllms_names(name, dtype):
    assert load_model("llama-3.1-8b", kv_cache_dtype=name).kv_dtype == dtype


def test_an_fp8_cache_holds_twice_the_blocks():
    plain, narrow = (deploy("llama-3.1-8b", "h200-sxm", kv_cache_dtype=name) for name in ("auto", "fp8"))
    assert narrow.memory.num_blocks == pytest.approx(2 * plain.memory.num_blocks, abs=1)


def test_an_unknown_cache_format_lists_the_known_ones():
    with pytest.raises(InputError, match=r"unknown kv_cache_dtype 'int3'; known: auto, bf16"):
        load_model("llama-3.1-8b", kv_cache_dtype="int3")


def test_two_gpus():
    assert deploy("llama-3.1-8b", "h200-sxm", tensor_parallel_size=2).layout.gpus == 2
