"""Memory plans of models without experts, by hand: grouped heads, windows, encoders, formats, layouts."""

import runpy
from pathlib import Path

import pytest

from infercast.models.library import bundled_config

BY_HAND = runpy.run_path(str(Path(__file__).with_name("by_hand.py")))
heads, gated, check = (BY_HAND[name] for name in ("heads", "gated", "check"))
BF16, FP8, FP8_BLOCK, NVFP4 = (BY_HAND[name] for name in ("BF16", "FP8", "FP8_BLOCK", "NVFP4"))
INT4, INT4_32, AWQ = (BY_HAND[name] for name in ("INT4", "INT4_32", "AWQ"))

TP2, TP4, TP8 = ({"tensor_parallel_size": size} for size in (2, 4, 8))
LAYERS_8B = 32 * (heads(4096, 32, 8, 128) + gated(4096, 14336))
TABLE_8B = 128256 * 4096
KV_8B = 32 * 2 * 8 * 128 * 2 * 16


def layers_70b(gpus):
    return 80 * (heads(8192, 64, 8, 128, gpus) + gated(8192, 28672, gpus))


def checkpoint(name, **quantization):
    """A bundled model as somebody else quantised it."""
    return {**bundled_config(name), "quantization_config": quantization}


GROUPED = [
    ("llama-3.1-8b", {}, BF16 * (LAYERS_8B + 2 * TABLE_8B), KV_8B),
    ("llama-3.1-8b", TP2, BF16 * (LAYERS_8B + 2 * TABLE_8B) / 2, KV_8B / 2),
    ("llama-3.1-8b", {**TP4, "pipeline_parallel_size": 2}, BF16 * (LAYERS_8B / 2 + TABLE_8B) / 4, KV_8B / 8),
    ("llama-3.1-8b", {"data_parallel_size": 4}, BF16 * (LAYERS_8B + 2 * TABLE_8B), KV_8B),
    ("llama-3.1-8b", {"quantization": "fp8"}, FP8 * LAYERS_8B + BF16 * 2 * TABLE_8B, KV_8B),
    ("llama-3.1-8b", {"kv_cache_dtype": "fp8"}, BF16 * (LAYERS_8B + 2 * TABLE_8B), KV_8B / 2),
    ("llama-3.1-8b", {"quantization": "nvfp4"}, NVFP4 * LAYERS_8B + BF16 * 2 * TABLE_8B, KV_8B),
    ("llama-3.1-70b", TP4, BF16 * (layers_70b(4) + 2 * 128256 * 8192 / 4), 80 * 2 * 2 * 128 * 2 * 16),
    ("llama-3.1-70b", TP8, BF16 * (layers_70b(8) + 2 * 128256 * 8192 / 8), 80 * 2 * 1 * 128 * 2 * 16),
    ("llama-3.1-70b-fp8", TP2, FP8 * layers_70b(2) + BF16 * 2 * 128256 * 8192 / 2, 80 * 2 * 4 * 128 * 2 * 16),
    ("llama-3.1-70b", {"quantization": "int4"}, INT4 * layers_70b(1) + BF16 * 2 * 128256 * 8192, 80 * 2 * 8 * 128 * 32),
    (
        # Its publisher left attention in bf16.
        "llama-3.1-405b-fp8",
        TP8,
        FP8 * 126 * gated(16384, 53248, 8) + BF16 * (126 * heads(16384, 128, 8, 128, 8) + 2 * 128256 * 16384 / 8),
        126 * 2 * 1 * 128 * 2 * 16,
    ),
    (
        # 126 layers in stages of 63; the second has the head, the first the embedding.
        "llama-3.1-405b",
        {**TP8, "pipeline_parallel_size": 2, "network": "infiniband-ndr"},
        BF16 * (63 * (heads(16384, 128, 8, 128, 8) + gated(16384, 53248, 8)) + 128256 * 16384 / 8),
        63 * 2 * 1 * 128 * 2 * 16,
    ),
    (
        "qwen2.5-7b",
        TP4,
        BF16 * (28 * (heads(3584, 28, 4, 128, 4) + gated(3584, 18944, 4)) + 2 * 152064 * 3584 / 4),
        28 * 2 * 1 * 128 * 2 * 16,
    ),
    (
        "qwen2.5-72b",
        TP8,
        BF16 * (80 * (heads(8192, 64, 8, 128, 8) + gated(8192, 29568, 8)) + 2 * 152064 * 8192 / 8),
        80 * 2 * 1 * 128 * 2 * 16,
    ),
    # One table serves as embedding and head ...
    ("qwen2.5-0.5b", {}, BF16 * (24 * (heads(896, 14, 2, 64) + gated(896, 4864)) + 151936 * 896), 24 * 2 * 2 * 64 * 32),
    (
        # ... unless they are in different stages.
        "llama-3.2-1b",
        {"pipeline_parallel_size": 2},
        BF16 * (8 * (heads(2048, 32, 8, 64) + gated(2048, 8192)) + 128256 * 2048),
        8 * 2 * 8 * 64 * 2 * 16,
    ),
    (
        "qwen3-8b-fp8",
        TP2,
        FP8_BLOCK * 36 * (heads(4096, 32, 8, 128, 2) + gated(4096, 12288, 2)) + BF16 * 2 * 151936 * 4096 / 2,
        36 * 2 * 4 * 128 * 2 * 16,
    ),
    (
        # Two key-value heads on eight GPUs: each has a whole one.
        "glm-4-32b-0414",
        TP8,
        BF16 * (61 * (heads(6144, 48, 2, 128, 8) + gated(6144, 23040, 8)) + 2 * 151552 * 6144 / 8),
        61 * 2 * 1 * 128 * 2 * 16,
    ),
    (
        checkpoint("llama-3.1-8b", quant_method="awq", bits=4, group_size=128, zero_point=True),
        {},
        AWQ * LAYERS_8B + BF16 * 2 * TABLE_8B,
        KV_8B,
    ),
    (
        checkpoint("llama-3.1-8b", quant_method="gptq", bits=4, group_size=32),
        {},
        INT4_32 * LAYERS_8B + BF16 * 2 * TABLE_8B,
        KV_8B,
    ),
    (checkpoint("llama-3.1-8b", quant_method="gptq", bits=8), {}, FP8 * LAYERS_8B + BF16 * 2 * TABLE_8B, KV_8B),
]


