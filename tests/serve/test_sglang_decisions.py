"""Decisions of SGLang's own scheduler, written down by benchmarks/scheduler/sglang_record.py, against ours."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "scheduler"
FILES = {"0.5.16": "sglang_decisions", "0.5.23": "sglang_0_5_23_decisions"}
RECORDED = {
    version: json.loads(gzip.decompress(Path(__file__).with_name(f"{name}.json.gz").read_bytes()))
    for version, name in FILES.items()
}
MODES = sorted({(version, each["case"]["mode"]) for version, found in RECORDED.items() for each in found})


@pytest.fixture(scope="module")
def modules() -> Iterator[tuple[ModuleType, ModuleType, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        names = ("sglang_cases", "sglang_turns", "our_prefill_first")
        yield tuple(importlib.import_module(name) for name in names)  # type: ignore[misc]


def test_every_mode_was_written_down_and_some_requests_gave_way() -> None:
    assert [sum(version == each for each, _ in MODES) for version in FILES] == [17, 20]
    for version, least in (("0.5.16", 20), ("0.5.23", 10)):
        assert sum(any(line.split("|")[1] for line in each["steps"]) for each in RECORDED[version]) > least


@pytest.mark.parametrize(("version", "mode"), MODES)
def test_every_step_is_planned_as_sglang_plans_it(modules: Any, version: str, mode: str) -> None:
    cases, driver, ours = modules
    for number, recorded in enumerate(RECORDED[version]):
        if recorded["case"]["mode"] != mode:
            continue
        case, script = cases.Case(**recorded["case"]), driver.Script()
        for (decision,) in driver.turns(case, ours.ours(case, version)):
            script.add(decision)
            step = len(script.lines)
            assert script.lines[-1] == recorded["steps"][step - 1], f"workload {number}, step {step}"
        assert len(script.lines) == len(recorded["steps"])
