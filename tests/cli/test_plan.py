"""``infercast plan`` on the command line."""

import signal
from pathlib import Path
from typing import Any

import pytest

SMALL = (
    "plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--max-gpus", 1, "--workers", 1, "--rate", 4, "-n", 60,
    "--input-len", 200, "--output-len", 20, "--slo", "ttft_p99<1s,tpot_p95<40ms",
)  # fmt: skip


def test_a_plan(answered: Any) -> None:
    result = answered(*SMALL, "--json").json
    winner = result["winner"]
    assert (winner["gpu"], winner["replicas"], winner["tensor_parallel_size"]) == ("h100-sxm", 1, 1)
    assert winner["slo_holds"]
    assert 0 <= winner["odds"] <= 1
    assert winner["options"]["max-model-len"] == 8192
    assert winner["cost_per_hour"] > 0
    assert result["stages"]["simulated"] >= 1
    assert result["front"]
    text = answered(*SMALL).out
    for words in ("winner: costs least", "per hour", "headroom", "bottleneck", "--max-model-len 8192"):
        assert words in text


QUESTIONS = {
    "replicas": (
        "llama-3.1-8b", "--gpu", "l40s,h100-sxm", "--max-gpus", 4, "--rate", 12, "-n", 100, "--output-len", 40,
    ),
    "pools": (
        "qwen3-30b-a3b", "--gpu", "h100-sxm", "--max-gpus", 2, "--rate", 12, "-n", 100, "--output-len", 60,
        "--disaggregate",
    ),
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_every_row_is_what_simulate_says(answered: Any, question: tuple[object, ...]) -> None:
    model, _, gpus, _, most, *load = question
    load = [*load, "--input-len", "lognormal:400:0.6:16:2000", "--slo", "ttft_p99<1s,tpot_p95<30ms", "--json"]
    plan = answered("plan", model, "--gpu", gpus, "--max-gpus", most, "--workers", 1, *load).json
    shown = [plan["winner"], plan["runner_up"], *plan["front"], *plan["simulated"], *plan["by_odds"]]
    assert all(row["stage"] == "simulated" for row in shown)
    rows = {(row["gpu"], row["replicas"], str(row["options"]), str(row["prefill"])): row for row in shown}
    assert len(rows) > 2
    for row in rows.values():
        told = answered(*_command(model, row), *[word for word in load if word != "--disaggregate"]).json
        names = ("ttft_ms", "tpot_ms", "end_to_end_ms", "output_tokens_per_s", "requests_per_s", "ttft_ms_interval")
        for name, value in {**{name: told[name] for name in names}, "odds": told["slo_odds"]}.items():
            assert row[name] in (value, None), (name, row["options"])
        assert row["headroom"] == told["slo_headroom"]


def _command(model: object, row: dict[str, Any]) -> list[object]:
    """What a row has in its columns, as a command."""
    flags = {f"--{name}": value for name, value in row["options"].items()}
    words = [word for name, value in flags.items() for word in ((name,) if value is True else (name, value))]
    if row["prefill"] is None:
        copies = [] if "--data-parallel-size" in flags else ["--data-parallel-size", row["replicas"]]
        return ["simulate", model, "--gpu", row["gpu"], *copies, *words]
    sizes: list[object] = []
    for role, pool in (("prefill", row["prefill"]), ("decode", row)):
        names = {"gpu": "gpu", "engines": "replicas", "tp": "tensor_parallel_size", "dp": "data_parallel_size"}
        sizes += [word for name, key in names.items() for word in (f"--{role}-{name}", pool[key])]
    return ["disaggregate", model, *sizes, *(word for word in words if "parallel" not in str(word))]


def test_no_answer_is_an_answer(answered: Any) -> None:
    result = answered(*SMALL, "--slo", "ttft_p99<1s,tpot_p95<1ms", "--json").json
    assert result["winner"] is None
    assert "tpot_p95" in result["why"]
    assert "no answer" in answered(*SMALL, "--slo", "tpot_p95<1ms").out


def test_settings_to_vary(answered: Any) -> None:
    result = answered(*SMALL, "--vary", "max_num_seqs=16,32", "--quantization", "none,fp8", "--json").json
    assert {row["settings"]["max_num_seqs"] for row in result["simulated"]} <= {16, 32}
    assert {row["quantization"] for row in result["simulated"]} <= {None, "fp8"}


def test_a_trace(infercast: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"{number / 4},{100 + number},10" for number in range(40)]
    trace.write_text("arrival,num_input,num_output\n" + "\n".join(lines) + "\n")
    words = ("plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--max-gpus", 1, "--trace", trace, "--slo", "ttft_p99<1s")
    assert infercast(*words, "--json").json["winner"]["slo_holds"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--slo", "speed<1s"), "slo"),
        (("--objective", "speed"), "objective"),
        (("--vary", "max_num_seqs"), "--vary"),
        (("--vary", "speed=1,2"), "speed"),
        (("--max-gpus", 0), "max_gpus"),
        (("--engine", "nobody"), "engine"),
        (("--odds", 2), "odds"),
        (("--quantization", "fp9"), "fp9"),
        (("--kv-cache-dtype", "fp9"), "fp9"),
    ],
)
def test_what_is_wrong_is_said(answered: Any, words: tuple[object, ...], said: str) -> None:
    assert said in answered(*SMALL, *words).sentence


def test_a_gpu_without_a_price_is_left_out(answered: Any) -> None:
    words = [each if each != "h100-sxm" else "gb200,h100-sxm" for each in SMALL]
    found = answered(*words, "--json").json
    assert found["winner"] == answered(*SMALL, "--json").json["winner"]
    assert found["notes"][0].startswith("gb200 is left out: no price of gb200 is known")
    assert "gb200 is left out" in answered(*words).out
    words = [each if each != "h100-sxm" else "gb200" for each in SMALL]
    assert "no price of gb200 is known" in answered(*words).sentence


def test_what_ends_a_process_gives_the_best_so_far(infercast: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        infercast(*SMALL, "--json")
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_plan_needs_a_promise(answered: Any) -> None:
    assert "--slo" in answered(*SMALL[:-2]).sentence


def test_power_as_objective_budget_and_choice(answered: Any) -> None:
    few = ("--vary", "max_num_seqs=64", "--predictor", "roofline")
    words = (*SMALL, *few, "--objective", "energy", "--power-budget", 2, "--power-limit", "none,400")
    result = answered(*words, "--json").json
    assert result["power_budget_w"] == 2000
    assert result["winner"]["energy"]["peak_watts"] < 2000
    assert {row["power_limit_w"] for row in result["simulated"]} == {None, 400}
    assert "takes least energy at the wall" in answered(*words).out
    for kilowatts in (0, -1, "nan", "inf", "1e308"):
        wrong = answered(*SMALL, "--power-budget", kilowatts).sentence
        assert wrong.startswith("--power-budget must be kW above 0, at most 1,000,000, not ")
    wrong = answered(*SMALL, "--power-limit", "little").sentence
    assert wrong == "--power-limit must be watts with commas between them, or none, not 'little'"
