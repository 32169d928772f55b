"""What the best implementations reach: the latency that one in ten measured kernels of a shape beats.

For each family a forest was fitted to the lowest tenth of log(measured / (hard limit + launch floor)) over all measured
GPUs and engines. Its features say what shape a kernel has in units of the GPU (how long it must take, which pipe is the
busiest, how full the chip is), and not which GPU it is. So a ceiling is what kernels of this shape reach somewhere, as
a share of what the hardware allows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from infercast.bundled import DATA
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.predict.adjust.mixed import split_batch, together
from infercast.predict.artifact.artifact import POOLED, Artifact, load_artifact
from infercast.predict.artifact.features import inputs_of
from infercast.predict.families import family_of
from infercast.predict.families.pipes import Array
from infercast.predict.limits import limit_seconds, limits_of
from infercast.predict.roofline import launch_floor

_COMMON = ("log_launches", "log_tensor_per_dram")
CEILINGS = inputs_of(
    "ceilings",
    lambda family: {family.name: (*_COMMON, *family.ceiling.features)},
    lambda family, *_: family,
    ("predict/adjust/ceiling.py", "predict/limits.py", "predict/families/*.py"),
)


class Ceilings:
    """Ceilings of kernels on any GPU."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact

    @property
    def provenance(self) -> dict[str, Any]:
        """What they were learned from."""
        return {name: value for name, value in self._artifact.header.items() if name != "models"}

    def knows(self, op: Op) -> bool:
        """Whether kernels of this kind were measured anywhere."""
        family = family_of(op)
        found = family.ceiling.is_known(op) and self._artifact.find(family.name, POOLED, POOLED, variant_of(op))
        return bool(found)

    def seconds(self, op: Op, gpu: Gpu) -> Array:
        """What one launch takes where it is done best, never less than the hard limit; only for what it `knows`."""
        prompts, decodes = split_batch(op)
        if decodes is not None:
            return np.asarray(together(self.seconds(prompts, gpu), self.seconds(decodes, gpu)))
        limit = limit_seconds(op, gpu)
        name, variant = family_of(op).name, variant_of(op)
        found = self._artifact.find(name, POOLED, POOLED, variant)
        if found is None:
            raise InputError(f"no kernel of {name} {variant} was measured, so its ceiling is not known")
        return np.maximum(limit, (limit + launch_floor(gpu)) * np.exp(found[1].predict(features_of(op, gpu))))


@lru_cache
def default_ceilings() -> Ceilings:
    """Those that come with infercast."""
    return Ceilings(load_artifact(DATA / "fitted/ceilings.npz", CEILINGS))


def variant_of(op: Op) -> str:
    """Kernels that are learned apart: by format."""
    return family_of(op).ceiling.variant(op)


def features_of(op: Op, gpu: Gpu) -> Array:
    """One row a kernel: its size and balance in units of the GPU, then what its family has, as in ``CEILINGS``."""
    pipes = limits_of(op, gpu)
    limit = limit_seconds(op, gpu)
    busy = np.maximum(pipes.get("tensor", limit), 1e-12)
    balance = np.clip(np.log2(busy / np.maximum(pipes.get("dram", limit), 1e-12)), -8.0, 8.0)
    parts = [np.log2(limit / launch_floor(gpu) + 1e-6), balance, *family_of(op).ceiling.shape(op, gpu)]
    return np.column_stack(np.broadcast_arrays(*(np.asarray(part, dtype=np.float64) for part in parts)))
