"""LoRA adapters of vLLM: memory, kernels and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from infercast import EngineSettings, InputError, deploy
from infercast.models.lower import token_calls

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
    calls = {call.name: call for call in token_calls(lora.model, lora.layout, 64)}
    assert {name for name in calls if name.startswith("lora")} == {"lora_shrink", "lora_expand"}
    counts = sum(call.count for call in token_calls(lora.model, lora.layout, 64) if call.op.family == "lora")
    assert counts == 2 * 4 * LAYERS


def test_more_adapters_and_higher_ranks_take_longer() -> None:
    seconds = [
        with_lora(max_loras=count, max_lora_rank=rank)
        .timer()
        .decode(64, 64 * 500, lambda: [500] * 64, 1)
        .gpu_seconds[0]
        for count, rank in ((1, 16), (8, 16), (8, 128))
    ]
    plain = deploy("llama-3.1-8b", "h200-sxm").timer().decode(64, 64 * 500, lambda: [500] * 64, 1).gpu_seconds[0]
    assert plain < seconds[0] < seconds[1] < seconds[2]


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
