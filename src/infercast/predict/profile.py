"""Kernel identity: which kernels an engine runs on an architecture, and whose measurements stand for them."""

from __future__ import annotations

import tomllib
from dataclasses import field, replace
from functools import lru_cache

import numpy as np

from infercast.bundled import DATA
from infercast.hardware import Gpu
from infercast.ops import Attention, Collective, Elementwise, Gemm, MoE, Op
from infercast.ops.dtypes import tensor_rate_of
from infercast.predict.identity import LATENT
from infercast.predict.physics.moe import VLLM_DEFAULTS
from infercast.records import dataclass

SAME_KERNEL = {"mxfp4/marlin": ("int4/marlin",)}
"""Formats that one kernel multiplies alike, where the other's tables say more: Marlin's 4-bit experts were measured in
ten layouts of experts as int4, and as mxfp4 in one that has 896 of them."""


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """An engine's choice of kernels."""

    title: str
    tables: dict[str, tuple[str, ...]]
    """For each family, whose measured kernels to use, first choice first."""
    generations: dict[str, tuple[str, ...]]
    """For each architecture, those whose GPUs run the same kernels at the same efficiency."""
    exceptions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For an architecture, kernels (family or family/variant) that all measured GPUs stand for better than those."""

    def stands_alone(self, architecture: str, family: str, variant: str) -> bool:
        """Whether a GPU without measurements borrows these kernels from no sibling but from all measured GPUs."""
        return not {family, f"{family}/{variant}"}.isdisjoint(self.exceptions.get(architecture, ()))

    def engines(self, op: Op) -> tuple[str, ...]:
        """Whose tables to look at for an operator, first choice first."""
        family = family_of(op)
        named = f"{family} {op.kernel}" if isinstance(op, MoE) and op.kernel else family
        return self.tables.get(named, self.tables[family])

    def preferring(self, engine: str) -> KernelProfile:
        """The same, with one engine's tables before all others."""
        tables = {
            family: (engine, *(each for each in names if each != engine)) for family, names in self.tables.items()
        }
        return replace(self, tables=tables)


@lru_cache
def kernel_profile(name: str = "vllm") -> KernelProfile:
    """A bundled engine profile."""
    text = DATA.joinpath(f"engines/{name}.toml").read_text(encoding="utf-8")
    values = tomllib.loads(text)
    return KernelProfile(
        title=values["title"],
        tables={family: tuple(engines) for family, engines in values["tables"].items()},
        generations={name: tuple(others) for name, others in values["generations"].items()},
        exceptions={name: tuple(kernels) for name, kernels in values["exceptions"].items()},
    )


def family_of(op: Op) -> str:
    """The kernel family that an operator's price is learned with."""
    if isinstance(op, Attention):
        return "attention_decode" if int(np.max(op.queries)) == 1 else "attention_prefill"
    return {Gemm: "gemm", MoE: "moe", Elementwise: "memory_bound", Collective: "collective"}[type(op)]


def variants_of(op: Op, gpu: Gpu) -> tuple[str, ...]:
    """What splits a family into separately learned kernels (format and library), first choice first."""
    if isinstance(op, MoE):
        stored = op.weight_dtype or op.dtype
        stored = "mxfp4_a8" if (stored, op.dtype) == ("mxfp4", "fp8") else stored
        if op.kernel:  # named, so nothing measured of another kernel stands for it
            return tuple(dict.fromkeys((*SAME_KERNEL.get(f"{stored}/{op.kernel}", ()), f"{stored}/{op.kernel}")))
        library = VLLM_DEFAULTS.get(gpu.architecture, {}).get(stored, "triton")
        if op.num_local < op.experts and (gpu.architecture, stored) == ("hopper", "fp8_block"):
            library = "cutlass"
        return tuple(dict.fromkeys((f"{stored}/{library}", f"{stored}/triton", f"{op.dtype}/triton", "bf16/triton")))
    if isinstance(op, Gemm):
        return (op.dtype,) if gpu.supports(tensor_rate_of(op.dtype)) and op.dtype != "fp16" else ("bf16",)
    if isinstance(op, Collective):
        return ("vLLM_custom_graph", "NCCL") if op.kind == "all_reduce" else ("NCCL",)
    if isinstance(op, Elementwise):
        return ("",) if op.family == "quantise" and not op.kind else (op.kind or op.family,)
    # Published tables have no attention over a latent.
    return (LATENT,) if isinstance(op, Attention) and op.latent_kv else ("",)
