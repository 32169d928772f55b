"""Numbers as people read them, above all at the borders between units, and as JSON holds them."""

import json
import math
import re
from pathlib import Path

import pytest

from infercast.units import (
    format_bytes,
    format_count,
    format_grams,
    format_joules,
    format_percent,
    format_rate,
    format_seconds,
    format_watts,
    json_text,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 us"),
        (2.5e-7, "0.250 us"),
        (1.0e-6, "1.00 us"),
        (999.4e-6, "999 us"),
        (999.6e-6, "1.00 ms"),  # rounds up into the next unit, never "1,000 us"
        (1e-3, "1.00 ms"),
        (9.996e-3, "10.0 ms"),  # three digits, not four
        (17.72e-3, "17.7 ms"),
        (0.9996, "1.00 s"),
        (1.0, "1.00 s"),
        (3725.4, "3,725 s"),
        (-0.5, "-500 ms"),
        (-999.6e-6, "-1.00 ms"),
    ],
)
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (1.5 * 2**20, "1.50 MiB"),
        (2**30, "1.00 GiB"),
        (1500 * 2**30, "1,500.00 GiB"),
        (-(2**20), "-1.00 MiB"),
    ],
)
def test_bytes(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0, "0 B/s"),
        (999, "999 B/s"),
        (63e9, "63.0 GB/s"),
        (999.7e9, "1.00 TB/s"),
        (4.8e12, "4.80 TB/s"),
        (1.9789e15, "1.98 PB/s"),
    ],
)
def test_rate(rate, text):
    assert format_rate(rate, "B/s") == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (12_345, "12,345"),
        (999_999_999, "1.00 B"),
        (8_030_261_248, "8.03 B"),
        (1.04e12, "1.04 T"),
        (135e6, "135 M"),
    ],
)
def test_count(count, text):
    assert format_count(count) == text


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_a_dash(value):
    assert format_seconds(value) == "-"
    assert format_rate(value, "B/s") == "-"
    assert format_count(value) == "-"


def test_percent():
    assert [format_percent(value) for value in (0, 0.1234, 1, -0.05)] == ["0.0 %", "12.3 %", "100.0 %", "-5.0 %"]


def test_energy() -> None:
    assert [format_joules(value) for value in (0.0123, 4.5, 4560, 2.5e6, 3e9)] == [
        "12.3 mJ", "4.50 J", "4.56 kJ", "2.50 MJ", "3.00 GJ",
    ]  # fmt: skip
    assert format_joules(2e-6) == "2.00 uJ"
    assert [format_watts(value) for value in (412.4, 9_999, 41_200)] == ["412 W", "9,999 W", "41.2 kW"]
    assert [format_grams(value) for value in (12.34, 1200)] == ["12.3 g", "1.20 kg"]


def test_what_is_left_of_equal_numbers_is_nothing():
    assert format_seconds(7.11e-16) == "0 us"
    assert format_seconds(-3e-18) == "0 us"
    assert format_seconds(0.0) == "0 us"
    assert format_seconds(2.5e-9) == "0.00250 us"


def test_json_holds_null_where_there_is_no_number():
    document = {"a": math.nan, "b": [1.0, -math.inf, {"c": math.inf}], "d": 2}
    assert json.loads(json_text(document)) == {"a": None, "b": [1.0, None, {"c": None}], "d": 2}
    assert json_text({"a": 1}, indent=2) == json.dumps({"a": 1}, indent=2)


def test_answers_are_made_json_in_one_place():
    source = Path(__file__).parents[1] / "src" / "infercast"
    keys = {
        "web/workers.py", "web/answers.py", "web/state.py", "calibration/readers.py",
        "emulate/answers.py", "emulate/prompts.py",
    }  # keys of caches, defaults, and texts of prompts and answers  # fmt: skip
    files = [
        path for part in ("cli", "report", "web", "emulate", "calibration") for path in (source / part).rglob("*.py")
    ]
    own = {
        path.relative_to(source).as_posix() for path in files if re.search(r"json\.dumps?\(", path.read_text("utf-8"))
    }
    assert own <= keys
