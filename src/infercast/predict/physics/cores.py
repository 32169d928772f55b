"""The physics core of each kernel family, under the conditions of a table or of an engine.

Tables and engines differ in what is warm: a table repeats one kernel, so what fits in L2 stays there, while an engine
comes back to a layer's weights and keys only after all other layers. Tables time a quantised product together with the
quantising of its input, which an engine launches as a kernel of its own. And the GPUs of an engine come to a collective
one after the other. Features are always those of a table, which is what learners know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Attention, Collective, Gemm, MoE, Op
from infercast.predict.physics.attention_batch import batch_of
from infercast.predict.physics.attention_decode import Decode
from infercast.predict.physics.attention_prefill import Prefill
from infercast.predict.physics.collective import Exchange
from infercast.predict.physics.gemm import engine_gemm, sweep_gemm, table_gemm
from infercast.predict.physics.memory_bound import MemoryBound
from infercast.predict.physics.moe import Experts
from infercast.predict.physics.terms import Physics


class Core(Protocol):
    """Kernels of one kind on one GPU: what all of them share is worked out once."""

    gpu: Gpu

    def physics(self, size: Any, *, engine: bool = False) -> Physics:
        """One kernel in plain floats or many as arrays, in an ``engine`` or in a table."""


CORES: dict[str, Callable[[Any, Gpu], Core]] = {
    "attention_prefill": Prefill,
    "attention_decode": Decode,
    "moe": Experts,
    "memory_bound": MemoryBound,
    "collective": Exchange,
}


def sizes_of(op: Any) -> Any:
    """What a step decides of kernels, as arrays."""
    if isinstance(op, Attention):
        return batch_of(op)
    size = op.tokens if isinstance(op, MoE) else op.message_bytes if isinstance(op, Collective) else op.rows
    return np.atleast_1d(np.asarray(size, dtype=np.float64))


def table_physics(family: str, op: Op, gpu: Gpu) -> Physics:
    """As kernels are measured for a table."""
    return table_gemm(op, gpu) if isinstance(op, Gemm) else CORES[family](op, gpu).physics(sizes_of(op))


def engine_physics(family: str, op: Op, gpu: Gpu) -> Physics:
    """As kernels run in an engine."""
    return engine_gemm(op, gpu) if isinstance(op, Gemm) else CORES[family](op, gpu).physics(sizes_of(op), engine=True)


def sweep_physics(family: str, op: Op, gpu: Gpu) -> Physics:
    """As in an engine, for models of a sweep."""
    return sweep_gemm(op, gpu) if isinstance(op, Gemm) else engine_physics(family, op, gpu)
