"""Values of YAML that stand in a line: quoted and plain scalars, ``[lists]`` and ``{mappings}``, over several lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from infercast.errors import FileFormatError

Tree: TypeAlias = "dict[str, Tree] | list[Tree] | str | None"
"""What a document is made of."""
QUOTED = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')\s*""", re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\n": "", '"': '"', "\\": "\\", "/": "/", " ": " "}
EMPTY = {"", "~", "null"}
DEEPEST = 60


def unquoted(text: str) -> str:
    """A scalar without its quotes."""
    text = text.strip()
    if text[:1] == text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if text[:1] == text[-1:] == '"' and len(text) > 1:
        return re.sub(r"\\(.|\n)", lambda found: ESCAPES.get(found[1], found[0]), text[1:-1])
    return text


class Flow:
    """The text of one value, to which lines are added until it is whole."""

    def __init__(self, text: str, anchors: Mapping[str, Tree], problem: Callable[[str], FileFormatError]) -> None:
        self._text, self._anchors, self._problem = text, anchors, problem
        self._opens = text[:1]
        if self._opens not in ("[", "{", '"', "'"):
            self._text = _without_comment(text)

    def add(self, line: str) -> None:
        """One more line, which joins the last with a space."""
        self._text += " " + (line if self._opens in ('"', "'") else _without_comment(line))

    @property
    def is_closed_later(self) -> bool:
        """Whether it began with a quote or a bracket."""
        return self._opens in ("[", "{", '"', "'")

    @property
    def is_complete(self) -> bool:
        """Whether quotes and brackets are closed; a plain scalar goes on for as long as its lines do."""
        if self._opens in ('"', "'"):
            return QUOTED.match(self._text) is not None
        return self._opens in ("[", "{") and _open_brackets(self._text) <= 0

    def value(self) -> Tree:
        """What was written."""
        if self._opens in ('"', "'"):
            whole = QUOTED.match(self._text)
            if whole is None:
                raise self._problem("has a quote that is never closed")
            if (rest := self._text[whole.end() :]) and not rest.startswith("#"):
                raise self._problem(f"has {rest[:20]!r} behind a closed quote")
            return unquoted(whole[1])
        if self._opens in ("[", "{"):
            return self._collection(_without_comment(self._text), 0, 0)[0]
        return None if self._text.strip() in EMPTY else self._text.strip()

    def _collection(self, text: str, at: int, depth: int) -> tuple[Tree, int]:
        """A list or a mapping that opens here, and where the text goes on behind it."""
        if depth > DEEPEST:
            raise self._problem(f"is nested deeper than {DEEPEST} levels")
        closing = "]" if text[at] == "[" else "}"
        items: list[Tree] = []
        pairs: dict[str, Tree] = {}
        at = _skip(text, at + 1)
        while at < len(text) and text[at] != closing:
            value, at = self._item(text, at, depth)
            if closing == "}":
                if at >= len(text) or text[at] != ":":
                    raise self._problem(f"needs a colon behind {value!r}")
                after = _skip(text, at + 1)
                empty = after >= len(text) or text[after] in ",}"
                pairs[str(value)], at = (None, after) if empty else self._item(text, after, depth)
            else:
                items.append(value)
            if at < len(text) and text[at] == ",":
                at = _skip(text, at + 1)
            elif at < len(text) and text[at] != closing:
                raise self._problem(f"needs a comma before {text[at : at + 20]!r}")
        if at >= len(text):
            raise self._problem(f"opens a bracket that is never closed: {text[:40]!r}")
        return (items if closing == "]" else pairs), _skip(text, at + 1)

    def _item(self, text: str, at: int, depth: int) -> tuple[Tree, int]:
        if text[at] in "[{":
            return self._collection(text, at, depth + 1)
        if quoted := QUOTED.match(text, at):
            return unquoted(quoted[1]), quoted.end()
        plain = re.compile(r"(?:[^,\[\]{}:]|:(?!\s|,|$|\]|\}))*").match(text, at)
        assert plain is not None
        word = plain[0].strip()
        if word.startswith("*") and word[1:] in self._anchors:
            return self._anchors[word[1:]], plain.end()
        return (None if word in EMPTY else word), plain.end()


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \n":
        at += 1
    return at


def _without_comment(text: str) -> str:
    """The text up to a ``#`` that has a space before it and is in no quotes."""
    quote = ""
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and (at == 0 or text[at - 1] in " ,[{:"):
            quote = letter
        elif letter == "#" and (at == 0 or text[at - 1] == " "):
            return text[:at].rstrip()
    return text


def _open_brackets(text: str) -> int:
    """Brackets that are not closed yet, without those in quotes."""
    bare = re.sub(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'""", "", text)
    return sum(bare.count(each) for each in "[{") - sum(bare.count(each) for each in "]}")
