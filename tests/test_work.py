"""Runs do no more work than benchmarks/regression/work.txt says: modules, simulations, Python calls, memory."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "regression"
if not FOLDER.exists():
    pytest.skip("benchmarks are not part of a source distribution", allow_module_level=True)


@pytest.fixture
def work(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("work")


@pytest.mark.parametrize("run", ["default", "sglang", "prefixes", "replicas", "pools", "experts", "plan", "estimate"])
def test_no_run_does_more_work_than_recorded(work, run):
    release, expected = work.read_expected()
    assert {*expected} == {*work.COMMANDS}
    # Memory is traced once only: that makes a run several times as slow.
    found = work.measure({run: work.COMMANDS[run]}, memory=run == "default" and release == work.python())
    grown = [row for row in work.changes(expected, found) if row[4] > work.ALLOWED]
    advice = "if that is meant, run python benchmarks/regression/work.py --write and say why in the same commit"
    assert not grown, f"{grown}; {advice}"


def test_changes_are_told_largest_first(work, tmp_path):
    path = tmp_path / "work.txt"
    work.write_expected({"a": {"calls": 100, "modules": 10}, "b": {"calls": 50}}, path)
    release, before = work.read_expected(path)
    assert release == work.python()
    rows = work.changes(before, {"a": {"calls": 110, "modules": 10}, "b": {"calls": 40}})
    assert [row[:2] for row in rows] == [("a", "calls"), ("a", "modules"), ("b", "calls")]
    assert rows[0][4] == pytest.approx(0.1)
