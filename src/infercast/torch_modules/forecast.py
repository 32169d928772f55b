"""Latency, memory and energy of a captured module on a GPU: eager, as a CUDA graph, or compiled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.errors import InputError, UnknownNameError, need
from infercast.hardware import Gpu, load_gpu
from infercast.hardware.host import LAUNCH, MEASURED, HostProbe, host_cpu, read_probe
from infercast.ops.tensor import Conv2d, TensorOp, kind_named
from infercast.predict.board_power import board_under
from infercast.predict.estimate import Estimate, basis_of, total
from infercast.predict.operators import estimate_op
from infercast.predict.roofline import launch_floor
from infercast.shown import ReprMixin
from infercast.torch_modules.lower import WAITS, AtenCall, Capture, Kernel, Rules, kernels_of
from infercast.units import format_bytes, format_seconds

EXECUTIONS = ("eager", "graph", "compiled")
DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
CUDNN_ATTENTION = ("9.0", "10.", "11.")  # Compute capabilities of chips on which PyTorch prefers cuDNN's attention
FUSED_GROUPS, FUSED_KINDS = ("elementwise", "rows", "reduction"), ("batch_norm", "transpose", "embedding")
"""What a compiler joins with its neighbours."""


@cache
def constants() -> dict[str, Any]:
    return read_data("torch_host.toml")


class Host(NamedTuple):
    title: str
    factor: float = 1.0  # Times the seconds of torch_host.toml
    ends: tuple[float, float] = (1.0, 1.0)  # Of the 80 % interval, in multiples
    is_probed: bool = False


def host_of(host: str | Path | HostProbe | None, gpu: Gpu) -> Host:
    """By the name of a CPU or by a probe, as for engines; None: of the CPU that the GPU has."""
    told, probe = constants(), host if isinstance(host, HostProbe) else None
    if isinstance(host, str | Path) and Path(host).suffix == ".toml":
        raise InputError(f"{host} has an engine's times; a module takes a name of `infercast hosts` or a host.json")
    if isinstance(host, str | Path) and Path(host).suffix == ".json":
        probe = read_probe(Path(host))
    cpu = host_cpu(gpu.cpu if host is None else MEASURED if probe is not None else str(host))
    is_probed = probe is not None and probe.launch is not None
    seen = probe if probe is not None and is_probed else HostProbe(told["python_at"], told["usual_launch"], cpu.title)
    factor = seen.factors(told["python_at"], told["launch_at"])[LAUNCH] / cpu.single_thread_speed
    return Host(seen.title, factor, tuple(told["probed" if is_probed else "spread"]), is_probed)


class Launch(NamedTuple):
    call: AtenCall
    kernels: list[Kernel]
    host: float
    gpu: Estimate


@dataclass(frozen=True, slots=True)
class Part:
    """Calls that belong together: an operator's, or those of submodules that differ in their number alone."""

    name: str
    calls: int
    kernels: int
    gpu_seconds: float
    share: float  # Of all seconds on the GPU
    is_bound: bool  # Whether nothing but a lower bound is known: its tensors are moved once


@dataclass(frozen=True, slots=True, repr=False)
class ModuleForecast(ReprMixin):
    """One forward pass of a module."""

    gpu: str
    host: str
    execution: str
    dtype: str
    seconds: float  # Seconds of one call among many in a row
    low: float  # Lower end of the 80 % interval, in seconds
    high: float  # Upper end of the 80 % interval, in seconds
    alone_seconds: float  # Seconds of a call that nothing else surrounds, from its start to the end of its last kernel
    gpu_seconds: float  # Seconds of all kernels, without a pause between them
    host_seconds: float  # Seconds that the host takes to launch them
    source: str
    kernels: int  # Number of launches
    parameters: int  # Number of weights
    weight_bytes: int  # Bytes of weights and buffers
    activation_bytes: int  # The most bytes that inputs, activations and outputs take at once
    joules: float  # Joules of the board for one call, idle power included
    flops: float  # FLOP of all kernels
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
    module: Any, inputs: Any, *, gpu: str | Gpu, execution: str = "eager", dtype: str | None = None,
    host: str | Path | HostProbe | None = None,
) -> ModuleForecast:  # fmt: skip
    """Forecast one forward pass of a PyTorch module, which needs neither weights nor a GPU. Its own code runs once.
    ``inputs``: a tensor, a tuple or keyword arguments; any device, ``meta`` too. ``execution``: ``eager``, ``graph`` or
    ``compiled``. ``dtype``: ``fp32``, ``tf32``, ``bf16`` or ``fp16``, of weights and inputs; without it theirs.
    ``host``: a name of `infercast hosts`, or what `infercast measure --host` wrote on the machine.
    """
    need("tracing a module", "trace")
    from infercast.torch_modules.capture import capture  # noqa: PLC0415 - PyTorch takes seconds to load

    if dtype is not None and dtype not in DTYPES:
        raise UnknownNameError("dtype", dtype, DTYPES)
    found = capture(module, inputs, dtype=dtype and DTYPES[dtype], graph=execution != "eager")
    return forecast_capture(found, gpu=gpu, execution=execution, dtype=dtype or "", host=host)


