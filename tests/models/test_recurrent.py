"""Recurrent token mixers: their weights, states, kernels and how GPUs split them."""

import numpy as np
import pytest

from infercast.models.layout import ParallelLayout
from infercast.models.library import bundled_config
from infercast.models.lower import attention_calls, token_calls
from infercast.models.mixers.mixer import SequenceBatch
from infercast.models.mixers.recurrent import (
    GatedConvolution,
    GatedDeltaNet,
    KimiDeltaAttention,
    Mamba2,
    RecurrentMixer,
)
from infercast.models.read import read_model

DELTA = GatedDeltaNet(heads=32, key_heads=16, key_dim=128, value_dim=128, state_dtype="fp32")
KIMI = KimiDeltaAttention(heads=32, head_dim=128)
MAMBA = Mamba2(heads=64, head_dim=64, state_size=128, groups=8, state_dtype="fp32")
CONVOLUTION = GatedConvolution(2048)
KINDS = {"delta": DELTA, "kimi": KIMI, "mamba": MAMBA, "convolution": CONVOLUTION}
MODELS = ["qwen3.5-35b-a3b", "nemotron-3-nano-30b-a3b", "kimi-linear-48b-a3b", "lfm2-1.2b", "granite-4.0-h-small"]


def shard(tensor=1):
    return read_model("qwen3.5-35b-a3b").shard(ParallelLayout(tensor))


def calls_of(mixer, queries, tensor=1, sequences=1):
    lengths = np.array(queries)
    found = mixer.sequence_calls(shard(tensor), SequenceBatch(lengths, lengths + 1000, sequences))
    return {call.name: call.op for call in found}


def test_states_are_those_of_the_engine():
    # mamba_utils.py: three tokens of each channel in bf16, and the matrices in fp32.
    assert DELTA.caches(shard())[0].bytes_per_sequence == 3 * 8192 * 2 + 32 * 128 * 128 * 4
    assert KIMI.caches(shard())[0].bytes_per_sequence == 3 * 12288 * 2 + 32 * 128 * 128 * 4
    assert MAMBA.caches(shard())[0].bytes_per_sequence == 3 * 6144 * 2 + 64 * 64 * 128 * 4
    assert CONVOLUTION.caches(shard())[0].bytes_per_sequence == 2 * 2048 * 2


def test_a_state_has_the_models_own_format_where_nothing_says_otherwise():
    assert GatedDeltaNet(32, 16, 128, 128).caches(shard())[0].bytes_per_sequence == 3 * 8192 * 2 + 32 * 128 * 128 * 2
    assert {stack.mixer.state_dtype for stack in read_model("granite-4.0-h-small").stacks[:1]} == {""}
    assert read_model("nemotron-h-56b").stacks[0].mixer.state_dtype == "fp32"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tensor", [2, 8])
def test_gpus_split_states_weights_and_kernels(kind, tensor):
    mixer = KINDS[kind]
    whole, part = mixer.caches(shard())[0], mixer.caches(shard(tensor))[0]
    assert part.bytes_per_sequence == whole.bytes_per_sequence / tensor
    held = mixer.held_bytes(shard(tensor)) * tensor / mixer.held_bytes(shard())
    assert held == pytest.approx(1.0, rel=0.15), "all but what leads to the gates"
    alone, split = (calls_of(mixer, [1] * 4, each) for each in (1, tensor))
    assert set(alone) == set(split)
    name = "state_update" if "state_update" in alone else "convolution_update"
    assert split[name].bytes_read < 1.2 * alone[name].bytes_read / tensor
    assert mixer.divides(tensor)
    assert not mixer.divides(3)


def test_a_single_group_is_on_every_gpu_and_its_norm_is_reduced():
    one = Mamba2(heads=128, head_dim=64, state_size=128, groups=1)
    assert one.divides(8)
    assert one.state(shard(8)).channels == 1024 + 2 * 128
    names = [call.name for call in one.token_calls(shard(8), 100)]
    assert "gated_norm_reduce" in names
    assert not Mamba2(64, 64, 128, groups=8).divides(16)


@pytest.mark.parametrize(
    ("kind", "decoding", "prompts", "both"),
    [
        # A gated delta net convolves all of a mixed batch at once, and updates decoding sequences by themselves.
        ("delta", {"convolution", "state_update"}, {"convolution", "scan", "state_copy", "scan_inputs", "scan_output"},
         {"convolution", "scan", "state_copy", "scan_inputs", "scan_output", "state_update"}),
        # Kimi's scans them too.
        ("kimi", {"convolution", "state_update"}, {"convolution", "scan", "state_copy", "scan_inputs", "scan_output"},
         {"convolution", "scan", "state_copy", "scan_inputs", "scan_output"}),
        ("mamba", {"convolution_update", "state_update"}, {"convolution", "scan", "state_copy"},
         {"convolution", "scan", "state_copy", "convolution_update", "state_update"}),
        ("convolution", {"convolution_update"}, {"convolution"}, {"convolution", "convolution_update"}),
    ],
)  # fmt: skip
def test_kernels_of_prompts_and_of_decoding_sequences(kind, decoding, prompts, both):
    mixer = KINDS[kind]
    assert set(calls_of(mixer, [1, 1, 1])) == decoding
    assert set(calls_of(mixer, [500, 2])) == prompts
    assert set(calls_of(mixer, [1, 500])) == both


