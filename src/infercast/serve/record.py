"""What a run leaves behind: the times of every request, and sums over its steps."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.serve.scheduler.sequence import Sequence
from infercast.serve.speculation import DraftCounts
from infercast.serve.tier_totals import TierTotals
from infercast.serve.totals import Gauge, PhaseTotals

MARKS = 25
"""Moments of a run at which sums over its steps are kept."""
MOST_NOTED = 4096
"""Ends of steps that are noted before they are written down as arrays."""


class Record:
    """Arrays over requests, filled as the run goes on. Times are in seconds."""

    def __init__(
        self, num_requests: int, num_blocks: int, token_path_seconds: float = 0.0, token_turn_seconds: float = 0.0
    ) -> None:
        self.sent_at = np.full(num_requests, np.nan)
        self.started_at = np.full(num_requests, np.nan)
        """When the first step with the request in it began."""
        self.first_token = np.full(num_requests, np.nan)
        self.last_token = np.full(num_requests, np.nan)
        self.num_output = np.zeros(num_requests, dtype=np.int64)
        self.num_cached = np.zeros(num_requests, dtype=np.int64)
        self.prefilling, self.decoding = PhaseTotals(), PhaseTotals()
        """Steps that compute any prompt tokens (decodes may be beside them), and steps of single new tokens only."""
        self.running, self.waiting, self.kv_usage = Gauge(), Gauge(), Gauge()
        self.marks: list[tuple[float, PhaseTotals, PhaseTotals]] = []
        """A few moments, and sums over the steps up to each, so that a part of the run can be summed up."""
        self.span: float | None = None
        """Seconds of the part that sums over steps are of; None: of the whole run ..."""
        self.share = 1.0
        """... and its share of the tokens of steps with prompts."""
        self.num_preemptions = 0
        self.drafts = DraftCounts()
        """What became of drafts, where there are any."""
        self.tier: TierTotals | None = None
        """Of the KV cache's tier in the host's memory, where there is one; there when the run is over."""
        self.last_end = np.nan
        """When the tokens of the step that ended last reached their clients ..."""
        self.decoded_at = np.nan
        """... and those of the last one in which everybody got a token who decodes."""
        self._num_blocks = num_blocks
        # Tokens of one step are handed over one after the other, so a typical one waits.
        self._token_path_seconds = token_path_seconds
        self._token_turn_seconds = token_turn_seconds
        # Most tokens of a step follow those of the step before, so it is enough to know when results were taken in, and
        # for stretches of them how many there were, how many tokens each had and how many of these were not the first.
        self._ends: list[float] = []
        self._stretches: list[int] = []
        self._written: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
        self._late_gaps: list[float] = []
        self._late_times: list[float] = []
        self._late_counts: list[int] = []

    def start(self, sequences: SequenceOf[Sequence], time: float) -> None:
        """Sequences left the queue for a step that begins at ``time``."""
        for sequence in sequences:
            if not sequence.num_preemptions:
                self.started_at[sequence.index] = time
                self.num_cached[sequence.index] = sequence.num_cached

    def tokens(
        self,
        end: float,
        num_sampled: int,
        others: SequenceOf[Sequence],
        done: SequenceOf[Sequence],
        left: SequenceOf[Sequence] = (),
        *,
        apart: bool = False,
    ) -> None:
        """The engine is done with a step whose tokens are on their way to their clients.

        Of those sampled all got a token in the step before too, except perhaps ``others``; those who ``left`` will not
        get one in the step after it. Where steps of prompts are ``apart``, it is the last step that was not.
        """
        time = end + (self._token_path_seconds + self._token_turn_seconds * num_sampled)
        num_steady = num_sampled
        for sequence in others:
            if sequence.last_token != self.last_end:
                num_steady -= 1
                if sequence.last_token == sequence.last_token:  # not for those without a token: that is not a number
                    self._note_late(time, sequence.last_token, 1)
                else:
                    self.first_token[sequence.index] = time
            sequence.last_token = time
        for sequence in left:
            sequence.last_token = time
        if self.decoded_at != self.last_end and (num_held_up := num_sampled - len(others)):
            num_steady -= num_held_up
            self._note_late(time, self.decoded_at, num_held_up)
        if not apart:
            self.decoded_at = time
        self._ends.append(end)
        self._stretches += (1, num_sampled, num_steady)
        self.last_end = time
        for sequence in done:
            self.last_token[sequence.index] = time
            self.num_output[sequence.index] = sequence.num_output

    @property
    def was_interrupted(self) -> bool:
        """Whether those who decode got no token in the step that ended last."""
        return self.decoded_at != self.last_end

    def _note_late(self, time: float, before: float, count: int) -> None:
        """So many got a token that did not follow the step before."""
        self._late_gaps.append(time - before)
        self._late_times.append(time)
        self._late_counts.append(count)

    def note_last_tokens(self, sequences: SequenceOf[Sequence]) -> None:
        """These got a token in the step that ended last and was not of prompts alone."""
        for sequence in sequences:
            sequence.last_token = self.decoded_at

    def steady_tokens(self, count: int, ends: SequenceOf[float]) -> None:
        """Steps ended one after the other, each with a token for the same sequences and none their last."""
        if ends:
            self._ends.extend(ends)
            self._stretches += (len(ends), count, count)
            self.last_end = self.decoded_at = ends[-1] + (self._token_path_seconds + self._token_turn_seconds * count)
            if len(self._ends) >= MOST_NOTED:
                self._write()

    def mark(self, index: int, time: float) -> None:
        """A request was taken in: now and then, sums over the steps so far are kept."""
        if index * MARKS >= len(self.marks) * self.sent_at.size:
            self.marks.append((time, self.prefilling.so_far(), self.decoding.so_far()))

    def within(self, begin: float, end: float) -> Record:
        """The same requests, with the sums over steps of a part of the run, as far as marks tell it."""
        inside = [mark for mark in self.marks if begin <= mark[0] <= end]
        if len(inside) < 2 or inside[0][0] == inside[-1][0]:
            return self
        first, last = inside[0], inside[-1]
        part = copy(self)
        part.prefilling, part.decoding = (now.since(then) for now, then in zip(last[1:], first[1:], strict=True))
        part.span = last[0] - first[0]
        part.share = part.prefilling.tokens / max(self.prefilling.tokens, 1)
        part.running, part.waiting, part.kv_usage = Gauge(), Gauge(), Gauge()
        part._sum_gauges()
        return part

    def close(self, num_preemptions: int) -> Record:
        """The run is over."""
        self.num_preemptions = num_preemptions
        for phase in (self.prefilling, self.decoding):
            phase.close()
        self._sum_gauges()
        return self

    def _sum_gauges(self) -> None:
        phases = self.prefilling, self.decoding
        for gauge, parts, unit in (
            (self.running, [phase.running for phase in phases], 1),
            (self.waiting, [phase.waiting for phase in phases], 1),
            (self.kv_usage, [phase.held_blocks for phase in phases], self._num_blocks),
        ):
            gauge.area = sum([part.area for part in parts]) / unit
            gauge.peak = max(part.peak for part in parts) / unit

    @property
    def phases(self) -> dict[str, PhaseTotals]:
        """Sums over the steps, by kind."""
        return {"prefill": self.prefilling, "decode": self.decoding}

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
        return self.timed_gaps[1:]

    @property
    def timed_gaps(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """When each of these times ended, and the times and how often each occurred."""
        self._write()
        ends, stretches = (np.concatenate(parts) for parts in zip(*self._written, strict=True))
        num_tokens, counts = (np.repeat(stretches[:, column], stretches[:, 0]) for column in (1, 2))
        times = ends + (self._token_path_seconds + self._token_turn_seconds * num_tokens)
        follow = np.flatnonzero(counts[1:]) + 1
        late = np.array(self._late_gaps)
        gaps = np.concatenate([times[follow] - times[follow - 1], late])
        ended = np.concatenate([times[follow], self._late_times])
        return ended, gaps, np.concatenate([counts[follow], np.array(self._late_counts, dtype=np.int64)])

    def _write(self) -> None:
        """Write down as arrays what was noted so far, which takes less room."""
        noted = np.array(self._ends), np.array(self._stretches, dtype=np.int64).reshape(-1, 3)
        self._written.append(noted)
        self._ends, self._stretches = [], []
