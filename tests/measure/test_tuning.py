"""Trying launch configurations: which cases are measured, what is compiled ahead, and how rows come back."""

from types import SimpleNamespace

import pytest

from infercast.errors import InputError
from infercast.lab.measure import device as engines
from infercast.lab.measure import sweep as tuning
from infercast.lab.measure.rows import Case

from .conftest import FakeBench, FakeMonitor

LAYER = {"tokens": 64, "hidden": 2816, "inter": 352, "experts": 128, "topk": 8, "dtype": "bf16", "routing": "uniform"}
WIDE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}


def test_the_default_is_measured_twice_as_two_cases() -> None:
    cases = tuning.trial_cases(LAYER, [None, WIDE, None])
    assert [(case.shape["configuration"], case.shape["turn"]) for case in cases] == [(None, 0), (WIDE, 0), (None, 1)]
    assert len({case.key for case in cases}) == 3
    assert cases[0].flops == 6 * 64 * 8 * 2816 * 352


@pytest.fixture
def machine(bench: FakeBench, monitor: FakeMonitor, monkeypatch: pytest.MonkeyPatch) -> list[list[Case]]:
    """A GPU with vLLM, with nothing compiled."""
    compiled: list[list[Case]] = []

    def compile_ahead(cases: list[Case], engine: str, seconds: float) -> None:
        assert engine == "vllm"
        compiled.append(cases)

    monkeypatch.setattr(tuning, "require_gpu", lambda: None)
    monkeypatch.setattr(tuning, "gpu_name", lambda: "h200-sxm")
    monkeypatch.setattr(tuning, "describe", lambda: {"sms": 132})
    monkeypatch.setattr(tuning, "Monitor", lambda: monitor)
    monkeypatch.setattr(tuning, "open_bench", lambda: bench)
    monkeypatch.setattr(tuning, "compile_ahead", compile_ahead)
    monkeypatch.setattr(tuning, "time", SimpleNamespace(monotonic=bench.clock.monotonic))
    monkeypatch.setattr(engines, "find_spec", lambda name: object())
    return compiled


def test_a_trial_compiles_each_kernel_once_and_measures_every_case(machine: list[list[Case]], bench: FakeBench) -> None:
    cases = tuning.trial_cases(LAYER, [None, WIDE, None])
    trial = tuning.try_configurations(cases, 200.0)
    assert [row["configuration"] for row in trial.rows] == [None, WIDE, None]
    assert trial.rows[0]["latency_us"] == bench.microseconds
    (compiled,) = machine
    assert [case.shape["configuration"] for case in compiled] == [None, WIDE]


def test_what_cannot_run_is_counted_with_its_reason(machine: list[list[Case]], bench: FakeBench) -> None:
    bench.unable["tuning"] = RuntimeError("out of resource: shared memory")
    trial = tuning.try_configurations(tuning.trial_cases(LAYER, [None, WIDE]), 200.0)
    assert trial.rows == []
    assert trial.skipped == {"tuning: RuntimeError out of resource: shared memory": 2}


def test_without_vllm_there_is_nothing_to_try(machine: list[list[Case]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="needs vLLM"):
        tuning.try_configurations([], 10.0)
