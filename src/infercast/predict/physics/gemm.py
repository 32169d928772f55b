"""Dense matrix products: the best of a few tiles and split-K factors, each bound by the slowest of four pipes.

A candidate cuts ``y`` into tiles and hands them to the SMs in rounds. Its time is a soft maximum of what the busiest SM
multiplies, the operands re-read through L2, the latency of the loop over ``k`` and the DRAM traffic, plus storing the
last tiles, adding up split-K partial sums and one launch.

One formula serves one product as plain floats and many as arrays: see ``numbers.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from infercast.hardware import Gpu
from infercast.ops.gemm import Gemm
from infercast.predict.physics import cutlass_fp8
from infercast.predict.physics.cutlass_fp8 import fp8_products, is_known
from infercast.predict.physics.gemm_features import FEATURES, LOGARITHMIC, SHARES, columns, matrix
from infercast.predict.physics.gemm_machine import CHUNK, Machine
from infercast.predict.physics.gemm_plan import Plan, Shapes, Traffic, choose_many, choose_one, plan_of
from infercast.predict.physics.numbers import Doubles, Floats, Kit, Number
from infercast.predict.physics.terms import Array, Physics

__all__ = [
    "FEATURES",
    "PRODUCTS",
    "SHARES",
    "Machine",
    "Products",
    "products_of_sweep",
    "sizes_of",
    "swept_products",
    "time_products",
]

QUANTISE = SHARES.index("quantise")


Timed = tuple[Number, tuple[Number, ...]]
"""Seconds of products in a table or in an engine, and their terms as in ``SHARES``."""
Compute = Callable[..., tuple[Timed, list[Number]]]
"""A function like `time_products`."""
Sizes = tuple[Array, Array, Array]


def time_products(
    m: Number, n: Number, k: Number, a: Machine, x: Kit, *, engine: bool, featured: bool = True
) -> tuple[Timed, list[Number]]:
    """The time of products, and their features in their own units.

    A table repeats a kernel over a few weight matrices and times the quantising of its input with it. An ``engine``
    finds weights cold and quantises by a kernel of its own; its features are a table's, which is what learners know.
    A single product that is not ``featured`` has none, which saves a third of its time.
    """
    s = Shapes(m, n, k, a, x)
    if issubclass(x, Floats):
        plan, cold_plan = choose_one(s, a)
        if engine and not featured:
            return _finish(s, a, x, cold_plan, s.cold, quantise=False), []
        tabled = _finish(s, a, x, plan, s.warm, quantise=a.scaled)
        timed = _finish(s, a, x, cold_plan, s.cold, quantise=False) if engine else tabled
        return timed, columns(s, a, x, *tabled, plan)
    which, cold_which = choose_many(s, a, x)
    plan = plan_of(s, a, x, which)
    tabled = _finish(s, a, x, plan, s.warm, quantise=a.scaled)
    values = columns(s, a, x, *tabled, plan)
    if not engine:
        return tabled, values
    timed = _finish(s, a, x, plan, s.cold, quantise=False)
    others = np.flatnonzero(which != cold_which)
    if others.size:  # few products are cut in another way when cold
        part = s.part(others)
        again = _finish(part, a, x, plan_of(part, a, x, cold_which[others]), part.cold, quantise=False)
        timed[0][others] = again[0]
        for term, value in zip(timed[1][:QUANTISE], again[1], strict=False):
            term[others] = value
    return timed, values


PRODUCTS: tuple[Compute, tuple[bool, ...]] = time_products, LOGARITHMIC


def _finish(s: Shapes, a: Machine, x: Kit, plan: Plan, traffic: Traffic, *, quantise: bool) -> Timed:
    """The chosen candidate with a soft maximum; ``quantise`` adds the kernel that quantises ``x``."""
    miss, moving = traffic
    _, _, _, (tensor, l2, latency, longer, store), reduce = plan
    dram = moving * longer
    launch = miss * a.cold_start + a.launch  # waiting for the first cold bytes is part of starting
    seconds = x.soft_max(a.constants.power, tensor, l2, latency, dram)
    seconds += store
    seconds += reduce
    seconds += launch
    quantising: Number = 0.0
    if quantise:
        each = a.quantise_row
        if a.quantise_chunk:
            each = x.ceil(s.k * (1.0 / CHUNK)) * a.quantise_chunk + a.quantise_row
        quantising = x.larger(s.m * s.k * a.quantise_value, s.m * each) + a.quantise
        seconds += quantising
    return seconds, (tensor, l2, latency, dram, store, reduce, launch, quantising)


class Products:
    """Products of one format on one GPU, as arrays."""

    def __init__(self, op: Gemm, gpu: Gpu, by: tuple[Compute, tuple[bool, ...]] = PRODUCTS) -> None:
        self.gpu, self._machine, (self._compute, self._logarithmic) = gpu, Machine(op, gpu), by

    def physics(self, size: Sizes, *, engine: bool = False) -> Physics:
        """Of ``sizes_of`` an operator."""
        m, n, k = size
        (seconds, terms), values = self._compute(m, n, k, self._machine, Doubles, engine=engine)
        named = {name: np.broadcast_to(term, m.shape) for name, term in zip(SHARES, terms, strict=True)}
        return Physics(seconds, named, matrix(values, m.size, self._logarithmic))


def swept_products(op: Gemm, gpu: Gpu) -> Products:
    """The same by the kernels that a sweep would have measured."""
    return Products(op, gpu, products_of_sweep(op, gpu))


def sizes_of(op: Gemm) -> Sizes:
    """Rows, columns and depths side by side."""
    m, n, k = np.broadcast_arrays(*(np.atleast_1d(np.asarray(size, dtype=np.float64)) for size in (op.m, op.n, op.k)))
    return m, n, k


def products_of_sweep(op: Gemm, gpu: Gpu) -> tuple[Compute, tuple[bool, ...]]:
    """What times products of a sweep, and which of its features are logarithms to a learner."""
    return (fp8_products, cutlass_fp8.LOGARITHMIC) if is_known(op, gpu) else PRODUCTS
