"""Numbers of several runs, row by row: which is better, by how much, and what differs between the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from infercast.report.layout import grid, paragraph, section
from infercast.report.quantities import COSTS, ENERGIES, LATENCIES, LOADS, PROMISES, RESULTS, Quantity
from infercast.report.several.saved import BOUND, OVERLOADED, Band, SavedRun
from infercast.units import MILLI, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = ("mean", "p50", "p95", "p99")
MANY = 10.0
"""From here on a ratio says more than a change in per cent."""
POWERS = ("watts_per_gpu", "peak_watts_per_gpu", "wall_watts")
"""Neither more nor less is better: what counts is what is done with it."""
LEADERS = {
    "ttft_p99_ms": "lowest TTFT p99",
    "tpot_p50_ms": "lowest TPOT p50",
    "output_tokens_per_s": "most output tokens per second",
    "usd_per_million_output_tokens": "lowest cost per million output tokens",
    "joules_per_output_token": "least energy per output token",
}
"""What people ask several runs for, by the keys of rows."""


class Row(NamedTuple):
    """One number of every run."""

    key: str
    name: str
    values: list[float | None]
    bands: list[Band | None]
    write: Callable[[float], str]
    better: int
    """1 where more is better, -1 where less is, 0 where neither is."""
    in_points: bool = False
    unit: float = 1.0
    """What programs see is divided by it."""

    def cells(self) -> list[str]:
        """The numbers as people read them."""
        return ["-" if value is None else self.write(value) for value in self.values]

    def change(self, place: int) -> str:
        """How far a run is from the first; empty for the first itself and where one is not known."""
        first, value = self.values[0], self.values[place]
        if place == 0 or first is None or value is None:
            return ""
        if self.in_points:
            return f"{100 * (value - first):+.1f} points"
        if not first:
            return ""
        ratio = value / first
        return f"{100 * (ratio - 1.0):+.1f} %" if ratio < MANY else f"{ratio:,.0f} times"

    def best(self, runs: Sequence[SavedRun]) -> list[int]:
        """The places of the best numbers; none where all are alike or workloads differ.

        Runs that may not be compared are never best.
        """
        known = {
            place: self.better * value
            for place, (value, run) in enumerate(zip(self.values, runs, strict=True))
            if value is not None and run.is_comparable
        }
        if not self.better or len(known) < 2 or len({run.workload for run in runs}) > 1:
            return []
        cells = self.cells()
        first = max(known, key=lambda place: known[place])
        found = [place for place in known if cells[place] == cells[first]]  # what reads the same is the same
        return found if len(found) < len(known) else []

    def overlapping(self, place: int) -> list[int]:
        """The runs whose intervals have a part in common with that of a run."""
        own = self.bands[place]
        others = [(other, band) for other, band in enumerate(self.bands) if other != place and band is not None]
        return [] if own is None else [other for other, band in others if band[0] <= own[1] and own[0] <= band[1]]


def rows_of(runs: Sequence[SavedRun]) -> list[Row]:
    """Every number that any of the runs has."""
    rows = []
    for latency in LATENCIES:
        for which in SHOWN:
            values = [_scaled(run.latencies.get(latency.name, {}).get(which)) for run in runs]
            bands = [_scaled_band(run.bands.get(latency.name, {}).get(which)) for run in runs]
            name = f"{latency.short} {which}"
            rows.append(Row(f"{latency.name}_{which}_ms", name, values, bands, format_seconds, -1, unit=MILLI))
    rows += [_of_quantity(quantity, runs) for quantity in (*RESULTS, *PROMISES, *COSTS, *ENERGIES, *LOADS)]
    return [row for row in rows if any(row.values)]


def _of_quantity(quantity: Quantity, runs: Sequence[SavedRun]) -> Row:
    better = 1 if quantity in (*RESULTS, *PROMISES) else -1 if quantity in (*COSTS, *ENERGIES) else 0
    if quantity.key in POWERS:
        better = 0
    at_most = " at most" if quantity.key in ("running", "waiting", "kv_usage") else ""
    return Row(
        quantity.key,
        f"{quantity.label}{at_most}",
        [run.numbers[quantity.key] for run in runs],
        [run.rates.get(quantity.key) for run in runs],
        lambda value: quantity.write(int(value) if value == int(value) else value),
        better,
        quantity.in_points,
    )


def _scaled(value: float | None) -> float | None:
    return None if value is None else value * MILLI


def _scaled_band(band: Band | None) -> Band | None:
    return None if band is None else (band[0] * MILLI, band[1] * MILLI)


def leader_sentences(runs: Sequence[SavedRun], rows: Sequence[Row]) -> list[str]:
    """Which run is best at what people ask for."""
    sentences = []
    for row in rows:
        best = row.best(runs) if row.key in LEADERS else []
        if best:
            words, names = LEADERS[row.key], " and ".join(runs[place].name for place in best)
            close = [runs[place].name for place in row.overlapping(best[0]) if place not in best]
            doubt = f"; the 80 % interval overlaps with that of {', '.join(close)}" if close else ""
            sentences.append(f"{words[:1].upper()}{words[1:]}: {names} ({row.cells()[best[0]]}){doubt}.")
    return sentences


def warnings_of(runs: Sequence[SavedRun]) -> list[str]:
    """What forbids to take one run's number for better than another's."""
    found = []
    workloads = list(dict.fromkeys(run.workload for run in runs))
    if len(workloads) > 1:
        found.append(f"These runs serve different workloads, so that none is called best: {'; '.join(workloads)}.")
    models = list(dict.fromkeys(run.model for run in runs))
    if len(models) > 1:
        found.append(f"These runs serve different models: {', '.join(models)}.")
    for run in runs:
        if run.state == OVERLOADED:
            found.append(f"{run.name} is overloaded: its latencies only tell how long the run was.")
        if run.kind == BOUND:
            found.append(f"{run.name} is a lower bound: its times are the least that the hardware allows.")
    return found


def settings_of(runs: Sequence[SavedRun]) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Settings that differ, as rows with a cell for each run, and those that are the same in all."""
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    rows = [[key, *(run.settings.get(key, "-") for run in runs)] for key in keys]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    return differing, [(row[0], row[1]) for row in rows if len(set(row[1:])) == 1 and row[1] != "-"]


def render_several(runs: Sequence[SavedRun]) -> list[RenderableType]:
    """Tables for a terminal."""
    rows, names = rows_of(runs), [run.name for run in runs]
    differing, _ = settings_of(runs)
    two = len(runs) == 2
    cells = [[row.name, *row.cells(), *([row.change(1)] if two else [])] for row in rows]
    return [
        *(paragraph(sentence) for sentence in (*warnings_of(runs), *leader_sentences(runs, rows))),
        section("Side by side", grid(("", *names, *(["change"] if two else [])), cells)),
        *([section("What differs", grid(("", *names), differing))] if differing else []),
    ]


def several_dict(runs: Sequence[SavedRun]) -> dict[str, Any]:
    """The same as plain data."""
    rows, names = rows_of(runs), [run.name for run in runs]
    return {
        "runs": [{"name": run.name, "model": run.model, "gpus": run.gpus, "workload": run.workload} for run in runs],
        "rows": [
            {
                "quantity": row.key,
                "values": {
                    run.name: None if value is None else value / row.unit
                    for run, value in zip(runs, row.values, strict=True)
                },
                "best": [runs[place].name for place in row.best(runs)],
            }
            for row in rows
        ],
        "differs": {key: dict(zip(names, cells, strict=True)) for key, *cells in settings_of(runs)[0]},
        "warnings": warnings_of(runs),
        "leaders": leader_sentences(runs, rows),
    }
