"""Names of checkpoints: the bundled model and the format that each means, or why it means none."""

import json
import re
from pathlib import Path

import pytest

from infercast.bundled import read_data
from infercast.errors import InputError, UnknownNameError, UnsupportedModelError
from infercast.models.library import bundled_config, bundled_name, checkpoint, model_names
from infercast.models.read import read_model

ROWS = [json.loads(line) for line in Path(__file__).with_name("checkpoint_names.jsonl").read_text().splitlines()]
SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![\w.])", re.IGNORECASE)


def test_there_are_many():
    assert sum("base" in row for row in ROWS) >= 150
    assert len({row["name"] for row in ROWS}) == len(ROWS)


def test_a_name_means_a_model_and_a_format(every):
    def check(row):
        model = read_model(row["name"])
        assert (model.name, model.weights.name) == (row["base"], row["format"])
        if bundled_name(row["name"]) is None:
            assert model.assumed.startswith(f"{row['name']} is taken as {row['base']}")
        else:
            assert model.assumed == ""

    every([row for row in ROWS if "base" in row], check)


def test_other_names_are_refused_in_a_sentence(every):
    def check(row):
        with pytest.raises(InputError) as caught:
            read_model(row["name"])
        assert row["refused"] in str(caught.value)
        assert "\n" not in str(caught.value)

    every([row for row in ROWS if "refused" in row], check)


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-32B-AWQ", "someone/Hermes-Llama-2-13b", "/data/Phi-4-FP8/snapshots/0a1b2c3"]
)
@pytest.mark.parametrize("change", [str.upper, str.lower, lambda name: name.replace("-", "_")])
def test_case_and_underscores_do_not_matter(name, change):
    found, again = checkpoint(name), checkpoint(change(name))
    assert (found.base, found.settings) == (again.base, again.settings)


def test_another_size_is_never_taken_for_one_that_is_bundled(every):
    """A name with its number of parameters changed means a model of that size, or none."""
    every(model_names(), check_other_sizes)


def check_other_sizes(name):
    for alias in bundled_config(name)["infercast"]["aliases"]:
        for factor in (0.5, 1.1, 10):
            other = SIZE.sub(lambda size, factor=factor: f"{float(size[1]) * factor:.3g}b", alias)
            if other == alias:
                continue
            try:
                found = checkpoint(other)
            except InputError:
                continue
            if found is not None:
                known = [found.base, *bundled_config(found.base)["infercast"]["aliases"]]
                assert {size.lower() for size in SIZE.findall(other)} <= {
                    size.lower() for each in known for size in SIZE.findall(each)
                }, (other, found.base)


def test_bundled_models_are_found_without_their_publisher(every):
    def check(name):
        stacks = read_model(name).stacks
        for alias in bundled_config(name)["infercast"]["aliases"]:
            assert read_model(alias.rpartition("/")[2]).stacks == stacks, alias

    every(model_names(), check)


def test_a_bundled_name_assumes_nothing():
    assert read_model("llama-3.1-8b").assumed == ""
    assert read_model("meta-llama/Llama-3.1-8B-Instruct").assumed == ""


def test_what_is_assumed_is_one_sentence():
    said = read_model("NousResearch/Hermes-3-Llama-3.1-8B-FP8").assumed
    assert said == (
        "NousResearch/Hermes-3-Llama-3.1-8B-FP8 is taken as llama-3.1-8b with fp8 weights, a fine-tune by its name "
        "(hermes 3); give its config.json to be sure"
    )


def test_a_format_in_the_name_is_the_checkpoint_s_own():
    """`--quantization` that says the same changes nothing, another one is refused."""
    stored = read_model("Qwen/Qwen3-8B-AWQ")
    assert read_model("Qwen/Qwen3-8B-AWQ", quantization="awq").weights == stored.weights
    with pytest.raises(
        UnsupportedModelError, match="'fp8' does not apply: the checkpoint is already quantised to int4"
    ):
        read_model("Qwen/Qwen3-8B-AWQ", quantization="fp8")


