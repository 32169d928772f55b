"""Trying launch configurations: which cases are measured, what is compiled ahead, and how rows come back."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infercast.errors import InputError
from infercast.measure import device as engines
from infercast.measure import prepare, tuning
from infercast.measure.cases import Case

from .conftest import FakeBench, FakeMonitor

LAYER = {"tokens": 64, "hidden": 2816, "inter": 352, "experts": 128, "topk": 8, "dtype": "bf16", "routing": "uniform"}
WIDE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}


def test_the_default_is_measured_twice_as_two_cases() -> None:
    cases = tuning.trial_cases(LAYER, [None, WIDE, None])
    assert [(case.shape["configuration"], case.shape["turn"]) for case in cases] == [(None, 0), (WIDE, 0), (None, 1)]
    assert len({case.key for case in cases}) == 3
    assert cases[0].flops == 6 * 64 * 8 * 2816 * 352


def test_kernels_are_compiled_on_small_layers_unless_their_sizes_matter() -> None:
    small = tuning.compiled_shape(LAYER | {"configuration": WIDE, "turn": 1})
    assert (small["hidden"], small["inter"], small["experts"], small["turn"]) == (1024, 512, 128, 0)
    assert tuning.compiled_shape(LAYER | {"inter": 88, "turn": 0})["inter"] == 88
    assert tuning.compiled_shape(LAYER | {"dtype": "fp8_block", "turn": 0})["hidden"] == 2816


@pytest.fixture
def machine(bench: FakeBench, monitor: FakeMonitor, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A GPU with vLLM, whose processes are only written down."""
    started: list[list[str]] = []

    def launch(command: list[str], workers: int, seconds: float) -> None:
        started.append([*command, Path(command[3]).read_text(encoding="utf-8")])

    monkeypatch.setattr(tuning, "require_gpu", lambda: None)
    monkeypatch.setattr(tuning, "gpu_name", lambda: "h200-sxm")
    monkeypatch.setattr(tuning, "describe", lambda: {"sms": 132})
    monkeypatch.setattr(tuning, "Monitor", lambda: monitor)
    monkeypatch.setattr(tuning, "open_bench", lambda: bench)
    monkeypatch.setattr(tuning, "launch_in_parallel", launch)
    monkeypatch.setattr(tuning, "time", SimpleNamespace(monotonic=bench.clock.monotonic))
    monkeypatch.setattr(tuning.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(engines, "find_spec", lambda name: object())
    return started


def test_a_trial_compiles_each_kernel_once_and_measures_every_case(machine: list[list[str]], bench: FakeBench) -> None:
    cases = tuning.trial_cases(LAYER, [None, WIDE, None])
    trial = tuning.try_configurations(cases, 200.0)
    assert [row["configuration"] for row in trial.rows] == [None, WIDE, None]
    assert trial.rows[0]["latency_us"] == bench.microseconds
    (command,) = machine
    assert command[1:3] == ["-m", "infercast.measure.tuning"]
    assert len(command[-1].splitlines()) == 2


def test_what_cannot_run_is_counted_with_its_reason(machine: list[list[str]], bench: FakeBench) -> None:
    bench.unable["tuning"] = RuntimeError("out of resource: shared memory")
    trial = tuning.try_configurations(tuning.trial_cases(LAYER, [None, WIDE]), 200.0)
    assert trial.rows == []
    assert trial.skipped == {"tuning: RuntimeError out of resource: shared memory": 2}


def test_without_vllm_there_is_nothing_to_try(machine: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="needs vLLM"):
        tuning.try_configurations([], 10.0)


def test_a_process_launches_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Case] = []

    class Bench:
        def __init__(self, share: float) -> None: ...

        def build(self, case: Case) -> Any:
            built.append(case)
            if case.shape["tokens"] == 2:
                raise RuntimeError("no room")
            return lambda: None

    monkeypatch.setitem(sys.modules, "infercast.measure.kernels", SimpleNamespace(GpuBench=Bench))
    monkeypatch.setattr(engines, "find_spec", lambda name: object())
    path = tmp_path / "shapes.jsonl"
    path.write_text("\n".join(json.dumps(LAYER | {"tokens": tokens}) for tokens in range(6)), encoding="utf-8")
    tuning.main(str(path), 2, 0)
    assert [case.shape["tokens"] for case in built] == [0, 2, 4]


def test_processes_are_told_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    class Process:
        def __init__(self, command: list[str], **_: Any) -> None:
            started.append(command)

        def wait(self, timeout: float | None = None) -> None: ...

        def kill(self) -> None: ...

    monkeypatch.setattr(prepare.subprocess, "Popen", Process)
    prepare.launch_in_parallel(["run"], 2, 1.0)
    assert started == [["run", "0"], ["run", "1"]]
