"""Latency, memory and energy of a captured module on a GPU: eager, as a CUDA graph, or compiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.errors import UnknownNameError, need
from infercast.hardware import Gpu, load_gpu
from infercast.ops.tensor import Conv2d, TensorOp
from infercast.predict.board_power import board_power
from infercast.predict.estimate import Estimate, basis_of
from infercast.predict.operators import estimate_op
from infercast.predict.roofline import launch_floor
from infercast.shown import Shown
from infercast.torch_modules.calls import AtenCall, Capture
from infercast.torch_modules.lower import WAITS, Kernel, Rules, kernels_of
from infercast.units import format_bytes, format_seconds

EXECUTIONS = ("eager", "graph", "compiled")
DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
FUSIBLE = ("elementwise", "rows", "reduction")


@cache
def constants() -> dict[str, Any]:
    return read_data("torch_host.toml")


class Launch(NamedTuple):
    """What one call costs the host and the GPU."""

    call: AtenCall
    kernels: list[Kernel]
    host: float
    gpu: Estimate

    @property
    def is_unknown(self) -> bool:
        return any(kernel.unknown for kernel in self.kernels)


@dataclass(frozen=True, slots=True)
class Part:
    """Calls that belong together: an operator's, or a submodule's."""

    name: str
    calls: int
    kernels: int
    gpu_seconds: float
    share: float
    """Of all seconds on the GPU."""
    is_bound: bool = False
    """Whether nothing but a lower bound is known: its tensors are moved once."""


@dataclass(frozen=True, slots=True, repr=False)
class ModuleForecast(Shown):
    """One forward pass of a module."""

    gpu: str
    execution: str
    dtype: str
    seconds: float
    """Of one call among many in a row."""
    low: float
    high: float
    alone_seconds: float
    """Of a call that nothing else surrounds, from its start to the end of its last kernel."""
    gpu_seconds: float
    host_seconds: float
    source: str
    kernels: int
    parameters: int
    weight_bytes: int
    activation_bytes: int
    """The most that inputs, activations and outputs take at once."""
    joules: float
    flops: float
    operators: list[Part]
    submodules: list[Part]
    unknown: list[Part]
    notes: list[str]

    @property
    def unknown_share(self) -> float:
        """Of the seconds on the GPU, those of operators of which only a bound is known."""
        return sum(part.share for part in self.unknown)

    @property
    def bound(self) -> str:
        """What a call waits for: the ``host`` that launches kernels, or the ``gpu``."""
        return "host" if self.host_seconds > self.gpu_seconds else "gpu"

    def _words(self) -> str:
        memory = format_bytes(self.weight_bytes + self.activation_bytes)
        return f"{format_seconds(self.seconds)} {self.execution} on {self.gpu}, {memory}, bound by the {self.bound}"


def forecast_module(
    module: Any, inputs: Any, *, gpu: str | Gpu, execution: str = "eager", dtype: str | None = None
) -> ModuleForecast:
    """Forecast one forward pass of a PyTorch module, which is neither given weights nor a GPU to run on.

    ``inputs``: a tensor, a tuple or keyword arguments; any device, ``meta`` too. ``execution``: ``eager``, ``graph`` or
    ``compiled``. ``dtype``: ``fp32``, ``tf32``, ``bf16`` or ``fp16``, of weights and inputs; without it theirs.
    """
    need("tracing a module", "trace")
    from infercast.torch_modules.capture import capture, torch  # noqa: PLC0415 - it takes seconds to load

    if dtype is not None and dtype not in DTYPES:
        raise UnknownNameError("dtype", dtype, DTYPES)
    kind = getattr(torch, DTYPES[dtype]) if dtype is not None else None
    found = capture(module, inputs, dtype=kind, graph=execution == "graph")
    return forecast_capture(found, gpu=gpu, execution=execution, dtype=dtype or "")


def forecast_capture(capture: Capture, *, gpu: str | Gpu, execution: str = "eager", dtype: str = "") -> ModuleForecast:
    if execution not in EXECUTIONS:
        raise UnknownNameError("execution", execution, EXECUTIONS)
    chip = load_gpu(gpu) if isinstance(gpu, str) else gpu
    rules = Rules(tf32=dtype == "tf32", cudnn_attention=chip.compute_capability >= "9.0")
    launches = [*launches_of(capture.calls, chip, rules, execution)]
    busy = sum(float(each.gpu.seconds) for each in launches)
    low, high = (sum(float(getattr(each.gpu, end)) for each in launches) for end in ("low", "high"))
    host = sum(each.host for each in launches) + (constants()[execution]["call"] if execution != "eager" else 0.0)
    alone, again = queued(launches, execution)
    spread = constants()["spread"]
    seconds = again if execution == "eager" else max(busy, host)
    at_least, at_most = max(low, host / spread), max(high, host * spread)
    board = board_power(chip)
    work = [(each, kernel) for each in launches for kernel in each.kernels]
    joules = sum(float(board.dynamic_joules(kernel.op, _seconds(kernel, chip).seconds)) for _, kernel in work)
    operators = parts_of(launches, busy, lambda each: each.call.name.removeprefix("aten."))
    return ModuleForecast(
        gpu=chip.name, execution=execution, dtype=dtype, seconds=seconds, low=min(at_least, seconds),
        high=max(at_most, seconds), alone_seconds=alone, gpu_seconds=busy, host_seconds=host,
        source=basis_of((each.gpu.source, float(each.gpu.seconds)) for each in launches),
        kernels=sum(kernel.launches for _, kernel in work), parameters=capture.parameters,
        weight_bytes=capture.weight_bytes, activation_bytes=capture.peak_bytes,
        joules=joules + board.idle_watts * seconds, flops=sum(float(kernel.op.flops) for _, kernel in work),
        operators=operators, submodules=parts_of(launches, busy, lambda each: each.call.module or "(root)"),
        unknown=[part for part in operators if part.is_bound],
        notes=[f"Values decide what runs: {each}." for each in capture.assumed],
    )  # fmt: skip


def parts_of(launches: list[Launch], busy: float, name_of: Any) -> list[Part]:
    """Sums by name, the largest first."""
    found: dict[tuple[str, bool], list[Launch]] = {}
    for each in launches:
        if each.kernels:
            found.setdefault((name_of(each), each.is_unknown), []).append(each)
    parts = []
    for (name, unknown), several in found.items():
        seconds = sum(float(each.gpu.seconds) for each in several)
        kernels = sum(kernel.launches for each in several for kernel in each.kernels)
        parts.append(Part(name, len(several), kernels, seconds, seconds / busy if busy else 0.0, unknown))
    return sorted(parts, key=lambda part: -part.gpu_seconds)


def launches_of(calls: Iterable[AtenCall], gpu: Gpu, rules: Rules, execution: str) -> Iterator[Launch]:
    """The host's and the GPU's seconds of each call."""
    told = constants()[execution]
    known: dict[Kernel, Estimate] = {}
    pending: list[tuple[AtenCall, Kernel]] = []
    nothing = Estimate(0.0, 0.0, 0.0, "measured", "launch")
    for call in calls:
        kernels = kernels_of(call, rules)
        if execution == "compiled":
            if not kernels:
                continue
            kernels = [_channels_last(kernel) for kernel in kernels]
            if all(_is_fusible(kernel) for kernel in kernels):
                pending += [(call, kernel) for kernel in kernels]
                continue
            if pending:
                yield _fused(pending, gpu, told)
                pending = []
        parts = []
        for kernel in kernels:
            if kernel not in known:
                known[kernel] = _seconds(kernel, gpu)
            parts.append(known[kernel])
        whole = nothing
        if parts:
            sums = (sum(float(getattr(part, end)) for part in parts) for end in ("seconds", "low", "high"))
            longest = max(parts, key=lambda part: float(part.seconds))
            whole = Estimate(*sums, longest.source, longest.bound)
        launched = sum(kernel.launches for kernel in kernels)
        host = told["operator" if kernels else "view"] + told["kernel"] * launched + told.get(call.name, 0.0)
        yield Launch(call, kernels, host, whole)
    if pending:
        yield _fused(pending, gpu, told)


def _seconds(kernel: Kernel, gpu: Gpu) -> Estimate:
    """One launch; where threads compute places, they and not the memory may be the limit."""
    found, op = estimate_op(kernel.op, gpu), kernel.op
    if not kernel.order or not isinstance(op, TensorOp):
        return found
    pace = constants()["order"][kernel.order] * gpu.sms * gpu.boost_clock
    seconds = launch_floor(gpu) + float(op.elements) / pace
    if seconds <= float(found.seconds):
        return found
    return Estimate(seconds, 0.75 * seconds, 1.35 * seconds, found.source, "fma")


def _is_fusible(kernel: Kernel) -> bool:
    from infercast.ops.tensor import kind_named

    op = kernel.op
    return (
        isinstance(op, TensorOp)
        and not kernel.unknown
        and kind_named(op.kind).group in FUSIBLE
        or (isinstance(op, TensorOp) and op.kind in ("batch_norm", "transpose", "embedding") and not kernel.unknown)
    )


def _channels_last(kernel: Kernel) -> Kernel:
    """Compiled convolutions run with channels last, unless they have one channel a group."""
    op = kernel.op
    if isinstance(op, Conv2d) and op.groups == 1:
        return kernel._replace(op=replace(op, channels_last=True))
    return kernel


def _fused(pending: list[tuple[AtenCall, Kernel]], gpu: Gpu, told: dict[str, float]) -> Launch:
    """One kernel for a chain: it reads what the chain is given, and writes what the last one writes."""
    call, last = pending[-1]
    read = written = 0.0
    for _, kernel in pending:
        read += max(float(kernel.op.bytes_read) - written, 0.0)
        written = float(kernel.op.bytes_written)
    largest = max((kernel for _, kernel in pending), key=lambda kernel: float(kernel.op.elements))  # type: ignore[attr-defined]
    op = replace(largest.op, read=read, written=written)  # type: ignore[type-var]
    kernel = Kernel(op, launches=1)
    return Launch(replace(call, name="aten.fused"), [kernel], told["operator"] + told["kernel"], estimate_op(op, gpu))


def queued(launches: list[Launch], execution: str) -> tuple[float, float]:
    """Seconds of the first call, and between the ends of the first and the second in a row.

    The host goes through the calls, and the GPU takes kernels in order as they arrive: whichever is behind decides.
    """
    host = gpu = first = 0.0
    for again in range(2):
        for each in launches:
            host += each.host
            if each.kernels:
                gpu = max(gpu, host) + float(each.gpu.seconds)
            if each.call.name in WAITS:
                host = gpu
        if not again:
            first = max(gpu, host)
    return first, max(gpu, host) - first
