"""What the CPU of this machine can do, in about ten seconds and without an engine: Python, wake-ups, and launches."""

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
from pathlib import Path
from typing import Any

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
