"""Flags of ``sglang.launch_server``, and settings from their values; those that are none stand in ``flags.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from infercast.bundled import read_data
from infercast.engines.engine import Tell
from infercast.engines.settings import read_setting
from infercast.engines.sglang.settings import SglangSettings
from infercast.engines.words import Flags

FLAGS = Flags(
    options=frozenset(field.name for field in fields(SglangSettings)), **read_data("engines/sglang/flags.toml")
)


def settings_of(given: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Fields of the settings from the values of flags; what is not modelled is refused, or told."""
    values = dict(given)
    if isinstance(sizes := values.get("cuda_graph_bs"), str):
        values["cuda_graph_bs"] = read_setting({"cuda_graph_bs": tuple}, "cuda_graph_bs", sizes)
    return values
