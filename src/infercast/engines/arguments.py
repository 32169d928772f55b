"""Flags that an engine's server takes, release by release, and what a forecast makes of each."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from infercast.bundled import DATA, read_data
from infercast.engines.settings import IGNORED, NOT_MODELLED, READ, REFUSED, VERSION, numbers
from infercast.errors import InputError, near_names

MOST = 5  # Forms that a message lists
Settings: TypeAlias = "tuple[tuple[str, type | None], ...]"  # Flags that are settings, with their types


class Argument(NamedTuple):
    """A flag as a span of releases defines it; a row of ``arguments.json``."""

    name: str  # Its first long form, without dashes
    others: Sequence[str]  # Further forms, with dashes
    takes: str  # ``switch``, ``bool`` (with ``--no-``), ``value``, ``list``, ``maybe`` (a value or none) or ``json``
    type: str
    default: str  # Empty where there is none, or it depends on the model
    choices: Sequence[str]
    since: str
    until: str  # The first release after the span; empty where it has not ended

    @property
    def names(self) -> list[str]:
        return [self.name, *(each.lstrip("-") for each in self.others)]

    @property
    def spellings(self) -> list[str]:
        forms = [f"--{self.name}", *self.others]
        return [*forms, *(f"--no-{each[2:]}" for each in forms if self.takes == "bool" and each.startswith("--"))]


class Found(NamedTuple):
    argument: Argument
    form: str  # The whole form that the word stands for
    attached: str | None = None  # A value within the word
    refused: str = ""  # Why the release refuses it

    @property
    def is_negated(self) -> bool:
        return self.argument.takes == "bool" and self.form not in (f"--{self.argument.name}", *self.argument.others)


class FlagExplanation(NamedTuple):
    status: str
    note: str
    as_forecast: Sequence[str] = ()  # Values at which nothing differs from the forecast


@cache
def _classes(family: str) -> dict[str, Any]:
    path = f"engines/{family}/classes.toml"
    return read_data(path) if (DATA / path).is_file() else {}


@cache
def meanings_of(family: str) -> dict[str, FlagExplanation]:
    """Those of flags that are not read, by name; by the dash at its end, of all flags that begin with a name."""
    classes = _classes(family)
    found = {
        name: FlagExplanation(IGNORED, each["why"]) for each in classes.get("irrelevant", ()) for name in each["flags"]
    }
    for each in classes.get("unmodelled", ()):
        meaning = FlagExplanation(NOT_MODELLED, f"{each['what']}; {each['effect']}", each.get("as_forecast", ()))
        found |= dict.fromkeys(each["flags"], meaning)
    return found


def meaning_of(family: str, names: Sequence[str], *, is_read: bool) -> FlagExplanation:
    """That of a flag by one of its names or, unless it is one that is read, by the longest beginning of one."""
    known = meanings_of(family)
    beginnings = () if is_read else (each for each in known if each[-1] == "-")
    fitting = [each for each in beginnings if any(name.startswith(each) for name in names)]
    exact = [name for name in names if name in known]
    return known.get(max(exact or fitting, key=len, default=""), FlagExplanation(READ, ""))


@cache
def _number(version: str) -> tuple[int, ...]:
    found = VERSION.fullmatch(version)
    return numbers(found[1]) if found else ()


@cache
def _table(family: str, settings: Settings) -> tuple[list[Argument], list[str]]:
    """Rows and releases of ``arguments.json``, or of an engine that has only settings."""
    if not settings:
        found = json.loads((DATA / "engines" / family / "arguments.json").read_text(encoding="utf-8"))
        return [Argument(*row) for row in found["rows"]], found["releases"]
    plain = ((name, (), "switch" if kind is bool else "value", "", "", (), "", "") for name, kind in settings)
    return [Argument(*row) for row in plain], ["0"]


@cache
def _spelled(family: str, settings: Settings, release: tuple[int, ...]) -> dict[str, Argument]:
    """Flags of one of the releases that were looked at, by their forms."""
    rows, _ = _table(family, settings)
    own = (row for row in rows if _number(row.since) <= release and (not row.until or release < _number(row.until)))
    return {form: row for row in own for form in row.spellings}


def _begun(spelled: Collection[str], name: str) -> list[str]:
    """Forms that a word stands for: itself, or all that begin with it."""
    if name in spelled or not name.startswith("--"):
        return [name] if name in spelled else []
    return [each for each in spelled if each.startswith(name)]


class Arguments:
    def __init__(self, engine: str, title: str, settings: Settings, *, flexible: bool) -> None:
        self._family, _, version = engine.partition("@")
        self._own = () if (DATA / "engines" / self._family / "arguments.json").is_file() else settings
        self.releases: Sequence[str]  # That were looked at, the newest last
        self._rows, self.releases = _table(self._family, self._own)
        self._releases = [*map(_number, self.releases)]
        self._names = dict(zip(self._releases, self.releases, strict=True))
        asked = _number(version)
        same = [each for each in self._releases if each[: len(asked)] == asked]
        later = [each for each in self._releases if each >= asked]
        # Between two that were looked at it is the later one.
        self._here = [*same[-1:], *later[:1], *self._releases[-1:]][0]
        self.spelled = _spelled(self._family, self._own, self._here)
        self._release, self._flexible = f"{title} {version}", flexible

    def parted(self, written: str) -> tuple[str, str]:
        """A flag with dashes where the engine takes underscores for them, and the dotted key of its JSON value."""
        if not self._flexible:
            return written, ""
        name, _, path = written.partition(".")
        name = name.replace("_", "-") if name.startswith("--") else name
        key = _classes(self._family).get("keys", {}).get(name[2:], "") if name in self.spelled else ""
        return key.partition(".")[::2] if key else (name, path)

    def find(self, written: str, *, strict: bool) -> Found:
        """The flag of a form or of a unique beginning; if not ``strict``, also one that only another release takes."""
        name, _ = self.parted(written)
        if len(begun := _begun(self.spelled, name)) == 1:
            return Found(self.spelled[begun[0]], begun[0])
        if name[:2] in self.spelled:  # -O3
            return Found(self.spelled[name[:2]], name[:2], name[2:])
        other = self._elsewhere(name)
        if other is not None and not strict:
            return other
        if begun:
            raise InputError(
                f"{self._release} refuses {written}, which could be {', '.join(begun[:MOST])}; write it in full"
            )
        if other is not None:
            raise InputError(f"{other.refused}; leave it out")
        near = " or ".join(near_names(name, sorted(self.spelled), most=3))
        raise InputError(
            f"{self._release} has no flag {written}; {f'did you mean {near}?' if near else 'leave it out'}"
        )

    def renamed(self, word: str) -> str:
        return word if word in self.spelled else str(_classes(self._family).get("renamed", {}).get(word, word))

    def knows(self, written: str) -> bool:
        name, _ = self.parted(written)
        return bool(_begun(self.spelled, name)) or self._elsewhere(name) is not None

    def _elsewhere(self, name: str) -> Found | None:
        """A flag of the last other release that takes it, and what became of it."""
        for release in reversed(self._releases):
            spelled = _spelled(self._family, self._own, release)
            if len(begun := _begun(spelled, name)) == 1:
                found, last = spelled[begun[0]], self._names[release]
                since = min((row.since for row in self._rows if begun[0] in row.spellings), key=_number)
                gone = f"it came with {since}" if _number(since) > self._here else f"{last} was the last with it"
                gone = gone if begun[0] == name else f"{last} takes it for {begun[0]}"
                gone = "" if begun[0] in self.spelled else f"{self._release} has no {name}; {gone}"
                return Found(found, begun[0], refused=gone)
        return None

    def meaning(self, found: Found, value: str, *, is_read: bool) -> FlagExplanation:
        argument, refused = found.argument, found.refused
        meaning = meaning_of(self._family, argument.names, is_read=is_read)
        others, choices = (row for row in self._rows if row.name == argument.name), argument.choices
        if not refused and choices and value not in choices and any(value in row.choices for row in others):
            refused = f"{self._release} has no --{argument.name} {value}; it takes {', '.join(choices)}"
        if refused:
            return FlagExplanation(REFUSED, f"{refused}; {meaning.note}" if meaning.status == NOT_MODELLED else refused)
        given, usual = (str(not found.is_negated), "False") if argument.takes == "bool" else (value, "")
        if meaning.status == NOT_MODELLED and given and given in (argument.default or usual, *meaning.as_forecast):
            return FlagExplanation(IGNORED, "what is forecast anyway")
        return meaning


arguments_of = cache(Arguments)  # Those of an engine such as ``vllm@0.25``, made once
