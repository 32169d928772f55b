"""LoRA adapters of vLLM: memory, kernels and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infercast import EngineSettings, InputError, Workload, deploy, simulate
from infercast.forecast.memory import fit_memory
from infercast.models.lower import lora_calls
from infercast.serve.workload.classes import with_adapters
from infercast.serve.workload.request import Adapters, Request

HIDDEN, FEED, LAYERS, KV = 4096, 14336, 32, 1024


def with_lora(**settings: Any) -> Any:
    return deploy("llama-3.1-8b", "h200-sxm", EngineSettings(enable_lora=True, **settings))


def test_adapters_take_what_their_matrices_have() -> None:
    plain, lora = deploy("llama-3.1-8b", "h200-sxm"), with_lora(max_loras=4, max_lora_rank=32)
    joined = 3 * HIDDEN + HIDDEN + 2 * KV
    values = joined + 2 * HIDDEN + (2 * HIDDEN + 2 * FEED) + (FEED + HIDDEN)
    assert lora.memory.weights - plain.memory.weights == 4 * 32 * LAYERS * values * 2
    assert lora.memory.graphs > 2 * plain.memory.graphs
    assert lora.memory.num_blocks < plain.memory.num_blocks


def test_every_projection_gets_two_kernels_more() -> None:
    lora = with_lora(max_loras=2)
    calls = lora_calls(lora.model, lora.layout, 64)
    assert {call.name for call in calls} == {"lora_shrink", "lora_expand"}
    assert sum(call.count for call in calls) == 2 * 4 * LAYERS


def test_more_adapters_and_higher_ranks_take_longer() -> None:
    seconds = [
        with_lora(max_loras=count, max_lora_rank=rank)
        .timer()
        .adapted.decode(64, 64 * 500, lambda: [500] * 64, 1)
        .gpu_seconds[0]
        for count, rank in ((1, 16), (8, 16), (8, 128))
    ]
    plain = deploy("llama-3.1-8b", "h200-sxm").timer().decode(64, 64 * 500, lambda: [500] * 64, 1).gpu_seconds[0]
    assert plain < seconds[0] < seconds[1] < seconds[2]


def test_memory_says_what_a_deployment_has() -> None:
    settings = EngineSettings(enable_lora=True, max_loras=32, max_lora_rank=256)
    assert (
        fit_memory("llama-3.1-8b", "h200-sxm", settings).memory == deploy("llama-3.1-8b", "h200-sxm", settings).memory
    )
    assert not fit_memory("llama-3.1-8b", "l40s", settings).memory.num_blocks


def test_adapters_cost_only_the_steps_that_have_one() -> None:
    requests = tuple(Request(0.2 * index, 300, 20) for index in range(20))
    plain = simulate(deploy("llama-3.1-8b", "h200-sxm"), Workload(requests))
    asking = with_adapters(Workload(requests), Adapters(2, share=0.5), seed=0)
    bare, lora = (simulate(with_lora(max_loras=2), each) for each in (Workload(requests), asking))
    assert bare.clients.first_token.tolist() == plain.clients.first_token.tolist()
    assert bare.clients.last_token.tolist() == plain.clients.last_token.tolist()
    slower = lora.clients.tpot > plain.clients.tpot * 1.02
    has_one = np.array([request.adapter is not None for request in lora.workload.requests])
    assert 4 <= has_one.sum() <= 16
    assert (slower == has_one).all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_lora_rank": 24}, "max_lora_rank must be one of 1, 8, 16"),
        ({"max_loras": 0}, "max_loras must be at least 1"),
        ({"enable_lora": False, "max_loras": 4}, "need enable_lora"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        deploy("llama-3.1-8b", "h200-sxm", EngineSettings(**{"enable_lora": True, **settings}))


def test_experts_are_refused() -> None:
    with pytest.raises(InputError, match="adapters of experts"):
        deploy("gpt-oss-20b", "h200-sxm", EngineSettings(enable_lora=True))
