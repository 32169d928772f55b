"""An estimate with its error bar, its source and its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.ops.op import Quantity
from infercast.shown import Shown
from infercast.units import format_seconds

# From the most to the least trusted; a sum is only as good as its weakest part.
SOURCES = ("measured", "few-shot", "sibling", "unseen", "physics", "published", "typical", "roofline")
BOUND = "roofline"
"""The source whose numbers are the least that hardware allows, not what is expected."""


def kind_of(source: str) -> str:
    """What a number is that comes from there: an ``estimate``, or a lower ``bound`` of times that is not to be ranked
    beside one.
    """
    return "bound" if source == BOUND else "estimate"


def basis_of(parts: Iterable[tuple[str, float]]) -> str:
    """The least trusted source that counts, of (source, seconds) pairs: it and worse ones are a tenth of the time."""
    by_source = dict.fromkeys(SOURCES, 0.0)
    for source, seconds in parts:
        by_source[source] += seconds
    counts, so_far = 0.1 * sum(by_source.values()), 0.0
    for source in reversed(SOURCES):
        so_far += by_source[source]
        if so_far > counts:
            return source
    return SOURCES[0]


@dataclass(frozen=True, slots=True, repr=False)
class Estimate(Shown):
    """Seconds that one launch takes, or arrays of them for an array of shapes."""

    seconds: Quantity
    """Seconds of one launch."""
    low: Quantity
    """Lower end of the 80 % interval, in seconds."""
    high: Quantity
    """Upper end of the 80 % interval, in seconds."""
    source: str
    """Where the number comes from: one of `SOURCES`."""
    bound: str | npt.NDArray[Any]
    """What limits the kernel: ``tensor``, ``dram``, ``special``, ``fma``, ``link`` or ``launch``."""
    condition: str = ""
    """Of a kernel that was asked for by itself, ``alone``, ``engine`` or ``sustained``; empty within a step."""

    def _words(self) -> str:
        among = f"{self.condition}, " if self.condition else ""
        if np.ndim(self.seconds):
            return f"{np.size(self.seconds):,} shapes, {among}{self.source}"
        low, high = format_seconds(float(self.low)), format_seconds(float(self.high))
        return f"{format_seconds(float(self.seconds))} ({low} to {high}), {among}{self.source}, bound by {self.bound}"

    def taken(self, which: npt.NDArray[Any]) -> Estimate:
        """Of an array of shapes these, each as often as it is named."""
        seconds, low, high, bound = (np.ravel(each)[which] for each in (self.seconds, self.low, self.high, self.bound))
        return Estimate(seconds, low, high, self.source, bound)

    def scaled(self, factor: Quantity) -> Estimate:
        """The same, so many times longer."""
        return replace(self, seconds=self.seconds * factor, low=self.low * factor, high=self.high * factor)


def total(parts: Iterable[tuple[Estimate, int]]) -> Estimate:
    """The sum of (estimate, launches) pairs; its bound is that of the largest part.

    Interval ends add up: errors of one predictor on one GPU tend to point the same way, so they do not cancel.
    """
    seconds = low = high = largest = 0.0
    source, bound = SOURCES[0], "launch"
    for estimate, count in parts:
        share = float(estimate.seconds) * count
        seconds += share
        low += float(estimate.low) * count
        high += float(estimate.high) * count
        source = max(source, estimate.source, key=SOURCES.index)
        if share > largest:
            largest, bound = share, str(estimate.bound)
    return Estimate(seconds, low, high, source, bound)
