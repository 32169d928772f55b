"""Hostile command lines: one sentence and exit code 2, or an answer; never a traceback, never a wait."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "robustness"
if not FOLDER.exists():
    pytest.skip("benchmarks are not part of a source distribution", allow_module_level=True)

COUNT = 150


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def is_quick(words: list[str]) -> bool:
    """Neither a library's import nor all measured runs: those take seconds when they are right."""
    if {"--report", "--measurements", "--anchors"} & set(words) or words[0] in ("measure", "fit"):
        return False
    return words[0] != "validate" or any(Path(word).is_file() for word in words)


def test_hostile_commands_are_answered_or_refused(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [words for words in module("commands").hostile_commands(tmp_path, 3 * COUNT, seed=11) if is_quick(words)]
    verdicts = [module("verdict").judge(words) for words in commands[:COUNT]]
    assert len(verdicts) == COUNT
    wrong = [f"{each.problem}: {each.words}\n{each.details}" for each in verdicts if each.problem]
    assert not wrong, "\n\n".join(wrong)
    assert sum(each.code == 0 for each in verdicts) > COUNT / 15  # not all of them end at the first check


@pytest.mark.parametrize(
    "words",
    [
        ("kernels", "qwen3-0.6b", "--gpu", "h200-sxm", "--decode", "9" * 30),
        ("kernels", "qwen3-0.6b", "--gpu", "h200-sxm", "--decode", "4", "--context", "9" * 30),
        (
            "disaggregate",
            "qwen3-0.6b",
            "--prefill-gpu",
            "l4",
            "--decode-gpu",
            "l4",
            "-n",
            "8",
            "--concurrency",
            "9" * 30,
        ),
        ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "-n", "8", "--concurrency", "9" * 30),
        ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "--rate", "5", "-n", "8", "--trace-out", "/dev/full"),
        ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "--rate", "5", "-n", "8", "-dp", "100"),
        ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "--rate", "5", "-n", "8", "-dp", "9" * 30),
        ("layouts", "qwen3-0.6b", "--gpu", "l4", "--gpus", "999999", "--concurrency", "2"),
        ("memory", "qwen3-0.6b", "--gpu", "a" * 5000),
        ("memory", "a" * 5000, "--gpu", "h200-sxm"),
    ],
    ids=lambda words: f"{words[0]} {words[-2]} {words[-1][:12]}",
)
def test_what_once_misbehaved(module: Any, words: tuple[str, ...]) -> None:
    verdict = module("verdict").judge(list(words))
    assert not verdict.problem, verdict.details


def test_the_judge_notices_what_it_looks_for(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = module("verdict")

    def problem(act: Any, *words: str) -> str:
        monkeypatch.setattr(verdict, "run", act)
        return str(verdict.judge(["x", *words], longest=0.2).problem)

    def loop() -> None:
        while True:
            pass

    def refuse(text: str, out: str = "") -> Any:
        def act() -> None:
            print(out, end="")
            print(text, file=verdict.sys.stderr, end="")
            raise SystemExit(2)

        return act

    assert problem(loop) == "took longer than 0.2 s"
    assert problem(lambda: {}["x"]) == "traceback: KeyError"
    assert problem(refuse("infercast: one sentence that helps\n")) == ""
    assert "one sentence" in problem(refuse("infercast: one\nand another one\n"))
    assert "standard output" in problem(refuse("infercast: one sentence that helps\n", out="half a table"))
    assert problem(lambda: print("NaN"), "--json") == "--json printed no JSON"
    assert problem(lambda: exit(1)) == "exit code 1"
