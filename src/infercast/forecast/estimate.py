"""Estimates of single kernels: one, arrays of shapes at once, or a table's rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from infercast.errors import FileFormatError, InputError, UnknownNameError
from infercast.forecast.csv_rows import read_rows
from infercast.forecast.kernel_power import KernelPower, kernel_power
from infercast.forecast.shapes import SHAPES, build_op
from infercast.hardware import Gpu, load_gpu, with_network
from infercast.hardware.kernels import is_modelled
from infercast.hardware.network import networks
from infercast.ops import Op
from infercast.predict.adjust.power import SUSTAINED_SPREAD, board_under, sustained
from infercast.predict.default import make_predictor
from infercast.predict.energy.metered import meter_reading
from infercast.predict.estimate import Estimate
from infercast.predict.learned import Learned
from infercast.predict.roofline import Predictor

ALONE, ENGINE, LASTING = CONDITIONS = ("alone", "engine", "sustained")
"""What a kernel's time is of: one launch by itself after a pause, with cold operands, as `infercast measure` times it;
the same between the other kernels of an engine; launches without a pause, at the clock that the power limit leaves."""
ENDS = ("seconds", "low", "high")
RESULTS = (
    *ENDS, "source", "bound",
    *(f"{condition}_{end}" for condition in (ENGINE, LASTING) for end in ENDS),
    "watts", "joules", "meter_watts",
)  # fmt: skip


def estimate(
    kernel: str | Op,
    gpu: str | Path | Gpu,
    *,
    condition: str = ALONE,
    predictor: str | Predictor = "learned",
    network: str | None = None,
    **sizes: Any,
) -> Estimate:
    """What a kernel takes on a GPU: seconds, an 80 % interval, source and bound.

    ``condition`` says of what: ``alone`` is one launch by itself after a pause, as `infercast measure` times it,
    ``engine`` the same between the other kernels of an engine, as steps and simulations count it, ``sustained``
    launches without a pause, at the clock that the board's power limit leaves. The interval is of the one asked for.

    A kernel is an operator, or named by its family and sizes as on the command line:
    ``estimate("gemm", "h200-sxm", m=4096, n=14336, k=4096)``. Sizes may be arrays, which give arrays; a million
    products take half a second. ``network`` joins nodes, for collectives of more GPUs than one has.
    """
    device = with_network(gpu if isinstance(gpu, Gpu) else _device(str(gpu)), network)
    chosen = _known_predictor(predictor) if isinstance(predictor, str) else predictor
    if not isinstance(kernel, str):
        if sizes:
            raise InputError(f"an operator has its own sizes; leave out {', '.join(sizes)}")
        return _checked(chosen, kernel, device, condition)
    if list in map(type, sizes.values()):
        sizes = {name: np.array(size) if isinstance(size, list) else size for name, size in sizes.items()}
    return _checked(chosen, build_op(kernel, sizes), device, condition)


def estimate_power(
    kernel: str | Op,
    gpu: str | Path | Gpu,
    *,
    predictor: str | Predictor = "learned",
    network: str | None = None,
    **sizes: Any,
) -> KernelPower:
    """What the board draws while one kernel runs again and again: watts, an 80 % interval, joules of a launch.

    On an H200 and a B200 also what a meter shows in a short loop, as published tables have it (``meter_watts``).

    Named as for :func:`estimate`, in the time that it estimates; one kernel, not an array of them.
    """
    found = estimate(kernel, gpu, predictor=predictor, network=network, **sizes)
    if np.size(found.seconds) != 1:
        raise InputError(f"power is of one kernel; sizes name {np.size(found.seconds)}")
    device = gpu if isinstance(gpu, Gpu) else _device(str(gpu))
    op = build_op(kernel, sizes) if isinstance(kernel, str) else kernel
    return _power(device, op, float(np.ravel(found.seconds)[0]))


# Kept, because making them takes longer than an estimate.
_known_predictor = lru_cache(make_predictor)
_device = lru_cache(load_gpu)


def estimate_kernel(
    predictor: Predictor, gpu: Gpu, family: str, values: dict[str, Any], condition: str = ALONE
) -> Estimate:
    """One kernel, named by its sizes."""
    found = _checked(predictor, build_op(family, values), gpu, condition)
    if np.ndim(found.seconds) == 0:
        return found
    # Attention over a batch is an array of one batch.
    seconds, low, high = (np.asarray(each).item() for each in (found.seconds, found.low, found.high))
    return replace(found, seconds=seconds, low=low, high=high, bound=str(np.asarray(found.bound).item()))


def power_of(gpu: Gpu, family: str, values: dict[str, Any], found: Estimate) -> KernelPower:
    """What the board draws while such a kernel runs again and again, each in the time that was estimated."""
    return _power(gpu, build_op(family, values), float(found.seconds))


def _power(gpu: Gpu, op: Op, seconds: float) -> KernelPower:
    return kernel_power(board_under(gpu), op, seconds, meter_reading(op, gpu, seconds))


def _checked(predictor: Predictor, op: Op, gpu: Gpu, condition: str) -> Estimate:
    """The estimate of an operator that the GPUs can run."""
    if condition not in CONDITIONS:
        raise UnknownNameError("condition", condition, CONDITIONS)
    gpus = getattr(op, "gpus", 1)
    if gpus > gpu.gpus_per_node and gpu.network_bandwidth <= 0:
        raise InputError(
            f"a collective of {gpus} GPUs needs a network: a node of {gpu.name} has {gpu.gpus_per_node}; name one "
            f"(--network {', '.join(networks())}) or use at most {gpu.gpus_per_node} GPUs"
        )
    if not isinstance(predictor, Learned) or not is_modelled(gpu):  # knows of no difference
        return replace(predictor.estimate(op, gpu), condition=condition)
    found = (predictor if condition == ENGINE else predictor.alone).estimate(op, gpu)
    return replace(_lasting(found, op, gpu) if condition == LASTING else found, condition=condition)


def _lasting(found: Estimate, op: Op, gpu: Gpu) -> Estimate:
    """The same at the clock that a long load leaves; what is not known of that widens the interval."""
    longer: Any = sustained(op, gpu, found.seconds)
    known = np.where(longer > 1.0, SUSTAINED_SPREAD, 0.0)
    low, high = (np.sqrt(np.log(end / found.seconds) ** 2 + known**2) for end in (found.low, found.high))
    seconds: Any = found.seconds * longer
    ends = (seconds * np.exp(-low), seconds * np.exp(high))
    if np.ndim(seconds) == 0:
        seconds, ends = float(seconds), (float(ends[0]), float(ends[1]))
    return replace(found, seconds=seconds, low=ends[0], high=ends[1])


def estimate_table(predictor: Predictor, gpu: Gpu, family: str, path: Path) -> Iterator[dict[str, Any]]:
    """Every row of a CSV file of shapes, with its estimate beside it. Sizes that differ are estimated row by row."""
    for number, row in enumerate(read_rows(path), start=2):
        values = {
            name: _value(path, number, name, text) for name, text in row.items() if name in _known(family) and text
        }
        try:
            found, *others = (estimate_kernel(predictor, gpu, family, values, each) for each in CONDITIONS)
        except InputError as problem:
            raise FileFormatError(path, str(problem), line=number) from None
        power = power_of(gpu, family, values, found)
        among = (getattr(each, end) for each in others for end in ENDS)
        latency = (found.seconds, found.low, found.high, found.source, found.bound, *among)
        results = (*latency, power.watts, power.joules, power.meter_watts)
        yield {**row, **{name: _plain(value) for name, value in zip(RESULTS, results, strict=True)}}


def _plain(value: Any) -> Any:
    """A number or a word, also where it comes as an array of one."""
    return np.ravel(value)[0].item() if isinstance(value, np.ndarray) else value


def _known(family: str) -> tuple[str, ...]:
    shape = SHAPES.get(family)
    return () if shape is None else (*shape.sizes, *shape.optional)


def _value(path: Path, line: int, name: str, text: str) -> Any:
    """A whole number, or a word for a dtype."""
    if name.endswith("dtype"):
        return text
    try:
        return int(text)
    except ValueError:
        raise FileFormatError(path, f"{name} must be a whole number, not {text!r}", line=line) from None
