"""What may stand in a GPU file, and one clear sentence for what may not."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from infercast.errors import FileFormatError, near_names
from infercast.hardware.pcie import TOPOLOGIES

TENSOR_DTYPES = ("tf32", "bf16", "fp16", "fp8", "int8", "fp4")
"""Formats of a tensor table. Plain fp32 is not one of them: it follows from the FMA lanes."""


def _is_number(value: object) -> bool:
    # TOML has true, inf, nan and integers of any length, none of which is a size; Python counts a bool as an int.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and item for item in value)


Rule = tuple[str, Callable[[Any], bool]]
TEXT: Rule = ("a non-empty string", lambda value: isinstance(value, str) and bool(value.strip()))
TEXTS: Rule = ("a list of non-empty strings", _is_text_list)
SMALLEST = 1e-4
"""No field of a chip, in the units of its file, is smaller; less comes to nothing in bytes or whole cycles."""
POSITIVE: Rule = (f"a finite number of at least {SMALLEST:g}", lambda value: _is_number(value) and value >= SMALLEST)
NOT_NEGATIVE: Rule = ("zero or a positive finite number", lambda value: _is_number(value) and value >= 0)
COUNT: Rule = ("a positive whole number", lambda value: _is_number(value) and isinstance(value, int) and value > 0)
RATES: Rule = ("a table of rates by format", lambda value: isinstance(value, dict) and bool(value))

ON_CHIP_FIELDS: dict[str, Rule] = {
    "fp32_lanes_per_sm": COUNT,
    "special_ops_per_sm_clock": POSITIVE,
    "l2_bytes_per_clock": POSITIVE,
    "l2_bytes_per_sm_clock": POSITIVE,
    "shared_memory_kib_per_sm": POSITIVE,
    "registers_per_sm": COUNT,
    "tensor_flops_per_sm_clock": RATES,
}
"""Facts of an architecture; a GPU file may replace any of them."""

TOPOLOGY: Rule = (f"one of {', '.join(TOPOLOGIES)}", lambda value: isinstance(value, str) and value in TOPOLOGIES)
MEMORIES = ("hbm", "gddr")
MEMORY: Rule = ("hbm (stacked) or gddr", lambda value: value in MEMORIES)
ARCHITECTURE_FIELDS: dict[str, Rule] = {
    "vendor": TEXT,
    "compute_capability": TEXT,
    "kernels": TEXT,
    "memory": MEMORY,
    **ON_CHIP_FIELDS,
}
FACTS: Rule = ("a table of facts", lambda value: isinstance(value, dict) and bool(value))
"""What is known of the kernels that an architecture runs; only a new architecture brings its own."""

GPU_FIELDS: dict[str, Rule] = {
    "base": TEXT,
    "name": TEXT,
    "title": TEXT,
    "architecture": TEXT,
    "sms": COUNT,
    "boost_clock_mhz": POSITIVE,
    "sustained_clock_mhz": POSITIVE,
    "max_clock_mhz": POSITIVE,
    "dram_gib": POSITIVE,
    "driver_mib": POSITIVE,
    "dram_gb_per_s": POSITIVE,
    "l2_mib": POSITIVE,
    "nvlink_gb_per_s": NOT_NEGATIVE,
    "nvlink_gpus": COUNT,
    "pcie_gb_per_s": POSITIVE,
    "pcie_topology": TOPOLOGY,
    "gpus_per_node": COUNT,
    "tdp_w": POSITIVE,
    "announced": TEXT,
    "aliases": TEXTS,
    "sources": TEXTS,
    "tensor_tflops": RATES,
    **ARCHITECTURE_FIELDS,
}

REQUIRED_GPU_FIELDS = (
    "architecture", "sms", "boost_clock_mhz", "sustained_clock_mhz", "dram_gib", "dram_gb_per_s", "l2_mib",
    "pcie_gb_per_s", "tdp_w",
)  # fmt: skip
"""What a GPU file without a base must say itself; the rest has a rule or a plain default."""


def read_table(file: Path, shown: object) -> dict[str, Any]:
    """The TOML table in ``file``; ``shown`` is what an error calls the file."""
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        raise FileFormatError(shown, "no such file") from None
    except IsADirectoryError:
        raise FileFormatError(shown, "is a directory, not a TOML file that describes a GPU") from None
    except OSError as error:
        raise FileFormatError(shown, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FileFormatError(shown, "is not UTF-8 text, so not a TOML file") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem, _, place = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", place)
        raise FileFormatError(
            shown, f"not valid TOML: {problem}", int(line[1]) if line else text.count("\n") + 1
        ) from None


def check_table(table: Mapping[str, Any], fields: Mapping[str, Rule], shown: object, inside: str = "") -> None:
    """Refuse unknown fields and values of the wrong kind, naming the field, the value and what is expected."""
    for key, value in table.items():
        if key not in fields:
            raise FileFormatError(shown, _unknown(f"field {inside + key!r}", key, fields))
        expected, holds = fields[key]
        if not holds(value):
            raise FileFormatError(shown, f"{inside}{key} must be {expected}, not {value!r}")
        if fields[key] is RATES:
            check_table(value, dict.fromkeys(TENSOR_DTYPES, POSITIVE), shown, f"{inside}{key}.")


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The part of a message that offers the nearest known names."""
    near = near_names(name, known, most=1)
    suggestion = f"did you mean {near[0]}? " if near else ""
    return f"unknown {what}; {suggestion}known: {', '.join(known)}"
