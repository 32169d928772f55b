"""Ceilings: the latency of the best implementations of a shape, and estimates with kernels at their ceiling."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np

from infercast.bundled import DATA
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.op import Quantity
from infercast.predict.estimate import Estimate, fuse_prefill_decode
from infercast.predict.families import FAMILIES, families_of, family_of, split_batch
from infercast.predict.families.family import Array
from infercast.predict.fitted import POOLED, Artifact, Inputs, load_artifact
from infercast.predict.roofline import Adjusted, Predictor, launch_floor, limit_seconds, pipe_limits

# For each family a forest was fitted to the lowest tenth of log(measured / (hard limit + launch floor)) over all
# measured GPUs and engines. Its features say what shape a kernel has in units of the GPU (how long it must take, which
# pipe is the busiest, how full the chip is), and not which GPU it is. So a ceiling is what kernels of this shape reach
# somewhere, as a share of what the hardware allows.

_COMMON = ("log_launches", "log_tensor_per_dram")
CEILINGS = Inputs(
    "ceilings",
    {name: (*_COMMON, *family.ceiling.features) for name, family in FAMILIES.items()},
    ("predict/ceilings.py", "predict/roofline.py", "predict/families/*.py"),
)


class Ceilings:
    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact

    @property
    def provenance(self) -> dict[str, Any]:
        return {name: value for name, value in self._artifact.header.items() if name != "models"}

    def knows(self, op: Op) -> bool:
        family = family_of(op)
        found = family.ceiling.is_known(op) and self._artifact.find(family.name, POOLED, POOLED, variant_of(op))
        return bool(found)

    def seconds(self, op: Op, gpu: Gpu) -> Array:
        """What one launch takes where it is done best, never less than the hard limit; only for what it `knows`."""
        prompts, decodes = split_batch(op)
        if decodes is not None:
            return np.asarray(fuse_prefill_decode(self.seconds(prompts, gpu), self.seconds(decodes, gpu)))
        limit = limit_seconds(op, gpu)
        name, variant = family_of(op).name, variant_of(op)
        found = self._artifact.find(name, POOLED, POOLED, variant)
        if found is None:
            raise InputError(f"no kernel of {name} {variant} was measured, so its ceiling is not known")
        return np.maximum(limit, (limit + launch_floor(gpu)) * np.exp(found[1].predict(features_of(op, gpu))))


@lru_cache
def default_ceilings() -> Ceilings:
    return Ceilings(load_artifact(DATA / "fitted/ceilings.npz", CEILINGS))


def variant_of(op: Op) -> str:
    return family_of(op).ceiling.variant(op)


def features_of(op: Op, gpu: Gpu) -> Array:
    """One row a kernel: its size and balance in units of the GPU, then what its family has, as in ``CEILINGS``."""
    pipes = pipe_limits(op, gpu)
    limit = limit_seconds(op, gpu)
    busy = np.maximum(pipes.get("tensor", limit), 1e-12)
    balance = np.clip(np.log2(busy / np.maximum(pipes.get("dram", limit), 1e-12)), -8.0, 8.0)
    parts = [np.log2(limit / launch_floor(gpu) + 1e-6), balance, *family_of(op).ceiling.shape(op, gpu)]
    return np.column_stack(np.broadcast_arrays(*(np.asarray(part, dtype=np.float64) for part in parts)))


Signature = tuple[Any, ...]


def signature_of(op: Op) -> Signature:
    """Which kernel of a model it is, whatever the step's size."""
    sizes = families_of(op)[0].step_sizes
    values = ((field.name, getattr(op, field.name)) for field in fields(op) if field.name not in sizes)  # type: ignore[arg-type]
    return (type(op).__name__, *values)


class AtCeiling(Adjusted):
    """Another predictor's estimates, with those of chosen kernels brought down to their ceilings."""

    def __init__(self, predictor: Predictor, ceilings: Ceilings, chosen: Collection[Signature] | None = None) -> None:
        """``chosen``: which kernels, by `signature_of`; None: all with a known ceiling."""
        super().__init__(predictor)
        self._ceilings, self._chosen = ceilings, chosen

    def describe(self, gpu: Gpu) -> str:
        return f"{self._predictor.describe(gpu)}; some kernels as good as the best of their shape"

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        estimate = self._predictor.estimate(op, gpu)
        if not self._closes(op):
            return estimate
        ratio = np.minimum(1.0, self._ceilings.seconds(op, gpu) / estimate.seconds)
        return estimate.scaled(ratio if np.ndim(estimate.seconds) else float(ratio[0]))

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        seconds = self._predictor.seconds(op, gpu)
        return np.minimum(seconds, self._ceilings.seconds(op, gpu)) if self._closes(op) else seconds

    def _closes(self, op: Op) -> bool:
        chosen = self._chosen is None or signature_of(op) in self._chosen
        return chosen and self._ceilings.knows(op)
