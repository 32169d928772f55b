"""Runs saved with ``--json``, read again with every field checked, and compared row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.errors import Fields, FileFormatError, InputError, read_json
from infercast.forecast.result import Forecast
from infercast.forecast.slo import NAMES
from infercast.report.quantities import COSTS, ENERGIES, LATENCIES, LOADS, PROMISES, RESULTS, Quantity
from infercast.report.terminal import Grid, Paragraph, Printable, Section
from infercast.units import MILLI, format_seconds

MOST_BYTES, MOST_RUNS, MOST_LETTERS = 32_000_000, 8, 2000  # of one file, of all files together, and of a text in one
QUANTITIES: tuple[Quantity[Forecast], ...] = (*RESULTS, *PROMISES, *COSTS, *ENERGIES, *LOADS)
BOUND, OVERLOADED = "bound", "overloaded"
Band = tuple[float, float]
LEADERS: dict[str, str] = read_data("sentences.toml")["leaders"]


class SavedPhase(NamedTuple):
    """Steps of one kind: how many, and the seconds of each kernel family and of waiting for the host in all of them."""

    name: str
    steps: float
    seconds: dict[str, float]
    waiting: float


class SavedRun(NamedTuple):
    name: str
    model: str
    gpus: str
    workload: str
    latencies: dict[str, dict[str, float]]  # Seconds of the mean and percentiles of each latency that there is
    bands: dict[str, dict[str, Band]]  # Their 80 % intervals, where the file has them
    numbers: dict[str, float | None]  # By the keys of quantities; of a level its peak
    rates: dict[str, Band]  # 80 % intervals of these
    phases: tuple[SavedPhase, ...]
    settings: dict[str, str]  # What was put where
    caveats: tuple[str, ...]
    kind: str
    state: str

    @property
    def title(self) -> str:
        return f"{self.model} on {self.gpus}"

    @property
    def is_comparable(self) -> bool:
        """Whether its numbers may be called better than another's: neither a lower bound nor of a queue that grows."""
        return self.kind != BOUND and self.state != OVERLOADED


def read_runs(paths: Sequence[Path]) -> list[SavedRun]:
    """The runs of several files, the first of which the others are compared with."""
    found: list[SavedRun] = []
    for path in paths:
        document = read_json(path, "JSON of `infercast simulate ... --json`", MOST_BYTES)
        sides = [side for side in ("before", "after") if side in document]
        if sides:  # of --what-if and of two engines
            found += [_run(Fields(path, document[side], side), f"{path.stem} {side}") for side in sides]
        else:
            found.append(_run(Fields(path, document), path.stem))
    if len(found) > MOST_RUNS:
        raise InputError(f"{len(found)} runs are more than a page compares; give at most {MOST_RUNS}")
    return _numbered(found)


def runs_of(documents: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[SavedRun]:
    return _numbered([_run(Fields(Path(name), each), name) for each, name in zip(documents, names, strict=True)])


def _numbered(found: list[SavedRun]) -> list[SavedRun]:
    names = [run.name for run in found]
    return [
        run if names.count(run.name) == 1 else run._replace(name=f"{run.name} ({number})")
        for number, run in enumerate(found, 1)
    ]


def _number(fields: Fields, key: str) -> float | None:
    """A number, or the peak of a level."""
    value, largest = fields.holder.get(key), 1e30  # no number of a run is larger
    found = fields.part(key) if isinstance(value, dict) else fields
    return found.number("peak" if isinstance(value, dict) else key, -largest, largest)


def _required(fields: Fields, key: str) -> float:
    value = _number(fields, key)
    if value is None:
        raise fields.other(key, "a number")
    return value


def _text(fields: Fields, key: str) -> str:
    value = fields.holder.get(key)
    if not isinstance(value, str) or len(value) > MOST_LETTERS:
        raise fields.other(key, f"a text of at most {MOST_LETTERS:,} letters")
    return value


def _band(fields: Fields, key: str) -> Band | None:
    value = fields.holder.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise fields.other(key, "two numbers")
    low, high = (_required(Fields(fields.path, {key: end}, fields.place), key) for end in value)
    return low, high


def _texts(fields: Fields, key: str) -> tuple[str, ...]:
    value = fields.holder.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) and len(each) <= MOST_LETTERS for each in value):
        raise fields.other(key, "a list of texts")
    return tuple(value)


