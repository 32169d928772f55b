"""Bundled models: every one reads, counts right, and is found by its names."""

import json
import re
from pathlib import Path

import pytest

from infercast.bundled import read_data
from infercast.errors import UnknownNameError, UnsupportedModelError
from infercast.models.library import bundled_config, bundled_name, model_names, refused
from infercast.models.read import read_model
from infercast.models.spec import active_parameter_count, parameter_count, weight_bytes


def test_there_are_many():
    assert len(model_names()) >= 55
    assert list(model_names()) == sorted(model_names())


def test_every_bundled_model_reads_and_counts_as_published(every):
    def check(name):
        config = read_model(name)
        facts = bundled_config(name)["infercast"]
        assert config.name == name
        assert parameter_count(config) == pytest.approx(facts["parameters"], rel=0.01)
        assert 0 < active_parameter_count(config) <= parameter_count(config)
        stored = weight_bytes(config)
        assert stored.total - stored.vision <= 2 * parameter_count(config)

    every(model_names(), check)


def test_every_bundled_file_names_its_sources(every):
    def check(name):
        facts = bundled_config(name)["infercast"]
        assert set(facts) == {"source", "aliases", "parameters", "parameters_source"}
        assert facts["source"].startswith("huggingface.co/")
        assert facts["parameters_source"]
        assert name == name.lower()
        assert re.fullmatch(r"[a-z0-9.-]+", name)

    every(model_names(), check)


def test_an_alias_means_one_model():
    aliases = [alias.lower() for name in model_names() for alias in bundled_config(name)["infercast"]["aliases"]]
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & set(model_names())


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("META-LLAMA/llama-3.1-8b-instruct", "llama-3.1-8b"),
        ("LLAMA-3.1-8B", "llama-3.1-8b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b-fp8"),
    ],
)
def test_aliases_in_any_case(alias, name):
    assert bundled_name(alias) == name
    assert read_model(alias).name == name


def test_unknown_names_come_with_suggestions():
    with pytest.raises(UnknownNameError, match=r"unknown model 'llama-3\.1-9b'; did you mean .*config\.json works too"):
        bundled_config("llama-3.1-9b")
    assert bundled_name("nothing/like-it") is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("MiniMaxAI/MiniMax-M1-80k", "(MiniMaxM1ForCausalLM) is not supported: lightning"),
        ("zai-org/GLM-5.3-Flash", "(Glm5NextForConditionalGeneration) is not supported: sparse attention over pooled"),
    ],
)
def test_a_published_model_that_is_refused_says_why(name, reason):
    with pytest.raises(UnsupportedModelError) as caught:
        read_model(name)
    assert str(caught.value).startswith(f"{name} {reason}")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("MiniMaxAI/MiniMax-M1-80k", "the nearest bundled model is minimax-m2.5"),
        ("someone/Something-405B-Chat", "lists the .* bundled names; the nearest in size is llama-3.1-405b"),
        ("someone/Something-0b", "bundled names$"),
    ],
)
def test_what_comes_nearest_is_named(name, nearest):
    with pytest.raises((UnknownNameError, UnsupportedModelError), match=nearest):
        read_model(name)


def test_refused_names_name_refused_architectures():
    names, nearest = (read_data("refused_models.toml")[table] for table in ("names", "nearest"))
    assert set(names.values()) <= set(refused())
    assert set(nearest) <= set(refused())
    assert set(nearest.values()) <= set(model_names())
    assert not any(name.startswith(tuple(names)) for name in model_names())


def test_guesses_are_few_and_never_of_another_generation():
    with pytest.raises(UnknownNameError) as caught:
        read_model("Qwen/Qwen9.5-7B")
    sentence = str(caught.value)
    assert "did you mean" not in sentence
    assert "a path to its config.json works too, and `infercast models` lists the" in sentence
    with pytest.raises(UnknownNameError, match=r"did you mean qwen3-235b-a22b\S* or \S+ or \S+\? a path"):
        read_model("someone/Qwen3-236B-A22B-NVFP4")


def test_bundled_configs_are_not_shared():
    first = bundled_config("phi-4")
    first["hidden_size"] = 1
    assert bundled_config("phi-4")["hidden_size"] == 5120


def test_files_are_plain_json():
    folder = Path(__file__).parents[2] / "src" / "infercast" / "data" / "models"
    for path in folder.glob("*.json"):
        assert "NaN" not in path.read_text(encoding="utf-8")
        json.loads(path.read_text(encoding="utf-8"))
