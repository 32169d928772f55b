"""Memory-bound kernels that an engine's compiler writes."""

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops.op import gated_activation, norm, rope
from infercast.predict.families.memory_bound import MEMORY_BOUND

H200 = load_gpu("h200-sxm")


def seconds(op):
    return float(MEMORY_BOUND.physics(op, H200).seconds[0])


def test_a_reduction_takes_whole_chunks():
    """With few rows a norm waits for its chunks: as long for 2,304 values as for 4,096, but longer for 4,352."""
    times = [seconds(norm(8, width, residual=True)) for width in (2304, 4096, 4352)]
    assert times[1] == pytest.approx(times[0], rel=0.01)
    assert times[2] > 1.05 * times[1]


def test_a_row_that_one_warp_holds_starts_sooner():
    assert seconds(norm(4096, 1024, residual=False)) < 0.7 * seconds(norm(4096, 1280, residual=False))


def test_widths_may_be_an_array():
    widths = np.array([768, 1536, 4096, 7168])
    together = MEMORY_BOUND.physics(norm(512, widths, residual=True), H200).seconds
    assert together == pytest.approx([seconds(norm(512, int(width), residual=True)) for width in widths])


def test_large_activations_come_near_the_memory_bandwidth():
    op = gated_activation(8192, 14336)
    assert 0.85 < op.bytes_read / H200.dram_bandwidth * 1.5 / seconds(op) < 0.95


def test_rotating_pairs_of_neighbours_costs_more_than_halves():
    assert seconds(rope(8192, 17, 64, copied=16 * 128)) > 2 * seconds(rope(8192, 16, 192))
