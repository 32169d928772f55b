"""Memory plans of models with latent attention, by hand."""

import runpy
from pathlib import Path

import pytest

BY_HAND = runpy.run_path(str(Path(__file__).with_name("by_hand.py")))
gated, latent, expansion, check = (BY_HAND[name] for name in ("gated", "latent", "expansion", "check"))
BF16, FP8_BLOCK, NVFP4, INT4_32 = (BY_HAND[name] for name in ("BF16", "FP8_BLOCK", "NVFP4", "INT4_32"))
EP = {"enable_expert_parallel": True}
TP8 = {"tensor_parallel_size": 8}
# 27 layers of 1,152 are split; patches, positions and two matrices to the language model are on every GPU.
MOONVIT = 27 * (4 * 1152**2 + 2 * 1152 * 4304) / 8 + 1152 * (588 + 4096) + 4608 * (4608 + 7168)


def v3_layer(gpus, expert_gpus):
    """A layer with 256 experts of 2,048 and one more that all tokens meet."""
    return latent(7168, 128, gpus) + 256 * gated(7168, 2048, expert_gpus) + gated(7168, 2048, gpus)


def deepseek_v3(gpus, expert_gpus):
    """Three dense layers, then 58 with experts; the router and the tables are not quantised."""
    dense = latent(7168, 128, gpus) + gated(7168, 18432, gpus)
    layers = 3 * dense + 58 * v3_layer(gpus, expert_gpus)
    return FP8_BLOCK * layers + 61 * expansion(128, gpus) + BF16 * (58 * 256 * 7168 + 2 * 129280 * 7168 / gpus)


def lite_layers(sparse, dense=0):
    """DeepSeek-V2-Lite: queries are projected directly, 64 experts of 1,408 and two shared ones."""
    experts = latent(2048, 16, 1, 0) + 66 * gated(2048, 1408) + 64 * 2048
    return sparse * experts + dense * (latent(2048, 16, 1, 0) + gated(2048, 10944))


def kimi(expert, beside, gpus):
    """384 experts of 2,048 in 60 layers, everything else in bf16 or ``beside``."""
    rest = 61 * latent(7168, 64, gpus) + 60 * 384 * 7168 + 2 * 163840 * 7168 / gpus
    other = gated(7168, 18432, gpus) + 60 * gated(7168, 2048, gpus)
    return expert * 60 * 384 * gated(7168, 2048, gpus) + beside * other + BF16 * rest


LAYER = 576 * 2 * 16
PLANS = [
    ("deepseek-v2-lite", "h200-sxm", {}, BF16 * (lite_layers(26, 1) + 2 * 102400 * 2048), 27 * LAYER, 512),
    (
        # Stages of 7, 7, 7 and 6 layers: the second and third have seven with experts.
        "deepseek-v2-lite",
        "h200-sxm",
        {"pipeline_parallel_size": 4},
        BF16 * lite_layers(7),
        7 * LAYER,
        512,
    ),
    (
        "deepseek-v2",
        "h200-sxm",
        TP8,
        BF16
        * (
            60 * latent(5120, 128, 8)
            + gated(5120, 12288, 8)
            + 59 * (162 * gated(5120, 1536, 8) + 160 * 5120)
            + 2 * 102400 * 5120 / 8
        ),
        60 * LAYER,
        512,
    ),
    ("deepseek-v3", "h200-sxm", TP8, deepseek_v3(8, 8), 61 * LAYER, 512),
    ("deepseek-v3", "h200-sxm", {**TP8, **EP}, deepseek_v3(8, 8), 61 * LAYER, 512),
    ("deepseek-v3", "h200-sxm", {"data_parallel_size": 8, **EP}, deepseek_v3(1, 8), 61 * LAYER, 512),
    (
        "deepseek-v3",
        "h200-sxm",
        {"tensor_parallel_size": 4, "data_parallel_size": 2},
        deepseek_v3(4, 8),
        61 * LAYER,
        512,
    ),
    (
        # Where spread experts are shared by copies of several GPUs, each of these holds the shared expert.
        "deepseek-v3",
        "h200-sxm",
        {"tensor_parallel_size": 4, "data_parallel_size": 2, **EP},
        deepseek_v3(4, 8) + FP8_BLOCK * 58 * gated(7168, 2048) * 3 / 4,
        61 * LAYER,
        512,
    ),
    (
        # Stages of 15, 15, 16 and 15 layers; the third has 16 with experts and no table.
        "deepseek-v3",
        "h200-sxm",
        {**TP8, "pipeline_parallel_size": 4, "network": "infiniband-ndr"},
        FP8_BLOCK * 16 * v3_layer(8, 8) + 16 * expansion(128, 8) + BF16 * 16 * 256 * 7168,
        16 * LAYER,
        512,
    ),
    # An fp8 cache on Hopper has blocks of 64 tokens, Blackwell has 32.
    ("deepseek-v3", "h200-sxm", {**TP8, "kv_cache_dtype": "fp8"}, deepseek_v3(8, 8), 61 * 576 * 64, 128),
    ("deepseek-v3", "b200-sxm", TP8, deepseek_v3(8, 8), 61 * 576 * 2 * 32, 256),
    ("kimi-k2-thinking", "h200-sxm", TP8, kimi(INT4_32, BF16, 8), 61 * LAYER, 512),
    ("kimi-k2.5", "h200-sxm", TP8, kimi(INT4_32, BF16, 8) + BF16 * MOONVIT, 61 * LAYER, 512),
    ("kimi-k2.5-nvfp4", "b200-sxm", TP8, kimi(NVFP4, NVFP4, 8) + BF16 * MOONVIT, 61 * 576 * 32, 256),
]


@pytest.mark.parametrize(("model", "gpu", "options", "weights", "block", "blocks"), PLANS)
def test_latent_attention(model, gpu, options, weights, block, blocks):
    check(model, options, weights=weights, block=block, blocks=blocks, gpu=gpu)


def test_the_whole_of_a_published_checkpoint():
    # 594 GB are on the page of Kimi-K2-Thinking.
    assert kimi(INT4_32, BF16, 1) == pytest.approx(594.2e9, rel=0.001)
