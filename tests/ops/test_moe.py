import numpy as np
import pytest

from infercast.ops import MoE


def experts(tokens, **changes):
    return MoE(tokens, **{"hidden": 32, "inter": 16, "experts": 64, "topk": 6, **changes})


def test_one_token_hits_its_topk():
    assert experts(1).experts_hit == pytest.approx(6)


def test_many_tokens_hit_all():
    assert experts(10_000).experts_hit == pytest.approx(64)


def test_two_tokens_overlap_now_and_then():
    # Of 6 more experts, 6 / 64 are expected to be among the first six.
    assert experts(2).experts_hit == pytest.approx(12 - 6 * 6 / 64)


def test_a_quarter_of_the_experts_gets_a_quarter_of_the_work():
    whole, quarter = experts(50), experts(50, local_experts=16)
    assert quarter.experts_hit == pytest.approx(whole.experts_hit / 4)
    assert quarter.routed_rows == whole.routed_rows / 4
    assert quarter.flops == whole.flops / 4


def test_all_experts_for_every_token():
    assert experts(1, topk=64).experts_hit == 64


def test_one_token_by_hand():
    op = experts(1)
    assert op.flops == 2 * 6 * 3 * 32 * 16  # six experts of three matrices
    assert op.weight_bytes == pytest.approx(6 * 3 * 32 * 16 * 2)
    # Inside: gate and up out and in (4 x 16), their product out and in (2 x 16), the result out (32), six times.
    assert op.intermediate_bytes == 6 * 2 * (4 * 16 + 2 * 16 + 32)
    assert op.bytes_read == pytest.approx(2 * 32 + op.weight_bytes + op.intermediate_bytes / 2)
    assert op.bytes_written == 2 * 32 + op.intermediate_bytes / 2


def test_without_a_gate_an_expert_has_two_matrices():
    assert experts(5, gated=False).flops == experts(5).flops * 2 / 3
    assert experts(5, gated=False).weight_bytes == pytest.approx(experts(5).weight_bytes * 2 / 3)


def test_weight_only_quantisation_shrinks_the_weights_alone():
    plain, narrow = experts(5), experts(5, weight_dtype="mxfp4")
    assert narrow.compute_dtype == "bf16"
    assert narrow.weight_bytes == pytest.approx(plain.weight_bytes * (0.5 + 1 / 32) / 2)
    assert narrow.intermediate_bytes == plain.intermediate_bytes


@pytest.mark.parametrize("quantity", ["experts_hit", "flops", "bytes_read", "bytes_written"])
def test_arrays_of_tokens_equal_them_one_by_one(quantity):
    tokens = np.array([1, 7, 512])
    apart = [getattr(experts(count), quantity) for count in tokens.tolist()]
    assert getattr(experts(tokens), quantity).tolist() == apart
