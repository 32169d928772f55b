"""Flags that an engine's server takes, release by release, and what a forecast makes of each."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from infercast.bundled import DATA, read_data
from infercast.engines.settings import IGNORED, NOT_MODELLED, VERSION, numbers
from infercast.errors import InputError, near_names

UNSAID = "what it changes is not known here"
DOTTED = re.compile(r"--?[^.=]+\.[^=]+")
"""One key of a JSON value: ``--speculative-config.method``."""


class Argument(NamedTuple):
    """A flag as a span of releases defines it."""

    name: str
    """Its first long form, without dashes."""
    others: Sequence[str]
    """Further forms, with dashes."""
    takes: str
    """``switch``, ``bool`` (with a ``--no-`` form), ``value``, ``list``, ``maybe`` (a value or none) or ``json``."""
    type: str
    default: str
    """Empty where there is none, or it depends on the model."""
    choices: Sequence[str]
    since: str
    """The first of the releases that were looked at ..."""
    until: str
    """... and the first after the span; empty where it has not ended."""

    @property
    def names(self) -> list[str]:
        """All its forms without dashes."""
        return [self.name, *(each.lstrip("-") for each in self.others)]

    @property
    def spellings(self) -> list[str]:
        forms = [f"--{self.name}", *self.others]
        negated = [f"--no-{each[2:]}" for each in forms if each.startswith("--")] if self.takes == "bool" else []
        return [*forms, *negated]


class Found(NamedTuple):
    """A word on a command line that names a flag."""

    argument: Argument
    form: str
    """The whole form that the word stands for."""
    attached: str | None = None
    """A value within the word."""
    refused: str = ""
    """Why the release refuses it."""

    @property
    def is_negated(self) -> bool:
        return self.argument.takes == "bool" and self.form not in (f"--{self.argument.name}", *self.argument.others)


class Meaning(NamedTuple):
    """What a forecast makes of a flag that it does not read."""

    status: str
    note: str
    as_forecast: Sequence[str] = ()
    """Values at which nothing differs from the forecast."""


@cache
def _table(family: str) -> tuple[tuple[str, ...], tuple[Argument, ...]]:
    """The releases that were looked at, and every flag of theirs; nothing for an engine without such a file."""
    path = DATA / "engines" / family / "arguments.json"
    if not path.is_file():
        return (), ()
    found = json.loads(path.read_text(encoding="utf-8"))
    return tuple(found["releases"]), tuple(Argument(*row) for row in found["rows"])


@cache
def meanings_of(family: str) -> dict[str, Meaning]:
    """By a flag's name."""
    classes = read_data(f"engines/{family}/classes.toml")
    found = {name: Meaning(IGNORED, each["why"]) for each in classes["irrelevant"] for name in each["flags"]}
    for each in classes["unmodelled"]:
        meaning = Meaning(NOT_MODELLED, f"{each['what']}; {each['effect']}", each.get("as_forecast", ()))
        found |= dict.fromkeys(each["flags"], meaning)
    return found


@cache
def _number(version: str) -> tuple[int, ...]:
    found = VERSION.fullmatch(version)
    return numbers(found[1]) if found else ()


def _of(rows: Sequence[Argument], release: tuple[int, ...]) -> list[Argument]:
    """Flags of one of the releases that were looked at."""
    return [row for row in rows if _number(row.since) <= release and (not row.until or release < _number(row.until))]


def _begun(spelled: Collection[str], name: str) -> list[str]:
    """Forms that a word stands for: itself, or all that begin with it."""
    if name in spelled:
        return [name]
    return [each for each in spelled if each.startswith(name)] if name.startswith("--") else []


class Arguments:
    """The flags of one release."""

    def __init__(self, family: str, title: str, version: str, *, flexible: bool) -> None:
        releases, rows = _table(family)
        asked, order = _number(version), [_number(each) for each in releases]
        same = [at for at, each in enumerate(order) if each[: len(asked)] == asked]
        later = [at for at, each in enumerate(order) if each >= asked]
        here = order[same[-1] if same else later[0] if later else -1] if order else ()
        self._family, self._releases, self._rows, self._flexible = family, releases, rows, flexible
        self.release = f"{title} {version}"
        self._here = _of(rows, here)
        self._spelled = {form: each for each in self._here for form in each.spellings}

    def __iter__(self) -> Iterator[Argument]:
        return iter(self._here)

    def __contains__(self, form: str) -> bool:
        return form in self._spelled

    def dashed(self, written: str) -> str:
        """A flag without its value, with dashes where the engine takes underscores for them."""
        if not (self._flexible and written.startswith("--")):
            return written
        name, dot, keys = written.partition(".")
        return f"{name.replace('_', '-')}{dot}{keys}"

    def is_dotted(self, written: str) -> bool:
        return self._flexible and DOTTED.fullmatch(written) is not None

    def find(self, written: str, *, strict: bool) -> Found:
        """The flag of a form, or of a beginning that is no other's.

        One that the release refuses is refused here, too; if not ``strict``, only where no other release takes it.
        """
        name = self.dashed(written)
        if len(begun := _begun(self._spelled, name)) == 1:
            return Found(self._spelled[begun[0]], begun[0])
        if name[:2] in self._spelled:  # -O3
            return Found(self._spelled[name[:2]], name[:2], name[2:])
        other = self._elsewhere(name)
        if other is not None and not strict:
            return other
        if begun:
            raise InputError(f"{self.release} refuses {written}, which could be {_listed(begun)}; write it in full")
        if other is not None:
            raise InputError(f"{other.refused}; leave it out")
        near = near_names(name, sorted(self._spelled), most=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "leave it out"
        raise InputError(f"{self.release} has no flag {written}; {hint}")

    def knows(self, written: str) -> bool:
        """Whether this release or another takes it."""
        name = self.dashed(written)
        return bool(_begun(self._spelled, name)) or self._elsewhere(name) is not None

    def _elsewhere(self, name: str) -> Found | None:
        """A flag of the last other release that takes it, and what became of it."""
        for release in reversed(self._releases):
            spelled = {form: each for each in _of(self._rows, _number(release)) for form in each.spellings}
            if len(begun := _begun(spelled, name)) == 1:
                has = "has it" if begun[0] == name else f"takes it for {begun[0]}"
                return Found(spelled[begun[0]], begun[0], refused=f"{self.release} has no {name}; {release} {has}")
        return None

    def old_value(self, found: Argument, value: str) -> str:
        """Why the release refuses a value that others take; empty if it does not."""
        taken = value in found.choices or not any(value in row.choices for row in self._rows if row.name == found.name)
        listed = _listed(found.choices)
        return "" if taken or not listed else f"{self.release} has no --{found.name} {value}; it takes {listed}"

    def meaning(self, found: Found, value: str) -> Meaning:
        """What a forecast makes of a flag that it does not read."""
        known, argument = meanings_of(self._family), found.argument
        meaning = next((known[each] for each in argument.names if each in known), Meaning(NOT_MODELLED, UNSAID))
        if argument.takes == "bool":
            value, usual = str(not found.is_negated), argument.default or "False"
        else:
            usual = argument.default
        if meaning.status == NOT_MODELLED and value and value in (usual, *meaning.as_forecast):
            return Meaning(IGNORED, "what is forecast anyway")
        return meaning


def _listed(names: Sequence[str]) -> str:
    most = 5
    shown = ", ".join(sorted(names)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


@cache
def arguments_of(name: str, title: str, *, flexible: bool) -> Arguments:
    """Those of an engine such as ``vllm@0.25``."""
    family, _, version = name.partition("@")
    return Arguments(family, title, version, flexible=flexible)
