"""One kernel at a time in plain floats: the price of an array of one, at a fraction of its time."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, exp2, log
from operator import attrgetter
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.pcie import is_left_open, servers
from infercast.ops import Attention, Collective, Elementwise, MoE, Op
from infercast.ops.dtypes import bytes_of, tensor_rate_of
from infercast.ops.op import Quantity, Size
from infercast.predict.choice import PHYSICS_INTERVAL, PHYSICS_INTERVALS, SCHEDULED, Choice
from infercast.predict.estimate import Estimate
from infercast.predict.identity import SWEEP
from infercast.predict.physics.attention_batch import Single, keys_in_reach, pairs_of, single_of
from infercast.predict.physics.cores import CORES, Core
from infercast.predict.physics.terms import Physics
from infercast.predict.profile import family_of

# What a core is made for, beside its GPU.
KEYS: dict[type, Callable[[Any], object]] = {
    Attention: attrgetter("heads", "kv_heads", "head_dim", "value_dim", "window", "dtype", "kv_dtype"),
    MoE: attrgetter("hidden", "inter", "experts", "topk", "num_local", "matrices"),
    Collective: attrgetter("kind", "gpus", "library"),
    Elementwise: attrgetter("family", "kind", "read_per_row", "written_per_row", "shared_read", "reduced"),
}


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
        self._tier, (low, high) = "physics", PHYSICS_INTERVALS.get(family_of(op), PHYSICS_INTERVAL)
        self._longer, self._added, self._scheduled = 1.0, 0.0, -1
        if choice is not None:
            self._tier, (low, high) = choice.tier, choice.interval
            if engine:
                self._longer, self._added = choice.in_engine
            if choice.entry.engine == SWEEP:
                self._scheduled = SCHEDULED.get(choice.entry.family, -1)
        self._low, self._high = exp(low), exp(high)
        self._family, self._key = family_of(op), KEYS[type(op)]
        self._cores: dict[str, tuple[object, Core | None]] = {}

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

    def _seconds(self, op: Op, size: Single | float, physics: Physics) -> float:
        seconds: float = physics.seconds
        choice = self._choice
        if choice is not None:
            known, factor = physics, 1.0
            if choice.known is not None:  # a sibling answers for the same shape on itself
                known = self._physics(op, choice.known, size)
                least, most = choice.bounds
                factor = min(max((seconds / known.seconds) ** choice.trust, least), most) * known.seconds / seconds
            seconds = seconds * (factor * exp(self._residual(choice, known))) * self._longer + self._added
        if isinstance(op, Attention) and isinstance(size, Single):
            products = 2.0 * op.heads * (op.head_dim + op.value_dim) * pairs_of(size, op.window)
            width = op.head_dim if op.latent_kv else op.head_dim + op.value_dim
            kv_bytes = bytes_of(op.kv_dtype) * op.kv_heads * width * keys_in_reach(size, op.window)
            return self._at_least(seconds, products, op.dtype, kv_bytes)
        if isinstance(op, MoE):
            return self._at_least(seconds, _plain(op.flops), op.dtype, _plain(op.weight_bytes))
        return seconds

    def _residual(self, choice: Choice, physics: Physics) -> float:
        """log(measured / physics) as the model believes it."""
        learned = choice.entry.offset + choice.entry.shrink * choice.forest.predict_one(physics.features)
        if self._scheduled < 0:
            return learned
        return learned + log(1e-6 * exp2(physics.features[self._scheduled]) / physics.seconds)

    def _at_least(self, seconds: float, products: float, dtype: str, cold_bytes: float) -> float:
        """No product is faster than the tensor cores or, in an engine, than reading what is cold."""
        seconds = max(seconds, products / self._gpu.dense_flops(tensor_rate_of(dtype)))
        return max(seconds, cold_bytes / self._gpu.dram_bandwidth) if self._engine else seconds

    def _physics(self, op: Op, gpu: Gpu, size: Single | float) -> Physics:
        """Those who ask for one kernel after the other mostly change what a step decides: the last core is kept."""
        key = self._key(op)
        known, core = self._cores.get(gpu.name, (None, None))
        if core is None or core.gpu is not gpu or known != key:
            core = CORES[self._family](op, gpu)
            self._cores[gpu.name] = key, core
        return core.physics(size, engine=self._engine)


def _plain(value: Quantity) -> float:
    """A float, also of an array of one."""
    return float(value.item() if isinstance(value, np.ndarray) else value)
