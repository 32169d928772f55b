"""Memory plans of models with routed experts, by hand: split, spread, shared by copies, padded, beside dense layers."""

import runpy
from pathlib import Path

import pytest

BY_HAND = runpy.run_path(str(Path(__file__).with_name("by_hand.py")))
heads, gated, up, check = (BY_HAND[name] for name in ("heads", "gated", "up", "check"))
BF16, FP8_BLOCK, NVFP4, MXFP4 = (BY_HAND[name] for name in ("BF16", "FP8_BLOCK", "NVFP4", "MXFP4"))
EP = {"enable_expert_parallel": True}
TP2, TP4, TP8 = ({"tensor_parallel_size": size} for size in (2, 4, 8))


def qwen_30b(tensor, expert_gpus):
    """48 layers of 128 experts, 768 wide."""
    rest = 48 * (heads(2048, 32, 4, 128, tensor) + 2048 * 128) + 2 * 151936 * 2048 / tensor
    return BF16 * (rest + 48 * 128 * gated(2048, 768, expert_gpus))


KV_30B = 48 * 2 * 4 * 128 * 2 * 16
VISION_30B = 538_631_408  # Qwen3-VL's published file less the language model's


def qwen_235b(weight, tensor, expert_gpus):
    layers = 94 * (heads(4096, 64, 4, 128, tensor) + 128 * gated(4096, 1536, expert_gpus))
    return weight * layers + BF16 * (94 * 4096 * 128 + 2 * 151936 * 4096 / tensor)


GROUPED = [
    ("qwen3-30b-a3b", {}, qwen_30b(1, 1), KV_30B),
    ("qwen3-30b-a3b", {"data_parallel_size": 2}, qwen_30b(1, 2), KV_30B),
    ("qwen3-30b-a3b", {**TP2, "data_parallel_size": 4}, qwen_30b(2, 8), KV_30B / 2),
    ("qwen3-30b-a3b", {**TP4, **EP}, qwen_30b(4, 4), KV_30B / 4),
    ("qwen3-30b-a3b", {"data_parallel_size": 8, **EP}, qwen_30b(1, 8), KV_30B),
    ("qwen3-vl-30b-a3b", TP2, qwen_30b(2, 2) + BF16 * VISION_30B / 2, KV_30B / 2),
    ("qwen3-235b-a22b-fp8", TP4, qwen_235b(FP8_BLOCK, 4, 4), 94 * 2 * 1 * 128 * 2 * 16),
    ("qwen3-235b-a22b-fp8", {**TP8, **EP}, qwen_235b(FP8_BLOCK, 8, 8), 94 * 2 * 1 * 128 * 2 * 16),
    ("qwen3-vl-235b-a22b", TP8, qwen_235b(BF16, 8, 8) + BF16 * 576_388_336 / 8, 94 * 2 * 1 * 128 * 2 * 16),
    (
        "mixtral-8x7b",
        TP2,
        BF16 * (32 * (heads(4096, 32, 8, 128, 2) + 8 * gated(4096, 14336, 2)) + 2 * 32000 * 4096 / 2),
        32 * 2 * 4 * 128 * 2 * 16,
    ),
    (
        "mixtral-8x22b",
        TP8,
        BF16 * (56 * (heads(6144, 48, 8, 128, 8) + 8 * gated(6144, 16384, 8)) + 2 * 32000 * 6144 / 8),
        56 * 2 * 1 * 128 * 2 * 16,
    ),
    (
        # A shared expert of 5,632 beside 60 of 1,408.
        "qwen1.5-moe-a2.7b",
        {},
        BF16
        * (
            24 * (heads(2048, 16, 16, 128) + 60 * gated(2048, 1408) + gated(2048, 5632) + 61 * 2048) + 2 * 151936 * 2048
        ),
        24 * 2 * 16 * 128 * 2 * 16,
    ),
    (
        # Only routed experts are shared by copies: the shared expert of 20,480 is split over a copy's two GPUs.
        "qwen2-57b-a14b",
        {**TP2, "data_parallel_size": 2},
        BF16
        * (
            28 * (heads(3584, 28, 4, 128, 2) + 64 * gated(3584, 2560, 4) + gated(3584, 20480, 2) + 65 * 3584)
            + 2 * 151936 * 3584 / 2
        ),
        28 * 2 * 2 * 128 * 2 * 16,
    ),
    (
        # The first of 46 layers is dense.
        "glm-4.5-air",
        TP4,
        BF16
        * (
            46 * heads(4096, 96, 8, 128, 4)
            + gated(4096, 10944, 4)
            + 45 * (129 * gated(4096, 1408, 4) + 128 * 4096)
            + 2 * 151552 * 4096 / 4
        ),
        46 * 2 * 2 * 128 * 2 * 16,
    ),
    (
        "minimax-m2.5",
        TP4,
        FP8_BLOCK * 62 * (heads(3072, 48, 8, 128, 4) + 256 * gated(3072, 1536, 4))
        + BF16 * (62 * 256 * 3072 + 2 * 200064 * 3072 / 4),
        62 * 2 * 2 * 128 * 2 * 16,
    ),
    (
        # Experts in nvfp4, attention in bf16, the cache in fp8.
        "minimax-m2.5-nvfp4",
        {**TP8, **EP},
        NVFP4 * 62 * 256 / 8 * gated(3072, 1536)
        + BF16 * (62 * (heads(3072, 48, 8, 128, 8) + 256 * 3072) + 2 * 200064 * 3072 / 8),
        62 * 2 * 1 * 128 * 1 * 16,
    ),
]


