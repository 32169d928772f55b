"""One screen answers what people ask first; --full has the rest."""

from typing import Any

import pytest

from infercast.report.terminal import LINES, Grid, Section, on_screen, styled

SLO = "ttft_p99<1s,tpot_p95<40ms"
RUN = ("-n", "40")
DENSE = ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "--rate", "20", *RUN)
ROWS = ("memory", "load", "SLO", "cost", "bottleneck", "change", "breaks first", "doubt", "run it", "next", "more")
DEPLOYMENTS = {
    "dense": (*DENSE, "--slo", SLO),
    "experts": ("simulate", "qwen3-30b-a3b", "--gpu", "h100-sxm", "-tp", "2", "--rate", "5", *RUN),
    "overloaded": (
        "simulate",
        "llama-3.1-8b",
        "--gpu",
        "l40s",
        "--rate",
        "40",
        "-n",
        "200",
        "--max-num-seqs",
        "64",
        "--allow-overload",
    ),
    "hybrid": ("simulate", "qwen3-next-80b-a3b", "--gpu", "h100-sxm", "-tp", "4", "--rate", "5", *RUN),
    "pools": ("disaggregate", "qwen3-0.6b", "--prefill-gpu", "l4", "--decode-gpu", "l4", "--rate", "2", *RUN),
}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_ten_questions_are_answered(answered: Any, name: str) -> None:
    lines = answered(*DEPLOYMENTS[name]).out.splitlines()
    assert len(lines) <= LINES
    told = {row: next(line for line in lines if line.startswith(f"{row} ")) for row in ROWS}
    assert "it fits" in told["memory"]
    assert next(line for line in lines if line.startswith("TTFT")).count(" to ") == 2, "an interval of p50 and of p99"
    assert "GPU" in told["cost"]
    assert "vllm serve " in told["run it"]
    assert "in use)" in told["breaks first"]
    assert "left out" not in lines[-1]


def test_numbers_of_the_screen_are_those_of_json(answered: Any) -> None:
    text, found = answered(*DENSE, "--slo", SLO).out, answered(*DENSE, "--slo", SLO, "--json").json
    assert f"{found['ttft_ms']['p50']:.3g} ms" in text
    assert f"{found['output_tokens_per_s']:,.0f} output tokens/s" in text
    assert "SLO           holds, odds" in text


def test_the_change_is_one_that_was_simulated(answered: Any) -> None:
    text = answered(*DEPLOYMENTS["overloaded"]).out
    assert "--data-parallel-size" in text
    assert "serving capacity x" in text
    found = answered(*DEPLOYMENTS["experts"], "--json").json["diagnosis"]
    assert found["options"] == "--quantization fp8"
    assert found["of"] == "TPOT p50"
    changed = answered(*DEPLOYMENTS["experts"], "--quantization", "fp8", "--json").json
    before = answered(*DEPLOYMENTS["experts"], "--json").json
    low, high = found["ratio_interval"]
    assert low <= changed["tpot_ms"]["p50"] / before["tpot_ms"]["p50"] <= high


def test_full_is_a_form_of_its_own(infercast: Any, answered: Any) -> None:
    assert "Where time goes" in answered(*DENSE, "--full").out
    assert "Where time goes" not in answered(*DENSE).out
    assert infercast("gpus", "--full", "--format", "csv").sentence.startswith(
        "--full and --format csv ask for two forms"
    )
    assert infercast("hosts", "-v").out == infercast("hosts", "--full").out


def test_a_plan_says_how_its_winner_changes_with_the_odds(answered: Any) -> None:
    words = (
        "plan", "qwen3-0.6b", "--gpu", "l4,l40s", "--rate", "4", "-n", "60", "--max-gpus", "2", "--slo", "ttft_p99<1s",
        "--workers", "1",
    )  # fmt: skip
    text = answered(*words).out
    assert len(text.splitlines()) <= LINES
    for part in ("with odds of 80 % or more", "winner: costs least", "rivals", "the winner by odds", "run it", "doubt"):
        assert part in text


def test_what_does_not_fit_a_screen_is_left_out_by_rank() -> None:
    table = Section("Rows", Grid(("a", "b"), [(str(number), "x") for number in range(100)]))
    details = Section("Caveats", styled("one\n" * 30))
    assert on_screen([styled("short")])[0].text == "short"
    found = on_screen([table, details])
    assert [part.title for part in found[:-1]] == ["Rows"]
    assert len(found[0].body.rows) == 20
    assert found[-1].text == "left out: caveats, rows of tables; --full prints all"
