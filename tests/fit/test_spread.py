"""Intervals of GPUs that nobody measured."""

import numpy as np

from infercast.lab.fit.train import BEFOREHAND, pooled_interval

NOISE = np.random.default_rng(0).normal(size=4000) * 0.1


def test_gpus_that_differ_widen_the_interval():
    alike = pooled_interval("gemm", [NOISE, NOISE, NOISE])
    apart = pooled_interval("gemm", [NOISE - 0.3, NOISE, NOISE + 0.3])
    assert apart[0] < alike[0] < -0.1
    assert apart[1] > alike[1] > 0.1


def test_few_gpus_widen_the_interval():
    few, many = (pooled_interval("gemm", [NOISE] * count) for count in (2, 12))
    assert few[1] > many[1]


def test_kernels_that_are_known_to_differ_have_the_wider_interval():
    assert BEFOREHAND["moe"] > BEFOREHAND["attention_decode"]
    assert pooled_interval("moe", [NOISE] * 3)[1] > pooled_interval("attention_decode", [NOISE] * 3)[1]


def test_one_gpu_says_nothing_of_how_chips_differ():
    assert pooled_interval("gemm", [NOISE])[1] > pooled_interval("gemm", [NOISE, NOISE])[1]
