"""What a command or a page asks of a plan, made into parts of a `Question`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infercast.engines.registry import engine_named
from infercast.errors import InputError
from infercast.forecast.deploy import load_model
from infercast.forecast.plan.candidate import Settings

USUAL_GPUS = ("l40s", "a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm")
"""What is chosen from where nobody says."""
ANY = "any"
WEIGHTS = (None, "fp8", "int4")
"""What any format of weights means: the checkpoint's, 8 bits, 4 bits."""


def formats_of(model: str, given: Sequence[str]) -> tuple[str | None, ...]:
    """Formats of weights by name; ``none`` is the checkpoint's own."""
    if list(given) == [ANY]:
        return WEIGHTS
    names = tuple(None if name == "none" else name for name in given)
    for name in names:
        load_model(model, quantization=name)  # a format that was asked for by name is refused here, not left out
    return names


def drafts_tried(
    engines: Sequence[str], given: Mapping[str, Any], *, varies: bool = False
) -> tuple[Settings, ...] | None:
    """What is tried of settings, with drafts in all of it where they are asked for; None: as each engine says.

    ``given``: settings of speculative decoding, None where nobody asks; ``varies``: others are tried by name.
    """
    fixed = [(name, value) for name, value in given.items() if value is not None]
    if not fixed:
        return None if not varies else ((),)
    for each in map(engine_named, engines):
        if not {*given} <= each.flags.options:
            raise InputError(
                f"--{fixed[-1][0].replace('_', '-')} is no option of {each.title}; plan without that engine"
            )
    return tuple(tuple(sorted([*tried, *fixed])) for tried in (((),) if varies else engine_named(engines[0]).tried))
