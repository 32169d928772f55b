"""Answers without HTTP: what they hold, what is kept, and that no path is ever read."""

import json
from pathlib import Path
from typing import Any

import pytest

from infercast.bundled import DATA
from infercast.errors import DoesNotFitError, InfercastError, InputError
from infercast.forecast import autoscaling
from infercast.web import answers
from infercast.web.answers import answer
from infercast.web.state import LARGEST_CONFIG
from infercast.web.worker import ANSWER, ERROR, line_of, reply_to

QUICK = {"num_requests": 30, "input_len": "200", "output_len": "20"}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 4096, "vocab_size": 32000, "max_position_embeddings": 16384,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def ask(question: str = "simulate", **state: Any) -> dict[str, Any]:
    return answer(question, {"state": {**QUICK, **state}})


def test_a_run_with_all_that_is_drawn_of_it() -> None:
    found = ask(slo="ttft_p99<1s")
    json.dumps(found, allow_nan=False)
    forecast = found["forecast"]
    low, high = forecast["ttft_ms_interval"]["p50"]
    assert low < forecast["ttft_ms"]["p50"] < high
    assert forecast["slo_odds"] is not None
    ttft = found["distributions"]["ttft_ms"]
    assert len(ttft) == 201
    assert ttft == sorted(ttft)
    assert ttft[100] == pytest.approx(forecast["ttft_ms"]["p50"], rel=0.05)
    assert len({len(values) for values in found["timeline"].values()}) == 1
    (pool,) = found["rooflines"]
    assert {each["phase"] for each in pool["phases"]} <= {"prefill", "mixed", "decode"}
    kernels = [kernel for phase in pool["phases"] for kernel in phase["kernels"]]
    assert all(kernel["flops_per_s"] <= 1.01 * kernel["limit_flops_per_s"] for kernel in kernels)
    parts = {part["key"]: part["bytes"] for part in found["memory"]["parts"]}
    assert sum(parts.values()) == pytest.approx(found["memory"]["total_bytes"])


def test_a_quick_answer_is_the_same_without_intervals() -> None:
    quick = answer("simulate", {"state": QUICK, "intervals": False})
    whole = answer("simulate", {"state": QUICK})
    assert (quick["final"], whole["final"]) == (False, True)
    assert quick["forecast"]["ttft_ms"] == whole["forecast"]["ttft_ms"]
    assert not any("interval" in name and value for name, value in quick["forecast"].items())


def test_a_quick_answer_of_a_slow_simulation_is_of_fewer_requests() -> None:
    state = {**QUICK, "num_requests": 200, "pipeline_parallel_size": 2}
    quick, whole = (answer("simulate", {"state": state, "intervals": final}) for final in (False, True))
    assert (quick["requests"], whole["requests"]) == (150, 200)
    assert quick["command"] == whole["command"]
    assert quick["state"]["num_requests"] == 200
    json.dumps(quick, allow_nan=False)
    assert quick["forecast"]["capacity_requests_per_s"] is None


def test_an_overload_is_an_answer_and_its_command_says_so() -> None:
    found = ask(rate=5000.0, num_requests=200, output_len="100")
    assert found["forecast"]["saturated"]
    assert found["command"].endswith(" --allow-overload")


def test_what_does_not_fit_comes_with_its_memory() -> None:
    with pytest.raises(DoesNotFitError):
        ask(model="deepseek-v3")
    kind, found = reply_to("simulate", {"state": {"model": "deepseek-v3"}}, print)
    assert kind == ERROR
    assert found["memory"]["fits"] is False
    assert found["memory"]["needed_bytes"] > found["memory"]["total_bytes"]


def test_a_dropped_config_is_read_and_not_kept() -> None:
    before = dict(answers._runs)
    for document in ({"state": QUICK, "config": CONFIG}, {"state": {**QUICK, "config": CONFIG}}):
        found = answer("simulate", document)
        assert "./config.json" in found["command"]
        assert "config" not in found["state"]
        assert answers._runs == before
    assert json.dumps(CONFIG["hidden_size"]) not in found["query"]


@pytest.mark.parametrize(
    "config",
    [[], "x", {}, {"architectures": 3}, {**CONFIG, "num_hidden_layers": "many"}, {"padding": "x" * LARGEST_CONFIG}],
)
def test_a_config_that_is_none_is_refused(config: Any) -> None:
    with pytest.raises(InfercastError):
        answer("simulate", {"state": QUICK, "config": config})


