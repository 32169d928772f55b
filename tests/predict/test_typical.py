"""GPUs that nobody measured: an estimate at typical efficiencies, never below what the hardware allows."""

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import Attention, Collective, Gemm, MoE
from infercast.ops.op import embedding, gated_activation, kv_write, norm, quantise, rope, routing, sampling
from infercast.predict.estimate import basis_of, kind_of
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import OLDER_LAUNCHES, Efficiency, Roofline, Typical, limit_seconds, with_older_kernels

AMD, KNOWN = load_gpu("r9700"), load_gpu("mi300x")
ONE = np.array([1])
OPERATORS = {
    "product": Gemm(64, 4096, 4096),
    "large product": Gemm(8192, 8192, 8192, "fp8"),
    "prefill": Attention(np.array([2048]), np.array([2048]), 32, 8, 128, 128),
    "decode": Attention(ONE, np.array([4096]), 32, 8, 128, 128, sequences=32),
    "latent": Attention(ONE, np.array([4096]), 16, 1, 576, 512, sequences=32, latent_kv=True),
    "experts": MoE(64, 2048, 768, 128, 8),
    "narrow experts": MoE(64, 2880, 2880, 128, 4, dtype="bf16", weight_dtype="mxfp4"),
    "all-reduce": Collective("all_reduce", 1 << 24, 8),
    "norm": norm(4096, 8192, residual=True),
    "activation": gated_activation(4096, 14336),
    "rope": rope(4096, 40, 128),
    "quantise": quantise(4096, 8192),
    "kv write": kv_write(4096, 2048),
    "sampling": sampling(64, 128256),
    "embedding": embedding(4096, 8192),
    "routing": routing(4096, 128, 8),
}


@pytest.mark.parametrize(("gpu", "source"), [(AMD, "typical"), (KNOWN, "published")])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_estimate_lies_between_the_hardware_and_a_wide_upper_end(name, gpu, source):
    op = OPERATORS[name]
    estimate = Typical().estimate(op, gpu)
    limit = float(np.ravel(limit_seconds(op, gpu))[0])
    assert limit <= estimate.low * 1.001 <= estimate.seconds * 1.001
    assert estimate.seconds < estimate.high
    assert estimate.source == (source if name != "sampling" else "typical")
    assert float(np.ravel(Typical().seconds(op, gpu))[0]) == pytest.approx(float(np.ravel(estimate.seconds)[0]))
    assert Typical().explain(op, gpu)["efficiency factor"] == Typical().reached(op, gpu).share


def test_other_vendors_are_estimated_and_not_taken_at_their_best():
    learned, roofline = make_predictor(), Roofline()
    for op in OPERATORS.values():
        assert learned.estimate(op, AMD).source == "typical"
        if op.family in ("gemm", "attention", "moe", "collective") and not isinstance(op, Collective):
            assert learned.estimate(op, AMD).seconds > roofline.estimate(op, AMD).seconds
    assert "no kernel of AMD's GPUs" in learned.describe(AMD)


def test_products_of_a_vendor_have_numbers_of_their_own():
    assert Typical().reached(Gemm(1, 1, 1), AMD).share < Typical().reached(Gemm(1, 1, 1), load_gpu("h200-sxm")).share
    assert Typical().reached(Gemm(1, 1, 1, "fp8_block"), AMD).share < Typical().reached(Gemm(1, 1, 1, "fp8"), AMD).share
    assert Typical().reached(Gemm(1, 1, 1), load_gpu("h200-sxm")) == (2.6, 0.69, -0.38, 0.59, 0.0)


def test_memory_told_apart_adds_up_with_arithmetic():
    reached = Efficiency(launches=0.0, share=0.5, memory=0.8)
    assert reached.work_seconds({"tensor": 1.0, "dram": 2.0}) == pytest.approx(1.0 / 0.5 + 2.0 / 0.8)
    assert reached.work_seconds({"link": 2.0}) == pytest.approx(2.0 / 0.8)
    assert Efficiency(share=0.5).work_seconds({"tensor": 1.0, "dram": 2.0}) == pytest.approx(4.0)


def test_older_kernels_take_longer_to_launch_and_only_that():
    older = with_older_kernels(KNOWN)
    short, long = Gemm(1, 256, 256, "fp8_block"), Gemm(8192, 8192, 8192, "fp8_block")
    ratios = [Typical().estimate(op, older).seconds / Typical().estimate(op, KNOWN).seconds for op in (short, long)]
    assert ratios[0] == pytest.approx(OLDER_LAUNCHES, rel=0.05)
    assert ratios[1] < 1.02
    assert Typical().seconds(Gemm(1, 256, 256), older) == Typical().seconds(Gemm(1, 256, 256), KNOWN)
    assert with_older_kernels(load_gpu("h200-sxm")) is load_gpu("h200-sxm")
    assert "cdna3" in Typical().describe(older)


def test_typical_prices_are_near_those_of_measured_gpus():
    """What was fitted on five GPUs holds on each within its interval, for kernels of usual size."""
    learned = make_predictor()
    for name in ("a100-sxm", "h200-sxm", "b200-sxm"):
        gpu = load_gpu(name)
        for key in ("product", "prefill", "decode", "experts"):
            typical, known = Typical().estimate(OPERATORS[key], gpu), learned.estimate(OPERATORS[key], gpu)
            assert float(typical.low) <= float(known.seconds) <= float(typical.high), (name, key)


def test_kinds_of_numbers():
    assert kind_of("roofline") == "bound"
    assert {kind_of(source) for source in ("measured", "sibling", "typical")} == {"estimate"}
    assert Roofline.is_bound
    assert not make_predictor().is_bound


def test_the_basis_of_a_sum_is_the_weakest_source_that_counts():
    assert basis_of([("measured", 1.0), ("physics", 0.05)]) == "measured"
    assert basis_of([("measured", 1.0), ("physics", 0.3)]) == "physics"
    assert basis_of([("measured", 1.0), ("physics", 0.06), ("typical", 0.06)]) == "physics"
    assert basis_of([]) == "measured"
