"""What a run leaves behind: the times of every request, and sums over its steps."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engine.step import StepEstimate, StepShape
from infercast.serve.scheduler import Plan, Scheduler, Sequence

PHASES = ("prefill", "decode")
"""Steps that compute any prompt tokens (decodes may ride along), and steps of single new tokens only."""


class PhaseTotals:
    """Sums over the steps of one phase."""

    def __init__(self) -> None:
        self.steps = 0
        self.tokens = 0
        self.sequences = 0
        self.context = 0
        self.sampled = 0
        self.seconds = 0.0
        self.gpu_seconds = 0.0
        self.host_bound_seconds = 0.0
        self.kernel_seconds: npt.NDArray[Any] | float = 0.0

    def add(self, shape: StepShape, estimate: StepEstimate) -> None:
        """One more step."""
        self.steps += 1
        self.tokens += shape.num_tokens
        self.sequences += len(shape.new_tokens)
        self.context += sum(shape.computed)
        self.sampled += shape.num_sampled
        self.seconds += estimate.seconds
        self.gpu_seconds += estimate.gpu_seconds
        self.host_bound_seconds += max(0.0, estimate.seconds - estimate.gpu_seconds)
        self.kernel_seconds = self.kernel_seconds + estimate.kernel_seconds


class Gauge:
    """A quantity over time: its time-weighted mean and its peak."""

    def __init__(self) -> None:
        self.area = 0.0
        self.peak = 0.0

    def add(self, value: float, seconds: float) -> None:
        """The quantity stood at ``value`` for that long."""
        self.area += value * seconds
        self.peak = max(self.peak, value)


class Record:
    """Arrays over requests, filled as the run goes on."""

    def __init__(self, num_requests: int, token_path_seconds: float = 0.0) -> None:
        self.sent_at = np.full(num_requests, np.nan)
        self.first_token = np.full(num_requests, np.nan)
        self.last_token = np.full(num_requests, np.nan)
        self.started_at = np.full(num_requests, np.nan)
        self.num_output = np.zeros(num_requests, dtype=np.int64)
        self.num_cached = np.zeros(num_requests, dtype=np.int64)
        self.phases = {phase: PhaseTotals() for phase in PHASES}
        self.running, self.waiting, self.kv_usage = Gauge(), Gauge(), Gauge()
        self.num_preemptions = 0
        self._token_path_seconds = token_path_seconds
        self._previous_end = np.nan
        # Most tokens of a step follow their predecessor by the same gap, so gaps are kept with a count.
        self._gaps: list[float] = []
        self._gap_counts: list[int] = []

    def sent(self, index: int, time: float) -> None:
        """A client sent its request."""
        self.sent_at[index] = time

    def step(
        self, plan: Plan, shape: StepShape, estimate: StepEstimate, start: float, scheduler: Scheduler
    ) -> None:
        """A step was planned that begins at ``start``."""
        phase = "decode" if shape.is_decode else "prefill"
        self.phases[phase].add(shape, estimate)
        self.running.add(len(plan.sequences), estimate.seconds)
        self.waiting.add(len(scheduler.waiting), estimate.seconds)
        self.kv_usage.add(scheduler.cache.usage, estimate.seconds)
        for sequence in plan.started:
            if not sequence.num_preemptions:
                self.started_at[sequence.index] = start
                self.num_cached[sequence.index] = sequence.num_cached

    def tokens(self, plan: Plan, end: float, done: SequenceOf[Sequence]) -> SequenceOf[Sequence]:
        """A step ended and its tokens are on their way to their clients; returns ``done``."""
        time = end + self._token_path_seconds
        steady = 0
        for sequence in plan.sampled:
            if sequence.last_token == self._previous_end:
                steady += 1
            elif sequence.num_produced > 1:
                self._gaps.append(time - sequence.last_token)
                self._gap_counts.append(1)
            else:
                self.first_token[sequence.index] = time
            sequence.last_token = time
        if steady:
            self._gaps.append(time - self._previous_end)
            self._gap_counts.append(steady)
        self._previous_end = time
        for sequence in done:
            self.last_token[sequence.index] = time
            self.num_output[sequence.index] = sequence.num_produced
        return done

    def close(self, scheduler: Scheduler) -> Record:
        """The run is over."""
        self.num_preemptions = scheduler.num_preemptions
        return self

    def waiting_at(self, time: float) -> int:
        """Requests that had been sent but not started at that moment."""
        return int(np.count_nonzero(self.sent_at <= time)) - int(np.count_nonzero(self.started_at <= time))

    @property
    def ttft(self) -> npt.NDArray[Any]:
        """Seconds from sending a request to its first token."""
        return np.asarray(self.first_token - self.sent_at)

    @property
    def end_to_end(self) -> npt.NDArray[Any]:
        """Seconds from sending a request to its last token."""
        return np.asarray(self.last_token - self.sent_at)

    @property
    def tpot(self) -> npt.NDArray[Any]:
        """Mean seconds between a request's tokens, for the requests that have more than one."""
        several = self.num_output > 1
        return np.asarray((self.last_token - self.first_token)[several] / (self.num_output[several] - 1))

    @property
    def gaps(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Times between tokens that follow each other in an answer, and how often each occurred."""
        return np.array(self._gaps), np.array(self._gap_counts, dtype=np.int64)
