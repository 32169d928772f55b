"""``infercast energy``: which power limit or clock saves most."""

from pathlib import Path
from typing import Any

import pytest

LOAD = ("-n", 40, "--input-len", 200, "--output-len", 20, "--predictor", "roofline", "--max-num-seqs", 64)
WORDS = ("energy", "qwen2.5-0.5b", "--gpu", "l4", "--concurrency", 4, *LOAD)


def test_lower_limits_save_until_the_slo_breaks(answered: Any) -> None:
    found = answered(*WORDS, "--power-limits", "40,56,72", "--slo", "tpot_p95<1s", "--json").json
    values = [point["value"] for point in found["points"]]
    assert values == sorted(values)
    assert found["own_value"] == 72
    assert {40, 56, 72} <= set(values)
    by_value = {point["value"]: point for point in found["points"]}
    assert by_value[72]["saved_share"] == 0
    assert by_value[found["best_value"]]["saved_share"] == found["saved_share"]
    least = min(point["wall_joules_per_output_token"] for point in found["points"])
    assert by_value[found["best_value"]]["wall_joules_per_output_token"] == pytest.approx(least, rel=1e-4)


def test_the_best_value_keeps_the_slo(answered: Any) -> None:
    free = answered(*WORDS, "--power-limits", "72", "--json").json["points"][-1]
    limit = f"tpot_p95<{1.0001 * free['tpot_ms']['p95']}ms"
    found = answered(*WORDS, "--power-limits", "20,72", "--slo", limit, "--json").json
    best = next(point for point in found["points"] if point["value"] == found["best_value"])
    assert best["slo_holds"]
    assert best["slo_odds"] == found["best_slo_odds"]
    assert all(0 <= point["slo_odds"] <= 1 for point in found["points"])
    none = answered(*WORDS, "--power-limits", "20,72", "--slo", "tpot_p95<1us", "--json").json
    assert none["best_value"] is None
    assert "No power limit that was tried" in none["answer"]


def test_the_limit_that_fails_is_the_one_that_is_told_of(answered: Any) -> None:
    found = answered(*WORDS, "--power-limits", "72", "--slo", "ttft_p99<1us,tpot_p95<9s", "--json").json
    assert "TTFT p99" in found["bottleneck"]


def test_surer_odds_take_more_energy(answered: Any) -> None:
    free = answered(*WORDS, "--power-limits", "72", "--json").json["points"][-1]
    asked = ("--power-limits", "30,45,60", "--slo", f"tpot_p95<{1.6 * free['tpot_ms']['p95']}ms", "--json")
    plain = answered(*WORDS, *asked).json
    sure = answered(*WORDS, *asked, "--odds", max(0.1, plain["best_slo_odds"] + 0.01)).json
    assert sure["best_value"] is None or sure["best_slo_odds"] > plain["best_slo_odds"]
    assert sure["saved_share"] <= plain["saved_share"]
    assert answered(*WORDS, "--odds", 0.9).sentence == "least_odds needs an slo to hold"


def test_a_model_that_does_not_fit_is_refused(answered: Any) -> None:
    assert "does not fit" in answered("energy", "llama-3.1-8b", "--gpu", "l4", "--concurrency", 4, *LOAD).sentence


def test_clocks_and_tables_and_rows(infercast: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    text = infercast(*WORDS, "--gpu-clocks", "1000,1500", "--csv", path).out
    assert "Energy under clocks" in text
    assert "saved" in text
    head, *rows = path.read_text("utf-8").splitlines()
    assert head.startswith("gpu_clock_mhz,state,ttft_mean_ms")
    assert len(rows) >= 3


def test_what_is_refused(answered: Any) -> None:
    both = answered(*WORDS, "--gpu-clocks", "1000,1500", "--power-limits", "40,60").sentence
    assert both == "--power-limits and --gpu-clocks both have values; vary one of them"
    fixed = answered(*WORDS, "--power-limit", 50).sentence
    assert fixed == "--power-limit 50 is one value of what is varied here; leave it out"
    assert "outside what l4 takes" in answered(*WORDS, "--power-limits", "1,60").sentence
