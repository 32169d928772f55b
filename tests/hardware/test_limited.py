"""GPUs that an operator holds back."""

from __future__ import annotations

import pytest

from infercast.errors import InputError
from infercast.hardware import gpu_names, load_gpu
from infercast.hardware.gpu import LEAST_POWER, limited_gpu
from infercast.predict.board_power import FREE_SHARE, READING, READING_SHARE, board_under, power_limits

GPU = load_gpu("h200-sxm")


def test_a_power_limit_changes_no_rate():
    limited = limited_gpu(GPU, 500)
    assert (limited.board_limit, limited.unlimited) == (500, GPU)
    assert limited.tensor_flops == GPU.tensor_flops
    assert "500 W" in limited.title


def test_a_locked_clock_scales_the_chip_and_not_its_memory():
    locked = limited_gpu(GPU, clock_mhz=990)
    assert locked.clock_share == pytest.approx(0.5)
    assert locked.dense_flops("bf16") == pytest.approx(GPU.dense_flops("bf16") / 2)
    assert locked.l2_bandwidth == pytest.approx(GPU.l2_bandwidth / 2)
    assert locked.dram_bandwidth == GPU.dram_bandwidth
    assert locked.sustained_fraction == 1.0


def test_the_boards_own_limits_are_the_board_itself():
    assert limited_gpu(GPU, 700, 1980) == GPU
    assert power_limits(GPU).unthrottled_load == FREE_SHARE
    assert power_limits(GPU).always == 0.0


def test_lower_limits_cost_more():
    lost = [power_limits(limited_gpu(GPU, watts)) for watts in (700, 600, 500, 400, 300, 200)]
    whole = [(1 + each.max_slowdown) * (1 + each.always) for each in lost]
    assert whole == sorted(whole)
    assert [each.always for each in lost] == sorted(each.always for each in lost)
    assert [each.unthrottled_load for each in lost] == sorted((each.unthrottled_load for each in lost), reverse=True)
    assert power_limits(limited_gpu(GPU, 600)).max_slowdown > power_limits(GPU).max_slowdown


@pytest.mark.parametrize(
    ("limits", "told"),
    [((800, None), "189 to 700 W"), ((10, None), "189 to 700 W"), ((None, 3000), "396 to 1980 MHz")],
)
def test_what_no_driver_takes_is_refused(limits, told):
    with pytest.raises(InputError, match=told):
        limited_gpu(GPU, *limits)


@pytest.mark.parametrize("name", gpu_names())
def test_every_board_idles_below_the_least_limit(name):
    gpu = load_gpu(name)
    assert board_under(gpu).idle_watts < LEAST_POWER * gpu.tdp


def test_a_limit_and_the_clock_that_it_leads_to_slow_reading_alike():
    limited, locked = limited_gpu(GPU, 300), limited_gpu(GPU, clock_mhz=900)
    board = board_under(locked)
    seconds = float(READING.bytes_read) / (READING_SHARE * GPU.dram_bandwidth) * 1.15
    assert board.watts(READING, seconds) == pytest.approx(300, rel=0.15)
    assert 1.05 < 1.0 + power_limits(limited).always < 1.4
