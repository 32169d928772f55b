"""The flags of a command (read, ignored, not modelled or refused), and the deployment that they describe."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from infercast.engines.arguments import Arguments, arguments_of
from infercast.engines.base import Deployment, Engine
from infercast.engines.settings import READ, REFUSED, TRUTHS
from infercast.errors import InputError
from infercast.forecast.deploy import DeployOptions, deploy
from infercast.forecast.memory import Fit, fit_memory
from infercast.forecast.option_table import OPTIONS, OURS_ALONE
from infercast.hardware import Gpu
from infercast.units import AUTO, whole_number

OF_DEPLOY = {
    name: OPTIONS[name].type for name in DeployOptions.__annotations__ if name in OPTIONS and name not in OURS_ALONE
}  # Flags that say which model and layout, by the names of `deploy`
NUMBER = re.compile(r"-?\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Flag:
    name: str  # Without the dashes, in its long form
    words: tuple[str, ...]  # Its values as they were written; none for a switch
    status: str
    note: str = ""  # Why it is not read
    field: str = ""  # The option of ours that it sets ...
    value: Any = None  # ... and to what.

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True, slots=True)
class Reading:
    model: str
    flags: tuple[Flag, ...]

    @property
    def refused(self) -> list[str]:
        return [f"--{flag.name}" for flag in self.flags if flag.status == REFUSED]

    @property
    def options(self) -> dict[str, Any]:
        return {flag.field: flag.value for flag in self.flags if flag.field in OF_DEPLOY}

    @property
    def settings(self) -> dict[str, Any]:
        return {flag.field: flag.value for flag in self.flags if flag.field and flag.field not in OF_DEPLOY}


def known_flags(engine: Engine) -> Arguments:
    settings = tuple((name, engine.setting_types.get(field)) for name, field in engine.flags.settings.items())
    return arguments_of(engine.name, engine.title, settings, flexible=engine.commands.flexible)


def read_flags(words: Sequence[str], engine: Engine, *, strict: bool = False) -> Reading:
    """What a forecast makes of the words behind the program; ``strict`` refuses flags of other releases, too."""
    known = known_flags(engine)
    flags: list[Flag] = []
    models: list[str] = []
    plain: list[str] = []
    rest = deque(with_keys(words if strict else map(known.renamed, words), known))
    while rest:
        word = rest.popleft()
        if not _is_flag(word):
            plain.append(word)
            continue
        written, equals, value = word.partition("=")
        flag = read_flag(written, value if equals else None, rest, engine, known, strict=strict)
        if flag.field == "model":
            models.append(flag.text)
        else:
            flags.append(flag)
    models += plain[:1]
    if not models or not models[0]:
        starts = " ".join(engine.commands.serve)
        raise InputError(f"the command names no model; add one: `{starts} MODEL ...` or --model MODEL")
    if plain[1:]:
        raise InputError(f"the word {plain[1]!r} belongs to no flag; put a value right behind its flag")
    return Reading(_plain(models[0], "the model"), tuple(flags))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not NUMBER.fullmatch(word) and " " not in word.partition("=")[0]


def with_keys(words: Iterable[str], known: Arguments) -> list[str]:
    """Words with single keys of JSON values (``--config.draft.method x``, ``--config.sizes+ 1,2``) put together."""
    keys: dict[str, dict[str, Any]] = {}
    kept, rest = list[str](), deque(words)
    while rest:
        word = rest.popleft()
        written, equals, text = word.partition("=")
        base, path = known.parted(written) if _is_flag(word) else (word, "")
        if not path:
            kept.append(word)
            continue
        text = text if equals or not rest else rest.popleft()
        values = keys.setdefault(f"--{known.find(base, strict=True).argument.name}", {})
        *above, last = path.removesuffix("+").split(".")
        for key in above:
            values = values.setdefault(key, {})
        more = path.endswith("+")
        values[last] = [*values.get(last, []), *map(_item, text.split(","))] if more else _item(text)
    return [*kept, *(f"{name}={json.dumps(values)}" for name, values in keys.items())]


def _item(text: str) -> Any:
    for read in (json.loads, whole_number):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def read_flag(
    written: str, given: str | None, rest: deque[str], engine: Engine, known: Arguments, *, strict: bool
) -> Flag:
    found = known.find(written, strict=strict)
    argument = found.argument
    given = found.attached if given is None else given
    if given is None and argument.takes in ("switch", "bool") and not strict and rest and rest[0].lower() in TRUTHS:
        given = rest.popleft()  # some releases took it so
    words = (given,) if given is not None else tuple(_values(argument.takes, rest))
    if argument.takes == "value" and not any(words):
        raise InputError(f"--{argument.name} has no value")
    name = f"no-{argument.name}" if found.is_negated else argument.name
    types = _types(engine)
    fields = (_field(each, engine) for each in argument.names)
    field = next((each for each in fields if each in types or each == "model"), None)
    meaning = known.meaning(found, " ".join(words), is_read=field is not None)
    if meaning.status == REFUSED and strict:
        raise InputError(meaning.note)
    if field is None or meaning.status != READ:
        return Flag(name, words, meaning.status, meaning.note)
    if field == "model":
        return Flag(name, words, READ, field=field)
    if types[field] is bool:
        return Flag(name, words, READ, field=field, value=_truth(name, given) is not found.is_negated)
    if field == engine.bounds[2] and words in (("auto",), (str(AUTO),)):
        return Flag(name, words, READ, field=field, value=AUTO)
    return Flag(name, words, READ, field=field, value=_typed(name, ",".join(words), types[field]))


def _values(takes: str, rest: deque[str]) -> Iterator[str]:
    most = {"switch": 0, "bool": 0, "list": len(rest)}.get(takes, 1)
    while most and rest and not _is_flag(rest[0]):
        yield rest.popleft()
        most -= 1


def _field(name: str, engine: Engine) -> str:
    flags = engine.flags
    other = flags.other_names.get(name, name).replace("-", "_")
    return flags.settings.get(name, other if other in OF_DEPLOY else name.replace("-", "_"))


def _types(engine: Engine) -> dict[str, type]:
    """Types of all flags that are read; anything complex is text."""
    types = {name: str if kind in (tuple, list) else kind for name, kind in engine.setting_types.items()}
    settings = {name: types.get(name, str) for name in engine.flags.options if name not in OURS_ALONE}
    return {**settings, **OF_DEPLOY, "decode_context_parallel_size": int}


def _truth(name: str, given: str | None) -> bool:
    if given is None:
        return True
    if given.lower() not in TRUTHS:
        raise InputError(f"--{name}={given} is a switch; leave the value out, or write true or false")
    return TRUTHS[given.lower()]


def _typed(name: str, text: str, kind: type) -> Any:
    text = _plain(text, f"--{name}")
    try:
        return whole_number(text) if kind is int else kind(text)
    except ValueError:
        wanted = "a whole number such as 8192, 8k or 8K" if kind is int else "a number"
        raise InputError(f"--{name} must be {wanted}, not {text!r}") from None


def _plain(text: str, what: str) -> str:
    """A non-empty value without shell variables."""
    if not text:
        raise InputError(f"{what} has no value")
    if found := re.search(r"\$[\w({]", text):
        raise InputError(f"{what} is {text!r}: write the value of the variable {text[found.start() :]!r}")
    return text


NOT_OF_MEMORY = ("pcie_topology", "api_server", "chat", "predictor", "host", "expert_routing", "calibration")
"""What `deploy` takes and `fit_memory` does not."""


@dataclass(frozen=True, slots=True)
class FlagPoint:
    """Options of `deploy`, and settings by the engine's names."""

    model: str
    gpu: Gpu
    engine: Engine
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    given: Mapping[str, Any]  # Options without a flag: the network, the host, the predictor

    @staticmethod
    def of(reading: Reading, gpu: Gpu, engine: Engine, given: Mapping[str, Any]) -> FlagPoint:
        return FlagPoint(reading.model, gpu, engine, reading.options, reading.settings, given)

    def changed(self, values: Mapping[str, Any]) -> FlagPoint:
        options, settings, given = dict(self.options), dict(self.settings), dict(self.given)
        if "pipeline_parallel_size" in values:  # other stages need another cut
            given.pop("pp_layer_partition", None)
        for name, value in values.items():
            part = options if name in OF_DEPLOY else settings
            part.pop(name, None)
            if value is not None:
                part[name] = value
        return replace(self, options=options, settings=settings, given=given)

    def deploy(self) -> Deployment:
        return deploy(self.model, self.gpu, self.engine.settings(self.settings), **{**self.given, **self.options})

    def fit(self, context: int) -> Fit:
        wanted = {**self.given, **self.options}
        kept = {name: value for name, value in wanted.items() if name not in NOT_OF_MEMORY}
        return fit_memory(self.model, self.gpu, self.engine.settings(self.settings), context=context, **kept)
