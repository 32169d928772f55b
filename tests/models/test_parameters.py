"""Counts against published totals, and memory by part worked out by hand."""

from dataclasses import replace

import pytest

from infercast.models.feed_forward import DenseFeedForward
from infercast.models.mixers.mixer import GroupedAttention
from infercast.models.read import read_model
from infercast.models.spec import ModelConfig, Stack, WeightBytes, active_parameter_count, parameter_count, weight_bytes

# Totals of the published safetensors files.
EXACT = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-0.6b": 596_049_920,
    "qwen3-30b-a3b": 30_532_122_624,
    "phi-4": 14_659_507_200,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "glm-4-9b-0414": 9_400_279_040,
}

# Active parameters as model cards state them, in billions.
ACTIVE = {
    "gpt-oss-20b": 3.61,
    "gpt-oss-120b": 5.13,
    "qwen3-235b-a22b": 22,
    "deepseek-v3": 37,
    "kimi-k2": 32,
    "gemma-4-26b-a4b": 3.8,
    "gemma-4-e2b": 2.3,
    "mimo-v2-flash": 15,
    "mixtral-8x7b": 12.9,
}


@pytest.mark.parametrize(("name", "published"), EXACT.items())
def test_counts_are_exact(name, published):
    assert parameter_count(read_model(name)) == published


@pytest.mark.parametrize(("name", "billions"), ACTIVE.items())
def test_active_counts(name, billions):
    assert active_parameter_count(read_model(name)) / 1e9 == pytest.approx(billions, rel=0.021)


def tiny(**changes):
    attention = GroupedAttention(heads=4, kv_heads=2, head_dim=8, value_dim=8, rotary_dim=8)
    config = ModelConfig("tiny", "LlamaForCausalLM", 32, 100, 64, (Stack(3, attention, DenseFeedForward(64)),))
    return replace(config, **changes)


def test_a_tiny_model_by_hand():
    attention, feed_forward = 32 * (32 + 16 + 16) + 32 * 32, 3 * 32 * 64
    layers = 3 * (attention + feed_forward + 2 * 32)
    assert parameter_count(tiny()) == 2 * 100 * 32 + layers + 32
    assert parameter_count(tiny(tied_embedding=True)) == 100 * 32 + layers + 32
    parts = weight_bytes(tiny())
    expected = WeightBytes(6400, 2 * 3 * attention, 2 * 3 * feed_forward, 0, 6400, 2 * (3 * 64 + 32))
    assert parts == expected
    assert parts.total == 2 * parameter_count(tiny())


def test_a_tied_head_shares_memory():
    parts = weight_bytes(read_model("qwen3-0.6b"))
    assert parts.head == 0
    assert parts.embedding == 151936 * 1024 * 2


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b", "gemma-4-31b"])
def test_bytes_are_two_a_parameter_without_quantisation(name):
    config = read_model(name)
    base = replace(config.weights, **dict.fromkeys(["attention", "feed_forward", "experts", "head"], "bf16"))
    assert weight_bytes(replace(config, weights=base, vision=None)).total == 2 * parameter_count(config)


def test_quantised_parts_shrink():
    plain, quantised = weight_bytes(read_model("llama-3.1-8b")), weight_bytes(read_model("llama-3.1-8b-fp8"))
    assert quantised.attention == plain.attention / 2
    assert quantised.feed_forward == plain.feed_forward / 2
    assert (quantised.embedding, quantised.head, quantised.other) == (plain.embedding, plain.head, plain.other)


def test_checkpoint_sizes_on_disk():
    # gpt-oss model card, table 1: checkpoint sizes 60.8 and 12.8 GiB.
    assert weight_bytes(read_model("gpt-oss-120b")).total / 2**30 == pytest.approx(60.8, rel=0.01)
    assert weight_bytes(read_model("gpt-oss-20b")).total / 2**30 == pytest.approx(12.8, rel=0.01)
