"""A KV cache in host memory, from the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

VISITS = (
    "simulate", "qwen3-0.6b", "--gpu", "h200", "--prefix-len", 512, "--prefix-groups", 12,
    "--input-len", 64, "--output-len", 8, "--rate", 20, "-n", 60,
)  # fmt: skip
SMALL = (
    "--engine", "vllm@0.25", "--num-gpu-blocks-override", 260, "--max-model-len", 4096, "--max-num-seqs", 64,
)  # fmt: skip


@pytest.fixture
def tiered(answered: Any) -> Any:
    return answered(*VISITS, *SMALL, "--kv-offloading-size", 4, "--json").json


def test_hits_by_tier_and_copies_are_told(answered: Any, tiered: Any) -> None:
    plain = answered(*VISITS, *SMALL, "--json").json
    assert plain["tier_hit_rate"] is None
    assert plain["pools"][0]["kv_offload"] is None
    assert tiered["prefix_hit_rate"] > plain["prefix_hit_rate"] + 0.1
    offload = tiered["pools"][0]["kv_offload"]
    assert offload["cpu_hit_rate"] == tiered["tier_hit_rate"] > 0.2
    assert offload["external_prefix_cache_hits"] == round(tiered["tier_hit_rate"] * 60 * 576)
    assert offload["kv_offload_load_bytes"] == offload["external_prefix_cache_hits"] * 114_688
    assert offload["loaded_requests"] == offload["kv_offload_load_copies"] > 10
    assert tiered["ttft_ms"]["mean"] > 0


def test_a_report_and_a_breakdown_have_them_too(answered: Any) -> None:
    out = answered(*VISITS, *SMALL, "--kv-offloading-size", 4, "--breakdown", "--full").out
    assert "4 GiB of KV cache in host memory" in out
    assert "of prompt tokens found on the GPU" in out
    assert "KV from host memory" in out


def test_a_connector_and_sglang_s_flags_are_taken(answered: Any, tiered: Any) -> None:
    text = json.dumps(
        {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 4 << 30}}
    )
    same = answered(*VISITS, *SMALL, "--kv-transfer-config", text, "--json").json
    assert same["pools"][0]["kv_offload"] == tiered["pools"][0]["kv_offload"]
    sglang = ("--engine", "sglang", "--max-total-tokens", 4200, "--enable-hierarchical-cache", "--hicache-ratio", 4)
    assert answered(*VISITS, *sglang, "--json").json["tier_hit_rate"] > 0.2


def test_other_connectors_are_refused(answered: Any) -> None:
    refused = answered(*VISITS, *SMALL, "--kv-transfer-config", '{"kv_connector":"NixlConnector"}')
    assert refused.code != 0
    assert "'NixlConnector' is not modelled" in refused.err
