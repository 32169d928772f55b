"""Matrix products of one format on one GPU: asked for by the million, so that many are taken in single precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.op import Size
from infercast.predict.choice import Choice
from infercast.predict.estimate import Estimate
from infercast.predict.families.family import Family
from infercast.predict.identity import SWEEP
from infercast.predict.kernels import Kernels
from infercast.predict.physics.gemm import PRODUCTS, SHARES, Machine, products_of_sweep
from infercast.predict.physics.numbers import CHUNK, Doubles, Floats, Number, Singles
from infercast.predict.physics.terms import Array

MANY = 4096
"""Products from which on single precision is used."""


class Products(Kernels):
    """As other kernels, but features are never put side by side, and chunks of them stay in the processor's cache."""

    def __init__(self, family: Family, op: Any, gpu: Gpu, choice: Choice | None, **conditions: Any) -> None:
        super().__init__(family, op, gpu, choice, **conditions)
        if choice is not None and family.timed_by is not None:
            op = family.timed_by(op, choice.entry.engine)
        self._machine = Machine(op, gpu)
        self._products, logarithmic = PRODUCTS
        self._known_machine = None if self._known is None else Machine(op, self._known)
        if choice is not None:
            if choice.entry.engine == SWEEP:
                self._products, logarithmic = products_of_sweep(op, gpu)
            self._forest = choice.forest.without_logarithms(logarithmic)

    def estimate(self, op: Op, size: tuple[Size, Size, Size]) -> Estimate:
        """One launch of each; ``size`` is m, n and k."""
        if not _are_numbers(*size):
            if np.broadcast(*size).size != 1:
                return self._estimate_many(op, *size)
            size = tuple(np.ravel(each)[0] for each in size)
        seconds, terms = self._one(op, *map(float, size))
        bound = SHARES[terms.index(max(terms))]
        return Estimate(seconds, seconds * self._low, seconds * self._high, self._source, bound)

    def _estimate_many(self, op: Op, m: Size, n: Size, k: Size) -> Estimate:
        times = np.empty(np.broadcast(m, n, k).size)
        bounds = np.empty(times.size, dtype=np.uint8)
        for part, seconds, terms in self._many(op, m, n, k):
            times[part] = seconds
            bounds[part] = _largest(terms, seconds)
        return Estimate(times, times * self._low, times * self._high, self._source, np.array(SHARES).take(bounds))

    def seconds(self, op: Op, size: tuple[Size, Size, Size]) -> Number:
        """The same without interval and reason."""
        if _are_numbers(*size) or np.broadcast(*size).ndim == 0:
            return self._one(op, *map(float, size))[0]
        times = np.empty(np.broadcast(*size).size)
        for part, seconds, _ in self._many(op, *size):
            times[part] = seconds
        return times

    def _one(self, op: Op, m: float, n: float, k: float) -> tuple[float, tuple[float, ...]]:
        """Seconds of one product, and their terms before what was learned."""
        own, elsewhere = self._known is None, None
        (seconds, terms), values = self._products(m, n, k, self._machine, Floats, engine=self._engine, featured=own)
        if self._forest is not None:
            if not own:
                (elsewhere, _), values = self._products(m, n, k, self._known_machine, Floats, engine=self._engine)
            residual = self._offset + self._shrink * self._forest.predict_one(values)
            seconds = self._combined(seconds, elsewhere, residual)
        return self._at_least(op, (m, n, k), seconds), terms

    def _many(self, op: Op, m: Size, n: Size, k: Size) -> Iterator[tuple[slice, Array, tuple[Number, ...]]]:
        """Which products, their seconds, their terms: all at once, or chunk by chunk where they are many."""
        size = np.broadcast(m, n, k).size
        x, step = (Doubles, max(size, 1)) if size < MANY else (Singles, CHUNK)
        sizes: list[Array] = [np.broadcast_to(np.asarray(each).astype(x.dtype), size) for each in (m, n, k)]
        with np.errstate(over="ignore", under="ignore"):
            for start in range(0, size, step):
                part = slice(start, start + step)
                m, n, k = (np.ascontiguousarray(each[part]) for each in sizes)
                yield part, *self._chunk(op, m, n, k, x)

    def _chunk(self, op: Op, m: Array, n: Array, k: Array, x: type[Doubles]) -> tuple[Array, tuple[Number, ...]]:
        machine, known, elsewhere = self._machine, self._known_machine, None
        if x is Singles:
            machine, known = machine.singles, None if known is None else known.singles
        (seconds, terms), values = self._products(m, n, k, machine, x, engine=self._engine)
        if self._forest is not None:
            if known is not None:
                (elsewhere, _), values = self._products(m, n, k, known, x, engine=self._engine)
            residual = self._forest.predict_columns(values, m.size, x.dtype)
            residual *= self._shrink
            residual += self._offset
            seconds = self._combined(seconds, elsewhere, residual)
        return self._at_least(op, (m, n, k), seconds), terms


def _largest(terms: tuple[Number, ...], like: Array) -> Array:
    """Which of the terms is the largest in each product; the first of equal ones."""
    largest, which = np.full_like(like, -np.inf), np.zeros(like.size, dtype=np.uint8)
    for number, term in enumerate(terms):
        is_larger = (term > largest).view(np.uint8)
        np.maximum(which, is_larger * np.uint8(number), out=which)  # numbers rise, so the last larger one stays
        np.maximum(largest, term, out=largest)
    return which


def _are_numbers(m: Size, n: Size, k: Size) -> bool:
    return type(m) is type(n) is type(k) is int
