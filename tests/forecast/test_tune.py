"""Ranking of launch configurations, vLLM's defaults, and what a trial says of the ranking."""

from dataclasses import replace
from typing import Any

import pytest

from infercast.engines.vllm.kernels import (
    EXPERT_LAUNCHES,
    Configuration,
    rule_of_thumb,
)
from infercast.errors import InputError
from infercast.forecast.deploy import load_model
from infercast.forecast.tune import (
    RELIABLE,
    TunedShape,
    Tuning,
    experts_of,
    judge,
    layer_of,
    tried_file,
    tune_model,
    tune_shape,
    untried_file,
)
from infercast.hardware import load_gpu
from infercast.models.layout import ParallelLayout

H200 = load_gpu("h200-sxm")


def shape(tokens: int = 16) -> TunedShape:
    op = experts_of(load_model("deepseek-v2"), ParallelLayout(8))
    assert op is not None
    return tune_shape(replace(op, tokens=tokens), H200, 4, EXPERT_LAUNCHES)


def test_rules_of_thumb_follow_the_number_of_tokens() -> None:
    assert rule_of_thumb(1, 128, "bf16") == (16, 64, 128, 1, 4, 4)
    assert rule_of_thumb(64, 128, "bf16") == (32, 64, 128, 1, 4, 3)
    assert rule_of_thumb(512, 128, "bf16") == (64, 128, 64, 1, 8, 3)
    assert rule_of_thumb(4096, 8, "fp8") == (128, 128, 128, 16, 8, 3)
    assert rule_of_thumb(8, 256, "fp8_block") == (16, 64, 128, 1, 4, 3)
    assert rule_of_thumb(65, 256, "fp8_block") == (64, 128, 128, 32, 4, 3)


def test_files_are_named_as_vllm_looks_for_them() -> None:
    assert EXPERT_LAUNCHES.file_name(128, 768, "bf16", H200) == "E=128,N=768,device_name=NVIDIA_H200.json"
    blocks = "E=256,N=512,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json"
    assert EXPERT_LAUNCHES.file_name(256, 512, "fp8_block", load_gpu("h100-sxm")) == blocks
    assert EXPERT_LAUNCHES.has_tuned_file(128, 768, "bf16", H200)
    assert not EXPERT_LAUNCHES.has_tuned_file(160, 192, "bf16", H200)
    with pytest.raises(InputError, match="how a driver calls"):
        EXPERT_LAUNCHES.device_name(replace(H200, aliases=()))


def test_the_best_are_faster_than_the_default_and_say_why() -> None:
    ranked = shape()
    seconds = [each.seconds for each in ranked.best]
    assert seconds == sorted(seconds)
    assert ranked.best[0].speedup > 1.2
    assert "thread blocks on an SM at once" in ranked.best[0].reason
    assert len({each.configuration for each in ranked.best} - {ranked.default.configuration}) == 4
    assert ranked.estimated > 1000
    assert ranked.excluded["shared memory"] > 100


def test_a_model_is_ranked_at_each_number_of_tokens() -> None:
    tuning = tune_model(load_model("mixtral-8x22b"), H200, tensor_parallel_size=2, tokens=(512, 2048), top=2)
    assert [each.tokens for each in tuning.shapes] == [512, 2048]
    assert "row blocks share weights" in tuning.shapes[0].best[0].reason
    assert not tuning.has_file


