"""Kernel launches on the GPU: operands from preallocated pools, and times by the profiler."""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infercast.errors import InputError
from infercast.lab.measure.rows import Launch, Sections, Timing, cut, split_light, split_sustained

Operands = tuple[Callable[[], Any], tuple[Any, ...]]
"""A launch, and the tensors it reads that the kernel before has just written."""


@dataclass
class SimpleLaunch:
    engine: str
    launch: Callable[[], Any]
    inputs: tuple[Any, ...] = ()

    def touch(self) -> None:
        """Read and write every input without changing it, whatever its format."""
        for tensor in self.inputs:
            tensor.view(-1).view(torch.int16).bitwise_or_(0)

    def __call__(self) -> None:
        self.launch()


class MovingLaunch(SimpleLaunch):
    """A launch with operands elsewhere in memory each time: memory channels make up to 10 % of a product."""

    def __init__(self, engine: str, place: Callable[[], Operands]) -> None:
        self._place = place
        super().__init__(engine, *place())

    def touch(self) -> None:
        self.launch, self.inputs = self._place()
        super().touch()


# GPU memory of a sweep: pools of random numbers that all operands are cut from, so nothing is allocated twice.

ALIGNMENT = 1024
POOL_SHARE = 0.45  # of the free memory; the rest is for what kernels allocate themselves
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
DTYPES |= {"fp8": torch.float8_e4m3fn}


class Workspace:
    def __init__(self, device: str = "cuda", share: float = POOL_SHARE) -> None:
        free, _ = torch.cuda.mem_get_info()
        narrow = int(free * share / 4)
        self._sizes = {"wide": int(free * share), "fp8": narrow, "fp16": 2**31, "fp32": min(2**32, narrow)}
        self._pools: dict[str, Any] = {}
        self._next: dict[str, int] = {}
        self._flush = torch.zeros(
            2 * int(torch.cuda.get_device_properties(0).L2_cache_size) // 4, dtype=torch.float32, device=device
        )
        self.device = device

    def _pool(self, kind: str) -> Any:
        """A GiB of random numbers, repeated: products of zeros cost no power, and no cache holds a GiB."""
        if kind not in self._pools:
            formats = {"fp16": torch.float16, "fp32": torch.float32}
            block = torch.randn(2**28, dtype=formats.get(kind, torch.bfloat16), device=self.device)
            if kind == "fp8":
                block = block.to(torch.float8_e4m3fn)
            size = self._sizes[kind] // ALIGNMENT * ALIGNMENT
            self._pools[kind] = torch.empty(size, dtype=torch.uint8, device=self.device)
            for part in self._pools[kind].split(block.nbytes):
                part.copy_(block.view(torch.uint8)[: part.numel()])
            self._next[kind] = 0
        return self._pools[kind]

    def take(self, *sizes: int, dtype: str = "bf16") -> Any:
        """A tensor of random numbers; later ones lie elsewhere until the pool is used up."""
        kind = {"fp8": "fp8", "fp16": "fp16", "fp32": "fp32", "tf32": "fp32"}.get(dtype, "wide")
        pool, scalar = self._pool(kind), DTYPES[dtype]
        count = math.prod(sizes)
        length = -(-count * scalar.itemsize // ALIGNMENT) * ALIGNMENT
        if length > pool.numel():
            raise InputError(f"a tensor of {length / 2**30:.1f} GiB is larger than the GPU has room for")
        start = self._next[kind]
        if start + length > pool.numel():
            start = 0
        self._next[kind] = start + length
        return pool[start : start + count * scalar.itemsize].view(scalar).view(*sizes)

    def flush(self) -> None:
        self._flush.sum()


def integers(values: Any, device: str) -> Any:
    return torch.tensor(np.asarray(values), dtype=torch.int32, device=device)


def starts_of(lengths: Sequence[int], device: str) -> Any:
    return integers([0, *np.cumsum(lengths)], device)


# Kernel times by the GPU's own clock: run launches under the profiler and cut its record at marker kernels, so that
# caches can be emptied between two launches without being timed.

BURSTS = 3


warnings.filterwarnings("ignore", message=".*Profiler clears events")  # each record is one cycle


def mark() -> None:
    torch.cuda._sleep(1)


def record(work: Callable[[], None]) -> Sections:
    """What ran between the marks that ``work`` makes; the part before the first mark is left out."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        work()
        mark()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    return cut(events)


def time_launches(launches: Sequence[Launch], workspace: Workspace, repeats: int) -> list[Timing]:

    def work() -> None:
        for launch in launches:
            for _ in range(repeats):
                workspace.flush()
                launch.touch()
                mark()
                launch()
                mark()
                launch()
                mark()

    return split_light(record(work), len(launches), repeats)


def time_sustained(launches: Sequence[Launch], repeats: int, heat: Callable[[], None]) -> list[Timing]:
    """Launches in turn without a pause, after ``heat`` brought the chip to its power limit; last, each by itself."""

    def work() -> None:
        heat()
        for _ in range(repeats):
            for launch in launches:
                launch.touch()
                mark()
                launch()
                mark()
        pause_cycles = 4_000_000
        for launch in [*launches] * BURSTS:
            launch.touch()
            torch.cuda._sleep(pause_cycles)
            mark()
            launch()
            mark()
            launch()
            mark()

    return split_sustained(record(work), len(launches), repeats, BURSTS)
