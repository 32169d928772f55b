"""The kernels of a step, by name, count and shape, against what engines launch for published models."""

from dataclasses import replace

import numpy as np
import pytest

from infercast.models.feed_forward import DenseFeedForward, ExpertFeedForward
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls, head_calls, merge, mixer_layers, step_calls, token_calls
from infercast.models.read import read_model
from infercast.models.spec import Stack, parameter_count, weight_bytes
from infercast.ops import Call, Gemm
from infercast.ops.op import norm

ALONE, PAIR = ParallelLayout(1), ParallelLayout(2)


def step(model, queries, keys, *, layout=ALONE, sampled=1, **options):
    """The kernels of a step by name, for models in which a name has one shape."""
    config = read_model(model, **options) if isinstance(model, str) else model
    calls = step_calls(config, layout, np.array(queries), np.array(keys), sampled=sampled)
    assert len({call.name for call in calls}) == len(calls)
    return {call.name: call for call in calls}


def decode(model, batch=1, context=1000, **options):
    return step(model, [1] * batch, [context] * batch, sampled=batch, **options)


def gemms(calls):
    return {name: (call.op.m, call.op.n, call.op.k) for name, call in calls.items() if isinstance(call.op, Gemm)}


def weights_read(config, batch):
    """Bytes of the weights that the products and experts of a decode step read."""
    calls = step_calls(config, ALONE, np.ones(batch, int), np.full(batch, 1000), sampled=batch)
    return sum(call.count * getattr(call.op, "weight_bytes", 0) for call in calls)


def test_llama_launches_these_kernels():
    counts = {name: call.count for name, call in decode("llama-3.1-8b").items()}
    a_layer = ("qkv_proj", "rope", "kv_write", "attention", "o_proj", "gate_up_proj", "activation", "down_proj")
    once = ("embedding", "final_norm", "lm_head", "sampling")
    assert counts == {**dict.fromkeys(a_layer, 32), **dict.fromkeys(once, 1), "norm": 64}


def test_llama_multiplies_these_shapes():
    assert gemms(step("llama-3.1-8b", [100], [100])) == {
        "qkv_proj": (100, 32 * 128 + 2 * 8 * 128, 4096),  # 6144
        "o_proj": (100, 4096, 4096),
        "gate_up_proj": (100, 2 * 14336, 4096),  # 28672
        "down_proj": (100, 4096, 14336),
        "lm_head": (1, 128256, 4096),  # only the last token of the prompt
    }


def test_llama_flops_are_two_a_parameter_and_token():
    config, tokens = read_model("llama-3.1-8b"), 512
    calls = step(config, [tokens], [tokens], sampled=tokens)
    flops = sum(call.count * call.op.flops for call in calls.values() if isinstance(call.op, Gemm))
    multiplied = parameter_count(config) - config.vocabulary * config.hidden  # the embedding is looked up
    assert flops == pytest.approx(2 * multiplied * tokens, rel=1e-4)  # norms are no products


@pytest.mark.parametrize(
    "model", ["llama-3.1-8b", "qwen3-0.6b", "gemma-3-1b", "llama-3.1-8b-fp8", "qwen3-8b-fp8", "gemma-4-31b"]
)
def test_a_decode_step_of_a_dense_model_reads_its_weights_once(model):
    config = read_model(model)
    stored = weight_bytes(config)
    multiplied = stored.total - stored.vision - stored.other - (0 if config.tied_embedding else stored.embedding)
    assert weights_read(config, batch=1) == pytest.approx(multiplied, rel=1e-9)


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b", "mixtral-8x7b"])
def test_a_large_decode_step_of_an_expert_model_reads_its_weights_once(model):
    config = read_model(model)
    stored = weight_bytes(config)
    read = weights_read(config, batch=4096)  # enough tokens for every expert
    sparse = [stack for stack in config.stacks if isinstance(stack.feed_forward, ExpertFeedForward)]
    routers = sum(stack.layers * stack.feed_forward.experts * config.hidden * 2 for stack in sparse)
    multiplied = stored.total - stored.other - stored.embedding + routers
    # fp8 latent attention folds kv_b into the queries in bf16, which vLLM does too: it weighs twice as much there.
    assert read == pytest.approx(multiplied, rel=0.01 if model == "deepseek-v3" else 1e-6)


