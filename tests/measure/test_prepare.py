"""Compiling ahead: what needs it, and that it is given up when the time is up."""

import sys
import time
from multiprocessing import Value, get_context
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from infercast.lab.measure import device as engines
from infercast.lab.measure import sweep as lab
from infercast.lab.measure.rows import Case, sweep_cases


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return sweep_cases(["moe", "elementwise"])


def test_every_expression_and_every_layer_of_experts_is_compiled_once(cases: list[Case]) -> None:
    found = lab.compiled_cases(cases)
    expressions = [
        (case.shape["op"], case.shape["width"], case.shape["heads"]) for case in found if case.family != "moe"
    ]
    assert len(expressions) == len(set(expressions)) < 250
    layers = {(case.shape["hidden"], case.shape["dtype"]) for case in cases if case.family == "moe"}
    assert {(case.shape["hidden"], case.shape["dtype"]) for case in found if case.family == "moe"} == layers


class FakeProcess:
    """Its own context too, as `multiprocessing` has one for each way to start processes."""

    started: list[tuple[list[Case], str]]
    killed: int
    waited: float

    def __init__(self, *, target: Any, args: tuple[list[Case], str, Any, Any]) -> None:
        assert target is lab.launch_all
        self.args = args[:2]

    def start(self) -> None:
        FakeProcess.started.append(self.args)

    def join(self, timeout: float = 0.0) -> None:
        FakeProcess.waited = max(FakeProcess.waited, timeout)

    def kill(self) -> None:
        FakeProcess.killed += 1


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> type[FakeProcess]:
    FakeProcess.started, FakeProcess.killed, FakeProcess.waited = [], 0, 0.0
    context = SimpleNamespace(Process=FakeProcess, Event=Event, Value=Value, set_forkserver_preload=lambda _: None)
    monkeypatch.setattr(lab, "get_context", lambda method: context)
    monkeypatch.setattr(lab, "ensure_running", lambda: None)
    monkeypatch.setattr(lab, "import_module", lambda name: None)
    monkeypatch.setattr(lab.os, "cpu_count", lambda: 8)
    return FakeProcess


def test_all_cores_but_one_compile(cases: list[Case], processes: type[FakeProcess]) -> None:
    lab.prepare(cases, "vllm", time.monotonic() + 600)
    compiled = lab.compiled_cases(cases)
    assert processes.started == [(compiled, "vllm")] * 7


def test_what_needs_no_compiling_has_the_gpu_until_it_is_done(
    cases: list[Case], processes: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class Sign(Event):
        def set(self) -> None:
            order.append("others may launch")

    monkeypatch.setattr(lab.get_context("forkserver"), "Event", Sign)
    lab.prepare(cases, "vllm", time.monotonic() + 600, lambda: order.append("measured"))
    assert order == ["measured", "others may launch"]
    lab.prepare(cases, "vllm", time.monotonic() + 40, lambda: order.append("measured, nothing compiled"))
    assert order[2:] == ["measured, nothing compiled"]


def test_processes_that_take_too_long_are_stopped(cases: list[Case], processes: type[FakeProcess]) -> None:
    lab.prepare(cases, "vllm", time.monotonic() + 600)
    assert 170 < processes.waited <= 180
    assert processes.killed == len(processes.started) == 7


@pytest.mark.parametrize(("seconds", "family"), [(40.0, "moe"), (600.0, "attention_mixed")])
def test_a_short_sweep_or_one_without_such_kernels_starts_at_once(
    processes: type[FakeProcess], seconds: float, family: str
) -> None:
    lab.prepare(sweep_cases([family]), "vllm", time.monotonic() + seconds)
    assert processes.started == []


def test_a_process_launches_what_no_other_has_and_goes_on_where_one_cannot_run(
    cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Any] = []

    class Bench:
        def __init__(self, share: float) -> None: ...

        def compile(self, case: Any) -> None:
            built.append(case)
            if case.family == "moe":
                raise ImportError("no vllm")

    monkeypatch.setitem(sys.modules, "infercast.lab.measure.kernels", SimpleNamespace(GpuBench=Bench))
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    monkeypatch.setattr(lab.os, "dup2", lambda source, target: None)
    compiled = lab.compiled_cases(cases)
    is_free, num_taken = get_context().Event(), Value("i", 5)
    is_free.set()
    lab.launch_all(compiled, "torch", is_free, num_taken)
    assert [case.key for case in built] == [case.key for case in compiled[5:]]
