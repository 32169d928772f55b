"""Every notebook runs from its first cell to its last and shows what is committed in it."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def shown(notebook: dict[str, Any]) -> list[list[Any]]:
    """What each cell prints, and the forms in which it shows its value; pictures and frames differ by versions."""
    return [
        [sorted(each["data"]) if "data" in each else "".join(each["text"]) for each in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_is_committed(path: Path) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    execute = runpy.run_path(str(FOLDER / "execute.py"))["executed"]
    committed = json.loads(path.read_text(encoding="utf-8"))
    assert shown(execute(committed)) == shown(committed)


def test_there_are_two_notebooks_of_the_usual_format() -> None:
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        assert all(cell["id"] for cell in notebook["cells"])
        assert all(cell["outputs"] for cell in notebook["cells"][2:] if cell["cell_type"] == "code")
