"""Physics cores: finite and positive everywhere, as many features as they name, and cold is never faster than warm."""

import numpy as np
import pytest

from infercast.hardware import gpu_names, load_gpu
from infercast.ops import Attention, Collective, Gemm, MoE
from infercast.ops.op import gated_activation, kv_write, norm, quantise, rope, sampling
from infercast.predict.families import FAMILIES
from infercast.predict.fitted import FEATURES

SIZES = np.array([1, 2, 7, 16, 100, 513, 4096, 20_000])
HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128, "value_dim": 128}
LATENT = {"heads": 16, "kv_heads": 1, "head_dim": 576, "value_dim": 512, "latent_kv": True}
ONES = np.ones((8, 1), dtype=np.int64)
CASES = {
    "gemm": ("gemm", Gemm(SIZES, 6144, 4096)),
    "thin gemm": ("gemm", Gemm(SIZES, 64, 512)),
    "fp8 gemm": ("gemm", Gemm(SIZES, 6144, 4096, "fp8")),
    "int4 weights": ("gemm", Gemm(SIZES, 6144, 4096, "bf16", "int4")),
    "batched gemm": ("gemm", Gemm(SIZES, 512, 128, batch=16)),
    "prefill": ("attention_prefill", Attention(SIZES[:, None], SIZES[:, None], **HEADS)),
    "prefix": ("attention_prefill", Attention(SIZES[:, None], SIZES[:, None] + 3000, **HEADS, window=1024)),
    "decode": ("attention_decode", Attention(ONES, SIZES[:, None], **HEADS, sequences=64)),
    "latent": ("attention_decode", Attention(ONES, SIZES[:, None], **LATENT)),
    "experts": ("moe", MoE(SIZES, 2048, 768, 128, 8)),
    "skewed experts": ("moe", MoE(SIZES, 2048, 768, 128, 8, routing="power_law_1.2")),
    "norm": ("memory_bound", norm(SIZES, 4096, residual=True)),
    "activation": ("memory_bound", gated_activation(SIZES, 14336)),
    "rope": ("memory_bound", rope(SIZES, 40, 128)),
    "kv write": ("memory_bound", kv_write(SIZES, 2048)),
    "quantise": ("memory_bound", quantise(SIZES, 4096)),
    "sampling": ("memory_bound", sampling(SIZES, 128256)),
    "all-reduce": ("collective", Collective("all_reduce", SIZES * 8192, 8)),
}
NVIDIA = [name for name in gpu_names() if load_gpu(name).vendor == "NVIDIA"]


@pytest.mark.parametrize("case", CASES)
def test_finite_positive_and_complete(every, case):
    family, op = CASES[case]

    def check(gpu):
        for engine in (False, True):
            physics = FAMILIES[family].physics(op, load_gpu(gpu), engine=engine)
            assert physics.seconds.shape == (8,)
            assert np.all(np.isfinite(physics.seconds) & (physics.seconds > 1e-7))
            assert physics.features.shape == (8, len(FEATURES[family]))
            assert np.all(np.isfinite(physics.features))
            assert all(np.all(np.isfinite(term)) for term in physics.terms.values())

    every(NVIDIA, check)


@pytest.mark.parametrize("case", ["gemm", "decode", "experts"])
def test_cold_is_not_faster_than_warm(case):
    family, op = CASES[case]
    gpu, compute = load_gpu("h200-sxm"), FAMILIES[family].physics
    assert np.all(compute(op, gpu, engine=True).seconds >= 0.999 * compute(op, gpu).seconds)


@pytest.mark.parametrize("window", [0, 512])
def test_equal_sequences_are_a_count(window):
    gpu = load_gpu("h200-sxm")
    spelled = Attention(np.ones(12, dtype=int), np.full(12, 700), **HEADS, window=window)
    counted = Attention(np.array([[1]]), np.array([[700]]), **HEADS, sequences=np.array([[12]]), window=window)
    for family in ("attention_decode", "attention_prefill"):
        one, other = (FAMILIES[family].physics(op, gpu) for op in (spelled, counted))
        assert one.seconds == pytest.approx(other.seconds)
        assert one.features == pytest.approx(other.features)


def test_one_long_sequence_in_a_batch_costs_more_than_its_share():
    gpu = load_gpu("h200-sxm")
    even = Attention(np.ones(8, dtype=int), np.full(8, 4096), **HEADS)
    uneven = Attention(np.ones(8, dtype=int), np.array([1000] * 7 + [25768]), **HEADS)
    seconds = [FAMILIES["attention_decode"].physics(op, gpu, engine=True).seconds[0] for op in (even, uneven)]
    assert seconds[1] >= 0.95 * seconds[0]
