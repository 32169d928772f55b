"""Checkpoints of AMD's Quark: one scheme for all modules but those that are left out.

``global_quant_config`` has ``weight`` and ``input_tensors`` (null where weights alone are quantised), each with a
``dtype``; fp4 is OCP's MXFP4, 32 values to a scale. ``layer_quant_config`` of single layers is not read.
"""

from __future__ import annotations

from infercast.errors import UnsupportedModelError
from infercast.models.families import Fields
from infercast.models.schemes import Scheme

FORMATS = {
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8": "fp8", "fp4": "mxfp4", "mxfp4": "mxfp4", "int8": "int8",
    "int4": "int4", "uint4": "int4",
}  # fmt: skip
"""Our names of its formats."""
NARROW = ("int4",)
"""What inputs are never multiplied in."""


def quark_scheme(settings: Fields) -> Scheme:
    """How weights are stored and multiplied."""
    whole = settings.section("global_quant_config")
    inputs = whole.section("input_tensors").word("dtype") if whole.raw("input_tensors") is not None else ""
    stored, multiplied = (_format(settings, name) for name in (whole.section("weight").word("dtype"), inputs))
    return Scheme(stored, "" if multiplied in NARROW else multiplied)


def _format(settings: Fields, name: str) -> str:
    if name and name not in FORMATS:
        raise UnsupportedModelError(
            f"{settings.where}: quark's dtype {name!r} is not modelled; known: {', '.join(FORMATS)}"
        )
    return FORMATS.get(name, "")
