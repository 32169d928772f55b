"""Blocks of the KV cache by hand."""

from dataclasses import asdict, dataclass, replace

import pytest

from infercast.engines.vllm.kv_cache import ALIGN, KvShape, StateBlocks, kv_layout
from infercast.engines.vllm.versions import Rule, rules_of
from infercast.models.layout import ParallelLayout
from infercast.models.mixers.mixer import Cache, LatentAttention
from infercast.models.read import read_model
from infercast.serve.cache.blocks import StateRules


def layout_of(model, tensor=1, block_size=16, **changes):
    return kv_layout(replace(read_model(model), **changes), ParallelLayout(tensor), block_size)


@dataclass(frozen=True)
class Indexed(LatentAttention):
    """Latent attention that keeps a key of 132 bytes a token beside the latent, as sparse attention does."""

    def caches(self, shard):
        return (*LatentAttention.caches(self, shard), Cache(132))


def test_what_a_layer_stores_apart_adds_up():
    plain = read_model("deepseek-v2-lite")
    stacks = tuple(replace(stack, mixer=Indexed(**asdict(stack.mixer))) for stack in plain.stacks)
    more, less = (kv_layout(config, ParallelLayout(2), 64) for config in (replace(plain, stacks=stacks), plain))
    assert more.shape == less.shape
    assert more.block_bytes - less.block_bytes == 27 * 64 * 132


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


def test_narrow_layers_put_more_tokens_into_equal_blocks():
    kv = layout_of("gemma-4-31b")  # windowed layers have 16 heads of 256, full ones 4 of 512
    assert kv.block_bytes == 10 * 2 * 16 * 256 * 2 * 16
    assert kv.shape == KvShape(16, (1024,) * 5 + (0,), (16,) * 5 + (32,))
    assert kv.token_bytes == 10 * 2 * 4 * 512 * 2  # nothing is wasted
    # On eight GPUs the windowed layers are the narrow ones: one head of 256 against one of 512.
    kv = layout_of("gemma-4-26b-a4b", tensor=8)
    assert kv.shape == KvShape(16, (1024,) * 5 + (0,), (32,) * 5 + (16,))
    assert kv.block_bytes == 5 * 2 * 512 * 2 * 16


def test_widths_that_do_not_divide_leave_room_in_a_block():
    config = read_model("gemma-2-9b")
    windowed, full = config.stacks
    wider = replace(full, mixer=replace(full.mixer, kv_heads=12))
    kv = kv_layout(replace(config, stacks=(windowed, wider)), ParallelLayout(), 16)
    assert kv.shape == KvShape(16, (4096, 0))
    assert kv.block_bytes == 21 * 2 * 12 * 256 * 2 * 16


def test_windowed_layers_keep_the_smallest_blocks():
    # Whatever was asked for: equal widths then make full layers' blocks set the size.
    assert layout_of("mistral-7b-v0.1", block_size=64).shape == KvShape(16, (4096,))
    assert layout_of("gpt-oss-20b", block_size=64).shape == KvShape(64, (128, 0))


def test_a_chunk_begins_anew():
    shape = layout_of("llama-4-scout").shape
    assert (shape.windows, shape.chunked) == ((8192, 8192, 8192, 0), True)
    assert [shape.first_in_window(0, computed) for computed in (8191, 8192, 20000)] == [0, 512, 1024]
    assert shape.group(0).most_blocks(10**6, chunk=8192) == 1024


def test_a_token_costs_more_while_no_window_is_full():
    kv = layout_of("phi-3-mini")  # a window in every layer
    assert (kv.first_token_bytes, kv.token_bytes) == (2 * 32 * 96 * 2 * 32, 0)


def test_groups_may_have_blocks_of_their_own_size():
    shape = KvShape(16, (32, 0), (16, 48))
    assert (shape.sizes, shape.common_size) == ((16, 48), 48)
    assert shape.most_blocks(96, chunk=16) == 4 + 2
    assert shape.first_in_window(0, 100) == 4


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


def test_blocks_of_one_size_for_those_who_count_in_them():
    shape = layout_of("gemma-4-26b-a4b").shape  # five windowed groups in blocks of 16, a full one in blocks of 32
    assert shape.of_one_size == KvShape(32, (1024,) * 10 + (0,))
    assert KvShape(16, (128, 0)).of_one_size == KvShape(16, (128, 0))
    exact, even = (each.most_blocks(8192, chunk=512) for each in (shape, shape.of_one_size))
    assert 0 <= even - exact <= 10


@pytest.mark.parametrize(
    ("model", "release", "exports"),
    [
        ("nemotron-3-nano-30b-a3b", "0.32", True),
        ("nemotron-3-nano-30b-a3b", "0.31", False),
        ("granite-4.0-h-tiny", "0.32", True),
        ("kimi-k3", "0.32", True),
        ("kimi-linear-48b-a3b", "0.32", False),
        ("qwen3-next-80b-a3b", "0.32", False),
        ("lfm2-1.2b", "0.32", False),
    ],
)
def test_which_layers_leave_a_state_within_a_step(model: str, release: str, exports: bool) -> None:
    """As `get_kv_cache_spec` of vLLM's layers has it: Mamba2, and Kimi-K3's with FlashKDA."""
    rules = StateRules(exports=rules_of(release).has(Rule.EXPORTS_STATES))
    states = StateBlocks(ALIGN, rules=rules)
    layout = ParallelLayout(8 if model == "kimi-k3" else 1)
    assert kv_layout(read_model(model), layout, 16, states=states).shape.rules.exports == exports