def test_an_expert_layer():
    calls = decode("qwen3-30b-a3b", batch=3)
    assert gemms(calls)["router"] == (3, 128, 2048)
    experts = calls["experts"]
    assert experts.count == 48
    assert (experts.op.experts, experts.op.topk, experts.op.hidden, experts.op.inter) == (128, 8, 2048, 768)
    assert "gate_up_proj" not in calls
    assert "expert_sum" not in calls


def test_shared_experts_run_beside_and_are_added():
    calls = decode("deepseek-v2-lite", batch=3)
    assert gemms(calls)["shared_gate_up_proj"] == (3, 2 * 2816, 2048)
    assert gemms(calls)["shared_down_proj"] == (3, 2048, 2816)
    assert calls["expert_sum"].count == calls["experts"].count == 26
    assert calls["expert_sum"].op.read_per_row == 2 * 2048 * 2  # routed and shared results, bf16
    assert calls["gate_up_proj"].count == 1  # the first layer is dense


def test_a_dense_network_beside_the_experts():
    config = read_model("gemma-4-26b-a4b")
    calls = decode(replace(config, stacks=config.stacks[:1]))
    assert gemms(calls)["dense_gate_up_proj"] == (1, 2 * 2112, 2816)
    assert calls["expert_sum"].count == calls["experts"].count == 25


def test_qk_norm_covers_query_and_key_heads():
    with_norm = decode("qwen3-0.6b")["qk_norm"]
    assert with_norm.count == 28
    assert with_norm.op.read_per_row == 2 * (16 + 8) * 128
    assert "qk_norm" not in decode("llama-3.1-8b")


def test_latent_decode_attends_to_the_latent():
    calls = decode("deepseek-v2-lite", batch=5, context=700)
    assert "attention_prompt" not in calls
    assert "kv_b_proj" not in calls
    latent = calls["attention_latent"].op
    assert (latent.heads, latent.kv_heads, latent.head_dim, latent.value_dim) == (16, 1, 512 + 64, 512)
    assert latent.kv_bytes == 5 * 700 * 576 * 2
    assert gemms(calls)["q_absorb"] == (5, 512, 128)
    assert gemms(calls)["v_expand"] == (5, 128, 512)
    assert calls["q_absorb"].op.batch == calls["v_expand"].op.batch == 16


def test_latent_prefill_expands_every_key_cached_ones_too():
    calls = step("deepseek-v2-lite", [100], [300])
    assert "attention_latent" not in calls
    assert gemms(calls)["kv_b_proj"] == (300, 16 * (128 + 128), 512)
    prompt = calls["attention_prompt"].op
    assert (prompt.heads, prompt.kv_heads, prompt.head_dim, prompt.value_dim) == (16, 16, 128 + 64, 128)


def test_latent_mixed_batches_use_both_forms_each_on_its_own_sequences():
    calls = step("deepseek-v2-lite", [1, 100, 1], [50, 300, 60], sampled=3)
    assert calls["attention_latent"].op.keys.tolist() == [50, 60]
    assert calls["attention_prompt"].op.keys.tolist() == [300]
    assert gemms(calls)["q_absorb"][0] == 2


def test_compressed_queries():
    shapes = gemms(decode("deepseek-v3"))
    assert shapes["qkv_a_proj"] == (1, 1536 + 512 + 64, 7168)
    assert shapes["q_b_proj"] == (1, 128 * (128 + 64), 1536)
    assert "q_proj" not in shapes


def test_windowed_layers_have_their_own_kernel():
    calls = decode("gpt-oss-20b", context=5000)
    windowed, full = calls["attention_window"], calls["attention"]
    assert (windowed.count, windowed.op.window) == (12, 128)
    assert (full.count, full.op.window) == (12, 0)
    assert (windowed.op.num_pairs, full.op.num_pairs) == (128, 5000)


