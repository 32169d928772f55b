"""Fields of a config.json that a user changes, as vLLM's ``--hf-overrides`` does: fewer layers, another rotation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from infercast.errors import InputError

LAYERS = "num_hidden_layers"
DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Layers behind the others; some lists have an item for each of them too."""


def overridden(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with some of them changed; objects are merged, all else is replaced.

    Where that takes layers away, lists and patterns with one item a layer lose those of the layers that are gone: an
    engine reads as many of them as it has layers.
    """
    found = dict(values)
    for name, change in changes.items():
        inner = found.get(name)
        if isinstance(change, Mapping) and isinstance(inner, Mapping):
            found[name] = overridden(inner, change)
        else:
            found[name] = change
    before, after = values.get(LAYERS), changes.get(LAYERS)
    if isinstance(before, int) and isinstance(after, int) and 0 < after < before:
        drafts = sum(found[name] for name in DRAFTS if isinstance(found.get(name), int))
        lengths = {before, before + drafts}
        for name, value in found.items():
            if name not in changes and isinstance(value, list | str) and len(value) in lengths and _is_a_layer(value):
                found[name] = value[:after]
    return found


def _is_a_layer(value: list[Any] | str) -> bool:
    """Whether it may have an item for each layer: a list, or a pattern such as ``MEM*``, not a name."""
    return isinstance(value, list) or not any(letter.islower() or letter.isspace() for letter in value)


def read_overrides(text: str) -> dict[str, Any]:
    """The changes as a command line has them."""
    try:
        changes = json.loads(text)
    except ValueError:
        changes = None
    if not isinstance(changes, dict):
        raise InputError(f"--hf-overrides must be a JSON object, not {text[:80]!r}")
    return changes
