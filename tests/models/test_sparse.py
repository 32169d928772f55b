"""DeepSeek sparse attention: its weights, caches and kernels, and what an engine makes of them."""

import numpy as np
import pytest

from infercast.engines.vllm.kernels import choose_kernels, default_block_size
from infercast.engines.vllm.kv_cache import kv_layout
from infercast.engines.vllm.memory import sparse_memory
from infercast.engines.vllm.settings import EngineSettings, resolve
from infercast.errors import FileFormatError, InputError
from infercast.hardware import load_gpu
from infercast.models.layout import ParallelLayout
from infercast.models.library import bundled_config
from infercast.models.lower import attention_calls, mixer_layers, token_calls
from infercast.models.mixers.mixer import Cache
from infercast.models.read import read_model
from infercast.models.spec import parameter_count, prediction_parameter_count, rank_weight_bytes

ONE = ParallelLayout()
HOPPER, BLACKWELL, DESKTOP = (load_gpu(name) for name in ("h200-sxm", "b200-sxm", "rtx-pro-6000"))


def calls_of(config, queries, keys, layout=ONE):
    return {call.name: call for call in attention_calls(config, layout, np.array(queries), np.array(keys))}


def test_an_indexer_adds_its_projections():
    plain = read_model({**bundled_config("deepseek-v3.2"), "architectures": ["DeepseekV3ForCausalLM"]})
    indexer = 1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128
    assert parameter_count(read_model("deepseek-v3.2")) - parameter_count(plain) == 61 * indexer


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({}, [0, 1, 2, 6, 10]),
        ({"index_topk_freq": None, "index_skip_topk_offset": None}, range(12)),
        ({"index_topk_pattern": "FSSSFSSSFSSSFFFF"}, [0, 4, 8]),
        ({"index_topk_pattern": "FSS"}, [0, *range(3, 12)]),
        ({"index_topk_freq": None, "indexer_types": ["full", "shared"] * 39}, range(0, 12, 2)),
    ],
)
def test_which_layers_run_an_indexer(changes, own):
    config = read_model({**bundled_config("glm-5.2"), **changes, "num_hidden_layers": 12})
    found = [index for index, number in enumerate(config.layer_stacks) if config.stacks[number].mixer.indexer]
    assert found == list(own)


def test_a_first_layer_has_nothing_to_share():
    with pytest.raises(FileFormatError, match="the first layer has no indexer"):
        read_model({**bundled_config("glm-5.2"), "index_topk_pattern": "SF"})


def test_a_model_cut_to_a_few_layers_takes_the_first_of_each_list():
    values = {**bundled_config("glm-5.2"), "index_topk_freq": None, "num_hidden_layers": 6}
    config = read_model({**values, "indexer_types": ["full"] * 3 + ["shared"] * 75})
    assert [(stack.layers, bool(stack.mixer.indexer)) for stack in config.stacks] == [(3, True), (3, False)]
    assert read_model({**bundled_config("mimo-v2-flash"), "num_hidden_layers": 6}).layers == 6


@pytest.mark.parametrize(("name", "billions"), [("deepseek-v3.2", 683.5), ("glm-5.2", 753.9)])
def test_a_head_that_predicts_has_an_indexer(name, billions):
    config = read_model(name)
    assert config.prediction.stacks[0].mixer.indexer
    assert (parameter_count(config) + prediction_parameter_count(config)) / 1e9 == pytest.approx(billions, rel=0.001)


def test_what_the_engine_makes_room_for():
    config = choose_kernels(read_model("deepseek-v3.2"), HOPPER)
    settings = resolve(EngineSettings(max_model_len=65536), HOPPER, config.max_positions)
    kept, beside = sparse_memory(config, ParallelLayout(8), settings)
    assert kept == 40 * 65536 * 132 + 4 * 8192 * 2048
    assert beside == 65536 * 16 * (128 + 128) * 2 == 512 * 2**20
    assert sparse_memory(read_model("deepseek-v3"), ONE, settings) is None


def test_caches_are_a_latent_and_the_keys_of_the_indexer():
    config = read_model("glm-5.2")
    assert [(layers, mixer.caches(config.shard(ONE))) for mixer, layers in mixer_layers(config).items()] == [
        (21, (Cache(1152), Cache(132))),
        (57, (Cache(1152),)),
    ]
    assert default_block_size(config, HOPPER) == 64
    assert kv_layout(config, ONE, 64).block_bytes == 64 * (78 * 1152 + 21 * 132)


@pytest.mark.parametrize(
    ("gpu", "asked", "entry", "dtype"),
    [(HOPPER, "auto", 1152, "bf16"), (HOPPER, "fp8", 656, "fp8"), (BLACKWELL, "fp8", 576, "fp8"),
     (BLACKWELL, "auto", 1152, "bf16"), (DESKTOP, "auto", 656, "fp8")],
)  # fmt: skip
def test_the_format_of_the_cache_is_the_kernels(gpu, asked, entry, dtype):
    values = bundled_config("deepseek-v3.2")
    values["quantization_config"]["kv_cache_quant_algo"] = "FP8" if asked == "fp8" else None
    config = choose_kernels(read_model(values), gpu)
    assert config.stacks[0].mixer.caches(config.shard(ONE))[0].bytes_per_token == pytest.approx(entry)
    op = calls_of(config, [1], [5000])["attention_sparse"].op
    assert (op.bytes_per_key, op.kv_dtype) == (pytest.approx(entry), dtype)


