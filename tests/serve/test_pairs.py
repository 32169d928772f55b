"""Every pair of features that an engine allows runs, through the public functions."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import infercast as ic
from infercast.serve.workload.classes import parse_class, with_adapters, with_classes
from infercast.serve.workload.request import Adapters, Workload
from infercast.serve.workload.synthetic import session_workload, synthetic_workload

DRAFTS = json.dumps({"method": "ngram", "num_speculative_tokens": 3})
HEAD = '{"method": "%s", "model": "a/head", "num_speculative_tokens": 3}'
VLLM: dict[str, dict[str, Any]] = {
    "priority": {"scheduling_policy": "priority"},
    "adapters": {"enable_lora": True, "max_loras": 2},
    "speculation": {"speculative_config": DRAFTS, "acceptance": "0.7"},
    "offload": {"kv_offloading_size": 8},
    "sessions": {},
    "pipelines": {},
    "pools": {},
}
SGLANG: dict[str, dict[str, Any]] = {
    "offload": {"enable_hierarchical_cache": True, "hicache_ratio": 4.0},
    "sessions": {},
    "pipelines": {},
    "pools": {},
}
BLOCKS: dict[str, dict[str, Any]] = {
    "vllm": {"num_gpu_blocks_override": 400, "max_model_len": 4096},
    "sglang": {"max_total_tokens": 8192, "context_length": 4096},
}
"""So small that requests wait, are preempted, and find their prefixes in host memory alone."""
IN_STAGES: dict[str, dict[str, Any]] = {
    "adapters": {"max_loras": 4},
    "speculation": {
        "speculative_config": json.dumps({"method": "eagle", "model": "a/head", "num_speculative_tokens": 3})
    },
}
"""What vLLM fails without in a pipeline: room for all adapters, and drafts that asynchronous scheduling supports."""


def workload_of(features: tuple[str, ...]) -> Workload:
    """Conversations or single requests that share prefixes, with classes and adapters if they are asked for."""
    if "sessions" in features:
        load = session_workload(
            rate=4, count=40, turns=3, think=0.2, input_lengths=400, turn_lengths=100, output_lengths=30
        )
    else:
        load = synthetic_workload(
            concurrency=40, count=50, input_lengths=120, output_lengths=40, prefix_length=400, prefix_groups=12
        )
    if "priority" in features:
        load = with_classes(load, [parse_class("chat:1:priority=0"), parse_class("batch:1:priority=5")])
    if "adapters" in features:
        load = with_adapters(load, Adapters(4))
    return load


def served(engine: str, features: tuple[str, ...], settings: dict[str, Any]) -> ic.Forecast:
    kind: Callable[..., Any] = ic.EngineSettings if engine == "vllm" else ic.SglangSettings
    deployment = ic.deploy(
        "llama-3.1-8b",
        "h200-sxm",
        kind(**BLOCKS[engine], **settings),
        pipeline_parallel_size=2 if "pipelines" in features else 1,
    )
    load = workload_of(features)
    if "pools" in features:
        return ic.simulate(deployment, load, prefill=deployment)
    return ic.simulate(deployment, load)


def check(forecast: ic.Forecast, features: tuple[str, ...]) -> None:
    """Every request is answered in full, and each of the features has left its trace."""
    requests = forecast.per_request()
    assert np.isfinite(requests["end_to_end_ms"]).all()
    assert requests["output_tokens"].tolist() == [each.num_output for each in forecast.workload.requests]
    drafts = [each.drafts for each in forecast.records if each.drafts is not None]
    assert ("speculation" in features) == any(each.num_accepted for each in drafts)
    assert ("offload" in features) == (forecast.tier_hit_rate is not None)
    if "offload" in features and "sessions" not in features:
        assert forecast.tier_hit_rate
    assert ("priority" in features) == (len(forecast.classes) == 2)
    assert ("pools" in features) == (len(forecast.pools) == 2)
    assert ("sessions" in features) == (forecast.sessions is not None)
    assert forecast.to_dict()


def together(engine: str, *features: str) -> None:
    offered = VLLM if engine == "vllm" else SGLANG
    settings = {name: value for feature in features for name, value in offered[feature].items()}
    if engine == "vllm" and "pipelines" in features:
        settings |= {name: value for feature in features for name, value in IN_STAGES.get(feature, {}).items()}
    check(served(engine, features, settings), features)


PAIRS = [("vllm", *pair) for pair in combinations(VLLM, 2)] + [("sglang", *pair) for pair in combinations(SGLANG, 2)]


@pytest.mark.parametrize(("engine", "first", "second"), PAIRS)
def test_pairs_run(engine: str, first: str, second: str) -> None:
    together(engine, first, second)


@pytest.mark.parametrize(
    ("features", "settings", "reason"),
    [
        (("adapters", "pipelines"), VLLM["adapters"], "ask for 4 LoRA adapters.*fails when two steps meet"),
        (
            ("speculation", "pipelines"),
            {**VLLM["speculation"], "async_scheduling": False},
            "method ngram in a pipeline.*negative number of tokens",
        ),
        (
            ("speculation", "pipelines"),
            {"speculative_config": HEAD % "eagle3"},
            "does not support eagle3 with pipeline parallelism",
        ),
    ],
)
def test_pairs_that_vllm_fails_with_are_refused(
    features: tuple[str, ...], settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ic.InputError, match=reason):
        served("vllm", features, settings)


def test_all_that_pairs_allow_runs_at_once() -> None:
    together("vllm", "priority", "adapters", "speculation", "offload", "sessions")
    together("vllm", "priority", "adapters", "speculation", "offload", "sessions", "pipelines")
    together("sglang", "offload", "sessions", "pipelines")
