"""The record of a run: times of every request, totals over steps, and merged records of several engines."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from copy import copy
from itertools import chain, zip_longest
from math import inf, isnan
from struct import pack
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.serve.cache.tiers import TierTotals
from infercast.serve.scheduler.base import Sequence
from infercast.serve.speculation import DraftCounts
from infercast.serve.step import StepEstimate

# Sums over steps.
#
# Steps are noted down as they come, one by one or in stretches, and added up in portions of a fixed number. So a
# stretch adds up to the same bits as its steps one by one, and a long run needs no more memory than a short one.

Array = npt.NDArray[Any]
Numbers = tuple[int, int, int, int, int]  # Of a step: sequences, waiting ones, tokens, context and sampled rows

PORTION = 1024  # Steps summed at once


@dataclass(slots=True)
class Gauge:
    """A quantity over time: time-weighted sum and peak."""

    area: float = 0.0
    peak: float = 0.0


class PhaseTotals:
    """Totals over the steps of one phase, complete once closed."""

    def __init__(self) -> None:
        self.steps = 0
        self.stretches = 0  # Runs of identical steps, each planned once
        self.tokens = 0
        self.sequences = 0
        self.context = 0
        self.sampled = 0
        self.seconds = 0.0
        self.rows: list[dict[int, int]] = []  # For each of the timer's tables, the number of steps per row
        self.slowed: dict[int, float] = {}  # For rows of the first table, the summed fractional slowdown of GEMMs
        self.varying: list[float] = []  # Seconds of each kernel that varies between steps
        self.running, self.waiting, self.held_blocks = Gauge(), Gauge(), Gauge()
        self._noted: list[tuple[Numbers, StepEstimate, SequenceOf[float], SequenceOf[int]]] = []
        """Stretches that are not added up yet: see `note`."""
        self._num_noted = 0  # Steps of these
        self._left: Array = np.empty((0, 0))  # Steps that do not fill a portion yet, written out

    def note(
        self, first: Numbers, estimate: StepEstimate, seconds: SequenceOf[float], held_blocks: SequenceOf[int]
    ) -> None:
        """One or more steps of the same batch, its contexts growing by a token a step, and how long each took."""
        self._noted.append((first, estimate, seconds, held_blocks))
        self._num_noted += len(seconds)
        most_noted_steps = 4 * PORTION  # Steps noted before whole chunks are summed
        if self._num_noted >= most_noted_steps:
            self._add_up()

    def close(self) -> None:
        """Nothing more will come."""
        self._add_up()
        if self.steps:
            self._add_portions(self._left[:, None, :])

    def so_far(self) -> PhaseTotals:
        """The totals up to now, as a closed copy."""
        self._add_up()
        found = copy(self)
        found.rows, found.slowed = [{**each} for each in self.rows], {**self.slowed}
        for name in ("running", "waiting", "held_blocks"):
            setattr(found, name, replace(getattr(self, name)))
        found.close()
        return found

    def since(self, before: PhaseTotals) -> PhaseTotals:
        """The difference of two snapshots; peaks are those of the whole time."""
        found = PhaseTotals()
        for name in ("steps", "tokens", "sequences", "context", "sampled", "seconds"):
            setattr(found, name, getattr(self, name) - getattr(before, name))
        pairs = zip_longest(self.rows, before.rows, fillvalue=dict[int, int]())
        found.rows = [{row: left for row in now if (left := now[row] - then.get(row, 0))} for now, then in pairs]
        found.slowed = {row: value - before.slowed.get(row, 0.0) for row, value in self.slowed.items()}
        found.varying = [now - then for now, then in zip_longest(self.varying, before.varying, fillvalue=0.0)]
        for name in ("running", "waiting", "held_blocks"):
            now, then = getattr(self, name), getattr(before, name)
            setattr(found, name, Gauge(now.area - then.area, now.peak))
        return found

    def _add_up(self) -> None:
        """Write the steps of noted stretches out as rows of numbers, and add up what fills portions."""
        if not self._noted:
            return
        firsts, estimates, seconds, held = zip(*self._noted, strict=True)
        rows = _table([estimate.rows for estimate in estimates]).T
        if not self.steps:  # the first step tells how many kernels and tables the timer has
            self.rows, self.varying = [{} for _ in rows], [0.0 for _ in estimates[0].varying]
            self._left = np.empty((4 + len(self.varying), 0))
        lengths, numbers = [*map(len, seconds)], _table(firsts)
        steps, sequences = np.array(lengths), numbers[:, 0]
        kernels = zip(*[estimate.varying for estimate in estimates], strict=True)
        left = self._left.shape[1]
        table = np.empty((len(self._left), left + self._num_noted))
        table[:, :left], written = self._left, table[:, left:]
        written[2:4] = np.repeat(sequences, steps), np.repeat(numbers[:, 1], steps)
        by_step = seconds, held, *(_cut(values, lengths) for values in kernels)
        for row, values in zip((0, 1, *range(4, len(table))), by_step, strict=True):
            written[row] = np.frombuffer(pack(f"{self._num_noted}d", *chain.from_iterable(values)))
        whole = (left + self._num_noted) // PORTION * PORTION
        self.steps += self._num_noted
        self.stretches += steps.size
        self._count(steps, numbers, rows, estimates)
        self._add_portions(table[:, :whole].reshape(len(table), -1, PORTION))
        self._left = table[:, whole:].copy()
        self._noted, self._num_noted = [], 0

    def _count(self, steps: Array, numbers: Array, rows: Array, estimates: SequenceOf[StepEstimate]) -> None:
        """Count stretches: the steps of each, and the numbers it begins with."""
        for row, slowed in [(each.rows[0], each.slowed) for each in estimates if each.slowed]:
            self.slowed[row] = self.slowed.get(row, 0.0) + slowed
        num_sequences, _, tokens, context, sampled = (steps @ numbers).tolist()
        self.sequences += num_sequences
        self.tokens += tokens
        self.context += context + int(numbers[:, 0] @ (steps * (steps - 1) // 2))
        self.sampled += sampled
        for counts, of_table in zip(self.rows, rows, strict=True):
            found = np.bincount(of_table, steps)
            for row in np.flatnonzero(found).tolist():
                counts[row] = counts.get(row, 0) + int(found[row])

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


def _table(rows: SequenceOf[tuple[int, ...]]) -> Array:
    return np.frombuffer(pack(f"{len(rows) * len(rows[0])}q", *chain.from_iterable(rows)), np.int64).reshape(
        len(rows), -1
    )


def _cut(timed: SequenceOf[SequenceOf[float]], lengths: list[int]) -> list[SequenceOf[float]]:
    """Of the steps of each stretch that were timed, those that were computed."""
    return [values if len(values) == steps else values[:steps] for values, steps in zip(timed, lengths, strict=True)]


def _sum(total: float, portions: Array) -> float:
    for portion in np.add.reduce(portions, axis=1).tolist():
        total += portion
    return total


MARKS = 25  # Snapshots of step totals taken over a run
MOST_NOTED_ENDS = 4096  # Step ends noted before they are converted to arrays


class Outage(NamedTuple):
    """What the failure of a replica cost."""

    begin: float
    end: float
    retried: int  # Requests that were on it, and are sent again to the others ...
    wasted: int  # ... and tokens computed for them.


class RequestTimes:
    """Arrays over requests, in seconds, and what follows from them."""

    sent_at: Array
    started_at: Array  # Start of the first step that includes the request
    first_token: Array
    last_token: Array
    num_output: Array
    num_cached: Array
    failed: Array  # Whether the client left before it had the whole answer: times end then

    @property
    def timed_gaps(self) -> tuple[Array, Array, Array]:
        """End time, inter-token latency and count of each."""
        raise NotImplementedError

    def in_system_at(self, time: float) -> int:
        """Requests sent but not fully answered at that time."""
        return int(np.count_nonzero(self.sent_at <= time)) - int(np.count_nonzero(self.last_token <= time))

    @property
    def ttft(self) -> Array:
        return np.asarray(self.first_token - self.sent_at)

    @property
    def end_to_end(self) -> Array:
        return np.asarray(self.last_token - self.sent_at)

    @property
    def tpot(self) -> Array:
        """Mean time per output token of a request, for requests with more than one."""
        several = self.num_output > 1
        return np.asarray((self.last_token - self.first_token)[several] / (self.num_output[several] - 1))

    @property
    def gaps(self) -> tuple[Array, Array]:
        """Inter-token latencies and the count of each."""
        return self.timed_gaps[1:]


class Record(RequestTimes):
    def __init__(
        self, num_requests: int, num_blocks: int, token_path_seconds: float = 0.0, token_turn_seconds: float = 0.0
    ) -> None:
        self.sent_at = np.full(num_requests, np.nan)
        self.started_at = np.full(num_requests, np.nan)
        self.first_token = np.full(num_requests, np.nan)
        self.last_token = np.full(num_requests, np.nan)
        self.num_output = np.zeros(num_requests, dtype=np.int64)
        self.num_cached = np.zeros(num_requests, dtype=np.int64)
        self.failed = np.zeros(num_requests, dtype=bool)
        self.num_left = self.num_wasted = 0  # Requests that clients left, those sent again too, and tokens computed
        self.prefilling, self.decoding = PhaseTotals(), PhaseTotals()
        """Steps that compute any prompt tokens (possibly mixed with decodes), and decode-only steps."""
        self.running, self.waiting, self.kv_usage = Gauge(), Gauge(), Gauge()
        self.marks: list[tuple[float, PhaseTotals, PhaseTotals]] = []
        """A few moments, and sums over the steps up to each, so that a part of the run can be summed up ..."""
        self.next_mark: float = inf  # ... and the first request that makes the next one; none unless a part is wanted
        self.span: float | None = None  # Seconds of the part that step totals cover; None: the whole run ...
        self.share = 1.0  # ... and its share of the tokens in steps with prefill.
        self.num_preemptions = 0
        self.outages: list[Outage] = []
        self.drafts = DraftCounts()  # Draft and acceptance counts, with speculative decoding
        self.tier: TierTotals | None = None  # Totals of the KV cache's host memory tier, if any; set at the run's end
        self.last_end = np.nan  # When tokens of the last completed step reached the clients ...
        self.decoded_at = np.nan
        """... and of the last step with tokens of all decoding sequences: the same, unless it was of prompts alone."""
        self._num_blocks = num_blocks
        # A step's tokens are sent one after the other, so a typical token is delayed.
        self.token_path_seconds = token_path_seconds
        self.token_turn_seconds = token_turn_seconds
        # Most tokens follow one in the previous step, so it is enough to store when results were processed and, per run
        # of steps, their number, the tokens of each and how many of these were not first tokens.
        self.ends = array("d")
        self.stretches: list[int] = []
        self._written: list[tuple[Array, Array]] = []
        self.before_write: Callable[[], None] | None = None  # Of who reads these as they come
        self.ahead: tuple[SequenceOf[float], int, int] | None = None
        """Ends of repeated steps that are timed but not launched, their tokens, and those of the first."""
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
        self, end: float, num_sampled: int, others: SequenceOf[Sequence], done: SequenceOf[Sequence],
        left: SequenceOf[Sequence] = (), apart: bool = False,
    ) -> None:  # fmt: skip
        """The engine has processed a step, and its tokens are on their way to the clients. All sampled sequences got a
        token in the previous step too, except possibly ``others``; those in ``left`` get none in the next step. After
        prefill-only steps (``apart``), decoding sequences continue from the last step that was not.
        """
        time = end + (self.token_path_seconds + self.token_turn_seconds * num_sampled)
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
        self.ends.append(end)
        self.stretches += (1, num_sampled, num_steady)
        self.last_end = time
        for sequence in done:
            self.last_token[sequence.index] = time
            self.num_output[sequence.index] = sequence.num_output

    def lose(self, index: int, left: float, wasted: int) -> None:
        self.num_left += 1
        self.num_wasted += wasted
        self.last_token[index] = left
        if not isnan(left):
            self.failed[index], self.num_output[index] = True, 1
            for times in (self.started_at, self.first_token):
                times[index] = times[index] if times[index] <= left else left

    def drop(self, index: int) -> None:
        """A request is gone with what was computed for it, and is sent again as if it had never come."""
        for times in (self.sent_at, self.started_at, self.first_token):
            times[index] = np.nan
        self.num_cached[index] = 0

    def _note_late(self, time: float, before: float, count: int) -> None:
        """Note ``count`` tokens that did not follow one in the previous step."""
        self._late_gaps.append(time - before)
        self._late_times.append(time)
        self._late_counts.append(count)

    def note_last_tokens(self, sequences: SequenceOf[Sequence]) -> None:
        """The last token of these came in the last completed step that was not prefill-only."""
        for sequence in sequences:
            sequence.last_token = self.decoded_at

    def steady_tokens(self, count: int, ends: list[float]) -> None:
        """Consecutive steps ended, each with a token for the same sequences, none of them a last one."""
        if ends:
            self.ends.fromlist(ends)
            self.stretches += (len(ends), count, count)
            self.last_end = self.decoded_at = ends[-1] + (self.token_path_seconds + self.token_turn_seconds * count)
            if len(self.ends) >= MOST_NOTED_ENDS:
                self.write()

    def mark(self, time: float) -> None:
        """Keep the sums over the steps so far."""
        self.marks.append((time, self.prefilling.so_far(), self.decoding.so_far()))
        self.next_mark = -(-len(self.marks) * self.sent_at.size // MARKS)

    def grow(self, num_requests: int) -> None:
        """There will be more requests than was said at first; of the marks, those stay that would have been made."""
        before = self.sent_at.size
        for name in RequestTimes.__annotations__:
            values = getattr(self, name)
            more = np.full(num_requests - before, np.nan if values.dtype == float else 0, dtype=values.dtype)
            setattr(self, name, np.concatenate([values, more]))
        places = range(-(-MARKS * before // num_requests))
        self.marks = [self.marks[at] for place in places if (at := place * num_requests // before) < len(self.marks)]

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
        self.num_preemptions += num_preemptions
        self.before_write = None  # nobody reads steps any more
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
        return {"prefill": self.prefilling, "decode": self.decoding}

    @property
    def timed_gaps(self) -> tuple[Array, Array, Array]:
        """End time, inter-token latency and count of each."""
        self.write()
        ends, stretches = (np.concatenate(parts) for parts in zip(*self._written, strict=True))
        num_tokens, counts = (np.repeat(stretches[:, column], stretches[:, 0]) for column in (1, 2))
        times = ends + (self.token_path_seconds + self.token_turn_seconds * num_tokens)
        follow = np.flatnonzero(counts[1:]) + 1
        gaps = np.concatenate([times[follow] - times[follow - 1], np.array(self._late_gaps)])
        ended = np.concatenate([times[follow], self._late_times])
        return ended, gaps, np.concatenate([counts[follow], np.array(self._late_counts, dtype=np.int64)])

    def write(self) -> None:
        """Convert what was noted so far to arrays, which take less memory."""
        if self.before_write is not None:
            self.before_write()
        noted = np.array(self.ends), np.array(self.stretches, dtype=np.int64).reshape(-1, 3)
        self._written.append(noted)
        self.ends, self.stretches = array("d"), []


# The clients' view of several engines, merged from the engines' records.


class ServedRequests(RequestTimes):
    """Arrays over requests, in seconds. Each request was served by one of the engines."""

    def __init__(self, records: SequenceOf[Record]) -> None:
        self.engine = np.zeros(records[0].last_token.size, dtype=np.int64)  # The engine that served each request
        for number, record in enumerate(records):
            self.engine[~np.isnan(record.last_token)] = number
        for name in RequestTimes.__annotations__:
            picked = getattr(records[0], name).copy()
            for number, record in enumerate(records):
                served = self.engine == number
                picked[served] = getattr(record, name)[served]
            setattr(self, name, picked)
        ended, gaps, counts = zip(*(record.timed_gaps for record in records), strict=True)
        self._timed_gaps = np.concatenate(ended), np.concatenate(gaps), np.concatenate(counts)

    @property
    def timed_gaps(self) -> tuple[Array, Array, Array]:
        """End time, inter-token latency and count of each, over all engines."""
        return self._timed_gaps

    def first(self, count: int) -> ServedRequests:
        """What clients saw of the first requests; and between tokens, until the last of these was sent (or ended)."""
        if count == self.sent_at.size:
            return self
        part = copy(self)
        for name in ("engine", *RequestTimes.__annotations__):
            setattr(part, name, getattr(self, name)[:count])
        ended, gaps, counts = self.timed_gaps
        inside = ended <= part.sent_at.max()
        inside = inside if inside.any() else ended <= part.last_token.max()
        part._timed_gaps = ended[inside], gaps[inside], counts[inside]
        return part