@pytest.mark.parametrize(
    ("gpu", "tensor", "heads"), [(HOPPER, 8, 16), (HOPPER, 1, 128), (BLACKWELL, 8, 16), (BLACKWELL, 4, 128)]
)
def test_heads_are_padded_where_the_kernel_asks_for_it(gpu, tensor, heads):
    config = choose_kernels(read_model("deepseek-v3.2"), gpu)
    assert calls_of(config, [1], [5000], ParallelLayout(tensor))["attention_sparse"].op.heads == heads


def test_older_chips_have_no_kernels_for_it():
    with pytest.raises(InputError, match=r"vLLM does not run glm-5 on l40s: it has kernels for sparse attention on"):
        choose_kernels(read_model("glm-5"), load_gpu("l40s"))
    llama = read_model("llama-3.1-8b")
    assert choose_kernels(llama, load_gpu("l40s")) is llama


def test_decoding_grows_with_the_indexer_alone():
    config = read_model("deepseek-v3.2")
    short, long = (calls_of(config, [1] * 8, [length] * 8) for length in (4096, 65536))
    assert list(short) == ["index_scores", "index_topk", "attention_sparse"]
    for quantity in ("flops", "bytes_read", "bytes_written"):
        assert getattr(long["attention_sparse"].op, quantity) == getattr(short["attention_sparse"].op, quantity)
    assert long["index_scores"].op.flops == 16 * short["index_scores"].op.flops
    assert long["index_scores"].op.bytes_read > 15 * short["index_scores"].op.bytes_read


def test_prompts_and_decoding_have_scores_of_their_own_and_share_attention():
    calls = calls_of(read_model("glm-5.2"), [1, 300, 1], [5000, 300, 80])
    assert {name: call.count for name, call in calls.items()} == {
        "index_gather": 21, "index_scores_prompt": 21, "index_topk_prompt": 21, "index_scores": 21, "index_topk": 21,
        "attention_sparse": 57,
    }  # fmt: skip
    assert calls["index_gather"].op.rows == 300
    assert calls["attention_sparse"].op.num_queries == 302


def test_prompts_of_many_heads_read_a_packed_cache_through_a_wide_copy():
    values = bundled_config("deepseek-v3.2")
    values["quantization_config"]["kv_cache_quant_algo"] = "FP8"
    config = choose_kernels(read_model(values), HOPPER)
    calls = calls_of(config, [1, 300], [5000, 700])
    assert calls["latent_gather"].op.rows == 700
    prompt, decoding = (calls[name].op for name in ("attention_sparse_prompt", "attention_sparse"))
    assert (prompt.kv_dtype, decoding.kv_dtype) == ("bf16", "fp8")
    narrow = calls_of(config, [1, 300], [5000, 700], ParallelLayout(8))
    assert "latent_gather" not in narrow
    assert narrow["attention_sparse"].op.heads == 64


def test_arrays_of_batches_are_lowered_as_single_ones():
    config = read_model("glm-5.2")
    keys, sequences = np.array([[100], [5000]]), np.array([[3], [7]])
    together = attention_calls(config, ONE, np.ones((1, 1), dtype=np.int64), keys, sequences)
    for row in range(2):
        alone = attention_calls(config, ONE, np.ones(int(sequences[row, 0]), int), np.repeat(keys[row], sequences[row]))
        for one, call in zip(alone, together, strict=True):
            assert (one.name, one.count) == (call.name, call.count)
            assert np.broadcast_to(call.op.flops, 2)[row] == one.op.flops


def test_every_gpu_runs_and_holds_the_whole_indexer():
    config = read_model("glm-5")
    one, eight = ({call.name: call.op for call in token_calls(config, ParallelLayout(n), 100)} for n in (1, 8))
    for name in ("index_q_proj", "index_k_proj", "index_q_rope", "index_write", "index_places"):
        assert eight[name] == one[name]
    assert (one["q_absorb"].batch, eight["q_absorb"].batch) == (64, 8)
    whole, split = (rank_weight_bytes(config, ParallelLayout(n)) for n in (1, 8))
    assert split > whole / 8 + 78 * 2 * (2048 * 32 * 128 + 6144 * 160) * 7 / 8


def test_glm_routes_in_fp32():
    names = {call.name: call.op for call in token_calls(read_model("glm-5"), ONE, 100)}
    assert (names["router_widen"].rows, names["router"].dtype) == (100, "fp32")
    assert "router_widen" not in {call.name for call in token_calls(read_model("deepseek-v3.2"), ONE, 100)}


def test_kernels_of_a_decoding_layer_are_those_of_a_profile():
    """Six layers of GLM-5 in fp8 under vLLM 0.25 on an H200: launches of each small kernel of attention in a step."""
    config = choose_kernels(read_model({**bundled_config("glm-5-fp8"), "num_hidden_layers": 6}), HOPPER)
    counts = {call.name: call.count for call in token_calls(config, ONE, 32)}
    once = ["latent_norm", "rope", "kv_write", "index_k_norm", "index_k_rope", "index_q_rope", "index_write"]
    assert {counts[name] for name in [*once, "index_clear", "index_places", "q_absorb", "v_expand"]} == {6}
    assert counts["index_counts"] == 12
    quantised = [f"{name}_quantise" for name in ("qkv_a_proj", "q_b_proj", "index_q_proj", "o_proj")]
    assert [counts[name] for name in quantised] == [6, 6, 6, 6]
