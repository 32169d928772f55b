"""What releases before those whose rules are known in full did by default, and what they cost beyond."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infercast import EngineSettings, deploy
from infercast.engines.base import Deployment, engine_named
from infercast.engines.vllm.host import VllmHost
from infercast.forecast.deploy import load_model
from infercast.hardware import load_gpu
from infercast.models.feed_forward import ExpertFeedForward

ENGINE = engine_named("vllm@0.25")


def asked(version: str, model: str = "qwen3-8b", gpu: str = "h100-sxm", **options: object) -> Deployment:
    return deploy(model, gpu, engine=f"vllm@{version}", predictor="roofline", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "settings", "options"),
    [
        ((0, 10, 2), {"gpu_memory_utilization": 0.9, "async_scheduling": False, "cudagraph_mode": "piecewise"}, False),
        ((0, 11, 0), {"gpu_memory_utilization": 0.9, "async_scheduling": False}, False),
        ((0, 14, 0), {"gpu_memory_utilization": 0.9}, False),
        ((0, 19, 0), {"gpu_memory_utilization": 0.9}, None),
        ((0, 20, 0), {}, None),
        ((), {}, None),
    ],
)
def test_what_a_release_did_by_default(
    version: tuple[int, ...], settings: dict[str, object], options: bool | None
) -> None:
    found, others = ENGINE.before(version, load_model("qwen3-8b"))
    assert found == settings
    assert others.get("fuse_allreduce_rms") is options
    if version:
        resolved = asked(".".join(map(str, version)), tensor_parallel_size=2)
        usual = {"gpu_memory_utilization": 0.92, "async_scheduling": True, "cudagraph_mode": "full_and_piecewise"}
        assert {name: getattr(resolved.settings, name) for name in usual} == {**usual, **settings}
        assert resolved.layout.fused_norms is (options is None)


def test_what_is_asked_for_is_not_replaced() -> None:
    now = EngineSettings(gpu_memory_utilization=0.92, async_scheduling=True, cudagraph_mode="full_and_piecewise")
    kept = asked("0.10.2", settings=now, fuse_allreduce_rms=True)
    assert replace(kept.settings, engine="") == replace(asked("0.25").settings, engine="")  # type: ignore[type-var]
    assert kept.layout.fused_norms


def test_the_first_engine_computed_prompts_first_on_one_thread() -> None:
    found, _ = ENGINE.before((0, 6, 5), load_model("qwen3-8b"))
    assert not found["enable_chunked_prefill"]
    assert found["max_num_seqs"] == 256
    assert ENGINE.settings(found).prompts_first
    old, first = (asked(each, settings=EngineSettings(max_model_len=2000)) for each in ("0.7.3", "0.8"))
    assert (old.settings.max_num_batched_tokens, first.settings.max_num_batched_tokens) == (2048, 8192)
    assert isinstance(old.host, VllmHost)
    assert isinstance(first.host, VllmHost)
    assert old.host.process_sequence == first.host.process_sequence + 80e-6
    assert old.has_default_host
    again = deploy("qwen3-8b", "h100-sxm", engine="vllm@0.7.3", host=VllmHost.on_cpu(first.host, "measured"))
    assert isinstance(again.host, VllmHost)
    assert again.host.process_sequence == old.host.process_sequence


def test_experts_without_a_tuned_file_had_small_tiles_on_any_gpu() -> None:
    def slower(version: str, gpu: object = "h100-sxm") -> object:
        model = asked(version, "deepseek-v2-lite", gpu).model  # type: ignore[arg-type]
        return {each.feed_forward.slower for each in model.stacks if isinstance(each.feed_forward, ExpertFeedForward)}

    assert slower("0.17") == {()}
    assert slower("0.16") != {()}
    unnamed = replace(load_gpu("h100-sxm"), aliases=())
    assert slower("0.16", unnamed) == slower("0.16")


@pytest.mark.parametrize(
    ("version", "sampling"),
    [("0.11", "greedy"), ("0.11.1", "sorted"), ("0.16", "sorted"), ("0.17", "greedy"), ("0.32", "greedy")],
)
def test_top_p_is_what_the_release_does(version: str, sampling: str) -> None:
    assert asked(version, sampling="top_p").model.sampling == sampling
    assert asked(version, sampling="sorted").model.sampling == "sorted"
    assert asked(version).model.sampling == "greedy"


def test_facts_of_a_minor_release_are_those_of_its_first() -> None:
    assert [engine_named(f"vllm@{each}").fact("chat_turn_ms") for each in ("0.10.2", "0.11", "0.11.0", "0.11.1")] == [
        0, 8.5, 8.5, 0,
    ]  # fmt: skip


def test_an_answer_says_what_is_known_of_the_release() -> None:
    facts = "gpu_memory_utilization 0.9, no async_scheduling, no fuse_allreduce_rms, small_tiles"
    assert engine_named("vllm@0.11").note.startswith(f"with its {facts}; its other rules are not known")
    assert engine_named("vllm@0.22").note.startswith("its rules are not known")
    assert "mamba_radix_cache_strategy no_buffer" in engine_named("sglang@0.5.12").note
