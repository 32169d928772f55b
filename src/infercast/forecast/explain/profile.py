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
from typing import Any, NamedTuple

import numpy as np

from infercast.errors import FileFormatError, InputError
from infercast.forecast.estimate import build_op
from infercast.forecast.slo import Array
from infercast.hardware import Gpu, load_gpu
from infercast.ops import Attention, Op
from infercast.ops.op import BYTES, copy
from infercast.predict.ceilings import default_ceilings
from infercast.predict.identity import OTHER, family_of_kernel
from infercast.predict.roofline import limit_seconds
from infercast.shown import Answer
from infercast.units import MICRO

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


@dataclass(frozen=True, slots=True, repr=False)
class ProfileDiagnosis(Answer):
    """Kernels of a profile, those first that lose most time against the best of their shape."""

    file: str
    gpu: str
    seconds: float
    kernels: tuple[dict[str, Any], ...]
    """By name, family, shape, launches, total_us, share, best_us (None: unknown), is_limit and lost_share."""

    def _words(self) -> str:
        return f"{self.file} on {self.gpu}: {len(self.kernels)} kernels"

    def document(self) -> dict[str, Any]:
        unknown = {each["kernel"][:60]: f"{each['share']:.1%}" for each in self.kernels if each["family"] == OTHER}
        return {
            **{"file": self.file, "gpu": self.gpu, "total_us": self.seconds / MICRO},
            "lost_share": sum(each["lost_share"] for each in self.kernels),
            "shapeless_share": sum(each["share"] for each in self.kernels if each["best_us"] is None),
            "unmatched_share": float(sum(each["share"] for each in self.kernels if each["family"] == OTHER)),
            "unmatched": dict(list(unknown.items())[:8]),
            "kernels": list(self.kernels),
        }


def diagnose_profile(path: Path | str, gpu: str | Path | Gpu) -> ProfileDiagnosis:
    """Rank the kernels of a profile by the time that they lose against the best kernels of their shape.

    Read are traces of ``torch.profiler`` (better with ``record_shapes=True``), and what ``nsys stats --format csv`` and
    ``ncu --csv`` print. Without inputs in the profile, kernels have a family and a share alone.
    """
    device, path = gpu if isinstance(gpu, Gpu) else load_gpu(gpu), Path(path)
    together: dict[Launch, list[float]] = defaultdict(lambda: [0.0, 0.0])
    try:
        for launch in _launches(path):
            sums = together[launch._replace(launches=0, seconds=0.0)]
            sums[:] = sums[0] + launch.launches, sums[1] + launch.seconds
    except FileFormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as problem:
        raise FileFormatError(path, f"cannot be read as a profile: {type(problem).__name__} {problem}") from None
    total = sum(seconds for _, seconds in together.values())
    if not 0 < total < np.inf:
        raise FileFormatError(path, "has no kernels of a GPU")
    found = [_judged(launch, int(many), seconds, device, total) for launch, (many, seconds) in together.items()]
    found.sort(key=lambda each: (-each["lost_share"], -each["share"]))
    return ProfileDiagnosis(str(path), device.name, total, tuple(found))


def _judged(launch: Launch, many: int, seconds: float, gpu: Gpu, total: float) -> dict[str, Any]:
    family, op = family_of_kernel(launch.name, has_experts="moe" in launch.operator), _op_of(launch)
    known = op is not None and default_ceilings().knows(op)
    best = None if op is None else many * float(np.ravel(_best(op, gpu, known=known))[0])
    dims = ("x".join(map(str, each)) for each in launch.dims if each)
    return {
        "kernel": launch.name,
        "family": op.family if op is not None and family == OTHER else family,
        "shape": " ".join([launch.operator.removeprefix("aten::"), *dims, launch.dtype]).strip(),
        "launches": many,
        "total_us": seconds / MICRO,
        "share": seconds / total,
        "best_us": None if best is None else best / MICRO,
        "best_is_hard_limit": None if best is None else not known,
        "lost_share": 0.0 if best is None else max(0.0, 1.0 - best / seconds) * seconds / total,
    }


def _best(op: Op, gpu: Gpu, *, known: bool) -> Array:
    """What the best kernels of a shape take, or what hardware allows where none was measured."""
    return default_ceilings().seconds(op, gpu) if known else limit_seconds(op, gpu)


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
