"""What operators ask of each pipe, at the datasheet rates of an H200: 132 SMs, 989.4 TFLOP/s bf16, 4.8 TB/s."""

from dataclasses import dataclass

import numpy as np
import pytest

from infercast.errors import InputError
from infercast.hardware import load_gpu
from infercast.ops import Attention, Collective, Gemm, MoE
from infercast.ops.op import norm
from infercast.predict.families.family import quantised_waves
from infercast.predict.roofline import pipes_of

H200 = load_gpu("h200-sxm")
TENSOR, DRAM = 989.4e12, 4.8e12


@pytest.mark.parametrize(
    ("blocks", "rounds"),
    [(132, 1), (133, 2), (263, 2), (264, 2), (265, 3), (132 * 40, 40), (132 * 40 + 1, 41)],
)
def test_one_block_more_than_full_rounds_costs_a_whole_round(blocks, rounds):
    assert blocks / 132 * quantised_waves(blocks, 132) == pytest.approx(rounds)


def test_less_than_a_round_is_cut_finer_until_it_fills_the_chip():
    assert [quantised_waves(blocks, 132) for blocks in (1, 66, 132)] == [1, 1, 1]


def test_rounds_of_an_array_equal_them_one_by_one():
    blocks = np.array([1, 131, 132, 133, 1000, 123456])
    assert quantised_waves(blocks, 132).tolist() == [quantised_waves(count, 132) for count in blocks.tolist()]


def test_a_product_that_fills_its_tiles_and_rounds_runs_at_peak():
    op = Gemm(128 * 12, 256 * 11 * 4, 4096)  # 132 tiles of 128 x 256, four times over
    assert pipes_of(op, H200)["tensor"] == pytest.approx(op.flops / TENSOR)


def test_a_product_one_row_beyond_full_rounds_pays_a_round_of_the_smallest_tiles():
    full, beyond = Gemm(128 * 12, 256 * 11, 4096), Gemm(128 * 12 + 1, 256 * 11, 4096)
    round_seconds = 132 * 2 * 16 * 64 * 4096 / TENSOR
    extra = pipes_of(beyond, H200)["tensor"] - pipes_of(full, H200)["tensor"]
    assert extra == pytest.approx(round_seconds)


def test_a_thin_product_is_padded_to_sixteen_rows():
    assert pipes_of(Gemm(1, 64, 512), H200)["tensor"] == pipes_of(Gemm(16, 64, 512), H200)["tensor"]


def test_a_format_the_chip_lacks_runs_in_16_bits():
    a100 = load_gpu("a100-sxm")
    fp8, bf16 = (pipes_of(Gemm(4096, 4096, 4096, dtype=dtype), a100) for dtype in ("fp8", "bf16"))
    assert fp8["tensor"] == bf16["tensor"]
    assert fp8["dram"] < bf16["dram"]


def test_prefill_attention_takes_whole_rounds_of_query_tiles():
    # 32 heads x 5 tiles of 128 queries: 160 blocks on 132 SMs are two rounds.
    lengths = np.array([640])
    op = Attention(lengths, lengths, heads=32, kv_heads=8, head_dim=128, value_dim=128)
    assert pipes_of(op, H200)["tensor"] == pytest.approx(op.flops / TENSOR * 264 / 160)
    assert pipes_of(op, H200)["special"] == op.exponentials / H200.special_rate


def test_decode_attention_fills_the_chip_evenly():
    op = Attention(np.ones(5, int), np.full(5, 999), heads=32, kv_heads=8, head_dim=128, value_dim=128)
    assert pipes_of(op, H200)["tensor"] == op.flops / TENSOR


def test_rows_of_an_expert_are_padded_to_sixteen():
    op = MoE(1, hidden=2048, inter=768, experts=128, topk=8)  # eight experts with one row each
    assert pipes_of(op, H200)["tensor"] == pytest.approx(16 * op.flops / TENSOR)
    assert pipes_of(op, H200)["dram"] == (op.bytes_read + op.bytes_written) / DRAM


def test_a_norm_moves_its_bytes():
    op = norm(8192, 4096, residual=True)
    # Two rows in and two out of 8 KiB for each token, and the weight once.
    assert pipes_of(op, H200)["dram"] == (8192 * 4 * 8192 + 8192) / DRAM


def test_collectives_use_the_links_or_the_bus():
    op = Collective("all_reduce", 2**20, 2)
    assert pipes_of(op, H200) == {"link": 2**20 / 450e9}
    assert pipes_of(op, load_gpu("l4")) == {"link": 2**20 / 31.5e9}


def test_an_unknown_operator_is_refused():
    @dataclass(frozen=True)
    class Convolution:
        family: str = "convolution"

    with pytest.raises(InputError, match="Convolution"):
        pipes_of(Convolution(), H200)
