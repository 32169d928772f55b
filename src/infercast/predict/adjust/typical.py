"""GPUs of which no kernel was measured here: the roofline, at what kernels are known to reach of it.

Of each family some numbers are in typical.toml: how many empty launches a kernel takes, and which share of its busiest
pipe it reaches. Best known are architectures with numbers of their own, from published rows of kernels and published
runs (source ``published``); then a vendor's products; the other families' kernels of other vendors are taken to be as
good as those that were measured on NVIDIA's GPUs (source ``typical``), and the upper end of the interval holds what
products lose.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from infercast.bundled import read_data
from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.predict.families import family_of
from infercast.predict.roofline import Efficiency, Roofline

PUBLISHED = "published"
OLDER = "older"
"""Behind the name of an architecture's kernels: those of engines of before they were tuned for it ..."""
OLDER_LAUNCHES = 2.4
"""... which take so many times as long to launch, because fewer of them were joined in one ..."""
OLDER_KERNELS = frozenset({"gemm/fp8_block", "moe/fp8_block", "latent", "quantise"})
"""... if they are of these families: what DeepSeek-R1 has and models in bf16 have not. Those were as fast before."""


class Typical(Roofline):
    """The roofline at typical efficiencies."""

    is_bound = False
    source = "typical"

    def describe(self, gpu: Gpu) -> str:
        """For people: what its estimates on this GPU rest on."""
        if is_published(gpu):
            return (
                f"the roofline at what kernels of {_architecture(gpu)} reach of it, by published rows of products and "
                "experts and by published runs of engines; nobody measured them here, so intervals are wide"
            )
        return (
            "the roofline at what kernels of measured GPUs typically reach of it; no kernel of "
            f"{gpu.vendor}'s GPUs in an engine was measured, so intervals are wide"
        )

    def reached(self, op: Op, gpu: Gpu) -> Efficiency:
        """What kernels like this one typically reach on GPUs like this one."""
        return _found(family_of(op).typical(op), gpu.kernels, gpu.vendor).efficiency

    def source_of(self, op: Op, gpu: Gpu) -> str:
        """Whether it rests on what is known of its own architecture."""
        return _found(family_of(op).typical(op), gpu.kernels, gpu.vendor).source

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        """The terms of one estimate, and the share that is reached."""
        return {**super().explain(op, gpu), "efficiency factor": self.reached(op, gpu).share}


def is_published(gpu: Gpu) -> bool:
    """Whether typical.toml has numbers of its architecture's own."""
    return _architecture(gpu) in _typical()


def with_older_kernels(gpu: Gpu) -> Gpu:
    """The same GPU under an engine of before its kernels were tuned for this architecture."""
    return replace(gpu, kernels=f"{gpu.kernels} {OLDER}") if is_published(gpu) else gpu


def _architecture(gpu: Gpu) -> str:
    return gpu.kernels.partition(f" {OLDER}")[0]


class _Found(NamedTuple):
    efficiency: Efficiency
    source: str


@cache
def _found(names: tuple[str, ...], kernels: str, vendor: str) -> _Found:
    """The first row that fits: of the architecture, of the vendor, of all."""
    own, _, older = kernels.partition(" ")
    group, name = next(
        (group, name) for group in (own, vendor, "all") for name in names if name in _typical().get(group, {})
    )
    efficiency = _typical()[group][name]
    if older == OLDER and not OLDER_KERNELS.isdisjoint(names):
        efficiency = efficiency._replace(launches=OLDER_LAUNCHES * efficiency.launches)
    return _Found(efficiency, PUBLISHED if group == own else Typical.source)


@cache
def _typical() -> dict[str, dict[str, Efficiency]]:
    """What was fitted, by architecture, vendor (``all``: any) and name."""
    groups = read_data("typical.toml").items()
    return {group: {name: Efficiency(**row) for name, row in rows.items()} for group, rows in groups}