@pytest.mark.parametrize(("model", "options", "weights", "block"), GROUPED)
def test_grouped_attention(model, options, weights, block):
    check(model, options, weights=weights, block=block, blocks=512)


def gpt_oss(layers, experts, tensor, hidden, width, spread=1):
    """Experts of ``hidden`` x ``width`` as padded, with biases; attention and tables are not padded."""
    rest = layers * (heads(2880, 64, 8, 64, tensor) + 2880 * experts) + 2 * 201088 * 2880 / tensor
    local = layers * experts / spread
    return MXFP4 * local * 3 * hidden * width + BF16 * (rest + local * (2 * width + hidden))


# Triton on Hopper pads widths to 64, TensorRT-LLM on Blackwell everything to 256, Marlin on Ampere to 256 and 128.
PADDED = [
    ("gpt-oss-20b", "h200-sxm", {}, gpt_oss(24, 32, 1, 2880, 2880), 12 * 2 * 8),
    ("gpt-oss-120b", "h200-sxm", {}, gpt_oss(36, 128, 1, 2880, 2880), 18 * 2 * 8),
    ("gpt-oss-120b", "h200-sxm", TP4, gpt_oss(36, 128, 4, 2880, up(720, 64)), 18 * 2 * 2),
    ("gpt-oss-120b", "h200-sxm", {"data_parallel_size": 2, **EP}, gpt_oss(36, 128, 1, 2880, 2880, 2), 18 * 2 * 8),
    ("gpt-oss-120b", "h200-sxm", {"data_parallel_size": 2}, gpt_oss(36, 128, 1, 2880, up(1440, 64)), 18 * 2 * 8),
    ("gpt-oss-120b", "b200-sxm", {}, gpt_oss(36, 128, 1, 3072, 3072), 18 * 2 * 8),
    ("gpt-oss-120b", "b200-sxm", TP2, gpt_oss(36, 128, 2, 3072, up(1440, 256)), 18 * 2 * 4),
    ("gpt-oss-120b", "a100-sxm", TP2, gpt_oss(36, 128, 2, 3072, up(1440, 128)), 18 * 2 * 4),
    ("gpt-oss-120b", "mi300x", {}, gpt_oss(36, 128, 1, 3072, 3072), 18 * 2 * 8),
]


@pytest.mark.parametrize(("model", "gpu", "options", "weights", "values"), PADDED)
def test_packed_experts(model, gpu, options, weights, values):
    # A window of 128 beside full attention.
    check(model, options, weights=weights, block=values * 64 * 2 * 16, blocks=512 + 9, gpu=gpu)


def gemma_4_26b(gpus):
    vision = 27 * (4 * 1152**2 + 3 * 1152 * 4304) + 1152 * (768 + 2 * 10240 + 2816)
    layers = 25 * heads(2816, 16, 8, 256, gpus) + 5 * heads(2816, 16, 2, 512, gpus)
    layers += 30 * (128 * gated(2816, 704, gpus) + gated(2816, 2112, gpus) + 128 * 2816)
    return BF16 * (layers + 262144 * 2816 / gpus + vision)


def mimo(gpus):
    attention = 9 * heads(4096, 64, 4, 192, gpus, 128) + 39 * heads(4096, 64, 8, 192, gpus, 128)
    layers = attention + gated(4096, 16384, gpus) + 47 * 256 * gated(4096, 2048, gpus)
    return FP8_BLOCK * layers + BF16 * (47 * 256 * 4096 + 2 * 152576 * 4096 / gpus)


WIDTHS = [
    # Full layers are half as wide on up to two GPUs, twice as wide on eight.
    ("gemma-4-26b-a4b", {}, gemma_4_26b(1), 5 * 2 * 8 * 256 * 2 * 16, 256 + 5 * 65),
    ("gemma-4-26b-a4b", TP8, gemma_4_26b(8), 5 * 2 * 1 * 512 * 2 * 16, 512 + 5 * 33),
    # 9 full layers of 4 heads, 39 windowed ones of 8; on eight GPUs one head each.
    ("mimo-v2-flash", TP4, mimo(4), 9 * 2 * 320 * 2 * 16, 256 + 5 * 9),
    ("mimo-v2-flash", TP8, mimo(8), 9 * 1 * 320 * 2 * 16, 512 + 5 * 9),
]


@pytest.mark.parametrize(("model", "options", "weights", "block", "blocks"), WIDTHS)
def test_layers_of_different_widths(model, options, weights, block, blocks):
    check(model, options, weights=weights, block=block, blocks=blocks, max_num_seqs=256)


LLAMA_VISION = 871_932_416  # of Scout's published file
CHUNKED = [
    (
        "llama-4-scout",
        TP8,
        48 * (heads(5120, 40, 8, 128, 8) + 17 * gated(5120, 8192, 8) + 16 * 5120)
        + (2 * 202048 * 5120 + LLAMA_VISION) / 8,
    ),
    (
        # Experts in every other layer, spread; a dense feed-forward of 16,384 in the rest.
        "llama-4-maverick",
        {**TP8, **EP},
        48 * heads(5120, 40, 8, 128, 8)
        + 24 * (129 * gated(5120, 8192, 8) + gated(5120, 16384, 8) + 128 * 5120)
        + (2 * 202048 * 5120 + LLAMA_VISION) / 8,
    ),
]


@pytest.mark.parametrize(("model", "options", "values"), CHUNKED)
def test_chunks(model, options, values):
    # Four groups of twelve layers; a chunk of 8,192 tokens is all that such a layer keeps.
    block = 12 * 2 * 1 * 128 * 2 * 16
    check(model, options, weights=BF16 * values, block=block, blocks=4 * 512, max_model_len=131072)
