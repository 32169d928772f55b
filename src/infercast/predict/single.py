"""One kernel at a time in plain floats: the price of an array of one, at a fraction of its time."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, exp2, log
from typing import Any, TypeVar

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.pcie import is_left_open, servers
from infercast.ops import Attention, Collective, Elementwise, MoE, Op
from infercast.ops.dtypes import tensor_rate_of
from infercast.ops.op import Quantity, Size
from infercast.predict.choice import Choice
from infercast.predict.estimate import Estimate
from infercast.predict.families import family_of
from infercast.predict.identity import SWEEP
from infercast.predict.physics.attention_decode import DecodeLayout, decode_one
from infercast.predict.physics.attention_kernels import Single, single_of
from infercast.predict.physics.attention_prefill import PrefillLayout, prefill_one
from infercast.predict.physics.collective import collective_one
from infercast.predict.physics.memory_bound import memory_bound_one
from infercast.predict.physics.moe_one import Layer, moe_one
from infercast.predict.physics.terms import OnePhysics

Shared = TypeVar("Shared")


def size_of_one(op: Op) -> Single | float | None:
    """What a step decides of a kernel, where it is one kernel that can be priced here."""
    if isinstance(op, Attention):
        return single_of(op)
    if isinstance(op, MoE):
        return _lone(op.tokens) if op.routing == "uniform" else None
    if isinstance(op, Collective):
        return _lone(op.message_bytes)
    if isinstance(op, Elementwise):
        return None if isinstance(op.read_per_row + op.written_per_row, np.ndarray) else _lone(op.rows)
    return None


def _lone(size: Size) -> float | None:
    """A size that is one number, also in an array of one."""
    if isinstance(size, np.ndarray):
        return float(size.item()) if size.size == 1 else None
    return float(size)


def kind_of(op: Op, size: Single | float) -> tuple[object, ...]:
    """What the choice of a model depends on."""
    if isinstance(op, Attention):
        return "attention", isinstance(size, Single) and size.queries == 1.0, op.latent_kv
    if isinstance(op, MoE):
        return op.family, op.kernel, op.dtype, op.weight_dtype, op.num_local < op.experts
    if isinstance(op, Collective):
        return op.family, op.kind, op.gpus
    return op.family, getattr(op, "kind", "")


class SinglePricer:
    """Kernels of one kind on one GPU: what all of them share is worked out once."""

    def __init__(self, op: Op, gpu: Gpu, choice: Choice | None, *, engine: bool) -> None:
        """``choice`` is the model that knows them, if there is one; ``engine``: as in an engine, not as in a table."""
        self._gpu, self._choice, self._engine = gpu, choice, engine
        self._tier, (low, high) = "physics", family_of(op).interval
        self._longer, self._added, self._scheduled = 1.0, 0.0, -1
        if choice is not None:
            self._tier, (low, high) = choice.tier, choice.interval
            if engine:
                self._longer, self._added = choice.in_engine
            if choice.entry.engine == SWEEP:
                scheduled = family_of(op).scheduled
                self._scheduled = -1 if scheduled is None else scheduled
        self._low, self._high = exp(low), exp(high)
        self._last: dict[int, tuple[tuple[object, ...], Any]] = {}

    def price(self, op: Op, size: Single | float) -> Estimate:
        """One launch."""
        physics = self._physics(op, self._gpu, size)
        seconds, terms = self._seconds(op, size, physics), physics.terms
        bound = max(terms, key=terms.__getitem__)
        low, high = self._low, self._high
        if isinstance(op, Collective) and is_left_open(self._gpu, op.gpus):
            ratios = [self._physics(op, server, size).seconds / physics.seconds for server in servers(self._gpu)]
            low, high = min(low, *ratios), max(high, *ratios)
        return Estimate(seconds, seconds * low, seconds * high, self._tier, bound)

    def seconds(self, op: Op, size: Single | float) -> float:
        """The same without interval and reason."""
        return self._seconds(op, size, self._physics(op, self._gpu, size))

    def _seconds(self, op: Op, size: Single | float, physics: OnePhysics) -> float:
        seconds, choice = physics.seconds, self._choice
        if choice is not None:
            known, factor = physics, 1.0
            if choice.known is not None:  # a sibling answers for the same shape on itself
                known = self._physics(op, choice.known, size)
                least, most = choice.bounds
                factor = min(max((seconds / known.seconds) ** choice.trust, least), most) * known.seconds / seconds
            seconds = seconds * (factor * exp(self._residual(choice, known))) * self._longer + self._added
        if isinstance(op, Attention) and isinstance(size, Single):
            products = 2.0 * op.heads * (op.head_dim + op.value_dim) * size.pairs(op.window)
            return self._at_least(seconds, products, op.dtype, size.kv_bytes(op))
        if isinstance(op, MoE):
            return self._at_least(seconds, _plain(op.flops), op.dtype, _plain(op.weight_bytes))
        return seconds

    def _residual(self, choice: Choice, physics: OnePhysics) -> float:
        """log(measured / physics) as the model believes it."""
        learned = choice.entry.offset + choice.entry.shrink * choice.forest.predict_one(physics.features)
        if self._scheduled < 0:
            return learned
        return learned + log(1e-6 * exp2(physics.features[self._scheduled]) / physics.seconds)

    def _at_least(self, seconds: float, products: float, dtype: str, cold_bytes: float) -> float:
        """No product is faster than the tensor cores or, in an engine, than reading what is cold."""
        seconds = max(seconds, products / self._gpu.dense_flops(tensor_rate_of(dtype)))
        return max(seconds, cold_bytes / self._gpu.dram_bandwidth) if self._engine else seconds

    def _physics(self, op: Op, gpu: Gpu, size: Single | float) -> OnePhysics:
        if isinstance(size, Single):
            assert isinstance(op, Attention)
            sizes = op.heads, op.kv_heads, op.head_dim, op.value_dim, op.window, op.dtype, op.kv_dtype
            if size.queries == 1.0:
                return decode_one(self._shared(DecodeLayout, op, gpu, sizes), size, cold=self._engine)
            return prefill_one(self._shared(PrefillLayout, op, gpu, sizes), size)
        if isinstance(op, MoE):
            layer = op.hidden, op.inter, op.experts, op.topk, op.num_local, op.matrices
            return moe_one(self._shared(Layer, op, gpu, layer), size, cold=self._engine)
        if isinstance(op, Collective):
            return collective_one(op, gpu, size, engine=self._engine)
        assert isinstance(op, Elementwise)
        return memory_bound_one(op, gpu, size)

    def _shared(self, make: Callable[[Any, Gpu], Shared], op: Op, gpu: Gpu, sizes: tuple[object, ...]) -> Shared:
        """What kernels of the last one's sizes share: those who price one by one mostly change what a step decides."""
        known = self._last.get(id(gpu))
        if known is None or known[0] != sizes:
            known = self._last[id(gpu)] = sizes, make(op, gpu)
        shared: Shared = known[1]
        return shared


def _plain(value: Quantity) -> float:
    """A float, also of an array of one."""
    return float(value.item() if isinstance(value, np.ndarray) else value)
