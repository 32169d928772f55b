"""Predictions move only on purpose: what is computed now is what benchmarks/regression/predictions.txt says."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from infercast.predict.families import attention as attention_prefill
from infercast.predict.families import attention_kernels as flash_schedule
from infercast.predict.families.family import Constants
from infercast.predict.learned import make_predictor

FOLDER = Path(__file__).parents[1] / "benchmarks" / "regression"
if not FOLDER.exists():
    pytest.skip("benchmarks are not part of a source distribution", allow_module_level=True)


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


@pytest.fixture
def moved_in(module):
    """The table of what moved in cases that contain a text, and an empty list where nothing did."""

    def find(text: str = "") -> tuple[list, str]:
        predictions, moves = module("predictions"), module("moves")
        cases = [case for case in module("cases").read_cases() if text in case.text]
        texts = {case.text for case in cases}
        known = predictions.read_expected()
        known = {name: value for name, value in known.items() if not text or name.rpartition(": ")[0] in texts}
        moved = moves.moves_between(known, predictions.compute(cases, make_predictor()))
        return moved, moves.describe(moved, known)

    return find


def test_predictions_are_what_they_were(moved_in):
    moved, table = moved_in()
    advice = "if that is meant, run: python benchmarks/regression/predictions.py --write"
    assert not moved, f"\n{table}\n{advice}"


CONSTANTS = [*vars(attention_prefill.PREFILL_CONSTANTS)]
WRITING = [name for name in CONSTANTS if "write" in name]
"""Of what tables hold beside attention and estimates in an engine do not; see predict/test_attention_kernels.py."""


@pytest.mark.parametrize("constant", [name for name in CONSTANTS if name not in WRITING])
def test_a_constant_of_the_physics_does_not_change_unnoticed(moved_in, monkeypatch, constant):
    constants = attention_prefill.PREFILL_CONSTANTS
    changed = Constants(**vars(constants) | {constant: 1.03 * getattr(constants, constant)})
    monkeypatch.setattr(attention_prefill, "PREFILL_CONSTANTS", changed)
    moved, table = moved_in("prefill")
    assert any(move.name.endswith("seconds") for move in moved)
    assert "kernel: " in table


def test_the_schedule_of_attention_does_not_change_unnoticed(moved_in, monkeypatch):
    monkeypatch.setattr(flash_schedule, "RATE", 1.03 * flash_schedule.RATE)
    assert moved_in("h200-sxm prefill")[0]


def test_a_case_is_a_line_and_alternatives_are_cases(module, tmp_path):
    path = tmp_path / "cases.txt"
    path.write_text("# nothing\nkernel a,b gemm m=1,2 n=3 dtype=fp8   # why\n", encoding="utf-8")
    cases = module("cases").read_cases(path)
    assert [case.text.split()[1] for case in cases] == ["a", "a", "b", "b"]
    assert cases[1].options == {"m": 2, "n": 3, "dtype": "fp8"}
    path.write_text("kernle h200-sxm gemm m=1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1"):
        module("cases").read_cases(path)


def test_a_refusal_is_a_prediction(module):
    case = module("cases").Case("memory h200-sxm llama-3.1-8b tp=3")
    assert "tensor_parallel_size 3" in module("values").values_of(case)["refused"]


def test_moves_are_told_largest_first_and_rounding_is_none(module):
    moves = module("moves")
    was = {"step a: x": 1.0, "step a: y": 100, "step b: x": 2.0, "step c: x": 1.0}
    now = {"step a: x": 1.0 + 1e-12, "step a: y": 101, "step b: x": 1.5, "step c: refused": "it does not fit"}
    moved = moves.moves_between(was, now)
    assert [move.row[3] for move in moved] == ["added", "removed", "-25 %", "+1 %"]
    assert "step: 4 of 4 moved, numbers by 25 % in the median and 25 % at most, 1 added, 1 removed" in moves.describe(
        moved, was
    )


def test_what_is_written_is_read_again_and_rounding_leaves_lines_alone(module, tmp_path):
    predictions, path = module("predictions"), tmp_path / "predictions.txt"
    values = {"b: x": 0.1 + 0.2, "a: y": 3, "a: refused": "é = 1"}
    predictions.write_expected(values, path)
    assert predictions.read_expected(path) == values
    before = path.read_bytes()
    predictions.write_expected(values | {"b: x": 0.3}, path)
    assert path.read_bytes() == before
