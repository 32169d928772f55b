"""``infercast diagnose``, ``simulate --breakdown`` and ``--what-if``: words, tables that align, strict JSON."""

from pathlib import Path
from typing import Any

import pytest

SMALL = ("qwen3-0.6b", "--gpu", "l40s")
RUN = ("--rate", 10, "-n", 30, "--input-len", 300, "--output-len", 20, "--max-num-seqs", 64)


def test_a_diagnosis_in_words(answered: Any) -> None:
    result = answered("diagnose", *SMALL, *RUN, "--full")
    assert result.code == 0, result.err
    assert "of what the best kernels of this shape reach" in " ".join(result.out.split())
    assert "A host that takes no time would save" in " ".join(result.out.split())
    assert "hard limit" in result.out


def test_a_diagnosis_as_data(answered: Any) -> None:
    found = answered("diagnose", *SMALL, *RUN, "--json").json
    assert found["findings"]
    for finding in found["findings"]:
        assert finding["kernel"] in finding["sentence"]
        for gap in finding["gaps"]:
            assert gap["limit_us"] <= gap["ceiling_us"] <= gap["us"]
    assert found["not_judged"] == ["sampling"]


def test_a_diagnosis_of_a_chip_that_does_not_exist(answered: Any) -> None:
    found = answered("diagnose", *SMALL, *RUN, "--what-if", "dram_bandwidth=2x", "--json").json
    assert found["deployment"]["gpu"] == "l40s+dram_bandwidth=2x"


def test_a_breakdown_adds_up(answered: Any) -> None:
    result = answered("simulate", *SMALL, *RUN, "--breakdown", "--json").json
    parts = result["breakdown"]
    kernels = sum(sum(kernel["seconds"].values()) for kernel in parts["kernels"])
    together = kernels + sum(parts["host_seconds"].values()) + parts["idle_seconds"]
    assert together == pytest.approx(result["duration_s"])
    assert sum(parts["ttft"]["mean_ms"].values()) == pytest.approx(result["ttft_ms"]["mean"])
    assert sum(parts["tpot"]["mean_ms"].values()) == pytest.approx(result["tpot_ms"]["mean"])
    plain = answered("simulate", *SMALL, *RUN, "--json").json
    assert {name: value for name, value in result.items() if name != "breakdown"} == plain


def test_a_breakdown_for_people(answered: Any) -> None:
    out = answered("simulate", *SMALL, *RUN, "--breakdown", "--full").out
    for words in ("Where every second", "own prompt", "The slowest first tokens", "What a token is made of"):
        assert words in out


@pytest.mark.parametrize("words", [("simulate", *SMALL, *RUN), ("kernels", *SMALL, "--decode", 8)])
def test_what_if_side_by_side(answered: Any, words: tuple[object, ...]) -> None:
    out = answered(*words, "--what-if", "gpu=h200-sxm", "--full").out
    assert "With gpu=h200-sxm" in out
    assert "explains" in out
    found = answered(*words, "--what-if", "gpu=h200-sxm", "--json").json
    assert (found["before"]["deployment"]["gpu"], found["after"]["deployment"]["gpu"]) == ("l40s", "h200-sxm")


@pytest.mark.parametrize("layout", [("-dp", 2), ("-pp", 2), ("-dp", 2, "-pp", 2, "--router", "least_loaded")])
def test_replicas_and_stages_are_explained_and_compared(answered: Any, layout: tuple[object, ...]) -> None:
    words = ("simulate", *SMALL, *RUN, *layout, "--breakdown")
    parts = answered(*words, "--json").json["breakdown"]
    kernels = sum(sum(kernel["seconds"].values()) for kernel in parts["kernels"])
    together = kernels + sum(parts["host_seconds"].values()) + parts["idle_seconds"]
    assert together == pytest.approx(parts["side_by_side"] * parts["duration_s"])
    assert "on 2 replicas and stages" in answered(*words, "--full").out or len(layout) > 2
    both = answered(*words, "--what-if", "data_parallel_size=3", "--json").json
    assert both["after"]["deployment"]["data_parallel_size"] == 3
    assert both["after"]["breakdown"]["side_by_side"] == 3 * (2 if "-pp" in layout else 1)
    text = answered(*words, "--what-if", "data_parallel_size=3", "--full").out
    assert text.count("Where every second") == 2
    assert "output tokens/s per GPU" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("simulate", *SMALL, *RUN, "--what-if", "sms=160", "--trace-out", "run.json"), "side by side"),
        (("simulate", *SMALL, *RUN, "--what-if", "ssm=160"), "sms"),
        (("simulate", *SMALL, *RUN, "--what-if", "dram_bandwidth=1.5"), "say 1.5x"),
        (("diagnose", *SMALL, *RUN, "--rate", 100_000), "overloaded"),
    ],
)
def test_what_makes_no_sense_is_refused(answered: Any, words: tuple[object, ...], said: str) -> None:
    result = answered(*words)
    assert result.code == 2
    assert said in result.err


def test_clients_have_no_meaning_with_a_trace(infercast: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n")
    result = infercast("diagnose", *SMALL, "--trace", trace, "--concurrency", 1)
    assert result.code == 2
    assert "its own arrivals" in result.err
