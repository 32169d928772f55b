"""The machine at hand: what is missing, what it is called, how warm it runs."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from infercast.errors import InputError
from infercast.lab.measure import device
from infercast.lab.measure import device as engines
from infercast.lab.measure.device import Monitor, State


def torch_that_sees(name: str | None) -> SimpleNamespace:
    return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: name is not None, get_device_name=lambda _: name))


def test_without_torch_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"needs torch, pandas and pyarrow: .* -m pip install torch"):
        device.require_gpu()


def test_without_a_gpu_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_that_sees(None))
    with pytest.raises(InputError, match="needs a CUDA GPU"):
        device.require_gpu()


@pytest.mark.parametrize(
    ("driver_name", "name"),
    [("NVIDIA H200", "h200-sxm"), ("NVIDIA Frobnicator 9000 / MIG 1g", "frobnicator-9000-mig-1g")],
)
def test_gpus_have_names_that_folders_may_have(driver_name: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_that_sees(driver_name))
    assert device.gpu_name() == name


@pytest.mark.parametrize(
    ("installed", "asked", "chosen"), [(True, None, "vllm"), (True, "torch", "torch"), (False, None, "torch")]
)
def test_whose_kernels(installed: bool, asked: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "")
    assert engines.choose_engine(asked) == chosen
    assert engines._engine.get() == chosen
    if chosen == "torch":
        with pytest.raises(ImportError, match="only vLLM has this kernel"):
            engines.vllm("_custom_ops")
    else:
        monkeypatch.setitem(sys.modules, "vllm._custom_ops", SimpleNamespace())
        engines.vllm("_custom_ops")


def test_nvidia_smi_looks_at_the_gpu_that_torch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(stdout="700.00\n")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    assert device._query("power.limit") == "700.00"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    device._query("power.limit")
    assert [command[-1] for command in commands] == ["3", "0"]


def test_samples_are_summed_up_by_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "1980, 100.0, 40, 0x0000000000000000\n",
        "1755, 690.0, 60, 0x0000000000000004\n",
        "[N/A], x, 1, 0\n",
        "1755, 700.0, 62, 0x0000000000000004\n",
    ]
    process = SimpleNamespace(stdout=lines, terminate=lambda: None)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: process)
    monkeypatch.setattr(device.threading, "Thread", lambda target, daemon: SimpleNamespace(start=target))
    monitor = Monitor()
    assert monitor.since(0.0) == State(1755.0, 690.0, 60.0, True)
    assert monitor.since(float("inf")) == State(1755.0, 700.0, 62.0, True), "the last one where none is recent"
    monitor.wait_until_cool(0.0)
    monitor.stop()


def test_without_nvidia_smi_all_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "Popen", missing)
    monkeypatch.setattr(subprocess, "run", missing)
    monitor = Monitor()
    assert monitor.since(0.0) == State()
    monitor.wait_until_cool(1.0)
    monitor.stop()
    assert device._query("power.limit") == ""


def test_what_vllm_logs_goes_to_stderr_and_only_errors_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_LOGGING_STREAM", "VLLM_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    device.log_to_stderr()
    assert (os.environ["VLLM_LOGGING_STREAM"], os.environ["VLLM_LOGGING_LEVEL"]) == ("ext://sys.stderr", "ERROR")
