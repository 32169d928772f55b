"""Reads a model from a bundled name, a config.json, a folder or a dictionary, with the user's overrides."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from infercast.errors import FileFormatError, InputError, UnknownNameError, UnsupportedModelError
from infercast.models.families import FAMILIES, VISION, Fields, architecture_of, gather
from infercast.models.families.fields import PREDICTION, read_prediction
from infercast.models.families.vision import read_vision
from infercast.models.library import (
    bundled_config,
    bundled_name,
    configs,
    model_names,
    nearest_shape,
    refused,
    stand_in,
    unknown_model,
)
from infercast.models.mixers.mixer import Mixer, SideBySide
from infercast.models.mixers.recurrent import GatedDeltaNet, Mamba2
from infercast.models.quantization import leaves_heads_alone, override_format, read_format
from infercast.models.spec import ModelConfig

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


AUTO = "auto"
FORMATS = {AUTO: "", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def with_states(model: ModelConfig, whole: str = AUTO, matrices: str = AUTO) -> ModelConfig:
    """The same model with its states in other formats: the ``matrices``, or all of one where nothing is said of them.

    Facts of vLLM 0.25 (``layers/mamba/mamba_utils.py``). What a config says of the matrices holds against ``whole``;
    those of Kimi delta attention are fp32 whatever is asked for.
    """
    for name, value in (("mamba_cache_dtype", whole), ("mamba_ssm_cache_dtype", matrices)):
        if value not in FORMATS:
            raise UnknownNameError(name, value, FORMATS)
    if whole == matrices == AUTO:
        return model

    def changed(mixer: Mixer) -> Mixer:
        if isinstance(mixer, SideBySide):
            return replace(mixer, first=changed(mixer.first), second=changed(mixer.second))
        if not isinstance(mixer, GatedDeltaNet | Mamba2):
            return mixer
        return replace(mixer, state_dtype=FORMATS[matrices] or mixer.state_dtype or FORMATS[whole])

    return replace(model, stacks=tuple(replace(stack, mixer=changed(stack.mixer)) for stack in model.stacks))


TEXT_KEYS = ("text_config", "llm_config", "language_config")
LARGEST_FILE = 64 * 2**20
SEEN = "the encoder of images takes memory; images themselves are not modelled"
UNSEEN = "vision part left out: there is no vision_config"


class Source(NamedTuple):
    """A config as found: its fields, a name for the model, and where it came from, for errors."""

    values: Mapping[str, Any]
    name: str
    where: str


def read_model(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    quantization: str | None = None,
    name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ModelConfig:
    """Read a model.

    ``source`` is the name of a bundled model or an alias of it, a path to a config.json, a folder that holds one, or
    the content of one. ``quantization`` quantises an unquantised checkpoint while loading, as vLLM's option of that
    name does (``fp8``, ``int8``, ``int4``, ``awq``, ``gptq``, ``mxfp4``, ``nvfp4``, ``fp8_block``); None and ``none``
    keep what the checkpoint says. ``name`` replaces the model's name, ``overrides`` fields of its config.
    """
    found = config_of(source)
    if overrides:
        found = found._replace(values=overridden(found.values, overrides))
    architecture = _architecture(found)
    family = FAMILIES[VISION[architecture].text if architecture in VISION else architecture]
    fields = _text_fields(found, architecture in VISION, family.defaults)
    layers = family.read(fields)
    weights, kv_dtype = read_format(fields, layers)
    if quantization not in (None, "none"):
        weights = override_format(str(quantization).lower(), weights, layers)
    hidden = fields.positive("hidden_size")
    notes, vision = [], None
    if architecture in VISION:
        vision = read_vision(architecture, Fields(found.values, found.where), hidden)
        notes.append(SEEN if vision else UNSEEN)
    prediction = read_prediction(fields, layers, family.head_layers, family.heads, family.own_table)
    if prediction and leaves_heads_alone(fields):
        prediction = replace(prediction, quantised=False)
    notes += [PREDICTION] if prediction else []
    stacks, order = gather(layers)
    return ModelConfig(
        name=name or found.name,
        architecture=architecture,
        hidden=hidden,
        vocabulary=fields.positive("vocab_size"),
        max_positions=fields.positive("max_position_embeddings"),
        stacks=stacks,
        weights=weights,
        kv_dtype=kv_dtype,
        tied_embedding=fields.flag("tie_word_embeddings", family.tied),
        order=order,
        vision=vision,
        prediction=prediction,
        notes=tuple(notes),
    )


def config_of(source: str | os.PathLike[str] | Mapping[str, Any]) -> Source:
    """The config that is meant: by a bundled name or an alias, a file, a folder, or as it is."""
    if isinstance(source, Mapping):
        return Source(source, str(source.get("model_type") or "model"), "config")
    text = os.fspath(source)
    if isinstance(source, str) and text.lower() in model_names():
        return Source(bundled_config(text), text.lower(), f"bundled model {text.lower()}")
    path = Path(text)
    if os.path.isdir(text):
        return _from_folder(path)
    if os.path.isfile(text):
        return _from_folder(path.parent) if path.name == "config.json" else Source(_load(path), path.stem, str(path))
    alias = bundled_name(text) if isinstance(source, str) else None
    if alias:
        return Source(bundled_config(alias), alias, f"bundled model {alias}")
    if not isinstance(source, str) or path.suffix == ".json":
        raise FileFormatError(path, "there is no such file")
    raise unknown_model(text, configs())


def _from_folder(folder: Path) -> Source:
    config = folder / "config.json"
    if not config.is_file():
        raise FileFormatError(folder, "the folder holds no config.json")
    values = _load(config)
    # NVIDIA's older checkpoints say how they are quantised in a file of its own.
    beside = folder / "hf_quant_config.json"
    if beside.is_file() and "quantization_config" not in values:
        values = {**values, "quantization_config": _load(beside)}
    return Source(values, folder.absolute().name or "model", str(config))


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise FileFormatError(path, f"larger than {LARGEST_FILE // 2**20} MiB, too large for a config.json")
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise FileFormatError(path, f"not valid JSON: {error.msg}", line=error.lineno) from None
    except UnicodeDecodeError:
        raise FileFormatError(path, "not a text file in UTF-8") from None
    except RecursionError:
        raise FileFormatError(path, "nested too deeply for a config.json") from None
    except OSError as error:
        raise FileFormatError(path, f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        if isinstance(error, FileFormatError):
            raise
        # The standard library refuses numbers of thousands of digits.
        raise FileFormatError(path, "holds a number that is too long") from None
    if not isinstance(values, dict):
        raise FileFormatError(path, f"a config.json holds one object, not a {type(values).__name__}")
    return values


def _architecture(found: Source) -> str:
    """The architecture a config names, if it is one that can be read."""
    fields = Fields(found.values, found.where)
    named = fields.words("architectures")
    kind = fields.word("model_type")
    if not named and not kind:
        raise FileFormatError(found.where, "neither architectures nor model_type says what kind of model this is")
    architecture = named[0] if named else architecture_of(kind)
    known = sorted({*FAMILIES, *VISION})
    if architecture in known:
        return architecture
    instead = stand_in(nearest_shape(found.values, configs()))
    if reason := refused().get(architecture):
        raise UnsupportedModelError(f"{architecture} is not supported: {reason}{instead}")
    raise UnsupportedModelError(f"{found.where}: {architecture} is not known; known: {', '.join(known)}{instead}")


def _text_fields(found: Source, is_seeing: bool, defaults: Mapping[str, Any]) -> Fields:
    """The fields of the text model, with what its family may leave out filled in."""
    fields = Fields(found.values, found.where)
    nested = next((key for key in TEXT_KEYS if fields.raw(key) is not None), None)
    if is_seeing and nested:
        inner = fields.section(nested)
        fields = Fields(inner.values, inner.where, outer=found.values)
    present = {key: value for key, value in fields.values.items() if value is not None}
    fields = Fields({**defaults, **present}, fields.where, fields.outer)
    # What some families ignore and no kernel depends on is checked all the same: an engine would stop here.
    fields.count("sliding_window")
    for key in ("rope_scaling", "rope_parameters"):
        fields.section(key)
    return fields
