"""An engine's settings and vocabulary: versions, formats, kernels, flags and commands."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar, cast

from infercast.bundled import read_data
from infercast.errors import InputError, UnknownNameError, require
from infercast.lazy_classes import NamedTuple, dataclass, field, replace
from infercast.units import whole_number

TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
TYPES |= {"tuple[int, ...]": tuple, "tuple[str, ...]": list}
"""Types of settings that can be written as one word; lists of numbers or words are comma-separated."""
TRUTHS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
WANTED = {
    bool: "on or off", int: "a whole number", float: "a number", tuple: "whole numbers with commas between them",
}  # fmt: skip
READ, IGNORED, NOT_MODELLED, REFUSED = "read", "ignored", "not modelled", "refused"
"""What becomes of a flag: modelled, irrelevant, left out though it matters, or refused by the engine itself."""
VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:[.+-]?(?:post|rc|dev|a|b)\d*.*|\+.*)?", re.ASCII)
"""As used by packages: ``0.27.1``, ``v0.32.0rc1``, ``0.25.0+cu130``."""


class Settings(Protocol):
    """User settings of an engine; None leaves a field to the engine's default for the GPU and the model."""

    @property
    def engine(self) -> str:
        """The engine and its version, such as ``vllm@0.25``, which determines rules and defaults."""


class Resolved(Settings, Protocol):
    @property
    def max_num_batched_tokens(self) -> int: ...  # Tokens of the largest step ...
    @property
    def max_num_seqs(self) -> int: ...  # ... and its sequences
    @property
    def max_model_len(self) -> int: ...  # Tokens of the longest sequence


Asked = TypeVar("Asked", bound=Settings)


def changed(settings: Asked, **values: Any) -> Asked:
    return cast("Asked", replace(cast("Any", settings), **values)) if values else settings


def filled(settings: Asked, defaults: Mapping[str, Any]) -> Asked:
    return changed(settings, **{name: value for name, value in defaults.items() if getattr(settings, name) is None})


def _read(kind: type, text: str) -> Any:
    if kind is bool:
        return TRUTHS[text.lower()]
    if kind in (tuple, list):
        return tuple(whole_number(part) if kind is tuple else part for part in text.replace(",", " ").split())
    return whole_number(text) if kind is int else kind(text)


def read_setting(known: Mapping[str, type], name: str, text: str, what: str = "setting") -> Any:
    if name not in known:
        raise UnknownNameError(what, name, known)
    try:
        return _read(known[name], text)
    except (KeyError, ValueError):
        raise InputError(f"{what} {name}={text}: must be {WANTED[known[name]]}") from None


