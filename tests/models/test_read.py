"""Configs read into stacks: facts checked by hand, one or more for each family."""

import json
import time
from dataclasses import replace

from infercast.models.feed_forward import DenseFeedForward, ExpertFeedForward
from infercast.models.library import bundled_config
from infercast.models.mixers.mixer import GroupedAttention, LatentAttention
from infercast.models.read import read_model
from infercast.models.spec import Stack


def only(name, **options):
    (stack,) = read_model(name, **options).stacks
    return stack


def test_llama():
    config = read_model("llama-3.1-8b")
    attention = GroupedAttention(heads=32, kv_heads=8, head_dim=128, value_dim=128, rotary_dim=128)
    assert config.stacks == (Stack(32, attention, DenseFeedForward(14336)),)
    assert (config.hidden, config.vocabulary, config.max_positions) == (4096, 128256, 131072)
    assert (config.architecture, config.layers, config.notes) == ("LlamaForCausalLM", 32, ())


def test_mistral_windows():
    assert only("mistral-7b-v0.1").mixer.window == 4096
    assert only("mistral-7b").mixer.window == 0
    assert only("ministral-8b").mixer.window == 0, "a window as long as the context never cuts"


def test_phi_rotates_a_part_of_each_head():
    assert only("phi-4-mini").mixer.rotary_dim == 96
    assert only("phi-3-mini").mixer.window == 2047
    assert only("phi-3.5-mini").mixer.window == 0


def test_qwen():
    assert only("qwen2.5-7b").mixer.qkv_bias
    assert not only("qwen2.5-7b").mixer.output_bias
    assert only("qwen3-8b").mixer.qk_norm
    assert not only("qwen3-8b").mixer.qkv_bias


def test_qwen_windows_upper_layers_only_when_told():
    values = {**bundled_config("qwen2.5-7b"), "sliding_window": 4096, "max_window_layers": 20}
    assert [stack.mixer.window for stack in read_model(values).stacks] == [0]
    stacks = read_model({**values, "use_sliding_window": True}).stacks
    assert [(stack.layers, stack.mixer.window) for stack in stacks] == [(20, 0), (8, 4096)]


def test_qwen_experts_in_some_layers():
    values = {**bundled_config("qwen3-30b-a3b"), "mlp_only_layers": [1], "decoder_sparse_step": 2}
    dense, sparse = read_model(values).stacks
    assert (dense.layers, dense.feed_forward) == (25, DenseFeedForward(6144))
    assert (sparse.layers, sparse.feed_forward) == (23, ExpertFeedForward(128, 8, 768))
    values["mlp_only_layers"] = [1, 3]
    assert [stack.layers for stack in read_model({**values, "decoder_sparse_step": 1}).stacks] == [46, 2]


def test_qwen2_moe_has_a_gated_shared_expert():
    experts = only("qwen2-57b-a14b").feed_forward
    assert (experts.shared_inter, experts.shared_gate, experts.topk) == (20480, True, 8)


def test_mixtral():
    assert only("mixtral-8x22b").feed_forward == ExpertFeedForward(8, 2, 16384)


def test_llama4():
    chunked, everywhere = read_model("llama-4-scout").stacks
    assert (chunked.layers, chunked.mixer.window, chunked.mixer.rotary_dim) == (36, 8192, 128)
    assert (everywhere.layers, everywhere.mixer.window, everywhere.mixer.rotary_dim) == (12, 0, 0)
    assert chunked.feed_forward == ExpertFeedForward(16, 1, 8192, shared_inter=8192)
    maverick = read_model("llama-4-maverick")
    sparse = sum(stack.layers for stack in maverick.stacks if isinstance(stack.feed_forward, ExpertFeedForward))
    assert (sparse, maverick.layers) == (24, 48)
    assert DenseFeedForward(16384) in [stack.feed_forward for stack in maverick.stacks]
    assert maverick.notes == ("the encoder of images takes memory; images are sent with --images",)


def test_gemma_2_and_3():
    windowed, everywhere = read_model("gemma-2-9b").stacks
    assert (windowed.layers, windowed.mixer.window, windowed.norms) == (21, 4096, 4)
    assert (everywhere.layers, everywhere.mixer.window) == (21, 0)
    windowed, everywhere = read_model("gemma-3-27b").stacks
    assert (windowed.layers, windowed.mixer.window, windowed.mixer.qk_norm) == (52, 1024, True)
    assert everywhere.layers == 10
    assert read_model("gemma-3-27b").tied_embedding


def test_gemma_3_leaves_defaults_out():
    short = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16",
        "vision_config": bundled_config("gemma-3-4b")["vision_config"],
    }
    config = read_model(short, name="gemma-3-4b")
    assert config == read_model("gemma-3-4b")


def test_gemma_4():
    windowed, everywhere = read_model("gemma-4-26b-a4b").stacks
    assert windowed.mixer == GroupedAttention(16, 8, 256, 256, 256, window=1024, qk_norm=True)
    assert everywhere.mixer == GroupedAttention(16, 2, 512, 512, 128, qk_norm=True, shared_key_value=True)
    assert windowed.feed_forward == ExpertFeedForward(128, 8, 704, dense_inter=2112)
    assert (windowed.layers, everywhere.layers, windowed.norms) == (25, 5, 7)
    assert isinstance(read_model("gemma-4-31b").stacks[0].feed_forward, DenseFeedForward)


