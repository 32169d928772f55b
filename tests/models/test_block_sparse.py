"""MiniMax-M3: attention over blocks that index heads choose."""

import numpy as np
import pytest

from infercast.engines.vllm.kernels import default_block_size
from infercast.engines.vllm.kv_cache import kv_layout
from infercast.hardware import load_gpu
from infercast.models.families import architecture_of
from infercast.models.layout import ParallelLayout
from infercast.models.library import bundled_config
from infercast.models.lower import attention_calls, mixer_layers, token_calls
from infercast.models.read import read_model
from infercast.models.spec import parameter_count, rank_weight_bytes

ONE = ParallelLayout()
VALUES = bundled_config("minimax-m3")
CONFIG = read_model(VALUES)


def calls_of(queries, keys, layout=ONE):
    calls = attention_calls(CONFIG, layout, np.array(queries), np.array(keys))
    return {call.name: call for call in calls}


def test_index_heads_add_their_projections_and_norms():
    dense = read_model({**VALUES, "sparse_attention_config": {"sparse_attention_freq": [0] * 60}})
    assert parameter_count(CONFIG) - parameter_count(dense) == 57 * (6144 * 5 * 128 + 2 * 128)
    assert [(layers, mixer.label) for mixer, layers in mixer_layers(CONFIG).items()] == [
        (3, "64/4 x 128"),
        (57, "MSA 64/4 x 128"),
    ]


def test_lists_of_layers_count_where_there_are_any():
    settings = {**VALUES["sparse_attention_config"], "sparse_attention_freq": [0, 1] * 30}
    config = read_model({**VALUES, "sparse_attention_config": settings, "moe_layer_freq": [1] * 60})
    assert [stack.layers for stack in config.stacks] == [30, 30]
    assert all(stack.feed_forward.experts == 128 for stack in config.stacks)


def test_the_published_file_has_the_language_model_inside():
    inner = {key: value for key, value in VALUES.items() if key not in ("architectures", "infercast")}
    vision = {
        "hidden_size": 1280, "num_hidden_layers": 32, "intermediate_size": 5120, "patch_size": 14,
        "img_token_compression_config": {"spatial_merge_size": 2, "temporal_patch_size": 2},
    }  # fmt: skip
    outer = {"model_type": "minimax_m3_vl", "text_config": inner, "vision_config": vision}
    config = read_model({**outer, "architectures": ["MiniMaxM3SparseForConditionalGeneration"]})
    assert parameter_count(config) == parameter_count(CONFIG)
    assert config.vision.parameters == pytest.approx(0.86e9, rel=0.01)
    assert read_model(outer) == config
    assert architecture_of("minimax_m3_text") == "MiniMaxM3ForCausalLM"


def test_keys_and_values_are_split_and_the_index_key_is_on_every_gpu():
    mixer = CONFIG.stacks[1].mixer
    assert [cache.bytes_per_token for cache in mixer.caches(CONFIG.shard(ONE))] == [2 * 2 * 4 * 128, 256]
    assert [cache.bytes_per_token for cache in mixer.caches(CONFIG.shard(ParallelLayout(8)))] == [2 * 2 * 128, 256]
    assert default_block_size(CONFIG, load_gpu("h200-sxm")) == 128
    assert kv_layout(CONFIG, ONE, 128).block_bytes == 128 * (60 * 2048 + 57 * 256)


def test_decoding_grows_with_the_scores_of_blocks_alone():
    short, long = (calls_of([1] * 4, [length] * 4) for length in (4096, 65536))
    assert list(short) == ["attention", "index_scores", "index_topk", "attention_blocks"]
    assert long["attention_blocks"].op.flops == short["attention_blocks"].op.flops
    assert long["index_scores"].op.flops == 16 * short["index_scores"].op.flops
    assert short["attention_blocks"].op.num_keys_in_reach == 4 * 16 * 128


def test_prompts_have_kernels_of_their_own():
    calls = calls_of([1, 300], [5000, 400], ParallelLayout(2))
    assert {name for name in calls if name.endswith("_prompt")} == {
        "index_scores_prompt", "index_topk_prompt", "attention_blocks_prompt",
    }  # fmt: skip
    scores, chosen, attention = (
        calls[f"{name}_prompt"].op for name in ("index_scores", "index_topk", "attention_blocks")
    )
    assert (scores.heads, attention.kv_heads, attention.heads) == (2, 2, 32)
    assert chosen.num_queries == 2 * 300  # each index head chooses for itself


def test_one_product_has_the_index_too():
    names = {call.name: call.op for call in token_calls(CONFIG, ParallelLayout(8), 100)}
    calls = [call for call in token_calls(CONFIG, ParallelLayout(8), 100) if call.name == "qkv_proj"]
    assert [(call.op.n, call.count) for call in calls] == [(8 * 128 + 256, 3), (8 * 128 + 256 + 256, 57)]
    assert names["qk_norm_rope_write"].rows == 100
    one, eight = (rank_weight_bytes(CONFIG, ParallelLayout(tensor)) for tensor in (1, 8))
    assert eight > one / 8
