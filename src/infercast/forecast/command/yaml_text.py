"""YAML as deployment files use it, read as plain text: mappings, lists and strings, and nothing is ever executed.

Read are block and flow collections, quoted, plain and block scalars (``|``, ``>``), comments, several documents, and
anchors with their aliases and merges. Every scalar is a string, as a command line needs it: ``8`` stays ``"8"``. Tags
and keys that are no scalars are refused by line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from infercast.errors import FileFormatError
from infercast.forecast.command.yaml_flow import Flow, Tree, unquoted

KEY = re.compile(
    r"""((?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#'"\[\]{},&*!|>%@`-][^#]*?|-[^\s#:]+[^#]*?))\s*:(?=\s|$)"""
)
"""A key with its colon, at the start of a line."""
BLOCK = re.compile(r"([|>])([+-]?)\d?([+-]?)\s*(?:#.*)?$")
ANCHOR = re.compile(r"&([^\s,\[\]{}]+)\s*")
DEEPEST = 60
"""Files of people are not deeper; a file that is was made to break a reader."""


class Line(NamedTuple):
    """One line that holds something."""

    number: int
    indent: int
    text: str


def read_documents(text: str, source: str = "YAML") -> list[Tree]:
    """Every document of a file."""
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
        """The whole of it; None where it is empty."""
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
        """The next line that is no comment."""
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
        """The lines of a block scalar, with their breaks or without."""
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