def test_formats_replace_those_of_bundled_checkpoints():
    assert read_model("someone/DeepSeek-V3-BF16").weights.name == "bf16"
    assert read_model("someone/DeepSeek-V4-Flash-BF16").weights.experts == "bf16"
    assert read_model("someone/Kimi-K2.5-BF16").weights.name == "bf16"
    assert read_model("nvidia/Llama-3.3-70B-Instruct-FP8").kv_dtype == "fp8"
    assert read_model("nvidia/DeepSeek-V3.1-NVFP4").weights.attention == "bf16"
    assert read_model("nvidia/Qwen3.6-35B-A3B-NVFP4").weights.attention == "fp8"


def test_parts_of_nemotron_3_have_three_formats():
    model = read_model("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4")
    parts = [getattr(model.weights, part) for part in ("experts", "feed_forward", "recurrent", "attention", "head")]
    assert (parts, model.kv_dtype) == (["nvfp4", "fp8", "fp8", "bf16", "bf16"], "fp8")


def test_a_family_of_one_size_needs_no_size():
    assert [checkpoint(name).base for name in ("smollm3", "TinyLlama", "/models/nemotron-3-nano")] == [
        "smollm3-3b", "tinyllama-1.1b", "nemotron-3-nano-30b-a3b",
    ]  # fmt: skip
    assert all(checkpoint(name) is None for name in ("gemma-3", "smollm2", "nemotron", "qwen"))


def test_a_name_that_is_two_models_is_refused_with_both():
    with pytest.raises(InputError, match=r"may be llama-3\.1-8b or qwen3-8b; give one of these names, or its config"):
        checkpoint("someone/Llama-3.1-Qwen3-8B")
    with pytest.raises(UnknownNameError, match="did you mean gpt-oss-120b or gpt-oss-20b"):
        read_model("gpt-oss")


def test_rules_name_what_there_is():
    rules = read_data("checkpoints.toml")
    assert set(rules["bases"].values()) <= set(model_names())
    assert set(rules["stored"].values()) <= set(rules["formats"])
    for rule in rules["published"]:
        assert set(rule["formats"]) <= set(rules["formats"])
        assert not rule["means"] or "settings" in rules["formats"][rule["means"]]
        assert any(re.fullmatch(rule.get("models", ".*"), name) for name in model_names())


def folder_of(path, name, **files):
    values = {key: value for key, value in bundled_config(name).items() if key != "infercast"}
    (path / "config.json").write_text(json.dumps(values))
    for file, content in files.items():
        (path / f"{file}.json").write_text(json.dumps(content))
    return str(path)


def test_files_of_another_size_are_told(tmp_path):
    def index(size):
        return {"model.safetensors.index": {"metadata": {"total_size": size}, "weight_map": {}}}

    assert read_model(folder_of(tmp_path, "qwen3-8b", **index(16_381_470_720))).notes == ()
    (note,) = read_model(folder_of(tmp_path, "qwen3-8b", **index(8_000_000_000))).notes
    assert note == "its files hold 7.45 GiB, and its config.json says 15.26 GiB of weights"
    with pytest.raises(
        InputError, match=r"index\.json, metadata: total_size must be a whole number above zero, not -1"
    ):
        read_model(folder_of(tmp_path, "qwen3-8b", **index(-1)))


def test_a_folder_says_more_than_its_name(tmp_path):
    folder = tmp_path / "Qwen3-8B-AWQ"
    folder.mkdir()
    quantised = {"hf_quant_config": {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}}
    model = read_model(folder_of(folder, "qwen3-32b", **quantised))
    assert (model.name, model.weights.name, model.kv_dtype, model.layers) == ("Qwen3-8B-AWQ", "fp8", "fp8", 64)
    assert model.assumed == ""


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        (
            "rope_scaling",
            {"rope_type": "yarn", "factor": -4},
            "rope_scaling: factor must be a number above zero, not -4",
        ),
        ("rope_scaling", {"type": 3}, "rope_scaling: type must be a string, not 3"),
        ("rope_theta", "x", "rope_theta must be a number above zero, not 'x'"),
    ],
)
def test_malformed_fields_are_refused(field, value, wanted):
    with pytest.raises(InputError, match=re.escape(wanted)):
        read_model({**bundled_config("qwen3-8b"), field: value})