def test_no_path_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "gpu.toml").write_text((DATA / "gpus" / "h200-sxm.toml").read_text())
    monkeypatch.chdir(tmp_path)
    draft = json.dumps({"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 2})
    for field, value in (
        ("model", str(tmp_path)),
        ("model", "config.json"),
        ("model", "."),
        ("gpu", "gpu.toml"),
        ("gpu", str(tmp_path / "gpu.toml")),
        ("host", str(tmp_path / "gpu.toml")),
        ("speculative_config", draft),
        ("speculative_config", draft.replace(str(tmp_path), "config.json")),
        ("provider", str(tmp_path / "gpu.toml")),
        ("network", str(tmp_path)),
    ):
        with pytest.raises(InputError):
            ask(**{field: value})
    with pytest.raises(InputError):
        ask(settings=[f"speculative_config={draft}"])


@pytest.mark.parametrize(
    ("question", "state", "words"),
    [
        ("plan", {}, "slo is empty"),
        ("plan", {"slo": "ttft_p99<1s", "gpus": []}, "gpus is empty"),
        ("capacity", {"slo": "ttft_p99<1s", "concurrency": 3}, "mean rate of the day"),
        ("curve", {"turns": "3"}, "leave out turns"),
        ("curve", {"rates": "0:1:1000"}, "rates must be FROM:TO:COUNT"),
        ("simulate", {"settings": ["engine=x"]}, "engine is a field of its own"),
        ("simulate", {"settings": ["max_num_seqs=3"], "max_num_seqs": 4}, "given twice"),
        ("simulate", {"engine": "sglang@0.5.16", "enforce_eager": True}, "enforce_eager is no setting of SGLang"),
        ("export", {}, "kind of export"),
        ("everything", {}, "unknown question 'everything'"),
    ],
)
def test_what_cannot_be_answered(question: str, state: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as problem:
        answer(question, {"state": state})
    assert words in str(problem.value)


def test_files_to_keep(unrendered: None) -> None:
    for kind, words in (("html", "<!doctype html>"), ("csv", "sent_s,"), ("json", "{")):
        found = answer("export", {"state": QUICK, "kind": kind})
        assert found["name"] == f"llama-3.1-8b-h200-sxm.{kind}"
        assert found["text"].startswith(words)
        assert kind != "html" or "infercast simulate llama-3.1-8b" in found["text"]


def test_several_states_on_one_page(unrendered: None) -> None:
    states = [QUICK, {**QUICK, "gpu": "l40s"}, {**QUICK, "gpu": "l40s", "rate": 3.0}]
    page = answer("export", {"states": states, "kind": "html"})
    assert page["name"] == "comparison.html"
    assert "3 runs compared" in page["text"]
    found = json.loads(answer("export", {"states": states, "kind": "json"})["text"])
    assert list(found) == ["llama-3.1-8b h200-sxm", "llama-3.1-8b l40s (2)", "llama-3.1-8b l40s (3)"]
    for document in (
        {"states": [QUICK], "kind": "html"},
        {"states": 3, "kind": "json"},
        {"states": states, "kind": "csv"},
    ):
        with pytest.raises(InputError):
            answer("export", document)


def test_a_plan_and_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaling, "LEAST", 100)
    monkeypatch.setattr(autoscaling, "MOST", 800)
    told: list[str] = []
    state = {**QUICK, "slo": "ttft_p99<2s,tpot_p95<80ms", "gpus": ["h200-sxm"], "max_gpus": 1, "rate": 1.0}
    found = answer("plan", {"state": state}, told.append)
    assert "h200-sxm" in json.dumps(found["plan"]["winner"])
    assert told
    day = answer("capacity", {"state": {**state, "day_profile": "flat"}})
    assert day["capacity"]["policies"]


def test_every_preset_is_a_state() -> None:
    for preset in answer("catalog", {})["presets"]:
        assert answer("memory", {"query": preset["query"]})["state"]["model"]


def test_lines_are_strict_json() -> None:
    line = line_of(ANSWER, {"a": [float("nan"), float("inf"), 1.5], "b": "\n"})
    assert line.count(b"\n") == 1
    assert json.loads(line[1:]) == {"a": [None, None, 1.5], "b": "\n"}


def test_a_bug_is_told_without_its_details(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(answers.QUESTIONS, "memory", lambda *_: 1 / 0)  # type: ignore[arg-type, return-value]
    kind, found = reply_to("memory", {}, print)
    assert (kind, found["error"]["type"]) == (ERROR, "InternalError")
    assert "division" not in found["error"]["message"]
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_step_of_one_token_can_be_asked_for() -> None:
    found = ask(
        max_num_batched_tokens=1, max_num_seqs=1, num_requests=1, input_len="2", output_len="2", max_model_len=8
    )
    assert found["forecast"]["ttft_ms"]["p50"] > 0
