"""Run the cells of notebooks and write what they show into them, without Jupyter.

    python examples/notebooks/execute.py examples/notebooks/*.ipynb

Jupyter runs them, too. This is for tests, which need no kernel for it.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of all its cells; an error of a cell is raised."""
    names: dict[str, Any] = {"__name__": "__main__"}
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    done = {
        cell["id"]: {"execution_count": count, "outputs": outputs_of("".join(cell["source"]), names, count)}
        for count, cell in enumerate(codes, start=1)
    }
    return {**notebook, "cells": [{**cell, **done.get(cell["id"], {})} for cell in notebook["cells"]]}


def outputs_of(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """What a cell prints, and the value of its last line."""
    tree, last = ast.parse(source), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)
        value = None if last is None else eval(compile(last, f"cell {count}", "eval"), names)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if value is not None:
        shown = {"data": shown_as(value), "execution_count": count, "metadata": {}, "output_type": "execute_result"}
        found.append(shown)
    return found


def shown_as(value: Any) -> dict[str, Any]:
    """A value in the forms that a notebook can show."""
    forms: dict[str, Any] = {"text/plain": lines(repr(value))}
    if hasattr(value, "_repr_html_") and (html := value._repr_html_()):
        forms["text/html"] = lines(html)
    if hasattr(value, "_repr_png_") and (image := value._repr_png_()):
        forms["image/png"] = base64.b64encode(image).decode()
    return forms


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        notebook = executed(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