def check_counts(settings: Settings, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(settings, name)
        require(value is None or value >= 1, name, "be at least 1", value)


def check_sizes(name: str, sizes: Sequence[int] | None) -> None:
    if sizes is not None:
        require(sizes and min(sizes) >= 1, name, "be one or more numbers of at least 1", list(sizes))


@dataclass(frozen=True, slots=True)
class MeasuredSetup:
    settings: Settings
    num_gpu_blocks: int | None  # KV blocks it had; None: not known
    with_those_blocks: Settings  # The same settings, with the number of blocks fixed to these
    blocks_were_set: bool  # True if it was fixed
    tensor_parallel_size: int = 1
    over_http: bool = False  # Its clients sent requests to an API server, not from a program that holds the engine
    model: Mapping[str, Any] = field(default_factory=dict)  # How it read the checkpoint, by names of `ModelOptions`


class EngineNames(NamedTuple):
    """An engine's names for things that other engines have too; the first of each is its default."""

    kv_cache_dtypes: Mapping[str, str]
    dtypes: Mapping[str, str]  # Of unquantised weights; empty for the checkpoint's own
    moe_backends: Sequence[str]  # Kernels for routed experts
    all2all_backends: Sequence[str]
    """How replicas that share experts exchange tokens; all but the first send each token only to its experts."""
    scan_backends: Sequence[str] = ("auto",)  # Kernels that scan prompts of gated delta nets
    moe_kernels: Mapping[str, str] = {}  # Expert kernels under names that differ from the backend's
    quantizations: Mapping[str, str] = {}  # Its names for weight formats; an empty one is the checkpoint's


class EngineFlags(NamedTuple):
    """Flags allowed in a pasted launch command, without leading dashes."""

    options: frozenset[str]  # Our options, with underscores, that apply to this engine
    settings: Mapping[str, str] = {}  # Flags that are engine settings but not our options
    other_names: Mapping[str, str] = {}  # Flags that are our options under another name
    lists: Collection[str] = ()  # Our flags that the engine takes with several values
    called: Mapping[str, str] = {}  # This engine's names for flags of other engines


def flags_in(data: dict[str, Any], options: Iterable[str]) -> EngineFlags:
    """Those of a data file, with the flags of settings that are no options of ours, and other names as ``aliases``."""
    options = frozenset(options)
    for_all = {"acceptance", "engine"}  # Options that mean the same with every engine
    settings = data.pop("settings", [name.replace("_", "-") for name in sorted(options - for_all)])
    found = {name: name.replace("-", "_") for name in settings} | data.pop("aliases", {})
    return EngineFlags(options=options, settings=found, **data)


class EngineCommands(NamedTuple):
    """How the engine is started and benchmarked: command lines, images, and names used by other systems."""

    serve: Sequence[str] = ()  # Command that starts its server, before the model; empty for an engine without one
    module: str = ""  # The server as a Python module, as for ``python -m``
    other_serve: Sequence[str] = ()  # Alternative commands that start it
    bench: Sequence[str] = ()  # Command of its own serving benchmark
    bench_flags: str = ""  # Flags after it; rate, number and lengths of requests and the file name are in braces
    bench_end_to_end: str = "e2el"  # The name of end-to-end latency in its results
    image: str = ""  # Its container image, without a tag
    image_serves: bool = True  # True if the container starts the server itself, so that flags follow directly
    always: Sequence[str] = ()  # Flags a server needs to be reachable from other machines
    kv_cache_dtypes: Mapping[str, str] = {}  # Its names for KV cache formats that are named differently here
    tag: str = "latest"  # The image tag of a release; ``{version}`` is replaced by its number
    image_words: Sequence[str] = ()  # Substrings of image names that contain it
    environment: str = ""  # Prefix of its environment variables ...
    idle_variables: Collection[str] = ()  # ... those that change neither time nor memory ...
    variables: Mapping[str, str] = {}  # ... those that stand for a flag ...
    layer_partition: str = ""  # ... the one with the layers of each pipeline stage ...
    longer_contexts: str = ""  # ... and the one that allows contexts beyond the model's positions.
    port: int = 8000  # The server's default port
    flexible: bool = False  # True if flags may have underscores for dashes, and dotted keys of JSON values
    negates: bool = True  # True if a switch is turned off by a ``--no-`` prefix, not by leaving it out
    health: str = "/health"  # The path that responds once it serves
    disaggregated: Mapping[str, str] = {}  # The flag that connects a prefill and a decode pool, and its value for each
    pooling: Mapping[str, str | bool] = {}  # Flags that make it pool: a vector or a score for each prompt
    elsewhere: Mapping[str, str] = {}  # Its names in orchestration systems
    dotted: Mapping[str, str] = {}  # Settings that are keys of a flag's JSON value, as flags
    several_nodes: Mapping[str, Sequence[str]] = {}  # Flags of a node: of ``stages``, ``copies`` and ``others``
    tried: Sequence[tuple[tuple[str, Any], ...]] = ((),)  # Settings tried by a plan, each in order of names
    on_the_fly: Mapping[str, str] = {}  # Weight formats that it makes of any checkpoint, and the flag's value for each


@cache
def commands_in(file: str) -> EngineCommands:
    return EngineCommands(**read_data(file)) if file else EngineCommands()


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers: 0.5.16 is after 0.5.9."""
    return tuple(int(part) for part in version.split("."))


def version_of(name: str) -> tuple[int, ...]:
    """The version of an engine's name as numbers, as far as the name has it."""
    found = VERSION.fullmatch(name.partition("@")[2])
    return numbers(found[1]) if found else ()


def nearest_version(name: str, known: Iterable[str]) -> str | None:
    """The nearest known release: the last that is no newer, or the first; None without a readable version or engine."""
    family, asked = name.partition("@")[0], version_of(name)
    releases = {version_of(each): each for each in known if each.partition("@")[0] == family}
    if not asked or not releases:
        return None
    return releases[max((each for each in releases if each <= asked), default=min(releases))]


def is_same_version(name: str, release: str) -> bool:
    own = version_of(release)
    return version_of(name)[: len(own)] == own
