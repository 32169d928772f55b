"""Scans, state updates and convolutions: what bounds them, and that one kernel is estimated as many are."""

from dataclasses import fields, replace

import numpy as np
import pytest

from infercast.errors import InputError
from infercast.forecast.estimate import build_op
from infercast.hardware import load_gpu
from infercast.ops import Scan, ShortConvolution, StateUpdate
from infercast.predict.families.attention_kernels import batch_of
from infercast.predict.families.recurrent import (
    LIBRARIES,
    ConvolutionPhysics,
    ScanPhysics,
    StateUpdatePhysics,
    scan_kernel,
)
from infercast.predict.identity import kernel_profile
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import limit_seconds

H200, L40S, B200 = (load_gpu(name) for name in ("h200-sxm", "l40s", "b200-sxm"))
GPUS = tuple(load_gpu(name) for name in ("a100-sxm", "l40s", "h100-sxm", "h200-sxm", "b200-sxm"))
LEARNED = make_predictor()
HEADS = {"heads": 32, "key_heads": 16}
STATE_SPACE = {"heads": 64, "key_heads": 8, "key_dim": 128, "value_dim": 64, "chunk": 128, "kind": "mamba2"}


def scan(*lengths, kernel="", kind="gdn", **sizes):
    sizes = STATE_SPACE if kind == "mamba2" else {**HEADS, "kind": kind, **sizes}
    return Scan(np.array(lengths), kernel=kernel, **sizes)


def seconds(op, gpu=H200):
    return float(np.ravel(LEARNED.seconds(op, gpu))[0])


def physics(op, gpu=H200):
    return float(ScanPhysics(op, gpu).physics(batch_of(op)).seconds[0])


@pytest.mark.parametrize(("kind", "kernel"), LIBRARIES)
def test_a_sequence_is_serial_and_heads_and_sequences_are_parallel(kind, kernel):
    short, long = scan(2048, kind=kind, kernel=kernel), scan(32_768, kind=kind, kernel=kernel)
    assert physics(long) > 8 * physics(short), "sixteen times the chunks, one after another"
    assert physics(scan(64, 64, kind=kind, kernel=kernel)) < 1.5 * physics(scan(64, kind=kind, kernel=kernel))


def test_a_block_that_takes_a_sequence_leaves_room_for_others():
    one, four = scan(8192, kernel="flashinfer"), scan(*[8192] * 4, kernel="flashinfer")
    eight = scan(*[8192] * 8, kernel="flashinfer")
    assert seconds(four) == pytest.approx(seconds(one), rel=0.05), "128 heads of 132 multiprocessors"
    assert seconds(eight) == pytest.approx(2 * seconds(four), rel=0.1), "two rounds"


@pytest.mark.parametrize("kernel", ["triton", "flashinfer"])
def test_the_longest_sequence_and_all_tokens_bound_an_uneven_batch(kernel):
    uneven, longest = scan(16_384, *[512] * 8, kernel=kernel), scan(16_384, kernel=kernel)
    even = scan(*[2276] * 9, kernel=kernel)
    assert physics(uneven) > 0.99 * physics(longest)
    assert physics(uneven) > physics(even), "as many tokens, but one sequence has most of them"
    assert physics(uneven) < physics(longest) + physics(scan(*[512] * 8, kernel=kernel))


def test_padding_and_histograms_are_the_same_batch():
    listed, counted = scan(700, 700, 64), Scan(np.array([700, 64, 9]), np.array([2, 1, 0]), **HEADS)
    assert seconds(counted) == pytest.approx(seconds(listed), rel=1e-9)
    assert counted.num_tokens == listed.num_tokens == 1464
    assert (counted.most_chunks, counted.num_sequences) == (11, 3)
    assert counted.flops == listed.flops
    assert counted.bytes_read == listed.bytes_read