def test_gemma_4_e2b():
    config = read_model("google/gemma-4-E2B-it")
    sliding = GroupedAttention(8, 1, 256, 256, 256, window=512, qk_norm=True)
    full = GroupedAttention(8, 1, 512, 512, 128, qk_norm=True)
    narrow, wide = DenseFeedForward(6144), DenseFeedForward(12288)
    assert config.stacks == (
        Stack(12, sliding, narrow, 5, input_width=256),
        Stack(3, full, narrow, 5, input_width=256),
        Stack(16, replace(sliding, borrows=True), wide, 5, input_width=256),
        Stack(4, replace(full, borrows=True), wide, 5, input_width=256),
    )
    assert config.layer_stacks == ((0,) * 4 + (1,)) * 3 + ((2,) * 4 + (3,)) * 4
    assert config.layer_inputs == 35 * 256
    assert {stack.feed_forward.inter for stack in read_model("gemma-4-e4b").stacks} == {10240}


def test_deepseek():
    dense, sparse = read_model("deepseek-v3").stacks
    assert dense.mixer == LatentAttention(128, 512, 1536, 128, 64, 128)
    assert dense.mixer.latent_dim == 576
    assert (dense.layers, dense.feed_forward) == (3, DenseFeedForward(18432))
    assert (sparse.layers, sparse.feed_forward) == (
        58,
        ExpertFeedForward(256, 8, 2048, shared_inter=2048, router_bias=True, grouped_choice=True),
    )
    note = "heads that predict further tokens take memory with speculative decoding only"
    assert read_model("deepseek-v3").notes == (note,)
    lite = read_model("deepseek-v2-lite").stacks[1]
    assert (lite.mixer.q_lora_rank, lite.feed_forward.shared_inter, lite.feed_forward.router_bias) == (
        0,
        2816,
        False,
    )


def test_kimi():
    dense, sparse = read_model("kimi-k2.5").stacks
    assert (dense.layers, sparse.layers, sparse.mixer.heads, sparse.feed_forward.experts) == (1, 60, 64, 384)


def test_gpt_oss():
    windowed, everywhere = read_model("gpt-oss-120b").stacks
    assert windowed.mixer == GroupedAttention(
        64, 8, 64, 64, 64, window=128, qkv_bias=True, output_bias=True, sinks=True
    )
    assert (windowed.layers, everywhere.layers, everywhere.mixer.window) == (18, 18, 0)
    assert windowed.feed_forward == ExpertFeedForward(128, 4, 2880, router_bias=True, expert_bias=True)
    values = bundled_config("gpt-oss-120b")
    del values["layer_types"]
    assert read_model(values).stacks == (windowed, everywhere)


def test_mimo_v2_flash():
    stacks = read_model("mimo-v2-flash").stacks
    assert [stack.layers for stack in stacks] == [1, 39, 8]
    everywhere, windowed = stacks[2].mixer, stacks[1].mixer
    assert everywhere == GroupedAttention(64, 4, 192, 128, 64)
    assert windowed == GroupedAttention(64, 8, 192, 128, 64, window=128, sinks=True)


def test_minimax_glm_and_others():
    assert only("minimax-m2.5").mixer.rotary_dim == 64
    assert only("minimax-m2.5").feed_forward == ExpertFeedForward(256, 8, 1536, router_bias=True)
    dense, sparse = read_model("glm-4.5-air").stacks
    assert (dense.layers, sparse.layers, sparse.mixer.rotary_dim) == (1, 45, 64)
    assert (sparse.mixer.qkv_bias, sparse.mixer.qk_norm) == (True, False)
    assert only("glm-4-32b-0414").norms == 4
    assert only("olmo-2-7b").mixer.qk_norm
    assert only("seed-oss-36b").mixer.qkv_bias


def test_sources(tmp_path):
    values = bundled_config("qwen3-8b")
    plain = read_model("qwen3-8b")
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    other = tmp_path / "other.json"
    other.write_text("\ufeff" + json.dumps(values), encoding="utf-8")
    forms = {
        str(folder): "my-model",
        folder: "my-model",
        folder / "config.json": "my-model",
        str(folder / "config.json"): "my-model",
        other: "other",
    }
    for source, name in forms.items():
        config = read_model(source)
        assert config.name == name
        assert config.stacks == plain.stacks
    assert read_model(values).name == "qwen3"
    assert read_model(other, name="mine").name == "mine"


def test_quantisation_in_a_file_of_its_own(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(bundled_config("llama-3.1-8b")), encoding="utf-8")
    beside = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside), encoding="utf-8")
    for source in (tmp_path, tmp_path / "config.json"):
        config = read_model(source)
        assert (config.weights.name, config.weights.head, config.kv_dtype) == ("fp8", "bf16", "fp8")


def test_a_file_without_architectures_is_known_by_its_type():
    values = bundled_config("llama-3.1-8b")
    del values["architectures"]
    assert read_model(values).stacks == read_model("llama-3.1-8b").stacks


def test_reading_is_quick():
    read_model("llama-3.1-8b")
    start = time.perf_counter()
    for _ in range(20):
        read_model("llama-3.1-8b")
    assert (time.perf_counter() - start) / 20 < 0.005
