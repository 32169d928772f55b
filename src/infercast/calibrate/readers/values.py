"""Values of files that anybody may have written: checked before they are used."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.calibrate.result import RATE
from infercast.errors import FileFormatError
from infercast.forecast.latency import NAMES, percentiles

Array = npt.NDArray[Any]

MOST_BYTES = 512 * 2**20
"""No result is larger; what is, is something else."""
LONGEST_SECONDS = 1e5
MOST_TOKENS = 10**8


def read_text(path: Path) -> str:
    """The text of a file."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise FileFormatError(path, f"is larger than {MOST_BYTES // 2**20} MiB, which no result is")
        return path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise FileFormatError(path, f"cannot be read: {problem.strerror or problem}") from None
    except UnicodeDecodeError:
        raise FileFormatError(path, "is not UTF-8 text, so not a result") from None


def parse_json(path: Path, text: str, line: int | None = None) -> Any:
    """JSON of any kind."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise FileFormatError(path, f"is not JSON: {problem}", line) from None


class Values:
    """An object of a file, whose values are asked for by name."""

    def __init__(self, path: Path, holder: Any, place: str = "") -> None:
        if not isinstance(holder, dict):
            raise FileFormatError(path, f"{place or 'the result'} must be an object, not {type(holder).__name__}")
        self.path, self.holder, self.place = path, holder, place

    def named(self, name: str) -> str:
        """Where a value stands."""
        return f"{self.place}.{name}" if self.place else name

    def part(self, name: str) -> Values:
        """An object within."""
        return Values(self.path, self.holder.get(name), self.named(name))

    def maybe(self, name: str) -> Values | None:
        """The same where there is one."""
        found = self.holder.get(name)
        return Values(self.path, found, self.named(name)) if isinstance(found, dict) else None

    def number(self, name: str, *, least: float = 0.0, most: float = 1e12) -> float | None:
        """A finite number; None where it is missing."""
        value = self.holder.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.wrong(name, f"must be a number from {least:g} to {most:g}, not {str(value)[:40]}")
        return float(value)

    def count(self, name: str, *, least: int = 0) -> int | None:
        """A whole number."""
        value = self.number(name, least=least, most=1e9)
        return None if value is None else round(value)

    def needed(self, name: str, *, least: float = 0.0, most: float = 1e12) -> float:
        """A number that must be there."""
        value = self.number(name, least=least, most=most)
        if value is None:
            raise self.wrong(name, "is missing")
        return value

    def word(self, name: str) -> str | None:
        """Text."""
        value = self.holder.get(name)
        return value if isinstance(value, str) and value else None

    def numbers(self, name: str, *, least: float = 0.0, most: float = 1e12) -> Array | None:
        """A list of numbers; None where it is missing."""
        value = self.holder.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            isinstance(each, int | float) and not isinstance(each, bool) for each in value
        ):
            raise self.wrong(name, "must be a list of numbers")
        array = np.array(value, dtype=float)
        if array.size and not (least <= array.min() and array.max() <= most):  # not for a value that is no number
            raise self.wrong(name, f"must hold numbers from {least:g} to {most:g}")
        return array

    def wrong(self, name: str, problem: str) -> FileFormatError:
        """An error that names the place."""
        return FileFormatError(self.path, f"{self.named(name)} {problem}")


def summed_up(latency: str, values: Array) -> dict[str, float]:
    """Mean and percentiles of seconds, by their names."""
    if not values.size:
        return {}
    found = dict(zip(NAMES, percentiles(values).values, strict=True))
    return {f"{latency}_{name}": value for name, value in found.items() if value > 0}


def statistics(
    values: Values, latency: str, called: Mapping[str, str] | Sequence[tuple[str, str]], scale: float
) -> dict[str, float]:
    """What an object says of a latency: our names by theirs, in seconds."""
    found = {}
    for ours, theirs in dict(called).items():
        value = values.number(theirs, most=LONGEST_SECONDS / scale)
        if value:
            found[f"{latency}_{ours}"] = value * scale
    return found


def with_rate(seen: dict[str, float], rate: float | None) -> dict[str, float]:
    """What was seen, with output tokens a second where they are known."""
    return seen if not rate or not math.isfinite(rate) else {**seen, RATE: rate}
