"""The record of a run: times of every request, totals over steps, and merged records of several engines."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from copy import copy
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.serve.cache.tiers import TierTotals
from infercast.serve.scheduler.base import Sequence
from infercast.serve.speculation import DraftCounts
from infercast.serve.step import StepEstimate

# Totals over steps. Steps are noted one at a time or in runs, and summed in chunks of a fixed size: a run of steps
# gives the same bits as single steps, and memory does not grow with the length of the simulation.


Array = npt.NDArray[Any]

PORTION = 1024
"""Steps summed at once."""
MOST_NOTED_STEPS = 4 * PORTION
"""Steps noted before whole chunks are summed."""


@dataclass(slots=True)
class Gauge:
    """A quantity over time: time-weighted sum and peak."""

    area: float = 0.0
    peak: float = 0.0


class PhaseTotals:
    """Totals over the steps of one phase, complete once closed."""

    def __init__(self) -> None:
        self.steps = 0
        self.stretches = 0
        """Runs of identical steps, each planned once."""
        self.tokens = 0
        self.sequences = 0
        self.context = 0
        self.sampled = 0
        self.seconds = 0.0
        self.rows: list[dict[int, int]] = []
        """For each of the timer's tables, the number of steps per row."""
        self.slowed: dict[int, float] = {}
        """For rows of the first table, the summed fractional slowdown of GEMMs."""
        self.varying: list[float] = []
        """Seconds of each kernel that varies between steps."""
        self.running, self.waiting, self.held_blocks = Gauge(), Gauge(), Gauge()
        # Per step: seconds, held blocks, and seconds of each varying kernel.
        self._seconds: list[float] = []
        self._held: list[int] = []
        self._kernels: list[list[float]] = []
        # Per run: steps; sequences, waiting, tokens, context and sampled rows of the first; table rows.
        self._stretches: list[int] = []
        self._width = 0
        # Steps that do not fill a chunk yet.
        self._left: Array = np.empty((0, 0))

    def note(
        self,
        first: tuple[int, int, int, int, int],
        estimate: StepEstimate,
        seconds: SequenceOf[float],
        held_blocks: SequenceOf[int],
    ) -> None:
        """Note consecutive steps of the same batch, with contexts growing by a token per step, and their durations.

        ``first``: sequences, waiting, tokens, context and sampled rows of the first step.
        """
        steps = len(seconds)
        if not self._width:
            self._open(estimate)
        self._seconds += seconds
        self._held += held_blocks
        for noted, values in zip(self._kernels, estimate.varying, strict=True):
            noted.extend(values if len(values) == steps else values[:steps])
        self._stretches += (steps, *first, *estimate.rows)
        if estimate.slowed:
            self.slowed[estimate.rows[0]] = self.slowed.get(estimate.rows[0], 0.0) + estimate.slowed
        if len(self._seconds) >= MOST_NOTED_STEPS:
            self._add_up()

    def _open(self, estimate: StepEstimate) -> None:
        """Size the arrays by the first step's kernels and tables."""
        self._width = 6 + len(estimate.rows)
        self.rows, self.varying = [{} for _ in estimate.rows], [0.0 for _ in estimate.varying]
        self._kernels = [[] for _ in estimate.varying]
        self._left = np.empty((4 + len(self._kernels), 0))

    def close(self) -> None:
        """Sum what is left."""
        if self._width:
            self._add_up()
            self._add_portions(self._left[:, None, :])

    def so_far(self) -> PhaseTotals:
        """The totals up to now, as a closed copy."""
        found = PhaseTotals()
        if self._width:
            self._add_up()
            for name in ("steps", "tokens", "sequences", "context", "sampled", "seconds"):
                setattr(found, name, getattr(self, name))
            found.rows, found.varying = [dict(counts) for counts in self.rows], [*self.varying]
            found.slowed = dict(self.slowed)
            for name in ("running", "waiting", "held_blocks"):
                setattr(found, name, replace(getattr(self, name)))
            found._add_portions(self._left[:, None, :])
        return found

    def since(self, before: PhaseTotals) -> PhaseTotals:
        """The difference of two snapshots; peaks are those of the whole time."""
        found = PhaseTotals()
        for name in ("steps", "tokens", "sequences", "context", "sampled", "seconds"):
            setattr(found, name, getattr(self, name) - getattr(before, name))
        earlier = before.rows or [{} for _ in self.rows]
        pairs = zip(self.rows, earlier, strict=True)
        found.rows = [{row: left for row in now if (left := now[row] - then.get(row, 0))} for now, then in pairs]
        found.slowed = {row: value - before.slowed.get(row, 0.0) for row, value in self.slowed.items()}
        found.varying = [now - then for now, then in zip_longest(self.varying, before.varying, fillvalue=0.0)]
        for name in ("running", "waiting", "held_blocks"):
            now, then = getattr(self, name), getattr(before, name)
            setattr(found, name, Gauge(now.area - then.area, now.peak))
        return found

    def _add_up(self) -> None:
        """Count the noted runs, expand their steps to columns and sum whole chunks of these."""
        stretches = np.array(self._stretches, dtype=np.int64).reshape(-1, self._width).T
        steps, sequences, waiting, tokens, computed, sampled, *rows = stretches
        self.steps += int(steps.sum())
        self.stretches += steps.size
        self.sequences += int((steps * sequences).sum())
        self.tokens += int((steps * tokens).sum())
        self.context += int((steps * computed + sequences * steps * (steps - 1) // 2).sum())
        self.sampled += int((steps * sampled).sum())
        for counts, of_table in zip(self.rows, rows, strict=True):
            met, places = np.unique(of_table, return_inverse=True)
            for row, count in zip(met.tolist(), np.bincount(places, steps).tolist(), strict=True):
                counts[row] = counts.get(row, 0) + int(count)
        noted = [self._seconds, self._held, np.repeat(sequences, steps), np.repeat(waiting, steps), *self._kernels]
        written = np.stack([np.asarray(each, dtype=np.float64) for each in noted])
        table = np.concatenate([self._left, written], axis=1)
        whole = table.shape[1] // PORTION
        self._add_portions(table[:, : whole * PORTION].reshape(len(table), whole, PORTION))
        self._left = table[:, whole * PORTION :].copy()
        self._stretches, self._seconds, self._held = [], [], []
        self._kernels = [[] for _ in self._kernels]

    def _add_portions(self, table: Array) -> None:
        """Sum chunks of steps: seconds, held blocks, running, waiting and each varying kernel."""
        seconds, held, running, waiting, *kernels = table
        if not seconds.size:
            return
        self.seconds = _sum(self.seconds, seconds)
        for gauge, values in ((self.held_blocks, held), (self.running, running), (self.waiting, waiting)):
            gauge.area = _sum(gauge.area, values * seconds)
            gauge.peak = max(gauge.peak, float(values.max()))
        self.varying = [_sum(total, kernel) for total, kernel in zip(self.varying, kernels, strict=True)]


def _sum(total: float, portions: Array) -> float:
    """Add the chunks' sums to a total in order."""
    for portion in np.add.reduce(portions, axis=1).tolist():
        total += portion
    return total


MARKS = 25
"""Snapshots of step totals taken over a run."""
MOST_NOTED_ENDS = 4096
"""Step ends noted before they are converted to arrays."""


class Record:
    """Arrays over requests, filled during the run. Times are in seconds."""

    def __init__(
        self, num_requests: int, num_blocks: int, token_path_seconds: float = 0.0, token_turn_seconds: float = 0.0
    ) -> None:
        self.sent_at = np.full(num_requests, np.nan)
        self.started_at = np.full(num_requests, np.nan)
        """Start of the first step that includes the request."""
        self.first_token = np.full(num_requests, np.nan)
        self.last_token = np.full(num_requests, np.nan)
        self.num_output = np.zeros(num_requests, dtype=np.int64)
        self.num_cached = np.zeros(num_requests, dtype=np.int64)
        self.prefilling, self.decoding = PhaseTotals(), PhaseTotals()
        """Steps that compute any prompt tokens (possibly mixed with decodes), and decode-only steps."""
        self.running, self.waiting, self.kv_usage = Gauge(), Gauge(), Gauge()
        self.marks: list[tuple[float, PhaseTotals, PhaseTotals]] = []
        """Snapshots of the step totals, so that part of the run can be summed."""
        self.span: float | None = None
        """Seconds of the part that step totals cover; None: the whole run ..."""
        self.share = 1.0
        """... and its share of the tokens in steps with prefill."""
        self.num_preemptions = 0
        self.drafts = DraftCounts()
        """Draft and acceptance counts, with speculative decoding."""
        self.tier: TierTotals | None = None
        """Totals of the KV cache's host memory tier, if any; set at the end of the run."""
        self.last_end = np.nan
        """When tokens of the last completed step reached the clients ..."""
        self.decoded_at = np.nan
        """... and those of the last step in which every decoding sequence got a token."""
        self._num_blocks = num_blocks
        # A step's tokens are sent one after the other, so a typical token is delayed.
        self._token_path_seconds = token_path_seconds
        self._token_turn_seconds = token_turn_seconds
        # Most tokens follow one in the previous step, so it is enough to store when results were processed and, per run
        # of steps, their number, the tokens of each and how many of these were not first tokens.
        self._ends: list[float] = []
        self._stretches: list[int] = []
        self._written: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
        self._late_gaps: list[float] = []
        self._late_times: list[float] = []
        self._late_counts: list[int] = []

    def start(self, sequences: SequenceOf[Sequence], time: float) -> None:
        """Sequences were admitted to a step that begins at ``time``."""
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
        """The engine has processed a step, and its tokens are on their way to the clients.

        All sampled sequences got a token in the previous step too, except possibly ``others``; those in ``left`` get
        none in the next step. After prefill-only steps (``apart``), decoding sequences continue from the last step that
        was not.
        """
        time = end + (self._token_path_seconds + self._token_turn_seconds * num_sampled)
        num_steady = num_sampled
        for sequence in others:
            if sequence.last_token != self.last_end:
                num_steady -= 1
                if sequence.last_token == sequence.last_token:  # NaN before the first token
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
        """True if decoding sequences got no token in the last completed step."""
        return self.decoded_at != self.last_end

    def _note_late(self, time: float, before: float, count: int) -> None:
        """Note ``count`` tokens that did not follow one in the previous step."""
        self._late_gaps.append(time - before)
        self._late_times.append(time)
        self._late_counts.append(count)

    def note_last_tokens(self, sequences: SequenceOf[Sequence]) -> None:
        """The last token of these came in the last completed step that was not prefill-only."""
        for sequence in sequences:
            sequence.last_token = self.decoded_at

    def steady_tokens(self, count: int, ends: SequenceOf[float]) -> None:
        """Consecutive steps ended, each with a token for the same sequences, none of them a last one."""
        if ends:
            self._ends.extend(ends)
            self._stretches += (len(ends), count, count)
            self.last_end = self.decoded_at = ends[-1] + (self._token_path_seconds + self._token_turn_seconds * count)
            if len(self._ends) >= MOST_NOTED_ENDS:
                self._write()

    def mark(self, index: int, time: float) -> None:
        """A request was admitted: take a snapshot of the step totals now and then."""
        if index * MARKS >= len(self.marks) * self.sent_at.size:
            self.marks.append((time, self.prefilling.so_far(), self.decoding.so_far()))

    def within(self, begin: float, end: float) -> Record:
        """The same requests, with step totals restricted to part of the run, to the resolution of the snapshots."""
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
        """Finish the record."""
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
        """Step totals by phase."""
        return {"prefill": self.prefilling, "decode": self.decoding}

    def in_system_at(self, time: float) -> int:
        """Requests sent but not fully answered at that time."""
        return int(np.count_nonzero(self.sent_at <= time)) - int(np.count_nonzero(self.last_token <= time))

    @property
    def ttft(self) -> npt.NDArray[Any]:
        """Time to first token, from sending."""
        return np.asarray(self.first_token - self.sent_at)

    @property
    def end_to_end(self) -> npt.NDArray[Any]:
        """Time from sending to the last token."""
        return np.asarray(self.last_token - self.sent_at)

    @property
    def tpot(self) -> npt.NDArray[Any]:
        """Mean time per output token of a request, for requests with more than one."""
        several = self.num_output > 1
        return np.asarray((self.last_token - self.first_token)[several] / (self.num_output[several] - 1))

    @property
    def gaps(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Inter-token latencies and the count of each."""
        return self.timed_gaps[1:]

    @property
    def timed_gaps(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """End time, inter-token latency and count of each."""
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
        """Convert what was noted so far to arrays, which take less memory."""
        noted = np.array(self._ends), np.array(self._stretches, dtype=np.int64).reshape(-1, 3)
        self._written.append(noted)
        self._ends, self._stretches = [], []


# The clients' view of several engines, merged from the engines' records.


Times = npt.NDArray[Any]


class Served:
    """Arrays over requests, in seconds. Each request was served by one of the engines."""

    def __init__(self, records: SequenceOf[Record]) -> None:
        self.engine = np.zeros(records[0].last_token.size, dtype=np.int64)
        """Index of the engine that served each request."""
        for number, record in enumerate(records):
            self.engine[~np.isnan(record.last_token)] = number
        self.sent_at = self._pick([record.sent_at for record in records])
        self.started_at = self._pick([record.started_at for record in records])
        self.first_token = self._pick([record.first_token for record in records])
        self.last_token = self._pick([record.last_token for record in records])
        self.num_output = self._pick([record.num_output for record in records])
        self.num_cached = self._pick([record.num_cached for record in records])
        self.timed_gaps: tuple[Times, Times, Times] = _join_gaps(records)

    def _pick(self, arrays: SequenceOf[Times]) -> Times:
        picked = arrays[0].copy()
        for number, values in enumerate(arrays):
            served = self.engine == number
            picked[served] = values[served]
        return picked

    def in_system_at(self, time: float) -> int:
        """Requests sent but not fully answered at that time."""
        return int(np.count_nonzero(self.sent_at <= time)) - int(np.count_nonzero(self.last_token <= time))

    @property
    def gaps(self) -> tuple[Times, Times]:
        """Inter-token latencies and the count of each."""
        return self.timed_gaps[1:]

    @property
    def ttft(self) -> Times:
        """Time to first token, from sending."""
        return np.asarray(self.first_token - self.sent_at)

    @property
    def end_to_end(self) -> Times:
        """Time from sending to the last token."""
        return np.asarray(self.last_token - self.sent_at)

    @property
    def tpot(self) -> Times:
        """Mean time per output token of a request, for requests with more than one."""
        several = self.num_output > 1
        return np.asarray((self.last_token - self.first_token)[several] / (self.num_output[several] - 1))


def _join_gaps(records: SequenceOf[Record]) -> tuple[Times, Times, Times]:
    """End time, inter-token latency and count of each, over all engines."""
    ended, gaps, counts = zip(*(record.timed_gaps for record in records), strict=True)
    return np.concatenate(ended), np.concatenate(gaps), np.concatenate(counts)