@pytest.mark.parametrize("gpu", [H200, L40S], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("kind", ["gdn", "kda", "mamba2"])
def test_one_scan_is_estimated_as_many_are(kind, gpu):
    one = replace(scan(777, kind=kind), sequences=3)
    many = replace(one, queries=np.array([[777], [5000]]), sequences=np.array([[3], [1]]))
    alone, together = LEARNED.estimate(one, gpu), LEARNED.estimate(many, gpu)
    assert together.seconds[0] == pytest.approx(alone.seconds, rel=1e-9)
    assert alone.low < alone.seconds < alone.high
    assert LEARNED.explain(one, gpu)["chain"] > 0


def test_one_update_and_one_convolution_are_estimated_as_many_are():
    update = StateUpdate(np.array([1, 64]), **HEADS)
    assert seconds(StateUpdate(1, **HEADS)) == pytest.approx(float(LEARNED.seconds(update, H200)[0]), rel=1e-9)
    tokens = ShortConvolution(np.array([512, 4096]), np.array([1, 8]), channels=8192)
    one = ShortConvolution(512, 1, channels=8192)
    assert seconds(one) == pytest.approx(float(LEARNED.seconds(tokens, H200)[0]), rel=1e-9)


def test_decoding_does_not_depend_on_context():
    sizes = {field.name for field in fields(StateUpdate)} | {field.name for field in fields(ShortConvolution)}
    assert sizes.isdisjoint({"keys", "kv_len", "context"})


def test_updates_are_bound_by_memory():
    few, many = StateUpdate(256, **HEADS), StateUpdate(512, **HEADS)
    assert seconds(many) == pytest.approx(2 * seconds(few), rel=0.1)
    assert seconds(many) < 1.5 * many.state_bytes * 2 / H200.dram_bandwidth
    assert LEARNED.estimate(many, H200).bound == "dram"
    assert seconds(replace(many, state_dtype="bf16")) < 0.65 * seconds(many)


def test_states_are_cold_in_an_engine():
    """As a table repeats them, those of eight sequences stay in L2."""
    core = StateUpdatePhysics(StateUpdate(8, **HEADS), H200)
    table, engine = core.physics(8.0), core.physics(8.0, engine=True)
    assert engine.seconds > 1.2 * table.seconds
    assert engine.features == table.features


def test_convolutions_of_prompts_are_bound_by_tokens():
    four, eight = (ShortConvolution(1024 * n, n, channels=8192) for n in (4, 8))
    assert seconds(eight) == pytest.approx(2 * seconds(four), rel=0.15)
    core = ConvolutionPhysics(ShortConvolution(1, 1, channels=6144, kernel="cuda"), H200)
    assert core.physics((512.0, 1.0)).seconds == pytest.approx(core.physics((2.0, 1.0)).seconds, rel=0.05)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_nothing_is_faster_than_the_hardware(gpu):
    for op in (
        scan(32_768, *[4096] * 8),
        scan(8192, 8192, kind="kda"),
        scan(*[2048] * 16, kind="mamba2"),
        StateUpdate(512, **HEADS),
        StateUpdate(512, kind="kda", heads=32, key_heads=32),
        StateUpdate(512, 64, 8, 128, 64, "mamba2"),
        ShortConvolution(65_536, 32, channels=8192),
    ):
        assert seconds(op, gpu) > limit_seconds(op, gpu)[0], op
        assert np.isfinite(seconds(op, gpu))


def test_which_kernel_an_engine_runs():
    profile = kernel_profile()
    assert scan_kernel(scan(64), H200, profile) == scan_kernel(scan(64), B200, profile) == "flashinfer"
    assert scan_kernel(scan(64), L40S, profile) == scan_kernel(scan(64, kind="kda"), H200, profile) == "triton"
    assert scan_kernel(scan(64, kernel="triton"), H200, profile) == "triton"
    assert seconds(scan(8192)) == seconds(scan(8192, kernel="flashinfer")) < seconds(scan(8192, kernel="triton"))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gdn_scan", {"batch": 4, "q_len": 2048, **HEADS}),
        ("kda_scan", {"batch": 4, "q_len": 2048, "heads": 32, "key_heads": 32}),
        ("mamba2_scan", {"batch": 4, "q_len": 2048, "heads": 64, "key_heads": 8, "chunk": 256}),
        ("gdn_update", {"batch": 64, **HEADS, "state_dtype": "bf16"}),
        ("kda_update", {"batch": 64, "heads": 32, "key_heads": 32}),
        ("mamba2_update", {"batch": 64, "heads": 64, "key_heads": 8}),
        ("convolution", {"batch": 4, "q_len": 2048, "channels": 8192}),
        ("convolution_update", {"batch": 64, "channels": 8192}),
    ],
)
def test_people_ask_for_them_by_name(name, values):
    op = build_op(name, values)
    assert 1e-6 < seconds(op) < 5e-3
    missing = {key: value for key, value in values.items() if key != "batch"}
    with pytest.raises(InputError, match=f"{name} needs batch"):
        build_op(name, missing)


def test_what_was_measured_says_so():
    assert LEARNED.estimate(scan(1024), H200).source == "measured"
    assert LEARNED.estimate(scan(1024), load_gpu("gh200")).source == "sibling"
    assert LEARNED.estimate(scan(1024), load_gpu("a100-sxm")).source == "unseen"
    assert LEARNED.estimate(StateUpdate(8, **HEADS), load_gpu("mi300x")).source == "typical"