def test_kinds_of_attention_are_counted_over_all_stacks():
    # A full-attention layer with a dense network and eight with experts share one kind of attention.
    assert sorted(mixer_layers(read_model("mimo-v2-flash")).values()) == [9, 39]


def test_fp8_quantises_the_input_of_every_linear_layer_but_the_head():
    # Norms and activations quantise what they write, as the engine's compiler fuses it; attention does not.
    calls = decode("llama-3.1-8b", quantization="fp8")
    assert {name for name in calls if name.endswith("_quantise")} == {"norm_quantise", "o_proj_quantise"}
    assert (calls["norm_quantise"].count, calls["o_proj_quantise"].count) == (64, 32)
    plain = decode("llama-3.1-8b")
    for name, fused in (("norm", "norm_quantise"), ("activation", "activation")):
        assert calls[fused].op.bytes_written < plain[name].op.bytes_written
    assert calls["down_proj"].op.compute_dtype == "fp8"
    assert calls["lm_head"].op.compute_dtype == "bf16"


def test_fp8_experts_are_quantised_once_a_layer():
    calls = decode("qwen3-30b-a3b", quantization="fp8")
    assert calls["experts_quantise"].count == 48
    assert "router_quantise" not in calls


def test_weight_only_formats_quantise_nothing():
    calls = decode("llama-3.1-8b", quantization="awq")
    assert not [name for name in calls if name.endswith("_quantise")]
    assert (calls["qkv_proj"].op.dtype, calls["qkv_proj"].op.weight_dtype) == ("bf16", "int4")


def test_an_fp8_cache_is_written_and_read_in_fp8():
    plain, narrow = decode("llama-3.1-8b"), decode(replace(read_model("llama-3.1-8b"), kv_dtype="fp8"))
    assert narrow["kv_write"].op.bytes_written == plain["kv_write"].op.bytes_written / 2
    assert narrow["attention"].op.kv_bytes == plain["attention"].op.kv_bytes / 2


def test_a_tied_head_multiplies_all_the_same():
    assert gemms(decode("qwen3-0.6b"))["lm_head"] == (1, 151936, 1024)


def test_values_that_are_the_keys_are_projected_once_and_cached_twice():
    stack = next(stack for stack in read_model("gemma-4-31b").stacks if stack.mixer.shared_key_value)
    calls = decode(replace(read_model("gemma-4-31b"), stacks=(stack,)))
    assert gemms(calls)["qkv_proj"][1] == (32 + 4) * 512
    assert calls["kv_write"].op.written_per_row == 2 * 2 * 4 * 512


def test_layers_that_read_an_earlier_cache_project_queries_alone_and_write_nothing():
    config = read_model("gemma-4-e2b")
    own, borrowed = (decode(replace(config, stacks=(config.stacks[number],), order=())) for number in (1, 3))
    assert [gemms(calls)["qkv_proj"][1] for calls in (own, borrowed)] == [(8 + 2) * 512, 8 * 512]
    assert "kv_write" in own
    assert "kv_write" not in borrowed
    assert borrowed["attention"].op == own["attention"].op
    assert borrowed["rope"].op.read_per_row < own["rope"].op.read_per_row


def test_layers_gate_and_add_embeddings_of_their_own():
    config, tokens = read_model("gemma-4-e2b"), 100
    calls = {call.name: call for call in token_calls(config, ALONE, tokens)}
    assert calls["layer_embedding"].op.read_per_row == 2 * 35 * 256 + 8
    assert (calls["layer_inputs"].count, gemms(calls)["layer_inputs"]) == (1, (tokens, 35 * 256, 1536))
    assert (calls["input_gate"].count, gemms(calls)["input_gate"]) == (35, (tokens, 256, 1536))
    assert (calls["input_up"].count, gemms(calls)["input_up"]) == (35, (tokens, 1536, 256))
    assert calls["norm"].count == 5 * 35
    pair = {call.name: call for call in token_calls(config, PAIR, tokens)}
    assert pair["layer_inputs"].op.n == 35 * 128
    assert pair["layer_inputs_gather"].op.message_bytes == 2 * tokens * 35 * 256


