"""Versions of the engine: which there are, and what they change in settings."""

from __future__ import annotations

import pytest

from infercast import deploy
from infercast.engines.vllm.settings import EngineSettings, ResolvedSettings, resolve
from infercast.engines.vllm.versions import ENGINES, engine_version
from infercast.errors import UnknownNameError
from infercast.hardware import load_gpu

OLD, NEW = ENGINES


def resolved(engine: str, gpu: str = "h200-sxm", **settings: object) -> ResolvedSettings:
    return resolve(EngineSettings(engine=engine, **settings), load_gpu(gpu), 131_072)  # type: ignore[arg-type]


def test_the_measured_version_is_the_default() -> None:
    assert EngineSettings().engine == OLD == "vllm@0.25"
    assert deploy("qwen3-0.6b", "h200-sxm", predictor="roofline").settings.engine == OLD


def test_deploying_takes_a_version() -> None:
    assert deploy("qwen3-0.6b", "h200-sxm", predictor="roofline", engine=NEW).settings.engine == NEW


@pytest.mark.parametrize("engine", ["vllm", "vllm@0.11", "sglang@0.5", ""])
def test_others_are_refused_by_name(engine: str) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown engine .*known: vllm@0\.25, vllm@0\.32"):
        resolved(engine)


@pytest.mark.parametrize(
    ("gpu", "tokens"), [("h200-sxm", (8192, 8192)), ("b200-sxm", (8192, 16_384)), ("l40s", (2048, 2048))]
)
def test_steps_are_larger_on_the_largest_gpus(gpu: str, tokens: tuple[int, int]) -> None:
    assert tuple(resolved(engine, gpu).max_num_batched_tokens for engine in (OLD, NEW)) == tokens


@pytest.mark.parametrize(
    ("is_async", "stages", "v1", "v2"),
    [(True, 1, 2, 2), (True, 2, 2, 3), (True, 4, 4, 5), (False, 1, 1, 1), (False, 4, 4, 4)],
)
def test_steps_under_way(is_async: bool, stages: int, v1: int, v2: int) -> None:
    settings = resolved(OLD, async_scheduling=is_async)
    assert [settings.steps_under_way(stages, v2_runner=runner) for runner in (False, True)] == [v1, v2]


def test_room_for_what_is_under_way_is_asked_for_by_the_newer_version() -> None:
    assert [resolved(engine, max_num_batched_tokens=4096).most_under_way(1) for engine in (OLD, NEW)] == [4096, 8192]
    assert resolved(NEW, max_num_batched_tokens=4096, async_scheduling=False).most_under_way(1) == 4096


@pytest.mark.parametrize(
    ("architecture", "has_experts", "old"),
    [
        ("LlamaForCausalLM", False, True),
        ("Qwen3MoeForCausalLM", True, False),
        ("DeepseekV3ForCausalLM", True, False),
        ("DeepseekV2ForCausalLM", True, True),
    ],
)
def test_which_models_run_the_second_runner(architecture: str, has_experts: bool, old: bool) -> None:
    runs = [engine_version(engine).runs_v2(architecture, has_experts=has_experts) for engine in (OLD, NEW)]
    assert runs == [old, True]
