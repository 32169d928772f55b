"""The flags of a command (read, ignored, not modelled or unknown), and the deployment that they describe."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from infercast.engines.base import Deployment, Engine
from infercast.engines.settings import TRUTHS
from infercast.engines.timer import KernelTimer
from infercast.errors import InputError, near_names
from infercast.forecast.deploy import DeployOptions, deploy
from infercast.forecast.memory import Fit, fit_memory
from infercast.forecast.option_table import OPTIONS
from infercast.forecast.system import System, system_of
from infercast.hardware import Gpu
from infercast.units import AUTO, whole_number

READ, IGNORED, NOT_MODELLED, UNKNOWN = "read", "ignored", "not modelled", "unknown"
OURS_ALONE = {
    "network", "pcie_topology", "api_server", "expert_routing", "sampling", "engine", "prompts_first", "cudagraph_mode",
    "acceptance", "dummy_weights", "host", "predictor", "calibration",
}  # fmt: skip
"""Options of ours that are no flags of an engine."""
OF_DEPLOY = {
    name: OPTIONS[name].type for name in DeployOptions.__annotations__ if name in OPTIONS and name not in OURS_ALONE
}
"""Flags that say which model and layout, by the names of `deploy`."""
NUMBER = re.compile(r"-?\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    """Without the dashes, in its long form."""
    text: str
    """The value as it was written; empty for a switch."""
    status: str
    note: str = ""
    """Why it is not read, or the nearest known names."""
    field: str = ""
    """The option of ours that it sets ..."""
    value: Any = None
    """... and to what."""


@dataclass(frozen=True, slots=True)
class Reading:
    model: str
    flags: tuple[Flag, ...]

    @property
    def options(self) -> dict[str, Any]:
        return {flag.field: flag.value for flag in self.flags if flag.field in OF_DEPLOY}

    @property
    def settings(self) -> dict[str, Any]:
        return {flag.field: flag.value for flag in self.flags if flag.field and flag.field not in OF_DEPLOY}


def read_flags(words: Sequence[str], engine: Engine) -> Reading:
    flags: list[Flag] = []
    models: list[str] = []
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if not word.startswith("-") or NUMBER.fullmatch(word):
            if models:
                flags.append(Flag(word, "", UNKNOWN, "a word that belongs to no flag"))
            else:
                models.append(word)
            continue
        written, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--") and written[:1] in engine.commands.short and written[1:].isdigit():
            written, equals, value = written[:1], "=", written[1:]  # -O3
        name = engine.commands.short.get(written, written) if not word.startswith("--") else written
        name = _whole(name.replace("_", "-"), engine)
        if engine.flags.other_names.get(name, name) == "model":
            models[:0] = [value if equals else _next(rest)]
        else:
            flags.append(_flag(name, value if equals else None, rest, engine))
    if not models or not models[0]:
        starts = " ".join(engine.commands.serve)
        raise InputError(f"the command names no model; add one: `{starts} MODEL ...` or --model MODEL")
    return Reading(_plain(models[0], "the model"), tuple(flags))


def _next(rest: deque[str]) -> str:
    return rest.popleft() if rest else ""


def _flag(name: str, given: str | None, rest: deque[str], engine: Engine) -> Flag:
    flags, types = engine.flags, _types(engine)
    field, negated = _field(name, engine), False
    if field.startswith("no_") and types.get(field[3:]) is bool:
        field, negated = field[3:], True
    if types.get(field) is bool:
        return Flag(name, given or "", READ, field=field, value=_truth(name, given) is not negated)
    if field in types:
        text, words = given, []
        while given is None and name in flags.lists and rest and rest[0].replace(",", "").isdigit():
            words.append(rest.popleft())
        if text is None:
            text = ",".join(words) if name in flags.lists else _next(rest)
        return Flag(name, text, READ, field=field, value=_typed(name, text, types[field]))
    if name.removeprefix("no-") in flags.switches:
        return Flag(name, given or "", IGNORED)
    if name in flags.values or name in engine.commands.other_meaning:
        return Flag(name, _next(rest) if given is None else given, IGNORED)
    if given is None:  # the next word may be its value
        given = _next(rest) if rest and not rest[0].startswith("-") else ""
    return _left_out(name, given, engine, types)


def _known(engine: Engine) -> set[str]:
    """Flags of the engine's server that are not options of ours under the same name."""
    flags, commands = engine.flags, engine.commands
    renamed = {name for name, ours in flags.other_names.items() if ours.replace("-", "_") in OF_DEPLOY}
    unread = {*flags.not_modelled, *commands.unmodelled, *commands.other_meaning}
    return {"model", *flags.settings, *renamed, *flags.switches, *flags.values, *unread}