def forecast_capture(
    capture: Capture, *, gpu: str | Gpu, execution: str = "eager", dtype: str = "",
    host: str | Path | HostProbe | None = None,
) -> ModuleForecast:  # fmt: skip
    if execution not in EXECUTIONS:
        raise UnknownNameError("execution", execution, EXECUTIONS)
    chip = load_gpu(gpu) if isinstance(gpu, str) else gpu
    rules = Rules(tf32=dtype == "tf32", cudnn_attention=chip.compute_capability[:3] in CUDNN_ATTENTION)
    machine = host_of(host, chip)
    first = machine.factor * constants()[execution]["call"]
    launches = [
        each._replace(host=machine.factor * each.host) for each in launches_of(capture.calls, chip, rules, execution)
    ]
    whole = total((each.gpu, 1) for each in launches)
    busy, spent = float(whole.seconds), sum(each.host for each in launches) + first
    alone, seconds = queued(launches) if execution == "eager" else (busy + first, max(busy, spent))
    quickest, slowest = (spent * end for end in machine.ends)
    board = board_under(chip)
    work = [kernel for each in launches for kernel in each.kernels]
    timed = {kernel: float(seconds_of(kernel, chip).seconds) for kernel in {*work}}
    most = board.held_watts - board.idle_watts
    known = {each: min(float(board.dynamic_joules(each.op, one)), most * one) for each, one in timed.items()}
    operators = parts_of(launches, lambda call: call.name.removeprefix("aten."))
    return ModuleForecast(
        gpu=chip.name, host=machine.title, execution=execution, dtype=dtype, seconds=seconds, alone_seconds=alone,
        low=min(max(float(whole.low), quickest), seconds), high=max(float(whole.high), slowest, seconds),
        gpu_seconds=busy, host_seconds=spent,
        source=basis_of((each.gpu.source, float(each.gpu.seconds)) for each in launches),
        kernels=sum(kernel.launches for kernel in work), parameters=capture.parameters,
        weight_bytes=capture.weight_bytes, activation_bytes=capture.peak_bytes,
        joules=sum(known[kernel] for kernel in work) + board.idle_watts * seconds,
        flops=sum(float(kernel.op.flops) for kernel in work), operators=operators,
        submodules=parts_of(launches, lambda call: re.sub(r"\b\d+\b", "*", call.module) or "(itself)"),
        unknown=[part for part in operators if part.is_bound],
        notes=[
            *_too_large(capture, chip), *_unknown_host(spent > busy, machine),
            *(f"Values decide what runs: {each}." for each in capture.assumed),
        ],
    )  # fmt: skip


def _too_large(capture: Capture, gpu: Gpu) -> list[str]:
    """That it cannot run, where it does not fit."""
    needed = capture.weight_bytes + capture.peak_bytes
    if needed <= gpu.driver_bytes:
        return []
    return [f"Does not fit: it needs {format_bytes(needed)}, above the {format_bytes(gpu.driver_bytes)} of the GPU."]


def _unknown_host(is_bound: bool, host: Host) -> list[str]:
    if not is_bound or host.is_probed:
        return []
    return ["The host decides, and hosts of one name differ by half: `infercast measure --host` and --host narrow it."]


