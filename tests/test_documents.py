"""Documents agree with the code: quoted lines are in the source, and named files and pages exist."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "infercast"
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks" / "results").glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/LOG.md")),
]
LEFT_OUT = "..."
"""A line of a quotation that stands for others."""


class Quotation(NamedTuple):
    page: str
    file: str
    lines: list[str]


def quotations() -> list[Quotation]:
    """Blocks of code whose fence names the file that they come from."""
    found = []
    for page in PAGES:
        for file, code in re.findall(r"^```python (\S+)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            found.append(Quotation(page.name, file, [line.strip() for line in code.splitlines()]))
    return found


def missing_line(quoted: list[str], source: list[str]) -> str | None:
    """The first quoted line that does not follow the one before; after lines left out, it may come anywhere below."""
    positions, anywhere = {-1}, True
    for line in quoted:
        if line == LEFT_OUT:
            anywhere = True
            continue
        first = min(positions)
        positions = {
            number
            for number, text in enumerate(source)
            if text == line and (number > first if anywhere else number - 1 in positions)
        }
        if not positions:
            return line
        anywhere = False
    return None


@pytest.mark.parametrize("quotation", quotations(), ids=lambda each: f"{each.page}: {each.lines[0]}")
def test_quoted_code_is_in_the_source(quotation: Quotation) -> None:
    source = [line.strip() for line in (SOURCE / quotation.file).read_text("utf-8").splitlines()]
    line = missing_line(quotation.lines, source)
    assert line is None, f"docs quote a line of {quotation.file} that has changed; update {quotation.page}: {line}"


def test_a_quotation_that_is_not_there_is_found() -> None:
    source = ["a", "b", "c", "b", "d"]
    assert missing_line(["a", "b", LEFT_OUT, "d"], source) is None
    assert missing_line(["b", "d"], source) is None
    assert missing_line(["a", "c"], source) == "c"
    assert missing_line(["d", LEFT_OUT, "a"], source) == "a"
    assert {each.page for each in quotations()} == {"maintainers.md"}


FOLDERS = (ROOT, SOURCE, SOURCE / "data", ROOT / "docs")
TO_BE_WRITTEN = ("NAME", "delta_net", "scan", "water", "trtllm", "mine/", "parts/")
"""Words in names of files that pages tell their readers to write."""
GENERATED = (
    "glossary.md",
    "reference-catalog.md",
    "reference-command-line.md",
    "reference-http.md",
    "reference-json.md",
    "reference-python.md",
)
"""Pages that are made when the site is built (docs/_site/pages.py)."""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_pages_name_are_there(page: Path) -> None:
    text = page.read_text("utf-8")
    named = set(re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|toml|json|csv|gz|txt))`", text))
    named |= {path for path in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in path}
    missing = {
        path
        for path in named
        if not any((folder / path).exists() for folder in (*FOLDERS, page.parent))
        and not any(word in path for word in TO_BE_WRITTEN)
        and path.removeprefix("docs/") not in GENERATED
    }
    assert not missing, f"{page.name} names files that are not there: {sorted(missing)}"