def _whole(name: str, engine: Engine) -> str:
    """The flag that an abbreviation stands for, where the engine takes any beginning that is no other's."""
    if not engine.commands.abbreviates:
        return name
    known = _known(engine) | {each.replace("_", "-") for each in OF_DEPLOY}
    begun = [name] if name in known else [each for each in known if each.startswith(name)]
    return begun[0] if len(begun) == 1 else name


def _field(name: str, engine: Engine) -> str:
    flags = engine.flags
    other = flags.other_names.get(name, name).replace("-", "_")
    return flags.settings.get(name, other if other in OF_DEPLOY else name.replace("-", "_"))


def _left_out(name: str, text: str, engine: Engine, types: dict[str, type]) -> Flag:
    """A flag that is not modelled, or unknown."""
    flags = engine.flags
    about = {**engine.commands.unmodelled, **flags.not_modelled}
    if name in about:
        return Flag(name, text, NOT_MODELLED, about[name])
    whole, dot, _ = name.partition(".")
    if dot and (whole in about or whole.replace("-", "_") in types):
        return Flag(name, text, NOT_MODELLED, f"one key of --{whole}; give it as JSON to have it read")
    known = _known(engine) | {each.replace("_", "-") for each in types}
    near = [f"--{each}" for each in near_names(name, sorted(known), most=3)]
    return Flag(name, text, UNKNOWN, f"did you mean {' or '.join(near)}?" if near else "no flag that is known")


def _types(engine: Engine) -> dict[str, type]:
    """Types of all flags that are read; anything complex is text."""
    types = {name: str if kind is tuple else kind for name, kind in engine.setting_types.items()}
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
        if (name, text) == ("max-model-len", "auto"):
            return AUTO
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


NOT_OF_MEMORY = ("all2all_backend", "pcie_topology", "api_server", "predictor", "host", "expert_routing", "calibration")
"""What `deploy` takes and `fit_memory` does not."""


@dataclass(frozen=True, slots=True)
class Point:
    """Options of `deploy`, and settings by the engine's names."""

    model: str
    gpu: Gpu
    engine: Engine
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    given: Mapping[str, Any]
    """Options without a flag: the network, the host, the predictor."""

    @staticmethod
    def of(reading: Reading, gpu: Gpu, engine: Engine, given: Mapping[str, Any]) -> Point:
        return Point(reading.model, gpu, engine, reading.options, reading.settings, given)

    def changed(self, values: Mapping[str, Any]) -> Point:
        options, settings = dict(self.options), dict(self.settings)
        for name, value in values.items():
            part = options if name in OF_DEPLOY else settings
            part.pop(name, None)
            if value is not None:
                part[name] = value
        return replace(self, options=options, settings=settings)

    def deploy(self) -> Deployment:
        return deploy(self.model, self.gpu, self.engine.settings(self.settings), **{**self.given, **self.options})

    def fit(self, context: int) -> Fit:
        wanted = {**self.given, **self.options}
        kept = {name: value for name, value in wanted.items() if name not in NOT_OF_MEMORY}
        return fit_memory(self.model, self.gpu, self.engine.settings(self.settings), context=context, **kept)


class Timers:
    """Step timers, shared by deployments with equal step times."""

    def __init__(self) -> None:
        self._known: list[tuple[Deployment, KernelTimer]] = []

    def system(self, deployment: Deployment) -> System:
        timer = next((timer for other, timer in self._known if _same_steps(deployment, other)), None)
        if timer is None:
            timer = deployment.timer()
            self._known.append((deployment, timer))
        return system_of(deployment, timer=timer)


def _same_steps(one: Deployment, other: Deployment) -> bool:
    """Whether steps of both take equally long and have the same size limits."""
    parts = ("model", "layout", "gpu", "host", "graphs", "corrections")
    bounds = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
    return (
        one.predictor is other.predictor
        and all(getattr(one, part) == getattr(other, part) for part in parts)
        and all(getattr(one.settings, bound) == getattr(other.settings, bound) for bound in bounds)
    )
