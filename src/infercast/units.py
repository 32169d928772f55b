"""Seconds, bytes and FLOP as people read them. Inside the library everything is plain SI units."""

from __future__ import annotations

import json
import math
import re
from typing import Any

MILLI = 1e-3
MICRO = 1e-6
NOTHING = 1e-12  # Seconds that are shown as none
KIB = 1024
MIB = 1024**2
GIB = 1024**3
GIGA = 1e9
TERA = 1e12
AUTO = -1  # A length: as long as fits


def whole_number(text: str) -> int:
    """A whole number as people write it: ``32k`` is 32,000, ``32K`` is 32,768, ``1.5m`` is 1,500,000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", text.strip())
    if match is None:
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number such as 8192, 8k (8,000) or 8K (8,192)") from None
    number, unit = match.groups()
    power = "kmgt".index(unit.lower()) + 1
    if unit.islower():
        return int(float(number) * 1000**power)
    if "." in number:
        raise ValueError(f"{text!r}: {unit} means {1024**power:,}, which takes no decimals; {unit.lower()} does")
    return int(number) << 10 * power


def format_seconds(seconds: float) -> str:
    """Three significant digits with the unit that fits: ``17.7 ms``."""
    # What is left of two numbers that are equal is shown as nothing.
    return "0 us" if abs(seconds) < NOTHING else _in_units(seconds, {"s": 1.0, "ms": MILLI, "us": MICRO})


def format_bytes(count: float) -> str:
    """Binary units, as memory is sold and reported by drivers: ``14.96 GiB``."""
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= scale:
            return f"{count / scale:,.2f} {unit}"
    return f"{count:,.0f} B"


def format_rate(per_second: float, unit: str) -> str:
    """Decimal units, as bandwidth and FLOP/s are sold: ``4.80 TB/s``."""
    prefixes = {"P": 1e15, "T": TERA, "G": GIGA, "M": 1e6, "": 1.0}
    return _in_units(per_second, {f"{prefix}{unit}": scale for prefix, scale in prefixes.items()})


def format_gpus(count: int) -> str:
    return format_many(count, "GPU")


def format_many(count: float, thing: str) -> str:
    """A number of things, by the name of one: ``1 request``, ``1,500 requests``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def format_figure(value: float) -> str:
    """Three digits or more, such as a rate's: ``1.64``, ``76.3``, ``2,207``."""
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}"


def format_count(count: float) -> str:
    """Parameter counts as they are spoken of: ``8.03 B``."""
    if math.isfinite(count) and not _reaches(count, 1e6):
        return f"{count:,.0f}"
    return _in_units(count, {"T": TERA, "B": GIGA, "M": 1e6})


def format_joules(joules: float) -> str:
    """Three significant digits with the unit that fits: ``12.3 mJ``, ``4.56 kJ``."""
    return _in_units(joules, {"GJ": GIGA, "MJ": 1e6, "kJ": 1e3, "J": 1.0, "mJ": MILLI, "uJ": MICRO})


def format_watts(watts: float) -> str:
    """Whole watts, and kilowatts in three digits from 10,000 W: ``412 W``, ``41.2 kW``."""
    return f"{_three_digits(watts / 1e3)} kW" if abs(watts) >= 1e4 else f"{watts:,.0f} W"


def format_grams(grams: float) -> str:
    """Three significant digits: ``12.3 g``, ``1.20 kg``."""
    return _in_units(grams, {"kg": 1e3, "g": 1.0})


def format_dollars(amount: float) -> str:
    """Dollars and cents, and below one dollar three significant digits: ``$12.40``, ``$0.0123``."""
    return f"${amount:,.2f}" if amount >= 1 else f"${_three_digits(amount)}"


def format_percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def format_odds(probability: float | None) -> str:
    """A probability in whole percent; nothing is ever quite sure, and a dash where there is none."""
    if probability is None:
        return "-"
    percent = round(100 * probability)
    return "< 1 %" if percent < 1 else "> 99 %" if percent > 99 else f"{percent} %"


def _in_units(value: float, units: dict[str, float]) -> str:
    """Three significant digits in the largest unit that ``value`` fills, or in the smallest."""
    if not math.isfinite(value):
        return "-"
    unit = next((each for each, scale in units.items() if _reaches(value, scale)), [*units][-1])
    return f"{_three_digits(value / units[unit])} {unit}"


def _reaches(value: float, scale: float) -> bool:
    """Whether ``value`` fills the unit once it is rounded for display: 999.6 us is 1.00 ms."""
    return _rounded(value) >= scale


def _rounded(value: float) -> float:
    """The size of ``value`` to three significant digits."""
    return abs(float(f"{value:.3g}"))


def _three_digits(value: float) -> str:
    """Three significant digits without scientific notation."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(_rounded(value))))
    return f"{value:,.{decimals}f}"


def json_text(value: Any, **layout: Any) -> str:
    """JSON of plain data; null in place of a number that has no value, or no end, which JSON does not know."""
    try:
        return json.dumps(value, allow_nan=False, **layout)
    except ValueError:
        return json.dumps(finite(value), **layout)


def finite(value: Any) -> Any:
    """Plain data with None for numbers that JSON does not know."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
