"""Times of several GPUs side by side: where one is bound by another's, and where a newer GPU is known to be slower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from infercast.bundled import read_data
from infercast.hardware import Gpu, load_gpu
from infercast.hardware.gpu import has_at_least
from infercast.ops import Op
from infercast.ops.op import Quantity
from infercast.predict.estimate import Estimate
from infercast.predict.families import family_of


class Bound(NamedTuple):
    """Kernels of an architecture that take at most a share of what they take on a GPU with less of everything."""

    kernels: str
    of: tuple[str, ...]
    """Families, or family/format."""
    gpu: str
    share: float
    why: str


class Slower(NamedTuple):
    """Families that are slower on a newer architecture than on an older one, as measured."""

    kernels: tuple[str, ...]
    than: tuple[str, ...]
    families: tuple[str, ...]
    up_to: float
    why: str

    def speaks_of(self, gpu: Gpu, other: Gpu, family: str) -> bool:
        """Whether it says why the first is slower than the second."""
        return gpu.kernels in self.kernels and other.kernels in self.than and family in self.families


class Ordering(NamedTuple):
    """All that is known of it."""

    bounds: tuple[Bound, ...]
    slower: tuple[Slower, ...]

    def lesser(self, op: Op, gpu: Gpu) -> tuple[Gpu, float] | None:
        """The GPU of whose time a share is an upper bound of this operator's on ``gpu``, if there is one."""
        for bound in self.bounds:
            if bound.kernels == gpu.kernels:
                family, other = family_of(op).name, load_gpu(bound.gpu)
                if not {family, f"{family}/{op.compute_dtype}"}.isdisjoint(bound.of) and has_at_least(gpu, other):
                    return other, bound.share
        return None

    def notes(self, gpus: Sequence[Gpu]) -> Iterator[str]:
        """For people who compare these GPUs: what is known to be out of order, and what was put in order."""
        for bound in self.bounds:
            names = [gpu.name for gpu in gpus if gpu.kernels == bound.kernels]
            if names:
                most = f"estimated at most at {bound.share:g} of {bound.gpu}"
                yield f"{_listed(bound.of)} on {', '.join(names)} are {most}: {bound.why}."
        for each in self.slower:
            pairs = [(a, b) for a in gpus for b in gpus if any(each.speaks_of(a, b, name) for name in each.families)]
            pairs = [(a, b) for a, b in pairs if a is not b and has_at_least(a, b)]
            if pairs:
                newer, older = (dict.fromkeys(gpu.name for gpu in side) for side in zip(*pairs, strict=True))
                compared = f"{', '.join(newer)} than on {', '.join(older)}"
                yield f"{_listed(each.families)} may be slower on {compared}: {each.why}."


def at_most(own: Estimate, seconds: Quantity) -> Estimate:
    """The same, brought down to ``seconds`` where that is less. Its interval moves along, but still holds the first."""
    ratio = np.minimum(1.0, seconds / own.seconds)
    if np.ndim(own.seconds) == 0:
        ratio = float(ratio)
    high: Any = np.where(ratio < 1.0, np.maximum(own.high * ratio, own.seconds), own.high)
    return replace(own.scaled(ratio), high=high if np.ndim(high) else float(high))


@lru_cache
def ordering(name: str = "vllm") -> Ordering:
    values = read_data(f"engines/{name}/ordering.toml")
    return Ordering(
        tuple(Bound(**each) for each in values["at_most"]), tuple(Slower(**each) for each in values["slower"])
    )


WORDS = {
    "gemm/fp8": "fp8 products",
    "gemm/fp8_block": "block-scaled products",
    "gemm/nvfp4": "nvfp4 products",
    "moe": "experts",
    "collective": "collectives",
    "attention_prefill": "attention over short prompts",
}


def _listed(names: Sequence[str]) -> str:
    words = [WORDS.get(name, name) for name in names]
    return ", ".join(words).capitalize()
