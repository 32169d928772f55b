"""One kernel in plain floats costs what it costs in an array."""

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import Attention, Collective, MoE
from infercast.ops.op import embedding, gated_activation, kv_write, norm, quantise, rope, sampling
from infercast.predict.learned import make_predictor

GPUS = ("h200-sxm", "h100-sxm", "b200-sxm", "l40s", "a100-sxm-80gb", "rtx-4090")
RANDOM = np.random.default_rng(5)


@pytest.fixture(scope="module")
def predictor():
    return make_predictor("learned")


def agree(predictor, gpu, one, two):
    single, both = predictor.estimate(one, gpu), predictor.estimate(two, gpu)
    assert isinstance(single.seconds, float)
    for name in ("seconds", "low", "high"):
        assert np.allclose(getattr(both, name), getattr(single, name), rtol=1e-12, atol=0.0)
    assert (single.source, single.bound) == (both.source, both.bound[0])
    assert np.allclose(predictor.seconds(one, gpu), single.seconds, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("window", [0, 1024])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (28, 4, 64), (16, 16, 256), (8, 1, 80)])
def test_attention(predictor, gpu, window, heads, kv_heads, head_dim):
    for kv_dtype in ("bf16", "fp8"):
        for new in (1, int(np.exp2(RANDOM.uniform(1, 13)))):
            keys = new + int(RANDOM.integers(0, 2) * np.exp2(RANDOM.uniform(0, 14)))
            count = int(np.exp2(RANDOM.uniform(0, 8)))
            ops = (
                Attention(
                    np.full((rows, 1), new), np.full((rows, 1), keys), heads, kv_heads, head_dim, head_dim,
                    sequences=np.full((rows, 1), count), window=window, kv_dtype=kv_dtype,
                )
                for rows in (1, 2)
            )  # fmt: skip
            agree(predictor, load_gpu(gpu), *ops)


@pytest.mark.parametrize("gpu", GPUS)
def test_attention_over_a_latent(predictor, gpu):
    ops = (
        Attention(
            np.ones((rows, 1), dtype=int), np.full((rows, 1), 3000), 128, 1, 576, 512,
            sequences=np.full((rows, 1), 20), latent_kv=True,
        )
        for rows in (1, 2)
    )  # fmt: skip
    agree(predictor, load_gpu(gpu), *ops)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("tokens", [1, 7, 300, 8192])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_experts(predictor, gpu, tokens, dtype):
    for local in (None, 16):
        sizes = {"hidden": 2048, "inter": 1544, "experts": 128, "topk": 8, "local_experts": local, "dtype": dtype}
        for one in (tokens, np.array([tokens])):
            agree(predictor, load_gpu(gpu), MoE(one, **sizes), MoE(np.full(2, tokens), **sizes))


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("rows", [1, 33, 5000])
def test_memory_bound_kernels(predictor, gpu, rows):
    for make in (
        lambda rows: norm(rows, 4096, residual=True),
        lambda rows: norm(rows, 4096, residual=False, out_dtype="fp8"),
        lambda rows: gated_activation(rows, 14336),
        lambda rows: rope(rows, 40, 128),
        lambda rows: kv_write(rows, 2048),
        lambda rows: quantise(rows, 4096),
        lambda rows: embedding(rows, 4096),
        lambda rows: sampling(rows, 128_000),
    ):
        for one in (rows, np.array([rows])):
            agree(predictor, load_gpu(gpu), make(one), make(np.full(2, rows)))


@pytest.mark.parametrize("gpu", [*GPUS, "h100-pcie", "b300-sxm"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
@pytest.mark.parametrize("gpus", [2, 3, 8, 32])
def test_collectives(predictor, gpu, kind, gpus):
    for library in ("vllm", "sglang", "nccl"):
        # From nothing to what only a library moves, past every limit of an engine's own kernels.
        for message in (0, 1, *(int(np.exp2(RANDOM.uniform(low, low + 7))) for low in (8, 15, 22))):
            for one in (message, np.array([message])):
                ops = (Collective(kind, size, gpus, library=library) for size in (one, np.full(2, message)))
                agree(predictor, load_gpu(gpu), *ops)
