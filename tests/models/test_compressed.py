"""DeepSeek-V4: compressed attention of three kinds, hyper-connections, and experts in a format of their own."""

import numpy as np
import pytest

from infercast.engines.vllm.kernels import choose_kernels
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
from infercast.models.spec import active_parameter_count, divides, parameter_count, prediction_parameter_count

ONE = ParallelLayout()
HOPPER = load_gpu("h200-sxm")
FLASH = read_model("deepseek-v4-flash")
ENTRY = 448 + 2 * 64 + 8


def calls_of(config, queries, keys, layout=ONE):
    return {call.name: call for call in attention_calls(config, layout, np.array(queries), np.array(keys))}


@pytest.mark.parametrize(("name", "total", "active"), [("deepseek-v4-flash", 284, 13), ("deepseek-v4-pro", 1573, 49)])
def test_counts_are_the_published_ones(name, total, active):
    config = read_model(name)
    assert parameter_count(config) / 1e9 == pytest.approx(total, rel=0.005)
    assert active_parameter_count(config) / 1e9 == pytest.approx(active, rel=0.025)


def test_the_files_hold_as_many_values_as_published():
    """862e9 in the files of V4-Pro: two 4-bit weights in each, and a scale for 32 of them."""
    config = read_model("deepseek-v4-pro")
    experts = sum(stack.layers * stack.feed_forward.expert_values(7168)[0] for stack in config.stacks)
    of_head = config.prediction.stacks[0].feed_forward.expert_values(7168)[0]
    everything = parameter_count(config) + prediction_parameter_count(config)
    packed = (experts + of_head) * (1 / 2 + 1 / 32)
    assert (everything - experts - of_head + packed) / 1e9 == pytest.approx(862, rel=0.005)


def test_a_list_says_what_each_layer_compresses():
    assert {mixer.label: layers for mixer, layers in mixer_layers(FLASH).items()} == {
        "window 64 x 512": 2, "CSA 64 x 512": 21, "HCA 64 x 512": 20,
    }  # fmt: skip
    assert FLASH.prediction.stacks[0].mixer.kind == "window"
    with pytest.raises(FileFormatError, match="compress_ratios has 2 items for 43 layers"):
        read_model({**bundled_config("deepseek-v4-flash"), "compress_ratios": [4, 128]})


def test_the_first_layers_route_without_a_bias():
    biased = [FLASH.stacks[number].feed_forward.router_bias for number in FLASH.layer_stacks]
    assert biased == [False] * 3 + [True] * 40


@pytest.mark.parametrize(
    ("changes", "experts"),
    [
        ({}, "mxfp4"),
        ({"expert_dtype": "fp8"}, "fp8_block"),
        ({"expert_dtype": None}, "fp8_block"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "moe_quant_algo": "NVFP4",
          "quant_algo": "MIXED_PRECISION", "ignore": ["*.attn.*"],
          "quantized_layers": {"layers.0.ffn.experts": {"quant_algo": "NVFP4"}}}}, "nvfp4"),
    ],
)  # fmt: skip
def test_experts_have_a_format_of_their_own(changes, experts):
    weights = read_model({**bundled_config("deepseek-v4-flash"), **changes}).weights
    assert (weights.attention, weights.feed_forward, weights.experts) == ("fp8_block", "fp8_block", experts)


def test_caches_of_each_kind():
    caches = {mixer.kind: mixer.caches(FLASH.shard(ONE)) for mixer in mixer_layers(FLASH)}
    window = Cache(ENTRY, window=128, block=64)
    assert caches["window"] == (window,)
    # What two entries of 512 and their weights wait in, in fp32.
    assert caches["CSA"] == (
        window,
        Cache(ENTRY / 4, compress=4),
        Cache(4 * 2 * 2 * 512, window=8, block=4),
        Cache(132 / 4, compress=4),
        Cache(4 * 2 * 2 * 128, window=8, block=4),
    )
    assert caches["HCA"] == (window, Cache(ENTRY / 128, compress=128), Cache(4 * 2 * 512, window=128, block=8))