@pytest.mark.parametrize(("model", "options", "weights", "block"), GROUPED)
def test_grouped_attention(model, options, weights, block):
    check(model, options, weights=weights, block=block, blocks=512)


def test_multi_head_attention_in_fp16():
    weights = 2 * (40 * (heads(5120, 40, 40, 128) + gated(5120, 13824)) + 2 * 32000 * 5120)
    check("llama-2-13b", {}, weights=weights, block=40 * 2 * 40 * 128 * 2 * 16, blocks=256, context=4096)


# A window of w tokens touches w / 16 blocks and one more; kinds of layers are cut into groups as large as the smallest.
VISION_3 = 27 * (4 * 1152**2 + 2 * 1152 * 4304) + 1152 * (588 + 4096)
GEMMA_4 = 27 * (4 * 1152**2 + 3 * 1152 * 4304) + 1152 * (768 + 2 * 10240)
WINDOWED = [
    (
        "mistral-7b-v0.1",
        {},
        BF16 * (32 * (heads(4096, 32, 8, 128) + gated(4096, 14336)) + 2 * 32000 * 4096),
        32 * 2 * 8 * 128 * 2 * 16,
        257,
    ),
    (
        "gemma-2-9b",
        {},
        BF16 * (42 * (heads(3584, 16, 8, 256) + gated(3584, 14336)) + 256000 * 3584),
        21 * 2 * 8 * 256 * 2 * 16,
        512 + 257,
    ),
    (
        # Four full layers of 26: six groups of four windowed ones, the last with two places to spare.
        "gemma-3-1b",
        {},
        BF16 * (26 * (heads(1152, 4, 1, 256) + gated(1152, 6912)) + 262144 * 1152),
        4 * 2 * 1 * 256 * 2 * 16,
        512 + 6 * 33,
    ),
    (
        "gemma-3-4b",
        {},
        BF16 * (34 * (heads(2560, 8, 4, 256) + gated(2560, 10240)) + 262208 * 2560 + VISION_3 + 1152 * 2560),
        5 * 2 * 4 * 256 * 2 * 16,
        512 + 6 * 65,
    ),
    (
        "gemma-3-27b",
        TP2,
        BF16 * (62 * (heads(5376, 32, 16, 128, 2) + gated(5376, 21504, 2)) + 262208 * 5376 / 2 + VISION_3 / 2),
        10 * 2 * 8 * 128 * 2 * 16,
        512 + 6 * 65,
    ),
    (
        # Full layers have 4 heads of 512, half as wide as 16 of 256: their blocks hold 32 tokens on up to 4 GPUs.
        "gemma-4-31b",
        TP2,
        BF16
        * (
            50 * heads(5376, 32, 16, 256, 2)
            + 10 * heads(5376, 32, 4, 512, 2)
            + 60 * gated(5376, 21504, 2)
            + 262144 * 5376 / 2
            + GEMMA_4
            + 1152 * 5376
        ),
        10 * 2 * 8 * 256 * 2 * 16,
        256 + 5 * 65,
    ),
    (
        "gemma-4-31b",
        TP8,
        BF16
        * (
            50 * heads(5376, 32, 16, 256, 8)
            + 10 * heads(5376, 32, 4, 512, 8)
            + 60 * gated(5376, 21504, 8)
            + 262144 * 5376 / 8
            + GEMMA_4
            + 1152 * 5376
        ),
        10 * 2 * 2 * 256 * 2 * 16,
        512 + 5 * 65,
    ),
    (
        # Feed-forward in nvfp4, attention in bf16, the cache in fp8.
        "gemma-4-31b-nvfp4",
        {},
        BF16 * (50 * heads(5376, 32, 16, 256) + 10 * heads(5376, 32, 4, 512) + 262144 * 5376 + GEMMA_4 + 1152 * 5376)
        + NVFP4 * 60 * gated(5376, 21504),
        10 * 2 * 16 * 256 * 1 * 16,
        256 + 5 * 65,
    ),
]


