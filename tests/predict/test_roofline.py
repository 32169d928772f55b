import pytest

from infercast.hardware import load_gpu
from infercast.ops import Gemm
from infercast.ops.op import norm
from infercast.predict.roofline import CLOCK_SHARE, LAUNCH_FLOOR, REFERENCE_CLOCK, Roofline, launch_floor

H200 = load_gpu("h200-sxm")


def test_a_kernel_is_its_busiest_pipe_and_the_floor():
    op = Gemm(8, 28672, 4096)
    seconds = (op.bytes_read + op.bytes_written) / 4.8e12 + launch_floor(H200)
    assert Roofline().estimate(op, H200).seconds == pytest.approx(seconds)


def test_the_smallest_kernel_takes_the_floor():
    assert Roofline().estimate(norm(1, 8, residual=False), H200).seconds == pytest.approx(launch_floor(H200), rel=1e-4)


def test_slower_clocks_have_a_higher_floor():
    t4 = load_gpu("t4")
    assert t4.boost_clock < REFERENCE_CLOCK
    by_hand = LAUNCH_FLOOR * (1 - CLOCK_SHARE) + LAUNCH_FLOOR * CLOCK_SHARE * REFERENCE_CLOCK / t4.boost_clock
    assert launch_floor(t4) == pytest.approx(by_hand)
    assert launch_floor(t4) > LAUNCH_FLOOR


def test_the_roofline_is_the_lower_end_of_its_own_interval():
    estimate = Roofline().estimate(Gemm(512, 4096, 4096), H200)
    assert estimate.low == estimate.seconds < estimate.high
    assert estimate.source == "roofline"
