"""Blocks of the KV cache by hand."""

from dataclasses import replace

import pytest

from infercast.engine.kv import KvShape, kv_layout
from infercast.models.layout import ParallelLayout
from infercast.models.read import read_model


def layout_of(model, tensor=1, block_size=16, **changes):
    return kv_layout(replace(read_model(model), **changes), ParallelLayout(tensor), block_size)


def test_grouped_heads_store_keys_and_values():
    kv = layout_of("llama-3.1-8b")
    assert kv.block_bytes == 2 * 8 * 128 * 2 * 32 * 16  # both, heads, head_dim, bf16, layers, tokens
    assert kv.token_bytes == kv.block_bytes / 16
    assert kv.shape == KvShape(16, (0,))


def test_a_latent_is_one_vector_for_all_heads():
    assert layout_of("deepseek-v2-lite").block_bytes == (512 + 64) * 2 * 27 * 16


def test_an_fp8_cache_takes_half():
    for model in ("llama-3.1-8b", "deepseek-v2-lite", "gpt-oss-20b"):
        assert layout_of(model, kv_dtype="fp8").block_bytes == layout_of(model).block_bytes / 2


def test_block_size_scales_the_block():
    assert layout_of("llama-3.1-8b", block_size=64).block_bytes == 4 * layout_of("llama-3.1-8b").block_bytes


def test_two_gpus_split_heads_but_both_keep_the_latent():
    assert layout_of("llama-3.1-8b", tensor=2).block_bytes == layout_of("llama-3.1-8b").block_bytes / 2
    assert layout_of("deepseek-v2-lite", tensor=2).block_bytes == layout_of("deepseek-v2-lite").block_bytes


def test_gpt_oss_has_a_windowed_and_a_full_group_of_twelve_layers():
    kv = layout_of("gpt-oss-20b")
    assert kv.shape.windows == (128, 0)
    assert kv.block_bytes == 12 * 2 * 8 * 64 * 2 * 16
    assert kv.token_bytes == 12 * 2 * 8 * 64 * 2  # windowed layers have stopped growing


def test_gemma_3_has_groups_as_large_as_its_few_full_layers():
    kv = layout_of("gemma-3-27b")  # 10 full layers, 52 windowed ones: six groups of at most ten
    assert kv.shape.windows == (1024,) * 6 + (0,)
    assert kv.block_bytes == 10 * 2 * 16 * 128 * 2 * 16


def test_blocks_are_as_large_as_the_widest_layers_need():
    kv = layout_of("gemma-4-31b")  # windowed layers have 16 heads of 256, full ones 4 of 512
    assert kv.block_bytes == 10 * 2 * 16 * 256 * 2 * 16


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_round_up(tokens, blocks):
    assert KvShape().blocks_for(tokens) == blocks


def test_blocks_before_the_window_are_free():
    shape = KvShape(16, (0, 32))
    assert shape.first_in_window(0, 1000) == 0
    # After 100 tokens, token 100 sees 69 to 100; token 69 lies in block 4.
    assert shape.first_in_window(1, 100) == 4
    assert shape.first_in_window(1, 10) == 0


def test_the_most_a_sequence_holds():
    shape = KvShape(16, (0, 32))
    # 100 full blocks; a window of 32 with a chunk of 64: tokens 31 + 64 in 6 blocks, and one more for the edge.
    assert shape.most_blocks(1600, chunk=64) == 100 + 7
    assert shape.most_blocks(20, chunk=64) == 2 + 2
