"""Bytes of one row by hand; a row is a token."""

import numpy as np
import pytest

from infercast.ops.op import (
    embedding,
    gated_activation,
    kv_write,
    norm,
    plain_activation,
    quantise,
    rope,
    sampling,
    weighted_sum,
)

BY_HAND = [
    # (operator over three rows, family, bytes read, bytes written)
    (norm(3, 8, residual=False), "norm", 3 * 16 + 16, 3 * 16),
    (norm(3, 8, residual=True), "norm", 3 * 32 + 16, 3 * 32),  # also reads and writes the residual
    (norm(3, 8, residual=False, out_dtype="fp8"), "norm", 3 * 16 + 16, 3 * 8),
    (gated_activation(3, 8), "activation", 3 * 32, 3 * 16),
    (plain_activation(3, 8), "activation", 3 * 16, 3 * 16),
    (rope(3, heads=4, rotary_dim=8), "rope", 3 * (64 + 16), 3 * 64),  # four heads, and sines and cosines
    (kv_write(3, 8), "kv_write", 3 * (16 + 8), 3 * 16),  # and the slot, an int64
    (kv_write(3, 8, kv_dtype="fp8"), "kv_write", 3 * (16 + 8), 3 * 8),
    (embedding(3, 8), "embedding", 3 * (16 + 8), 3 * 16),  # and the token's id
    (quantise(3, 8), "quantise", 3 * 16, 3 * (8 + 4)),  # and the row's scale
    (sampling(3, 100), "sampling", 3 * 600, 3 * (400 + 8)),
    (weighted_sum(3, 8, terms=2), "activation", 3 * 32, 3 * 16),
]


@pytest.mark.parametrize(("op", "family", "read", "written"), BY_HAND)
def test_bytes(op, family, read, written):
    assert op.family == family
    assert (op.bytes_read, op.bytes_written) == (read, written)


@pytest.mark.parametrize("quantity", ["flops", "bytes_read", "bytes_written"])
def test_arrays_of_rows_equal_them_one_by_one(quantity):
    rows = np.array([1, 5, 4096])
    apart = [getattr(norm(count, 64, residual=True), quantity) for count in rows.tolist()]
    assert getattr(norm(rows, 64, residual=True), quantity).tolist() == apart
