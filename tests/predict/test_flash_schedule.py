"""How FlashAttention 3 cuts a batch."""

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import Attention
from infercast.predict.physics.attention_kernels import batch_of
from infercast.predict.physics.flash_schedule import SCHEDULE_FEATURES, schedule_features

GPU = load_gpu("h200-sxm")


def features(queries, keys, *, heads=32, kv_heads=8, head_dim=128, **kwargs):
    op = Attention(
        np.array([queries]), np.array([keys]), heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim,
        **kwargs,
    )  # fmt: skip
    return dict(zip(SCHEDULE_FEATURES, schedule_features(op, batch_of(op), GPU)[0], strict=True))


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


def test_padding_changes_nothing():
    plain = features([1, 1], [500, 700])
    op = Attention(
        np.array([[1, 1, 1]]), np.array([[500, 700, 9]]), heads=32, kv_heads=8, head_dim=128, value_dim=128,
        sequences=np.array([[1, 1, 0]]),
    )  # fmt: skip
    padded = schedule_features(op, batch_of(op), GPU)[0]
    assert padded == pytest.approx(np.array([*plain.values()]))
