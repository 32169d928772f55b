"""What tables get wrong about what was measured: units, and what a time is called."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from infercast.validate.published.load import RowReader

SAME_TIME, OTHER_TIME = 0.001, 0.05
"""Relative differences of two times that are one, and that are surely not."""
THOUSANDFOLD = (math.log(250.0), math.log(4000.0))
"""Between these, as logarithms, is a factor that a wrong unit makes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured, in seconds; None where it was not published."""

    ttft: float | None
    tpot: float | None
    end_to_end: float | None
    output_tokens_per_second: float | None
    median: bool
    gaps: bool


def read_measured(row: RowReader, gpus: int) -> Measured:
    """Medians where they are published, means otherwise."""
    rate = _whole_rate(row, row.measured("output_tok_s"), gpus)
    if _came_together(row):
        row.assume("half of the times between tokens are 0: tokens came in lumps, and only their rate is compared")
        return Measured(None, None, None, rate, median=True, gaps=False)
    token = "itl" if _counts_first_token(row) else "tpot"
    if token == "itl":
        row.assume("the published TPOT counts the first token: the time between tokens is compared")
    median = row.measured("ttft_p50") is not None and row.measured(f"{token}_p50") is not None
    mean = "itl_mean" if token == "itl" else "tpot_mean_ms"
    ttft = _seconds(row, "ttft_p50" if median else "ttft_mean_ms") or _seconds(row, "ttft_p50")
    tpot = _seconds(row, f"{token}_p50" if median else mean)
    gaps = tpot is None and row.measured("itl_p50") is not None
    if gaps:
        tpot = _seconds(row, "itl_p50")
        median = True
    factor = _unit(row, tpot)
    if factor != 1.0:
        row.assume("times are in seconds, though their columns say milliseconds")
    whole = _seconds(row, "e2e_mean_ms")
    return Measured(
        None if ttft is None else ttft * factor,
        None if tpot is None else tpot * factor,
        None if median or whole is None else whole * factor,
        rate,
        median,
        gaps,
    )


def _seconds(row: RowReader, name: str) -> float | None:
    """A time that is written in milliseconds."""
    value = row.measured(name)
    return None if value is None else value / 1e3


def _whole_rate(row: RowReader, rate: float | None, gpus: int) -> float | None:
    """Tokens a second of all GPUs, where a table has those of one."""
    if rate is None or gpus < 2 or "per gpu" not in row.text("notes").lower():
        return rate
    row.assume("tokens a second are those of one GPU")
    return rate * gpus


def _came_together(row: RowReader) -> bool:
    """Whether clients were sent tokens in lumps: the median time between two of them is 0."""
    return row.text("itl_p50") != "" and row.measured("itl_p50") is None


def _counts_first_token(row: RowReader) -> bool:
    """Whether the published TPOT is the whole time over all tokens, as guidellm has it; its ITL is then our TPOT.

    The table tells: TTFT and ITL of all other tokens add up to it.
    """
    names = ("mean_out", "ttft_mean_ms", "itl_mean", "tpot_mean_ms")
    tokens, first, other, stated = (row.measured(name) or 0.0 for name in names)
    if not (tokens and first and other and stated):
        return False
    whole = (first + other * (tokens - 1)) / tokens
    return abs(whole / stated - 1) < SAME_TIME and abs(other / stated - 1) > OTHER_TIME


def _unit(row: RowReader, tpot: float | None) -> float:
    """1,000 where seconds stand in a column of milliseconds: so many requests cannot be answered in their time.

    With so many clients, tokens a second times the time of a token is the number of clients at most, and not less by
    a thousand.
    """
    rate, clients = row.measured("output_tok_s"), re.search(r"concurrency (\d+)", row.text("concurrency_or_rate"))
    if rate is None or tpot is None or clients is None:
        return 1.0
    off = math.log(int(clients[1]) / (rate * tpot))
    waiting = (row.measured("ttft_mean_ms") or row.measured("ttft_p50") or 0.0) / 1e3
    answered = tpot * (row.number("mean_out") or 1.0)
    return 1e3 if THOUSANDFOLD[0] < off < THOUSANDFOLD[1] and waiting < 100 * answered else 1.0
