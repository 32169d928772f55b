import numpy as np
import pytest

from infercast.ops import Gemm


def test_one_product_by_hand():
    op = Gemm(3, 5, 7)
    assert op.flops == 2 * 3 * 5 * 7
    assert op.weight_bytes == 2 * 5 * 7
    assert op.bytes_read == 2 * (3 * 7 + 5 * 7)
    assert op.bytes_written == 2 * 3 * 5


def test_a_batch_is_as_many_products_with_their_own_weights():
    one, many = Gemm(3, 5, 7), Gemm(3, 5, 7, batch=16)
    for quantity in ("flops", "weight_bytes", "bytes_read", "bytes_written"):
        assert getattr(many, quantity) == 16 * getattr(one, quantity)


def test_weight_only_quantisation_shrinks_the_weights_alone():
    op = Gemm(4, 256, 128, dtype="bf16", weight_dtype="int4")
    assert op.compute_dtype == "bf16"
    assert op.weight_bytes == 256 * 128 * (0.5 + 2 / 128)
    assert op.bytes_read == 2 * 4 * 128 + op.weight_bytes
    assert op.bytes_written == 2 * 4 * 256


def test_fp8_reads_bytes_and_writes_bf16():
    op = Gemm(4, 256, 128, dtype="fp8")
    assert op.bytes_read == 4 * 128 + 256 * 128
    assert op.bytes_written == 2 * 4 * 256


@pytest.mark.parametrize("quantity", ["flops", "weight_bytes", "bytes_read", "bytes_written"])
def test_arrays_of_shapes_equal_them_one_by_one(quantity):
    m, n, k = np.array([1, 16, 300]), np.array([64, 4096, 28672]), np.array([128, 4096, 14336])
    together = np.broadcast_to(getattr(Gemm(m, n, k, batch=3), quantity), 3)
    apart = [getattr(Gemm(*shape, batch=3), quantity) for shape in zip(m.tolist(), n.tolist(), k.tolist(), strict=True)]
    assert together.tolist() == apart
