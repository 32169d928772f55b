"""Bottleneck kernels of a run or a profile (PyTorch, Nsight): their gaps to the best of their shape, and the cost."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from math import inf, prod
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from infercast.engines.base import Deployment
from infercast.errors import FileFormatError, InputError
from infercast.forecast.deploy import Deployable, GpuSource, RunOptions, Servable, resolve_run
from infercast.forecast.estimate import build_op
from infercast.forecast.kernels import step_calls, typical_shape
from infercast.forecast.result import Forecast
from infercast.forecast.run import outcome_of
from infercast.forecast.simulate import simulate
from infercast.hardware import Gpu, load_gpu
from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.ops import Attention, Op
from infercast.ops.op import BYTES, copy
from infercast.predict.ceilings import AtCeiling, Ceilings, Signature, default_ceilings, signature_of
from infercast.predict.identity import OTHER, family_of_kernel
from infercast.predict.roofline import limit_seconds
from infercast.serve import simulate as simulate_replica
from infercast.serve.step import StepShape
from infercast.shown import PlottableResult, ResultMixin
from infercast.units import MICRO

EVERY_KERNEL = StepShape([2, 1], [0, 1], 2)  # A prompt and a decoding sequence: a step with every kernel of a model
MOST_BYTES = 2**30  # Of a file, unpacked
UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "s": 1.0}  # By the first letter: exports write ns, nsecond and so on
FORMATS = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32", "c10::Float8_e4m3fn": "fp8"}


@dataclass(frozen=True, slots=True)
class Saving:
    """What users would see less of, as shares: positive is better."""

    ttft: float
    tpot: float  # Of the mean time per output token; 0 where no request has a second token
    end_to_end: float
    throughput: float  # More output tokens a second; next to nothing where clients set the pace


@dataclass(frozen=True, slots=True)
class Gap:
    phase: str  # ``prefill`` (steps with prompt tokens) or ``decode``
    tokens: int
    seconds: float  # One launch, as forecast
    ceiling: float  # One launch where kernels of this shape are best
    limit: float
    share: float  # All its launches, of the GPU time of steps of this kind

    @property
    def attained(self) -> float:
        return self.ceiling / self.seconds

    @property
    def loss(self) -> float:
        """What the gap costs, of the GPU time of steps of this kind."""
        return (1.0 - self.attained) * self.share


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    family: str
    source: str
    gaps: tuple[Gap, ...]
    saving: Saving


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis(PlottableResult):
    """Findings, most rewarding first."""

    forecast: Forecast
    findings: tuple[Finding, ...]
    host: Saving  # If the host took no time at all
    everything: Saving  # If every kernel was as good as the best of its shape, with the same host
    not_judged: tuple[str, ...]  # Kernels of kinds that were measured nowhere

    def _words(self) -> str:
        worst = f", first {self.findings[0].name}" if self.findings else ""
        return f"{self.forecast.title}: {len(self.findings)} findings{worst}"


def diagnose(
    deployment: Deployable, workload: Servable = None, ceilings: Ceilings | None = None, *,
    gpu: GpuSource | None = None, **options: Unpack[RunOptions],
) -> Diagnosis:  # fmt: skip
    """Simulate a workload, and again with each gap closed; names do as in `simulate`."""
    deployment, workload = resolve_run(deployment, workload, gpu, options)
    if deployment.layout.data > 1:
        raise InputError(f"a diagnosis is of one copy, not of layout {deployment.layout}; use data_parallel_size 1")
    if deployment.drafting is not None:
        raise InputError("a diagnosis is of an engine without speculative decoding; leave --speculative-config out")
    known = ceilings or default_ceilings()
    base = simulate(deployment, workload)
    if base.source in ("roofline", "typical", "published"):
        raise InputError(
            f"kernels on {deployment.gpu.name} are timed by the roofline, so nothing is known of how good they are; a "
            "diagnosis needs learned estimates (NVIDIA GPUs, --predictor learned)"
        )

    def saved(changed: Deployment) -> Saving:
        found = outcome_of(simulate_replica(changed.replica(), workload))
        return Saving(
            ttft=1.0 - found.ttft.mean / base.ttft.mean,
            tpot=0.0 if base.tpot is None or found.tpot is None else 1.0 - found.tpot.mean / base.tpot.mean,
            end_to_end=1.0 - found.end_to_end.mean / base.end_to_end.mean,
            throughput=found.output_tokens_per_second / base.output_tokens_per_second - 1.0,
        )

    findings: list[Finding] = []
    not_judged: list[str] = []
    least_loss = 0.002  # Gaps below this share of a phase's GPU time are not looked at one by one
    for names, signatures in _kernels(deployment).items():
        call = next(call for call in step_calls(deployment, EVERY_KERNEL).all if call.name in names)
        if not known.knows(call.op):
            not_judged += names
            continue
        gaps = _gaps(base, names, known)
        if not gaps or max(gap.loss for gap in gaps) < least_loss:
            continue
        findings.append(
            Finding(
                name=" and ".join(names), family=call.op.family,
                source=deployment.predictor.estimate(call.op, deployment.gpu).source, gaps=gaps,
                saving=saved(replace(deployment, predictor=AtCeiling(deployment.predictor, known, signatures))),
            )
        )  # fmt: skip
    findings.sort(key=lambda finding: -finding.saving.end_to_end)
    everything = replace(deployment, predictor=AtCeiling(deployment.predictor, known))
    free_host = replace(deployment, host=deployment.host.sped_up(inf, "a host that takes no time"))
    return Diagnosis(base, tuple(findings), saved(free_host), saved(everything), tuple(not_judged))


def _kernels(deployment: Deployment) -> dict[tuple[str, ...], set[Signature]]:
    found: list[tuple[list[str], set[Signature]]] = []
    for call in step_calls(deployment, EVERY_KERNEL).all:
        signature = signature_of(call.op)
        same = next((entry for entry in found if call.name in entry[0] or signature in entry[1]), None)
        if same is None:
            found.append(([call.name], {signature}))
        else:
            same[1].add(signature)
            if call.name not in same[0]:
                same[0].append(call.name)
    return {tuple(names): signatures for names, signatures in found}


def _gaps(base: Forecast, names: tuple[str, ...], ceilings: Ceilings) -> tuple[Gap, ...]:
    deployment, gpu = base.deployment, base.deployment.gpu
    gaps: list[tuple[float, Gap]] = []
    for phase in base.phases:
        totals = base.records[0].phases[phase.name]
        shape = typical_shape(base.records[0], totals)
        calls = [call for call in step_calls(deployment, shape).all if call.name in names]
        seconds_of_kernel = dict(pair for family in phase.families for pair in family.kernels)
        share = sum(seconds_of_kernel.get(name, 0.0) for name in names) / phase.gpu_seconds
        launches = sum(call.count for call in calls)
        if not launches or not share:
            continue
        mean = np.zeros(3)
        for call in calls:
            seconds = float(np.ravel(deployment.predictor.seconds(call.op, gpu))[0])
            best = min(seconds, float(ceilings.seconds(call.op, gpu)[0]))
            hard = min(best, float(limit_seconds(call.op, gpu)[0]))
            mean += np.array([seconds, best, hard]) * call.count / launches
        seconds, best, hard = mean.tolist()
        gap = Gap(phase.name, round(totals.tokens / totals.steps), seconds, best, hard, share)
        gaps.append((gap.loss * phase.gpu_seconds, gap))
    return tuple(gap for _, gap in sorted(gaps, key=lambda pair: -pair[0]))


class Kernel(NamedTuple):
    name: str
    operator: str = ""
    dims: tuple[tuple[int, ...], ...] = ()  # Of its operator's inputs, where a trace has them
    dtype: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class ProfileDiagnosis(ResultMixin):
    """Kernels of a profile, those first that lose most time against the best of their shape."""

    file: str
    gpu: str
    kernels: tuple[dict[str, Any], ...]
    """kernel, family, shape, launches, total_us, share, best_us (None: unknown), best_is_hard_limit, lost_share."""

    def _words(self) -> str:
        return f"{self.file} on {self.gpu}: {len(self.kernels)} kernels"

    def document(self) -> dict[str, Any]:
        return {
            **{"file": self.file, "gpu": self.gpu, "total_us": sum(each["total_us"] for each in self.kernels)},
            "lost_share": sum(each["lost_share"] for each in self.kernels),
            "shapeless_share": sum((each["share"] for each in self.kernels if each["best_us"] is None), 0.0),
            "unmatched_share": sum((each["share"] for each in self.kernels if each["family"] == OTHER), 0.0),
            "kernels": list(self.kernels),
        }


def diagnose_profile(path: Path | str, gpu: str | Path | Gpu) -> ProfileDiagnosis:
    """Rank the kernels of a profile by the time that they lose against the best kernels of their shape: traces of
    ``torch.profiler`` (with ``record_shapes=True``, else kernels have a family and a share alone), and what ``nsys
    stats --format csv`` and ``ncu --csv`` print.
    """
    device, path = gpu if isinstance(gpu, Gpu) else load_gpu(gpu), Path(path)
    sums: dict[Kernel, Any] = defaultdict(lambda: np.zeros(2))
    try:
        for kernel, launches, seconds in _profiled(path):
            sums[kernel] += launches, seconds
    except FileFormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as problem:
        raise FileFormatError(path, f"cannot be read as a profile: {type(problem).__name__} {problem}") from None
    total = float(sum(seconds for _, seconds in sums.values()))
    if not 0 < total < np.inf:
        raise FileFormatError(path, "has no kernels of a GPU")
    found = [_judged(kernel, int(many), float(seconds), device, total) for kernel, (many, seconds) in sums.items()]
    found.sort(key=lambda each: (-each["lost_share"], -each["share"]))
    return ProfileDiagnosis(str(path), device.name, tuple(found))


def _judged(kernel: Kernel, many: int, seconds: float, gpu: Gpu, total: float) -> dict[str, Any]:
    family, op, best = family_of_kernel(kernel.name, has_experts="moe" in kernel.operator), _op_of(kernel), None
    known = op is not None and default_ceilings().knows(op)
    if op is not None:
        each = default_ceilings().seconds(op, gpu) if known else limit_seconds(op, gpu)
        best, family = many * float(np.ravel(each)[0]), op.family if family == OTHER else family
    dims = ("x".join(map(str, each)) for each in kernel.dims if each)
    shape = " ".join([kernel.operator.removeprefix("aten::"), *dims, kernel.dtype]).strip()
    share, lost = seconds / total, 0.0 if best is None else max(0.0, 1.0 - best / seconds)
    return {
        **{"kernel": kernel.name, "family": family, "shape": shape, "launches": many, "total_us": seconds / MICRO},
        **{"share": share, "best_us": None if best is None else best / MICRO},
        **{"best_is_hard_limit": None if best is None else not known, "lost_share": lost * share},
    }


def _op_of(kernel: Kernel) -> Op | None:
    """The operator that the inputs of a PyTorch operator describe: a product, attention, or what moves them once."""
    dims, name = [each for each in kernel.dims if each], kernel.operator
    if kernel.dtype not in BYTES or not dims or min(map(min, dims)) < 1:
        return None
    try:
        products = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::_scaled_mm")
        if name in products:
            first, second = [each for each in dims if len(each) >= 2][-2:]
            many, n = (1, second[-2]) if name == "aten::linear" else (prod(second[:-2]), second[-1])
            sizes = {"m": prod(first[:-1]) // many, "n": n * many, "k": first[-1]}
            return build_op("gemm", {**sizes, "dtype": kernel.dtype})
        if "attention" in name and len(dims) >= 2 and len(dims[0]) == len(dims[1]) == 4:
            (batch, heads, queries, width), (_, kv_heads, keys, _) = dims[:2]
            lengths = np.full(batch, queries), np.full(batch, max(keys, queries))
            return Attention(*lengths, heads, kv_heads, width, width, dtype=kernel.dtype, kv_dtype=kernel.dtype)
        # In names of operators that do more or less than move their inputs once
        selective = ("conv", "embedding", "index", "gather", "scatter", "sort", "topk", "lstm", "attention")
        if not name.startswith("aten::") or any(each in name for each in selective):
            return None
        rows, sizes_of = max(prod(dims[0][:-1]), 1), [prod(each) * BYTES[kernel.dtype] for each in dims]
        return copy(rows, sum(sizes_of) / rows, max(sizes_of) / rows)
    except (InputError, ValueError):
        return None


def _profiled(path: Path) -> Iterator[tuple[Kernel, int, float]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, EOFError) as problem:
        raise FileFormatError(path, f"cannot be read: {getattr(problem, 'strerror', None) or problem}") from None
    if len(raw) > MOST_BYTES:
        raise FileFormatError(path, "is larger than 1 GiB; profile fewer steps")
    text = raw.decode("utf-8", "replace")
    return _of_trace(json.loads(text)) if text.lstrip()[:1] in ("{", "[") else _of_csv(path, text)


def _of_trace(document: Any) -> Iterator[tuple[Kernel, int, float]]:
    listed = document if isinstance(document, list) else document["traceEvents"]
    events = [each for each in listed if each.get("args")]
    inputs = {each["args"].get("External id"): each for each in events if each.get("cat") == "cpu_op"}
    for event in (each for each in events if each.get("cat") == "kernel"):
        kernel, by = Kernel(str(event["name"])), inputs.get(event["args"].get("External id"))
        if by is not None and "Input Dims" in by["args"]:
            dims = tuple(tuple(int(n) for n in each if not isinstance(n, list)) for each in by["args"]["Input Dims"])
            formats = [FORMATS[each] for each in by["args"].get("Input type", ()) if each in FORMATS]
            kernel = Kernel(kernel.name, str(by["name"]), dims, formats[0] if formats else "")
        yield kernel, 1, MICRO * float(event["dur"])


def _of_csv(path: Path, text: str) -> Iterator[tuple[Kernel, int, float]]:
    """Sums by kernel, single kernels, or metrics of single kernels; other lines may come before the header."""
    lines = text.splitlines()
    heads = (number for number, line in enumerate(lines) if "Name" in line and line.count(",") >= 3)
    rows = list(csv.DictReader(lines[next(heads, len(lines)) :]))
    columns = {name.partition(" (")[0]: name for name in (rows[0] if rows else ()) if name}
    name = columns.get("Kernel Name", columns.get("Name", ""))
    total = columns.get("Total Time", columns.get("Duration", "Metric Value"))
    if not name or total not in rows[0]:
        what = "neither a Chrome trace of torch.profiler, nor CSV of `nsys stats` or `ncu --csv`"
        raise FileFormatError(path, f"is no profile: {what}")
    for row in rows:
        unit = row.get("Metric Unit") or total.partition(" (")[2] or "ns"
        if row[name] and row[total] and row.get("Metric Name", "Duration") in ("Duration", "gpu__time_duration.sum"):
            yield Kernel(row[name]), int(row.get("Instances") or 1), float(row[total].replace(",", "")) * UNITS[unit[0]]
