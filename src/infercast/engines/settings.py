"""An engine's settings, and its names: versions, formats, kernels, flags and commands."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from infercast.bundled import read_data
from infercast.errors import FileFormatError, InputError, UnknownNameError
from infercast.units import whole_number

TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str, "tuple[int, ...]": tuple}
"""Of settings that can be written as one word; several numbers have commas between them."""
TRUTHS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
WANTED = {
    bool: "on or off", int: "a whole number", float: "a number", tuple: "whole numbers with commas between them",
}  # fmt: skip


class Settings(Protocol):
    """What a user asks of an engine; None in a field is the engine's choice for the GPU and the model."""

    @property
    def engine(self) -> str:
        """The engine and its version, such as ``vllm@0.25``, whose rules and defaults hold."""


class Resolved(Settings, Protocol):
    """The same with nothing left open; only these are read outside the engine."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of the largest step."""

    @property
    def max_num_seqs(self) -> int:
        """Sequences of the largest step."""

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence."""


Asked = TypeVar("Asked", bound=Settings)


def changed(settings: Asked, **values: Any) -> Asked:
    return cast("Asked", replace(cast("Any", settings), **values)) if values else settings


def _read(kind: type, text: str) -> Any:
    if kind is bool:
        return TRUTHS[text.lower()]
    if kind is tuple:
        return tuple(whole_number(part.strip()) for part in text.split(","))
    return whole_number(text) if kind is int else kind(text)


def read_setting(known: Mapping[str, type], name: str, text: str, what: str = "setting") -> Any:
    """The value that a word stands for."""
    if name not in known:
        raise UnknownNameError(what, name, known)
    try:
        return _read(known[name], text)
    except (KeyError, ValueError):
        raise InputError(f"{what} {name}={text}: must be {WANTED[known[name]]}") from None


def check_counts(settings: Settings, names: Iterable[str]) -> None:
    """Refuse settings below 1; None is the engine's choice."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")


def check_sizes(name: str, sizes: Sequence[int] | None) -> None:
    """Refuse an empty list of sizes of CUDA graphs, or sizes below 1."""
    if sizes is not None and not (sizes and all(size >= 1 for size in sizes)):
        raise InputError(f"{name} must be one or more numbers of at least 1, not {list(sizes)}")


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a JSON file, whose fields are read with errors that name them."""

    path: Path
    holder: Mapping[str, Any]
    place: str
    """Where in the file it stands: ``config``."""

    def __contains__(self, name: str) -> bool:
        return self.holder.get(name) is not None

    def get(self, name: str, kind: type) -> Any:
        """A field of the right type; whole numbers serve as floats."""
        value = self.holder.get(name)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise FileFormatError(
                self.path, f"{self.place} needs the field {name!r} of type {kind.__name__}, not {value!r}"
            )
        return value

    def word(self, name: str, default: str = "auto") -> str:
        """The name of something, which may be missing."""
        return str(self.get(name, str)) if self.holder.get(name) else default

    def at_least(self, name: str, least: int) -> int:
        value = int(self.get(name, int))
        if value < least:
            raise FileFormatError(self.path, f"{self.place}.{name} must be at least {least}, not {value}")
        return value

    def inner(self, name: str) -> Fields:
        return Fields(self.path, self.get(name, dict) if name in self else {}, f"{self.place}.{name}")


class ProfiledStep(NamedTuple):
    """What one step of a profiled engine held."""

    prompts: int
    prompt_tokens: int
    decodes: int
    decode_tokens: int = 0
    """Of the sequences that decode, drafts with them; 0: one of each."""


@dataclass(frozen=True, slots=True)
class MeasuredSetup:
    """An engine as it was started."""

    settings: Settings
    num_gpu_blocks: int
    """KV blocks that it had."""
    with_those_blocks: Settings
    """The same settings for an engine that is told to have just these."""
    blocks_were_set: bool
    """Whether it was."""
    tensor_parallel_size: int = 1
    model: Mapping[str, Any] = field(default_factory=dict)
    """How it read the checkpoint, by the names of `infercast.forecast.deploy.ModelOptions`."""


class Names(NamedTuple):
    """What an engine calls things that others have, too; the first of each is its default."""

    kv_cache_dtypes: Mapping[str, str]
    dtypes: Mapping[str, str]
    """Of weights that are not quantised; nothing for the checkpoint's own."""
    moe_backends: Sequence[str]
    """Whose kernels multiply routed experts."""
    all2all_backends: Sequence[str]
    """How replicas that share experts exchange tokens; all but the first send each token to its experts alone."""
    scan_backends: Sequence[str] = ("auto",)
    """Whose kernels scan prompts of gated delta nets."""
    moe_kernels: Mapping[str, str] = {}
    """Kernels of experts that go by another name than their maker's."""
    quantizations: Mapping[str, str] = {}
    """Its own names of formats of weights; an empty one is the checkpoint's."""


