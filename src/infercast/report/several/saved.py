"""Runs that were saved with ``--json``, read again: every field that is shown is checked, and nothing is trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from infercast.errors import FileFormatError, InputError
from infercast.forecast.latency import NAMES
from infercast.report.quantities import COSTS, ENERGIES, LATENCIES, LOADS, PROMISES, RESULTS

MOST_BYTES, MOST_RUNS, MOST_LETTERS = 32_000_000, 8, 2000
"""Of one file, of all files together, and of a text in one."""
QUANTITIES = (*RESULTS, *PROMISES, *COSTS, *ENERGIES, *LOADS)
BOUND, OVERLOADED = "bound", "overloaded"
SIDES = ("before", "after")
LARGEST = 1e30
"""No number of a run is larger."""
Band = tuple[float, float]


class SavedPhase(NamedTuple):
    """Steps of one kind: how many, and the seconds of each kernel family and of waiting for the host in all of them."""

    name: str
    steps: float
    seconds: dict[str, float]
    waiting: float


class SavedRun(NamedTuple):
    """What is known of a run that was saved."""

    name: str
    model: str
    gpus: str
    workload: str
    latencies: dict[str, dict[str, float]]
    """Milliseconds of the mean and percentiles of each latency that there is."""
    bands: dict[str, dict[str, Band]]
    """Their 80 % intervals, where the file has them."""
    numbers: dict[str, float | None]
    """By the keys of quantities; of a level its peak."""
    rates: dict[str, Band]
    """80 % intervals of these."""
    phases: tuple[SavedPhase, ...]
    settings: dict[str, str]
    """What was put where."""
    caveats: tuple[str, ...]
    kind: str
    state: str

    @property
    def title(self) -> str:
        """What was simulated."""
        return f"{self.model} on {self.gpus}"

    @property
    def is_comparable(self) -> bool:
        """Whether its numbers may be called better than another's: neither a lower bound nor of a queue that grows."""
        return self.kind != BOUND and self.state != OVERLOADED


def read_runs(paths: Sequence[Path]) -> list[SavedRun]:
    """The runs of several files, the first of which the others are compared with."""
    found: list[SavedRun] = []
    for path in paths:
        document = _document(path)
        sides = [side for side in SIDES if side in document]
        if sides:  # of --what-if and of two engines
            found += [_run(Fields(document[side], path, side), f"{path.stem} {side}") for side in sides]
        else:
            found.append(_run(Fields(document, path), path.stem))
    if len(found) > MOST_RUNS:
        raise InputError(f"{len(found)} runs are more than a page compares; give at most {MOST_RUNS}")
    return _numbered(found)


def runs_of(documents: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[SavedRun]:
    """The runs of documents that are at hand, each with a name."""
    return _numbered([_run(Fields(each, Path(name)), name) for each, name in zip(documents, names, strict=True)])


def _numbered(found: list[SavedRun]) -> list[SavedRun]:
    """The same, with numbers where several have one name."""
    names = [run.name for run in found]
    return [
        run if names.count(run.name) == 1 else run._replace(name=f"{run.name} ({number})")
        for number, run in enumerate(found, 1)
    ]


def _document(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)  # a pipe or a device does not say how long it is
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror or problem}") from None
    if len(content) > MOST_BYTES:
        raise InputError(f"{path} is larger than {MOST_BYTES // 1_000_000} MB, which no saved run is")
    try:
        document = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise FileFormatError(path, "is not JSON; save a run with `infercast simulate ... --json > run.json`") from None
    if not isinstance(document, dict):
        raise FileFormatError(path, f"must hold one JSON object, not {type(document).__name__}")
    return document


