"""Forecast LLM inference on GPUs before anyone rents them.

>>> import infercast
>>> forecast = infercast.simulate("llama-3.1-8b", gpu="h200-sxm", rate=12, input_len=700, output_len=180)
>>> forecast.title
'llama-3.1-8b on 1 x h200-sxm'
>>> forecast.ttft.p50 < forecast.ttft.p99
True
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from infercast.shown import set_layers_above

__version__ = "0.2.0"

# The stub says where each public name lives. It is imported when it is first used, so that `import infercast` costs
# next to nothing.
_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_IMPORTS = re.findall(r"^from (\S+) import (\([^)]*\)|.*)", _STUB, re.MULTILINE)
_HOMES: dict[str, str] = {name: module for module, names in _IMPORTS for name in re.findall(r" as (\w+)", names)}
__all__ = sorted(_HOMES)  # noqa: PLE0605 - the stub has the names

set_layers_above(
    renderers=lambda: importlib.import_module("infercast.report.formats"),
    verb=lambda name: getattr(sys.modules[__name__], name),
)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name.startswith("_"):
        raise AttributeError(f"module 'infercast' has no attribute {name!r}")
    else:
        value = importlib.import_module("infercast.old_names").old_name(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
