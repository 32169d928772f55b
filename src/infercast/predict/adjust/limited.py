"""Estimates under a power limit or a locked clock: the chip's own, times what physics says of either."""

from __future__ import annotations

from dataclasses import replace

from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.op import Quantity
from infercast.predict.adjust.changed import Changed
from infercast.predict.adjust.power import limits_of
from infercast.predict.estimate import SOURCES, Estimate
from infercast.predict.roofline import Predictor


class HeldBack:
    """All kernels longer by one factor: a board whose limit is below what reading memory draws."""

    def __init__(self, predictor: Predictor, slower: float) -> None:
        self._predictor, self._slower = predictor, slower
        self.is_cheap, self.is_bound = predictor.is_cheap, predictor.is_bound

    def describe(self, gpu: Gpu) -> str:
        """For people: what its estimates on this GPU rest on."""
        return f"{self._predictor.describe(gpu)}, {self._slower:.2f} times as long under the power limit"

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        """One launch of ``op``; arrays of shapes give arrays of times."""
        found = self._predictor.estimate(op, gpu).scaled(self._slower)
        return replace(found, source=max(found.source, "sibling", key=SOURCES.index))

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        """The same without interval and reason."""
        return self._slower * self._predictor.seconds(op, gpu)

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        """The terms of one estimate, at the full clock."""
        return self._predictor.explain(op, gpu)


def held_back(predictor: Predictor, gpu: Gpu) -> Predictor:
    """The same predictor for a GPU that an operator holds back (`hardware.limited`), itself for one that runs free."""
    if gpu.clock_limit and gpu.unlimited is not None:
        predictor = Changed(predictor, gpu.unlimited)
    slower = limits_of(gpu).always
    return HeldBack(predictor, 1.0 + slower) if slower else predictor
