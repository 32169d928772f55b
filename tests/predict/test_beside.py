"""Kernels on a stream of their own."""

import numpy as np
import pytest

from infercast import EngineSettings, deploy
from infercast.forecast.kernels import decode_shape, estimate_step
from infercast.models.library import bundled_config
from infercast.models.lower import merge
from infercast.models.read import read_model
from infercast.ops import Call, Gemm
from infercast.predict.estimate import HIDDEN_SECONDS, exposed_seconds

OP = Gemm(16, 64, 4096)


def test_short_ones_cost_nothing_and_long_ones_what_is_left_of_them():
    plain, beside = Call("a", OP, 3), Call("a", OP, 3, beside=True)
    each = np.array([2e-6, HIDDEN_SECONDS, 1e-4])
    assert exposed_seconds(plain, each) == pytest.approx(3 * each)
    assert exposed_seconds(beside, each) == pytest.approx([0.0, 0.0, 3 * (1e-4 - HIDDEN_SECONDS)])


def test_a_kernel_beside_others_is_not_the_same_as_one_in_turn():
    calls = [Call("a", OP, 1), Call("a", OP, 2, beside=True), Call("a", OP, 4), Call("a", OP, 8, beside=True)]
    assert [(call.count, call.beside) for call in merge(calls)] == [(5, False), (10, True)]


def test_a_step_and_its_kernels_agree():
    model = read_model({**bundled_config("deepseek-v4-flash"), "num_hidden_layers": 6}, name="cut")
    deployment = deploy(model, "h200-sxm", EngineSettings(max_model_len=8192))
    shape = decode_shape(4, 2000)
    estimate = deployment.timer()(shape)
    told = estimate_step(deployment, shape)
    assert float(told.gpu.seconds) + told.gap_seconds == pytest.approx(estimate.gpu_seconds[0], rel=0.01)
    hidden = [kernel for kernel in told.kernels if kernel.name == "index_compress_save"]
    assert [kernel.seconds for kernel in hidden] == [pytest.approx(0.0, abs=1e-12)]
    assert told.gpu.low < told.gpu.seconds < told.gpu.high