def test_mixed_batches_are_divided_as_the_engine_divides_them():
    mixed = calls_of(DELTA, [1, 1, 700, 300])
    convolved = mixed["convolution"]
    assert (convolved.tokens, convolved.sequences, convolved.update) == (1002, 4, False)
    assert (mixed["scan"].num_tokens, mixed["scan"].num_sequences, mixed["state_update"].rows) == (1000, 2, 2)
    assert calls_of(KIMI, [1, 1, 700, 300])["scan"].num_sequences == 4
    mixed = calls_of(MAMBA, [1, 1, 700, 300])
    assert (mixed["convolution"].tokens, mixed["convolution_update"].tokens) == (1000, 2)


def test_histograms_and_lists_are_the_same_batch():
    listed = calls_of(MAMBA, [1] * 5 + [700] * 2)
    counted = calls_of(MAMBA, [1, 700], sequences=np.array([5, 2]))
    for name, op in listed.items():
        assert op.flops == counted[name].flops
        assert op.bytes_read == counted[name].bytes_read


@pytest.mark.parametrize("model", MODELS)
def test_arrays_of_batches_are_what_single_ones_are(model):
    config, layout = read_model(model), ParallelLayout()
    counts = np.array([1, 7, 64])
    many = attention_calls(config, layout, np.ones((1, 1), int), np.full((3, 1), 900), counts[:, None])
    for index, count in enumerate(counts):
        single = attention_calls(config, layout, np.ones(count, int), np.full(count, 900))
        assert [call.name for call in single] == [call.name for call in many]
        for one, array in zip(single, many, strict=True):
            assert np.broadcast_to(array.op.bytes_read, 3)[index] == one.op.bytes_read
    lengths = np.array([[512, 512], [2048, 2048]])
    for batch, prompts in zip(lengths, (512, 2048), strict=True):
        whole = attention_calls(config, layout, lengths, lengths)
        single = attention_calls(config, layout, batch, batch)
        row = (512, 2048).index(prompts)
        for array, one in zip(whole, single, strict=True):
            assert np.broadcast_to(array.op.bytes_written, 2)[row] == one.op.bytes_written


@pytest.mark.parametrize("model", MODELS)
def test_what_recurrent_layers_do_for_a_token_does_not_depend_on_its_context(model):
    config, layout = read_model(model), ParallelLayout()
    ones = np.ones(8, int)
    short, long = (
        {
            call.name: (call.op.bytes_read, call.op.bytes_written, call.op.flops)
            for call in attention_calls(config, layout, ones, ones * keys)
            if not call.name.startswith(("attention", "q_absorb", "v_expand"))
        }
        for keys in (100, 100_000)
    )
    assert short
    assert short == long


def test_products_of_a_gated_delta_net():
    ops = {call.name: call.op for call in DELTA.token_calls(shard(2), 100)}
    assert (ops["qkvz_proj"].n, ops["qkvz_proj"].k) == (6144, 2048)
    assert (ops["gates_proj"].n, ops["out_proj"].n, ops["out_proj"].k) == (32, 2048, 2048)


def test_products_of_kimi_k3_are_joined():
    mixer = KimiDeltaAttention(96, 128, full_rank_gate=True)
    joined = {call.name: call.op for call in mixer.token_calls(shard(), 1)}
    assert joined["in_proj"].n == 4 * 12288 + 128 + 96
    assert {"qkv_proj", "gate_down"}.isdisjoint(joined)
    assert calls_of(mixer, [1])["convolution"].channels == 3 * 12288
    assert calls_of(KIMI, [1])["convolution"].channels == 4096


@pytest.mark.parametrize("model", MODELS)
def test_layers_are_counted_by_kind(model):
    config = read_model(model)
    names = {call.name: call.count for call in token_calls(config, ParallelLayout(2), 16)}
    recurrent = sum(stack.layers for stack in config.stacks if isinstance(stack.mixer, RecurrentMixer))
    projected = sum(names.get(name, 0) for name in ("qkvz_proj", "in_proj", "update_proj"))
    assert recurrent == projected
    halves = (stack.layers * (1 if stack.norms == 1 else 2) for stack in config.stacks)
    assert names["all_reduce"] == names["norm"] == sum(halves)


def test_quantised_mixers_have_a_format_of_their_own():
    values = {"quant_algo": "MIXED_PRECISION", "quant_method": "modelopt"}
    layers = {f"model.language_model.layers.{n}.linear_attn.out_proj": {"quant_algo": "FP8"} for n in range(40)}
    config = read_model(
        {**bundled_config("qwen3.5-35b-a3b"), "quantization_config": {**values, "quantized_layers": layers}}
    )
    assert (config.weights.recurrent, config.weights.attention) == ("fp8", "bf16")
    names = {call.name: call.op for call in token_calls(config, ParallelLayout(), 16)}
    assert (names["qkvz_proj"].dtype, names["qkv_proj"].dtype) == ("fp8", "bf16")
    assert "qkvz_proj_quantise" in names
