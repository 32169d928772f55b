"""Energy of steps per GPU of a tensor-parallel group: joules of the kernels in a timer's tables, and of attention.

It is computed after a run, from how often each table row ran and how long attention took.
"""

from __future__ import annotations

import numpy as np

from infercast.engines.tables import Table
from infercast.engines.timer import KernelTimer
from infercast.lazy_classes import dataclass
from infercast.predict.board_power import BoardPower
from infercast.predict.estimate import exposed_seconds
from infercast.serve.record import PhaseTotals

Batch = tuple[Table, Table]  # New tokens of each sequence, and its tokens in all
MOST_SIZES = 48  # Table sizes at which joules are computed; in between, they are interpolated


@dataclass(frozen=True, slots=True)
class StepsEnergy:
    """Energy of one phase's steps on one GPU of each stage, summed."""

    kernel_seconds: float  # Time in kernels, including the short gaps between them
    dynamic: dict[str, float]
    static: float
    peak_watts: float

    @property
    def joules(self) -> float:
        return self.static + sum(self.dynamic.values())


def steps_energy(timer: KernelTimer, board: BoardPower, totals: PhaseTotals, batches: list[Batch]) -> StepsEnergy:
    """Energy of all steps of a phase; ``batches`` are representative of its attention."""
    seconds = timer.kernel_seconds(totals.rows, totals.varying, totals.slowed)
    first, *others = [np.array([[*counts], [*counts.values()]]) for counts in totals.rows]
    numbers = first[0].astype(np.int64)
    by_row = table_joules(timer, board, 0, numbers)
    beside = [rows[1] @ table_joules(timer, board, n, rows[0].astype(np.int64)) for n, rows in enumerate(others, 1)]
    beside.append(np.array(totals.varying) * attention_watts(timer, board, batches, len(totals.varying)))
    rest = np.concatenate(beside)
    steps, columns = first[1].sum(), by_row.shape[1]
    # Each row as its average step: time outside the first table is spread over all steps.
    slowed = np.array([totals.slowed.get(row, 0.0) for row in totals.rows[0]]) / first[1]
    each = timer.slowed_seconds(numbers, slowed) + seconds[columns:].sum() / steps
    work = by_row.sum(axis=1) + rest.sum() / steps
    within = np.clip((board.held_watts - board.idle_watts) * each / np.maximum(work, 1e-12), 0.0, 1.0)
    # A short step after lighter ones is over before the clock has dropped, as in the timer.
    kept = 1.0 - timer.limit_felt(numbers, slowed, each) * (1.0 - within)
    joules = np.concatenate([(first[1] * kept) @ by_row, rest * (first[1] @ kept) / steps])
    dynamic: dict[str, float] = {}
    for (_, family), value in zip(timer.kernels, joules.tolist(), strict=True):
        if value > 0:
            dynamic[family] = dynamic.get(family, 0.0) + value
    whole = float(seconds.sum())
    # Bursts of milliseconds exceed the power limit; a tenth of a second, which meters show, does not.
    peak = min(board.idle_watts + float((kept * work / each).max()), board.limit_watts)
    return StepsEnergy(whole, dynamic, board.idle_watts * whole, peak)


def table_joules(timer: KernelTimer, board: BoardPower, table: int, rows: Table) -> Table:
    """Joules above static power of each kernel (columns) in steps of each of these rows of a table."""
    chosen = np.array(sorted(set(rows.tolist())), dtype=rows.dtype)
    if chosen.size > MOST_SIZES:
        chosen = chosen[np.linspace(0, chosen.size - 1, MOST_SIZES).round().astype(np.int64)]
    seconds = timer.row_seconds(table, chosen)
    joules: Table = np.zeros(seconds.shape)
    for column, (call, launches) in enumerate(timer.row_calls(table, chosen)):
        each = seconds[:, column] / np.maximum(launches, 1)
        joules[:, column] = launches * np.asarray(board.dynamic_joules(call.op, np.maximum(each, 1e-9)))
    spread: Table = np.empty((len(rows), len(joules.T)))  # a table of drafts may have no column at all
    for column, values in enumerate(joules.T):
        spread[:, column] = np.interp(rows, chosen, values)
    return spread


def attention_watts(timer: KernelTimer, board: BoardPower, batches: list[Batch], count: int) -> Table:
    """Watts above static power of each attention kernel while it runs, on batches like these."""
    joules, seconds = np.zeros(count), np.zeros(count)
    for queries, keys in batches:
        for column, call, each in timer.sequence_calls(queries, keys):
            one = float(np.ravel(each)[0])
            joules[column] += call.count * float(np.ravel(board.dynamic_joules(call.op, one))[0])
            seconds[column] += float(np.ravel(exposed_seconds(call, one))[0])
    mean = joules.sum() / max(float(seconds.sum()), 1e-12)
    return np.where(seconds > 0, joules / np.maximum(seconds, 1e-12), mean)
