"""Estimates on a modified chip, under a power limit or at a locked clock: those of the real chip, scaled by physics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.load import is_modelled
from infercast.ops import Op
from infercast.ops.op import Quantity
from infercast.predict.adjust.overlap import padded_seconds, split_batch, together
from infercast.predict.adjust.power import limits_of
from infercast.predict.estimate import SOURCES, Estimate
from infercast.predict.families import family_of
from infercast.predict.kernels import SIBLING_WIDENING, is_same_die, trust_in
from infercast.predict.learned import Learned
from infercast.predict.roofline import Floor, Predictor

RATES = (
    "sms", "boost_clock", "fma_flops", "special_rate", "dram_bandwidth", "l2_bandwidth",
    "nvlink_bandwidth", "pcie_bandwidth", "network_bandwidth",
)  # fmt: skip


class Changed:
    """As a sibling is estimated, with the unchanged chip as the sibling: its kernels and efficiency, other physics."""

    def __init__(self, predictor: Predictor, real: Gpu) -> None:
        """``real`` is the chip that the predictor knows."""
        self._predictor, self._real = predictor, real
        self.is_cheap, self.is_bound = predictor.is_cheap, predictor.is_bound

    def describe(self, gpu: Gpu) -> str:
        return f"{self._predictor.describe(self._real)}, times what physics says of the changes"

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        known = self._predictor.estimate(op, self._real)
        if self.is_cheap or not is_modelled(gpu):
            return self._predictor.estimate(op, gpu)
        seconds: Any = self.seconds(op, gpu)
        if np.ndim(known.seconds) == 0:
            seconds = float(np.ravel(seconds)[0])
        low, high = (seconds * (end / known.seconds) ** SIBLING_WIDENING for end in (known.low, known.high))
        source = max(known.source, "sibling", key=SOURCES.index)
        bound = self._predictor.estimate(op, gpu).bound
        return replace(known, seconds=seconds, low=low, high=high, source=source, bound=bound)

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        if self.is_cheap or not is_modelled(gpu):
            return self._predictor.seconds(op, gpu)
        prompts, decodes = split_batch(op)
        if decodes is not None:
            return np.asarray(
                together(self.seconds(prompts, gpu), self.seconds(decodes, gpu), padded=padded_seconds(decodes, gpu))
            )
        family = family_of(op)
        here, there = (family.physics(op, chip, engine=True).seconds for chip in (gpu, self._real))
        ratio = np.clip((here / there) ** self._trust(op, gpu), *_bounds(gpu, self._real))
        seconds = np.ravel(self._predictor.seconds(op, self._real)) * ratio
        return np.asarray(Floor(op, gpu)(op, family.sizes(op), seconds))

    def _trust(self, op: Op, gpu: Gpu) -> float:
        """How far physics is believed, by what the real chip's estimate rests on."""
        choice = self._predictor.choose(op, self._real) if isinstance(self._predictor, Learned) else None
        return 1.0 if choice is None else trust_in(choice.entry, same_die=is_same_die(gpu, self._real))

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        return self._predictor.explain(op, gpu)


def _bounds(gpu: Gpu, real: Gpu) -> tuple[float, float]:
    """No kernel gains more than the resource that grew most, or loses more than by the one that shrank most.

    The physics may choose other tiles and overshoot. A larger cache can do more than its size says.
    """
    if gpu.l2_bytes != real.l2_bytes:
        return 0.0, np.inf
    rates = [getattr(gpu, name) / getattr(real, name) for name in RATES if getattr(real, name) > 0]
    rates.append(gpu.dense_flops("bf16") / real.dense_flops("bf16"))
    return 1.0 / max(1.0, *rates), 1.0 / min(1.0, *rates)


# Estimates under a power limit or a locked clock: the chip's own, times what physics says of either.


class HeldBack:
    """All kernels longer by one factor: a board whose limit is below what reading memory draws."""

    def __init__(self, predictor: Predictor, slower: float) -> None:
        self._predictor, self._slower = predictor, slower
        self.is_cheap, self.is_bound = predictor.is_cheap, predictor.is_bound

    def describe(self, gpu: Gpu) -> str:
        return f"{self._predictor.describe(gpu)}, {self._slower:.2f} times as long under the power limit"

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        found = self._predictor.estimate(op, gpu).scaled(self._slower)
        return replace(found, source=max(found.source, "sibling", key=SOURCES.index))

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        return self._slower * self._predictor.seconds(op, gpu)

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        return self._predictor.explain(op, gpu)


def held_back(predictor: Predictor, gpu: Gpu) -> Predictor:
    """The same predictor for a GPU that an operator holds back (`hardware.limited`), itself for one that runs free."""
    if gpu.clock_limit and gpu.unlimited is not None:
        predictor = Changed(predictor, gpu.unlimited)
    slower = limits_of(gpu).always
    return HeldBack(predictor, 1.0 + slower) if slower else predictor
