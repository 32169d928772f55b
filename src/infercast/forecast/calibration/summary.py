"""How far off forecasts of measured results are, without a calibration and with it."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from infercast.forecast.calibration.record import Calibration, Pair

TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "time between tokens", "e2e": "end to end", "output": "throughput"}
TAILS = ("p90", "p95", "p99")


class Errors(NamedTuple):
    """Medians over results of absolute errors, as shares of what was measured."""

    results: int
    before: float
    after: float


def errors_of(calibration: Calibration, *, left_out: bool = False) -> dict[str, Errors]:
    """By latency, of its middle and of its tail; of what was ``left_out``, where something was."""
    kinds: dict[str, list[Pair]] = {}
    for source in calibration.results:
        for pair in source.left_out if left_out else source.pairs:
            kinds.setdefault(_kind(pair.quantity), []).append(pair)
    return {kind: _summed_up(pairs) for kind, pairs in kinds.items()}


def median_errors(calibration: Calibration, *, left_out: bool = False) -> Errors | None:
    """The same of the middles of TTFT and TPOT together; None where there is none."""
    pairs = [
        pair
        for source in calibration.results
        for pair in (source.left_out if left_out else source.pairs)
        if pair.quantity.startswith(("ttft", "tpot")) and not pair.quantity.endswith(TAILS)
    ]
    return _summed_up(pairs) if pairs else None


def _kind(quantity: str) -> str:
    latency, _, statistic = quantity.partition("_")
    return f"{TITLES.get(latency, latency)}{' ' + statistic if statistic in (*TAILS, 'p50', 'mean') else ''}"


def _summed_up(pairs: Iterable[Pair]) -> Errors:
    found = list(pairs)
    before, after = (
        median(abs(getattr(pair, name) / pair.measured - 1) for pair in found) for name in ("before", "after")
    )
    return Errors(len(found), before, after)
