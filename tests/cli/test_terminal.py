"""What reaches terminals, pipes and shells."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from infercast import __version__
from infercast.cli import outputs as printed
from infercast.forecast import autoscaling
from infercast.report.terminal import LINES, SCREEN, show

ANSI = re.compile(r"\x1b\[([0-9;]*)m")
COMMANDS = [
    ("gpus",),
    ("gpus", "h200-sxm"),
    ("models",),
    ("models", "deepseek-v3"),
    ("memory", "gpt-oss-20b", "--gpu", "h100-sxm"),
    ("memory", "llama-3.3-70b", "--gpu", "h100-sxm"),
    ("kernels", "qwen3-30b-a3b", "--gpu", "b200-sxm", "--decode", "32", "--context", "1400"),
    ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "--rate", "20", "-n", "30"),
    ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "--rate", "20", "-n", "30", "--breakdown"),
    ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "--rate", "20", "-n", "30", "--what-if", "sms=160"),
    ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "--rate", "20", "-n", "30", "--slo", "ttft_p99<1s,tpot_p95<40ms"),
    ("diagnose", "qwen3-0.6b", "--gpu", "h200-sxm", "--rate", "20", "-n", "30"),
]


def shell(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    cleared = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS")}
    return subprocess.run(
        [sys.executable, "-m", "infercast", *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        env={**cleared, "PYTHONIOENCODING": "utf-8", **environment},
    )


@pytest.fixture
def on_terminal(answered: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The command line in front of a terminal of some width."""

    def call(*words: str, columns: int = 100) -> str:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(columns))
        return str(answered(*words).out)

    return call


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_pipes_get_plain_text(answered: Any, words: tuple[str, ...]) -> None:
    text = answered(*words).out
    assert "\x1b" not in text
    assert "…" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert text.strip("\n") == text[:-1], "no empty lines around the output"
    assert len(text.splitlines()) <= LINES
    assert max(map(len, text.splitlines())) <= SCREEN


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_terminals_get_colour_within_their_width(on_terminal: Callable[..., str], words: tuple[str, ...]) -> None:
    text = on_terminal(*words)
    assert ANSI.search(text)
    lines = ANSI.sub("", text).splitlines()
    assert max(map(len, lines)) <= 100
    assert "…" not in text


NUMBER = re.compile(r"\d(?:[\d,.]*\d)?")
LONGER = [
    ("simulate", "deepseek-v2-lite", "--gpu", "h200-sxm", "--rate", "4", "-n", "30"),
    ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "--rate", "20", "-n", "30", "-dp", "20"),
    ("disaggregate", "qwen3-0.6b", "--prefill-gpu", "l4", "--decode-gpu", "l4", "--rate", "2", "-n", "30"),
    ("layouts", "qwen3-0.6b", "--gpu", "l4", "--gpus", "1,2", "--concurrency", "2", "--output-len", "8"),
    ("sweep", "qwen3-0.6b", "--gpu", "l4", "--rates", "1,40", "-n", "30", "--slo", "ttft_p99<1s,tpot_p95<20ms"),
    ("capacity", "qwen3-0.6b", "--gpu", "l4", "--rate", "1", "--no-check", "--slo", "ttft_p99<1s,tpot_p95<20ms"),
    (
        "plan",
        "qwen3-0.6b",
        "--gpu",
        "l4,l40s",
        "--rate",
        "4",
        "-n",
        "60",
        "--max-gpus",
        "2",
        "--slo",
        "ttft_p99<1s",
        "--workers",
        "1",
    ),
    ("kernels", "qwen3-0.6b", "--gpu", "l4", "--prefill", "1024", "--explain"),
    ("kernels", "qwen3-0.6b", "--gpu", "l4", "--prefill", "1024", "--what-if", "gpu=l40s"),
    ("estimate", "gemm", "--m", "4096", "--n", "14336", "--k", "4096", "--gpu", "h200-sxm"),
    ("tune", "qwen3-30b-a3b", "--gpu", "h200-sxm", "--tokens", "16,64"),
    ("explain-command", "vllm serve Qwen/Qwen3-0.6B --max-num-seqs 64", "--gpu", "l4", "--rate", "2", "-n", "30"),
    ("hosts",),
]


@pytest.mark.parametrize("words", [*COMMANDS, *LONGER], ids=lambda words: " ".join(words[:4]))
def test_no_number_is_cut_at_80_or_60_columns(
    answered: Any,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts: list[Any] = []
    monkeypatch.setattr(printed, "show", lambda *shown, width: parts.extend(shown))
    monkeypatch.setattr(autoscaling, "LEAST", 100)
    monkeypatch.setattr(autoscaling, "MOST", 800)
    assert answered(*words).code == 0
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    texts = {}
    for columns in (160, 100, 80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        show(*parts)
        texts[columns] = ANSI.sub("", capsys.readouterr().out)
        assert max(map(len, texts[columns].splitlines())) <= columns
        assert "…" not in texts[columns]
        assert columns != SCREEN or len(texts[columns].splitlines()) <= LINES, "more than a screen"
        assert set(NUMBER.findall(texts[columns])) <= set(NUMBER.findall(texts[160])), "a number is broken"


def test_no_color_is_obeyed(on_terminal: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def colours(text: str) -> list[int]:
        codes = (int(code) for group in ANSI.findall(text) for code in group.split(";") if code)
        return [code for code in codes if 30 <= code <= 49 or 90 <= code <= 107]

    words = COMMANDS[1]
    assert colours(on_terminal(*words))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours(on_terminal(*words))


def test_a_pipe_of_another_encoding() -> None:
    """Pipes on Windows are often cp1252, which has no lines to draw tables with."""
    result = shell("memory", "qwen3-0.6b", "--gpu", "l4", PYTHONIOENCODING="cp1252")
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()
    assert "----" in result.stdout


def test_hash_seeds_change_nothing() -> None:
    words = ("simulate", "qwen3-30b-a3b", "--gpu", "h200-sxm", "--rate", "20", "-n", "30", "--prefix-len", "64",
             "--prefix-groups", "5", "--json")  # fmt: skip
    first, second = (shell(*words, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout


def test_exit_codes_of_the_real_program() -> None:
    good = shell("--version")
    assert (good.returncode, good.stdout, good.stderr) == (0, f"{__version__}\n", "")
    bad = shell("gpus", "h20o")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("infercast: unknown GPU 'h20o'; did you mean")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes break otherwise there")
def test_a_reader_that_leaves_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "infercast", "gpus", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == b""


def test_help_of_every_command(infercast: Any) -> None:
    overview = infercast("--help")
    assert overview.code == 0
    for name in ("simulate", "kernels", "memory", "gpus", "models", "validate"):
        assert name in overview.out
        text = infercast(name, "-h")
        assert text.code == 0
        assert "--json" in text.out


@pytest.mark.parametrize("name", ["simulate", "plan", "calibrate"])
def test_help_cuts_no_option_at_80_columns(infercast: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = infercast(name, "--help").out
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_without_a_command_the_help_is_shown(infercast: Any) -> None:
    result = infercast()
    assert "Usage: infercast" in result.out + result.err
