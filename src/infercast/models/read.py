"""Reads a model from a bundled name, a config.json, a folder or a dictionary, with the user's overrides."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from infercast.errors import FileFormatError, InputError, UnknownNameError, UnsupportedModelError, read_json
from infercast.models import families, library
from infercast.models.families.fields import PREDICTION, read_prediction
from infercast.models.families.vision import read_vision
from infercast.models.mixers.mixer import Mixer, SideBySide
from infercast.models.mixers.recurrent import GatedDeltaNet, Mamba2
from infercast.models.quantization import leaves_heads_alone, nearest, override_format, read_format
from infercast.models.spec import ModelConfig, prediction_parameter_count, weight_bytes
from infercast.units import format_bytes

LAYERS = "num_hidden_layers"
DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Layers behind the others; some lists have an item for each of them too."""
AUTO = "auto"
FORMATS = {AUTO: "", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_load = partial(read_json, most=64 * 2**20)
SAME_SIZE = 0.93  # Scales, norms and encoders that are not counted make files differ a little
BESIDE = "encoders beside the language model are left out"
ODD = re.compile("mamba|ssm|rwkv|lru_|linear_(attn|num|key|value)|lightning|compress_ratio|hash_layers|index_topk|loop")
"""Fields of layers that are not attention, or not a usual kind of it."""


def overridden(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with some of them changed; objects are merged, all else is replaced. Where that takes layers away,
    lists and patterns with one item a layer lose those of the layers that are gone: an engine reads as many of them as
    it has layers.
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


def read_object(text: str, what: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InputError(f"{what} must be a JSON object, not {text[:80]!r}")
    return values


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

    return model.with_mixers(changed)


class Source(NamedTuple):
    """A config as found: its fields, a name for the model, and where it came from, for errors."""

    values: Mapping[str, Any]
    name: str
    where: str
    assumed: str = ""  # What its name was taken to mean
    stored: int = 0  # Bytes of its weights, where a list of their files says so


def read_model(
    source: str | os.PathLike[str] | Mapping[str, Any], *, quantization: str | None = None, name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ModelConfig:  # fmt: skip
    """Read a model. ``source`` is the name of a bundled model or an alias of it, a path to a config.json, a folder that
    holds one, or the content of one. ``quantization`` quantises an unquantised checkpoint while loading, as vLLM's
    option of that name does (``fp8``, ``int8``, ``int4``, ``awq``, ``gptq``, ``mxfp4``, ``nvfp4``, ``fp8_block``); None
    and ``none`` keep what the checkpoint says. ``name`` replaces the model's name, ``overrides`` fields of its config.
    """
    found = config_of(source)
    if overrides:
        found = found._replace(values=overridden(found.values, overrides))
    architecture, family = _architecture(found)
    fields = _text_fields(found, family)
    try:
        layers = family.read(fields)
    except FileFormatError as problem:
        if "is not known" not in family.note:
            raise
        raise UnsupportedModelError(f"{architecture} is not known, and its fields do not tell: {problem}") from None
    weights, kv_dtype = read_format(fields, layers)
    assumed = [found.assumed] if found.assumed else []
    if quantization not in (None, "none", "unquant"):
        asked = str(quantization).lower()
        weights = override_format(asked, weights, layers)
        assumed += [f"quantization {asked} is taken as {meant.partition('_')[0]}: {how}"
                    for meant, how in (nearest()[asked],)] if asked in nearest() else []  # fmt: skip
    hidden = fields.positive("hidden_size")
    notes, vision = [*assumed], None
    if architecture in families.VISION:
        vision = read_vision(families.VISION[architecture].read, families.Fields(found.values, found.where), hidden)
        sent = "are sent with --images" if vision and vision.images else "themselves are not modelled"
        seen = f"the encoder of images takes memory; images {sent}"
        notes.append(seen if vision else "vision part left out: there is no vision_config")
    prediction = read_prediction(fields, layers, family.head_layers, family.heads, family.own_table)
    if prediction and leaves_heads_alone(fields):
        prediction = replace(prediction, quantised=False)
    notes += [PREDICTION] if prediction else []
    notes += [note] if (note := family.note.format(architecture)) else []
    stacks, order = families.gather(layers)
    rope = fields.section("rope_parameters" if fields.raw("rope_parameters") else "rope_scaling")
    factor = rope.number("factor", 1.0) if "yarn" in rope.values.values() else 0.0
    stretched = int(factor * rope.count("original_max_position_embeddings"))  # as vLLM 0.25 does (config/model.py)
    longest = fields.positive("max_position_embeddings")
    model = ModelConfig(
        name=name or found.name, architecture=architecture, hidden=hidden, vocabulary=fields.positive("vocab_size"),
        max_positions=max(longest, stretched), stacks=stacks, weights=weights, kv_dtype=kv_dtype,
        tied_embedding=family.pools or fields.flag("tie_word_embeddings", family.tied),
        positions=0 if family.positions is None else longest + family.positions, pools=family.pools, order=order,
        vision=vision, prediction=prediction, notes=tuple(notes),
        assumed="; ".join(assumed) or (note if "is not known" in note else ""),
    )  # fmt: skip
    return replace(model, notes=(*notes, *_unlike_files(model, found.stored))) if found.stored else model


def _unlike_files(model: ModelConfig, stored: int) -> Iterator[str]:
    counted = weight_bytes(model).total
    if not SAME_SIZE * counted < stored < (counted + 2 * prediction_parameter_count(model)) / SAME_SIZE:
        yield f"its files hold {format_bytes(stored)}, and its config.json says {format_bytes(counted)} of weights"


def config_of(source: str | os.PathLike[str] | Mapping[str, Any]) -> Source:
    """The config that is meant: by a bundled name or an alias, a file, a folder, or as it is."""
    if isinstance(source, Mapping):
        return Source(source, str(source.get("model_type") or "model"), "config")
    text = os.fspath(source)
    path = Path(text)
    bundled = text.lower() if isinstance(source, str) and text.lower() in library.model_names() else None
    if bundled is None and os.path.isdir(text):
        return _from_folder(path)
    if bundled is None and os.path.isfile(text) and path.suffix != ".gguf":
        return _from_folder(path.parent) if path.name == "config.json" else Source(_load(path), path.stem, str(path))
    if not isinstance(source, str) or path.suffix == ".json":
        raise FileFormatError(path, "there is no such file")
    if bundled := bundled or library.bundled_name(text):
        return Source(library.bundled_config(bundled), bundled, f"bundled model {bundled}")
    return _by_name(text)


def _by_name(text: str) -> Source:
    """The bundled model that the name of a checkpoint means, in the format that it has by its name."""
    found = library.checkpoint(text)
    if found is None:
        raise library.unknown_model(text, library.configs())
    values = library.bundled_config(found.base)
    if found.settings is not None:
        without = {"quantization_config": None, "expert_dtype": None}
        values = overridden(values, without | {key: without for key in library.TEXT_KEYS if key in values})
        values["quantization_config"] = found.settings
    return Source(values, found.base, f"bundled model {found.base}", found.assumed)


def _from_folder(folder: Path) -> Source:
    config = folder / "config.json"
    if not config.is_file():
        raise FileFormatError(folder, "the folder holds no config.json")
    values = _load(config)
    # NVIDIA's older checkpoints say how they are quantised in a file of its own.
    beside = folder / "hf_quant_config.json"
    if beside.is_file() and "quantization_config" not in values:
        values = {**values, "quantization_config": _load(beside)}
    files = folder / "model.safetensors.index.json"
    index = families.Fields(_load(files) if files.is_file() else {}, str(files))
    listed = index.section("metadata").count("total_size")
    stored = listed or sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return Source(values, folder.absolute().name or "model", str(config), stored=stored)


def _architecture(found: Source) -> tuple[str, families.Family]:
    """The architecture that a config names, and how its language model is read: by its fields where it is not known."""
    fields = families.Fields(found.values, found.where)
    named, kind = fields.words("architectures"), fields.word("model_type")
    if not named and not kind:
        raise FileFormatError(found.where, "neither architectures nor model_type says what kind of model this is")
    architecture = named[0] if named else families.architecture_of(kind)
    has_vision = architecture in families.VISION
    if has_vision and (text := families.VISION[architecture].text):
        return architecture, cast("families.Family", families.family_of(text))
    has_encoder = fields.flag("is_encoder_decoder")
    if (family := families.family_of(architecture)) and not has_encoder:
        return architecture, family
    reason = "an encoder beside the decoder is not modelled yet" if has_encoder else library.refused().get(architecture)
    if reason is None and (inner := _nested(fields)):
        _, family = _architecture(Source({"model_type": "its language model", **inner.values}, found.name, inner.where))
        return architecture, family._replace(note="; ".join(filter(None, ("" if has_vision else BESIDE, family.note))))
    if odd := next(filter(ODD.search, found.values), None):
        reason = reason or f"it is not known, and {odd} in its config says that it has layers of another kind"
    if reason:
        instead = library.stand_in(library.nearest_shape(found.values, library.configs()))
        raise UnsupportedModelError(f"{architecture} is not supported: {reason}{instead}")
    return architecture, cast("families.Family", families.family_of(families.UNKNOWN))


def _nested(fields: families.Fields) -> families.Fields | None:
    """The config of the language model inside one with encoders."""
    key = next((key for key in library.TEXT_KEYS if fields.raw(key) is not None), None)
    inner = fields.section(key) if key else None
    return (_nested(inner) or inner) if inner else None


def _text_fields(found: Source, family: families.Family) -> families.Fields:
    """The fields of the text model by their usual names, with what its family may leave out filled in."""
    fields = families.Fields(found.values, found.where)
    inner = _nested(fields)
    if inner:
        fields = families.Fields(inner.values, inner.where, outer=found.values)
    values = {**family.defaults, **{key: value for key, value in fields.values.items() if value is not None}}
    values |= {key: value for key, names in family.keys.items() if (value := _first(values, names)) is not None}
    for key, names in families.KEYS.items():
        if values.get(key) is None and (value := _first(values, names)) is not None:
            values[key] = value
    fields = families.Fields(values, fields.where, fields.outer)
    width = values.get("hidden_size")
    if odd := [what for flag, what in families.NOT_MODELLED.items() if values.get(flag, width) not in (False, width)]:
        raise UnsupportedModelError(f"{fields.where}: {odd[0]} are not modelled")
    # What some families ignore and no kernel depends on is checked all the same: an engine would stop here.
    fields.count("sliding_window")
    fields.number("rope_theta", default=1.0)
    for key in ("rope_scaling", "rope_parameters"):
        fields.section(key).word("rope_type", fields.section(key).word("type"))
        fields.section(key).number("factor", default=1.0)
    return fields


def _first(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first value that a config has: ``flag?name`` if a flag is set, ``outer.inner``, ``list.0``, ``4*name``, 1."""
    for name in names:
        flag, _, rest = name.rpartition("?")
        if flag and values.get(flag) is not True:
            continue
        factors = [_value(values, part) for part in rest.split("*")]
        if len(factors) == 1 and factors[0] is not None:
            return factors[0]
        if len(factors) > 1 and all(isinstance(factor, int | float) for factor in factors):
            return int(math.prod(factors))
    return None


def _value(values: Mapping[str, Any], name: str) -> Any:
    found: Any = values
    for part in name.split("."):
        found = (
            found.get(part) if isinstance(found, Mapping) else found[0] if isinstance(found, list) and found else None
        )
    if found is None and name.replace(".", "").isdecimal():
        return float(name) if "." in name else int(name)
    return found
