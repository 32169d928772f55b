"""The numbers of a forecast and their intervals, each declared once for JSON, terminal, page and comparison."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from infercast import units
from infercast.bundled import DATA, read_data
from infercast.forecast.intervals import LEVEL, Band, Intervals
from infercast.forecast.result import Forecast
from infercast.forecast.run import MeanAndPeak
from infercast.forecast.slo import NAMES, Percentiles
from infercast.lazy_classes import NamedTuple
from infercast.report.terminal import Facts, Field, Grid, RenderableType, Section, any_has, at, function_named, record

LENGTHS = re.compile(r" \([^)]*\)")  # ranges of lengths in the description of a workload
TITLE = "80 % intervals, from how far kernels, host and release may be off, and from chance"
MEDIANS = {"ttft": "TTFT p50", "tpot": "TPOT p50"}
PARTS = {"kernels": "kernels", "host": "your host", "release": "the release", "luck": "luck"}
LEAST = 0.005  # parts below this are left out
EVIDENCE = {
    "probed": "your host's speed, by `infercast measure --host`",
    "calibrated": "one benchmark, by `infercast calibrate`",
}


class Quantity(NamedTuple):
    """One number of a forecast, of a pool or of a replica."""

    key: str  # In JSON
    label: str  # For people, before the bare number
    of: Callable[[Any], Any]  # The number, or a `MeanAndPeak`, of what has it
    write: Callable[[float], str]
    unit: str = ""
    row: str | None = None  # The name of its row where the unit says what it is
    matters: Callable[[Any], bool] = lambda owner: True  # Whether tables show it; JSON always does
    interval: str | None = None  # The field of `Intervals` that belongs to it
    in_points: bool = False  # A share: changes are in percentage points

    def data(self, owner: Any) -> Any:
        value = self.of(owner)
        return {"mean": value.mean, "peak": value.peak} if isinstance(value, MeanAndPeak) else value

    def facts(self, owner: Any) -> list[tuple[str, str]]:
        """A row for people; none where it does not matter."""
        value = self.of(owner)
        if not self.matters(owner):
            return []
        if isinstance(value, MeanAndPeak):
            words = f"{self.write(value.mean)}{self.unit} on average, {self.write(value.peak)} at most"
        else:
            words = f"{self.write(value)}{self.unit}"
        return [(self.label if self.row is None else self.row, words)]

    def written(self, value: float | None) -> str:
        return "-" if value is None else self.write(value)

    def compared(self, owner: Any) -> tuple[str, float | None]:
        """The name and the number that two runs are compared by: the peak of a level."""
        value = self.of(owner)
        return (f"{self.label} at most", value.peak) if isinstance(value, MeanAndPeak) else (self.label, value)


def tenths(value: float) -> str:
    """Sequences or requests: whole numbers without decimals."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _group(rows: Sequence[Mapping[str, Any]]) -> tuple[Quantity, ...]:
    """The quantities of a group of data/quantities.toml."""
    common, own = ({}, rows) if "key" in rows[0] else (rows[0], rows[1:])
    found = []
    for row in own:
        values = {**common, **row}
        values |= {"of": at(values.pop("path")), "write": function_named(values["write"], {"tenths": tenths})}
        if needs := values.pop("needs", ""):
            values["matters"] = lambda run, needs=needs: at(needs)(run) is not None
        if above := values.pop("above", ()):
            values["matters"] = lambda run, above=above: (at(above[0])(run) or 0.0) > above[1]
        found.append(Quantity(**values))
    return tuple(found)


RESULTS, PROMISES, COSTS, ENERGIES, LOADS, OF_ENGINES = map(_group, read_data("quantities.toml").values())
"""Of a whole forecast, with an SLO, with a known GPU price, and with known GPU power (with servers and building); of a
forecast and of each of its pools; and of each replica."""


class Latency(NamedTuple):
    """A latency of a forecast, or a part of one."""

    name: str  # Its field; in JSON with ``_ms``
    title: str
    short: str  # The same for a narrow column


LATENCIES = (
    Latency("ttft", "time to first token (TTFT)", "TTFT"),
    Latency("tpot", "time per output token (TPOT)", "TPOT"),
    Latency("inter_token", "inter-token latency", "inter-token"),
    Latency("end_to_end", "end to end", "end to end"),
)
LINK_PARTS = (
    Latency("prompt", "  prompt on the prefill pool", "  prompt"),
    Latency("wait", "  waiting for the link", "  waiting for the link"),
    Latency("transfer", "  on the link", "  on the link"),
    Latency("first_step", "  to the first token", "  to the first token"),
)  # What the time to first token of two pools is made of


def latencies_of(
    forecast: Forecast, intervals: Intervals | None = None
) -> list[tuple[Latency, Percentiles | None, Band | None]]:
    """Every latency with its interval, those of the link below the one that they are parts of."""
    rows: list[tuple[Latency, Percentiles | None, Band | None]] = []
    for latency in LATENCIES:
        band = None if intervals is None else getattr(intervals, latency.name)
        rows.append((latency, getattr(forecast, latency.name), band))
        if latency is LATENCIES[0] and forecast.link is not None:
            rows += [(part, getattr(forecast.link, part.name), None) for part in LINK_PARTS]
    return rows