def _run(fields: Fields, name: str) -> SavedRun:
    if "ttft_ms" not in fields.holder or "pools" not in fields.holder:
        holds_none = "holds no run that `infercast simulate --json` saved: ttft_ms or pools are missing"
        raise FileFormatError(fields.path, f"{fields.place} {holds_none}".strip())
    pools = fields.parts("pools")
    if not pools:
        raise fields.other("pools", "a list of at least one pool")
    deployments = [(pool, part) for pool in pools if "deployment" in pool and (part := pool.part("deployment"))]
    workload = fields.part("workload") if "workload" in fields else None
    latencies, bands = {}, {}
    for each in LATENCIES:
        if f"{each.name}_ms" in fields:
            values = fields.part(f"{each.name}_ms")
            latencies[each.name] = {which: MILLI * _required(values, which) for which in NAMES}
        if f"{each.name}_ms_interval" in fields:
            ends = fields.part(f"{each.name}_ms_interval")
            found = {which: band for which in NAMES if (band := _band(ends, which)) is not None}
            bands[each.name] = {which: (MILLI * low, MILLI * high) for which, (low, high) in found.items()}
    rates = {each.key: band for each in QUANTITIES if (band := _band(fields, f"{each.key}_interval")) is not None}
    if "energy" in fields and (band := _band(fields.part("energy"), "joules_per_output_token_interval")) is not None:
        rates["joules_per_output_token"] = band
    return SavedRun(
        name=name, model=_text(deployments[0][1], "model") if deployments else "",
        gpus=" and ".join(f"{_required(pool, 'gpus'):,.0f} x {_text(part, 'gpu')}" for pool, part in deployments),
        workload="" if workload is None else _text(workload, "description"), latencies=latencies, bands=bands,
        numbers={each.key: _number(fields, each.key) for each in QUANTITIES}, rates=rates,
        phases=tuple(_phase(each) for each in fields.parts("phases")), settings=_settings(deployments),
        caveats=_texts(fields, "caveats"), kind=_text(fields, "kind") if "kind" in fields.holder else "",
        state=_text(fields, "state") if "state" in fields.holder else "",
    )  # fmt: skip


def _phase(fields: Fields) -> SavedPhase:
    return SavedPhase(
        _text(fields, "phase"),
        max(1.0, _required(fields, "steps")),
        {_text(family, "family"): _required(family, "seconds") for family in fields.parts("families")},
        max(0.0, _number(fields, "host_bound_seconds") or 0.0),
    )


def _settings(deployments: list[tuple[Fields, Fields]]) -> dict[str, str]:
    """Fields of a deployment in words; where two pools have different ones, both."""
    found: dict[str, dict[str, str]] = {}
    for pool, part in deployments:
        for key, value in part.holder.items():
            if (text := _in_words(value)) is not None:
                found.setdefault(key[:MOST_LETTERS], {})[_text(pool, "role")] = text
    return {
        key: next(iter(texts.values()))
        if len(set(texts.values())) == 1
        else ", ".join(f"{role} {text}" for role, text in texts.items())
        for key, texts in found.items()
    }


def _in_words(value: Any) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e6 else f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {text}" for key, each in value.items() if (text := _in_words(each)))[:MOST_LETTERS]
    return value[:MOST_LETTERS] if isinstance(value, str) else None if isinstance(value, list) else "-"


