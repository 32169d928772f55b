"""Tables time a quantised product with the quantising of its input, each engine's by its own kernel."""

import numpy as np

from infercast.hardware import load_gpu
from infercast.ops import Gemm
from infercast.predict.families.gemm import GEMM, quantiser_of

M, N, K = np.array([16384.0, 16384.0, 1.0]), np.array([4096.0] * 3), np.array([2048.0, 2049.0, 4096.0])


def quantising(quantiser: str, gpu: str = "h200-sxm", *, engine: bool = False) -> np.ndarray:
    op = Gemm(M, N, K, "fp8", quantiser=quantiser)
    return np.asarray(GEMM.physics(op, load_gpu(gpu), engine=engine).terms["quantise"])


def test_vllms_takes_whole_chunks_of_a_row() -> None:
    first, second, _ = quantising("vllm")
    assert second - first > 0.4e-6 * 16384 / 132
    first, second, _ = quantising("sglang")
    assert second - first < 0.01 * first


def test_a_chip_with_fewer_threads_takes_longer_for_a_row() -> None:
    at_once = [quantising("vllm", gpu)[0] * load_gpu(gpu).sms for gpu in ("l40s", "h200-sxm")]
    assert at_once[0] > 1.3 * at_once[1]


def test_an_engine_quantises_in_a_kernel_of_its_own() -> None:
    assert not quantising("vllm", engine=True).any()


def test_a_version_has_the_kernels_that_it_had() -> None:
    assert (quantiser_of("sglang", "0.5.10"), quantiser_of("sglang", "0.5.14")) == ("sglang 0.5.10", "sglang")
    ops = [Gemm(M, N, K, "fp8_block", quantiser=quantiser) for quantiser in ("sglang 0.5.10", "sglang")]
    old, new = (GEMM.physics(op, load_gpu("b200-sxm")).seconds[2] for op in ops)
    assert old - new > 5e-6


def test_shortest_products_of_blackwell_are_as_long_as_in_tables() -> None:
    """4.9 us in fp8, 6.5 us in nvfp4 (vLLM 0.24 on a B200): a quantising kernel is in the row."""
    one = np.array([1.0]), np.array([256.0]), np.array([256.0])
    for dtype, shortest in (("fp8", 4.9e-6), ("nvfp4", 6.5e-6)):
        seconds = GEMM.physics(Gemm(*one, dtype, quantiser="vllm"), load_gpu("b200-sxm")).seconds[0]
        assert 0.8 * shortest < seconds < 1.25 * shortest


def test_launches_are_shorter_on_blackwell() -> None:
    op = Gemm(M, N, K)
    launch = [GEMM.physics(op, load_gpu(gpu)).terms["launch"][2] for gpu in ("b200-sxm", "h200-sxm")]
    assert launch[0] < 0.85 * launch[1]
