"""Everything that can be asked on the page and over HTTP: one table of fields, from ``data/web/fields.toml``."""

from __future__ import annotations

from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.engines.registry import DEFAULT_ENGINE
from infercast.serve.workload.lengths import INPUT_LEN, OUTPUT_LEN

TEXT, WHOLE, NUMBER, SWITCH, NAMES = "text", "whole", "number", "switch", "names"
"""Kinds of values: a string, an integer, a float, true or false, and several strings."""
SIMULATE, MEMORY, CURVE, PLAN, CAPACITY, ENERGY = "simulate", "memory", "curve", "plan", "capacity", "energy"
"""The questions that a state can be asked."""
DEFAULTS = {
    "engine": DEFAULT_ENGINE,
    "input_len": INPUT_LEN,
    "output_len": OUTPUT_LEN,
}
"""Those that the command line has, too."""


class Field(NamedTuple):
    """One thing that can be asked for."""

    name: str
    """In a URL, in JSON and, with few exceptions, in Python."""
    kind: str
    label: str
    """For people: a few words."""
    group: str
    help: str
    """One sentence."""
    questions: tuple[str, ...]
    """Those whose answer depends on it."""
    option: str = ""
    """Of the command line; of a switch that can be turned off, both words with a slash between them."""
    default: Any = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    catalogue: str = ""
    """The list of the catalogue that values come from."""
    setting: bool = False
    """Whether it is a setting of the default engine; other engines have other names for some of them."""


FIELDS = tuple(
    Field(name, **{"default": DEFAULTS.get(name), **values}) for name, values in read_data("web/fields.toml").items()
)
BY_NAME = {field.name: field for field in FIELDS}
GROUPS = tuple(dict.fromkeys(field.group for field in FIELDS))
