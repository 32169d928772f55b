"""Flags of ``vllm serve``, and settings from their values; those that are none stand in ``flags.toml``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from infercast.bundled import read_data
from infercast.engines.engine import Tell
from infercast.engines.release import numbers
from infercast.engines.vllm.settings import EngineSettings
from infercast.engines.words import Flags
from infercast.errors import InputError

GRAPH_SETTINGS = ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
"""What a forecast takes from ``--compilation-config``."""
QUEUES = ("max_num_queued_reqs", "max_num_queued_tokens")
"""Limits beyond which a server refuses requests."""
READ = frozenset({"compilation_config", "decode_context_parallel_size"})
"""Flags that are no settings themselves but say something of them."""
_DATA = read_data("engines/vllm/flags.toml")
_CHANGED: dict[str, dict[str, str]] = _DATA.pop("changed")


def flags_of(engine: str) -> Flags:
    """The flags of a release; those that it does not have yet, or no more, are refused with the release that has."""
    version = numbers(engine.partition("@")[2])
    absent = {}
    for name, change in _CHANGED.items():
        if "since" in change and version < numbers(change["since"]):
            absent[name] = f"it came with vLLM {change['since']}"
        elif "until" in change and version >= numbers(change["until"]):
            absent[name] = f"it went with vLLM {change['until']}"
    flags = Flags(options=READ | {field.name for field in fields(EngineSettings)}, **_DATA)
    return flags._replace(
        settings={name: field for name, field in flags.settings.items() if name not in absent},
        not_modelled={**flags.not_modelled, **absent},
    )


def settings_of(given: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Fields of the settings from the values of flags; what is not modelled is refused, or told."""
    values = {name: value for name, value in given.items() if name not in READ}
    if (size := given.get("decode_context_parallel_size", 1)) != 1:
        raise InputError(f"--decode-context-parallel-size {size} is not modelled; leave it at 1")
    for name in QUEUES:
        if values.get(name) is not None:
            tell(f"{name} {values[name]}: what the server answers with 503 beyond it is served all the same here")
    if isinstance(sizes := values.get("cudagraph_capture_sizes"), str):
        values["cudagraph_capture_sizes"] = _sizes(sizes)
    graphs = _graph_settings(text, tell) if (text := given.get("compilation_config")) else {}
    return graphs | values


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise InputError(f"--cudagraph-capture-sizes must be whole numbers with commas between them, not {text!r}")
    return tuple(int(part) for part in parts)


def _graph_settings(text: str, tell: Tell) -> dict[str, Any]:
    """What a compilation config says of CUDA graphs; a plain number is its mode of compiling."""
    try:
        values = json.loads(text)
    except ValueError:
        raise InputError(f"--compilation-config must be a JSON object, not {text[:80]!r}") from None
    values = {"mode": values} if isinstance(values, int) else values
    if not isinstance(values, dict):
        raise InputError(f"--compilation-config must be a JSON object, not {text[:80]!r}")
    if unread := [name for name in values if name not in GRAPH_SETTINGS]:
        tell(f"--compilation-config: {', '.join(unread)} ignored; read are {', '.join(GRAPH_SETTINGS)}")
    found = {name: values[name] for name in GRAPH_SETTINGS if values.get(name) is not None}
    if "cudagraph_mode" in found:
        found["cudagraph_mode"] = str(found["cudagraph_mode"]).lower()
    largest, sizes = found.get("max_cudagraph_capture_size"), found.get("cudagraph_capture_sizes")
    if largest is not None and type(largest) is not int:
        raise InputError(f"--compilation-config: max_cudagraph_capture_size must be a whole number, not {largest!r}")
    if sizes is not None:
        if not isinstance(sizes, list) or not all(type(size) is int for size in sizes):
            raise InputError(f"--compilation-config: cudagraph_capture_sizes must be whole numbers, not {sizes!r}")
        found["cudagraph_capture_sizes"] = tuple(sizes)
    return found