def milliseconds(values: Percentiles | None) -> dict[str, float] | None:
    return None if values is None else {name: getattr(values, name) / units.MILLI for name in NAMES}


def render_intervals(intervals: Intervals) -> RenderableType:
    """A table for a terminal of 80 columns, and what holds for rates in a line below."""
    from rich.console import Group  # noqa: PLC0415 - JSON needs none of it

    rows = zip(NAMES, *(_cells(getattr(intervals, each.name)) for each in LATENCIES), strict=True)
    table = Grid(("", *(each.short for each in LATENCIES)), [list(row) for row in rows])
    rates = ("output tokens/s", format_rates(intervals.output_tokens_per_second))
    return Section(TITLE, Group(table, Facts([rates, *rest_rows(intervals)])))


def rest_rows(intervals: Intervals) -> list[tuple[str, str]]:
    """What medians' intervals are made of, each part by itself, and what would narrow them."""
    shown = {MEDIANS[name]: rests for name, rests in intervals.rests.items()}
    rows = []
    for title, rests in shown.items():
        parts = ((words, getattr(rests, name)) for name, words in PARTS.items())
        made = ", ".join(f"{words} {around(part)}" for words, part in parts if part >= LEAST)
        rows.append((title, f"{around(rests.whole)}: {made}"))
    for name, words in EVIDENCE.items():
        if any(getattr(rests, name) < 0.95 * rests.whole for rests in shown.values()):
            left = ", ".join(f"{title} {around(getattr(rests, name))}" for title, rests in shown.items())
            rows.append(("would be", f"{left} with {words}"))
    return rows


def around(part: float) -> str:
    return f"+-{100 * part:.0f} %"


def render_alone(intervals: Intervals) -> list[RenderableType]:
    return [render_intervals(intervals)]


def interval_fields(intervals: Intervals | None) -> dict[str, Any]:
    """As plain data; empty without intervals."""
    if intervals is None:
        return {}
    return {
        "interval_level": LEVEL,
        **{f"{each.name}_ms_interval": _milliseconds(getattr(intervals, each.name)) for each in LATENCIES},
        "output_tokens_per_s_interval": list(intervals.output_tokens_per_second),
        "requests_per_s_interval": list(intervals.requests_per_second),
        "interval_rests_on": {f"{name}_p50": rests._asdict() for name, rests in intervals.rests.items()},
    }


def format_interval(low: float, high: float) -> str:
    """Two times with one unit if they share it: ``27.9 to 36.2 ms``."""
    first, last = units.format_seconds(low), units.format_seconds(high)
    unit = last.split()[-1]
    return f"{first.removesuffix(f' {unit}')} to {last}"


def ends_ms(ends: tuple[float, float] | None) -> list[float] | None:
    """[low, high] in milliseconds."""
    return None if ends is None else [end / units.MILLI for end in ends]


def format_rates(ends: tuple[float, float]) -> str:
    """Two rates to three digits or more: ``2,207 to 2,233``, ``76.3 to 180``, ``1.64 to 2.05``."""
    low, high = map(units.format_figure, ends)
    return f"{low} to {high}"


def _cells(band: Band | None) -> list[str]:
    if band is None:
        return ["-"] * len(NAMES)
    return [format_interval(getattr(band.low, name), getattr(band.high, name)) for name in NAMES]


def _milliseconds(band: Band | None) -> dict[str, list[float]] | None:
    """[low, high] of the mean and each percentile."""
    if band is None:
        return None
    return {name: [getattr(band.low, name) / units.MILLI, getattr(band.high, name) / units.MILLI] for name in NAMES}


def declared(table: str, **own: Callable[..., Any]) -> tuple[Field, ...]:
    """The fields of a table of data/fields.json; ``own`` are functions of its module that it names.

    A value that is itself a ``record``, or many ``rows``, names the table of their fields.
    """
    named = {each.__name__: each for each in (milliseconds, ends_ms, format_rates)} | own
    named["format_ends"] = lambda ends: format_interval(*ends)
    fields = []
    for row in _tables()[table]:
        of = own[row["of"]] if "of" in row else at(row["path"])
        given: dict[str, Any] = {name: function_named(row[name], named) for name in ("write", "data") if name in row}
        given |= {name: row[name] for name in ("title", "rank") if name in row}
        given |= {"matters": any_has(row["needs"])} if "needs" in row else {}
        given |= {"matters": own[row["matters"]]} if "matters" in row else {}
        for name, write in (("record", _record), ("rows", _records)):
            given |= {"data": partial(write, declared(row[name], **own))} if name in row else {}
        read = (lambda row, of=of: of(row) or None) if "blank" in row else of
        fields.append(Field(row.get("key", ""), read, **given))
    return tuple(fields)


def _record(fields: Sequence[Field], owner: Any) -> dict[str, Any] | None:
    return None if owner is None else record(fields, owner)


def _records(fields: Sequence[Field], owners: Iterable[Any] | None) -> list[dict[str, Any]]:
    return [record(fields, each) for each in owners or ()]


def document(table: str, owner: Any, **own: Callable[..., Any]) -> dict[str, Any]:
    """What JSON says of ``owner``, as a table of data/fields.json declares it."""
    return record(declared(table, **own), owner)


@cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = json.loads((DATA / "fields.json").read_text(encoding="utf-8"))
    return tables
