"""Bundled models by name, what names of checkpoints mean, and suggestions for a name that means none."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import cache, partial
from os import listdir
from typing import Any, NamedTuple, cast

from infercast.bundled import DATA, read_data
from infercast.errors import InputError, UnknownNameError, UnsupportedModelError, near_names

TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
SIZE_IN_NAME = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z0-9])")
MOST_SUGGESTED = 3
FOLDER = DATA / "models"
SIZE = re.compile(r"[ae]?\d+(?:\.\d+)?[bt]|\d+x\d+(?:\.\d+)?b|\d{2,}m|\d+e")  # Parameters, active ones, experts
DATE = re.compile(r"\d{4,8}")


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
    hidden, layers, width, experts = (_size({**values, **inner}, keys) for keys in _rules()["sizes"])
    if not (hidden and layers and width):
        return None
    return tuple(math.log(size) for size in (hidden, layers, width, experts or 1))


def _size(values: Mapping[str, Any], keys: Iterable[str]) -> int:
    """The first plausible size under one of these keys, whatever else stands in a file; 0 without any."""
    found = (values.get(key) for key in keys)
    return next((size for size in found if type(size) is int and 0 < size < 2**40), 0)


@cache
def refused() -> dict[str, str]:
    """Architectures that are known and not modelled, each with what stands in the way."""
    return {name: reason for reason, names in read_data("refused_models.toml")["reasons"].items() for name in names}


def stand_in(name: str | None) -> str:
    """The end of a sentence that names a model to forecast with instead."""
    return f"; the nearest bundled model is {name}" if name else ""


def unknown_model(name: str, bundled: Mapping[str, Mapping[str, Any]]) -> InputError:
    """One sentence about a model that is not among those ``bundled``, of which the files are given."""
    plain = _plain(name)
    sizes = {each: int(values["infercast"]["parameters"]) for each, values in bundled.items()}
    tables = read_data("refused_models.toml")
    architecture = next((value for begin, value in tables["names"].items() if plain.startswith(begin)), "")
    if reason := refused().get(architecture):
        instead = stand_in(tables["nearest"].get(architecture) or nearest_size(plain, sizes))
        return UnsupportedModelError(f"{name} ({architecture}) is not supported: {reason}{instead}")
    # Never another generation: qwen2.5 is no guess for qwen3.5.
    same = [each for each in bundled if _generation(each) in (_generation(plain), "")]
    longer = [each for each in bundled if each.startswith(f"{plain}-")][:MOST_SUGGESTED]
    near = longer or near_names(plain, same, most=MOST_SUGGESTED)
    size = None if near else nearest_size(plain, sizes)
    hint = f"a path to its config.json works too, and `infercast models` lists the {len(bundled)} bundled names"
    hint += f"; the nearest in size is {size}" if size else ""
    return UnknownNameError("model", name, bundled, hint, near=near, listed=False)


def _plain(name: str) -> str:
    """``nvidia/NVIDIA-Nemotron-3-Nano`` as ``nemotron-3-nano``."""
    return _folders(name)[-1].removeprefix("nvidia-")


def _generation(plain: str) -> str:
    """The first number in a name: ``3.1`` of ``llama-3.1-8b``."""
    found = re.search(r"\d+(\.\d+)?", plain)
    return found[0] if found else ""


@cache
def model_names() -> tuple[str, ...]:
    """Names of all bundled models, in alphabetical order."""
    return tuple(sorted([name[:-5] for name in listdir(FOLDER) if name.endswith(".json")]))


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
    return cast("dict[str, Any]", json.loads(FOLDER.joinpath(f"{name}.json").read_text(encoding="utf-8")))


def configs() -> dict[str, dict[str, Any]]:
    """The files of all bundled models, for whoever compares one with them."""
    return {name: _load(name) for name in model_names()}


@cache
def _aliases() -> dict[str, str]:
    """Every alias, in lower case, with the model it means; reads all files, so only when a plain name misses."""
    return {alias.lower(): name for name in model_names() for alias in _load(name)["infercast"]["aliases"]}


class Checkpoint(NamedTuple):
    """What a name means that is not among the bundled ones."""

    base: str  # The bundled model with the same layers
    settings: Mapping[str, Any] | None  # Its ``quantization_config``; None: that of the bundled model
    assumed: str  # What was taken for granted, as one sentence


class Words(NamedTuple):
    core: tuple[str, ...]  # Family, generation, sizes and whatever else is not below
    variants: frozenset[str]
    format: str = ""


def checkpoint(name: str) -> Checkpoint | None:
    """What a hub id, a path or a bare name means; None where no bundled model has its family, generation and size."""
    parts = _folders(name[-255:])
    words = _take_apart(parts[-1])
    if not (found := _bases_of(words) or _written_together(words)) and len(parts) > 1:  # .../Qwen3-32B/FP8
        words = _take_apart("-".join(parts[-2:]))
        found = _bases_of(words)
    found = found or _without_size(_take_apart(parts[-1]))
    words = words._replace(format=next(filter(None, map(_rules()["stored"].get, parts[-2:])), words.format))
    if reason := _rules()["formats"].get(words.format, {}).get("refused"):
        hint = f"; {found[0]} with --quantization int4 comes nearest" if found else ""
        raise UnsupportedModelError(f"{name}: {reason}{hint}")
    if len(found) > 1:
        raise InputError(f"model {name!r} may be {' or '.join(found)}; give one of these names, or its config.json")
    return _with_format(name, found[0], words, parts) if found else None


def _with_format(name: str, base: str, words: Words, parts: list[str]) -> Checkpoint:
    """The bundled model in the format that a name has: a bundled checkpoint, or what its publisher means by it."""
    publisher = parts[-2] if len(parts) > 1 and parts[-2] in _rules()["quantisers"] else _made_by(base)
    asked, entry, settings, shown = words.format, f"{base}-{words.format}", None, ""
    fits = (
        rule["means"]
        for rule in _rules()["published"]
        if asked in rule["formats"]
        and publisher in rule.get("by", (publisher,))
        and re.fullmatch(rule.get("models", ".*"), base)
    )
    if entry in model_names() and publisher == _made_by(entry) and words.core in _cores(entry):
        base = entry
    elif meant := next(fits, asked):
        settings = json.loads(json.dumps(_rules()["formats"][meant]["settings"]))
        shown = f" with {asked.partition('_')[0]} weights"
    tuned = " ".join(word for word in words.core if word not in _take_apart(base).core)
    what = "its language model alone" if re.search(rf"\b({_rules()['others']})\b", tuned) else "a fine-tune by its name"
    told = f", {what} ({tuned})" if tuned and words.core not in _cores(base) else ""
    return Checkpoint(base, settings, f"{name} is taken as {base}{shown}{told}; give its config.json to be sure")


def _folders(name: str) -> list[str]:
    """The parts of a path or an id in lower case, down to the one that names the model."""
    text = re.sub(r"^[a-z0-9]+://|^hf\.co/|^https?://", "", name.strip().lower().replace("\\", "/"))
    parts = [piece for part in text.split("/") for piece in part.removeprefix("models--").split("--")]
    below = re.compile(_rules()["folders"])
    while len(parts) > 1 and below.fullmatch(parts[-1]):
        parts.pop()
    return parts


@cache
def _take_apart(name: str) -> Words:
    for pattern, spelling in _rules()["spellings"]:
        name = re.sub(pattern, spelling, name)
    rest, found = name, list[str]()
    for each, rule in _rules()["formats"].items():
        without = re.sub(rf"(?<![a-z0-9.])(?:{rule.get('words', '$^')})(?![a-z0-9.])", "", rest)
        found, rest = [*found, each] if without != rest else found, without
    kinds = sorted({each.partition("_")[0] for each in found} - {"bf16"})
    if len(kinds) > 1 and "settings" in _rules()["formats"][found[0]]:
        raise InputError(f"model {name!r} names {' and '.join(kinds)}; give its config.json, which says what is which")
    parts = [part for part in rest.split("-") if part]
    variants = frozenset(filter(re.compile(_rules()["variants"]).fullmatch, parts))
    # ``llama3.1`` is ``llama`` and ``3.1``; ``r1``, ``8x7b`` and ``4.5v`` are one word.
    core = "-".join(re.sub(r"^([a-z]{2,})(?=\d)", r"\1-", part) for part in parts if part not in variants)
    return Words(tuple(core.split("-")), variants, found[0] if found else "")


def _bases_of(words: Words) -> tuple[str, ...]:
    """The bundled models that a name has in it; more than one where it does not say which."""
    names = [*((name, name) for name in model_names()), *_aliases().items(), *_rules()["bases"].items()]
    likely = [(name.rpartition("/")[2], base) for name, base in names]
    known = [(base, _take_apart(name)) for name, base in likely if name.startswith(words.core)]
    ranked = [
        (rank, base) for base, own in known if (rank := _rank(words, own)) is not None and not _take_apart(base).format
    ]
    best = max((rank for rank, _ in ranked), default=None)
    return tuple(sorted({base for rank, base in ranked if rank == best}))


def _written_together(words: Words) -> tuple[str, ...]:
    """The same for names without dots and dashes, or with parts in another order."""
    known = [(name, _take_apart(name)) for name in model_names()] + [
        (base, _take_apart(name)) for name, base in _rules()["bases"].items()
    ]
    found, exact = {}, {word for word in words.core if "." in word or SIZE.fullmatch(word)}
    run = "".join(words.core).replace(".", "")
    for base, own in known:
        alike = "".join(own.core).replace(".", "") == run or sorted(own.core) == sorted(words.core)
        if alike and not own.format and exact <= {*own.core}:
            found[base] = own
    apart = {base: len(words.variants ^ own.variants) for base, own in found.items()}
    return tuple(sorted(base for base, count in apart.items() if count == min(apart.values())))


def _without_size(words: Words) -> tuple[str, ...]:
    """The bundled model of a family and generation that has one size alone."""
    known, size = [(name, _take_apart(name)) for name in model_names()], len(words.core)
    longer = [(name, own.core[size:]) for name, own in known if own.core[:size] == words.core and not own.format]
    return (longer[0][0],) if len(longer) == 1 and all(map(SIZE.fullmatch, longer[0][1])) else ()


def _rank(words: Words, own: Words) -> tuple[int, int] | None:
    """How much of a name a bundled model's ``own`` explains; None where the two differ in more than tuning."""
    if not {*own.core} <= {*words.core}:
        return None
    sizes = next((at for at, word in enumerate(own.core) if SIZE.fullmatch(word)), 0)
    dates = {each for each in words.variants - own.variants if DATE.fullmatch(each)}
    if sizes:
        front, back = ("-".join(map(re.escape, each)) for each in (own.core[:sizes], own.core[sizes:]))
        found = re.fullmatch(rf"(?:(.+)-)?{front}-(?:(.+)-)?{back}(?:-(.+))?", "-".join(words.core))
        others = re.compile(rf"{SIZE.pattern}|{_rules()['others']}")
        # A number behind the family is another generation.
        if found is None or (found[2] or "")[:1].isdigit():
            return None
        if any(others.fullmatch(word) for each in found.groups("") for word in each.split("-")):
            return None
    elif words.core != own.core or (dates and any(map(DATE.fullmatch, own.variants))):
        return None
    return len(own.core), -len(dates) - len(own.variants ^ words.variants)


def _cores(name: str) -> set[tuple[str, ...]]:
    """All names of a bundled model, without variant and format."""
    return {_take_apart(name).core} | {
        _take_apart(each.rpartition("/")[2]).core for each, meant in _aliases().items() if meant == name
    }


def _made_by(base: str) -> str:
    return str(_load(base)["infercast"]["aliases"][0].lower().partition("/")[0])


_rules = cache(partial(read_data, "checkpoints.toml"))
