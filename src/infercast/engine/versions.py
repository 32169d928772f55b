"""What differs between versions of an engine, as far as a forecast notices: one row a fact, one column a version.

Everything is read from the sources of the released packages. Costs were measured on 0.25.
"""

from __future__ import annotations

from infercast.errors import UnknownNameError
from infercast.records import dataclass


@dataclass(frozen=True, slots=True)
class EngineVersion:
    """One release and its rules."""

    name: str
    spares_lone_prompts: bool
    """``long_prefill_token_threshold`` does not hold for a request that is alone."""
    settles: bool
    """Windows move on by processed tokens, not by planned ones, and requests need room for what is under way."""
    sparse_windows: bool
    """Layers with windows keep blocks findable only before a prompt's end and where two prompts were seen to part."""


VERSIONS = {
    "0.25": EngineVersion("0.25", spares_lone_prompts=False, settles=False, sparse_windows=False),
    "0.32": EngineVersion("0.32", spares_lone_prompts=True, settles=True, sparse_windows=True),
}


def version_of(name: str) -> EngineVersion:
    """The rules of a version by its name."""
    if name not in VERSIONS:
        raise UnknownNameError("vLLM version", name, [*VERSIONS])
    return VERSIONS[name]
