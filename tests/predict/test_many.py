"""Very many shapes at once: each costs what it costs among a few."""

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import Attention, Collective, MoE
from infercast.ops.op import norm
from infercast.predict.families import family_of
from infercast.predict.families.attention import PREFILL
from infercast.predict.kernels import MANY, PART, are_many, parts_of
from infercast.predict.learned import make_predictor

GPU = load_gpu("h200-sxm")
RANDOM = np.random.default_rng(2)
HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128, "value_dim": 128}


@pytest.fixture(scope="module")
def predictor():
    return make_predictor("learned")


@pytest.mark.parametrize(
    "make",
    [
        lambda tokens: MoE(tokens, 2048, 768, 128, 8),
        lambda rows: norm(rows, 4096, residual=True),
        lambda message: Collective("all_reduce", 1024 * message, 8),
        lambda keys: Attention(np.ones_like(keys)[:, None], keys[:, None], sequences=keys[:, None] % 7 + 1, **HEADS),
    ],
)
def test_shapes_cost_among_many_what_they_cost_among_few(predictor, make):
    sizes = RANDOM.integers(1, 3 * PART, 2 * PART)
    some = np.concatenate([[0, 1, len(sizes) - 1], RANDOM.integers(0, len(sizes), 50)])
    many, few = predictor.estimate(make(sizes), GPU), predictor.estimate(make(sizes[some]), GPU)
    for name in ("seconds", "low", "high"):
        assert np.allclose(getattr(many, name)[some], getattr(few, name), rtol=1e-12, atol=0.0)
    assert (many.bound[some] == few.bound).all()
    assert np.array_equal(predictor.seconds(make(sizes), GPU), many.seconds)


def test_uneven_batches_are_taken_in_parts(predictor):
    keys, counts = RANDOM.integers(1, 9000, (PART + 9, 3)), RANDOM.integers(0, 9, (PART + 9, 3))
    counts[:, 0] = 1

    def make(rows):
        return Attention(np.ones_like(keys[rows]), keys[rows], sequences=counts[rows], **HEADS)

    last = slice(PART - 20, None)
    many, few = predictor.seconds(make(slice(None)), GPU), predictor.seconds(make(last), GPU)
    assert np.allclose(many[last], few, rtol=1e-12, atol=0.0)


def test_equal_shapes_are_one():
    queries, keys = np.ones((MANY, 1), dtype=int), np.tile([[7], [5]], (MANY // 2, 1))
    (op,), which = parts_of(Attention(queries, keys, sequences=2, **HEADS), PREFILL.step_sizes)
    assert op.keys.tolist() == [[5], [7]]
    assert (op.queries == 1).all()
    assert (op.sequences == 2).all()
    assert np.array_equal(op.keys[which], keys)


def test_a_single_shape_many_times(predictor):
    estimate = predictor.estimate(MoE(np.full(MANY, 100), 2048, 768, 128, 8), GPU)
    assert estimate.seconds.shape == estimate.bound.shape == (MANY,)


def test_few_shapes_and_one_large_batch_stay_as_they_are():
    lengths = np.ones(2 * MANY, dtype=int)
    for op in (MoE(np.arange(1, MANY), 2048, 768, 128, 8), Attention(lengths, lengths, **HEADS)):
        assert not are_many(family_of(op).sizes(op))
