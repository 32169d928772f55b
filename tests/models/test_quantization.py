"""Quantisation: what checkpoints say, what overrides do, and what is refused."""

import pytest

from infercast.errors import FileFormatError, UnknownNameError, UnsupportedModelError
from infercast.models.library import bundled_config
from infercast.models.quantization import ModuleNames
from infercast.models.read import read_model


def quantised(name, settings, **changes):
    return read_model({**bundled_config(name), "quantization_config": settings, **changes})


def group(bits, kind, inputs=None, **more):
    weights = {"num_bits": bits, "type": kind, **more}
    return {"targets": ["Linear"], "weights": weights, "input_activations": inputs}


def compressed(*groups, **more):
    named = {f"group_{index}": item for index, item in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": ["lm_head"], **more}


def quark(weight, inputs=None):
    whole = {"weight": {"dtype": weight}, "input_tensors": inputs and {"dtype": inputs}}
    return {"quant_method": "quark", "global_quant_config": whole, "exclude": ["lm_head"]}


FLOAT8, INT8_INPUT, FLOAT4 = {"num_bits": 8, "type": "float"}, {"num_bits": 8, "type": "int"}, {"num_bits": 4}


@pytest.mark.parametrize(
    ("settings", "stored", "multiplied"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8", "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", "fp8_block"),
        ({"quant_method": "fbgemm_fp8"}, "fp8", "fp8"),
        (quark("fp8_e4m3", "fp8_e4m3"), "fp8", "fp8"),
        (quark("fp4", "fp4"), "mxfp4", "mxfp4"),
        (quark("uint4"), "int4", "bf16"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", "bf16"),
        ({"quant_method": "gptq", "bits": 4}, "int4", "bf16"),
        ({"quant_method": "gptq", "bits": 8}, "int8", "bf16"),
        (compressed(group(8, "int", INT8_INPUT)), "int8", "int8"),
        (compressed(group(8, "int")), "int8", "bf16"),
        (compressed(group(4, "int", group_size=128)), "int4", "bf16"),
        (compressed(group(4, "int", FLOAT8)), "int4", "fp8"),
        (compressed(group(8, "float", FLOAT8)), "fp8", "fp8"),
        (compressed(group(8, "float", FLOAT8, strategy="block")), "fp8_block", "fp8_block"),
        (compressed(group(4, "float", FLOAT4, group_size=16)), "nvfp4", "nvfp4"),
        (compressed(group(4, "float", group_size=16)), "nvfp4", "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", "fp8"),
        ({"quant_algo": "NVFP4"}, "nvfp4", "nvfp4"),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, "fp8", "fp8"),
        ({"quant_algo": "W4A16_NVFP4"}, "nvfp4", "bf16"),
    ],
)
def test_formats(settings, stored, multiplied):
    weights = quantised("llama-3.1-8b", settings).weights
    assert (weights.attention, weights.feed_forward, weights.name) == (stored, stored, stored)
    assert (weights.activation_attention, weights.activation_feed_forward) == (multiplied, multiplied)
    assert (weights.base, weights.head) == ("bf16", "bf16")


def test_gpt_oss_quantises_experts_alone():
    weights = read_model("gpt-oss-120b").weights
    assert (weights.experts, weights.activation_experts) == ("mxfp4", "bf16")
    assert (weights.attention, weights.head, weights.name) == ("bf16", "bf16", "mxfp4")


@pytest.mark.parametrize(
    "ignore",
    [
        ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
        ["lm_head", "*self_attn*", "*shared_experts*", "model.layers.0.mlp*"],
        [f"language_model.model.layers.{index}.{name}*" for index in range(61) for name in ("self_attn", "mlp.shared")],
        [f"model.layers.{index}.{name}" for index in range(61) for name in ("self_attn", "mlp.shared_experts")],
    ],
)
def test_ignored_parts_stay_base(ignore):
    weights = quantised("kimi-k2", compressed(group(4, "int", group_size=32), ignore=ignore)).weights
    assert (weights.attention, weights.feed_forward, weights.experts) == ("bf16", "bf16", "int4")


def test_a_few_ignored_layers_do_not_change_a_part():
    ignore = ["lm_head", "model.layers.0*", "model.layers.1.self_attn", "model.layers.1.mlp.gate"]
    weights = quantised("qwen3-30b-a3b", {"quant_algo": "NVFP4", "exclude_modules": ignore}).weights
    assert (weights.attention, weights.experts) == ("nvfp4", "nvfp4")


def test_the_dense_half_beside_experts_is_told_apart():
    ignore = [f"model.language_model.layers.{index}.mlp*" for index in range(30)]
    weights = quantised("gemma-4-26b-a4b", {"quant_algo": "NVFP4", "ignore": ignore}).weights
    assert (weights.feed_forward, weights.experts, weights.attention) == ("bf16", "nvfp4", "nvfp4")


def test_mixed_precision_by_module():
    layers = {}
    for index in range(48):
        layers[f"model.layers.{index}.mlp.experts"] = {"quant_algo": "NVFP4"}
        for projection in ("q_proj", "k_proj", "v_proj", "o_proj"):
            layers[f"model.layers.{index}.self_attn.{projection}"] = {"quant_algo": "FP8"}
    layers["lm_head"] = {"quant_algo": "FP8"}
    settings = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    weights = quantised("qwen3-30b-a3b", settings).weights
    assert (weights.attention, weights.experts, weights.head) == ("fp8", "nvfp4", "fp8")


def test_groups_with_targets_of_their_own():
    attention = {**group(8, "float", FLOAT8), "targets": [r"re:.*self_attn\.(q|k|v|o)_proj$"]}
    weights = quantised("llama-3.1-8b", compressed(group(4, "int"), attention)).weights
    assert (weights.attention, weights.feed_forward) == ("fp8", "int4")


@pytest.mark.parametrize(
    ("more", "kv_dtype"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"kv_cache_scheme": "FP8"}, "fp8"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_scheme": None}, "auto"),
        ({}, "auto"),
    ],
)
def test_the_cache_format(more, kv_dtype):
    assert quantised("llama-3.1-8b", {"quant_algo": "FP8", **more}).kv_dtype == kv_dtype


