"""Versions of the engine: which there are, and what they change in settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infercast import deploy
from infercast.engines.base import DEFAULT_ENGINE, engine_named, newest, package_of
from infercast.engines.vllm.settings import EngineSettings, ResolvedSettings, resolve
from infercast.engines.vllm.speculation import drafting_of
from infercast.engines.vllm.versions import ENGINES, MEASURED, NEWEST, EngineVersion, Rule, engine_version
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.command.flags import known_flags
from infercast.forecast.deploy import load_model
from infercast.forecast.uncertainty import release_spread
from infercast.hardware import load_gpu
from infercast.models.layout import ParallelLayout
from infercast.report.deployment import release_rows
from infercast.serve.step import constant_timer

OLD, NEW = "vllm@0.25", "vllm@0.33"


def resolved(engine: str, gpu: str = "h200-sxm", **settings: object) -> ResolvedSettings:
    return resolve(EngineSettings(engine=engine, **settings), load_gpu(gpu), 131_072)  # type: ignore[arg-type]


def test_the_newest_version_is_the_default() -> None:
    assert EngineSettings().engine == NEW == NEWEST == DEFAULT_ENGINE == newest("vllm") == [*ENGINES][-1]
    assert deploy("qwen3-0.6b", "h200-sxm", predictor="roofline").settings.engine == NEW
    assert MEASURED == OLD


def test_what_was_not_measured_says_so() -> None:
    assert {name for name in ENGINES if engine_named(name).is_measured} == {OLD}
    assert engine_named(OLD).note == ""
    assert "by its source" in engine_named("vllm@0.28").note


def test_rules_hold_from_a_release_on() -> None:
    assert engine_version(OLD) == EngineVersion()
    assert [engine_version(f"vllm@0.{minor}").has(Rule.FREES_ON_COMPLETION) for minor in (25, 26, 32)] == [
        False,
        True,
        True,
    ]
    assert [engine_version(f"vllm@0.{minor}").largest_step for minor in (27, 28, 31)] == [8192, 16_384, 16_384]
    assert [engine_version(f"vllm@0.{minor}").has(Rule.PREFERS_HUMMING) for minor in (31, 32)] == [False, True]


@pytest.mark.parametrize(
    ("asked", "has_rules_of", "is_told"),
    [
        ("vllm@0.27.1", "vllm@0.27", False),
        ("vllm@v0.32.0rc1", "vllm@0.32", False),
        ("vllm@0.34", "vllm@0.33", True),
        ("vllm@1.0", "vllm@0.33", True),
        ("vllm@0.11.2", "vllm@0.25", True),
    ],
)
def test_other_versions_have_the_rules_of_the_nearest_one(asked: str, has_rules_of: str, is_told: bool) -> None:
    engine = engine_named(asked)
    assert engine.name == asked
    assert engine_version(asked) == engine_version(has_rules_of)
    assert ("not known" in engine.note) == is_told
    assert not engine.is_measured


def test_a_patch_of_the_measured_release_counts_as_measured() -> None:
    assert engine_named("vllm@0.25.1").is_measured


def test_deploying_takes_a_version() -> None:
    assert deploy("qwen3-0.6b", "h200-sxm", predictor="roofline", engine=NEW).settings.engine == NEW


@pytest.mark.parametrize("engine", ["vllm", "vllm@new", "sglang@0.5", ""])
def test_others_are_refused_by_name(engine: str) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown engine .*known: vllm@0\.25, vllm@0\.26"):
        resolved(engine)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_num_active_seqs": 8}, r"has no --max-num-active-seqs; it came with 0\.31\.0"),
        ({"max_num_queued_reqs": 8}, r"came with 0\.29\.0"),
        ({"prefix_cache_retention_interval": "0"}, r"came with 0\.29\.0"),
        ({"max_num_scheduled_tokens": 64}, r"came with 0\.26\.0"),
        ({"long_prefill_token_threshold_adaptive": True}, r"came with 0\.31\.0"),
    ],
)
def test_older_versions_refuse_newer_settings(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        resolved(OLD, **settings)
    resolved(NEW, **settings)


def test_fewer_sequences_run_than_graphs_are_made_for() -> None:
    settings = resolved(NEW, max_num_seqs=64, max_num_active_seqs=8)
    assert (settings.most_running, settings.max_num_seqs) == (8, 64)
    with pytest.raises(InputError, match="max_num_active_seqs 65 is above max_num_seqs 64"):
        resolved(NEW, max_num_seqs=64, max_num_active_seqs=65)


def test_windows_are_kept_where_they_are_of_use_or_at_intervals() -> None:
    assert [resolved(engine).retention_interval for engine in (OLD, NEW)] == [None, 0]
    asked = [resolved(NEW, prefix_cache_retention_interval=text).retention_interval for text in ("none", "0", "1024")]
    assert asked == [None, 0, 1024]
    with pytest.raises(InputError, match="none or a number of tokens"):
        resolved(NEW, prefix_cache_retention_interval="often")


def test_a_retention_interval_needs_windows_or_states_and_whole_blocks() -> None:
    def settings(interval: str) -> EngineSettings:
        return EngineSettings(engine=NEW, prefix_cache_retention_interval=interval)

    def run(model: str, interval: str) -> object:
        return deploy(model, "h200-sxm", predictor="roofline", settings=settings(interval)).settings

    for interval in ("0", "none"):
        run("qwen3-0.6b", interval)
    with pytest.raises(InputError, match="1024 has no effect on a model without sliding windows or recurrent layers"):
        run("qwen3-0.6b", "1024")
    with pytest.raises(InputError, match="1000 must be a multiple of the 16 tokens of a block"):
        run("gpt-oss-20b", "1000")
    run("gpt-oss-20b", "1024")


def test_several_prediction_heads_read_ahead_since_one_release() -> None:
    model = load_model("qwen3-next-80b-a3b")
    assert model.prediction is not None
    several = replace(model, prediction=replace(model.prediction, heads=3))
    ahead = {
        (engine, heads): drafting_of(
            '{"method": "mtp", "num_speculative_tokens": 3}', None, config, ParallelLayout(), engine_version(engine),
            asynchronous=True, v2_target=True,
        ).read_ahead
        for heads, config in ((1, model), (3, several))
        for engine in ("vllm@0.27", "vllm@0.28")
    }  # fmt: skip
    assert ahead == {("vllm@0.27", 1): 0, ("vllm@0.28", 1): 0, ("vllm@0.27", 3): 0, ("vllm@0.28", 3): 3}


def test_a_step_may_have_fewer_tokens_than_it_is_made_for() -> None:
    given = {"max_num_batched_tokens": 4096, "max_num_scheduled_tokens": 512}
    deployment = deploy("qwen3-0.6b", "h200-sxm", EngineSettings(**given, engine=NEW), predictor="roofline")
    assert deployment.settings.max_num_batched_tokens == 4096
    assert deployment.replica(constant_timer(0.01)).policy.step_tokens == 512
    with pytest.raises(InputError, match=r"vLLM 0\.25 has no --max-num-scheduled-tokens; it came with 0\.26\.0"):
        deploy("qwen3-0.6b", "h200-sxm", EngineSettings(**given, engine=OLD), predictor="roofline")


def test_flags_are_those_of_a_release() -> None:
    old, new = (known_flags(engine_named(name)).spelled for name in (OLD, NEW))
    assert "--max-num-active-seqs" in new
    assert "--max-num-active-seqs" not in old
    assert "--max-num-partial-prefills" in old
    assert "--max-num-partial-prefills" not in new


def test_graphs_are_set_aside_where_the_measured_release_did_not() -> None:
    dense, experts = (
        [deploy(model, "h200-sxm", predictor="roofline", engine=engine).memory.graphs for engine in (OLD, NEW)]
        for model in ("llama-3.1-8b", "qwen3-30b-a3b")
    )
    assert dense[1] - dense[0] > 100 * 2**20
    assert experts[1] == experts[0]


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


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "block_size", "tokens", "sequences"),
    [
        ("qwen3.5-9b", "h100-sxm", "vllm@0.32", 528, 8192, 1024),
        ("qwen3.5-9b", "h100-sxm", "vllm@0.33", 576, 8192, 1024),  # FlashInfer's scan exports states every 64 tokens
        ("qwen3.5-9b", "l40s", "vllm@0.33", 528, 2048, 256),
        ("qwen3-8b", "gb10", "vllm@0.32", 16, 8192, 1024),
        ("qwen3-8b", "gb10", "vllm@0.33", 16, 2048, 256),
        ("qwen3-8b", "a100-sxm", "vllm@0.8.5", 16, 8192, 1024),
        ("qwen3-8b", "a100-sxm", "vllm@0.9.0", 16, 2048, 256),
    ],
)
def test_defaults_of_a_release(model: str, gpu: str, engine: str, block_size: int, tokens: int, sequences: int) -> None:
    settings = deploy(model, gpu, engine=engine).settings
    found = settings.block_size, settings.max_num_batched_tokens, settings.max_num_seqs
    assert found == (block_size, tokens, sequences)


def test_keys_cover_what_a_drafter_reads_unless_told_not_to() -> None:
    asked = '{"method": "mtp", "num_speculative_tokens": 1%s}'
    for more, engine, expected in (
        ("", "vllm@0.32", (True, 0)),
        ("", "vllm@0.33", (False, 1)),
        (', "disable_lookahead_block_hashes": true', "vllm@0.33", (True, 0)),
        (', "disable_eagle_block_drop": true', "vllm@0.33", (False, 0)),
        (', "disable_eagle_block_drop": true, "kv_cache_dtype": "fp8"', "vllm@0.32", (False, 0)),
    ):
        settings = EngineSettings(engine=engine, speculative_config=asked % more)
        drafts = deploy("qwen3.5-9b", "h100-sxm", settings).replica().speculation
        assert drafts is not None
        assert (drafts.drops_block, drafts.hash_ahead) == expected


def test_a_release_without_known_rules_says_so_and_is_less_certain() -> None:
    known, unknown = engine_named("vllm@0.33"), engine_named("vllm@0.34")
    assert (known.rules_from, unknown.rules_from) == ("", "vllm@0.33")
    assert release_spread(unknown) > release_spread(known)
    assert release_rows(known) == []
    assert "not known" in release_rows(unknown)[0][1]
    assert [package_of(each) for each in (unknown, engine_named("vllm@0.8.5"))] == ["vllm==0.34.0", "vllm==0.8.5"]