def test_networks_without_a_gate():
    config = read_model("llama-3.1-8b")
    stack = replace(config.stacks[0], feed_forward=DenseFeedForward(1000, gated=False))
    shapes = gemms(decode(replace(config, stacks=(stack,))))
    assert shapes["up_proj"] == (1, 1000, 4096)
    assert "gate_up_proj" not in shapes


def test_two_gpus_split_heads_and_widths():
    shapes = gemms(decode("llama-3.1-8b", layout=PAIR))
    assert shapes == {
        "qkv_proj": (1, 3072, 4096),
        "o_proj": (1, 4096, 2048),
        "gate_up_proj": (1, 14336, 4096),
        "down_proj": (1, 4096, 7168),
        "lm_head": (1, 64128, 4096),
    }
    attention = decode("llama-3.1-8b", layout=PAIR)["attention"].op
    assert (attention.heads, attention.kv_heads) == (16, 4)


def test_two_gpus_reduce_after_each_half_and_gather_the_logits():
    calls = decode("llama-3.1-8b", batch=7, layout=PAIR)
    assert calls["all_reduce"].count == 64
    assert calls["all_reduce"].op.message_bytes == 7 * 4096 * 2
    assert calls["logits_gather"].op.message_bytes == 7 * 128256 * 2
    assert "all_reduce" not in decode("llama-3.1-8b")


def test_two_gpus_split_experts_by_width_and_keep_the_latent_whole():
    calls = decode("deepseek-v2-lite", layout=PAIR)
    assert calls["experts"].op.inter == 704
    assert calls["experts"].op.num_local == 64
    assert gemms(calls)["kv_a_proj"] == (1, 576, 2048)
    assert calls["attention_latent"].op.heads == 8


MODELS = ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b", "gemma-4-26b-a4b", "llama-3.1-8b-fp8"]


@pytest.mark.parametrize("quantity", ["flops", "bytes_read", "bytes_written"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("lower", [token_calls, head_calls])
def test_arrays_of_token_counts_equal_them_one_by_one(lower, model, quantity):
    config, tokens = read_model(model), np.array([1, 33, 8192])
    together = lower(config, PAIR, tokens)
    for position, count in enumerate(tokens.tolist()):
        apart = lower(config, PAIR, count)
        assert [(call.name, call.count) for call in together] == [(call.name, call.count) for call in apart]
        for array, single in zip(together, apart, strict=True):
            value = np.broadcast_to(getattr(array.op, quantity), 3)[position]
            # Powers of arrays and of numbers may differ in the last bit.
            assert value == pytest.approx(getattr(single.op, quantity), rel=1e-12)


def test_merging_keeps_launches_and_totals():
    calls = [Call("a", Gemm(4, 8, 16), 3), Call("b", Gemm(4, 8, 16), 1), Call("a", Gemm(4, 8, 16), 2)]
    calls += [Call("a", Gemm(4, 8, 32), 5), Call("c", norm(4, 8, residual=True), 1)]
    merged = merge(calls)
    assert [(call.name, call.count) for call in merged] == [("a", 5), ("b", 1), ("a", 5), ("c", 1)]
    assert sum(call.count * call.op.flops for call in merged) == sum(call.count * call.op.flops for call in calls)


def test_a_model_cut_into_stacks_has_the_same_kernels():
    config = read_model("llama-3.1-8b")
    whole = config.stacks[0]
    cut = replace(config, stacks=(replace(whole, layers=20), Stack(12, whole.mixer, whole.feed_forward)))
    assert decode(cut).keys() == decode(config).keys()
    assert token_calls(cut, ALONE, 9) == token_calls(config, ALONE, 9)
    lengths = np.array([1, 5])
    assert [call.count for call in attention_calls(cut, ALONE, lengths, lengths)] == [32]
