"""Configs that must not be read: unknown kinds, and files that are wrong."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infercast.errors import FileFormatError, InfercastError, UnknownNameError, UnsupportedModelError
from infercast.models.families import FAMILIES, VISION, architecture_of, family_of
from infercast.models.library import bundled_config, refused
from infercast.models.read import read_model
from infercast.models.spec import ModelConfig

LLAMA = bundled_config("llama-3.1-8b")
GEMMA = bundled_config("gemma-4-e2b")["text_config"]


@pytest.mark.parametrize(
    ("architecture", "missing"),
    [
        ("Zamba2ForCausalLM", "Mamba layers with shared attention blocks"),
        ("RwkvForCausalLM", "recurrent layers are not modelled yet"),
    ],
)
def test_refused_by_the_name_of_what_is_missing(architecture, missing):
    with pytest.raises(UnsupportedModelError, match=f"^{architecture} is not supported: .*{missing}"):
        read_model({**LLAMA, "architectures": [architecture]})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"sliding_window": -5}, "sliding_window must be a whole number above zero, not -5"),
        ({"sliding_window": "long"}, "sliding_window must be a whole number above zero"),
        ({"rope_scaling": "x"}, "rope_scaling must be an object, not 'x'"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 0]}},
            r"weight_block_size must be two whole numbers above zero, not \[0, 0\]",
        ),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}, "must be two whole numbers"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": "x"}}, "must be a list of whole numbers"),
    ],
)
def test_malformed_fields_are_refused(values, sentence):
    with pytest.raises(FileFormatError, match=sentence):
        read_model({**LLAMA, **values})


@pytest.mark.parametrize("values", [{"architectures": ["BrandNewForCausalLM"]}, {"model_type": "brand_new"}])
def test_unknown_kinds_are_never_guessed_without_sizes(values):
    with pytest.raises(UnsupportedModelError, match=r"is not known, and its fields do not tell: .* is missing"):
        read_model({**values, "num_hidden_layers": 32, "intermediate_size": 14336})


@pytest.mark.parametrize(
    ("like", "architecture"), [("mixtral-8x7b", "MiniMaxText01ForCausalLM"), ("gemma-3-12b", "Gemma3nForCausalLM")]
)
def test_a_file_is_refused_with_the_model_of_the_nearest_shape(like, architecture):
    with pytest.raises(UnsupportedModelError, match=f"; the nearest bundled model is {like}$"):
        read_model({**bundled_config(like), "architectures": [architecture]})
    with pytest.raises(UnsupportedModelError) as caught:
        read_model({"architectures": [architecture], "hidden_size": "large"})
    assert "nearest" not in str(caught.value)


def test_registries_agree():
    assert not set(refused()) & (set(FAMILIES) | set(VISION))
    assert {each.text for each in VISION.values() if each.text} <= set(FAMILIES)
    for name in FAMILIES:
        assert family_of(name) is not None


@pytest.mark.parametrize(
    ("name", "changes", "missing"),
    [
        ("qwen3-8b", {"use_sliding_window": True, "layer_types": ["linear_attention"] * 36}, "linear_attention layers"),
    ],
)
def test_variants_that_are_not_modelled(name, changes, missing):
    values = bundled_config(name)
    values.get("text_config", values).update(changes)
    with pytest.raises(UnsupportedModelError, match=missing):
        read_model(values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "the field hidden_size is missing"),
        ({"num_hidden_layers": None}, "the field num_hidden_layers is missing"),
        ({"vocab_size": None}, "the field vocab_size is missing"),
        ({"max_position_embeddings": None}, "the field max_position_embeddings is missing"),
        ({"intermediate_size": -1}, "intermediate_size must be a whole number above zero, not -1"),
        ({"hidden_size": 0}, "hidden_size must be a whole number above zero, not 0"),
        ({"hidden_size": "4096"}, "hidden_size must be a whole number above zero, not '4096'"),
        ({"hidden_size": 4096.5}, "not 4096.5"),
        ({"num_attention_heads": True}, "not True"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 4096"),
        ({"num_key_value_heads": 7}, "32 attention heads cannot be shared by num_key_value_heads = 7"),
        ({"num_attention_heads": 33}, "hidden_size must be a multiple of num_attention_heads = 33"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, not 'yes'"),
        ({"torch_dtype": "float64"}, "torch_dtype must be one of bfloat16"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list of strings"),
        ({"partial_rotary_factor": 2}, "partial_rotary_factor must be a number above zero and at most one"),
        ({"rotary_dim": 1000}, "rotary_dim must be at most head_dim = 128"),
        ({"rope_parameters": 3}, "rope_parameters must be an object"),
    ],
)
def test_wrong_fields_are_named(changes, message):
    with pytest.raises(FileFormatError, match=message):
        read_model({**LLAMA, **changes})


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9, more than the 8 experts there are"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "layer_types has 1 items for 24 layers"),
        ("mimo-v2-flash", {"moe_layer_freq": [1, 1]}, "moe_layer_freq has 2 items for 48 layers"),
        ("mimo-v2-flash", {"hybrid_layer_pattern": "1"}, "hybrid_layer_pattern must be a list of whole numbers"),
        ("deepseek-v3", {"kv_lora_rank": None}, "the field kv_lora_rank is missing"),
        (
            "gemma-4-e2b",
            {"text_config": GEMMA | {"num_kv_shared_layers": 31}},
            "num_kv_shared_layers must be so small that a layer of each kind before them has a KV cache, not 31",
        ),
        (
            "gemma-4-e2b",
            {"text_config": GEMMA | {"vocab_size_per_layer_input": 9}},
            "vocab_size_per_layer_input must be as large as vocab_size = 262144, not 9",
        ),
    ],
)
def test_wrong_fields_of_other_families(name, changes, message):
    with pytest.raises(FileFormatError, match=message):
        read_model({**bundled_config(name), **changes})


def test_an_empty_config():
    with pytest.raises(FileFormatError, match="neither architectures nor model_type"):
        read_model({})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n  "hidden_size": 1,\n  oops\n}', r"broken\.json, line 3: is not JSON: "),
        (b"", "line 1: is not JSON: "),
        (b"[1, 2]", "must hold one JSON object, not list"),
        (b"3", "must hold one JSON object, not int"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"hidden_size": ' + b"9" * 10_000 + b"}", "is not JSON: Exceeds the limit"),
        (b"\xff\xfe\x00", "is not UTF-8 text, so not JSON"),
        (b'{"model_type": "llama", "text_config": []}', "text_config must be an object"),
    ],
)
def test_broken_files(tmp_path, content, message):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        read_model(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileFormatError, match="there is no such file"):
        read_model(tmp_path / "missing.json")
    with pytest.raises(FileFormatError, match="there is no such file"):
        read_model(str(tmp_path / "missing.json"))
    with pytest.raises(FileFormatError, match=r"the folder holds no config\.json"):
        read_model(tmp_path)
    with pytest.raises(UnknownNameError, match="unknown model"):
        read_model("x" * 5000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
EXTRA = ("quantization_config", "rope_parameters", "head_dim", "layer_types", "sliding_window", "text_config")


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(["llama-3.1-8b", "gpt-oss-20b", "deepseek-v2-lite", "gemma-4-26b-a4b", "qwen2-57b-a14b"]),
    data=st.data(),
)
def test_any_config_reads_or_is_refused_in_words(name, data):
    values = bundled_config(name)
    target = values.get("text_config", values)
    for key in data.draw(st.lists(st.sampled_from(sorted({*target, *values, *EXTRA})), max_size=3)):
        target[key] = data.draw(JSON)
    with contextlib.suppress(InfercastError):
        assert isinstance(read_model(json.loads(json.dumps(values))), ModelConfig)


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
        ("mimo_v2_flash", "MiMoV2FlashForCausalLM"),
        ("gemma3", "Gemma3ForConditionalGeneration"),
        ("gemma3_text", "Gemma3ForCausalLM"),
        ("kimi_k2", "DeepseekV3ForCausalLM"),
        ("ministral3", "MistralForCausalLM"),
        ("mamba", "MambaForCausalLM"),
        ("brand_new", "brand_new"),
    ],
)
def test_a_model_type_stands_for_an_architecture(model_type, architecture):
    assert architecture_of(model_type) == architecture
