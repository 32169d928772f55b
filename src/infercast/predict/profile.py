"""Kernel identity: which kernels an engine runs on an architecture, and whose measurements stand for them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from infercast.bundled import read_data
from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.predict.families import family_of
from infercast.predict.identity import DEFAULT_ENGINE


class KernelProfile(NamedTuple):
    """An engine's choice of kernels."""

    title: str
    tables: dict[str, tuple[str, ...]]
    """For each family, whose measured kernels to use, first choice first."""
    generations: dict[str, tuple[str, ...]]
    """For each architecture, those whose GPUs run the same kernels at the same efficiency."""
    experts: dict[str, dict[str, str]]
    """For each architecture and format of weights, whose kernel multiplies routed experts."""
    spread_experts: Mapping[str, dict[str, str]] = {}
    """The same of experts that are spread over GPUs, where it is another."""
    scans: Mapping[str, dict[str, str]] = {}
    """For each architecture and kind of recurrence, whose kernel scans prompts, where it is not Triton's."""
    sparse: Mapping[str, dict[str, str]] = {}
    """For each architecture, kind of sparse attention and format of its cache, whose kernel it is if not the usual."""
    all_reduce: str = ""
    """What tables call its own all-reduce."""
    everywhere: tuple[str, ...] = ()
    """Families whose kernels are the same on every architecture."""
    engine: str = ""
    """Whose choice it is."""
    exceptions: Mapping[str, tuple[str, ...]] = {}
    """For an architecture, kernels (family or family/variant) that all measured GPUs stand for better than those."""

    def stands_alone(self, kernels: str, family: str, variant: str) -> bool:
        """Whether a GPU without measurements borrows these kernels from no sibling but from all measured GPUs."""
        return not {family, f"{family}/{variant}"}.isdisjoint(self.exceptions.get(kernels, ()))

    def engines(self, op: Op, gpu: Gpu) -> tuple[str, ...]:
        """Whose tables to look at for an operator, first choice first."""
        family = family_of(op)
        named = family.name if family.table is None else family.table(op, gpu, self)
        return self.tables.get(named, self.tables.get(family.name, ()))

    def preferring(self, engine: str) -> KernelProfile:
        """The same, with one engine's tables before all others."""
        tables = {
            family: (engine, *(each for each in names if each != engine)) for family, names in self.tables.items()
        }
        return self._replace(tables=tables, engine=engine)


@lru_cache
def kernel_profile(name: str = DEFAULT_ENGINE) -> KernelProfile:
    """A bundled engine profile."""
    return KernelProfile(engine=name, **read_data(f"engines/{name}/kernels.toml"))