@pytest.mark.parametrize(("model", "options", "weights", "block", "blocks"), WINDOWED)
def test_windows(model, options, weights, block, blocks):
    check(model, options, weights=weights, block=block, blocks=blocks, max_num_seqs=256)


def test_a_window_in_every_layer():
    weights = BF16 * (32 * (heads(3072, 32, 32, 96) + gated(3072, 8192)) + 2 * 32064 * 3072)
    check("phi-3-mini", {}, weights=weights, block=32 * 2 * 32 * 96 * 2 * 16, blocks=129, context=4096)


ENCODERS = [
    # Published totals of the files.
    ("qwen3-vl-2b", {}, BF16 * 2_127_532_032, 28 * 2 * 8 * 128 * 2 * 16),
    ("qwen2.5-vl-72b", TP4, BF16 * 73_410_777_344 / 4, 80 * 2 * 2 * 128 * 2 * 16),
    ("mistral-small-3.2-24b", {}, BF16 * 24_011_361_280, 40 * 2 * 8 * 128 * 2 * 16),
    ("mistral-small-3.2-24b", {"language_model_only": True}, BF16 * 23_572_403_200, 40 * 2 * 8 * 128 * 2 * 16),
]


@pytest.mark.parametrize(("model", "options", "weights", "block"), ENCODERS)
def test_encoders_of_images(model, options, weights, block):
    check(model, options, weights=weights, block=block, blocks=512)
