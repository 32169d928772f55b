"""A child process that breaks costs its own case, or its kind of kernel, and nothing else."""

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from infercast.lab.measure import sweep as processes
from infercast.lab.measure.device import State
from infercast.lab.measure.rows import Case, Kernel, Store, Tally, Timing, sweep_cases
from infercast.lab.measure.sweep import Journal, kind_of, measure_isolated

CASES = [Case("sparse", {"op": op, "batch": number}) for op in ("a", "b", "c") for number in range(3)]


class Child:
    """What each child in turn does: the cases that it measures, the ones that break it, and how it ends."""

    def __init__(self, *breaks: str) -> None:
        self.breaks, self.started = breaks, 0

    def __call__(self, journal: Journal, waiting: Path, store: Store, engine: str, deadline: float) -> str:
        self.started += 1
        for key in json.loads(waiting.read_text()):
            journal.at([key], "building")
            if key in self.breaks:
                return "signal 11"
            store.append([{"key": key, "family": "sparse", "latency_us": 1.0}])
        return "done"


def test_one_bad_case_costs_itself_where_others_of_its_kind_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tally, run = Store(tmp_path), Tally(), Child(CASES[4].key)
    monkeypatch.setattr(processes, "_run_child", run)
    assert measure_isolated(CASES, store, tally, "vllm", 1e12) == 8
    assert run.started == 2
    assert tally.skipped == {"sparse: the process that ran it ended (signal 11)": 1}


def test_a_kind_whose_first_case_breaks_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, tally = Store(tmp_path), Tally()
    monkeypatch.setattr(processes, "_run_child", Child(CASES[3].key))
    assert measure_isolated(CASES, store, tally, "vllm", 1e12) == 6
    assert sum(tally.skipped.values()) == 3
    assert tally.tried == 9


def test_a_child_that_does_not_start_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally()
    monkeypatch.setattr(processes, "_run_child", lambda *_: "exit code 1")
    assert measure_isolated(CASES, Store(tmp_path), tally, "vllm", 1e12) == 0
    assert tally.skipped == {"sparse: the process that ran it ended (exit code 1)": 9}


class Launch:
    engine = "vllm"

    def touch(self) -> None: ...

    def __call__(self) -> None: ...


class Bench:
    """Every third case cannot be built."""

    def build(self, case: Case) -> Launch:
        if case.shape["batch"] == 2:
            raise ValueError("too large")
        return Launch()

    def time(self, launches: Any, repeats: int) -> list[Timing]:
        runs = [[Kernel("k", "1", "1", 10.0)] for _ in range(repeats)]
        return [Timing(runs, runs, runs) for _ in launches]

    def details(self, case: Case) -> dict[str, object]:
        return {}


class Watch:
    def since(self, start: float) -> State:
        return State()

    def wait_until_cool(self, most: float) -> None: ...


def test_the_child_keeps_rows_as_it_goes_and_notes_what_it_is_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "require_gpu", MagicMock())
    journal, store = Journal(tmp_path / "journal.jsonl"), Store(tmp_path / "h200-sxm")
    bench: Any = Bench()
    processes.measure_kinds(CASES, store, processes.JournalBench(bench, journal), Watch(), journal, 1e12)
    assert len(store.done()) == 6
    steps = journal.read()
    assert steps.begun == {case.key for case in CASES}
    assert steps.skipped == {"sparse: ValueError too large": 3}
    assert not steps.broken


def test_a_broken_context_ends_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class GoneError(Exception): ...

    def leave(code: int) -> None:
        raise GoneError(code)

    class Cuda:
        @staticmethod
        def synchronize() -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    class Torch:
        cuda = Cuda

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(processes, "require_gpu", lambda: Torch)
    journal = Journal(tmp_path / "journal.jsonl")
    bench: Any = Bench()
    with pytest.raises(GoneError):
        processes.JournalBench(bench, journal).build(CASES[0])
    assert journal.read().broken == "CUDA error: an illegal memory access was encountered"


def test_every_isolated_case_has_a_kind() -> None:
    kinds = {kind_of(case) for case in sweep_cases(processes.ISOLATED)}
    assert "sparse index_scores" in kinds
    assert all(len(kind.split()) > 1 for kind in kinds)
