"""``infercast explain-command``."""

import io
import json
import sys
from typing import Any

import pytest

COMMAND = "vllm serve qwen3-0.6b --max-num-seqs 16 --fully-sharded-loras --swap-space 8 --host 0.0.0.0"
SMALL = ("--gpu", "h200-sxm", "--rate", 20, "-n", 40, "--input-len", 200, "--output-len", 20)


def test_tables(answered: Any) -> None:
    result = answered("explain-command", COMMAND, *SMALL, "--no-advice", "--full")
    assert result.code == 0, result.err
    for words in (
        "Flags that are read",
        "--max-num-seqs",
        "--fully-sharded-loras: LoRA adapters in other layouts",
        "no release is named: vllm@0.17.0 is the newest that takes all flags (--swap-space)",
        "--host: the server's address and protocol",
        "KV blocks",
        "TTFT p50",
    ):
        assert words in result.out


def test_json_has_flags_memory_loads_and_advice(answered: Any) -> None:
    found = answered("explain-command", COMMAND, *SMALL, "--json").json
    assert [flag["status"] for flag in found["flags"]] == ["read", "not modelled", "ignored", "ignored"]
    assert found["flags"][0]["default"] == "1,024"
    assert found["memory"]["fits"]
    assert found["loads"][0]["forecast"]["ttft_ms"]["p99"] > 0
    assert {"ranked", "other_gpus", "worse", "without_effect", "refused", "applied", "together"} == set(found["advice"])
    gains = [each["gain"] for each in found["advice"]["ranked"]]
    assert gains == sorted(gains, reverse=True)


def test_standard_input_and_files(infercast: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(COMMAND))
    piped = infercast("explain-command", "-", *SMALL, "--no-advice", "--json").json
    file = tmp_path / "pod.yaml"
    file.write_text("kind: Pod\nspec:\n  containers:\n  - name: a\n    image: vllm/vllm-openai\n"
                    f"    args: {json.dumps(['--model', *COMMAND.split()[2:]])}\n")  # fmt: skip
    read = infercast("explain-command", file, *SMALL, "--no-advice", "--json").json
    assert read["read_from"] == "service a"
    assert read["loads"] == piped["loads"]


def test_words_behind_two_dashes_need_no_quotes(infercast: Any) -> None:
    found = infercast("explain-command", *SMALL, "--no-advice", "--json", "--", *COMMAND.split()).json
    assert found["model"] == "qwen3-0.6b"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("curl localhost", "no command that starts a server was found"),
        ("vllm serve", "the command names no model"),
        (" ", "there is no command to explain"),
        ("vllm serve qwen3-0.6b --max-num-seqs x", "--max-num-seqs must be a whole number"),
    ],
)
def test_what_is_wrong_is_one_sentence(answered: Any, text: str, problem: str) -> None:
    assert problem in answered("explain-command", text, *SMALL).sentence


def test_every_class_of_flags_has_its_row_however_many_there_are(infercast: Any) -> None:
    many = (
        "--stream-interval 2 --disable-custom-all-reduce --attention-backend FLASHINFER --calculate-kv-scales "
        "--distributed-executor-backend ray --limit-mm-per-prompt image=1 --num-scheduler-steps 8 --swap-space 4 "
        "--api-server-count 4 --override-generation-config {} --additional-config {} --prefill-context-parallel-size 2"
    )
    text = infercast(
        "explain-command", f"vllm serve qwen3-0.6b {many} --max-num-seqs 16 --port 1", *SMALL, "--no-advice"
    ).out
    assert len(text.splitlines()) <= 40
    rows = {line[:12].strip() for line in text.splitlines()}
    assert {"refused", "not modelled", "ignored", "memory", "doubt"} <= rows
    assert "--full says which way each moves the result" in " ".join(text.split())
