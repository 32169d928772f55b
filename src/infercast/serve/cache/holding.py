"""What one sequence holds of the KV cache, and the spans of blocks that others can find.

Blocks come and go in spans: those that one sequence filled, lie on one edge of the tree of prompts and are held by the
same sequences. A span is cut where that stops to be true of all its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from infercast.serve.cache.paths import Path


class Span:
    """Full blocks that can be found by their content: positions ``start`` to ``end`` of one edge, in one group."""

    __slots__ = ("bundle", "end", "holders", "line", "start")

    def __init__(self, line: Line, start: int, end: int) -> None:
        self.line, self.start, self.end = line, start, end
        self.holders: set[Holding] = set()
        self.bundle: Bundle | None = None
        """Where it waits to be found or overwritten, if nobody holds it."""

    def cut(self, position: int) -> Span:
        """Two spans of one; returns the second."""
        second = Span(self.line, position, self.end)
        second.holders, second.bundle = {*self.holders}, self.bundle
        self.end = position
        places = [self.line.spans, *(each.spans[self.line.group] for each in self.holders if each.spans is not None)]
        for spans in places if self.bundle is None else [*places, self.bundle.spans]:
            spans.insert(spans.index(self) + 1, second)
        return second


class Line:
    """All spans of one edge in one group, the oldest first: of several copies of a block, the oldest is found."""

    __slots__ = ("edge", "group", "spans")

    def __init__(self, edge: int, group: int) -> None:
        self.edge, self.group = edge, group
        self.spans: list[Span] = []

    def at(self, position: int) -> Span | None:
        """The oldest copy of a block."""
        for span in self.spans:
            if span.start <= position < span.end:
                return span
        return None

    def reach(self, position: int) -> int:
        """How far blocks can be found from here on."""
        before = -1
        while before < position:
            before = position
            for span in self.spans:
                if span.start <= position < span.end:
                    position = span.end
        return position


class Bundle:
    """Spans that were given back together; the last block is overwritten first."""

    __slots__ = ("spans",)

    def __init__(self, spans: list[Span]) -> None:
        self.spans = spans
        for span in spans:
            span.bundle = self


class Holding:
    """What one sequence holds of the cache."""

    __slots__ = (
        "earlier", "exported", "first", "index", "junction", "left_behind", "length", "named", "num_input",
        "num_output", "num_states", "path", "shared", "spans", "tails", "whole",
    )  # fmt: skip

    def __init__(self, index: int, path: Path, num_input: int, num_groups: int) -> None:
        self.index = index
        self.path = path
        """Of the leading blocks that other requests may have in common with it ..."""
        self.shared = path[-1][2] if path else 0
        """... and how many these are."""
        self.num_input, self.num_output = num_input, 0
        self.length = 0
        """Blocks of each group up to here are held ..."""
        self.first = [0] * num_groups
        """... but for those that have fallen out of a group's window."""
        self.num_states = 0
        """The same of groups of aligned states, which need no blocks for tokens to come ..."""
        self.earlier: list[int] = []
        """... and blocks before these that they hold: those that the last step began with, or left before its end."""
        self.exported = -1
        """One of them that stands where the next block would, and is held as long."""
        self.named = 0
        """Leading blocks that are full and known."""
        self.spans: list[list[Span]] | None = None
        """Of each group, what it holds that others can find, in order; None: nothing."""
        self.left_behind = False
        """Whether some of its own blocks may still be findable from before it was preempted."""
        self.whole = 0
        """Of the blocks that a prefix was found to have, those that full attention has."""
        self.junction = 0
        """Blocks up to where some layers found it, and others have forgotten it; 0: nothing beyond what all have."""
        self.tails: dict[int, SequenceOf[range]] = {}
        """For some groups, which blocks become findable when they are full; otherwise all do."""

    @property
    def own_edge(self) -> int:
        """Where blocks lie that are not shared."""
        return -1 - self.index

    def pieces(self, ratio: int = 1) -> Path:
        """Its path, and its own edge where it may find something there; in blocks that are so many times as long.

        A longer block lies where its last tokens do.
        """
        path = (*self.path, (self.own_edge, self.shared, 1 << 60)) if self.left_behind else self.path
        if ratio == 1:
            return path
        return tuple((edge, first // ratio, end // ratio) for edge, first, end in path if first // ratio < end // ratio)

    def kept(self, group: int, start: int, end: int) -> list[tuple[int, int]]:
        """Parts of these blocks that become findable when they are full."""
        if group not in self.tails:
            return [(start, end)] if start < end else []
        parts: list[tuple[int, int]] = []
        for tail in self.tails[group]:
            begin = max(start, tail.start, parts[-1][1] if parts else 0)
            if begin < min(end, tail.stop):
                parts.append((begin, min(end, tail.stop)))
        return parts
