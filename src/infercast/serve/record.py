"""What a run leaves behind: the times of every request, and sums over its steps."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engine.step import StepEstimate, StepShape
from infercast.serve.scheduler import Plan, Scheduler, Sequence
from infercast.serve.totals import Gauge, PhaseTotals

PHASES = ("prefill", "decode")
"""Steps that compute any prompt tokens (decodes may ride along), and steps of single new tokens only."""


class Record:
    """Arrays over requests, filled as the run goes on. Times are in seconds."""

    def __init__(self, num_requests: int, token_path_seconds: float = 0.0, token_turn_seconds: float = 0.0) -> None:
        self.sent_at = np.full(num_requests, np.nan)
        self.started_at = np.full(num_requests, np.nan)
        """When the first step with the request in it began."""
        self.first_token = np.full(num_requests, np.nan)
        self.last_token = np.full(num_requests, np.nan)
        self.num_output = np.zeros(num_requests, dtype=np.int64)
        self.num_cached = np.zeros(num_requests, dtype=np.int64)
        self.phases = {phase: PhaseTotals() for phase in PHASES}
        self.running, self.waiting, self.kv_usage = Gauge(), Gauge(), Gauge()
        self.num_preemptions = 0
        self._token_path_seconds = token_path_seconds
        self._token_turn_seconds = token_turn_seconds
        self._previous_end = np.nan
        # Most tokens of a step follow their predecessor by the same gap, so gaps are kept with a count.
        self._gaps: list[float] = []
        self._gap_counts: list[int] = []

    def sent(self, index: int, time: float) -> None:
        """A client sent its request."""
        self.sent_at[index] = time

    def start(self, sequences: SequenceOf[Sequence], time: float) -> None:
        """Sequences left the queue for a step that begins at ``time``."""
        for sequence in sequences:
            if not sequence.num_preemptions:
                self.started_at[sequence.index] = time
                self.num_cached[sequence.index] = sequence.num_cached

    def steps(
        self,
        shape: StepShape,
        estimate: StepEstimate,
        seconds: SequenceOf[float],
        *,
        running: int,
        waiting: int,
        kv: SequenceOf[float],
    ) -> None:
        """One or more steps of the same batch were launched; each adds its ``seconds`` to the run."""
        self.phases["decode" if shape.is_decode else "prefill"].add(shape, estimate, seconds)
        self.running.add([running] * len(seconds), seconds)
        self.waiting.add([waiting] * len(seconds), seconds)
        self.kv_usage.add(kv, seconds)

    def tokens(self, plan: Plan, end: float, done: SequenceOf[Sequence]) -> None:
        """The engine is done with a step whose tokens are on their way to their clients."""
        time = end + self._path(len(plan.sampled))
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

    def all_produced_last(self, sequences: SequenceOf[Sequence]) -> bool:
        """Whether each of them got a token at the last step that ended."""
        return all(sequence.last_token == self._previous_end for sequence in sequences)

    def steady_tokens(self, sequences: SequenceOf[Sequence], ends: SequenceOf[float]) -> None:
        """Steps ended one after the other, each with a token for all these sequences and none their last."""
        path = self._path(len(sequences))
        times = [end + path for end in ends]
        self._gaps += [later - earlier for earlier, later in pairwise([self._previous_end, *times])]
        self._gap_counts += [len(sequences)] * len(times)
        self._previous_end = times[-1]
        for sequence in sequences:
            sequence.last_token = self._previous_end

    def _path(self, num_tokens: int) -> float:
        """Seconds to a client: tokens of one step are handed over one after the other, so a typical one waits."""
        return self._token_path_seconds + self._token_turn_seconds * num_tokens

    def close(self, scheduler: Scheduler) -> Record:
        """The run is over."""
        self.num_preemptions = scheduler.num_preemptions
        return self

    def in_system_at(self, time: float) -> int:
        """Requests that had been sent but not fully answered at that moment."""
        return int(np.count_nonzero(self.sent_at <= time)) - int(np.count_nonzero(self.last_token <= time))

    @property
    def ttft(self) -> npt.NDArray[Any]:
        """From sending a request to its first token."""
        return np.asarray(self.first_token - self.sent_at)

    @property
    def end_to_end(self) -> npt.NDArray[Any]:
        """From sending a request to its last token."""
        return np.asarray(self.last_token - self.sent_at)

    @property
    def tpot(self) -> npt.NDArray[Any]:
        """Mean time between a request's tokens, for the requests that have more than one."""
        several = self.num_output > 1
        return np.asarray((self.last_token - self.first_token)[several] / (self.num_output[several] - 1))

    @property
    def gaps(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Times between tokens that follow each other in an answer, and how often each occurred."""
        return np.array(self._gaps), np.array(self._gap_counts, dtype=np.int64)
