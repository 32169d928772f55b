"""Examples in documents do what the pages say: Python compiles and names what is there, quoted numbers are printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import infercast

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
NUMBER = re.compile(r"\d[\d,.]*\d? (?:ms|s|us|requests/s|GiB|output tokens/s|per hour)(?![a-z])")
FIRST = "llama-3.1-8b (bf16) on 1 x NVIDIA H200 SXM5 141 GB, vllm@0.33"
QUOTED = {
    ("README.md", FIRST): "simulate llama-3.1-8b --gpu h200-sxm --rate 12",
    ("docs/quick-start.md", FIRST): "simulate llama-3.1-8b --gpu h200-sxm --rate 12",
    ("docs/reading-a-result.md", "What was simulated"): "simulate llama-3.1-8b --gpu h200-sxm --rate 12 --full",
    ("docs/quick-start.md", "Where it bends"): (
        'sweep llama-3.1-8b --gpu h200-sxm --rates 6:36:6 -n 2000 --slo "ttft_p99<500ms,tpot_p95<30ms"'
    ),
}
"""Output that a page quotes, by its first words, and the command that prints it."""


def python_blocks() -> list[tuple[str, str]]:
    """Python that readers may copy; quotations of our own source have a file's name on their fence."""
    return [
        (page.name, code)
        for page in PAGES
        for code in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    ]


@pytest.mark.parametrize(("page", "code"), python_blocks())
def test_python_in_documents_compiles_and_names_what_is_there(page: str, code: str) -> None:
    compile(code, page, "exec")
    for name in re.findall(r"(?<![\w.])infercast\.([a-zA-Z_]+)", code):
        assert hasattr(infercast, name) or (ROOT / "src" / "infercast" / name).exists(), f"{page}: infercast.{name}"


def printed(command: str) -> str:
    """Without a limit of time, which another machine comes less or more far in."""
    usual = {"INFERCAST_CACHE": "off", "INFERCAST_TIME_LIMIT": "100000"}
    answer = subprocess.run(
        [sys.executable, "-m", "infercast", *shlex.split(command)],
        capture_output=True, text=True, check=True,
        env={"COLUMNS": "160", "PYTHONPATH": str(ROOT / "src"), **usual},
    )  # fmt: skip
    return answer.stdout


@pytest.mark.parametrize("command", sorted(set(QUOTED.values())))
def test_quoted_output_has_the_numbers_that_are_printed(command: str) -> None:
    answer = printed(command)
    for (page, first), asked in QUOTED.items():
        if asked != command:
            continue
        block = re.search(
            rf"^```\n{re.escape(first)}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE
        )
        assert block is not None, f"{page} quotes no output that begins with {first}"
        missing = [number for number in NUMBER.findall(block[1]) if number not in answer]
        assert not missing, f"{page} quotes numbers that `infercast {command}` no longer prints: {missing}"
