"""How FlashAttention 3 cuts a batch."""

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import Attention
from infercast.predict.families.attention_kernels import SCHEDULE_FEATURES, Schedule, batch_of

GPU = load_gpu("h200-sxm")


def features(queries, keys, *, heads=32, kv_heads=8, head_dim=128, **kwargs):
    op = Attention(
        np.array([queries]), np.array([keys]), heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim,
        **kwargs,
    )  # fmt: skip
    values = np.ravel(Schedule(op, GPU).features(batch_of(op), op.kv_bytes))
    return dict(zip(SCHEDULE_FEATURES, values, strict=True))


@pytest.mark.parametrize(
    ("head_dim", "kv_dtype", "window", "tile"),
    [
        (64, "bf16", 0, (64, 192)),
        (64, "bf16", 512, (192, 160)),
        (96, "bf16", 0, (192, 128)),
        (128, "bf16", 0, (64, 128)),
        (128, "fp8", 0, (64, 96)),
        (128, "bf16", 512, (128, 128)),
        (256, "bf16", 0, (128, 80)),
        (256, "bf16", 9, (128, 64)),
    ],
)
def test_tiles_of_decoding_are_those_of_the_engine(head_dim, kv_dtype, window, tile):
    found = features([1] * 4, [1000] * 4, head_dim=head_dim, kv_dtype=kv_dtype, window=window)
    assert (found["tile_rows"], found["tile_keys"]) == tile


def test_a_single_long_sequence_is_cut_into_many_parts():
    assert features([1], [100_000])["most_parts"] > 8


def test_a_full_batch_is_not_cut():
    assert features([1] * 256, [1000] * 256)["most_parts"] == 1


def test_long_prompts_are_not_cut_outside_graphs():
    assert features([2048], [2048])["most_parts"] == 1


def test_a_lone_prompt_with_few_tiles_is_cut_outside_graphs_too():
    assert features([671], [671], heads=25, kv_heads=5, head_dim=64)["parts_allowed"] == 4


def test_one_item_too_many_costs_a_round():
    """Five tiles of rows a prompt: 26 prompts leave two of an H200's 132 SMs idle, 27 keep three of them busy twice."""
    full, over = (features([600] * count, [600] * count, heads=1, kv_heads=1) for count in (26, 27))
    assert full["log_items_per_sm"] < 0 < over["log_items_per_sm"]
    assert over["log_busiest_with_starts"] > full["log_busiest_with_starts"]


def test_causal_prompts_do_half_the_tiles():
    prompt, cached = features([4096], [4096]), features([4096], [8192])
    ratio = 2 ** (cached["log_tiles_per_sm"] - prompt["log_tiles_per_sm"])
    assert ratio == pytest.approx(3.0, rel=0.05), "all of the prefix, half of itself"


def test_windows_bound_what_a_tile_goes_through():
    assert features([4096], [4096], window=256)["longest_item"] <= 4
    assert features([4096], [4096])["longest_item"] == 32


def test_the_schedule_takes_about_as_long_as_the_kernel():
    """FlashAttention 3 with pages on an H200: 8 prompts of 2,048 tokens, 32 heads of 128."""
    microseconds = 2 ** features([2048] * 8, [2048] * 8)["log_scheduled_us"]
    flops = 8 * 4 * 32 * 128 * 2048 * 2048 / 2
    assert 400e12 < flops / (microseconds * 1e-6) < 750e12


def test_decoding_is_never_faster_than_memory():
    microseconds = 2 ** features([1] * 256, [8000] * 256)["log_scheduled_us"]
    assert microseconds > 256 * 8000 * 8 * 256 * 2 / GPU.dram_bandwidth * 1e6


def test_padding_changes_nothing():
    plain = features([1, 1], [500, 700])
    op = Attention(
        np.array([[1, 1, 1]]), np.array([[500, 700, 9]]), heads=32, kv_heads=8, head_dim=128, value_dim=128,
        sequences=np.array([[1, 1, 0]]),
    )  # fmt: skip
    padded = np.ravel(Schedule(op, GPU).features(batch_of(op), op.kv_bytes))
    assert padded == pytest.approx(np.array([*plain.values()]))