def test_pages_of_several_sizes_lie_together_in_a_block():
    kv = kv_layout(FLASH, ONE, 256)
    # 21 latents, index keys and 20 heavily compressed ones; the windows of 43 layers are cut into two groups.
    assert kv.block_bytes == 22 * 37_440 + 21 * 8_640 + 20 * 1_728
    groups = sorted(zip(kv.shape.sizes, kv.shape.windows, strict=True))
    assert groups == [(4, 8), (8, 128), (64, 128), (64, 128), (256, 0)]
    assert kv.token_bytes == kv.block_bytes / 256


def test_decoding_grows_with_the_indexer_and_heavy_compression_alone():
    short, long = (calls_of(FLASH, [1] * 4, [length] * 4) for length in (8192, 131072))
    assert set(short) == {"attention_window", "index_scores", "index_topk", "attention_csa", "attention_hca"}
    for name in ("attention_window", "attention_csa"):
        assert long[name].op.flops == short[name].op.flops
    assert short["attention_csa"].op.num_keys_in_reach == 4 * (512 + 128)
    assert short["attention_hca"].op.num_keys_in_reach == 4 * (64 + 128)
    assert long["attention_hca"].op.num_keys_in_reach == 4 * (1024 + 128)
    assert long["index_scores"].op.num_entries == 4 * 131072 // 4


def test_prompts_read_a_wide_copy():
    calls = calls_of(FLASH, [1, 300], [5000, 400])
    assert calls["index_gather"].op.rows == 100
    prompt, decoding = calls["attention_hca_prompt"].op, calls["attention_hca"].op
    assert (prompt.bytes_per_key, prompt.kv_dtype) == (1024, "bf16")
    assert (decoding.bytes_per_key, decoding.kv_dtype) == (ENTRY, "fp8")
    gathers = [call for call in attention_calls(FLASH, ONE, np.array([300]), np.array([1000])) if "latent" in call.name]
    assert {int(call.op.rows): call.count for call in gathers} == {427: 2, 427 + 250: 21, 427 + 8: 20}


def test_arrays_of_batches_are_lowered_as_single_ones():
    queries = np.array([[64, 64], [500, 500]])
    together = attention_calls(FLASH, ONE, queries, queries + 100)
    for row in range(2):
        for one, call in zip(attention_calls(FLASH, ONE, queries[row], queries[row] + 100), together, strict=True):
            assert (one.name, one.count) == (call.name, call.count)
            assert call.op.bytes_read[row] == one.op.bytes_read


def test_hyper_connections_take_the_place_of_norms():
    calls = {call.name: call.count for call in token_calls(FLASH, ONE, 100)}
    assert "norm" not in calls
    assert (calls["hyper_pre"], calls["hyper_post"], calls["hyper_head"], calls["final_norm"]) == (86, 86, 1, 1)
    plain = read_model({**bundled_config("deepseek-v4-flash"), "hc_mult": 1})
    assert parameter_count(FLASH) - parameter_count(plain) == 43 * 2 * 24 * 4 * 4096


def test_the_output_goes_through_groups_of_heads():
    one, four = ({call.name: call.op for call in token_calls(FLASH, ParallelLayout(n), 100)} for n in (1, 4))
    assert (one["o_a_proj"].batch, one["o_a_proj"].n, one["o_a_proj"].k) == (8, 1024, 8 * 512)
    assert (four["o_a_proj"].batch, four["o_a_proj"].k) == (2, 8 * 512)
    assert (one["o_b_proj"].k, four["o_b_proj"].k) == (8192, 2048)
    for name in ("qkv_a_proj", "compress_proj", "index_weights", "index_compress_proj"):
        assert one[name] == four[name]
    assert divides(FLASH, 8, split_experts=False)
    assert not divides(FLASH, 16, split_experts=False)


def test_what_an_engine_makes_of_it():
    config = choose_kernels(FLASH, HOPPER)
    assert config.cache_dtype == "fp8_ds_mla"
    assert calls_of(config, [1], [5000], ParallelLayout(8))["attention_csa"].op.heads == 64
    settings = resolve(EngineSettings(max_model_len=65536), HOPPER, config.max_positions)
    kept, beside = sparse_memory(config, ONE, settings)
    assert kept == 4 * (65536 // 4 + 128 + 8192) * 512 * 2 + 4 * 8192 * 512
    assert beside == 512 * 2**20
    with pytest.raises(InputError, match="kernels for sparse attention on Hopper and Blackwell alone"):
        choose_kernels(FLASH, load_gpu("a100-sxm"))
