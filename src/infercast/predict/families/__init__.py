"""Kernel families, one file each: its record holds all that the rest of the code asks of it."""

from __future__ import annotations

from typing import Any

from infercast.errors import InputError
from infercast.ops import Op
from infercast.predict.families import attention, collective, gemm, memory_bound, moe, recurrent, sparse
from infercast.predict.families.family import Family

_ALL = (
    *(gemm.GEMM, attention.PREFILL, attention.DECODE, moe.EXPERTS, memory_bound.MEMORY_BOUND, collective.COLLECTIVE),
    *(recurrent.SCAN, recurrent.STATE_UPDATE, recurrent.CONVOLUTION),
    *(sparse.INDEX_SCORES, sparse.TOP_K, sparse.SPARSE_ATTENTION, sparse.HYPER_CONNECTION),
    attention.ENCODER_ATTENTION,
)
FAMILIES = {family.name: family for family in _ALL}  # By the name that models are learned under
_BY_OP: dict[type, tuple[Family, ...]] = {
    each.op: tuple(other for other in FAMILIES.values() if other.op is each.op) for each in FAMILIES.values()
}


def families_of(op: Op) -> tuple[Family, ...]:
    """All families of an operator's class; they differ in what is learned alone."""
    try:
        return _BY_OP[type(op)]
    except KeyError:
        raise InputError(f"nothing is known of operators of type {type(op).__name__}") from None


def family_of(op: Op, size: Any = None) -> Family:
    """The family that an operator is learned with; faster where its ``size`` is known."""
    families = families_of(op)
    return families[0] if len(families) == 1 else next(each for each in families if each.accepts(size or op))


def split_batch(op: Op) -> tuple[Op, Op | None]:
    """A batch of prompts and decoding sequences as two, where they are estimated separately."""
    return families_of(op)[0].split(op)