def parts_of(launches: list[Launch], name_of: Callable[[AtenCall], str]) -> list[Part]:
    found: dict[tuple[str, bool], list[Launch]] = {}
    for each in launches:
        if each.kernels:
            found.setdefault((name_of(each.call), any(one.unknown for one in each.kernels)), []).append(each)
    busy = sum(float(each.gpu.seconds) for each in launches) or 1.0
    parts = []
    for (name, is_bound), several in found.items():
        seconds = sum(float(each.gpu.seconds) for each in several)
        kernels = sum(kernel.launches for each in several for kernel in each.kernels)
        parts.append(Part(name, len(several), kernels, seconds, seconds / busy, is_bound))
    return sorted(parts, key=lambda part: -part.gpu_seconds)


def launches_of(calls: Iterable[AtenCall], gpu: Gpu, rules: Rules, execution: str) -> Iterator[Launch]:
    """The host's and the GPU's seconds of each call; of a compiled module, of each chain that becomes one kernel."""
    told, known = constants()[execution], dict[Kernel, Estimate]()
    chain: list[tuple[AtenCall, Kernel]] = []

    def launched(call: AtenCall, kernels: list[Kernel]) -> Launch:
        for kernel in kernels:
            if kernel not in known:
                known[kernel] = seconds_of(kernel, gpu)
        host = told["operator" if kernels else "view"] + told["kernel"] * sum(kernel.launches for kernel in kernels)
        return Launch(call, kernels, host + told.get(call.name, 0.0), total((known[kernel], 1) for kernel in kernels))

    running = ""
    for call in calls:
        kernels = kernels_of(call, rules)
        entered, running = told["module"] * (call.module != running), call.module
        if execution == "compiled":
            if all(_is_fused(kernel) for kernel in kernels):
                chain += [(call, kernel) for kernel in kernels]
                continue
            kernels = [_channels_last(kernel) for kernel in kernels]
            if chain:
                yield launched(*_joined(chain))
                chain = []
        one = launched(call, kernels)
        yield one._replace(host=one.host + entered)
    if chain:
        yield launched(*_joined(chain))


def seconds_of(kernel: Kernel, gpu: Gpu) -> Estimate:
    """One launch; where threads compute places, they and not the memory may be the limit."""
    found, op = estimate_op(kernel.op, gpu), kernel.op
    if not kernel.order or not isinstance(op, TensorOp):
        return found
    pace = constants()["order"][kernel.order] * gpu.sms * gpu.boost_clock
    seconds = launch_floor(gpu) + float(op.elements) / pace
    if seconds <= float(found.seconds):
        return found
    return Estimate(seconds, 0.75 * seconds, 1.35 * seconds, found.source, "fma")


def _is_fused(kernel: Kernel) -> bool:
    op = kernel.op
    if kernel.unknown or not isinstance(op, TensorOp):
        return False
    return op.kind in FUSED_KINDS or kind_named(op.kind).group in FUSED_GROUPS


def _channels_last(kernel: Kernel) -> Kernel:
    """Compiled convolutions run with channels last, unless they are by groups."""
    op = kernel.op
    return kernel._replace(op=replace(op, channels_last=True)) if isinstance(op, Conv2d) and op.groups == 1 else kernel


def _joined(chain: list[tuple[AtenCall, Kernel]]) -> tuple[AtenCall, list[Kernel]]:
    """One kernel for a chain: it reads what the chain is given, and writes what its last operator writes."""
    read = written = 0.0
    for _, kernel in chain:
        read += max(float(kernel.op.bytes_read) - written, 0.0)
        written = float(kernel.op.bytes_written)
    ops: list[Any] = [kernel.op for _, kernel in chain]
    reducing = [op for op in ops if kind_named(op.kind).group == "reduction"]
    largest = max(reducing or ops, key=lambda op: float(op.elements))
    if not reducing:  # values in the order in which they lie
        largest = TensorOp("clone", largest.elements, dtype=largest.dtype)
    return replace(chain[-1][0], name="aten.fused"), [Kernel(replace(largest, read=read, written=written))]


def queued(launches: list[Launch]) -> tuple[float, float]:
    """Seconds of the first call, and between the ends of two in a row: host or GPU, whichever is behind, decides."""
    host = gpu = 0.0
    ends = []
    for _ in range(2):
        for each in launches:
            host += each.host
            if each.kernels:
                gpu = max(gpu, host) + float(each.gpu.seconds)
            if each.call.name in WAITS:
                host = gpu
        ends.append(max(gpu, host))
    return ends[0], ends[1] - ends[0]
