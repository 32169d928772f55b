"""The tier that vLLM's and SGLang's settings make of the host's memory."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest

from infercast import deploy
from infercast.engines.memory import host_link
from infercast.engines.sglang.settings import SglangSettings
from infercast.engines.vllm.kv_cache import TierSettings, offload_of, tier_settings
from infercast.engines.vllm.settings import EngineSettings
from infercast.engines.vllm.versions import engine_version
from infercast.errors import InfercastError
from infercast.hardware import load_gpu
from infercast.serve.cache.tiers import Offload
from infercast.units import GIB


def connector(name: str = "OffloadingConnector", **extra: Any) -> str:
    return json.dumps({"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra})


def tier(model: str = "llama-3.1-8b", *, engine: str = "vllm@0.25", gpus: int = 1, **settings: Any) -> Offload:
    made = EngineSettings(engine=engine, **settings)
    found = deploy(model, "h200", made, tensor_parallel_size=gpus).replica().offload
    assert found is not None
    return found


def test_a_size_is_for_all_gpus_together_and_blocks_are_as_large_as_the_gpu_s() -> None:
    one, two = tier(kv_offloading_size=16), tier(kv_offloading_size=16, gpus=2)
    assert one.num_blocks == two.num_blocks == 16 * GIB // (2 << 20)
    assert (one.block_bytes, two.block_bytes) == (2 << 20, 1 << 20)
    assert one.block_pieces == 32
    assert one.prompts_only
    assert one.load.rate == pytest.approx(0.86 * 63e9)


def test_the_older_model_runner_copies_whole_blocks_and_small_pieces_go_by_a_kernel() -> None:
    assert tier("qwen3-30b-a3b", kv_offloading_size=8).block_pieces == 1
    small = tier("qwen3-0.6b", kv_offloading_size=8, gpus=4)
    assert small.load.submit_piece_seconds < small.store.submit_piece_seconds


def test_newer_releases_have_rules_of_their_own() -> None:
    older, newer = tier(kv_offloading_size=8), tier(engine="vllm@0.32", kv_offloading_size=8)
    for rule in ("holders_first", "spares_under_way", "stores_ends", "by_request"):
        assert (getattr(older, rule), getattr(newer, rule)) == (False, True)


def test_newer_releases_round_what_lies_in_the_host_s_memory_up_to_pages() -> None:
    made = deploy("llama-3.1-8b", "h200")
    kv = made.memory.kv._replace(block_bytes=5000)
    for engine, blocks in (("vllm@0.25", 16), ("vllm@0.32", 10)):
        asked, version = TierSettings(81_920, None, True, 0), engine_version(engine)
        parts = (asked, kv, made.model.layers, made.layout, made.gpu)
        assert offload_of(*parts, whole=False, latent=False, version=version).num_blocks == blocks


def test_newer_releases_keep_what_all_gpus_hold_alike_once() -> None:
    for engine, ratio in (("vllm@0.25", 2), ("vllm@0.32", 1)):
        one, two = (
            tier("deepseek-v2-lite", engine=engine, kv_offloading_size=64, gpus=gpus).num_blocks for gpus in (1, 2)
        )
        assert one == pytest.approx(ratio * two, rel=1e-3)


def test_without_settings_there_is_no_tier() -> None:
    assert deploy("llama-3.1-8b", "h200").replica().offload is None


def test_a_connector_says_the_same_as_a_size_and_more() -> None:
    text = connector(cpu_bytes_to_use=8 * GIB, block_size=64, offload_prompt_only=False, store_threshold=2)
    assert tier_settings(None, "native", text) == TierSettings(8 * GIB, 64, False, 2)
    assert tier_settings(8, "native", None) == tier_settings(None, "native", connector(cpu_bytes_to_use=8 * GIB))
    made = tier(kv_transfer_config=text)
    assert (made.factor, made.num_blocks, made.store_threshold) == (4, 1024, 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_offloading_size": 0}, "kv_offloading_size must be above 0 and at most 1,000,000 GiB, not 0"),
        ({"kv_offloading_size": inf}, "at most 1,000,000 GiB, not inf"),
        ({"kv_offloading_size": 4, "kv_offloading_backend": "lmcache"}, "lmcache is not modelled; native is"),
        ({"kv_offloading_backend": "disk"}, "must be native or lmcache, not 'disk'"),
        ({"kv_transfer_config": "{"}, "kv_transfer_config must be a JSON object"),
        ({"kv_transfer_config": connector("NixlConnector")}, "'NixlConnector' is not modelled"),
        ({"kv_transfer_config": connector()}, "cpu_bytes_to_use must be above 0 and at most"),
        ({"kv_transfer_config": connector(cpu_bytes_to_use=1e10, eviction_policy="arc")}, "'arc' is not modelled"),
        ({"kv_transfer_config": connector(cpu_bytes_to_use=1e10, block_size=24)}, "24 is no multiple of the 16 tokens"),
        ({"kv_transfer_config": connector(cpu_bytes_to_use=1e10, spec_name="X")}, "spec_name is not modelled"),
        ({"kv_offloading_size": 0.001}, "holds no block of 16 tokens"),
        ({"kv_offloading_size": 4, "enable_prefix_caching": False}, "without prefix caching is not modelled"),
    ],
)
def test_what_is_not_modelled_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InfercastError, match=words):
        tier(**settings)


def test_sglang_sizes_its_tier_by_the_gpu_s_cache_or_in_gigabytes() -> None:
    def made(**settings: Any) -> Offload:
        asked = SglangSettings(enable_hierarchical_cache=True, max_total_tokens=50_000, **settings)
        found = deploy("llama-3.1-8b", "h200", asked).replica().offload
        assert found is not None
        return found

    assert made().num_blocks == 100_000
    assert made(hicache_size=13).num_blocks == 13_000_000_000 // 131_072
    assert made().store_threshold == 1
    assert made(hicache_write_policy="write_through_selective").store_threshold == 2
    for settings in ({"hicache_write_policy": "write_back"}, {"disable_radix_cache": True}, {"hicache_ratio": 0.0}):
        with pytest.raises(InfercastError):
            made(**settings)
    with pytest.raises(InfercastError, match="hicache_ratio above 0 and at most 1,000,000, not 0 and inf"):
        made(hicache_ratio=inf)


def test_many_gpus_of_a_server_share_what_four_have() -> None:
    gpu = load_gpu("h200")
    rates = [host_link(gpu, gpus, 0, 0).rate for gpus in (1, 4, 8, 16)]
    assert rates[0] == rates[1] == 2 * rates[2] == 2 * rates[3]
