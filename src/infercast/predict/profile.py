"""Kernel identity: which kernels an engine runs on an architecture, and whose measurements stand for them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from infercast.bundled import DATA
from infercast.hardware import Gpu
from infercast.hardware.kernels import by_kernels
from infercast.ops import Attention, Collective, Elementwise, Gemm, MoE, Op
from infercast.ops.dtypes import tensor_rate_of
from infercast.predict.identity import LATENT

SAME_KERNEL = {"marlin": "int4/marlin"}
"""A kernel that multiplies all its formats alike, and the format whose tables say most: Marlin's experts were measured
in ten layouts of experts as int4, as mxfp4 in one that has 896 of them, and in no other format."""

OTHERWISE = "triton"
"""Whose kernel multiplies experts of a format that an engine has no other for."""


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """An engine's choice of kernels."""

    title: str
    tables: dict[str, tuple[str, ...]]
    """For each family, whose measured kernels to use, first choice first."""
    generations: dict[str, tuple[str, ...]]
    """For each architecture, those whose GPUs run the same kernels at the same efficiency."""
    experts: dict[str, dict[str, str]]
    """For each architecture and format of weights, whose kernel multiplies routed experts."""
    everywhere: tuple[str, ...] = ()
    """Families whose kernels are the same on every architecture."""
    exceptions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For an architecture, kernels (family or family/variant) that all measured GPUs stand for better than those."""

    def stands_alone(self, kernels: str, family: str, variant: str) -> bool:
        """Whether a GPU without measurements borrows these kernels from no sibling but from all measured GPUs."""
        return not {family, f"{family}/{variant}"}.isdisjoint(self.exceptions.get(kernels, ()))

    def engines(self, op: Op, gpu: Gpu) -> tuple[str, ...]:
        """Whose tables to look at for an operator, first choice first."""
        family = family_of(op)
        named = f"{family} {self.expert_kernel(op, gpu)}" if isinstance(op, MoE) else family
        return self.tables.get(named, self.tables[family])

    def expert_kernel(self, op: MoE, gpu: Gpu) -> str:
        """Whose kernel multiplies these experts on this GPU."""
        if op.kernel or gpu.kernels not in self.experts:
            return op.kernel or OTHERWISE
        stored = stored_format(op)
        if op.num_local < op.experts and (gpu.kernels, stored) == ("hopper", "fp8_block"):
            return "cutlass"
        return by_kernels(self.experts, gpu).get(stored, OTHERWISE)

    def variants(self, op: Op, gpu: Gpu) -> tuple[str, ...]:
        """What splits a family into separately learned kernels (format and library), first choice first."""
        if isinstance(op, MoE):
            library, stored = self.expert_kernel(op, gpu), stored_format(op)
            same = [SAME_KERNEL[library]] if library in SAME_KERNEL else []
            # Where a kernel is named, nothing measured of another stands for it.
            others = [] if op.kernel else [f"{stored}/triton", f"{op.dtype}/triton", "bf16/triton"]
            return tuple(dict.fromkeys((*same, f"{stored}/{library}", *others)))
        if isinstance(op, Gemm):
            return (op.dtype,) if gpu.supports(tensor_rate_of(op.dtype)) and op.dtype != "fp16" else ("bf16",)
        if isinstance(op, Collective):
            # Without direct links, engines give their own kernel up beyond two GPUs.
            has_own = op.kind == "all_reduce" and (gpu.is_linked(op.gpus) or op.gpus <= 2)
            return ("vLLM_custom_graph", "NCCL") if has_own else ("NCCL",)
        if isinstance(op, Elementwise):
            return ("",) if op.family == "quantise" and not op.kind else (op.kind or op.family,)
        # Published tables have no attention over a latent.
        return (LATENT,) if isinstance(op, Attention) and op.latent_kv else ("",)

    def preferring(self, engine: str) -> KernelProfile:
        """The same, with one engine's tables before all others."""
        tables = {
            family: (engine, *(each for each in names if each != engine)) for family, names in self.tables.items()
        }
        return replace(self, tables=tables)


DEFAULT_ENGINE = "vllm"
"""Whose kernels are meant where no engine is named."""


@lru_cache
def kernel_profile(name: str = DEFAULT_ENGINE) -> KernelProfile:
    """A bundled engine profile."""
    text = DATA.joinpath(f"engines/{name}/kernels.toml").read_text(encoding="utf-8")
    values = tomllib.loads(text)
    return KernelProfile(
        title=values["title"],
        tables={family: tuple(engines) for family, engines in values["tables"].items()},
        generations={name: tuple(others) for name, others in values["generations"].items()},
        experts=values["experts"],
        everywhere=tuple(values["everywhere"]),
        exceptions={name: tuple(kernels) for name, kernels in values["exceptions"].items()},
    )


def family_of(op: Op) -> str:
    """The kernel family that an operator's price is learned with."""
    if isinstance(op, Attention):
        return "attention_decode" if int(np.max(op.queries)) == 1 else "attention_prefill"
    return {Gemm: "gemm", MoE: "moe", Elementwise: "memory_bound", Collective: "collective"}[type(op)]


def stored_format(op: MoE) -> str:
    """The format of the experts' weights, as tables and engine profiles name it."""
    stored = op.weight_dtype or op.dtype
    if (stored, op.dtype) == ("mxfp4", "fp8"):
        return "mxfp4_a8"
    return "bf16" if stored == "fp16" else stored
