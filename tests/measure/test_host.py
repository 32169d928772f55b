"""The probe of a host: what it times, and that it needs nothing but Python."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

import infercast
from infercast.hardware.host import probe_of
from infercast.lab.measure.device import probe_host

SPREAD = {"p50", "p10", "p90", "n"}
GPU = {"eager_add_us", "eager_layer_us", "graph200_launch_us", "graph200_total_us", "roundtrip_us"}


def clock(step: float = 1e-4) -> float:
    return next(clock.ticks) * step


@pytest.fixture(autouse=True)
def ticks() -> None:
    clock.ticks = itertools.count()


def test_without_torch_it_times_python_and_wake_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = probe_host(rounds=1, repeats=2, clock=clock)
    assert {*found} == {"machine", "python", "wake", "seconds"}
    assert {*found["python"]} == {"dict_loop_20k_us", "objects_5k_us"}
    assert {*found["wake"]} == {"thread_echo_us", "asyncio_late_us"}
    assert all({*each} == SPREAD for part in ("python", "wake") for each in found[part].values())
    assert found["python"]["dict_loop_20k_us"] == {"p50": 100.0, "p10": 100.0, "p90": 100.0, "n": 2}
    assert found["machine"]["cpu"]["Model name"]


def test_rounds_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("time.sleep", lambda _: None)
    assert probe_host(rounds=3, repeats=2, clock=clock)["wake"]["thread_echo_us"]["n"] == 6


def test_with_a_gpu_it_times_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = MagicMock(__version__="2.11.0")
    torch.cuda.get_device_name.return_value = "NVIDIA H200"
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "triton", None)
    found = probe_host(rounds=1, repeats=2, clock=clock)
    assert {*found["gpu"]} == GPU | {"triton_error"}
    assert found["machine"]["gpu"] == "NVIDIA H200"
    assert found["gpu"]["eager_add_us"]["p50"] == pytest.approx(100.0 / 500)
    assert probe_of(json.loads(json.dumps(found)), Path("host.json")).launch is not None
    torch.cuda.is_available.return_value = False
    assert "gpu" not in probe_host(rounds=1, repeats=1, clock=clock)


def test_the_command_loads_none_of_the_extras(tmp_path: Path) -> None:
    script = """if True:
        import sys
        sys.modules.update(dict.fromkeys(("torch", "pandas", "pyarrow", "vllm", "scipy")))
        from functools import partial
        from infercast.cli.commands import measure
        from infercast.cli.main import run
        measure.probe_host = partial(measure.probe_host, 1, 1)
        sys.argv = ["infercast", "measure", "--host"]
        run()
    """
    env = os.environ | {"PYTHONPATH": str(Path(infercast.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "written to" in done.stdout
    assert probe_of(json.loads((tmp_path / "host.json").read_text()), tmp_path).launch is None
