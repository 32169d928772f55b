"""Matrix products of one format on one GPU, ready to be priced: what all of them share is worked out once."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Gemm
from infercast.ops.dtypes import tensor_rate_of
from infercast.ops.op import Quantity, Size
from infercast.predict.artifact.forest import Forest
from infercast.predict.choice import Choice
from infercast.predict.estimate import Estimate
from infercast.predict.families.gemm import GEMM
from infercast.predict.identity import SWEEP
from infercast.predict.physics.gemm import PRODUCTS, SHARES, Machine, products_of_sweep
from infercast.predict.physics.numbers import CHUNK, Doubles, Floats, Number, Singles
from infercast.predict.physics.terms import Array

MANY = 4096
"""Products from which on single precision is used."""


class GemmPricer:
    """Physics times a learned factor, never below what the hardware can do."""

    def __init__(self, op: Gemm, gpu: Gpu, choice: Choice | None, *, engine: bool) -> None:
        """``choice`` is the model that knows them, if there is one."""
        self._gpu, self._engine = gpu, engine
        self._machine = Machine(op, gpu)
        self._source, (low, high) = "physics", GEMM.interval
        self._products, logarithmic = PRODUCTS
        self._known: Machine | None = None
        self._forest: Forest | None = None
        if choice is not None:
            self._source, (low, high) = choice.tier, choice.interval
            if choice.entry.engine == SWEEP:
                self._products, logarithmic = products_of_sweep(op, gpu)
            # A sibling answers for the same shape on itself.
            self._known = None if choice.known is None else Machine(op, choice.known)
            self._forest = choice.forest.without_logarithms(logarithmic)
            self._offset, self._shrink = choice.entry.offset, choice.entry.shrink
            self._trust, (self._least, self._most) = choice.trust, choice.bounds
            self._longer, self._added = choice.in_engine
        self._low, self._high = exp(low), exp(high)
        self._per_product = 2.0 * op.batch / gpu.dense_flops(tensor_rate_of(op.dtype))
        self._per_weight = self._machine.weight_bytes / gpu.dram_bandwidth if engine else 0.0

    def price(self, op: Gemm) -> Estimate:
        """One launch of ``op``; arrays of shapes give arrays of prices."""
        m, n, k = op.m, op.n, op.k
        if not type(m) is type(n) is type(k) is int:
            if np.broadcast(m, n, k).size != 1:
                return self._price_many(m, n, k)
            m, n, k = (np.ravel(size)[0] for size in (m, n, k))
        seconds, terms = self._one(float(m), float(n), float(k))
        bound = SHARES[terms.index(max(terms))]
        return Estimate(seconds, seconds * self._low, seconds * self._high, self._source, bound)

    def _price_many(self, m: Size, n: Size, k: Size) -> Estimate:
        prices = np.empty(np.broadcast(m, n, k).size)
        bounds = np.empty(prices.size, dtype=np.uint8)
        for part, seconds, terms in self._many(m, n, k):
            prices[part] = seconds
            bounds[part] = _largest(terms, seconds)
        return Estimate(prices, prices * self._low, prices * self._high, self._source, np.array(SHARES).take(bounds))

    def seconds(self, op: Gemm) -> Quantity:
        """The same without interval and reason."""
        m, n, k = op.m, op.n, op.k
        if type(m) is type(n) is type(k) is int or np.broadcast(m, n, k).ndim == 0:
            return self._one(float(m), float(n), float(k))[0]
        prices = np.empty(np.broadcast(m, n, k).size)
        for part, seconds, _ in self._many(m, n, k):
            prices[part] = seconds
        return prices

    def _one(self, m: float, n: float, k: float) -> tuple[float, tuple[float, ...]]:
        """Seconds of one product, and their terms before what was learned."""
        own = self._known is None
        (seconds, terms), values = self._products(m, n, k, self._machine, Floats, engine=self._engine, featured=own)
        if self._forest is not None:
            if self._known is not None:
                (known, _), values = self._products(m, n, k, self._known, Floats, engine=self._engine)
                seconds = known * min(max((seconds / known) ** self._trust, self._least), self._most)
            seconds *= self._longer * exp(self._offset + self._shrink * self._forest.predict_one(values))
            seconds += self._added
        return max(seconds, m * n * k * self._per_product, n * k * self._per_weight), terms

    def _many(self, m: Size, n: Size, k: Size) -> Iterator[tuple[slice, Array, tuple[Number, ...]]]:
        """Which products, their seconds, their terms: all at once, or chunk by chunk where they are many."""
        size = np.broadcast(m, n, k).size
        x, step = (Doubles, max(size, 1)) if size < MANY else (Singles, CHUNK)
        sizes: list[Array] = [np.broadcast_to(np.asarray(each).astype(x.dtype), size) for each in (m, n, k)]
        with np.errstate(over="ignore", under="ignore"):
            for start in range(0, size, step):
                part = slice(start, start + step)
                m, n, k = (np.ascontiguousarray(each[part]) for each in sizes)
                yield part, *self._chunk(m, n, k, x)

    def _chunk(self, m: Array, n: Array, k: Array, x: type[Doubles]) -> tuple[Array, tuple[Number, ...]]:
        machine, known = self._machine, self._known
        if x is Singles:
            machine, known = machine.singles, None if known is None else known.singles
        (seconds, terms), values = self._products(m, n, k, machine, x, engine=self._engine)
        if self._forest is not None:
            if known is not None:
                (elsewhere, _), values = self._products(m, n, k, known, x, engine=self._engine)
                seconds = elsewhere * np.clip((seconds / elsewhere) ** self._trust, self._least, self._most)
            residual = self._forest.predict_columns(values, m.size)
            residual *= self._shrink
            residual += self._offset
            seconds = seconds * np.exp(residual) * self._longer + self._added
        weights = n * k
        np.maximum(seconds, weights * m * self._per_product, out=seconds)
        return np.maximum(seconds, weights * self._per_weight, out=seconds), terms


def _largest(terms: tuple[Number, ...], like: Array) -> Array:
    """Which of the terms is the largest in each product; the first of equal ones."""
    largest, which = np.full_like(like, -np.inf), np.zeros(like.size, dtype=np.uint8)
    for number, term in enumerate(terms):
        is_larger = (term > largest).view(np.uint8)
        np.maximum(which, is_larger * np.uint8(number), out=which)  # numbers rise, so the last larger one stays
        np.maximum(largest, term, out=largest)
    return which
