"""Sums over steps.

Steps are noted down as they come, one by one or in stretches, and added up in portions of a fixed number. So a stretch
adds up to the same bits as its steps one by one, and a long run needs no more memory than a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.serve.step import StepEstimate

Array = npt.NDArray[Any]

PORTION = 1024
"""Steps that are added up at once."""
MOST_NOTED = 4 * PORTION
"""Steps that are noted before whole portions of them are added up."""


@dataclass(slots=True)
class Gauge:
    """A quantity over time: its time-weighted sum and its peak."""

    area: float = 0.0
    peak: float = 0.0


class PhaseTotals:
    """Sums over the steps of one phase, complete once it is closed."""

    def __init__(self) -> None:
        self.steps = 0
        self.stretches = 0
        """Batches that steps were repeated with, each of which the simulation planned once."""
        self.tokens = 0
        self.sequences = 0
        self.context = 0
        self.sampled = 0
        self.seconds = 0.0
        self.rows: list[dict[int, int]] = []
        """For each table of the timer, how many steps ran the kernels of each of its rows."""
        self.slowed: dict[int, float] = {}
        """For rows of the first table, the shares by which products took longer, added up."""
        self.varying: list[float] = []
        """Seconds of each of the other kernels."""
        self.running, self.waiting, self.held_blocks = Gauge(), Gauge(), Gauge()
        # Of each step: seconds, held blocks, and seconds of each varying kernel.
        self._seconds: list[float] = []
        self._held: list[int] = []
        self._kernels: list[list[float]] = []
        # Of each stretch: its steps; sequences, waiting, tokens, context and sampled rows of the first; rows of tables.
        self._stretches: list[int] = []
        self._width = 0
        # Steps that do not fill a portion yet, written out.
        self._left: Array = np.empty((0, 0))

    def note(
        self,
        first: tuple[int, int, int, int, int],
        estimate: StepEstimate,
        seconds: Sequence[float],
        held_blocks: Sequence[int],
    ) -> None:
        """One or more steps of the same batch, whose contexts grow by a token a step, and how long each took.

        ``first``: sequences, waiting, tokens, context and sampled rows of the first of them.
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
        if len(self._seconds) >= MOST_NOTED:
            self._add_up()

    def _open(self, estimate: StepEstimate) -> None:
        """The first step tells how many kernels and tables the timer has."""
        self._width = 6 + len(estimate.rows)
        self.rows, self.varying = [{} for _ in estimate.rows], [0.0 for _ in estimate.varying]
        self._kernels = [[] for _ in estimate.varying]
        self._left = np.empty((4 + len(self._kernels), 0))

    def close(self) -> None:
        """Nothing more will come."""
        if self._width:
            self._add_up()
            self._add_portions(self._left[:, None, :])

    def so_far(self) -> PhaseTotals:
        """The sums up to now, closed; steps that come later are added to these and not to those."""
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
        """What was added between two moments; peaks are those of the whole time."""
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
        """Count the noted stretches, write their steps out as rows of numbers and add up whole portions of these."""
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
        """Portions of steps: seconds, held blocks, running, waiting and each varying kernel."""
        seconds, held, running, waiting, *kernels = table
        if not seconds.size:
            return
        self.seconds = _sum(self.seconds, seconds)
        for gauge, values in ((self.held_blocks, held), (self.running, running), (self.waiting, waiting)):
            gauge.area = _sum(gauge.area, values * seconds)
            gauge.peak = max(gauge.peak, float(values.max()))
        self.varying = [_sum(total, kernel) for total, kernel in zip(self.varying, kernels, strict=True)]


def _sum(total: float, portions: Array) -> float:
    """Add the sum of each portion to a total, one after the other."""
    for portion in np.add.reduce(portions, axis=1).tolist():
        total += portion
    return total
