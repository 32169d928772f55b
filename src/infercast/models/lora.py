"""LoRA adapters beside a model: what they take on a GPU, and the kernels that they add to a step.

Each projection gets two products: all tokens with the adapters' first matrices (shrink, to the rank) and the result
with their second ones, added to the projection's output (expand). Tokens of several adapters are in one kernel, which
reads the matrices of all adapters in the batch. Ranks are small, so both kernels move data: the projection's input
once more, its output twice, and the adapters. That is physics from shapes; nobody measured it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from infercast.ops import Call, Elementwise, Gemm
from infercast.ops.op import Size, bytes_of

SLICES = {"qkv_proj": 3, "gate_up_proj": 2}
"""Projections that are several side by side, each with adapters of its own."""
BUFFER_BYTES = 4
"""Between the two products values are kept in fp32."""


@dataclass(frozen=True, slots=True)
class AdapterSlots:
    """Room for adapters on a GPU."""

    count: int
    """Adapters that may be in a step."""
    rank: int
    """The largest one, which all take room for."""


def adapter_calls(calls: list[Call], slots: AdapterSlots, tokens: Size, dtype: str) -> list[Call]:
    """The kernels that adapters add to those of a step, all of whose slots are taken as far as there are tokens."""
    active: Any = np.minimum(tokens, slots.count)
    value, found = bytes_of(dtype), []
    for call in calls:
        if not (is_adapted(call) and isinstance(call.op, Gemm)):
            continue
        inner, kept = SLICES.get(call.name, 1) * slots.rank, SLICES.get(call.name, 1) * slots.rank * BUFFER_BYTES
        read, written = float(cast("int", call.op.k)) * value, float(cast("int", call.op.n)) * value
        shrunk = Elementwise("lora", tokens, read, kept, shared_read=active * inner * read, kind="lora_shrink")
        grown = Elementwise(
            "lora", tokens, kept + written, written, shared_read=active * slots.rank * written, kind="lora_expand"
        )
        found += [Call("lora_shrink", shrunk, call.count), Call("lora_expand", grown, call.count)]
    return found


def adapter_bytes(calls: list[Call], slots: AdapterSlots, dtype: str) -> float:
    """What the matrices of all slots take on a GPU, from the kernels of a step without adapters."""
    values = sum(
        call.count * slots.rank * (SLICES.get(call.name, 1) * cast("int", call.op.k) + cast("int", call.op.n))
        for call in calls
        if is_adapted(call) and isinstance(call.op, Gemm)
    )
    return float(slots.count * values * bytes_of(dtype))


def is_adapted(call: Call) -> bool:
    """Whether a kernel is a projection that adapters change; routers and heads are not."""
    return isinstance(call.op, Gemm) and call.name.endswith("_proj") and call.op.batch == 1
