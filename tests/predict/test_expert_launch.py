"""Launch configurations of Triton's experts: which can run, and that estimates follow what a configuration changes."""

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import MoE
from infercast.predict.expert_launch import (
    all_tiles,
    blocks_per_sm,
    excluded,
    row_blocks,
    shared_bytes,
    thread_registers,
    tiles_of,
    time_tiles,
)

H200 = load_gpu("h200-sxm")
LAYER = MoE(256, hidden=4096, inter=1408, experts=128, topk=8, dtype="bf16", weight_dtype="bf16")


def reason(configuration: tuple[int, ...], dtype: str = "bf16", depths: tuple[int, ...] = (4096, 1408)) -> str:
    return excluded(tiles_of([configuration]), dtype, depths, H200)[0]


@pytest.mark.parametrize(
    ("configuration", "dtype", "depths", "words"),
    [
        ((256, 256, 128, 1, 8, 4), "bf16", (4096, 1408), "512 KiB of shared memory, 227 at most"),
        ((128, 256, 64, 1, 4, 3), "bf16", (4096, 1408), "312 registers a thread"),
        ((16, 64, 256, 1, 4, 3), "fp8_block", (4096, 1408), "128 share a scale"),
        ((16, 64, 256, 1, 4, 3), "bf16", (4096, 96), "a product is 96 deep"),
        ((16, 64, 32, 1, 4, 3), "fp8", (4096, 1408), "less than a line of memory"),
        ((16, 32, 128, 1, 8, 3), "bf16", (4096, 1408), "8 warps for 16 x 32 results"),
    ],
)
def test_what_cannot_run_is_left_out_by_its_reason(
    configuration: tuple[int, ...], dtype: str, depths: tuple[int, ...], words: str
) -> None:
    assert words in reason(configuration, dtype, depths)


def test_configurations_that_engines_ship_can_run() -> None:
    for configuration in ((16, 64, 128, 1, 4, 4), (128, 256, 64, 16, 8, 4), (16, 256, 128, 1, 8, 4)):
        assert reason(configuration) == ""
    assert reason((128, 256, 128, 16, 8, 4), "fp8") == ""


def test_occupancy_follows_shared_memory_and_registers() -> None:
    deep, shallow, wide = (
        tiles_of([each]) for each in ((16, 64, 128, 1, 4, 4), (16, 64, 128, 1, 4, 2), (128, 256, 64, 1, 8, 4))
    )
    assert shared_bytes(deep, "bf16", H200)[0] == 3 * (16 + 64) * 128 * 2
    assert shared_bytes(deep, "fp8", H200)[0] == 4 * (16 + 64) * 128, "a wide multiply holds one buffer more"
    assert blocks_per_sm(deep, "bf16", H200)[0] == 3
    assert blocks_per_sm(shallow, "bf16", H200)[0] > 3
    assert blocks_per_sm(wide, "bf16", H200)[0] == 1
    assert thread_registers(wide, "fp8_block")[0] > thread_registers(wide, "fp8")[0]


def test_small_tiles_pad_less_and_large_ones_read_weights_less_often() -> None:
    tiles = tiles_of([(16, 128, 64, 1, 4, 3), (128, 128, 64, 1, 4, 3)])
    times = time_tiles(LAYER, H200, tiles)
    assert times.padding[0] < times.padding[1]
    assert times.weight_reads[0] > times.weight_reads[1] > 0.99
    assert np.all(times.seconds > times.products)
    assert times.tensor[1] > times.tensor[0], "rows that nobody wants are multiplied too"


def test_grouping_saves_memory_traffic_of_experts_larger_than_the_cache() -> None:
    large = MoE(512, hidden=6144, inter=8192, experts=8, topk=2, dtype="bf16", weight_dtype="bf16")
    small = MoE(512, hidden=1024, inter=256, experts=8, topk=2, dtype="bf16", weight_dtype="bf16")
    tiles = tiles_of([(64, 128, 64, 1, 4, 3), (64, 128, 64, 16, 4, 3)])
    alone, together = time_tiles(large, H200, tiles).dram
    assert alone > 1.5 * together
    alone, together = time_tiles(small, H200, tiles).dram
    assert alone == pytest.approx(together, rel=0.02)


def test_two_stages_leave_the_wide_instruction_waiting() -> None:
    layer = MoE(1024, hidden=6144, inter=8192, experts=8, topk=2, dtype="bf16", weight_dtype="bf16")
    two, three = time_tiles(layer, H200, tiles_of([(128, 256, 64, 8, 8, 2), (128, 256, 64, 8, 8, 3)])).seconds
    assert two > 1.1 * three


def test_rows_that_are_not_aligned_are_loaded_one_value_at_a_time() -> None:
    layer = MoE(64, hidden=2816, inter=88, experts=128, topk=8, dtype="bf16", weight_dtype="bf16")
    deep, shallow = time_tiles(layer, H200, tiles_of([(32, 64, 128, 1, 4, 3), (32, 64, 32, 1, 4, 3)])).seconds
    assert deep > 1.5 * shallow, "more values than a thread has registers for"
    wider = MoE(64, hidden=2816, inter=96, experts=128, topk=8, dtype="bf16", weight_dtype="bf16")
    assert time_tiles(wider, H200, tiles_of([(32, 64, 128, 1, 4, 3)])).seconds[0] < 0.5 * deep


def test_one_token_hits_as_many_experts_as_it_chooses() -> None:
    one = MoE(1, hidden=4096, inter=1408, experts=128, topk=8, dtype="bf16", weight_dtype="bf16")
    spread = row_blocks(one, tiles_of([(16, 64, 128, 1, 4, 4)]))
    assert spread.hit == pytest.approx(8.0)
    assert spread.blocks[0] == pytest.approx(8.0)
    assert spread.launched[0] == 8


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp8_block"])
@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_every_configuration_has_an_estimate(dtype: str, tokens: int) -> None:
    layer = MoE(tokens, hidden=4096, inter=1408, experts=128, topk=8, dtype=dtype, weight_dtype=dtype)
    times = time_tiles(layer, H200, all_tiles())
    assert np.all(np.isfinite(times.seconds))
    assert np.all(times.seconds > 0)
