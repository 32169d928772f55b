"""Blocks that vLLM 0.25's own functions gave for every bundled model with states, an indexer or compressed caches.

``kv_states.csv`` was written by benchmarks/scheduler/kv_states.py: 40 GiB a GPU, sequences of 32,768 tokens computed
8,192 at a time, an H200. Windows of -1 are groups of states.
"""

import csv
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from infercast import deploy, simulate
from infercast.engines.base import engine_named
from infercast.engines.vllm.kv_cache import StateBlocks, States, hybrid_block_size, kv_layout
from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import DoesNotFitError, InputError
from infercast.hardware import load_gpu
from infercast.models.layout import ParallelLayout
from infercast.models.library import model_names
from infercast.models.read import read_model
from infercast.serve.cache.blocks import KvShape
from infercast.serve.workload.synthetic import synthetic_workload

with Path(__file__).with_name("kv_states.csv").open(encoding="utf-8", newline="") as file:
    TABLE = {name: list(rows) for name, rows in groupby(csv.DictReader(file), key=lambda row: row["model"])}
GPU = load_gpu("h200-sxm")


def numbers(text):
    return tuple(map(int, text.split()))


@pytest.mark.parametrize("model", TABLE)
def test_blocks_are_those_of_the_engine(model):
    config = engine_named().choose_kernels(read_model(model), GPU, ParallelLayout(1))
    for row in TABLE[model]:
        layout, states = ParallelLayout(int(row["tensor"])), StateBlocks(row["mode"])
        kv = kv_layout(config, layout, int(row["asked"]), states=states)
        shape, size = kv.shape, hybrid_block_size(config, layout, int(row["asked"]), states)
        groups = [(-1 if place in shape.states else window) for place, window in enumerate(shape.windows)]
        sizes = [*shape.sizes, *[size] * shape.state_blocks]
        found = sorted(zip([*groups, *[-1] * shape.state_blocks], sizes, strict=True))
        assert found == [*zip(numbers(row["windows"]), numbers(row["block_sizes"]), strict=True)]
        blocks = 40 * 2**30 // kv.block_bytes
        assert (blocks, (blocks - 1) // shape.most_blocks(32_768, 8_192)) == (int(row["blocks"]), int(row["sequences"]))


def test_every_bundled_model_with_states_is_in_it():
    assert {name for name in model_names() if States.of(read_model(name)).kept} <= {*TABLE}


@pytest.mark.parametrize(
    ("model", "engine", "asked", "expected"),
    [
        ("qwen3.5-35b-a3b", "vllm@0.25", None, (False, "none", 1056)),
        ("qwen3.5-35b-a3b", "vllm@0.25", True, (True, "align", 1056)),
        ("qwen3.5-35b-a3b", "vllm@0.32", None, (True, "align", 1056)),
        ("nemotron-3-nano-30b-a3b", "vllm@0.25", None, (False, "none", 2096)),
        ("nemotron-3-nano-30b-a3b", "vllm@0.25", True, (True, "all", 2176)),
        ("nemotron-3-nano-30b-a3b", "vllm@0.32", True, (True, "align", 2096)),
        ("kimi-linear-48b-a3b", "vllm@0.25", True, (True, "align", 1888)),
        ("kimi-linear-48b-a3b", "vllm@0.32", True, (True, "align", 1920)),
        ("llama-3.1-8b", "vllm@0.25", None, (True, "none", 16)),
    ],
)
def test_how_states_are_cached_where_nobody_says(model, engine, asked, expected):
    settings = deploy(model, GPU, EngineSettings(enable_prefix_caching=asked, engine=engine)).settings
    assert (settings.enable_prefix_caching, settings.mamba_cache_mode, settings.block_size) == expected


def test_a_step_has_to_have_room_for_a_block_whose_state_is_kept():
    caching = {"enable_prefix_caching": True, "engine": "vllm@0.25"}
    with pytest.raises(InputError, match="max_num_batched_tokens 1024 is below the 1056 tokens"):
        deploy("qwen3.5-35b-a3b", GPU, EngineSettings(max_num_batched_tokens=1024, **caching))
    with pytest.raises(InputError, match="chunked prefill"):
        deploy("qwen3.5-35b-a3b", GPU, EngineSettings(enable_chunked_prefill=False, **caching))


def test_every_running_sequence_needs_a_state():
    with pytest.raises(DoesNotFitError, match="max_num_seqs 1024"):
        deploy("qwen3.5-35b-a3b", GPU, EngineSettings(num_gpu_blocks_override=800))
    assert deploy("qwen3.5-35b-a3b", GPU, EngineSettings(num_gpu_blocks_override=800, enforce_eager=True))


def test_short_windows_of_a_packed_cache_are_blocks_that_a_sequence_keeps():
    shape = KvShape(4, (0, 128, 8), (256, 64, 4)).of_one_size
    assert shape == KvShape(256, (0,), state_blocks=3 + 3)


def test_tokens_that_all_blocks_hold_do_not_depend_on_how_states_are_cached():
    plans = [
        deploy("qwen3.5-35b-a3b", GPU, EngineSettings(enable_prefix_caching=each)).memory for each in (False, True)
    ]
    sizes = 1056, 1088  # with exported states, a multiple of 64
    assert [plan.num_tokens for plan in plans] == [
        size * plan.num_blocks for size, plan in zip(sizes, plans, strict=True)
    ]


@pytest.mark.parametrize("caching", [False, True])
def test_states_are_held_while_sequences_run(caching):
    settings = EngineSettings(enable_prefix_caching=caching, max_num_seqs=64)
    deployment = deploy("qwen3.5-35b-a3b", GPU, settings, predictor="roofline")
    workload = synthetic_workload(count=12, rate=1000.0, input_lengths=500, output_lengths=40, prefix_length=2500)
    forecast = simulate(deployment, workload)
    assert forecast.ttft.p50 > 0
    hits = forecast.records[0].num_cached
    assert set(hits.tolist()) <= ({0, 2176} if caching else {0})  # two blocks of 1,088 of the 2,500 in common


def test_a_model_of_recurrent_layers_alone_keeps_one_block_a_sequence():
    whole = read_model("qwen3.5-27b")
    stack = next(stack for stack in whole.stacks if hasattr(stack.mixer, "state"))
    config = replace(whole, stacks=(stack,), order=(), vision=None)
    deployment = deploy(config, GPU, EngineSettings(max_num_seqs=64), predictor="roofline")
    assert not deployment.settings.enable_prefix_caching
    shape = deployment.memory.kv.shape
    assert (shape.windows, shape.state_blocks) == ((), 1)
    assert deployment.memory.most_sequences(10**6, 8192) == deployment.memory.request_blocks
    workload = synthetic_workload(count=6, rate=100.0, input_lengths=3000, output_lengths=20)
    assert simulate(deployment, workload).ttft.p50 > 0
