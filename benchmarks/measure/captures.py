"""Captures of modules as JSON, as benchmarks and tests keep them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from infercast.torch_modules.lower import AtenCall, Capture, Tensor


def capture_to_json(capture: Capture) -> str:
    return json.dumps(asdict(capture))


def capture_from_json(text: str) -> Capture:
    """What `capture_to_json` wrote."""
    facts = json.loads(text)
    for call in facts["calls"]:
        call["arguments"] = {name: _unpacked(value) for name, value in call["arguments"].items()}
        call["outputs"] = tuple(map(_unpacked, call["outputs"]))
    return Capture(**facts | {"calls": [AtenCall(**call) for call in facts["calls"]]})


def _unpacked(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if len(value) == 3 and isinstance(value[0], str) and isinstance(value[1], list):
        return Tensor(value[0], tuple(value[1]), tuple(value[2]))
    return [_unpacked(each) for each in value]
