"""Which published architecture is read in which way: rows of ``data/model_families.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any, NamedTuple

from infercast.bundled import DATA
from infercast.models.families import vision
from infercast.models.families.attention import read_layers
from infercast.models.families.fields import Fields, HeadLayers, Layer, gather, last_layer

__all__ = [
    "FAMILIES", "KEYS", "NOT_MODELLED", "UNKNOWN", "VISION", "Family", "Fields", "Layer", "architecture_of",
    "family_of", "gather",
]  # fmt: skip
_TABLE = json.loads((DATA / "model_families.json").read_text(encoding="utf-8"))


class Family(NamedTuple):
    read: Callable[[Fields], list[Layer]]
    tied: bool = False  # Whether the head shares the embedding where the config does not say
    defaults: Mapping[str, Any] = {}  # What a config.json may leave out
    head_layers: HeadLayers = last_layer  # Layers of a head that predicts further tokens, where there are any
    heads: int = 0  # Such heads where the config does not count them
    own_table: bool = False  # Whether each such head has a table of the vocabulary to itself
    keys: Mapping[str, Any] = {}  # What the family calls a usual key, before what others call it
    positions: int | None = None
    """Rows of the table of learned positions beyond one for each, those of token types too; None: no such table."""
    pools: bool = False  # It gives a vector or a score for a prompt, and no tokens
    note: str = ""


class VisionFamily(NamedTuple):
    """An architecture with an encoder: the family of its text part (by default that of the config inside), and the
    encoder.
    """

    text: str
    read: vision.VisionReader


VISION = {name: VisionFamily(text, getattr(vision, read)) for name, (text, read) in _TABLE["encoders"].items()}
FAMILIES: dict[str, Any] = _TABLE["rows"] | {name: known for known, names in _TABLE["same"].items() for name in names}
"""A family or its row by architecture: fields of `Family`, options of `read_layers`, or a ``reader`` of its own; or the
name of one that is the same."""
KEYS: Mapping[str, list[str]] = _TABLE["keys"]
"""What families call a usual key: the first of these that a config has; ``4*hidden_size`` is worked out."""
NOT_MODELLED: Mapping[str, str] = _TABLE["not_modelled"]  # What fields ask for unless false or the hidden size
UNKNOWN = "any other"
POOLED = re.compile(r"(For(SequenceClassification|TokenClassification|\w*RewardModel|TextEmbedding|Ranking)|Model)$")


def family_of(architecture: str) -> Family | None:
    """How to read an architecture, also one that classifies or embeds with the layers of a known decoder."""
    if architecture in FAMILIES:
        return _made(architecture)
    decoder = POOLED.sub("ForCausalLM", architecture)
    return _made(decoder)._replace(pools=True) if decoder in FAMILIES else None


def _made(name: str) -> Family:
    row = FAMILIES[name]
    if isinstance(row, str | Family):
        return _made(row) if isinstance(row, str) else row
    own = {key: value for key, value in row.items() if key in Family._fields}
    options = {key: value for key, value in row.items() if key not in (*own, "like", "reader")}
    if "head_layers" in own:
        own["head_layers"] = _named(own["head_layers"])
    if "like" not in row:
        read = _named(row["reader"]) if "reader" in row else read_layers
        return Family(partial(read, **options) if options else read, **own)
    like = _made(row["like"])
    return like._replace(read=partial(like.read, **options) if options else like.read, **own)


def _named(name: str) -> Any:
    module, _, function = name.partition(".")
    return getattr(import_module(f"{__name__}.{module}"), function)


@cache
def _by_type() -> dict[str, str]:
    """Architectures by model_type, where a file names none: the same name without capitals, in most cases."""
    suffix = "For(CausalLM|ConditionalGeneration)|LMHeadModel|Model|_"
    plain = {re.sub(suffix, "", name).lower(): name for name in (*FAMILIES, *VISION)}
    return {**plain, **_TABLE["types"]}


def architecture_of(model_type: str) -> str:
    """What a file means that names no architecture: ``qwen2_moe`` is Qwen2Moe, ``llama4_text`` the text of Llama4."""
    name = _by_type().get(model_type.removesuffix("_text").replace("_", ""), model_type)
    return VISION[name].text if model_type.endswith("_text") and name in VISION else name
