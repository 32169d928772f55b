"""The GPU and the engine at hand: name, software, clock and temperature, and the source of the kernels."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import threading
import time
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np

from infercast.errors import InputError, UnknownNameError, missing
from infercast.hardware.load import gpu_from_driver_name

PERIOD_MS = 50


def require_gpu() -> Any:
    """PyTorch with a CUDA GPU, or one sentence that says what is missing."""
    try:
        import torch  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise missing("measuring", "measure") from None
    if not torch.cuda.is_available():
        raise InputError("measuring needs a CUDA GPU, and PyTorch sees none on this machine")
    return torch


def gpu_name() -> str:
    """Our name of the GPU, or a name made of the driver's where we have none."""
    driver_name = str(require_gpu().cuda.get_device_name(0))
    try:
        return gpu_from_driver_name(driver_name).name
    except UnknownNameError:
        return re.sub(r"[^a-z0-9.]+", "-", driver_name.lower().removeprefix("nvidia ")).strip("-")


def describe() -> dict[str, Any]:
    torch = require_gpu()
    properties = torch.cuda.get_device_properties(0)
    facts: dict[str, Any] = {
        "driver_name": torch.cuda.get_device_name(0), "sms": properties.multi_processor_count,
        "l2_bytes": int(properties.L2_cache_size), "memory_bytes": int(properties.total_memory),
        "driver": _query("driver_version"), "max_sm_mhz": _query("clocks.max.sm"),
        "power_limit_w": _query("power.limit"), "torch": torch.__version__, "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    }  # fmt: skip
    for package in ("infercast", "triton", "vllm", "flashinfer-python"):
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    return facts


def _board() -> str:
    """How nvidia-smi, which sees all GPUs, calls the first one that PyTorch sees."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def _query(field: str) -> str:
    """One answer of nvidia-smi, or an empty text where it does not run."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "-i", _board()]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


@dataclass(frozen=True, slots=True)
class State:
    """The chip over a stretch of time; all zero if it could not be monitored."""

    sm_mhz: float = 0.0
    watts: float = 0.0
    celsius: float = 0.0
    capped: bool = False  # Whether the power limit held the clock back at least half of the time


class Monitor:
    def __init__(self) -> None:
        self._samples: list[tuple[float, float, float, float, bool]] = []
        fields = "clocks.sm,power.draw.instant,temperature.gpu,clocks_event_reasons.active"
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", _board()]
        try:
            self._process = subprocess.Popen([*command, "-lms", str(PERIOD_MS)], stdout=subprocess.PIPE, text=True)
        except OSError:
            return
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        power_cap = 0x4  # the driver's bit for clocks lowered to stay within the board's power limit
        for line in self._process.stdout or ():
            try:
                clock, watts, celsius, reasons = line.split(",")
                capped = bool(int(reasons.strip(), 16) & power_cap)
                self._samples.append((time.monotonic(), float(clock), float(watts), float(celsius), capped))
            except ValueError:
                continue

    def since(self, start: float) -> State:
        """Medians of what was sampled since ``start`` (of ``time.monotonic``)."""
        recent = [sample for sample in self._samples if sample[0] >= start] or self._samples[-1:]
        if not recent:
            return State()
        _, clock, watts, celsius, capped = (np.array(values) for values in zip(*recent, strict=True))
        return State(
            float(np.median(clock)), float(np.median(watts)), float(np.median(celsius)), bool(capped.mean() >= 0.5)
        )

    def wait_until_cool(self, most: float) -> None:
        """Return when the power limit no longer lowers the clock, or after ``most`` seconds."""
        end = time.monotonic() + most
        while time.monotonic() < end and self._samples and self._samples[-1][4]:
            time.sleep(PERIOD_MS / 1e3)

    def stop(self) -> None:
        if hasattr(self, "_process"):
            self._process.terminate()


# Which kernels are measured: vLLM's where it is installed, or PyTorch's own throughout.

ENGINES = ("vllm", "torch")
_engine = ContextVar("engine", default="vllm")


def choose_engine(name: str | None) -> str:
    """Take this engine's kernels from now on, vLLM's by default where it is installed; returns which that is."""
    if name is not None and name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    installed = find_spec("vllm") is not None
    if name == "vllm" and not installed:
        raise InputError("--engine vllm needs vLLM: pip install vllm, or measure PyTorch's kernels with --engine torch")
    _engine.set(name or ("vllm" if installed else "torch"))
    log_to_stderr()
    return _engine.get()


def vllm(module: str) -> Any:
    """A module of vLLM; ImportError where it is missing, or where PyTorch's own kernels are measured."""
    if _engine.get() != "vllm":
        raise ImportError("only vLLM has this kernel, and PyTorch's own are measured")
    return import_module(f"vllm.{module}")


def log_to_stderr() -> None:
    """Keep what vLLM logs off standard output, and to errors; to be called before vLLM is imported."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
