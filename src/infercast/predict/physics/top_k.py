"""The best scores of every new token: one thread block a row reads it as often as its histogram needs to narrow down.

Rows that have no more scores than are chosen need no search. A long row takes one SM long, so that a few sequences
which decode wait for the length of one row.
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.hardware import Gpu
from infercast.ops.sparse import TopK
from infercast.predict.physics.attention_batch import Lengths
from infercast.predict.physics.either import Plain
from infercast.predict.physics.sparse_batch import entries_of, pairs_of, phase_of
from infercast.predict.physics.terms import Physics

FEATURES = (
    "log_rows",
    "log_mean_scores",
    "log_longest_scores",
    "log_over_chosen",
    "log_chosen",
    "compress",
    "log_rounds",
    "fill",
    "blocks_share",
    "dram_share",
    "launch_share",
    "log_bytes_over_l2",
    "log_microseconds",
)


class Constants(NamedTuple):
    """Fitted on H100 and H200 and rounded; clocks are an SM's."""

    launch: float = 2.6e-6
    row_clocks: float = 5500.0
    """To search one row, whatever its length."""
    short_clocks: float = 900.0
    """The same of a row that needs no search."""
    score_clocks: float = 0.8
    """A score, with all its passes."""
    blocks_per_sm: float = 1.0
    dram: float = 0.8
    overlap: float = 4.0


CONSTANTS = Constants()


class Choosing:
    """Top-k of one indexer on one GPU."""

    def __init__(self, op: TopK, gpu: Gpu) -> None:
        self.op, self.gpu, self.phase = op, gpu, phase_of(op)
        self.sizes = Plain.log2(op.topk), float(op.compress)

    def physics(self, batch: Lengths, *, engine: bool = False) -> Physics:
        """One launch; scores were written just before, so that an ``engine`` finds as much of them in L2."""
        del engine
        x, op, gpu, fitted = batch.x, self.op, self.gpu, CONSTANTS
        rows, scores = batch.total(batch.queries), batch.total(pairs_of(batch, op.compress))
        searched = entries_of(batch, op.compress)
        longest = batch.longest(searched)
        mean = scores / x.larger(rows, 1.0)
        is_long = x.where(longest > op.topk, 1.0, 0.0)
        row = fitted.short_clocks + is_long * (fitted.row_clocks - fitted.short_clocks)
        slots = gpu.sms * fitted.blocks_per_sm
        rounds = x.larger(rows / slots, 1.0)
        clocks = rounds * (row + is_long * fitted.score_clocks * mean)
        moved = 4.0 * scores * is_long + 4.0 * op.topk * rows
        cold = x.miss_share(moved, gpu.l2_bytes * 0.7, 2.0)
        terms = {
            "blocks": clocks / gpu.boost_clock,
            "dram": moved * (cold / (gpu.dram_bandwidth * fitted.dram) + (1.0 - cold) / (gpu.l2_bandwidth * 0.6)),
            "launch": x.like(moved, fitted.launch),
        }
        seconds = terms["launch"] + x.soft_max(fitted.overlap, terms["blocks"] + 1e-12, terms["dram"] + 1e-12)
        features = x.columns(
            *x.logs(rows, mean, longest, longest / op.topk),
            *self.sizes,
            x.log2(rows / slots),
            x.fill(rows, gpu.sms),
            *[terms[name] / seconds for name in ("blocks", "dram", "launch")],
            *x.logs(moved / gpu.l2_bytes, seconds * 1e6),
        )
        return Physics(seconds, terms, features)
