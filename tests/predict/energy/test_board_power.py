"""What boards draw and what work costs on them."""

import numpy as np
import pytest

from infercast.hardware import gpu_names, load_gpu
from infercast.ops import Attention, Collective, Gemm, MoE
from infercast.ops.op import norm
from infercast.predict.board_power import BURST, HELD, board_power, occupied, work_of
from infercast.predict.estimate import SOURCES

H200 = load_gpu("h200-sxm")


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_has_numbers_that_can_be(name: str) -> None:
    gpu = load_gpu(name)
    board = board_power(gpu)
    assert 0.05 * gpu.tdp < board.idle_watts < 0.45 * gpu.tdp
    assert board.source in SOURCES
    assert 0.0 < board.spread < 0.5
    reading = Gemm(1, 8192, 8192)
    power = board.watts(reading, 2.0 * 8192**2 / (0.85 * gpu.dram_bandwidth))
    assert board.idle_watts < power <= gpu.tdp


@pytest.mark.parametrize(
    ("op", "seconds", "watts"),
    [
        (Gemm(1, 8192, 8192), 33.4e-6, 516),
        (Gemm(16, 8192, 8192), 32.6e-6, 573),
        (Gemm(64, 8192, 8192), 34.1e-6, 691),
        (Gemm(8192, 8192, 8192), 1625e-6, 682),
        (Gemm(64, 8192, 8192, "fp8"), 22.1e-6, 677),
    ],
)
def test_an_h200_draws_what_its_counter_says(op: Gemm, seconds: float, watts: float) -> None:
    assert board_power(H200).watts(op, seconds) == pytest.approx(watts, rel=0.08)


def test_nothing_draws_more_than_idle() -> None:
    board = board_power(H200)
    assert board.watts(norm(1, 8, residual=False), 2e-6) == pytest.approx(board.idle_watts, rel=0.01)


def test_energies_of_many_are_those_of_each() -> None:
    board, rows, seconds = board_power(H200), np.array([1, 64, 4096]), np.array([20e-6, 25e-6, 400e-6])
    many = board.dynamic_joules(Gemm(rows, 4096, 4096), seconds)
    each = [board.dynamic_joules(Gemm(int(m), 4096, 4096), float(s)) for m, s in zip(rows, seconds, strict=True)]
    assert np.allclose(many, each)
    assert isinstance(each[0], float)


def test_limits_bind() -> None:
    board, product = board_power(H200, 500.0), Gemm(8192, 8192, 8192)
    assert board.watts(product, 1.4e-3) == pytest.approx(HELD * 500.0)
    short = board.dynamic_joules(product, 0.5e-3)
    assert short == pytest.approx((BURST * H200.tdp - board.idle_watts) * 0.5e-3)


def test_narrow_formats_and_warm_bytes_cost_less() -> None:
    board = board_power(H200)
    wide, narrow = (board.dynamic_joules(Gemm(4096, 4096, 4096, name), 2e-4) for name in ("bf16", "fp8"))
    assert narrow < 0.75 * wide
    reading = Gemm(1, 4096, 4096)
    assert board.dynamic_joules(reading, 1e-5, warm=1.0) < board.dynamic_joules(reading, 1e-5)


def test_a_lower_clock_saves_energy() -> None:
    board = board_power(H200)
    slow, product = board.at_clock(0.6), Gemm(4096, 4096, 4096)
    assert slow.clock == 0.6
    assert slow.idle_watts < board.idle_watts
    assert slow.dynamic_joules(product, 1e-3) < board.dynamic_joules(product, 1e-3)
    back = slow.at_clock(1.0)
    assert back.flop == pytest.approx(board.flop)


def test_boards_are_scaled_by_their_datasheets() -> None:
    scaled, own = (board_power(load_gpu("b200-sxm"), known=known) for known in ("h200-sxm", None))
    assert scaled.source == "unseen"
    assert own.source == "measured"
    for name in ("idle_watts", "active_watts", "flop", "dram"):
        assert getattr(scaled, name) == pytest.approx(getattr(own, name), rel=0.45)
    assert board_power(load_gpu("h100-sxm")).source == "sibling"
    assert board_power(load_gpu("mi300x")).source == "typical"
    assert board_power(load_gpu("l4")).idle_watts < board_power(load_gpu("l40s")).idle_watts


def test_experts_of_other_gpus_cost_bytes() -> None:
    alone = MoE(4096, hidden=2048, inter=768, experts=128, topk=8, local_experts=16)
    whole = MoE(4096, hidden=2048, inter=768, experts=128, topk=8)
    assert work_of(alone).bytes > alone.bytes_read + alone.bytes_written
    assert work_of(whole).bytes == whole.bytes_read + whole.bytes_written


def test_small_kernels_keep_few_multiprocessors_busy() -> None:
    queries, keys = np.array([1]), np.array([1024])
    small = Attention(queries, keys, heads=8, kv_heads=1, head_dim=128, value_dim=128)
    assert float(np.ravel(occupied(small, work_of(small), 132))[0]) < 0.2
    large = Gemm(4096, 4096, 4096)
    assert occupied(large, work_of(large), 132) == 1.0
    exchange = Collective("all_reduce", 1 << 20, 8)
    assert work_of(exchange).bytes == 2 * exchange.link_bytes
