"""Decisions of vLLM's real scheduler and offloading connector, written down by benchmarks/scheduler/record.py."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "scheduler"
RECORDED = json.loads(gzip.decompress(Path(__file__).with_name("offload_decisions.json.gz").read_bytes()))
MODES = ["offload", "offload-answers", "offload-talk", "sync-offload"]


@pytest.fixture(scope="module")
def engines() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("offload_engines")


def test_every_mode_was_written_down_with_loads_and_stores() -> None:
    assert sorted({each["case"]["mode"] for each in RECORDED}) == MODES
    parts = [line.split("|") for each in RECORDED for line in each["steps"]]
    assert all(sum(bool(part[place]) for part in parts) > 50 for place in (1, 3, 4))


@pytest.mark.parametrize("mode", MODES)
def test_every_step_and_copy_is_planned_as_vllm_plans_it(engines: ModuleType, mode: str) -> None:
    ours, cases = importlib.import_module("our_scheduler"), importlib.import_module("scheduling_cases")
    for number, recorded in enumerate(each for each in RECORDED if each["case"]["mode"] == mode):
        case, script = cases.Case(**recorded["case"]), ours.Script()
        case.windows = tuple(case.windows)
        for (decision,) in ours.turns(case, engines.OursOffloading(case)):
            script.add(decision)
            step = len(script.lines)
            assert script.lines[-1] == recorded["steps"][step - 1], f"workload {number}, step {step}"
        assert len(script.lines) == len(recorded["steps"])
