"""The physics core of each kernel family, under the conditions of a table or of an engine.

Tables and engines differ in what is warm: a table repeats one kernel, so what fits in L2 stays there, while an engine
comes back to a layer's weights and keys only after all other layers. And tables time a quantised product together with
the quantising of its input, which an engine launches as a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infercast.hardware import Gpu
from infercast.ops import Attention, Gemm, Op
from infercast.predict.physics.attention_decode import decode
from infercast.predict.physics.attention_prefill import prefill
from infercast.predict.physics.collective import collective, engine_collective
from infercast.predict.physics.gemm import engine_gemm, sweep_gemm, table_gemm
from infercast.predict.physics.memory_bound import memory_bound
from infercast.predict.physics.moe import moe
from infercast.predict.physics.terms import Physics

_CORES: dict[str, Callable[[Any, Gpu], Physics]] = {
    "gemm": table_gemm,
    "attention_prefill": prefill,
    "attention_decode": decode,
    "moe": moe,
    "memory_bound": memory_bound,
    "collective": collective,
}


def table_physics(family: str, op: Op, gpu: Gpu) -> Physics:
    """As a kernel is measured for a table."""
    return _CORES[family](op, gpu)


def engine_physics(family: str, op: Op, gpu: Gpu) -> Physics:
    """As a kernel runs in an engine; the features stay those of a table, which is what learners know."""
    if isinstance(op, Gemm):
        return engine_gemm(op, gpu)
    if isinstance(op, Attention) and family == "attention_decode":
        return decode(op, gpu, cold=True)
    physics = table_physics(family, op, gpu)
    if family not in _COLD:
        return physics
    cold = _COLD[family](op, gpu)
    return Physics(cold.seconds, cold.terms, physics.features)


def sweep_physics(family: str, op: Op, gpu: Gpu) -> Physics:
    """As in an engine, for models of a sweep."""
    return sweep_gemm(op, gpu) if isinstance(op, Gemm) else engine_physics(family, op, gpu)


# Families whose operands an engine always finds cold (its quantising is a kernel of its own), and collectives, at
# which its GPUs arrive one after the other.
_COLD: dict[str, Callable[[Any, Gpu], Physics]] = {
    "moe": lambda op, gpu: moe(op, gpu, warm=False),
    "collective": engine_collective,
}
