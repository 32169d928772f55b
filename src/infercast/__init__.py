"""Forecast LLM inference on GPUs before anyone rents them.

>>> import infercast
>>> forecast = infercast.simulate("llama-3.1-8b", gpu="h200-sxm", rate=12, input_lengths=700, output_lengths=180)
>>> forecast.title
'llama-3.1-8b on 1 x h200-sxm'
>>> forecast.ttft.p50 < forecast.ttft.p99
True
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from infercast.shown import set_renderers

__version__ = "0.2.0"

# The stub says where each public name lives. It is imported when it is first used, so that `import infercast` costs
# next to nothing.
_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_IMPORTS = re.findall(r"^from (\S+) import (\([^)]*\)|.*)", _STUB, re.MULTILINE)
_HOMES: dict[str, str] = {name: module for module, names in _IMPORTS for name in re.findall(r" as (\w+)", names)}
__all__ = sorted(_HOMES)  # noqa: PLE0605 - the stub has the names

_OLD_NAMES = {
    "Wall": "FacilityEnergy",
    "forecast_fleet": "simulate",
    "price": "estimate",
    "price_step": "estimate_step",
    "price_variants": "estimate_variants",
}  # Names of before 1.0, which goes without them


set_renderers(lambda: importlib.import_module("infercast.report.formats"))


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _OLD_NAMES:
        import warnings  # noqa: PLC0415 - only who uses an old name needs it

        new = _OLD_NAMES[name]
        warnings.warn(f"infercast.{name} is infercast.{new} now; 1.0 drops the old name", DeprecationWarning, 2)
        name = new
    if name not in _HOMES:
        raise AttributeError(f"module 'infercast' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
