"""Which part of a forecast is off: runs in which one of host, kernels and queue decides.

A request alone on an idle engine shows the host: with a short prompt the GPU waits for launches. A static batch, where
nobody waits for anybody else's arrival, is a replay of known steps: how long all its prompts take, and how long one
step of decoding takes. What is left to go wrong under load is the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

import numpy as np

from infercast.forecast.intervals.odds import is_at_once
from infercast.serve import Record
from infercast.validate.measured import MeasuredRun

LEAST_PROMPTS = 1024
"""With fewer prompt tokens in all, launching them takes longer than computing them on any GPU."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One number, measured and predicted."""

    measured: float
    predicted: float
    half_width: float | None = None
    """Half the width of the prediction's 80 % interval, as a logarithm, where there is one ..."""
    middle: float = 0.0
    """... and how far its middle is above the prediction: the interval that `simulate` shows of the same run."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 80 % interval."""
        if self.half_width is None:
            return None
        low, high = self.middle - self.half_width, self.middle + self.half_width
        return self.predicted * exp(min(low, 0.0)), self.predicted * exp(max(high, 0.0))

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured value is in it."""
        ends = self.interval
        return None if ends is None else ends[0] <= self.measured <= ends[1]

    @property
    def width(self) -> float | None:
        """Half the width of the interval, as a fraction of the prediction."""
        ends = self.interval
        return None if ends is None else (ends[1] - ends[0]) / 2 / self.predicted

    @property
    def error(self) -> float:
        """How far the prediction is above the measured value, as a fraction of it."""
        return (self.predicted - self.measured) / self.measured

    @property
    def ape(self) -> float:
        """Absolute percentage error, as a fraction of the measured value."""
        return abs(self.predicted - self.measured) / self.measured


@dataclass(frozen=True, slots=True)
class Parts:
    """What of a run can be told apart; seconds."""

    is_static: bool
    num_input: int
    """Tokens of all prompts."""
    idle_ttft: Comparison | None = None
    """A single request."""
    prompts: Comparison | None = None
    """A static batch: from the first request sent to the last first token."""
    decode_step: Comparison | None = None
    """A static batch: the median time between two tokens."""


def parts_of(run: MeasuredRun, record: Record) -> Parts:
    """Everything there is to tell about one run."""
    arrivals = np.array([request.arrival for request in run.workload.requests])
    num_input = sum(request.num_input for request in run.workload.requests)
    if not is_at_once(run.workload):
        return Parts(is_static=False, num_input=num_input)
    measured = float((arrivals + run.ttft).max() - arrivals.min())
    predicted = float(record.first_token.max() - record.sent_at.min())
    gaps, counts = record.gaps
    step = None
    if run.token_gap is not None and gaps.size:
        step = Comparison(run.token_gap, float(np.median(np.repeat(gaps, counts))))
    return Parts(
        is_static=True,
        num_input=num_input,
        idle_ttft=Comparison(float(run.ttft[0]), float(record.ttft[0])) if arrivals.size == 1 else None,
        prompts=Comparison(measured, predicted) if num_input >= LEAST_PROMPTS else None,
        decode_step=step,
    )


@dataclass(frozen=True, slots=True)
class FileParts:
    """The parts of one file: median signed errors as fractions, None where no run tells."""

    file: str
    idle_ttft: float | None
    """Of its shortest prompt: the host."""
    decode_step: float | None
    """Kernels of decoding, or the host of a small model."""
    prompts: float | None
    """Kernels of prompts, or launching them."""
    loaded_ttft: float | None
    """Of runs with arrivals over time: all of the above, and the queue."""