@pytest.mark.parametrize(("model", "words"), [("llama-3.1-8b", "no routed experts"), ("gpt-oss-20b", "are mxfp4")])
def test_models_that_cannot_be_tuned_are_refused(model: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tune_model(load_model(model), H200)


def test_other_vendors_are_refused() -> None:
    with pytest.raises(InputError, match="NVIDIA GPUs only"):
        tune_model(load_model("mixtral-8x7b"), load_gpu("mi300x"))


def advice(tokens: tuple[int, ...] = (16, 2048), gpu: str = "h200-sxm") -> Tuning:
    return tune_model(load_model("deepseek-v2"), load_gpu(gpu), tensor_parallel_size=8, tokens=tokens, top=2)


def test_only_a_gain_beyond_the_models_error_is_recommended_untried() -> None:
    tuning = advice()
    few, many = tuning.shapes
    assert few.best[0].speedup >= RELIABLE > many.best[0].speedup
    assert tuning.recommended(few) is few.best[0]
    assert tuning.recommended(many) is many.default


def test_a_gpu_that_nothing_was_tried_on_keeps_its_defaults() -> None:
    tuning = advice(gpu="a100-sxm")
    assert tuning.shapes[0].best[0].speedup > RELIABLE
    assert tuning.recommended(tuning.shapes[0]) is tuning.shapes[0].default
    with pytest.raises(InputError, match="--out needs --try here: rankings were compared"):
        untried_file(tuning)


def nearest(written: dict[str, dict[str, int]], tokens: int) -> dict[str, int]:
    """As vLLM looks a number of tokens up."""
    return written[min(written, key=lambda key: abs(int(key) - tokens))]


@pytest.mark.parametrize(("experts", "dtype"), [(8, "bf16"), (160, "fp8"), (256, "fp8_block")])
def test_a_file_of_defaults_changes_nothing(experts: int, dtype: str) -> None:
    written = {
        str(key): rule_of_thumb(key, experts, dtype).as_file() for key in EXPERT_LAUNCHES.file_tokens(experts, dtype)
    }
    for tokens in (*range(1, 1200, 7), 2000, 5000, 16384):
        assert nearest(written, tokens) == rule_of_thumb(tokens, experts, dtype).as_file()


def test_what_was_not_tried_stays_as_it_is() -> None:
    tuning = advice(tokens=(16,))
    ranked = tuning.shapes[0]
    trial = judge(ranked, H200, rows(ranked, [100.0, 80.0], (100.0, 100.0)))
    assert trial is not None
    written = tried_file(tuning, [trial])
    assert written["16"] == ranked.best[1].configuration.as_file()
    assert written["512"] == rule_of_thumb(512, 160, "bf16").as_file()
    assert list(tried_file(replace(tuning, has_file=True), [trial])) == ["16"]


def test_a_gain_within_the_noise_is_not_recommended() -> None:
    ranked = shape()
    close = judge(ranked, H200, rows(ranked, [98.0, 99.0, None, 125.0], (100.0, 100.0)))
    noisy = judge(ranked, H200, rows(ranked, [95.0, 99.0, None, 125.0], (97.0, 105.0)))
    assert close is not None
    assert noisy is not None
    assert close.recommended is close.default
    assert noisy.recommended is noisy.default


def rows(ranked: TunedShape, microseconds: list[float | None], usual: tuple[float, float]) -> list[dict[str, Any]]:
    layer = layer_of(ranked)
    ran = ranked.default.configuration.as_file()
    found = [layer | {"configuration": None, "ran": ran, "latency_us": time} for time in usual]
    for each, time in zip(ranked.best, microseconds, strict=True):
        if time is not None:
            found.append(layer | {"configuration": each.configuration.as_file(), "latency_us": time})
    return found


def test_a_trial_compares_the_best_of_the_ranked_with_the_default() -> None:
    ranked = shape()
    trial = judge(ranked, H200, rows(ranked, [100.0, 80.0, None, 125.0], (150.0, 153.0)))
    assert trial is not None
    assert trial.speedup == pytest.approx(151.5 / 80.0)
    assert trial.first_speedup == pytest.approx(151.5 / 100.0)
    assert trial.noise == pytest.approx(0.02)
    assert [each.measured is None for each in trial.tried] == [False, False, False, True, False]
    assert trial.default.predicted == pytest.approx(ranked.default.seconds)


def test_without_the_default_nothing_is_compared() -> None:
    ranked = shape()
    assert judge(ranked, H200, [row for row in rows(ranked, [1.0] * 4, (2.0, 2.0)) if row["configuration"]]) is None


def test_configurations_in_words() -> None:
    assert str(Configuration(64, 128, 64, 16, 8, 3)) == "64 x 128 x 64, 8 warps, 3 stages, groups of 16"
