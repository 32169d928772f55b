"""Bundled models by name, and suggestions for a name that is not among them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, cast

from infercast.bundled import DATA, read_data
from infercast.errors import InputError, UnknownNameError, UnsupportedModelError, near_names

SIZE_KEYS = (
    ("hidden_size", "d_model"),
    ("num_hidden_layers", "n_layers", "num_layers"),
    ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size", "ffn_hidden_size", "d_ff"),
    ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
)
LARGEST = 2**40
TEXT_KEYS = ("text_config", "llm_config", "language_config")
SIZE_IN_NAME = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z0-9])")


def nearest_shape(values: Mapping[str, Any], bundled: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The ``bundled`` model of most similar depth, widths and experts; None where a file has no sizes."""
    wanted = _shape(values)
    if wanted is None:
        return None
    shapes = {name: shape for name, each in bundled.items() if (shape := _shape(each)) is not None}
    return min(shapes, key=lambda name: (math.dist(wanted, shapes[name]), len(name), name), default=None)


def nearest_size(name: str, parameters: Mapping[str, int]) -> str | None:
    """The model with the number of ``parameters`` nearest to the one in a name; None where there is none."""
    found = SIZE_IN_NAME.search(name.lower())
    if found is None or not float(found[1]):
        return None
    wanted = math.log(float(found[1]) * 1e9)
    return min(parameters, key=lambda each: (abs(math.log(parameters[each]) - wanted), len(each), each), default=None)


def _shape(values: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Logarithms of hidden size, depth, width and experts."""
    inner: Mapping[str, Any] = next((values[key] for key in TEXT_KEYS if isinstance(values.get(key), dict)), {})
    hidden, layers, width, experts = (_size({**values, **inner}, keys) for keys in SIZE_KEYS)
    if not (hidden and layers and width):
        return None
    return tuple(math.log(size) for size in (hidden, layers, width, experts or 1))


def _size(values: Mapping[str, Any], keys: Iterable[str]) -> int:
    """The first plausible size under one of these keys, whatever else stands in a file; 0 without any."""
    found = (values.get(key) for key in keys)
    return next((size for size in found if type(size) is int and 0 < size < LARGEST), 0)


MOST_SUGGESTED = 3


@cache
def refused() -> dict[str, str]:
    """Architectures that are known and not modelled, each with what stands in the way."""
    return {name: reason for reason, names in read_data("refused_models.toml")["reasons"].items() for name in names}


@cache
def refused_names() -> dict[str, str]:
    """Prefixes of the names of published models with such an architecture in their config.json."""
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
    # Never another generation: qwen2.5 is no guess for qwen3.5.
    same = [each for each in bundled if _generation(each) in (_generation(plain), "")]
    near = near_names(plain, same, most=MOST_SUGGESTED)
    size = None if near else nearest_size(plain, sizes)
    hint = f"a path to its config.json works too, and `infercast models` lists the {len(bundled)} bundled names"
    hint += f"; the nearest in size is {size}" if size else ""
    return UnknownNameError("model", name, bundled, hint, near=near, listed=False)


def _plain(name: str) -> str:
    """``nvidia/NVIDIA-Nemotron-3-Nano`` as ``nemotron-3-nano``."""
    return name.strip().rpartition("/")[2].lower().removeprefix("nvidia-")


def _generation(plain: str) -> str:
    """The first number in a name: ``3.1`` of ``llama-3.1-8b``."""
    found = re.search(r"\d+(\.\d+)?", plain)
    return found[0] if found else ""


FOLDER = DATA / "models"


@cache
def model_names() -> tuple[str, ...]:
    """Names of all bundled models, in alphabetical order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def bundled_name(name: str) -> str | None:
    """The bundled model that ``name`` means (its own name or an alias, in any case), or None."""
    plain = name.strip().lower()
    return plain if plain in model_names() else _aliases().get(plain)


def bundled_config(name: str) -> dict[str, Any]:
    """The file of a bundled model: the keys of its config.json, and ``infercast`` with its sources."""
    found = bundled_name(name)
    if found is None:
        raise unknown_model(name, configs())
    return _load(found)


def _load(name: str) -> dict[str, Any]:
    text = FOLDER.joinpath(f"{name}.json").read_text(encoding="utf-8")
    return cast("dict[str, Any]", json.loads(text))


def configs() -> dict[str, dict[str, Any]]:
    """The files of all bundled models, for whoever compares one with them."""
    return {name: _load(name) for name in model_names()}


@cache
def _aliases() -> dict[str, str]:
    """Every alias, in lower case, with the model it means; reads all files, so only when a plain name misses."""
    return {alias.lower(): name for name in model_names() for alias in _load(name)["infercast"]["aliases"]}
