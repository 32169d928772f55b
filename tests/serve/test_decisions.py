"""Decisions of vLLM's real scheduler, written down by benchmarks/scheduler/record.py, against ours."""

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
NAMES = ("", "draft_", "priority_", "lora_", "traffic_", "cache_", "pair_", "flag_", "newest_", "group_", "client_")
FILES = tuple(f"{name}decisions.json.gz" for name in NAMES)
RECORDED = [each for name in FILES for each in json.loads(gzip.decompress(Path(__file__).with_name(name).read_bytes()))]
MODES = sorted({(each["case"]["version"], each["case"]["mode"]) for each in RECORDED})


@pytest.fixture(scope="module")
def ours() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("our_scheduler")


def case_of(values: dict[str, Any]) -> Any:
    case = importlib.import_module("scheduling_cases").Case(**values)
    case.windows, case.block_sizes = tuple(case.windows), tuple(case.block_sizes)
    return case


@pytest.mark.usefixtures("ours")
def test_every_mode_of_both_versions_was_written_down() -> None:
    pairs = importlib.import_module("pair_cases").MODES
    flags = importlib.import_module("flag_cases").MODES
    assert {mode for _, mode in MODES if mode in pairs} == {*pairs}
    assert {mode for _, mode in MODES if mode in flags} == {*flags}
    newest = {mode for version, mode in MODES if version == "0.33"}
    both = [(version, mode) for version, mode in MODES if version != "0.33"]
    assert len(newest) > 60
    assert {"aborts", "own-interval", *importlib.import_module("client_cases").MODES} <= newest
    others = [mode for _, mode in both if not (mode.startswith("drafts") or mode in pairs or mode in flags)]
    assert len(others) == 42 + 2 * 7 + 5
    assert len([mode for _, mode in both if mode.startswith("drafts") and mode not in pairs]) == 2 * 18 + 1
    assert {version for version, _ in both} == {"0.25", "0.32"}


@pytest.mark.parametrize(("version", "mode"), MODES)
def test_every_step_is_planned_as_vllm_plans_it(ours: ModuleType, version: str, mode: str) -> None:
    for number, recorded in enumerate(RECORDED):
        if (recorded["case"]["version"], recorded["case"]["mode"]) != (version, mode):
            continue
        case, script = case_of(recorded["case"]), ours.Script()
        engine = importlib.import_module("offload_engines").OursOffloading if case.tier_blocks else ours.Ours
        for (decision,) in ours.turns(case, engine(case)):
            script.add(decision)
            step = len(script.lines)
            assert script.lines[-1] == recorded["steps"][step - 1], f"workload {number}, step {step}"
        assert len(script.lines) == len(recorded["steps"])
