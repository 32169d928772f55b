"""What a meter reads of kernels: a learned factor, where readings were published."""

from dataclasses import replace

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import Attention, Gemm, MoE, Scan
from infercast.ops.op import norm, quantise
from infercast.predict import board_power as metered
from infercast.predict.board_power import (
    ARCHIVE,
    COPIES,
    FEATURES,
    MOST_LAUNCHES,
    board_power,
    copies_of,
    family_of_reading,
    loops_of,
    meter_reading,
    module_reading,
    power_archive,
    tabled_calls,
)

GPUS = [load_gpu("h200-sxm"), load_gpu("b200-sxm")]
SCAN = Scan(np.array([8192]), np.array([8]), heads=32, key_heads=16, key_dim=128, value_dim=128)


def _attention(queries: int, keys: int, **values: int) -> Attention:
    sizes = {"heads": 32, "kv_heads": 8, "head_dim": 128, "value_dim": 128} | values
    return Attention(np.array([queries]), np.array([keys]), sequences=np.array([4]), **sizes)


@pytest.mark.parametrize(("gpu", "seconds"), [(GPUS[0], 1.6e-3), (GPUS[1], 0.75e-3)])
def test_a_meter_settles_on_what_the_board_holds(gpu, seconds):
    board, product = board_power(gpu), Gemm(8192, 8192, 8192)
    reading = meter_reading(product, gpu, seconds)
    assert reading.watts == pytest.approx(board.held_watts, rel=0.1)
    assert reading.low <= reading.watts <= reading.high <= gpu.tdp
    assert reading.own == 0.0


def test_short_loops_read_less_than_the_kernel_draws():
    op, seconds = Gemm(64, 4096, 4096), 12e-6
    assert meter_reading(op, GPUS[0], seconds).watts < 0.7 * board_power(GPUS[0]).watts(op, seconds)


def test_a_factor_is_the_kernels_own_where_loops_settle():
    short, longer, long = (meter_reading(SCAN, GPUS[0], seconds) for seconds in (0.2e-3, 0.6e-3, 0.9e-3))
    assert short.own == 0.0
    assert 0.0 < longer.own < long.own == 1.0


@pytest.mark.parametrize(
    ("op", "family"),
    [
        (Gemm(1, 64, 64), "gemm"),
        (_attention(1, 64), "attention_decode"),
        (_attention(64, 64), "attention_prefill"),
        (MoE(1, hidden=64, inter=64, experts=8, topk=2), "moe"),
        (SCAN, "recurrent"),
        (quantise(8, 64), "quantise"),
        (norm(8, 64, residual=False), None),
        (_attention(1, 64, value_dim=64), None),
        (Gemm(np.array([1, 2]), 64, 64), None),
    ],
)
def test_kernels_have_the_family_that_was_read(op, family):
    assert family_of_reading(op) == family


def test_nothing_is_said_where_nothing_was_read():
    product = Gemm(4096, 4096, 4096)
    assert meter_reading(product, load_gpu("h100-sxm"), 2e-4) is None
    assert meter_reading(product, replace(GPUS[0], power_limit=500.0), 2e-4) is None
    assert meter_reading(norm(8, 64, residual=False), GPUS[0], 2e-6) is None


def test_whole_modules_have_readings_of_their_own():
    calls = ((Gemm(4096, 7168, 7168, "fp8_block"), 1), (_attention(4096, 4096), 1))
    assert 120 < module_reading("mla", calls, GPUS[0], 2e-3).watts < 700


def test_loops_are_those_of_the_table():
    product = Gemm(np.array([1, 4096]), 4096, 4096, "fp8")
    assert [call.family for call, _ in tabled_calls(product)] == ["gemm", "quantise"]
    loops = loops_of("gemm", tabled_calls(product), GPUS[0], np.array([1e-5, 1e-3]), copies=copies_of(product))
    assert loops.lasts == pytest.approx([MOST_LAUNCHES * COPIES * 1e-5, MOST_LAUNCHES * COPIES * 1e-3])
    assert loops.is_settled.tolist() == [False, True]
    assert loops.features(board_power(GPUS[0])).shape == (2, len(FEATURES))
    assert copies_of(Gemm(1, 64, 64, "fp8_block")) == 1


def test_the_archive_is_small_and_may_be_left_out(monkeypatch, tmp_path):
    assert ARCHIVE.stat().st_size < 350_000
    assert {entry.gpu for entry in power_archive().entries} == {"h200-sxm", "b200-sxm"}
    monkeypatch.setattr(metered, "ARCHIVE", tmp_path / "none.npz")
    metered.power_archive.cache_clear()
    metered.reader_of.cache_clear()
    assert meter_reading(Gemm(1, 64, 64), GPUS[0], 1e-5) is None
    metered.power_archive.cache_clear()
    metered.reader_of.cache_clear()
