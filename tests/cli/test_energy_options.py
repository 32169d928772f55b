"""Energy in every command that simulates, and the factors around the GPUs."""

from typing import Any

import pytest

LOAD = (
    "--concurrency", 4, "-n", 30, "--input-len", 200, "--output-len", 10, "--predictor", "roofline",
    "--max-num-seqs", 64,
)  # fmt: skip
ONE = ("simulate", "qwen2.5-0.5b", "--gpu", "l4", *LOAD)
SYSTEMS = {
    "one replica": ONE,
    "pipeline": (*ONE, "-pp", 2),
    "two pools": ("disaggregate", "qwen2.5-0.5b", "--prefill-gpu", "l4", "--decode-gpu", "a10", *LOAD),
}


@pytest.mark.parametrize("words", SYSTEMS.values(), ids=SYSTEMS)
def test_every_system_has_its_energy(answered: Any, words: tuple[object, ...]) -> None:
    found = answered(*words, "--json").json
    assert 0 < found["watts_per_gpu"] <= found["peak_watts_per_gpu"] <= found["energy"]["limit_watts_per_gpu"]
    low, high = found["energy"]["joules_interval"]
    assert low < found["energy"]["joules"] < high
    assert sum(part["joules"] for part in found["energy"]["parts"]) == pytest.approx(found["energy"]["joules"])
    assert found["wall_watts"] > found["gpus"] * found["watts_per_gpu"]
    assert found["grams_co2_per_million_output_tokens"] is None
    assert found["usd_electricity_per_hour"] is None


def test_the_factors_are_said_and_may_be_given(answered: Any) -> None:
    text = answered(*ONE, "--full").out
    assert "per output token" in text
    assert "PUE 1" in text
    assert "CO2" not in text
    given = ("--pue", 1.4, "--server-watts", 200, "--server-factor", 1.05)
    found = answered(*ONE, *given, "--grid-carbon", 300, "--electricity-price", 0.2, "--json").json
    wall = found["wall"]
    assert wall["watts"] == pytest.approx(1.4 * (200 / 8 + 1.05 * found["watts_per_gpu"]))
    assert wall["grams_co2_per_hour"] == pytest.approx(wall["watts"] / 1000 * 300)
    assert found["usd_electricity_per_hour"] == pytest.approx(wall["watts"] / 1000 * 0.2)
    text = answered(*ONE, *given, "--grid-carbon", 300, "--electricity-price", 0.2, "--full").out
    for words in ("CO2 per million output tokens", "electricity", "PUE 1.4", "200 W of 8 GPUs and 1.05 x"):
        assert words in text


def test_a_comparison_has_energy_on_both_sides(answered: Any) -> None:
    text = answered(*ONE, "--what-if", "gpu=a10", "--full").out
    for name in ("watts per GPU", "J/output token", "Wh/M output tokens at the wall"):
        assert name in text


def test_a_factor_that_cannot_be(answered: Any) -> None:
    assert answered(*ONE, "--pue", 0.5).sentence == "pue must be a number from 1 to 10, not 0.5"
    assert "blade" in answered(*ONE, "--server", "blade").sentence


def test_layouts_have_the_same_keys(answered: Any) -> None:
    words = ("layouts", "qwen2.5-0.5b", "--gpu", "l4", "--gpus", "1,2", *LOAD)
    rows = answered(*words, "--pue", 1.2, "--json").json
    assert all(0 < row["watts_per_gpu"] < 100 for row in rows)
    assert all(row["wall_joules_per_output_token"] > row["joules_per_output_token"] > 0 for row in rows)
    plain = answered(*words, "--json").json
    assert [row["wall_watts"] for row in rows] == pytest.approx([1.2 * row["wall_watts"] for row in plain])


def test_a_sweep_has_energy_at_each_point(answered: Any) -> None:
    words = ("sweep", "qwen2.5-0.5b", "--gpu", "l4", *LOAD[2:], "--rates", "1,4")
    points = answered(*words, "--json").json["points"]
    slow, fast = (point["joules_per_output_token"] for point in points)
    assert slow > fast, "idle power is shared by fewer tokens"
    setting = ("sweep", *ONE[1:-2], "--setting", "max_num_seqs=8,64")
    assert "least energy" in answered(*setting).out
