"""Lines of a shell split into words, and ``docker run`` into the container's own: nothing is expanded or executed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from infercast.errors import InputError

BETWEEN = ";&|\n"
"""What ends a command."""
CONTINUED = re.compile(r"[ \t]*[\\`^]\r?\n[ \t]*")
REDIRECTED = re.compile(r"(?<=\s)(?:\d?>>?(?:\s*&\d|\s*[^\s'\"&;|]+)|&>\s*\S+|<\s*[^\s'\"&;|<]+)")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
BEFORE = ("export", "env", "sudo", "nohup", "exec", "time", "set")
CONTAINERS = ("docker", "podman", "nerdctl")
WITHOUT_VALUE = {
    "d", "i", "t", "it", "ti", "itd", "dit", "detach", "interactive", "tty", "rm", "privileged", "init", "read-only",
    "no-healthcheck", "oom-kill-disable", "publish-all", "P", "quiet", "q", "sig-proxy", "help",
}  # fmt: skip
"""Flags of ``docker run`` without a value; all others have one."""


class Line(NamedTuple):
    """One command of a script."""

    words: list[str]
    environment: Mapping[str, str]
    """Variables that are set before it."""


class Container(NamedTuple):
    """What ``docker run`` starts."""

    image: str
    words: list[str]
    """Behind the image."""
    entry: list[str]
    """In place of the image's own entry point."""
    environment: Mapping[str, str]
    gpus: int | None


def shell_lines(text: str) -> list[Line]:
    """The commands of a script, with what is set before each; comments and redirections are left out."""
    text = CONTINUED.sub(" ", text)
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


def _line(words: Sequence[str]) -> Line:
    environment: dict[str, str] = {}
    rest = list(words)
    while rest:
        if rest[0] in ("$", "%", ">"):  # the prompt of a terminal
            rest.pop(0)
        elif (assigned := ASSIGNED.fullmatch(rest[0])) is not None and not rest[0].startswith("-"):
            environment[assigned[1]] = assigned[2]
            rest.pop(0)
        elif rest[0] in BEFORE:
            rest.pop(0)
        else:
            break
    return Line(rest, environment)


def docker_run(words: Sequence[str]) -> Container | None:
    """The container that a command starts; None where it starts none."""
    if len(words) < 2 or words[0].rsplit("/", 1)[-1] not in CONTAINERS:
        return None
    at = next((at for at, word in enumerate(words) if word in ("run", "create")), len(words)) + 1
    environment: dict[str, str] = {}
    entry: list[str] = []
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
    if at >= len(words):
        return None
    return Container(words[at], list(words[at + 1 :]), entry, environment, gpus)


def _gpu_count(text: str) -> int | None:
    """``2`` or ``device=0,1``; all of them is no number."""
    text = text.strip("\"'")
    if text.startswith("device="):
        return len(text.removeprefix("device=").split(","))
    return int(text) if text.isdigit() else None
