"""Configs of recurrent and pruned families: which layer is of which kind, with facts from the published files."""

import numpy as np
import pytest

from infercast.errors import FileFormatError, UnsupportedModelError
from infercast.models.feed_forward import DenseFeedForward, ExpertFeedForward, NoFeedForward
from infercast.models.layout import ParallelLayout
from infercast.models.library import bundled_config
from infercast.models.lower import attention_calls, token_calls
from infercast.models.mixers.mixer import GroupedAttention, NoMixer
from infercast.models.mixers.recurrent import GatedConvolution, GatedDeltaNet, KimiDeltaAttention, Mamba2
from infercast.models.read import read_model
from infercast.models.spec import divides, parameter_count, rank_weight_bytes, weight_bytes


def changed(name, **changes):
    values = bundled_config(name)
    values.get("text_config", values).update(changes)
    return values


def kinds(config):
    return [type(config.stacks[number].mixer) for number in config.layer_stacks]


def test_qwen_has_gated_attention_in_every_fourth_layer():
    config = read_model("qwen3.5-35b-a3b")
    assert kinds(config)[:4] == [GatedDeltaNet] * 3 + [GroupedAttention]
    recurrent, full = config.stacks
    assert recurrent.mixer == GatedDeltaNet(32, 16, 128, 128, 4, "fp32")
    assert full.mixer == GroupedAttention(16, 2, 256, 256, 64, qk_norm=True, gate_width=256)
    assert full.feed_forward == ExpertFeedForward(256, 8, 512, shared_inter=512, shared_gate=True)
    listed = ["full_attention", "linear_attention"] * 20
    assert kinds(read_model(changed("qwen3.5-35b-a3b", layer_types=listed)))[:2] == [GroupedAttention, GatedDeltaNet]
    assert isinstance(read_model("qwen3.5-27b").stacks[0].feed_forward, DenseFeedForward)


def test_the_gate_is_projected_with_the_queries():
    calls = {call.name: call.op for call in token_calls(read_model("qwen3.5-35b-a3b"), ParallelLayout(), 64)}
    assert calls["qkv_proj"].n == (2 * 16 + 2 * 2) * 256
    assert calls["output_gate"].bytes_read == 64 * 2 * 2 * 4096
    assert calls["o_proj"].k == 4096


def test_steps_gate_each_head():
    config = read_model("step-3.7-flash")
    calls = {call.name: (call.op, call.count) for call in token_calls(config, ParallelLayout(2), 64)}
    assert (calls["gate_proj"][0].n, calls["gate_proj"][1]) == (32, 45)
    assert calls["qkv_proj"][0].n == (32 + 2 * 4) * 128
    assert calls["output_gate"][0].read_per_row == 2 * (32 * 128 + 32)
    assert sum(stack.layers for stack in config.stacks if stack.mixer.window == 512) == 33
    assert sum(stack.layers for stack in config.stacks if stack.feed_forward.experts) == 42


def test_step_with_its_encoder_of_images():
    text = bundled_config("step-3.7-flash")
    vision = {"width": 1536, "layers": 47, "heads": 16, "mlp_ratio": 8960 / 1536, "image_size": 728, "patch_size": 14}
    outer = {"architectures": ["Step3p7ForConditionalGeneration"], "text_config": text, "vision_config": vision}
    config = read_model(outer)
    assert config.stacks == read_model("step-3.7-flash").stacks
    assert config.vision.parameters == pytest.approx(2.0e9, rel=0.1)  # the encoder is known as one of 1.9 B


