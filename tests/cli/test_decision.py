"""``--slo`` and the options of money, in every command that simulates."""

from pathlib import Path
from typing import Any

import pytest

LOAD = (
    "--concurrency", 4, "-n", 30, "--input-len", 200, "--output-len", 10, "--predictor", "roofline",
    "--max-num-seqs", 64,
)  # fmt: skip
ONE = ("simulate", "qwen2.5-0.5b", "--gpu", "l4", *LOAD)
SYSTEMS = {
    "one replica": ONE,
    "replicas": (*ONE, "-dp", 2),
    "pipeline": (*ONE, "-pp", 2),
    "two pools": ("disaggregate", "qwen2.5-0.5b", "--prefill-gpu", "l4", "--decode-gpu", "a10", *LOAD),
}
SLO = "ttft_p99<1s,tpot_p95<1us,e2e_mean<8s"


@pytest.mark.parametrize("words", SYSTEMS.values(), ids=SYSTEMS)
def test_every_system_is_held_against_a_promise(answered: Any, words: tuple[object, ...]) -> None:
    found = answered(*words, "--slo", SLO, "--json").json
    assert found["slo"]["text"] == SLO
    assert not found["slo"]["holds"]
    first, second, third = found["slo"]["limits"]
    assert first["forecast_ms"] == found["ttft_ms"]["p99"]
    assert first["interval_ms"] == found["ttft_ms_interval"]["p99"]
    assert second["headroom"] == pytest.approx(1e-3 / found["tpot_ms"]["p95"])
    assert third["percentile"] is None
    assert third["odds"] > 0.99
    assert found["slo_odds"] < 0.01
    assert found["slo_attainment"] == 0.0
    assert found["goodput_requests_per_s"] == 0.0


def test_the_same_for_people(answered: Any) -> None:
    text = answered(*ONE, "--slo", SLO, "--full").out
    assert "SLO: fails on tpot_p95<1us" in text
    assert "0.0 % of requests keep every limit" in text
    assert "< 1 % that all limits hold" in text
    assert "SLO: holds" in answered(*ONE, "--slo", "ttft_p99<1s", "--full").out
    assert "SLO" not in answered(*ONE, "--full").out


def test_a_comparison_tells_points_and_dollars(answered: Any) -> None:
    text = answered(*ONE, "--slo", SLO, "--what-if", "gpu=a10", "--full").out
    for name in ("SLO attainment", "goodput", "SLO odds", "$ per hour", "$/M output tokens", "price by"):
        assert name in text
    assert "+0.0 points" in text
    both = answered(*ONE, "--slo", SLO, "--what-if", "sms=100", "--json").json
    assert both["after"]["usd_per_hour"] == both["before"]["usd_per_hour"], "another chip at the price of this one"
    assert both["after"]["slo"]["text"] == SLO


def test_prices_are_said_with_provider_and_date(answered: Any) -> None:
    text = answered(*ONE, "--full").out
    assert "2026-08-22 (median of" in text
    assert "per million output tokens, all cost charged to output" in text
    found = answered(*ONE, "--provider", "aws", "--spot", "--json").json
    (price,) = found["prices"]
    assert (price["provider"], price["kind"], price["gpus"]) == ("aws", "spot", 1)
    assert found["usd_per_hour"] == price["usd_per_gpu_hour"]


def test_an_unknown_price_is_no_number_and_says_how_to_give_one(answered: Any) -> None:
    other = ("simulate", "qwen2.5-0.5b", "--gpu", "h20", *LOAD)
    text = answered(*other, "--full").out
    assert "no price of h20 is known; give --price-per-gpu-hour X, or --prices FILE with your own" in text
    assert "$" not in text
    assert answered(*other, "--json").json["usd_per_hour"] is None
    assert answered(*other, "--price-per-gpu-hour", 3, "--json").json["usd_per_hour"] == 3


def test_what_is_owned(infercast: Any, tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text("[l4]\ncapital_cost = 2500\nyears = 5\nwatts = 100\nelectricity_price = 0.2\n", encoding="utf-8")
    found = infercast(*ONE, "--prices", path, "--json").json
    assert found["usd_per_hour"] == pytest.approx(2500 / (5 * 8766) + 0.02)
    assert found["prices"][0]["kind"] == "owned"
    path.write_text(path.read_text("utf-8") + "monthly = 73.05\n", encoding="utf-8")
    assert infercast(*ONE, "--prices", path, "--json").json["usd_per_hour"] == pytest.approx(
        found["usd_per_hour"] + 0.1
    )


def test_an_api_against_gpus_of_ones_own(answered: Any) -> None:
    words = (*ONE, "--price-per-gpu-hour", 2, "--api-price")
    found = answered(*words, "0.2/0.8", "--json").json
    tokens = (
        found["usd_per_hour"] / found["usd_per_million_input_tokens"],
        found["usd_per_hour"] / found["usd_per_million_output_tokens"],
    )
    assert found["api"]["usd_per_hour"] == pytest.approx(0.2 * tokens[0] + 0.8 * tokens[1], rel=1e-3)
    served = found["requests_per_s"] * found["usd_per_hour"] / found["api"]["usd_per_hour"]
    assert found["api"]["break_even_requests_per_s"] == pytest.approx(served)
    text = answered(*words, "0.002/0.008").out
    assert "at $0.002/0.008 per million tokens: the API is cheaper; here pays from" in " ".join(text.split())
    assert "serving them here saves" in " ".join(answered(*words, "0.2/0.8").out.split())
    assert "must be dollars per million tokens as IN/OUT" in answered(*words, "cheap").sentence


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--slo", "ttft<1s"), "must be QUANTITY_PERCENTILE<TIME"),
        (("--provider", "nobody"), "unknown provider 'nobody'"),
        (("--prices", "none.toml"), "none.toml: no such file"),
        (("--price-per-gpu-hour", "-1"), "must be dollars above 0"),
        (("--price-per-gpu-hour", "1", "--spot"), "leave out provider, spot and prices"),
    ],
)
def test_wrong_options_are_told_before_anything_is_simulated(
    answered: Any, options: tuple[str, ...], words: str
) -> None:
    assert words in answered(*ONE, *options).sentence
    assert words in answered("layouts", "qwen2.5-0.5b", "--gpu", "l4", *options).sentence


def test_layouts_say_what_a_simulation_says(answered: Any) -> None:
    words = ("layouts", "qwen2.5-0.5b", "--gpu", "l4,h20", "--gpus", "1", *LOAD)
    rows = answered(*words, "--slo", SLO, "--price-per-gpu-hour", 2, "--json").json
    assert {row["usd_per_hour"] for row in rows} == {2}
    assert all(row["slo_holds"] is False and row["slo_odds"] < 0.01 for row in rows)
    alone = answered(*ONE, "--slo", SLO, "--price-per-gpu-hour", 2, "--json").json
    for key in ("slo_attainment", "slo_odds", "slo_headroom", "usd_per_million_output_tokens"):
        assert rows[0][key] == pytest.approx(alone[key])
    text = " ".join(answered(*words, "--slo", SLO).out.split())
    for name in ("SLO kept", "odds", "$/h", "$/M output", "no price of h20 is known", "2026-08-22"):
        assert name in text
    assert "SLO" not in answered(*words).out
