"""Kernel identity: names that tables, models and engine profiles share, and the kernels of an engine on a chip."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.hardware import Gpu
from infercast.ops import Attention, Gemm, Op

SWEEP = "sweep"  # Tables of `infercast measure`: whatever the engine runs, it runs in them
DEFAULT_ENGINE = "vllm"  # The engine that is meant where none is named
LATENT = "latent"  # The kernel of attention over a stored latent


ANY = "any"  # In place of a kernel's name: a model of all kernels of a family, for one that was not measured anywhere
BY_KERNEL = ("attention_prefill", "attention_decode", "moe", "gemm")
"""Families that borrow their efficiency from the same kernel on another chip, else from all kernels with less trust."""


def any_kernel(family: str, variant: str) -> str:
    """The variant that stands for an unmeasured kernel: all kernels of its format; empty where nothing may."""
    if family not in BY_KERNEL or variant == LATENT:
        return ""
    stored, named, _ = variant.partition("/")
    if family in ("moe", "gemm"):
        return f"{stored}/{ANY}" if named else ""
    return ANY


def is_same_kernel(family: str, variant: str, other: str) -> bool:
    """Whether two variants are of one kernel, or the second names none."""
    if family not in BY_KERNEL or not other:
        return True
    first, second = (each.partition("/")[2] if family in ("moe", "gemm") else each for each in (variant, other))
    return first == second


def is_written_by_engine(family: str, variant: str) -> bool:
    """Whether each engine has a kernel of its own under this name."""
    return family in BY_KERNEL and variant.rpartition("/")[2] == "triton"


def kernel_of(op: Op, gpu: Gpu, engine: str, version: str = "") -> str:
    """The kernel that an engine runs an operator with; empty where nothing is known. ``version``: of an older table."""
    if isinstance(op, Attention):
        return op.kernel or picked(engine, "attention", gpu.kernels, op.kv_dtype, op.head_dim, version)
    if isinstance(op, Gemm):
        return picked(engine, "gemm", gpu.kernels, op.dtype)
    return getattr(op, "kernel", "")


@lru_cache
def picked(engine: str, operator: str, architecture: str, stored: str, head_dim: int = 0, version: str = "") -> str:
    """The kernel by the first row of kernels.toml that fits."""
    asked = {"architectures": architecture, "formats": stored, "head_dims": head_dim, "versions": version}
    rows = _facts()["picks"].get(engine, {}).get(operator, ())
    fitting = (row for row in rows if all(value in row.get(name, (value,)) for name, value in asked.items()))
    return str(next(fitting, {"kernel": ""})["kernel"])


@lru_cache
def kernel_named(operator: str, name: str) -> str:
    """The kernel that a table means by a name; empty where it has none that is known."""
    names = _facts()["names"].get(operator, {}).items()
    return next((str(kernel) for part, kernel in names if part in name), "")


def expert_kernel_named(name: str) -> str:
    return kernel_named("moe", name) or "other"


@lru_cache
def _facts() -> dict[str, Any]:
    return read_data("kernels.toml")


OTHER = "other"


@lru_cache
def _profiled() -> list[tuple[str, re.Pattern[str]]]:
    families = read_data("lab/profiles.toml")["families"]
    return [(family, re.compile("|".join(patterns), re.IGNORECASE)) for family, patterns in families]


def family_of_kernel(name: str, *, has_experts: bool) -> str:
    """The family of a kernel in a profile; ``has_experts``: whether hand-written activations belong to experts."""
    if has_experts and "act_and_mul_kernel" in name:
        return "moe"
    return next((family for family, pattern in _profiled() if pattern.search(name)), OTHER)


class KernelProfile(NamedTuple):
    title: str
    tables: dict[str, tuple[str, ...]]  # For each family, the engines with measured kernels to use, first choice first
    generations: dict[str, tuple[str, ...]]  # For each architecture, those with the same kernels at the same efficiency
    experts: dict[str, dict[str, str]]  # For each architecture and format of weights, the kernel of routed experts
    spread_experts: Mapping[str, dict[str, str]] = {}  # The same of experts spread over GPUs, where it is another
    scans: Mapping[str, dict[str, str]] = {}
    """For each architecture and kind of recurrence, the library that scans prompts, where it is not Triton."""
    sparse: Mapping[str, dict[str, str]] = {}
    """For each architecture, kind of sparse attention and format of its cache, the kernel if not the usual one."""
    all_reduce: str = ""  # What tables call its own all-reduce
    everywhere: tuple[str, ...] = ()  # Families with the same kernels on every architecture
    engine: str = ""
    exceptions: Mapping[str, tuple[str, ...]] = {}
    """For an architecture, kernels (family or family/variant) that all measured GPUs stand for better than those."""

    def stands_alone(self, kernels: str, family: str, variant: str) -> bool:
        """Whether a GPU without measurements borrows these kernels from no sibling but from all measured GPUs."""
        return not {family, f"{family}/{variant}"}.isdisjoint(self.exceptions.get(kernels, ()))

    def preferring(self, engine: str) -> KernelProfile:
        """The same, with one engine's tables before all others."""
        tables = {
            family: (engine, *(each for each in names if each != engine)) for family, names in self.tables.items()
        }
        return self._replace(tables=tables, engine=engine)


@lru_cache
def kernel_profile(name: str = DEFAULT_ENGINE) -> KernelProfile:
    return KernelProfile(engine=name, **read_data(f"engines/{name}/kernels.toml"))
