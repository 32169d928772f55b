"""Attention against a loop over every query and key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercast.ops import Attention

QUANTITIES = ("num_queries", "num_pairs", "num_keys_in_reach", "flops", "exponentials", "bytes_read", "bytes_written")


def attention(queries, keys, **changes):
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 8, "value_dim": 8}
    return Attention(np.array(queries), np.array(keys), **{**sizes, **changes})


def visible_pairs(queries, keys, window):
    """(query position, key position) of all that a causal mask, and a window if there is one, lets through."""
    return [
        (query, key)
        for query in range(keys - queries, keys)
        for key in range(query + 1)
        if not window or key > query - window
    ]


sequences = st.tuples(st.integers(1, 12), st.integers(0, 30)).map(lambda pair: (pair[0], sum(pair)))


@given(batch=st.lists(sequences, min_size=1, max_size=4), window=st.integers(0, 40))
def test_pairs_and_keys_equal_a_loop(batch, window):
    op = attention(*zip(*batch, strict=True), window=window)
    seen = [visible_pairs(queries, keys, window) for queries, keys in batch]
    assert op.num_pairs == sum(len(pairs) for pairs in seen)
    assert op.num_keys_in_reach == sum(len({key for _, key in pairs}) for pairs in seen)


def test_a_prompt_by_hand():
    op = attention([3], [3])  # 1 + 2 + 3 = 6 pairs
    assert op.flops == 2 * 4 * (8 + 8) * 6
    assert op.exponentials == 4 * 6
    assert op.kv_bytes == 2 * 2 * (8 + 8) * 3  # keys and values of 2 heads, bf16
    assert op.bytes_read == 2 * 4 * 8 * 3 + op.kv_bytes
    assert op.bytes_written == 2 * 4 * 8 * 3


def test_a_prompt_after_a_cached_prefix():
    op = attention([2], [10])  # the first new token sees 9 keys, the second 10
    assert op.num_pairs == 19
    assert op.num_keys_in_reach == 10
    assert op.num_queries == 2


def test_decode_reads_the_whole_context():
    op = attention([1, 1], [100, 50])
    assert op.num_pairs == 150
    assert op.kv_bytes == 2 * 2 * 16 * 150


def test_decode_in_a_window_reads_the_window():
    op = attention([1, 1], [100, 50], window=64)
    assert op.num_pairs == op.num_keys_in_reach == 64 + 50


def test_a_mixed_batch_is_the_sum_of_its_sequences():
    mixed = attention([1, 7, 5], [90, 7, 40], window=16)
    apart = [attention([queries], [keys], window=16) for queries, keys in ((1, 90), (7, 7), (5, 40))]
    for quantity in QUANTITIES:
        assert getattr(mixed, quantity) == sum(getattr(op, quantity) for op in apart)


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_a_histogram_equals_the_batch_written_out(quantity):
    histogram = attention([1, 8, 0], [33, 20, 0], sequences=np.array([3, 2, 0]), window=10)
    written_out = attention([1, 1, 1, 8, 8], [33, 33, 33, 20, 20], window=10)
    assert getattr(histogram, quantity) == getattr(written_out, quantity)


def test_one_count_for_all_rows_multiplies():
    assert attention([1, 4], [9, 4], sequences=5).num_pairs == 5 * attention([1, 4], [9, 4]).num_pairs


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_an_array_of_batches_equals_them_one_by_one(quantity):
    generator = np.random.default_rng(0)
    queries = generator.integers(1, 9, (2, 3, 5))
    keys = queries + generator.integers(0, 90, (2, 3, 5))
    together = getattr(attention(queries, keys, window=20), quantity)
    assert together.shape == (2, 3)
    for place in np.ndindex(2, 3):
        assert together[place] == getattr(attention(queries[place], keys[place], window=20), quantity)


def test_steps_of_one_decoding_batch_broadcast():
    keys = np.array([[100, 50], [101, 51], [102, 52]])
    assert attention([[1, 1]], keys).num_pairs.tolist() == [150, 152, 154]


def test_tiles_do_not_join_sequences():
    assert attention([1, 128, 129], [1, 128, 129]).num_tiles(128) == 1 + 1 + 2


def test_a_latent_is_read_once_as_key_and_value():
    op = attention([1], [100], heads=16, kv_heads=1, head_dim=576, value_dim=512, latent_kv=True)
    assert op.kv_bytes == 2 * 576 * 100
    assert op.flops == 2 * 16 * (576 + 512) * 100
    assert op.bytes_written == 2 * 16 * 512


def test_an_fp8_cache_halves_the_cache_alone():
    plain, narrow = attention([4], [64]), attention([4], [64], kv_dtype="fp8")
    assert narrow.kv_bytes == plain.kv_bytes / 2
    assert narrow.bytes_read - narrow.kv_bytes == plain.bytes_read - plain.kv_bytes
    assert narrow.bytes_written == plain.bytes_written
