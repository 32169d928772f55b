"""The GPU and the engine at hand: name, software, clock and temperature, and the source of the kernels."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import socket
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
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


Clock = Callable[[], float]
ROUNDS, PAUSE = 6, 0.4  # Hosts change within seconds: Python and wake-ups are timed in rounds, with seconds in between
REPEATS = {"python": 40, "echo": 200, "sleep": 100, "launch": 40, "graph": 100}
ASLEEP = 0.0005
SAID = ("Model name", "CPU(s)", "Thread(s) per core", "CPU max MHz", "BogoMIPS", "L3 cache", "NUMA node(s)")
ADDS, CALLS, LAYERS, GRAPH = 500, 200, 50, 200  # Launches that are timed together, and kernels of the graph


def probe_host(rounds: int = ROUNDS, repeats: int | None = None, clock: Clock = time.perf_counter) -> dict[str, Any]:
    """Medians, tenth and ninetieth percentiles in microseconds; ``gpu`` only where PyTorch sees one."""
    begin, machine, gpu = clock(), _machine(), None
    counts = REPEATS if repeats is None else dict.fromkeys(REPEATS, repeats)
    timed: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        timed["dict_loop_20k_us"] += _times(_count, counts["python"], clock)
        timed["objects_5k_us"] += _times(_make_objects, counts["python"], clock)
        timed["thread_echo_us"] += _echoes(counts["echo"], clock)
        timed["asyncio_late_us"] += asyncio.run(_late(counts["sleep"], clock))
        gpu = gpu if number else _gpu(machine, counts, clock)
        time.sleep(PAUSE if gpu is None and number < rounds - 1 else 0)
    spreads = [(name, _spread(seconds)) for name, seconds in timed.items()]
    found = {"machine": machine, "python": dict(spreads[:2]), "wake": dict(spreads[2:])}
    return found | ({"gpu": gpu} if gpu else {}) | {"seconds": round(clock() - begin, 1)}


def _spread(seconds: Iterable[float]) -> dict[str, Any]:
    ranked = sorted(seconds)
    ends = {"p50": 0.5, "p10": 0.1, "p90": 0.9}
    return {**{name: round(1e6 * ranked[int(part * len(ranked))], 4) for name, part in ends.items()}, "n": len(ranked)}


def _times(work: Callable[[], Any], repeats: int, clock: Clock, after: Callable[[], Any] = lambda: None) -> list[float]:
    """Seconds of each repetition; what comes ``after`` it is not counted."""
    found = []
    for _ in range(repeats):
        begin = clock()
        work()
        found.append(clock() - begin)
        after()
    return found


def _count() -> None:
    counts: dict[int, int] = {}
    for number in range(20_000):
        counts[number & 255] = counts.get(number & 255, 0) + number


def _make_objects() -> None:
    class Pair:
        __slots__ = ("first", "second")

        def __init__(self, first: int, second: int) -> None:
            self.first = first
            self.second = second

    total = 0
    for number in range(5_000):
        total += Pair(number, number + 1).second


def _echoes(repeats: int, clock: Clock) -> list[float]:
    """Round trips of half a KiB to another thread."""
    near, far = socket.socketpair()

    def echo() -> None:
        while message := far.recv(4096):
            far.sendall(message)

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()

    def there_and_back() -> None:
        near.sendall(b"x" * 512)
        near.recv(4096)

    with near, far:
        found = _times(there_and_back, repeats, clock)
        near.shutdown(socket.SHUT_RDWR)
        thread.join()
    return found


async def _late(repeats: int, clock: Clock) -> list[float]:
    """How much later than asked for an event loop wakes up."""
    found = []
    for _ in range(repeats):
        begin = clock()
        await asyncio.sleep(ASLEEP)
        found.append(clock() - begin - ASLEEP)
    return found


def _gpu(machine: dict[str, Any], counts: dict[str, int], clock: Clock) -> dict[str, Any] | None:
    """What launches cost; None where PyTorch is not installed, or sees no GPU."""
    try:
        import torch  # noqa: PLC0415 - an extra, and slow to import

        if not torch.cuda.is_available():
            return None
        machine |= {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}
    except (ImportError, OSError):
        return None
    wait = torch.cuda.synchronize
    small = torch.zeros(256, device="cuda")

    def each(work: Callable[[], Any], together: int) -> dict[str, Any]:
        def several() -> None:
            for _ in range(together):
                work()

        several()
        wait()
        return _spread(seconds / together for seconds in _times(several, counts["launch"], clock, wait))

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH):
            small.add_(1.0)
    there = torch.zeros(1024, dtype=torch.int64, device="cuda")
    here = torch.zeros(1024, dtype=torch.int64, pin_memory=True)

    def there_and_back() -> None:
        there.copy_(here, non_blocking=True)
        small.add_(1.0)
        here.copy_(there, non_blocking=True)
        wait()

    few = counts["graph"]
    found: dict[str, Any] = {
        "eager_add_us": each(lambda: small.add_(1.0), ADDS),
        "eager_layer_us": each(_layer(torch), LAYERS),
        "graph200_launch_us": _spread(_times(graph.replay, few, clock, wait)),
        "graph200_total_us": _spread(_times(lambda: (graph.replay(), wait()), few, clock)),
        "roundtrip_us": _spread(_times(there_and_back, few, clock)),
    }
    try:
        kernel = _triton_kernel()
        found["triton_launch_us"] = each(lambda: kernel[(1,)](small, 256, 256), CALLS)
    except Exception as problem:  # Without a compiler, Triton raises whatever it meets
        found["triton_error"] = repr(problem)[:200]
    return found


def _layer(torch: Any) -> Callable[[], Any]:
    """Seven small kernels, as an eager layer of a model launches them."""
    weights = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    rows = torch.randn(8, 1024, device="cuda", dtype=torch.bfloat16)
    functions = torch.nn.functional

    def layer() -> Any:
        hidden = functions.rms_norm(rows, (1024,)) @ weights
        hidden = functions.silu(hidden) * hidden
        return hidden.view(8, 16, 64).transpose(0, 1).contiguous()

    return layer


def _triton_kernel() -> Any:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore] # noqa: PLC0415 - comes with PyTorch
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore] # noqa: PLC0415

    @triton.jit  # type: ignore[untyped-decorator,misc,unused-ignore]
    def add_one(target, count, size: tl.constexpr):  # type: ignore[no-untyped-def]
        places = tl.arange(0, size)
        tl.store(target + places, tl.load(target + places, mask=places < count) + 1.0, mask=places < count)

    return add_one


def _machine() -> dict[str, Any]:
    """The CPU in the words of the system; Linux says more than others."""
    try:
        lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=False, timeout=5).stdout.splitlines()
        clocks = [float(each) for each in re.findall(r"cpu MHz\s*:(.*)", Path("/proc/cpuinfo").read_text("utf-8"))]
    except (OSError, ValueError, subprocess.SubprocessError):
        lines, clocks = [], []
    pairs = ((name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
    cpu = {name: value for name, value in pairs if name in SAID}
    cpu = cpu or {"Model name": platform.processor() or platform.machine(), "CPU(s)": str(os.cpu_count())}
    mhz = [min(clocks), max(clocks)] if clocks else None
    return {"cpu": cpu, "mhz": mhz, "python": platform.python_version()}
