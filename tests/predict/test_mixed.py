"""Prompts and decoding sequences in one launch."""

import numpy as np
import pytest

from infercast.engines.timer import Padding, padded_in
from infercast.forecast.deploy import deploy, load_model
from infercast.hardware import load_gpu
from infercast.models.layout import ParallelLayout
from infercast.ops import Attention
from infercast.predict.estimate import (
    ADDED_SHARE,
    SLOWED_SHARE,
    TILE_ROWS,
    TILE_SHARE,
    Estimate,
    fuse_prefill_decode,
    join,
    padded,
    padded_seconds,
)
from infercast.serve.step import StepShape


def test_both_take_longer_than_one_and_short_halves_less_than_their_sum():
    prompts, decodes = np.array([1e-3, 20e-6, 5e-6]), np.array([100e-6, 400e-6, 6e-6])
    both = fuse_prefill_decode(prompts, decodes)
    assert (both >= np.maximum(prompts, decodes)).all()
    assert (both <= (1 + SLOWED_SHARE) * prompts + ADDED_SHARE * decodes).all()
    assert (both[1:] <= prompts[1:] + ADDED_SHARE * decodes[1:]).all()


def test_long_prompts_slow_down_beside_sequences_that_decode():
    alone, beside = 1373.7e-6, 59.8e-6
    # 7,332 tokens of 64 heads and 127 sequences of 252 tokens took 1,888 us on an H200.
    assert fuse_prefill_decode(alone, beside) == pytest.approx(1888e-6, rel=0.05)
    assert fuse_prefill_decode(alone, 0.0) == pytest.approx(alone)


def test_what_each_launch_needs_once_is_counted_once():
    assert fuse_prefill_decode(32 * 50e-6, 32 * 8e-6, 32) == pytest.approx(32 * fuse_prefill_decode(50e-6, 8e-6))


def test_the_longer_half_names_the_bound():
    prompts, decodes = (Estimate(s, 0.9 * s, 1.2 * s, "measured", b) for s, b in ((2e-4, "tensor"), (1e-4, "dram")))
    both = join(prompts, decodes)
    assert both.bound == "tensor"
    assert both.low < both.seconds < both.high


def attention(**changes: object) -> Attention:
    sizes = {"heads": 40, "kv_heads": 8, "head_dim": 128, "value_dim": 128, **changes}
    return Attention(np.array([1]), np.array([1024]), **sizes)  # type: ignore[arg-type]


def test_flash_attention_2_pads_the_heads_of_sequences_that_decode_beside_prompts():
    old, new = load_gpu("a100-sxm"), load_gpu("h200-sxm")
    assert padded(attention(), old) == pytest.approx(2 * TILE_ROWS * 40 * 256 / (TILE_SHARE * 312e12), rel=0.01)
    assert padded(attention(heads=20), old) == pytest.approx(padded(attention(), old) / 2)
    assert padded(attention(), new) == 0.0
    assert padded(attention(kv_dtype="fp8"), old) == 0.0  # another kernel
    assert padded_seconds(attention(), old) == pytest.approx(1024 * padded(attention(), old))


def test_sequences_take_at_least_what_padded_tiles_do():
    assert fuse_prefill_decode(1e-3, 1e-4, padded=4e-4) == pytest.approx(1.4e-3)
    assert fuse_prefill_decode(1e-3, 5e-4, padded=4e-4) == pytest.approx(1.5e-3)


def test_attention_with_sinks_runs_a_kernel_that_does_not_pad():
    layout, gpu = ParallelLayout(), load_gpu("a100-sxm")
    assert padded_in(load_model("gpt-oss-20b"), layout, gpu) == {}
    assert max(each.per_key for each in padded_in(load_model("qwen3-14b"), layout, gpu).values()) > 0.0


def test_windows_bound_what_is_padded():
    assert Padding(1e-9, 128).seconds(4, 4000) == pytest.approx(4 * 128e-9)
    assert Padding(1e-9).seconds(4, 4000) == pytest.approx(4000e-9)


def test_prompts_beside_decoding_are_not_slowed_more_than_an_engine_was():
    """Two prompts beside 66 sequences of llama-3.1-8b, 2,048 tokens in all, took an H200 49.7 to 53.1 ms.

    Half of 44 steps in `measurements/h200-sxm/serving/steps.parquet` lie in that range; the prompts alone take 44.8 ms.
    """
    beside = StepShape([991, 991, *[1] * 66], [844] * 68, 68)
    seconds = deploy("llama-3.1-8b", "h200-sxm").timer()(beside).gpu_seconds[0]
    assert 0.92 * 51.7e-3 < seconds < 53.1e-3