class Fields:
    """An object of a file whose fields are asked for by name and kind."""

    def __init__(self, data: Any, path: Path, where: str = "") -> None:
        if not isinstance(data, dict):
            raise FileFormatError(path, f"{where or 'the run'} must be an object, not {_short(data)}")
        self.data: Mapping[str, Any] = data
        self._path, self._where = path, where

    def refused(self, problem: str) -> FileFormatError:
        """What is wrong with all of it."""
        return FileFormatError(self._path, f"{self._where} {problem}".strip())

    def wrong(self, key: str, kind: str) -> FileFormatError:
        """What is wrong with a field."""
        where = f"{self._where}.{key}" if self._where else key
        return FileFormatError(self._path, f"{where} must be {kind}, not {_short(self.data.get(key))}")

    def text(self, key: str) -> str:
        """A text."""
        value = self.data.get(key)
        if not isinstance(value, str) or len(value) > MOST_LETTERS:
            raise self.wrong(key, f"a text of at most {MOST_LETTERS:,} letters")
        return value

    def number(self, key: str) -> float | None:
        """A number; None where there is none."""
        value = self.data.get(key)
        if isinstance(value, dict):
            value = value.get("peak")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
            raise self.wrong(key, "a number")
        return float(value)

    def required(self, key: str) -> float:
        """A number that must be there."""
        value = self.number(key)
        if value is None:
            raise self.wrong(key, "a number")
        return value

    def band(self, key: str) -> Band | None:
        """The ends of an interval; None where there is none."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2:
            raise self.wrong(key, "two numbers")
        low, high = (Fields({key: end}, self._path, self._where).required(key) for end in value)
        return low, high

    def part(self, key: str) -> Fields | None:
        """An object in this one; None where there is none."""
        value = self.data.get(key)
        return None if value is None else Fields(value, self._path, f"{self._where}.{key}".strip("."))

    def parts(self, key: str) -> list[Fields]:
        """A list of objects."""
        value = self.data.get(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, "a list")
        return [
            Fields(each, self._path, f"{self._where}.{key}[{place}]".strip(".")) for place, each in enumerate(value)
        ]

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(
            isinstance(each, str) and len(each) <= MOST_LETTERS for each in value
        ):
            raise self.wrong(key, "a list of texts")
        return tuple(value)


def _run(fields: Fields, name: str) -> SavedRun:
    if "ttft_ms" not in fields.data or "pools" not in fields.data:
        raise fields.refused("holds no run that `infercast simulate --json` saved: ttft_ms or pools are missing")
    pools = fields.parts("pools")
    if not pools:
        raise fields.wrong("pools", "a list of at least one pool")
    deployments = [(pool, part) for pool in pools if (part := pool.part("deployment")) is not None]
    workload = fields.part("workload")
    latencies, bands = {}, {}
    for each in LATENCIES:
        if (values := fields.part(f"{each.name}_ms")) is not None:
            latencies[each.name] = {which: values.required(which) for which in NAMES}
        if (ends := fields.part(f"{each.name}_ms_interval")) is not None:
            bands[each.name] = {which: band for which in NAMES if (band := ends.band(which)) is not None}
    rates = {each.key: band for each in QUANTITIES if (band := fields.band(f"{each.key}_interval")) is not None}
    energy = fields.part("energy")
    if energy is not None and (band := energy.band("joules_per_output_token_interval")) is not None:
        rates["joules_per_output_token"] = band
    return SavedRun(
        name=name,
        model=deployments[0][1].text("model") if deployments else "",
        gpus=" and ".join(f"{pool.required('gpus'):,.0f} x {part.text('gpu')}" for pool, part in deployments),
        workload="" if workload is None else workload.text("description"),
        latencies=latencies,
        bands=bands,
        numbers={each.key: fields.number(each.key) for each in QUANTITIES},
        rates=rates,
        phases=tuple(_phase(each) for each in fields.parts("phases")),
        settings=_settings(deployments),
        caveats=fields.texts("caveats"),
        kind=fields.text("kind") if "kind" in fields.data else "",
        state=fields.text("state") if "state" in fields.data else "",
    )


def _phase(fields: Fields) -> SavedPhase:
    families = fields.parts("families")
    return SavedPhase(
        fields.text("phase"),
        max(1.0, fields.required("steps")),
        {family.text("family"): family.required("seconds") for family in families},
        max(0.0, fields.number("host_bound_seconds") or 0.0),
    )


def _settings(deployments: list[tuple[Fields, Fields]]) -> dict[str, str]:
    """Fields of a deployment in words; where two pools have different ones, both."""
    found: dict[str, dict[str, str]] = {}
    for pool, part in deployments:
        for key, value in part.data.items():
            if (text := _in_words(value)) is not None:
                found.setdefault(key[:MOST_LETTERS], {})[pool.text("role")] = text
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


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