def test_windowed_layers_of_step_may_have_more_heads():
    other = {"num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128}
    values = changed("step-3.7-flash", attention_other_setting=other)
    values["layer_types"] = [*values["layer_types"], *["sliding_attention"] * 3]  # files list prediction heads too
    heads = {bool(stack.mixer.window): stack.mixer.heads for stack in read_model(values).stacks}
    assert heads == {True: 96, False: 64}


def test_layers_of_nemotron_are_one_half_each():
    config = read_model("nemotron-3-nano-30b-a3b")
    mamba, experts, attention = config.stacks
    assert [stack.layers for stack in config.stacks] == [23, 23, 6]
    assert (mamba.mixer, mamba.feed_forward, mamba.norms) == (
        Mamba2(64, 64, 128, 8, 4, 128, "fp32"),
        NoFeedForward(),
        1,
    )
    assert (attention.mixer.rotary_dim, attention.norms) == (0, 1)
    assert experts.mixer == NoMixer()
    assert experts.feed_forward == ExpertFeedForward(
        128, 6, 1856, shared_inter=3712, router_bias=True, gated=False, grouped_choice=True
    )
    names = {call.name: call.count for call in token_calls(config, ParallelLayout(2), 16)}
    assert (names["in_proj"], names["qkv_proj"], names["experts"], names["norm"]) == (23, 6, 23, 52)
    assert names["all_reduce"] == 52
    assert "rope" not in names
    calls = attention_calls(config, ParallelLayout(), np.array([1, 9]), np.array([50, 9]))
    assert {call.name: call.count for call in calls}["attention"] == 6


def test_patterns_and_lists_of_nemotron_are_the_same():
    values = changed("nemotron-3-nano-30b-a3b")
    letters = {"M": "mamba", "*": "attention", "E": "moe"}
    values["layers_block_type"] = [letters[letter] for letter in values.pop("hybrid_override_pattern")]
    del values["num_hidden_layers"]
    assert read_model(values).stacks == read_model("nemotron-3-nano-30b-a3b").stacks


def test_experts_of_nemotron_have_no_gate_and_may_be_behind_a_latent():
    config = read_model("nemotron-3-super-120b-a12b")
    calls = {call.name: call.op for call in token_calls(config, ParallelLayout(4), 64)}
    assert (calls["latent_down"].n, calls["latent_down"].k) == (1024, 4096)
    assert (calls["latent_up"].n, calls["latent_up"].k) == (4096, 1024)
    assert (calls["experts"].hidden, calls["experts"].inter, calls["experts"].gated) == (1024, 2688 // 4, False)
    assert (calls["shared_up_proj"].n, calls["shared_down_proj"].k) == (5376 // 4, 5376 // 4)
    assert calls["router"].k == 4096


@pytest.mark.parametrize("name", ["nemotron-3-super-120b-a12b", "qwen3.5-27b", "kimi-linear-48b-a3b", "lfm2-1.2b"])
def test_one_gpu_holds_what_the_model_has(name):
    config = read_model(name)
    assert rank_weight_bytes(config, ParallelLayout()) == pytest.approx(weight_bytes(config).total, rel=1e-9)
    assert divides(config, 8)


def test_kimi_counts_layers_from_one():
    config = read_model("kimi-linear-48b-a3b")
    assert kinds(config)[:4].count(KimiDeltaAttention) == 3
    assert sum(kind is KimiDeltaAttention for kind in kinds(config)) == 20
    assert config.stacks[0].feed_forward == DenseFeedForward(9216)
    names = {call.name for call in token_calls(config, ParallelLayout(), 16)}
    assert "rope" not in names, "its latent attention has no positions"


def test_kimi_k3_gates_latent_attention_and_weighs_earlier_layers():
    config = read_model("kimi-k3")
    calls = {call.name: call.op for call in token_calls(config, ParallelLayout(8), 16)}
    assert calls["gate_proj"].n == 12 * 128
    assert (calls["experts"].hidden, calls["experts"].experts, calls["experts"].topk) == (3584, 896, 16)
    assert calls["norm"].read_per_row == 6 * 7168 * 2, "a sum, what is added to it, and four sums of before"
    assert "latent_norm" in calls
    assert (config.weights.experts, config.weights.attention, config.weights.recurrent) == ("mxfp4", "bf16", "bf16")
    assert config.vision.parameters == pytest.approx(447e6, rel=0.01)


def test_lfm2_convolves_and_attends():
    config = read_model("lfm2-1.2b")
    assert config.stacks[0].mixer == GatedConvolution(2048, 3)
    assert config.stacks[0].feed_forward == DenseFeedForward(8192)
    assert [stack.layers for stack in config.stacks] == [10, 6]
    moe = read_model("lfm2-8b-a1b")
    assert sum(stack.layers for stack in moe.stacks if stack.feed_forward.experts) == 22


def test_granite_has_no_positions_and_a_shared_expert():
    config = read_model("granite-4.0-h-small")
    assert config.stacks[0].mixer == Mamba2(128, 64, 128, 1, 4, 256)
    assert config.stacks[1].mixer.rotary_dim == 0
    assert config.stacks[0].feed_forward == ExpertFeedForward(72, 10, 768, shared_inter=1536)


FALCON = {
    "architectures": ["FalconH1ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "mamba_n_heads": 24,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 128,
    "vocab_size": 32784,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": False,
}


def test_falcon_h1_attends_beside_mamba():
    config = read_model(FALCON)
    assert parameter_count(config) == 521_411_104  # what the files of the 0.5B model hold
    names = {call.name: call.count for call in token_calls(config, ParallelLayout(2), 16)}
    assert (names["qkv_proj"], names["in_proj"], names["gated_norm"], names["all_reduce"]) == (36, 36, 36, 108)
    assert "gated_norm_reduce" not in names, "its gate is not normed"
    attention, state = config.stacks[0].mixer.caches(config.shard(ParallelLayout()))
    assert (attention.bytes_per_token, state.bytes_per_token) == (2 * 2 * 64 * 2, 0)
    assert state.bytes_per_sequence > 0
    calls = attention_calls(config, ParallelLayout(), np.array([1, 9]), np.array([50, 9]))
    assert {"attention", "scan", "state_update"} <= {call.name for call in calls}
    assert config.stacks[0].mixer.divides(2)


def test_pruned_layers_have_neither_norm_nor_kernels():
    config = read_model("llama-3.3-nemotron-super-49b")
    assert config.layers == 80
    attending = sum(stack.layers for stack in config.stacks if not stack.mixer.is_empty)
    assert attending == 49
    names = {}
    for call in token_calls(config, ParallelLayout(2), 16):
        names[call.name] = names.get(call.name, 0) + call.count
    assert (names["qkv_proj"], names["down_proj"], names["norm"]) == (49, 80, 129)
    assert names["all_reduce"] == 129
    assert config.sequence_bytes(1000) == 49 * 1000 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen3.5-35b-a3b", {"layer_types": ["mystery"] * 40}, "mystery layers are not modelled"),
        ("nemotron-3-nano-30b-a3b", {"hybrid_override_pattern": "M?" * 26}, "'.' layers are not modelled"),
        ("lfm2-8b-a1b", {"layer_types": ["mamba"] * 24}, "mamba layers are not modelled; known: conv"),
    ],
)
def test_layers_of_unknown_kinds_are_refused(name, changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        read_model(changed(name, **changes))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen3.5-35b-a3b", {"linear_num_value_heads": 30}, "a multiple of linear_num_key_heads = 16"),
        ("qwen3.5-35b-a3b", {"mamba_ssm_dtype": "int8"}, "mamba_ssm_dtype must be one of float32"),
        ("nemotron-3-nano-30b-a3b", {"hybrid_override_pattern": "ME"}, "has 2 items for 52 layers"),
        ("nemotron-3-nano-30b-a3b", {"hybrid_override_pattern": None}, "lists the layers"),
        ("kimi-linear-48b-a3b", {"linear_attn_config": {"num_heads": 32, "head_dim": 128}}, "kda_layers is missing"),
        ("step-3.7-flash", {"moe_layers_enum": "1,x"}, "whole numbers with commas"),
        ("llama-3.3-nemotron-super-49b", {"block_configs": [{}]}, "has 1 items for 80 layers"),
        ("llama-3.3-nemotron-super-49b", {"block_configs": [{}] * 80}, "n_heads_in_group is missing"),
    ],
)
def test_wrong_files_are_refused_with_the_field(name, changes, message):
    with pytest.raises(FileFormatError, match=message):
        read_model(changed(name, **changes))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Qwen/Qwen3.5-35B-A3B", "qwen3.5-35b-a3b"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano-30b-a3b"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "llama-3.3-nemotron-super-49b"),
        ("moonshotai/Kimi-K3", "kimi-k3"),
        ("LiquidAI/LFM2-1.2B", "lfm2-1.2b"),
    ],
)
def test_published_names(name, meant):
    assert read_model(name).name == meant


def parts(weights):
    return weights.attention, weights.recurrent, weights.feed_forward, weights.experts


def test_modules_of_nemotron_are_found_in_lists_of_what_is_quantised():
    values = bundled_config("nemotron-3-nano-30b-a3b")
    attention = [n for n, letter in enumerate(values["hybrid_override_pattern"]) if letter == "*"]
    ignored = [f"backbone.layers.{n}.mixer.{name}_proj" for n in attention for name in "qkvo"]
    settings = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", *ignored]}
    weights = read_model({**values, "quantization_config": settings}).weights
    assert parts(weights) == ("bf16", "fp8", "fp8", "fp8")
    home = "backbone.layers.{}.mixer.{}_proj"
    named = {home.format(n, "experts.0.up"): {"quant_algo": "NVFP4"} for n in range(52)}
    named |= {home.format(n, name): {"quant_algo": "FP8"} for n in range(52) for name in ("in", "out")}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": named}
    weights = read_model({**values, "quantization_config": mixed}).weights
    assert parts(weights) == ("bf16", "fp8", "bf16", "nvfp4")
