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
from infercast.predict.physics.sparse_batch import DECODE, entries_of, entries_up_to, pairs_of, phase_of
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

    launch: float = 4.8e-6
    row_clocks: float = 3600.0
    """To search one row, whatever its length."""
    short_clocks: float = 900.0
    """The same of a row that needs no search."""
    score_clocks: float = 0.52
    """A score, with all its passes."""
    blocks_per_sm: float = 1.0
    dram: float = 0.51
    overlap: float = 1.12


CONSTANTS = Constants()
BLOCKS = Constants(launch=0.5e-6, row_clocks=1900.0, short_clocks=800.0, score_clocks=4.2, blocks_per_sm=8.0)
"""The choice of a few blocks of tokens, of which there are few (Triton)."""
TIED, LONG_ROW = {"prompt": 6.8, "decode": 3.6}, 32_768
"""Clocks a score where all fall into one bin of a row's histogram and are counted one after the other; rows of decoding
sequences that are no longer than that are searched otherwise. Read off prompts and decoding steps of 15,000 and 60,000
tokens of GLM-5 with dummy weights on an H200 (vLLM 0.25); prompts of 8,000 and 30,000 then come out within 1 %."""
FEW = 64
"""Chosen ones that are few."""


class Choosing:
    """Top-k of one indexer on one GPU."""

    def __init__(self, op: TopK, gpu: Gpu) -> None:
        self.op, self.gpu, self.phase = op, gpu, phase_of(op)
        self.kernel = CONSTANTS if op.topk > FEW else BLOCKS
        self.sizes = Plain.log2(op.topk), float(op.compress)

    def physics(self, batch: Lengths, *, engine: bool = False) -> Physics:
        """One launch; scores were written just before, so that an ``engine`` finds as much of them in L2."""
        del engine
        x, op, gpu, fitted = batch.x, self.op, self.gpu, self.kernel
        rows, scores = batch.total(batch.queries), batch.total(pairs_of(batch, op.compress))
        # Only rows of more scores than are chosen are searched.
        last_short = op.compress * (op.topk + 1.0) - 1.0
        cached = batch.keys - batch.queries
        first = x.clip(last_short, cached, batch.keys)
        searched = batch.total(batch.keys - first)
        seen = entries_up_to(batch.keys, op.compress, 0, x) - entries_up_to(first, op.compress, 0, x)
        searched_scores = batch.total(seen)
        longest = batch.longest(entries_of(batch, op.compress))
        mean, slots = scores / x.larger(rows, 1.0), gpu.sms * fitted.blocks_per_sm
        row = fitted.short_clocks + (fitted.row_clocks - fitted.short_clocks) * searched / x.larger(rows, 1.0)
        score = fitted.score_clocks
        if op.tied:
            score = x.where(longest > (LONG_ROW if self.phase == DECODE else 0.0), TIED[self.phase], score)
        clocks = x.larger(rows / slots, 1.0) * (row + score * searched_scores / x.larger(rows, 1.0))
        moved = 4.0 * searched_scores + 4.0 * op.topk * rows
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
