"""One kernel at a time in plain floats: the price of an array of one, at a fraction of its time."""

from __future__ import annotations

from math import exp, exp2, log

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Attention, Elementwise, MoE, Op
from infercast.ops.dtypes import tensor_rate_of
from infercast.ops.op import Quantity
from infercast.predict.choice import PHYSICS_INTERVAL, PHYSICS_INTERVALS, SCHEDULED, Choice
from infercast.predict.estimate import Estimate
from infercast.predict.identity import SWEEP
from infercast.predict.physics.attention_decode import decode_one
from infercast.predict.physics.attention_kernels import Single, single_of
from infercast.predict.physics.attention_prefill import prefill_one
from infercast.predict.physics.memory_bound import memory_bound_one
from infercast.predict.physics.moe_one import moe_one
from infercast.predict.physics.terms import OnePhysics
from infercast.predict.profile import family_of


def size_of_one(op: Op) -> Single | float | None:
    """What a step decides of a kernel, where it is one kernel that can be priced here."""
    if isinstance(op, Attention):
        return single_of(op)
    if isinstance(op, MoE) and op.routing == "uniform":
        tokens = op.tokens
        return float(tokens) if isinstance(tokens, int) else float(tokens.item()) if tokens.size == 1 else None
    if isinstance(op, Elementwise):
        rows, row_bytes = op.rows, op.read_per_row + op.written_per_row
        if isinstance(row_bytes, np.ndarray) or (isinstance(rows, np.ndarray) and rows.size != 1):
            return None
        return float(rows if isinstance(rows, int) else rows.item())
    return None


def kind_of(op: Op, size: Single | float) -> tuple[object, ...]:
    """What the choice of a model depends on."""
    if isinstance(op, Attention):
        return "attention", isinstance(size, Single) and size.queries == 1.0, op.latent_kv
    if isinstance(op, MoE):
        return op.family, op.kernel, op.dtype, op.weight_dtype, op.num_local < op.experts
    return op.family, getattr(op, "kind", "")


class SinglePricer:
    """Kernels of one kind on one GPU: what all of them share is worked out once."""

    def __init__(self, op: Op, gpu: Gpu, choice: Choice | None, *, engine: bool) -> None:
        """``choice`` is the model that knows them, if there is one; ``engine``: as in an engine, not as in a table."""
        self._gpu, self._choice, self._engine = gpu, choice, engine
        self._tier, (low, high) = "physics", PHYSICS_INTERVALS.get(family_of(op), PHYSICS_INTERVAL)
        if choice is not None:
            self._tier, (low, high) = choice.tier, choice.interval
        self._low, self._high = exp(low), exp(high)

    def price(self, op: Op, size: Single | float) -> Estimate:
        """One launch."""
        physics = self._physics(op, self._gpu, size)
        seconds, terms = self._seconds(op, size, physics), physics.terms
        bound = max(terms, key=terms.__getitem__)
        return Estimate(seconds, seconds * self._low, seconds * self._high, self._tier, bound)

    def seconds(self, op: Op, size: Single | float) -> float:
        """The same without interval and reason."""
        return self._seconds(op, size, self._physics(op, self._gpu, size))

    def _seconds(self, op: Op, size: Single | float, physics: OnePhysics) -> float:
        seconds, choice = physics.seconds, self._choice
        if choice is not None:
            known, factor = physics, 1.0
            if choice.known is not None:  # a sibling answers for the same shape on itself
                known = self._physics(op, choice.known, size)
                factor = (seconds / known.seconds) ** (choice.trust - 1.0)
            seconds *= factor * exp(_residual(choice, known))
            if self._engine:
                longer, added = choice.in_engine
                seconds = seconds * longer + added
        if isinstance(op, Attention) and isinstance(size, Single):
            products = 2.0 * op.heads * (op.head_dim + op.value_dim) * size.pairs(op.window)
            return self._at_least(seconds, products, op.dtype, size.kv_bytes(op))
        if isinstance(op, MoE):
            return self._at_least(seconds, _plain(op.flops), op.dtype, _plain(op.weight_bytes))
        return seconds

    def _at_least(self, seconds: float, products: float, dtype: str, cold_bytes: float) -> float:
        """No product is faster than the tensor cores or, in an engine, than reading what is cold."""
        seconds = max(seconds, products / self._gpu.dense_flops(tensor_rate_of(dtype)))
        return max(seconds, cold_bytes / self._gpu.dram_bandwidth) if self._engine else seconds

    def _physics(self, op: Op, gpu: Gpu, size: Single | float) -> OnePhysics:
        if isinstance(size, Single):
            assert isinstance(op, Attention)
            if size.queries == 1.0:
                return decode_one(op, gpu, size, cold=self._engine)
            return prefill_one(op, gpu, size)
        if isinstance(op, MoE):
            return moe_one(op, gpu, size, cold=self._engine)
        assert isinstance(op, Elementwise)
        return memory_bound_one(op, gpu, size)


def _plain(value: Quantity) -> float:
    """A float, also of an array of one."""
    return float(value.item() if isinstance(value, np.ndarray) else value)


def _residual(choice: Choice, physics: OnePhysics) -> float:
    """log(measured / physics) as the model believes it."""
    entry = choice.entry
    learned = entry.offset + entry.shrink * choice.forest.predict_one(physics.features)
    if entry.engine != SWEEP or entry.family not in SCHEDULED:
        return learned
    return learned + log(1e-6 * exp2(physics.features[SCHEDULED[entry.family]]) / physics.seconds)
