"""Pasted commands: command lines, ``docker run``, compose and Kubernetes files; split, and never given to a shell."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from infercast.bundled import read_data
from infercast.engines.base import ABSENT, FAMILIES, Engine, engine_named, what_there_is
from infercast.engines.settings import EngineCommands
from infercast.errors import FileFormatError, InputError
from infercast.forecast.command.flags import Reading, known_flags, read_flags

BETWEEN = ";&|\n"  # what ends a command
CONTINUED = re.compile(r"[ \t]*[\\`^]\r?\n[ \t]*")
REDIRECTED = re.compile(r"(?<=\s)(?:\d?>>?(?:\s*&\d|\s*[^\s'\"&;|]+)|&>>?\s*\S+|<\s*[^\s'\"&;|<]+)")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
BEFORE = ("$", "%", ">", "export", "env", "sudo", "nohup", "exec", "time", "set")  # the first are prompts of terminals
WITHOUT_VALUE = frozenset(read_data("docker_run.toml")["without_value"])


class PastedCommand(NamedTuple):
    words: list[str]
    environment: Mapping[str, str]  # Variables that are set before it


class Container(NamedTuple):
    image: str
    words: list[str]  # What is in place of the image's own entry point, and what stands behind the image
    environment: Mapping[str, str]
    gpus: int | None


def shell_lines(text: str) -> list[PastedCommand]:
    """The commands of a script, with what is set before each; comments and redirections are left out."""
    text = CONTINUED.sub(" ", re.sub(r"(?m)^[ \t]*#.*\n", "", text))
    text = "\n".join(re.sub(r"(^|\s)#(?!\S*['\"]).*$", r"\1", line) for line in text.splitlines())
    lexer = shlex.shlex(REDIRECTED.sub("", f" {text}"), posix=True, punctuation_chars=BETWEEN)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    lines: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word and all(letter in BETWEEN for letter in word):
                lines.append([])
            else:
                lines[-1].append(word)
    except ValueError as problem:
        raise InputError(
            f"the command cannot be split into words ({problem}): {' '.join(text.split())[:80]!r}"
        ) from None
    return [_line(words) for words in lines if words]


def _line(words: Sequence[str]) -> PastedCommand:
    environment: dict[str, str] = {}
    rest = list(words)
    while rest:
        if (assigned := ASSIGNED.fullmatch(rest[0])) is not None:
            environment[assigned[1]] = assigned[2]
        elif rest[0] not in BEFORE:
            break
        rest.pop(0)
    return PastedCommand(rest, environment)


def docker_run(words: Sequence[str]) -> Container | None:
    containers = ("docker", "podman", "nerdctl")
    if len(words) < 2 or words[0].rsplit("/", 1)[-1] not in containers:
        return None
    at = next((at for at, word in enumerate(words) if word in ("run", "create")), len(words)) + 1
    environment: dict[str, str] = {}
    entry, volumes = list[str](), list[str]()
    gpus: int | None = None
    while at < len(words) and words[at].startswith("-"):
        flag, equals, value = words[at].lstrip("-").partition("=")
        at += 1
        if not equals and flag not in WITHOUT_VALUE:
            if not words[at - 1].startswith("--") and len(flag) > 1 and flag[0] in "epvmuwh":
                flag, value = flag[0], flag[1:]  # a short flag may have its value attached
            else:
                value = words[at] if at < len(words) else ""
                at += 1
        if flag in ("e", "env"):
            name, _, given = value.partition("=")
            environment[name] = given
        elif flag == "entrypoint":
            entry = [value]
        elif flag == "gpus":
            gpus = _gpu_count(value)
        elif flag in ("v", "volume"):
            volumes.append(value)
    if at >= len(words):
        return None
    return Container(words[at], _outside([*entry, *words[at + 1 :]], volumes), environment, gpus)


def _outside(words: Sequence[str], volumes: Sequence[str]) -> list[str]:
    """Paths in a container that say nothing as the host has them: ``/model`` with ``-v /data/Qwen3-8B:/model``."""
    for host, inner in (each.split(":")[:2] for each in volumes if re.fullmatch(r"[^$:]+:/[^\d:]+(:\w+)?", each)):
        path = re.compile(rf"^((?:--[\w-]+=)?){re.escape(inner.rstrip('/'))}(?=/|$)")
        words = [path.sub(rf"\g<1>{host}", word) for word in words]
    return list(words)


def _gpu_count(text: str) -> int | None:
    """``2`` or ``device=0,1``; all of them is no number."""
    text = text.strip("\"'")
    if text.startswith("device="):
        return len(text.removeprefix("device=").split(","))
    return int(text) if text.isdigit() else None


Tree: TypeAlias = "dict[str, Tree] | list[Tree] | str | None"
"""What a YAML document is made of. Every scalar is a string, as a command line needs it: ``8`` stays ``"8"``."""
PLAIN_TAGS = {"map", "seq", "str", "int", "float", "bool", "null", "timestamp", "binary", "merge", "value"}
DEEPEST = 60


def read_documents(text: str) -> list[Tree]:
    """The documents of a YAML text, without the empty ones; tags that are no plain values are refused."""
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as problem:
        line = None if problem.problem_mark is None else problem.problem_mark.line + 1
        raise FileFormatError("YAML", f"is not YAML: {problem.context or ''} {problem.problem}", line) from None
    except (yaml.YAMLError, RecursionError) as problem:
        raise FileFormatError("YAML", f"is not YAML that can be read: {problem}") from None
    trees = [_tree(node, {}) for node in nodes]
    return [tree for tree in trees if tree is not None]


def _tree(node: Any, known: dict[int, Tree], depth: int = 0) -> Tree:
    """The value of a node, made once for all its aliases."""
    line, (_, _, tag) = node.start_mark.line + 1, node.tag.rpartition(":")
    if tag not in PLAIN_TAGS:
        raise FileFormatError("YAML", f"has the tag {tag!r}; only plain values are read", line)
    if depth > DEEPEST:
        raise FileFormatError("YAML", f"is nested deeper than {DEEPEST} levels", line)
    if isinstance(node, yaml.ScalarNode):
        return None if tag == "null" else str(node.value)
    if id(node) not in known:
        read = partial(_tree, known=known, depth=depth + 1)
        if isinstance(node, yaml.SequenceNode):
            known[id(node)] = [read(each) for each in node.value]
        else:
            known[id(node)] = _mapping([(key, read(key), read(value)) for key, value in node.value])
    return known[id(node)]


def _mapping(pairs: Sequence[tuple[Any, Tree, Tree]]) -> Tree:
    """Keys with their values; those of ``<<`` count where the mapping has none of its own."""
    values, merged = dict[str, Tree](), dict[str, Tree]()
    for node, key, value in pairs:
        if node.tag.endswith(":merge"):
            for each in value if isinstance(value, list) else [value]:
                merged = {**(each if isinstance(each, dict) else {}), **merged}
        elif str(key) in values:
            raise FileFormatError("YAML", f"gives {key!r} a second time", node.start_mark.line + 1)
        else:
            values[str(key)] = value
    return {**merged, **values}


VARIABLE = re.compile(r"\$(?:\{(\w+)\}|\((\w+)\)|(\w+))")
PRODUCT = re.compile(r"\$\(\((\d+(?:\*\d+)*)\)\)")


@dataclass(frozen=True, slots=True)
class Pasted:
    words: tuple[str, ...]  # What follows the program: the model, perhaps, and flags
    where: str = "command line"  # Which of the commands of a file it is
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int | None = None  # GPUs that a container is given
    replicas: int = 1
    release: str = ""  # The engine's version, as far as the tag of an image has it


def find_commands(text: str, commands: EngineCommands) -> list[Pasted]:
    if _is_yaml(text):
        found = [each for tree in read_documents(text) for each in _containers(tree, commands)]
    else:
        found, known = [], dict[str, str]()
        for line in shell_lines(text):
            known |= line.environment
            found += [replace(each, environment={**known, **each.environment}) for each in _in_line(line, commands)]
    return [_as_flags(each, commands.variables) for each in found]


def _as_flags(each: Pasted, variables: Mapping[str, str]) -> Pasted:
    """Variables of the same text replaced, and those of the engine that stand for a flag of a new release as that."""
    kept = {name: value for name, value in each.environment.items() if each.release or name not in variables}
    more = [f"{variables[name]}={value}" for name, value in each.environment.items() if name not in kept]
    return replace(each, words=(*more, *(_replaced(word, each.environment) for word in each.words)), environment=kept)


def started_engine(text: str) -> Engine:
    """The engine that a text starts; where none is found, the default one, which says what can be pasted."""
    for family in FAMILIES:
        engine = engine_named(family)
        if found := find_commands(text, engine.commands):
            return engine_named(f"{family}@{found[0].release}") if found[0].release else engine
    for title, words in ABSENT.items():
        if any(re.search(rf"(^|[\s/]){re.escape(word)}\b", text) for word in words):
            raise InputError(f"the command starts {title}, which is not modelled; {what_there_is()}")
    return engine_named()


def the_command(text: str, commands: EngineCommands, service: str | None = None) -> Pasted:
    """The one command of a text; ``service`` says which of several."""
    found = find_commands(text, commands)
    if not found:
        shown = " ".join(text.split())[:80]
        others = [engine_named(family).commands for family in FAMILIES]
        starts = "`, `".join(
            f"{' '.join(each.serve)} MODEL ..." for each in (others if commands in others else [commands])
        )
        raise InputError(
            f"no command that starts a server was found in {shown!r}; paste `{starts}`, `docker run ... "
            f"{commands.image} ...`, a compose file or a Kubernetes manifest"
        )
    if service is not None:
        named = [each for each in found if service in each.where.split()]
        if not named:
            known = ", ".join(each.where for each in found)
            raise InputError(f"--service {service!r} is not in what was pasted; found: {known}")
        found = named
    if len({each.words for each in found}) > 1:
        known = ", ".join(each.where for each in found)
        raise InputError(f"{len(found)} different commands were found ({known}); say which with --service NAME")
    return replace(found[0], replicas=sum(each.replicas for each in found))


class Command(NamedTuple):
    """A pasted command, read by the flags of one release."""

    engine: Engine
    pasted: Pasted
    reading: Reading
    why: str = ""  # Why it is this release, if its flags say so


def read_command(text: str, engine: str | None = None, service: str | None = None) -> Command:
    """The command of a text by the release of ``engine``, the one it names, or the newest with all of its flags."""
    chosen = started_engine(text) if engine is None else engine_named(engine)
    pasted = the_command(text, chosen.commands, service)
    is_certain = "@" in (engine or "") or chosen.name != engine_named(chosen.family).name
    reading = read_flags(pasted.words, chosen, strict=is_certain)
    if not (refused := reading.refused):
        return Command(chosen, pasted, reading)
    for release in reversed(known_flags(chosen).releases):
        other = engine_named(f"{chosen.family}@{release}")
        if not (earlier := read_flags(pasted.words, other)).refused:
            why = f"no release is named: {other.name} is the newest that takes all flags ({', '.join(refused)})"
            return Command(other, pasted, earlier, why)
    return Command(chosen, pasted, reading)


def text_of(argument: str, standard_input: str | None = None) -> str:
    """The text that an argument stands for: standard input (``-``), a file of that name, or itself."""
    if argument == "-":
        return standard_input or ""
    is_name = "\n" not in argument and len(argument) < 1000 and not re.search(r"\s--?\w", argument)
    if is_name and (path := Path(argument)).is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise InputError(f"{argument} cannot be read as text: {problem}") from None
    if is_name and " " not in argument and argument.endswith((".yaml", ".yml", ".sh", ".txt")):
        raise InputError(f"there is no file {argument}; give a file, a command line in quotes, or - for standard input")
    return argument


def _is_yaml(text: str) -> bool:
    """Whether the first line that says something is a key or a list item."""
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    return first.startswith("---") or re.match(r"\s*(- |[\w./-]+:(\s|$))", first) is not None


def _in_line(line: PastedCommand, commands: EngineCommands) -> Iterator[Pasted]:
    words, environment = line.words, line.environment
    if (container := docker_run(words)) is not None:
        inner = _arguments(container.words, container.image, commands)
        if inner is not None:
            where, known = f"docker run {container.image}", {**environment, **container.environment}
            yield Pasted(tuple(inner), where, known, container.gpus, release=_release(container.image))
        return
    inner = _arguments(words, "", commands)
    if inner is not None:
        yield Pasted(tuple(inner), environment=environment)


def _arguments(words: Sequence[str], image: str, commands: EngineCommands) -> list[str] | None:
    """What follows the program that starts the engine; None where nothing here does."""
    starts = [list(each) for each in (commands.serve, commands.other_serve) if each]
    shells = ("sh", "bash", "zsh", "dash", "ash")
    for at, word in enumerate(words):
        for serve in starts:
            if [word.rsplit("/", 1)[-1], *words[at + 1 : at + len(serve)]] == serve:
                return list(words[at + len(serve) :])
        if word == "-m" and words[at + 1 : at + 2] in ([commands.module], [commands.elsewhere.get("dynamo_module")]):
            return list(words[at + 2 :])
        if word.rsplit("/", 1)[-1] in shells and (script := _script(words[at + 1 :])) is not None:
            lines = [_arguments(line.words, image, commands) for line in shell_lines(script)]
            return next((found for found in lines if found is not None), None)
    first = words[0] if words else "--"
    if any(each in image for each in commands.image_words) and (first.startswith("-") or "/" in first):
        return list(words)
    return None


def _release(image: str) -> str:
    found = re.search(r":v?(\d+\.\d+(?:\.\d+)*)", image)
    return found[1] if found else ""


def _script(words: Sequence[str]) -> str | None:
    for at, word in enumerate(words[:-1]):
        if re.fullmatch(r"-[a-z]*c", word):
            return words[at + 1]
    return None


def _containers(tree: Tree, commands: EngineCommands, name: str = "", replicas: int = 1) -> Iterator[Pasted]:
    """Every part of a document that has a command or arguments, wherever it stands."""
    if isinstance(tree, list):
        for each in tree:
            yield from _containers(each, commands, name, replicas)
    if not isinstance(tree, dict):
        return
    if str(tree.get("replicas", "")).isdigit():
        replicas = int(str(tree["replicas"]))
    if "command" in tree or "args" in tree or "entrypoint" in tree:
        own = tree.get("name")
        called = own if isinstance(own, str) else name
        words = [word for key in ("entrypoint", "command", "args") for word in _words(tree.get(key))]
        words = _outside(_words(words[0]) if len(words) == 1 else words, _words(tree.get("volumes")))
        environment = _environment(tree.get("environment", tree.get("env")))
        image = str(tree.get("image", called))
        inner = _arguments(words, image, commands)
        if inner is not None:
            where = f"service {called}".rstrip()
            yield Pasted(tuple(inner), where, environment, _gpus(tree), replicas, _release(image))
    for key, each in tree.items():
        if key not in ("command", "args", "entrypoint", "environment", "env"):
            yield from _containers(each, commands, key if isinstance(each, dict) else name, replicas)


def _words(value: Tree) -> list[str]:
    """A list, or a line as a shell would split it."""
    if isinstance(value, list):
        return [str(each) for each in value if each is not None]
    return [word for line in shell_lines(value) for word in line.words] if isinstance(value, str) else []


def _environment(value: Tree) -> dict[str, str]:
    if isinstance(value, dict):
        return {name: str(each or "") for name, each in value.items()}
    found: dict[str, str] = {}
    for each in value if isinstance(value, list) else []:
        if isinstance(each, dict) and isinstance(each.get("name"), str):
            found[str(each["name"])] = str(each.get("value") or "")
        elif isinstance(each, str):
            name, _, text = each.partition("=")
            found[name] = text
    return found


def _gpus(tree: Tree) -> int | None:
    """How many GPUs a container asks for, in the places where compose and Kubernetes say it."""
    if isinstance(tree, list):
        return next((count for each in tree if (count := _gpus(each)) is not None), None)
    if not isinstance(tree, dict):
        return None
    gpu_counts = ("nvidia.com/gpu", "amd.com/gpu", "gpu")
    for key in gpu_counts:
        if str(tree.get(key, "")).isdigit():
            return int(str(tree[key]))
    if "capabilities" in tree:
        named, asked = tree.get("device_ids"), str(tree.get("count", ""))
        return len(named) if isinstance(named, list) else int(asked) if asked.isdigit() else None
    below = (tree.get(key) for key in ("resources", "limits", "requests", "deploy", "reservations", "devices"))
    return next((count for each in below if (count := _gpus(each)) is not None), None)


def _replaced(word: str, known: Mapping[str, str]) -> str:
    """With variables replaced, and products of them such as ``$(($NODES*8))``."""
    word = VARIABLE.sub(lambda found: known.get(found[1] or found[2] or found[3]) or found[0], word)
    return PRODUCT.sub(lambda found: str(math.prod(map(int, found[1].split("*")))), word)
