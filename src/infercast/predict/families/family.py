"""The record of a kernel family, and what several families share: waves, memory time and hard limits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from infercast.bundled import DATA
from infercast.hardware import Gpu
from infercast.lazy_classes import dataclass, field
from infercast.ops import Op
from infercast.ops.op import Quantity, Size, tensor_rate_of
from infercast.predict.array_api import Physics
from infercast.predict.identity import SWEEP, KernelProfile

Array = npt.NDArray[Any]
Pipes = dict[str, Quantity]  # Seconds by pipe


class Constants(SimpleNamespace):
    """What was fitted of one kernel or library, by the names that data/physics.json explains."""


@cache
def _fitted() -> dict[str, Any]:
    fitted: dict[str, Any] = json.loads(DATA.joinpath("physics.json").read_bytes())
    return fitted


def constants(table: str) -> dict[str, Constants]:
    """A table of data/physics.json by its kernels, which have a row or a column each."""
    _, (kind, names), *rows = _fitted()[table].items()
    if kind == "kernels":
        columns = zip(*(values for _, (_, *values) in rows), strict=True)
        fields, rows = [field for field, _ in rows], [*zip(names, columns, strict=True)]
    else:
        fields = [*names]
    return {kernel: Constants(**dict(zip(fields, values, strict=True))) for kernel, values in rows}


def stated_interval(family: str, variant: str, architecture: str) -> tuple[float, float] | None:
    """Logarithms of the 80 % interval where physics has constants of these kernels on this architecture, else None.
    They were fitted to a measured chip of it, so that nothing that other architectures' kernels teach comes on top.
    """
    found = _fitted()["stated"].get(architecture, {}).get(family, {}).get(variant)
    return None if found is None else (-found, found)


def has_constants(family: str, architecture: str) -> bool:
    """Whether physics has constants of kernels of this family on this architecture, of some if not of all."""
    return bool(_fitted()["stated"].get(architecture, {}).get(family))


def feature_names(name: str) -> tuple[str, ...]:
    return tuple(_fitted()["features"][name])


def quantised_waves(blocks: Quantity, sms: int) -> Quantity:
    """``u`` >= 1: how much longer whole rounds take than an even spread; what does not fill one round is cut finer."""
    if np.ndim(blocks) == 0:
        return math.ceil(blocks / sms) * sms / float(blocks) if blocks > sms else 1.0
    rounds = np.ceil(blocks / sms)
    result: Quantity = np.where(rounds > 1, rounds * sms / np.maximum(blocks, 1), 1.0)
    return result


def dram_seconds(op: Op, gpu: Gpu) -> Quantity:
    """Every distinct byte moved once at full bandwidth."""
    seconds: Quantity = (op.bytes_read + op.bytes_written) / gpu.dram_bandwidth
    return seconds


def tensor_and_dram(op: Op, gpu: Gpu) -> Pipes:
    """Pipes of products: the tensor cores at their peak, and every byte once."""
    return {"tensor": op.flops / gpu.dense_flops(tensor_rate_of(op.compute_dtype)), "dram": dram_seconds(op, gpu)}


def fma_and_dram(op: Op, gpu: Gpu) -> Pipes:
    """Pipes of kernels that hardly compute."""
    return {"fma": op.flops / gpu.fma_flops, "dram": dram_seconds(op, gpu)}


def product_limits(op: Op, gpu: Gpu, least_bytes: Quantity) -> dict[str, Array]:
    """Of a product: what must move, and the tensor cores at their peak."""
    tensor = np.ravel(op.flops) / gpu.dense_flops(tensor_rate_of(op.compute_dtype))
    return {"dram": np.ravel(least_bytes) / gpu.dram_bandwidth, "tensor": tensor}


def floats(size: Size) -> Array:
    return np.atleast_1d(np.asarray(size, dtype=np.float64))


def all_floats(*sizes: Size) -> tuple[Array, ...]:
    return tuple(np.broadcast_arrays(*map(floats, sizes)))


def all_lone(*sizes: Size) -> tuple[float | None, ...] | None:
    """Several of one kernel, where each of them is one number."""
    found = tuple(map(lone, sizes))
    return None if None in found else found


def lone(size: Size) -> float | None:
    """A size that is one number, also in an array of one."""
    if isinstance(size, np.ndarray):
        return float(size.item()) if size.size == 1 else None
    return float(size)


Values = Mapping[str, Any]


def wholes(values: Values, *names: str) -> dict[str, Any]:
    """Those of an operator's fields that are whole numbers."""
    return {name: int(values[name]) for name in names}


class Core(Protocol):
    """Physics of kernels of one kind on one GPU: what all of them share is worked out once. A table repeats one kernel,
    so what fits in L2 stays there; an engine comes back after all other layers, quantises in a kernel of its own, and
    its GPUs come to a collective one after the other. Features are always those of a table.
    """

    gpu: Gpu

    def physics(self, size: Any, *, engine: bool = False) -> Physics:
        """One kernel in plain floats or many as arrays, in an ``engine`` or in a table."""


