"""The pages for maintainers name files, classes and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "infercast"
PAGE = ROOT / "docs" / "maintainers.md"
if not PAGE.is_file():
    pytest.skip("documents are not part of a source distribution", allow_module_level=True)


def names_in(path: Path) -> set[str]:
    """Top-level names of a module, and `Class.attribute` of its classes with those inherited within the module."""
    found: set[str] = set()
    known: dict[str, set[str]] = {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef):
            inherited = [known[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in known]
            known[node.name] = attributes(node).union(*inherited)
            found |= {f"{node.name}.{name}" for name in known[node.name]}
    return found


def attributes(node: ast.ClassDef) -> set[str]:
    """Methods, fields, and attributes that methods assign."""
    found = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    for each in ast.walk(node):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found.add(each.target.id)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and isinstance(each.value, ast.Name):
            found.add(each.attr)
    return found


def rows(heading: str) -> list[list[str]]:
    """Cells of the table below a heading, without its first two lines."""
    section = PAGE.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_eight_files_are_there_with_what_to_start_at() -> None:
    files = rows("Eight files, in order")
    assert [int(number) for number, *_ in files] == list(range(1, 9))
    for _, file, start, _ in files:
        path = SOURCE / file.strip("`")
        assert path.is_file(), f"docs/maintainers.md names {file}, which is not there"
        missing = set(re.findall(r"`([\w.]+)`", start)) - names_in(path)
        assert not missing, f"docs/maintainers.md: {file} has no {sorted(missing)}"


def test_the_last_section_answers_four_questions() -> None:
    assert PAGE.read_text("utf-8").rpartition("\n## ")[2].startswith("Four answers\n")
    answers = rows("Four answers")
    everywhere = {name for path in SOURCE.rglob("*.py") for name in names_in(path)}
    assert len(answers) == 4
    for question, file, names in answers:
        assert question.endswith("?")
        assert (SOURCE / file.strip("`")).exists(), f"docs/maintainers.md names {file}, which is not there"
        missing = {name for name in re.findall(r"`([A-Za-z_.]+)`", names) if name not in everywhere}
        assert not missing, f"docs/maintainers.md names {sorted(missing)}, which no module has"


@pytest.mark.parametrize(("page", "least"), [("maintainers.md", 8), ("extending.md", 5)])
def test_names_with_their_files_exist(page: str, least: int) -> None:
    """`Name` of `path.py`, anywhere on the page."""
    text = " ".join((PAGE.parent / page).read_text("utf-8").split())
    named = re.findall(r"`([\w.]+)` of `([\w/]+\.py)`", text)
    assert len(named) >= least
    for name, file in named:
        assert name in names_in(SOURCE / file), f"docs/{page}: {file} has no {name}"
