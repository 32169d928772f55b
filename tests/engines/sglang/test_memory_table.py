"""Defaults that SGLang's own functions gave, against ours.

``memory.csv`` was written by benchmarks/scheduler/sglang_memory.py: tokens of a chunk, the static share of memory,
graphs of decoding and of prompts (how many, and the sum of their sizes), bytes of a token, and requests at once.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks" / "scheduler"
with Path(__file__).with_name("memory.csv").open(encoding="utf-8", newline="") as file:
    ROWS = [*csv.DictReader(file)]


@pytest.fixture(scope="module")
def table() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("sglang_memory")


def flags_of(text: str) -> dict[str, Any]:
    pairs = (each.split("=") for each in text.split())
    return {key: value == "True" if value in ("True", "False") else int(value) for key, value in pairs}


def test_there_are_deployments_of_every_kind() -> None:
    assert len(ROWS) > 200
    assert len({row["model"] for row in ROWS}) > 12
    assert {row["data"] for row in ROWS} == {"1", "2", "4", "8"}


def test_every_default_is_what_sglang_chooses(table: ModuleType) -> None:
    for row in ROWS:
        question = (row["gpu"], row["model"], int(row["tensor"]), int(row["data"]), flags_of(row["flags"]))
        answer, _ = table.ours(*question)
        assert [str(value) for value in answer] == [row[column] for column in table.COLUMNS], question