class Row(NamedTuple):
    key: str
    name: str
    values: list[float | None]
    bands: list[Band | None]
    write: Callable[[float], str]
    better: int  # 1 where more is better, -1 where less is, 0 where neither is
    in_points: bool = False
    unit: float = 1.0  # What programs see is divided by it

    def cells(self) -> list[str]:
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
        # From ten on a ratio says more than a change in per cent.
        return f"{100 * (ratio - 1.0):+.1f} %" if ratio < 10 else f"{ratio:,.0f} times"

    def best(self, runs: Sequence[SavedRun]) -> list[int]:
        """The places of the best numbers of comparable runs; none where all are alike or workloads differ."""
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
        """The other runs with an interval that overlaps with this one."""
        own = self.bands[place]
        others = [(other, band) for other, band in enumerate(self.bands) if other != place and band is not None]
        return [] if own is None else [other for other, band in others if band[0] <= own[1] and own[0] <= band[1]]


def rows_of(runs: Sequence[SavedRun]) -> list[Row]:
    rows = []
    shown = ("mean", "p50", "p95", "p99")
    for latency in LATENCIES:
        for which in shown:
            values = [run.latencies.get(latency.name, {}).get(which) for run in runs]
            bands = [run.bands.get(latency.name, {}).get(which) for run in runs]
            name = f"{latency.short} {which}"
            rows.append(Row(f"{latency.name}_{which}_ms", name, values, bands, format_seconds, -1, unit=MILLI))
    rows += [_of_quantity(quantity, runs) for quantity in QUANTITIES]
    return [row for row in rows if any(row.values)]


def _of_quantity(quantity: Quantity[Forecast], runs: Sequence[SavedRun]) -> Row:
    better = 1 if quantity in (*RESULTS, *PROMISES) else -1 if quantity in (*COSTS, *ENERGIES) else 0
    powers = ("watts_per_gpu", "peak_watts_per_gpu", "wall_watts")  # Neither more nor less is better
    if quantity.key in powers:
        better = 0
    at_most = " at most" if quantity.key in ("running", "waiting", "kv_usage") else ""
    return Row(
        quantity.key, f"{quantity.label}{at_most}", [run.numbers[quantity.key] for run in runs],
        [run.rates.get(quantity.key) for run in runs],
        lambda value: quantity.write(int(value) if value == int(value) else value), better, quantity.in_points,
    )  # fmt: skip


def leader_sentences(runs: Sequence[SavedRun], rows: Sequence[Row]) -> list[str]:
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
    found = []
    workloads = list(dict.fromkeys(run.workload for run in runs))
    if len(workloads) > 1:
        found.append(f"These runs serve different workloads, so that none is called best: {'; '.join(workloads)}.")
    models = list(dict.fromkeys(run.model for run in runs))
    if len(models) > 1:
        found.append(f"These runs serve different models: {', '.join(models)}.")
    for run in runs:
        if run.state == OVERLOADED:
            found.append(f"{run.name} is overloaded: its latencies only reflect how long the run was.")
        if run.kind == BOUND:
            found.append(f"{run.name} is a lower bound: its times are the least that the hardware allows.")
    return found


def settings_of(runs: Sequence[SavedRun]) -> tuple[list[list[str]], list[tuple[str, str]]]:
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    rows = [[key, *(run.settings.get(key, "-") for run in runs)] for key in keys]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    return differing, [(row[0], row[1]) for row in rows if len(set(row[1:])) == 1 and row[1] != "-"]


def render_several(runs: Sequence[SavedRun]) -> list[Printable]:
    rows, names = rows_of(runs), [run.name for run in runs]
    differing, _ = settings_of(runs)
    two = len(runs) == 2
    cells = [[row.name, *row.cells(), *([row.change(1)] if two else [])] for row in rows]
    return [
        *(Paragraph(sentence) for sentence in (*warnings_of(runs), *leader_sentences(runs, rows))),
        Section("Side by side", Grid(("", *names, *(["change"] if two else [])), cells)),
        *([Section("What differs", Grid(("", *names), differing))] if differing else []),
    ]


def several_dict(runs: Sequence[SavedRun]) -> dict[str, Any]:
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