@dataclass(frozen=True, slots=True)
class Shape:
    sizes: tuple[str, ...]  # Whole numbers that must be given
    optional: dict[str, Any]  # Others, with what they are if not given
    build: Callable[[Values], Op]
    layout: tuple[str, ...] = ()  # Names of those that say which kernel it is
    size: Callable[[Values], Any] = lambda _: None
    """What a step decides of one kernel, from the others: as `Family.size_of_one` has it; None: it is another one's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ceiling:
    features: tuple[str, ...] = ()  # On top of those of all families
    shape: Callable[[Any, Gpu], list[Any]] = lambda *_: []  # The values of those features
    variant: Callable[[Any], str] = lambda _: ""  # Kernels that are learned apart: by format
    is_known: Callable[[Any], bool] = lambda _: True  # Whether kernels like this one were measured anywhere
    read_again: Callable[[Any], Quantity] | None = None
    """Bytes that a table's launches go round; None: all that one moves."""
    beside: Callable[[Any], Quantity | None] = lambda _: None
    """Bytes that another kernel moves, where published tables time it with this one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """Kernels that are learned under one name; what has a default need not be said."""

    name: str
    op: type
    accepts: Callable[[Any], bool] = lambda _: True
    """Whether it is this one by the sizes of an operator, where those of one class are of several families."""
    shapes: Mapping[str, Shape] = field(default_factory=dict)  # Kernels that people can ask for by name
    step_sizes: tuple[str, ...]
    """Fields of the operator that a step decides; the others are the model's and say which kernel it is."""
    split: Callable[[Any], tuple[Op, Op | None]] = lambda op: (op, None)
    """A launch of two parts that were learned separately, prompts and decoding sequences."""

    sizes: Callable[[Any], Any]  # What a step decides of kernels, as arrays ...
    size_of_one: Callable[[Any], Any] = lambda _: None
    """... or as plain floats, where it is one kernel that can be estimated in them; None where not."""
    kind: Callable[[Any], tuple[object, ...]]  # What the choice of a model depends on
    core: Callable[[Any, Gpu], Core]
    swept_core: Callable[[Any, Gpu], Core] | None = None  # Physics, and what takes its place for models of a sweep
    named: Callable[[Any, str], Any] | None = None
    """An operator with the kernel of a variant named, where its physics depends on which kernel that is."""
    timed_by: Callable[[Any, str], Any] | None = None
    """An operator as an engine's tables time it, where they differ in what they time with it."""
    core_key: Callable[[Any], object] = lambda _: None  # Key of a core on a GPU; None: it is not worth keeping
    features: Mapping[str, tuple[str, ...]]  # Sets of features by name; the family's own set has its name
    shares: tuple[str, ...] = ()  # Pipes with their share of the time among the features (``tensor_share`` and so on)
    scheduled: int | None = None
    """The feature that holds what the kernel's own schedule takes, which models of a sweep are a factor of."""

    pipes: Callable[[Any, Gpu], Pipes]
    """Seconds each pipe is busy if nothing else holds it up, with whole rounds of thread blocks."""
    limits: Callable[[Any, Gpu], dict[str, Array]] | None = None
    """Seconds that each pipe needs at least, whatever the implementation; None: as long as it is busy."""
    moved: Callable[[Any], Quantity] = lambda op: op.bytes_read + op.bytes_written
    bandwidth: Callable[[Any, Gpu], float] = lambda _, gpu: gpu.dram_bandwidth
    """What it moves where it does not compute, and how fast that can be."""
    work: Callable[[Any, Any], tuple[Quantity, Quantity]] | None = None
    """Of an operator and its sizes, FLOP of the tensor cores and bytes that an engine always reads from memory; None:
    no product, so that nothing bounds it."""
    throttled: tuple[str, ...] = ()  # What operators are called that lose by a power limit

    variants: Callable[[Any, Gpu, KernelProfile], tuple[str, ...]]
    """What splits it into separately learned kernels (format and library), first choice first."""
    table: Callable[[Any, Gpu, KernelProfile], str] | None = None
    """The key of an engine's profile that lists the tables to use, if not the family's name."""
    is_measured: Callable[[Any, Gpu], bool] = lambda *_: True  # Whether kernels like this one can be in a table at all
    is_swept: Callable[[Any], bool] = lambda _: True  # Whether our own sweep can stand for a shape like this one
    is_beyond: Callable[[Any], bool] = lambda _: False  # Whether no sweep has shapes like it: the interval is wider

    interval: tuple[float, float] = (-0.3, 0.4)
    """Logarithms of the 80 % interval where nothing was learned: what physics alone misses on families with data."""
    trust: Mapping[str, float] = field(default_factory=dict)
    """By variant (empty: all others), the exponent of the ratio of physics between siblings of one die in published
    tables. Between chips that multiply at different rates it holds in full, and so it does in a sweep, which has its
    operands as an engine has them."""
    between_kernels: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By variant (empty: all others), factor and seconds that a kernel of a sweep takes longer between other kernels of
    an engine, which leave its instructions and descriptors cold. Read off profiles of four models on an H200."""
    waits_in_engine: bool = False
    """Whether what ``engine`` adds to its physics is waiting for others, so that a kernel alone is as in a table."""
    is_chip_bound: bool = True  # Whether what a chip has bounds how much longer than on a sibling it can take
    servers: Callable[[Any, Gpu], list[Gpu]] = lambda *_: []
    """The same GPU in all servers it may be in, where that matters and is unknown."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """By what operators are called: 90th percentile of measured / roofline latency."""
    typical: Callable[[Any], tuple[str, ...]] = lambda op: (op.family,)
    """Rows of typical.toml with its efficiency on GPUs that were not measured, first choice first."""
    ceiling: Ceiling

    def tables(self, op: Op, gpu: Gpu, profile: KernelProfile) -> tuple[str, ...]:
        """Names of the measured tables that a profile lists for an operator, first choice first."""
        named = self.name if self.table is None else self.table(op, gpu, profile)
        tables = profile.tables.get(named, profile.tables.get(self.name, ()))
        return tables if self.is_swept(op) else tuple(table for table in tables if table != SWEEP)

    def physics(self, op: Op, gpu: Gpu, *, engine: bool = False, swept: bool = False) -> Physics:
        """Kernels as in a table or as in an ``engine``; ``swept``: for models of a sweep, which is as in an engine."""
        make = self.swept_core if swept and self.swept_core is not None else self.core
        return make(op, gpu).physics(self.sizes(op), engine=engine or swept)