class Flags(NamedTuple):
    """What a pasted command that starts the engine may hold, without the dashes in front."""

    options: frozenset[str]
    """Options of ours, with underscores, that mean something to this engine."""
    settings: Mapping[str, str] = {}
    """Flags that are settings of the engine and no options of ours."""
    other_names: Mapping[str, str] = {}
    """Flags that are options of ours under another name."""
    lists: Collection[str] = ()
    """Flags of ours that the engine takes with several values behind them."""
    switches: Collection[str] = ()
    """Flags without a value that change nothing; ``no-`` may be before each."""
    values: Collection[str] = ()
    """Flags with a value that change nothing."""
    not_modelled: Mapping[str, str] = {}
    """Flags that change a forecast and are not modelled, with what they are about."""
    called: Mapping[str, str] = {}
    """What flags of other engines are called here."""


class Commands(NamedTuple):
    """How the engine is started and asked: words of command lines, images, and what others call it."""

    serve: Sequence[str] = ()
    """Words that start its server, before the model; none of an engine without one."""
    module: str = ""
    """The server as a module of Python, as ``python -m`` takes it."""
    other_serve: Sequence[str] = ()
    """Other words that start it."""
    bench: Sequence[str] = ()
    """Words that start its own benchmark of a server."""
    bench_flags: str = ""
    """What follows them: the rate, the number and lengths of requests and the name of the file stand in braces."""
    bench_end_to_end: str = "e2el"
    """What its results call the time of a whole request."""
    image: str = ""
    """Its container, without a tag."""
    image_serves: bool = True
    """Whether the container starts the server by itself, so that flags follow at once."""
    always: Sequence[str] = ()
    """Words that a server needs to be reached from other machines."""
    kv_cache_dtypes: Mapping[str, str] = {}
    """What it calls formats of keys and values that go by other names here."""
    tag: str = "latest"
    """The tag of a release; ``{version}`` stands for its number."""
    image_words: Sequence[str] = ()
    """What the names of containers that hold it have in them."""
    environment: str = ""
    """How the names of its environment variables begin."""
    port: int = 8000
    """Where its server listens."""
    abbreviates: bool = False
    """Whether the beginning of a flag that no other begins with stands for it."""
    negates: bool = True
    """Whether a switch is turned off by ``--no-`` before its name, and not by leaving it out."""
    health: str = "/health"
    """The path that answers once it serves."""
    short: Mapping[str, str] = {}
    """Short flags, without the dash, by the long ones."""
    other_meaning: Collection[str] = ()
    """Flags that change nothing, whose names mean something else in our own commands."""
    unmodelled: Mapping[str, str] = {}
    """Flags that our own commands do not know, with what they are about."""
    disaggregated: Mapping[str, str] = {}
    """The flag that joins a prefill pool and a decode pool, and its value for each role."""
    elsewhere: Mapping[str, str] = {}
    """Its names in the systems that start it."""
    several_nodes: Mapping[str, Sequence[str]] = {}
    """Flags of each node of a replica over several: of ``stages``, of ``copies``, and of ``others`` than the first."""
    on_the_fly: Mapping[str, str] = {}
    """Formats of weights that it makes from any checkpoint, and the flag's value for each."""


@cache
def commands_in(file: str) -> Commands:
    """Those of a data file; none where an engine has no such file."""
    return Commands(**read_data(file)) if file else Commands()


VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:[.+-]?(?:post|rc|dev|a|b)\d*.*|\+.*)?", re.ASCII)
"""As packages have them: ``0.27.1``, ``v0.32.0rc1``, ``0.25.0+cu130``."""


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers: 0.5.16 is after 0.5.9."""
    return tuple(int(part) for part in version.split("."))


def nearest_version(name: str, known: Iterable[str]) -> str | None:
    """The release of an engine with its version that is nearest to this one: the last that is no newer, or the first.

    None where the name has no version that can be read, or nobody knows such an engine.
    """
    family, _, text = name.partition("@")
    found = VERSION.fullmatch(text)
    releases = {numbers(each.partition("@")[2]): each for each in known if each.partition("@")[0] == family}
    if not found or not releases:
        return None
    asked = numbers(found[1])
    return releases[max((each for each in releases if each <= asked), default=min(releases))]


def is_same_version(name: str, release: str) -> bool:
    found = VERSION.fullmatch(name.partition("@")[2])
    own = numbers(release.partition("@")[2])
    return found is not None and numbers(found[1])[: len(own)] == own
