"""YAML as deployment files use it, read as plain text: mappings, lists and strings; nothing is executed.

Read are block and flow collections, quoted, plain and block scalars (``|``, ``>``), comments, several documents, and
anchors with their aliases and merges. Every scalar is a string, as a command line needs it: ``8`` stays ``"8"``. Tags
and keys that are no scalars are refused by line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from infercast.errors import FileFormatError

Tree: TypeAlias = "dict[str, Tree] | list[Tree] | str | None"
"""What a document is made of."""
QUOTED = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')\s*""", re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\n": "", '"': '"', "\\": "\\", "/": "/", " ": " "}
EMPTY = {"", "~", "null"}
DEEPEST = 60


def unquoted(text: str) -> str:
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
        return self._opens in ("[", "{", '"', "'")

    @property
    def is_complete(self) -> bool:
        """Whether quotes and brackets are closed; a plain scalar goes on for as long as its lines do."""
        if self._opens in ('"', "'"):
            return QUOTED.match(self._text) is not None
        return self._opens in ("[", "{") and _open_brackets(self._text) <= 0

    def value(self) -> Tree:
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


KEY = re.compile(
    r"""((?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#'"\[\]{},&*!|>%@`-][^#]*?|-[^\s#:]+[^#]*?))\s*:(?=\s|$)"""
)
"""A key with its colon, at the start of a line."""
BLOCK = re.compile(r"([|>])([+-]?)\d?([+-]?)\s*(?:#.*)?$")
ANCHOR = re.compile(r"&([^\s,\[\]{}]+)\s*")


class Line(NamedTuple):
    """One line that holds something."""

    number: int
    indent: int
    text: str


def read_documents(text: str, source: str = "YAML") -> list[Tree]:
    documents: list[list[tuple[int, str]]] = [[]]
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("---"):
            documents.append([(number, "   " + line[3:])] if line[3:].strip() else [])
        elif line.rstrip() == "...":
            documents.append([])
        elif not line.startswith("%"):
            documents[-1].append((number, line))
    found = [Reader(lines, source).document() for lines in documents]
    return [tree for tree in found if tree is not None]


class Reader:
    """One document, read from its first line to its last."""

    def __init__(self, lines: list[tuple[int, str]], source: str) -> None:
        self._raw, self._at, self._source = lines, 0, source
        self._anchors: dict[str, Tree] = {}

    def document(self) -> Tree:
        line = self._peek()
        if line is None:
            return None
        tree = self._value_from(line.indent, 0)
        if (rest := self._peek()) is not None:
            raise self._problem("is indented less than what it belongs to, or is no YAML", rest.number)
        return tree

    def _problem(self, sentence: str, number: int | None = None) -> FileFormatError:
        return FileFormatError(self._source, f"{sentence}", number)

    def _peek(self) -> Line | None:
        while self._at < len(self._raw):
            number, raw = self._raw[self._at]
            text = raw.strip()
            if text and not text.startswith("#"):
                indent = len(raw) - len(raw.lstrip(" "))
                if raw[indent] == "\t":
                    raise self._problem("is indented with a tab, which YAML does not allow", number)
                return Line(number, indent, raw[indent:].rstrip())
            self._at += 1
        return None

    def _value_from(self, indent: int, depth: int) -> Tree:
        """A collection or a scalar whose lines begin at so many spaces."""
        line = self._peek()
        assert line is not None
        if depth > DEEPEST:
            raise self._problem(f"is nested deeper than {DEEPEST} levels", line.number)
        if line.text == "-" or line.text.startswith("- "):
            return self._list(indent, depth)
        if KEY.match(line.text):
            return self._mapping(indent, depth)
        self._at += 1
        return self._inline(line.text, line, indent - 1, depth)

    def _list(self, indent: int, depth: int) -> Tree:
        items: list[Tree] = []
        while (line := self._peek()) is not None and line.indent == indent and re.match(r"-(\s|$)", line.text):
            rest = line.text[1:].lstrip()
            if not rest or rest.startswith("#"):
                self._at += 1
                items.append(self._below(indent, depth))
                continue
            inner = indent + len(line.text) - len(rest)
            if KEY.match(rest) or re.match(r"-(\s|$)", rest):
                # What stands behind the dash is read as a line of its own.
                self._raw[self._at] = (line.number, " " * inner + rest)
                items.append(self._value_from(inner, depth + 1))
            else:
                self._at += 1
                items.append(self._inline(rest, line, indent, depth))
        return items

    def _mapping(self, indent: int, depth: int) -> Tree:
        values: dict[str, Tree] = {}
        merged: dict[str, Tree] = {}
        while (line := self._peek()) is not None and line.indent == indent and (key := KEY.match(line.text)):
            self._at += 1
            name, rest = unquoted(key[1]), line.text[key.end() :].strip()
            value = self._inline(rest, line, indent, depth) if rest and rest[0] != "#" else self._of_key(indent, depth)
            if name == "<<":
                for each in value if isinstance(value, list) else [value]:
                    merged = {**(each if isinstance(each, dict) else {}), **merged}
            elif name in values:
                raise self._problem(f"gives {name!r} a second time", line.number)
            else:
                values[name] = value
        return {**merged, **values}

    def _of_key(self, indent: int, depth: int) -> Tree:
        """What stands below a key; a list may begin where the key does."""
        line = self._peek()
        if line is not None and line.indent == indent and re.match(r"-(\s|$)", line.text):
            return self._list(indent, depth + 1)
        return self._below(indent, depth)

    def _below(self, indent: int, depth: int) -> Tree:
        line = self._peek()
        return None if line is None or line.indent <= indent else self._value_from(line.indent, depth + 1)

    def _inline(self, text: str, line: Line, indent: int, depth: int) -> Tree:
        """A value that begins behind a key or a dash, and may go on in lines that are indented more."""
        if anchor := ANCHOR.match(text):
            rest = text[anchor.end() :]
            value = self._inline(rest, line, indent, depth) if rest else self._of_key(indent, depth)
            self._anchors[anchor[1]] = value
            return value
        if text.startswith("*"):
            name = text[1:].split(" ", maxsplit=1)[0]
            if name not in self._anchors:
                raise self._problem(f"refers to {text!r}, which is not above it", line.number)
            return self._anchors[name]
        if text.startswith("!"):
            raise self._problem(f"has the tag {text.split(maxsplit=1)[0]!r}; only plain values are read", line.number)
        if block := BLOCK.match(text):
            return self._block(indent, folded=block[1] == ">", chomp=block[2] or block[3])
        flow = Flow(text, self._anchors, lambda sentence: self._problem(sentence, line.number))
        # A bracket may be closed where its key begins.
        while (
            not flow.is_complete
            and (more := self._peek()) is not None
            and (flow.is_closed_later or more.indent > indent)
        ):
            self._at += 1
            flow.add(more.text)
        return flow.value()

    def _block(self, indent: int, *, folded: bool, chomp: str) -> str:
        lines: list[str] = []
        inner = 0
        while self._at < len(self._raw):
            raw = self._raw[self._at][1]
            own = len(raw) - len(raw.lstrip(" "))
            if raw.strip() and own <= indent:
                break
            inner = inner or (own if raw.strip() else 0)
            lines.append(raw[inner:] if raw.strip() else "")
            self._at += 1
        while lines and not lines[-1]:
            lines.pop()
        text = "\n".join(lines)
        if folded:  # one break is a space, more are one less
            text = re.sub(r"(?<=\S)\n(\n*)(?=\S)", lambda breaks: breaks[1] or " ", text)
        return text if chomp == "-" or not text else text + "\n"
