"""Kernel families, one file each: its record holds all that the rest of the code asks of it."""

from __future__ import annotations

from typing import Any

from infercast.errors import InputError
from infercast.ops import Op
from infercast.predict.families.attention import DECODE, PREFILL
from infercast.predict.families.collective import COLLECTIVE
from infercast.predict.families.family import Family
from infercast.predict.families.gemm import GEMM
from infercast.predict.families.memory_bound import MEMORY_BOUND
from infercast.predict.families.moe import EXPERTS

__all__ = ["FAMILIES", "families_of", "family_of"]

FAMILIES = {family.name: family for family in (GEMM, PREFILL, DECODE, EXPERTS, MEMORY_BOUND, COLLECTIVE)}
"""By the name that models are learned under."""
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
