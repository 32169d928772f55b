"""What shells are offered, as their scripts ask for it."""

from typing import Any

import pytest

from infercast.cli.app import command_to_complete


def in_bash(monkeypatch: pytest.MonkeyPatch, infercast: Any, line: str) -> list[str]:
    monkeypatch.setenv("_INFERCAST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    return str(infercast().out).split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("infercast simu", {"simulate"}),
        ("infercast simulate llama-3.1-8", {"llama-3.1-8b", "llama-3.1-8b-fp8"}),
        ("infercast simulate llama-3.1-8b --gpu h200", {"h200-nvl", "h200-sxm"}),
        ("infercast plan qwen3-32b --gpu l4,h200", {"l4,h200-nvl", "l4,h200-sxm"}),
        ("infercast disaggregate qwen3-32b --prefill-gpu h200-s", {"h200-sxm"}),
        ("infercast simulate llama-3.1-8b --engine sgl", {"sglang", "sglang@0.5.16"}),
        ("infercast sweep llama-3.1-8b --rates 1,2 --form", {"--format"}),
        ("infercast memory llama-3.1-8b --format ", {"table", "json", "csv", "md"}),
        ("infercast gpus b30", {"b300-sxm"}),
    ],
)
def test_names_are_completed(monkeypatch: pytest.MonkeyPatch, infercast: Any, line: str, offered: set[str]) -> None:
    assert offered <= set(in_bash(monkeypatch, infercast, line))


def test_other_shells_send_the_line() -> None:
    assert command_to_complete({"_TYPER_COMPLETE_ARGS": "infercast simu"}) == ""
    assert command_to_complete({"_TYPER_COMPLETE_ARGS": "infercast simulate "}) == "simulate"
    assert command_to_complete({"_TYPER_COMPLETE_ARGS": "infercast simulate lla"}) == "simulate"
    assert command_to_complete({}) == ""


def test_the_script_is_shown_on_demand(infercast: Any) -> None:
    assert "--install-completion" in infercast("--help").out
    assert "--install-completion" not in infercast("gpus", "--help").out
