"""What the board draws while one kernel runs again and again, and over a step."""

import pytest

from infercast.errors import InputError
from infercast.forecast.deploy import deploy
from infercast.forecast.estimate import build_op, estimate_kernel, estimate_power, kernel_power, power_of
from infercast.forecast.kernels import decode_shape, estimate_step, prefill_shape
from infercast.hardware import load_gpu
from infercast.predict.board_power import board_power, meter_reading
from infercast.predict.learned import make_predictor
from infercast.report.kernels import power_dict, power_facts

GPU = load_gpu("h200-sxm")


@pytest.mark.parametrize(("m", "limited"), [(1, False), (8192, True)])
def test_a_kernel_has_its_power(m: int, limited: bool) -> None:
    values = {"m": m, "n": 8192, "k": 8192, "dtype": "bf16"}
    found = estimate_kernel(make_predictor("learned"), GPU, "gemm", values)
    power = power_of(GPU, "gemm", values, found)
    assert estimate_power("gemm", "h200-sxm", **values) == power
    assert power.is_limited == limited
    assert 120 < power.low <= power.watts <= power.high <= GPU.tdp
    assert power.joules == pytest.approx(power.watts * float(found.seconds))
    data = power_dict(power)
    assert data["joules_per_flop"] == pytest.approx(power.joules / (2.0 * m * 8192 * 8192))
    assert ("limit" in power_facts(power)[0][1]) == limited


def test_what_a_meter_shows_is_told_apart_from_what_a_kernel_draws() -> None:
    sizes = {"m": 64, "n": 4096, "k": 4096}
    power = estimate_power("gemm", GPU, **sizes)
    assert power.meter_low is not None
    assert power.meter_watts is not None
    assert power.meter_low <= power.meter_watts < power.low
    assert power_dict(power)["meter_watts"] == power.meter_watts
    assert "3,000 launches" in power_facts(power)[-1][1]
    other = estimate_power("gemm", "h100-sxm", **sizes)
    assert other.meter_watts is None
    assert len(power_facts(other)) == 2


def test_settled_loops_of_scans_say_what_the_kernel_draws() -> None:
    op = build_op("gdn_scan", {"batch": 2, "q_len": 16384, "heads": 32, "key_heads": 16})
    board, seconds = board_power(GPU), 1.5e-3
    reading = meter_reading(op, GPU, seconds)
    alone, metered = kernel_power(board, op, seconds), kernel_power(board, op, seconds, reading)
    assert reading is not None
    assert reading.own == 1.0
    assert metered.watts == pytest.approx(min(alone.watts * reading.factor, board.held_watts))
    assert metered.low <= metered.watts <= metered.high <= GPU.tdp


def test_power_is_of_one_kernel() -> None:
    with pytest.raises(InputError, match="power is of one kernel; sizes name 2"):
        estimate_power("gemm", "h200-sxm", m=[1, 2], n=4096, k=4096)
    assert estimate_power("decode", GPU, batch=8, kv_len=512, heads=32, kv_heads=8, head_dim=128).watts > 120


def test_a_step_adds_its_kernels_up() -> None:
    deployment = deploy("llama-3.1-8b", "h200-sxm")
    decode = estimate_step(deployment, decode_shape(16, 512))
    work = sum(kernel.count * kernel.dynamic_joules for kernel in decode.kernels)
    assert decode.joules == pytest.approx(work + decode.board.idle_watts * decode.seconds)
    assert decode.board.idle_watts < decode.watts < GPU.tdp
    prefill = estimate_step(deployment, prefill_shape(8192))
    assert prefill.watts == pytest.approx(prefill.board.held_watts, rel=0.05)


def test_a_meter_reads_sixteen_bits_alike_whatever_their_format():
    sizes = {"m": 4096, "n": 4096, "k": 4096}
    wide, other = (estimate_power("gemm", "h200-sxm", dtype=dtype, **sizes) for dtype in ("bf16", "fp16"))
    assert other.meter_watts == pytest.approx(wide.meter_watts, rel=0.02)
    assert other.watts == pytest.approx(wide.watts, rel=0.02)
