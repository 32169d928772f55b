"""Kernels of a profile (a trace of PyTorch, CSV of Nsight Systems or Compute): family, shape, gap to the ceiling."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from infercast.errors import FileFormatError, InputError
from infercast.forecast.estimate import build_op
from infercast.hardware import Gpu, load_gpu
from infercast.ops import Attention, Op
from infercast.ops.op import BYTES, copy
from infercast.predict.ceilings import default_ceilings
from infercast.predict.identity import OTHER, family_of_kernel
from infercast.predict.roofline import limit_seconds
from infercast.shown import Answer

MOST_BYTES = 2**30
"""Of a file, unpacked."""
UNITS = {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1.0, "second": 1.0}
FORMATS = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32", "c10::Float8_e4m3fn": "fp8"}
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::_scaled_mm")

SELECTIVE = ("conv", "embedding", "index", "gather", "scatter", "sort", "topk", "lstm", "attention")
"""In names of operators that do more or less than move their inputs once."""


class Launch(NamedTuple):
    """Launches of one kernel; its operator and the dimensions of its inputs where the trace has them."""

    name: str
    launches: int
    seconds: float
    operator: str = ""
    dims: tuple[tuple[int, ...], ...] = ()
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class ProfiledKernel:
    name: str
    family: str
    shape: str
    """Its operator and inputs; empty where the profile has none."""
    launches: int
    seconds: float
    """All launches."""
    share: float
    """Of the time of all kernels."""
    ceiling: float | None
    """All launches where kernels of this shape are best; None: unknown."""
    is_limit: bool = False
    """Whether that is what hardware allows, since no such kernel was measured."""

    @property
    def loss(self) -> float:
        """What the gap costs, of the time of all kernels."""
        return 0.0 if self.ceiling is None else max(0.0, 1.0 - self.ceiling / self.seconds) * self.share


@dataclass(frozen=True, slots=True, repr=False)
class ProfileDiagnosis(Answer):
    """Kernels of a profile, those first that lose most time against the best of their shape."""

    file: str
    gpu: str
    seconds: float
    kernels: tuple[ProfiledKernel, ...]

    def _words(self) -> str:
        return f"{self.file} on {self.gpu}: {len(self.kernels)} kernels, {self.unmatched_share:.1%} of no known family"

    @property
    def unmatched_share(self) -> float:
        return sum(kernel.share for kernel in self.kernels if kernel.family == OTHER)

    @property
    def unshaped_share(self) -> float:
        """Share of kernels without a shape to compare."""
        return sum(kernel.share for kernel in self.kernels if kernel.ceiling is None)


def diagnose_profile(path: Path | str, gpu: str | Path | Gpu) -> ProfileDiagnosis:
    """Rank the kernels of a profile by the time that they lose against the best kernels of their shape.

    Read are traces of ``torch.profiler`` (better with ``record_shapes=True``), and what ``nsys stats --format csv`` and
    ``ncu --csv`` print.
    """
    device, path = gpu if isinstance(gpu, Gpu) else load_gpu(gpu), Path(path)
    try:
        launches = list(_launches(path))
    except FileFormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as problem:
        raise FileFormatError(path, f"cannot be read as a profile: {type(problem).__name__} {problem}") from None
    together: dict[Launch, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for launch in launches:
        key = launch._replace(launches=0, seconds=0.0)
        together[key] = together[key][0] + launch.launches, together[key][1] + launch.seconds
    total = sum(seconds for _, seconds in together.values())
    if not 0 < total < np.inf:
        raise FileFormatError(path, "has no kernels of a GPU")
    found = [_judged(key._replace(launches=count, seconds=seconds), device, total)
             for key, (count, seconds) in together.items()]  # fmt: skip
    found.sort(key=lambda kernel: (-kernel.loss, -kernel.seconds))
    return ProfileDiagnosis(str(path), device.name, total, tuple(found))


def _judged(launch: Launch, gpu: Gpu, total: float) -> ProfiledKernel:
    has_experts = "moe" in launch.operator
    family, op, ceiling, is_limit = family_of_kernel(launch.name, has_experts=has_experts), _op_of(launch), None, False
    if op is not None:
        is_limit = not default_ceilings().knows(op)
        each = limit_seconds(op, gpu) if is_limit else default_ceilings().seconds(op, gpu)
        ceiling = float(np.ravel(each)[0]) * launch.launches
        family = op.family if family == OTHER else family
    shape = " ".join([launch.operator, *("x".join(map(str, dims)) for dims in launch.dims if dims), launch.dtype])
    shape = shape.strip() if launch.operator else ""
    share = launch.seconds / total
    return ProfiledKernel(launch.name, family, shape, launch.launches, launch.seconds, share, ceiling, is_limit)


def _op_of(launch: Launch) -> Op | None:
    """The operator that the inputs of a PyTorch operator describe: a product, attention, or what moves them once."""
    dims = [each for each in launch.dims if each]
    if launch.dtype not in BYTES or not dims or min(map(min, dims)) < 1:
        return None
    try:
        if launch.operator in PRODUCTS:
            first, second = [each for each in dims if len(each) >= 2][-2:]
            many = 1 if launch.operator == "aten::linear" else prod(second[:-2])
            n = second[-2] if launch.operator == "aten::linear" else second[-1]
            return build_op(
                "gemm", {"m": prod(first[:-1]) // many, "n": n * many, "k": first[-1], "dtype": launch.dtype}
            )
        if "attention" in launch.operator and len(dims) >= 2 and len(dims[0]) == len(dims[1]) == 4:
            (batch, heads, queries, width), (_, kv_heads, keys, _) = dims[:2]
            lengths = np.full(batch, queries), np.full(batch, max(keys, queries))
            return Attention(*lengths, heads, kv_heads, width, width, dtype=launch.dtype, kv_dtype=launch.dtype)
        if not launch.operator.startswith("aten::") or any(each in launch.operator for each in SELECTIVE):
            return None
        value, rows = BYTES[launch.dtype], max(prod(dims[0][:-1]), 1)
        return copy(rows, sum(map(prod, dims)) * value / rows, max(map(prod, dims)) * value / rows)
    except (InputError, ValueError):
        return None


def _launches(path: Path) -> Iterator[Launch]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, EOFError) as problem:
        raise FileFormatError(path, f"cannot be read: {getattr(problem, 'strerror', None) or problem}") from None
    if len(raw) > MOST_BYTES:
        raise FileFormatError(path, "is larger than 1 GiB; profile fewer steps")
    text = raw.decode("utf-8", "replace")
    return _of_trace(text) if text.lstrip()[:1] in ("{", "[") else _of_csv(path, text)


def _of_trace(text: str) -> Iterator[Launch]:
    document = json.loads(text)
    events = [
        each for each in (document if isinstance(document, list) else document["traceEvents"]) if each.get("args")
    ]
    operators = {each["args"].get("External id"): each for each in events if each.get("cat") == "cpu_op"}
    for event in events:
        if event.get("cat") != "kernel":
            continue
        seconds, by = 1e-6 * float(event["dur"]), operators.get(event["args"].get("External id"))
        if by is None or "Input Dims" not in by["args"]:
            yield Launch(str(event["name"]), 1, seconds)
            continue
        dims = tuple(
            tuple(int(size) for size in each if not isinstance(size, list)) for each in by["args"]["Input Dims"]
        )
        formats = [FORMATS[each] for each in by["args"].get("Input type", ()) if each in FORMATS]
        yield Launch(str(event["name"]), 1, seconds, str(by["name"]), dims, formats[0] if formats else "")


def _of_csv(path: Path, text: str) -> Iterator[Launch]:
    """Sums by kernel, single kernels, or metrics of single kernels; other lines may come before the header."""
    lines = text.splitlines()
    heads = (number for number, line in enumerate(lines) if "Name" in line and line.count(",") >= 3)
    rows = list(csv.DictReader(lines[next(heads, len(lines)) :]))
    columns = {name.partition(" (")[0]: name for name in (rows[0] if rows else ()) if name}
    name = next((columns[each] for each in ("Kernel Name", "Name") if each in columns), None)
    total = next((columns[each] for each in ("Total Time", "Duration") if each in columns), None)
    if name is None or (total is None and "Metric Value" not in columns):
        raise FileFormatError(
            path, "is no profile: neither a Chrome trace of torch.profiler, nor CSV of `nsys stats` or `ncu --csv`"
        )
    for row in rows:
        metric = str(row.get("Metric Name"))
        if not row[name] or (total is None and metric not in ("Duration", "gpu__time_duration.sum")):
            continue
        unit = str(row["Metric Unit"]) if total is None else total.partition(" (")[2].rstrip(")")
        value = row["Metric Value" if total is None else total].replace(",", "")
        if value:
            yield Launch(row[name], int(row.get("Instances") or 1), float(value) * UNITS[unit or "ns"])
