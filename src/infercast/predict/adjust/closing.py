"""Estimates as they would be if some kernels were as good as the best of their shape."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.op import Quantity
from infercast.predict.adjust.ceiling import Ceilings
from infercast.predict.estimate import Estimate
from infercast.predict.families import families_of
from infercast.predict.roofline import Predictor

Signature = tuple[Any, ...]


def signature_of(op: Op) -> Signature:
    """Which kernel of a model it is, whatever the step's size."""
    sizes = families_of(op)[0].step_sizes
    values = ((field.name, getattr(op, field.name)) for field in fields(op) if field.name not in sizes)  # type: ignore[arg-type]
    return (type(op).__name__, *values)


class Closing:
    """Another predictor's estimates, with those of chosen kernels brought down to their ceilings."""

    def __init__(self, predictor: Predictor, ceilings: Ceilings, chosen: Collection[Signature] | None = None) -> None:
        """``chosen``: which kernels, by `signature_of`; None: all whose ceilings are known."""
        self._predictor, self._ceilings, self._chosen = predictor, ceilings, chosen
        self.is_cheap, self.is_bound = predictor.is_cheap, predictor.is_bound

    def describe(self, gpu: Gpu) -> str:
        """For people: what its estimates on this GPU rest on."""
        return f"{self._predictor.describe(gpu)}; some kernels as good as the best of their shape"

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        """One launch of ``op``; arrays of shapes give arrays of times."""
        estimate = self._predictor.estimate(op, gpu)
        if not self._closes(op):
            return estimate
        ratio = np.minimum(1.0, self._ceilings.seconds(op, gpu) / estimate.seconds)
        return estimate.scaled(ratio if np.ndim(estimate.seconds) else float(ratio[0]))

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        """The same without interval and reason, for those who ask by the thousand."""
        seconds = self._predictor.seconds(op, gpu)
        return np.minimum(seconds, self._ceilings.seconds(op, gpu)) if self._closes(op) else seconds

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        """The terms of one estimate, as the other predictor has them."""
        return self._predictor.explain(op, gpu)

    def _closes(self, op: Op) -> bool:
        chosen = self._chosen is None or signature_of(op) in self._chosen
        return chosen and self._ceilings.knows(op)
