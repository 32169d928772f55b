"""Forecasts with speculative decoding: what they tell, and up to which load it pays."""

import json
from functools import partial
from typing import Any

import pytest

import infercast as ic
from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import InputError
from infercast.forecast.run import drafts_of
from infercast.forecast.sweep import BreakEven, LoadPoint, break_even
from infercast.report.forecast import draft_rows
from infercast.report.sweep import break_even_dict
from infercast.serve.workload.synthetic import synthetic_workload

CONFIG = json.dumps({"method": "eagle3", "model": "somebody/eagle3", "num_speculative_tokens": 3})


def settings(**others: Any) -> EngineSettings:
    return EngineSettings(engine="vllm@0.25", max_num_seqs=64, max_model_len=4096, **others)


def clients(count: int) -> ic.Workload:
    return synthetic_workload(count=max(8, 2 * count), concurrency=count, input_lengths=200, output_lengths=60, seed=1)


@pytest.fixture(scope="module")
def drafted() -> ic.Forecast:
    asked = settings(speculative_config=CONFIG, acceptance="0.75,0.55,0.4")
    return ic.simulate(ic.deploy("llama-3.1-8b", "h200-sxm", asked), clients(8))


def test_a_forecast_tells_what_became_of_drafts(drafted: ic.Forecast) -> None:
    found = drafts_of(drafted)
    assert found is not None
    assert found.counts.acceptance_length == pytest.approx(2.7, abs=0.15)
    assert found.counts.rates_by_position == pytest.approx([0.75, 0.55, 0.4], abs=0.1)
    assert found.counts.num_draft_tokens == 3 * found.counts.num_drafts
    assert sum(found.parts.values()) == pytest.approx(1.0)
    assert found.parts["target"] > found.parts["draft"] > found.parts["verify"] > 0
    said = dict(draft_rows(drafted))
    assert "tokens per step" in said["acceptance length"]


def test_json_has_the_words_of_the_engines_metrics(drafted: ic.Forecast) -> None:
    told = drafted.to_dict(intervals=False)
    assert told["deployment"]["speculation"]["acceptance_length"] == pytest.approx(2.7)
    run = told["speculation"]
    assert run["num_accepted_tokens"] == sum(run["num_accepted_tokens_per_pos"])
    assert run["mean_acceptance_length"] == pytest.approx(1 + run["num_accepted_tokens"] / run["num_drafts"])
    json.dumps(told)


def test_tokens_of_a_step_all_count(drafted: ic.Forecast) -> None:
    tokens = sum(request.num_output for request in drafted.workload.requests)
    assert drafted.output_tokens_per_second == pytest.approx(tokens / drafted.duration)


def test_few_clients_gain_most_and_the_answer_says_so() -> None:
    asked = settings(speculative_config=CONFIG, acceptance="0.7")
    found = break_even(partial(ic.deploy, "llama-3.1-8b", "h200-sxm", asked), clients, (1, 8, 64))
    ratios = [point.speed_up for point in found.points]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 1.7
    assert found.sentence.startswith("EAGLE-3 with 3 drafts a step and 2.53 tokens accepted pays")
    told = break_even_dict(found)
    assert [point["clients"] for point in told["points"]] == [1, 8, 64]
    json.dumps(told)


def test_drafts_that_are_never_right_never_pay() -> None:
    asked = settings(speculative_config=CONFIG, acceptance="length=1")
    found = break_even(partial(ic.deploy, "llama-3.1-8b", "h200-sxm", asked), clients, (1, 8))
    assert found.clients is None
    assert "does not pay at any load" in found.sentence


def test_the_load_between_two_points_is_where_the_line_crosses(drafted: ic.Forecast) -> None:
    class Ratio(LoadPoint):
        speed_up = 0.0  # type: ignore[assignment]

    def point(count: int, ratio: float) -> LoadPoint:
        made = type("Point", (Ratio,), {"speed_up": ratio})
        return made(count, drafted, drafted)  # type: ignore[no-any-return]

    drafting = drafted.deployment.drafting
    assert drafting is not None
    found = BreakEven(drafting, "", "", (point(1, 2.0), point(16, 1.25), point(64, 0.8)))
    assert found.clients == pytest.approx(32.0)
    assert "pays up to about 32 clients" in found.sentence


def test_nothing_is_compared_where_nothing_drafts() -> None:
    with pytest.raises(InputError, match="nothing drafts here"):
        break_even(partial(ic.deploy, "llama-3.1-8b", "h200-sxm", settings()), clients)


def test_heads_that_are_left_unused_are_said() -> None:
    forecast = ic.simulate(ic.deploy("mimo-7b", "h200-sxm", settings()), clients(2))
    (said,) = (each for each in forecast.to_dict(intervals=False)["caveats"] if "MTP" in each)
    assert "--speculative-config" in said


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("mimo-7b", {"method": "mtp", "num_speculative_tokens": 1}),
        ("qwen3-8b", {"model": "qwen3-0.6b", "num_speculative_tokens": 4}),
        ("qwen3-8b", {"method": "ngram", "num_speculative_tokens": 4}),
        ("qwen3-8b", {"method": "eagle", "model": "somebody/eagle", "num_speculative_tokens": 2}),
        ("qwen3-next-80b-a3b", {"method": "mtp", "num_speculative_tokens": 2}),
        ("deepseek-v2-lite", {"method": "eagle3", "model": "somebody/eagle3", "num_speculative_tokens": 2}),
    ],
)
@pytest.mark.parametrize("engine", ["vllm@0.25", "vllm@0.32"])
def test_every_method_serves_on_both_releases(model: str, config: dict[str, Any], engine: str) -> None:
    asked = EngineSettings(engine=engine, max_num_seqs=64, max_model_len=2048, speculative_config=json.dumps(config))
    gpu = "b200-sxm" if model.startswith("qwen3-next") else "h200-sxm"
    forecast = ic.simulate(ic.deploy(model, gpu, asked, predictor="roofline"), clients(4))
    found = drafts_of(forecast)
    assert found is not None
    assert found.counts.num_accepted > 0
    assert forecast.output_tokens_per_second > 0
