"""What to say of a model that is not bundled: that it is known and refused, or what else may have been meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from infercast.bundled import read_data
from infercast.errors import InputError, UnknownNameError, UnsupportedModelError, near_names
from infercast.models.nearest import nearest_size

MOST_SUGGESTED = 3


@cache
def refused() -> dict[str, str]:
    """Architectures that are known and not modelled, each with what stands in the way."""
    return {name: reason for reason, names in read_data("refused_models.toml")["reasons"].items() for name in names}


@cache
def refused_names() -> dict[str, str]:
    """How the names of published models begin whose config.json names such an architecture."""
    return dict(read_data("refused_models.toml")["names"])


@cache
def relatives() -> dict[str, str]:
    """For such architectures the bundled model of the same makers or the same size that is most alike."""
    return dict(read_data("refused_models.toml")["nearest"])


def stand_in(name: str | None) -> str:
    """The end of a sentence that names a model to forecast with instead."""
    return f"; the nearest bundled model is {name}" if name else ""


def unknown_model(name: str, bundled: Mapping[str, Mapping[str, Any]]) -> InputError:
    """One sentence about a model that is not among those ``bundled``, of which the files are given."""
    plain = _plain(name)
    sizes = {each: int(values["infercast"]["parameters"]) for each, values in bundled.items()}
    architecture = next((value for begin, value in refused_names().items() if plain.startswith(begin)), "")
    if reason := refused().get(architecture):
        instead = stand_in(relatives().get(architecture) or nearest_size(plain, sizes))
        return UnsupportedModelError(f"{name} ({architecture}) is not supported: {reason}{instead}")
    near = _near(plain, bundled)
    size = None if near else nearest_size(plain, sizes)
    hint = f"a path to its config.json works too, and `infercast models` lists the {len(bundled)} bundled names"
    hint += f"; the nearest in size is {size}" if size else ""
    return UnknownNameError("model", name, bundled, hint, near=near, listed=False)


def _plain(name: str) -> str:
    """``nvidia/NVIDIA-Nemotron-3-Nano`` as ``nemotron-3-nano``."""
    return name.strip().rpartition("/")[2].lower().removeprefix("nvidia-")


def _near(plain: str, names: Iterable[str]) -> list[str]:
    """Names that may have been meant, never those of another generation: qwen2.5 is no guess for qwen3.5."""
    same = [each for each in names if _generation(each) in (_generation(plain), "")]
    return near_names(plain, same, most=MOST_SUGGESTED)


def _generation(plain: str) -> str:
    """The first number in a name: ``3.1`` of ``llama-3.1-8b``."""
    found = re.search(r"\d+(\.\d+)?", plain)
    return found[0] if found else ""
