"""``calibration.toml``: written for people to read, and read back."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from infercast.errors import FileFormatError
from infercast.forecast.calibration.record import FACTORS, TITLES, Calibration, Fingerprint, Learned, Pair, Source

FORM = 1
"""Of the file; another number is another form."""
MOST = 100.0
"""No factor is larger, or smaller than one over it, and no path longer in seconds."""


def write_calibration(calibration: Calibration) -> str:
    """The text of the file."""
    lines = [
        "# What measured results say of this deployment beyond infercast's estimates. Give it to any command that",
        "# simulates: --calibration FILE. A factor of 1.1 says that times are 1.1 times as long as estimated;",
        "# spread is the standard deviation of its logarithm, spread_before the same without the results.",
        f"form = {FORM}",
        f"infercast = {_text(calibration.version)}",
        "",
        "[deployment]",
    ]
    known = calibration.deployment
    lines += [f"{each.name} = {_value(getattr(known, each.name))}" for each in fields(known)]
    for name, learned in calibration.factors.items():
        unit = "_ms" if name == "path" else ""
        scale = 1e3 if name == "path" else 1.0
        told = "" if learned.is_told else "  # the results could not tell"
        lines += [
            "",
            f"[{name}]  # {TITLES[name]}",
            f"{'extra_ms' if unit else 'factor'} = {scale * learned.value:.6g}{told}",
            f"spread{unit} = {scale * learned.spread:.4g}",
            f"spread_before{unit} = {scale * learned.before:.4g}",
        ]
    seen = {name: getattr(calibration, name) for name in ("prefix_hit_rate", "acceptance_length")}
    if any(value is not None for value in seen.values()):
        lines += ["", "[seen]  # of the load that was measured"]
        lines += [f"{name} = {value:.6g}" for name, value in seen.items() if value is not None]
    for source in calibration.results:
        lines += ["", *_source(source)]
    return "\n".join(lines) + "\n"


def _source(source: Source) -> list[str]:
    words = [f"{name} = {_value(getattr(source, name))}" for name in ("file", "sha256", "kind", "load", "requests")]
    lines = ["[[results]]", *words]
    if source.assumptions:
        lines.append(f"assumptions = [{', '.join(map(_text, source.assumptions))}]")
    for name, pairs in (("quantities", source.pairs), ("left_out", source.left_out)):
        if pairs:
            lines.append(f"{name} = [  # measured, forecast before, forecast after")
            lines += [
                f"    [{_text(each.quantity)}, {each.measured:.6g}, {each.before:.6g}, {each.after:.6g}],"
                for each in pairs
            ]
            lines.append("]")
    return lines


def _value(value: str | bool | int) -> str:
    return _text(value) if isinstance(value, str) else str(value).lower()


def _text(text: str) -> str:
    """A basic string of TOML, which writes what JSON writes."""
    return json.dumps(text, ensure_ascii=True)


def read_calibration(path: Path) -> Calibration:
    """Read and check a file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise FileFormatError(path, f"cannot be read: {problem.strerror or problem}") from None
    except UnicodeDecodeError:
        raise FileFormatError(path, "is not UTF-8 text, so not a calibration") from None
    except (ValueError, RecursionError) as problem:
        raise FileFormatError(path, f"is not TOML: {problem}") from None
    if values.get("form") != FORM:
        raise FileFormatError(path, f"is not a calibration of form {FORM}; `infercast calibrate` writes one")
    known = _table(path, values, "deployment")
    seen = values.get("seen", {})
    if not isinstance(seen, dict):
        raise FileFormatError(path, "seen must be a table")
    return Calibration(
        deployment=Fingerprint(**{each.name: _word(path, known, each.name) for each in fields(Fingerprint)}),
        **{name: _learned(path, _table(path, values, name), name) for name in FACTORS},
        results=tuple(_read_source(path, each) for each in _tables(path, values, "results")),
        prefix_hit_rate=_optional(path, seen, "prefix_hit_rate", 0.0, 1.0),
        acceptance_length=_optional(path, seen, "acceptance_length", 1.0, MOST),
        version=str(values.get("infercast", "")),
        title=path.name,
    )


def _table(path: Path, values: dict[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    if not isinstance(found, dict):
        raise FileFormatError(path, f"[{name}] is missing; `infercast calibrate` writes it")
    return found


def _tables(path: Path, values: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = values.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise FileFormatError(path, f"[[{name}]] must be tables")
    return found


def _word(path: Path, table: dict[str, Any], name: str) -> Any:
    wanted = bool if name == "api_server" else str
    if not isinstance(table.get(name), wanted):
        kind = "true or false" if wanted is bool else "text"
        raise FileFormatError(path, f"deployment.{name} must be {kind}, not {table.get(name)!r}")
    return table[name]


def _learned(path: Path, table: dict[str, Any], name: str) -> Learned:
    if name == "path":
        value = _number(path, table, f"{name}.extra_ms", -1e3 * MOST, 1e3 * MOST)
        spreads = [_number(path, table, f"{name}.{each}_ms", 0.0, 1e3 * MOST) for each in ("spread", "spread_before")]
        return Learned(value / 1e3, spreads[0] / 1e3, spreads[1] / 1e3)
    value = _number(path, table, f"{name}.factor", 1 / MOST, MOST)
    return Learned(value, *(_number(path, table, f"{name}.{each}", 0.0, MOST) for each in ("spread", "spread_before")))


def _number(path: Path, table: dict[str, Any], place: str, least: float, most: float) -> float:
    value = table.get(place.rpartition(".")[2])
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise FileFormatError(path, f"{place} must be a number from {least:g} to {most:g}, not {value!r}")
    return float(value)


def _optional(path: Path, table: dict[str, Any], name: str, least: float, most: float) -> float | None:
    return None if name not in table else _number(path, table, f"seen.{name}", least, most)


def _read_source(path: Path, table: dict[str, Any]) -> Source:
    """What a calibration was learned from; it changes nothing, so only its form is checked."""
    requests = table.get("requests", 0)
    return Source(
        file=str(table.get("file", "")),
        sha256=str(table.get("sha256", "")),
        kind=str(table.get("kind", "")),
        load=str(table.get("load", "")),
        requests=requests if isinstance(requests, int) else 0,
        pairs=_pairs(path, table.get("quantities", [])),
        left_out=_pairs(path, table.get("left_out", [])),
        assumptions=tuple(map(str, table.get("assumptions", []))),
    )


def _pairs(path: Path, rows: Any) -> tuple[Pair, ...]:
    try:
        pairs = tuple(Pair(str(name), *(float(value) for value in values)) for name, *values in rows)
    except (TypeError, ValueError):
        raise FileFormatError(path, "results.quantities must be rows of a name and three numbers") from None
    if not all(math.isfinite(value) for pair in pairs for value in pair[1:]):
        raise FileFormatError(path, "results.quantities must be finite numbers")
    return pairs
