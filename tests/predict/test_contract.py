"""What every predictor must hold to, whatever it is made of: new ones are added to `PREDICTORS`."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercast.hardware import load_gpu
from infercast.ops import Attention, Collective, Gemm, MoE
from infercast.ops.op import gated_activation, norm, sampling, tensor_rate_of
from infercast.predict.estimate import SOURCES
from infercast.predict.learned import Learned, make_predictor
from infercast.predict.roofline import Roofline

PREDICTORS = {"roofline": Roofline(), "learned": make_predictor("learned")}
# Real kernels are not monotone, and neither is what was learned from them.
MONOTONE = ("roofline",)
GPUS = ("h200-sxm", "a100-sxm", "l4", "b200-sxm", "t4", "mi300x")


def attention(queries, keys, **changes):
    sizes = {"heads": 32, "kv_heads": 8, "head_dim": 128, "value_dim": 128}
    return Attention(np.array(queries), np.array(keys), **{**sizes, **changes})


OPS = {
    "gemm thin": Gemm(1, 4096, 4096),
    "gemm large": Gemm(8192, 28672, 4096),
    "gemm fp8": Gemm(64, 4096, 14336, dtype="fp8"),
    "gemm int4 weights": Gemm(64, 4096, 14336, weight_dtype="int4"),
    "gemm batched": Gemm(17, 512, 128, batch=16),
    "head": Gemm(5, 128256, 4096, family="lm_head"),
    "prefill": attention([2000], [2000]),
    "chunked prefill": attention([512], [9000]),
    "decode": attention([1] * 32, [1400] * 32),
    "mixed": attention([1, 500], [1400, 500]),
    "windowed": attention([1] * 8, [5000] * 8, window=128),
    "latent": attention([1] * 4, [900] * 4, kv_heads=1, head_dim=576, value_dim=512, latent_kv=True),
    "experts": MoE(64, hidden=2048, inter=768, experts=128, topk=8),
    "experts of one token": MoE(1, hidden=2048, inter=768, experts=128, topk=8),
    "norm": norm(1, 4096, residual=True),
    "activation": gated_activation(8192, 14336),
    "sampling": sampling(256, 128256),
    "all-reduce": Collective("all_reduce", 64 * 2**20, 4),
}

# The same families over arrays of shapes, with the places of the single shapes.
SIZES = np.array([1, 7, 128, 129, 1000, 8192])
ARRAYS = {
    "gemm": Gemm(SIZES, 6144, 4096),
    "gemm batched": Gemm(SIZES, 512, 128, batch=16),
    "gemm fp8": Gemm(SIZES, 6144, 4096, dtype="fp8"),
    "experts": MoE(SIZES, hidden=2048, inter=768, experts=128, topk=8),
    "norm": norm(SIZES, 4096, residual=True),
    "all-reduce": Collective("all_reduce", SIZES * 8192, 8),
    "decode": attention([[1, 1, 1]], np.array([[5, 900, 31]]) + SIZES[:, None]),
    "prefill": attention(SIZES[:, None], SIZES[:, None] + 50),
    "windowed": attention(SIZES[:, None], SIZES[:, None] + 50, window=64),
    # Many heads on one stored vector: decoding is tensor-bound too, so rounds of prompts must not leak into it.
    "decode, mixed and prefill": attention(
        [[1, 1], [1, 900], [700, 900]], [[7000, 8000], [50, 900], [700, 900]], heads=128, kv_heads=1, latent_kv=True
    ),
}


def one_of(op, position):
    """The single operator at one place of an array of them."""
    if isinstance(op, Attention):
        shape = np.broadcast_shapes(op.queries.shape, op.keys.shape)
        rows = (np.broadcast_to(lengths, shape)[position] for lengths in (op.queries, op.keys))
        return replace(op, **dict(zip(("queries", "keys"), rows, strict=True)))
    sizes = {field.name: getattr(op, field.name) for field in fields(op)}
    return replace(op, **{name: int(v[position]) for name, v in sizes.items() if isinstance(v, np.ndarray)})


@pytest.fixture(params=PREDICTORS)
def predictor(request):
    return PREDICTORS[request.param]


@pytest.fixture(params=GPUS)
def gpu(request):
    return load_gpu(request.param)


@pytest.fixture(params=OPS)
def op(request):
    return OPS[request.param]


def test_prices_are_positive_and_inside_their_interval(every, predictor, op):
    def check(name):
        estimate = predictor.estimate(op, load_gpu(name))
        assert 0 < estimate.low <= estimate.seconds <= estimate.high < math.inf
        assert estimate.source in SOURCES
        assert isinstance(estimate.seconds, float)
        assert isinstance(estimate.bound, str)

    every(GPUS, check)


def test_nothing_is_faster_than_the_hardware(every, predictor, op):
    def check(name):
        # Exponentials and plain arithmetic run elsewhere, so only matrix products count against the tensor peak.
        gpu = load_gpu(name)
        seconds = predictor.estimate(op, gpu).seconds
        if isinstance(op, Collective):
            assert seconds > op.link_bytes / (gpu.nvlink_bandwidth or gpu.pcie_bandwidth)
            return
        peak = gpu.dense_flops(tensor_rate_of(op.compute_dtype)) if op.compute_dtype != "fp32" else gpu.fma_flops
        assert seconds >= op.flops / peak
        # Between the kernels inside a fused operator bytes may stay in the cache; weights come from memory.
        moved = op.weight_bytes if isinstance(op, MoE) else op.bytes_read + op.bytes_written
        assert seconds >= moved / gpu.dram_bandwidth

    every(GPUS, check)


def test_the_same_question_has_the_same_answer_and_the_short_way_the_same_seconds(every, predictor, op):
    def check(name):
        gpu = load_gpu(name)
        estimate = predictor.estimate(op, gpu)
        assert predictor.estimate(op, gpu) == estimate
        assert predictor.seconds(op, gpu) == estimate.seconds

    every(GPUS, check)


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_equal_their_shapes_one_by_one(predictor, gpu, name):
    array = ARRAYS[name]
    if (
        isinstance(predictor, Learned)
        and isinstance(array, Attention)
        and 1 in array.queries
        and array.queries.max() > 1
    ):
        pytest.skip("an array of batches is timed as of one form; a single batch is split into its two")
    together = predictor.estimate(array, gpu)
    assert np.array_equal(together.seconds, predictor.seconds(array, gpu))
    for position in range(together.seconds.size):
        alone = predictor.estimate(one_of(array, position), gpu)
        assert together.seconds[position] == pytest.approx(alone.seconds, rel=1e-6)
        assert together.low[position] == pytest.approx(alone.low, rel=1e-6)
        assert together.high[position] == pytest.approx(alone.high, rel=1e-6)
        assert together.bound[position] == alone.bound


@pytest.mark.parametrize("name", ARRAYS)
def test_the_roofline_of_arrays_is_that_of_their_shapes_to_the_bit(gpu, name):
    together = PREDICTORS["roofline"].seconds(ARRAYS[name], gpu)
    alone = [PREDICTORS["roofline"].seconds(one_of(ARRAYS[name], i), gpu) for i in range(together.size)]
    assert np.array_equal(together, np.ravel(alone))


@pytest.mark.parametrize("name", MONOTONE)
def test_more_rows_never_make_a_weight_bound_product_faster(name, gpu):
    predictor = PREDICTORS[name]
    assert np.all(np.diff(predictor.seconds(Gemm(np.arange(1, 65), 28672, 4096), gpu)) >= 0)


@pytest.mark.parametrize("name", MONOTONE)
def test_longer_contexts_never_make_decoding_faster(name, gpu):
    predictor = PREDICTORS[name]
    keys = np.arange(1, 20_000, 37)[:, None]
    assert np.all(np.diff(predictor.seconds(attention([[1]], keys), gpu)) >= 0)


@given(m=st.integers(1, 20_000), more=st.integers(1, 500), n=st.integers(1, 300), k=st.integers(1, 64))
def test_more_rows_never_make_a_product_faster(m, more, n, k):
    gpu = load_gpu("h200-sxm")
    for predictor in (PREDICTORS[name] for name in MONOTONE):
        fewer, larger = (predictor.seconds(Gemm(rows, 64 * n, 64 * k), gpu) for rows in (m, m + more))
        assert fewer <= larger * (1 + 1e-12)  # the last bit may round either way


@pytest.mark.parametrize(
    ("op", "bound"),
    [
        (Gemm(16384, 16384, 16384), "tensor"),
        (Gemm(1, 28672, 4096), "dram"),
        (attention([1] * 256, [8000] * 256), "dram"),
        (attention([16384], [16384]), "tensor"),
        (norm(1, 1024, residual=False), "launch"),
        (gated_activation(65536, 14336), "dram"),
        (MoE(32, hidden=4096, inter=14336, experts=8, topk=2), "dram"),
        (Collective("all_reduce", 2**30, 4), "link"),
    ],
)
def test_clear_cases_have_a_clear_bound(predictor, op, bound):
    for name in ("h200-sxm", "a100-sxm", "l4"):
        assert predictor.estimate(op, load_gpu(name)).bound == bound


@pytest.mark.parametrize("name", MONOTONE)
def test_a_better_gpu_is_not_slower(name, op):
    # The H200 is an H100 with more and faster memory, the same chip otherwise. Measured, it throttles a little sooner.
    predictor = PREDICTORS[name]
    assert predictor.estimate(op, load_gpu("h200-sxm")).seconds <= predictor.estimate(op, load_gpu("h100-sxm")).seconds