@pytest.mark.parametrize(
    ("torch_dtype", "base"),
    [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "bf16"), ("torch.float16", "fp16"), (None, "bf16")],
)
def test_the_base_format(torch_dtype, base):
    weights = read_model({**bundled_config("llama-3.1-8b"), "torch_dtype": torch_dtype}).weights
    assert (weights.base, weights.attention, weights.name) == (base, base, base)


@pytest.mark.parametrize(
    ("override", "stored", "multiplied"),
    [
        ("fp8", "fp8", "fp8"),
        ("FP8", "fp8", "fp8"),
        ("fp8_block", "fp8_block", "fp8_block"),
        ("int8", "int8", "int8"),
        ("int4", "int4", "bf16"),
        ("awq", "int4", "bf16"),
        ("gptq", "int4", "bf16"),
        ("nvfp4", "nvfp4", "nvfp4"),
        ("none", "bf16", "bf16"),
        (None, "bf16", "bf16"),
    ],
)
def test_overrides(override, stored, multiplied):
    weights = read_model("qwen3-30b-a3b", quantization=override).weights
    assert {weights.attention, weights.experts, weights.name} == {stored}
    assert {weights.activation_attention, weights.activation_experts} == {multiplied}
    assert (weights.base, weights.head) == ("bf16", "bf16")


def test_mxfp4_overrides_experts_alone():
    weights = read_model("qwen3-30b-a3b", quantization="mxfp4").weights
    assert (weights.attention, weights.experts, weights.activation_experts) == ("bf16", "mxfp4", "bf16")
    with pytest.raises(UnsupportedModelError, match="applies to experts, and this model has none"):
        read_model("llama-3.1-8b", quantization="mxfp4")


def test_overrides_of_quantised_checkpoints():
    assert read_model("qwen3-32b-fp8", quantization="fp8").weights.name == "fp8_block"
    assert read_model("kimi-k2.5", quantization="awq").weights.name == "int4"
    with pytest.raises(
        UnsupportedModelError, match="'int4' does not apply: the checkpoint is already quantised to fp8"
    ):
        read_model("qwen3-32b-fp8", quantization="int4")
    with pytest.raises(UnknownNameError, match=r"unknown quantization 'fp6'; .*nvfp4"):
        read_model("llama-3.1-8b", quantization="fp6")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes' is not modelled; known: fp8"),
        (quark("fp6"), "quark's dtype 'fp6' is not modelled; known: fp8_e4m3"),
        ({"quant_algo": "FP3"}, "quant_algo 'FP3' is not modelled; known: FP8"),
        (compressed(group(3, "int")), "3-bit int weights are not modelled"),
    ],
)
def test_unknown_formats_are_refused(settings, message):
    with pytest.raises(UnsupportedModelError, match=message):
        quantised("llama-3.1-8b", settings)


@pytest.mark.parametrize(
    "settings",
    [
        "fp8",
        ["fp8"],
        {"quant_method": 8},
        {"quant_method": "gptq", "bits": 5},
        compressed({"weights": {"num_bits": "x"}}),
        compressed({"weights": 4}),
        {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"layers.0": 1}},
    ],
)
def test_malformed_settings(settings):
    with pytest.raises(FileFormatError):
        quantised("llama-3.1-8b", settings)


def test_hostile_expressions_are_passed_over():
    names = ModuleNames.parse([r"re:(a+)+$", "re:" + ".*" * 30 + "x", "re:((", "re:" + "a" * 10_000])
    assert names.expressions == ()
    assert not names.cover("layers.0.self_attn.q_proj")


def test_names_cover_what_is_below_them():
    names = ModuleNames.parse(["model.layers.1.mlp", "gate", "model.layers.*.self_attn"])
    assert names.cover("layers.1.mlp.up_proj")
    assert not names.cover("layers.11.mlp.up_proj")
    assert not names.cover("layers.0.mlp.gate_proj")
    assert names.cover("layers.7.self_attn.q_proj")
    assert not names.cover_head()
