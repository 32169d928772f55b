"""Blocks that one sequence holds of the KV cache, and the identity of blocks with the same content."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from infercast.serve.workload.request import Request, Segment

# Which blocks of two prompts have the same content, told without tokens.
#
# An engine hashes tokens block by block, each hash chained to the one before, so two requests share a block exactly if
# all their content up to its end is the same. Here prompts are named segments, so they form a tree: they run along the
# same *edges* until they part. A block is known by its edge and its position in the prompt, and a prompt by its
# *path*:
# the few edges that it runs along, however long it is.


Path = tuple[tuple[int, int, int], ...]
"""(edge, first block, end) of each edge, in the order of the prompt."""


class _Node:
    """One segment after one history: its edge, and where another segment goes on along that edge."""

    __slots__ = ("children", "edge", "end", "longer", "taken_over_at")

    def __init__(self, edge: int) -> None:
        self.edge = edge
        self.children: dict[tuple[int, int], _Node] = {}
        """What follows, by how long the segment is and by content."""
        self.end = 0
        """Blocks up to here are the segment's own, as far as it was ever seen."""
        self.taken_over_at = -1
        """Where what follows the segment took the edge over; the segment itself may be longer elsewhere ..."""
        self.longer: _Node | None = None
        """... and goes on there then."""


class _Walk:
    """How far a prompt was followed, for the next turn that goes on from there.

    What was walked along stays as it is: an edge is taken over only where all that is known of it ends.
    """

    __slots__ = ("edge", "end", "first", "length", "node", "path", "segments", "start")

    def __init__(self, node: _Node) -> None:
        self.node = node
        self.segments: tuple[Segment, ...] = ()
        self.path: list[tuple[int, int, int]] = []
        self.length = self.end = self.start = self.edge = self.first = 0


class PrefixPaths:
    """The tree of all prompts that were seen."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._root = _Node(0)
        self._root.taken_over_at = 0
        self._num_edges = 0
        self._walks: dict[int, _Walk] = {}
        """Along the last turns of sessions, by the names of their answers."""

    def path(self, request: Request) -> Path:
        """The blocks that lie wholly in the request's shared beginning, in its answer too if that has a name."""
        segments, answer = request.prefix, request.answer
        if answer is not None and sum([segment.num_tokens for segment in segments]) == request.num_input:
            segments = (*segments, Segment(answer, request.num_output))
        walk = self._before(segments) or _Walk(self._root)
        self._go_on(walk, segments)
        if request.session is not None and answer is not None:
            self._walks[answer] = walk
        last = ((walk.edge, walk.first, walk.start),) if walk.first < walk.start else ()
        return (*walk.path, *last)

    def _before(self, segments: tuple[Segment, ...]) -> _Walk | None:
        """The walk along the turn before this one of a session, whose answer stands before what is new."""
        for segment in segments[-3:-1]:
            walk = self._walks.get(segment.content)
            if walk is not None and segments[: len(walk.segments)] == walk.segments:
                return self._walks.pop(segment.content)
        return None

    def _go_on(self, walk: _Walk, segments: tuple[Segment, ...]) -> None:
        """Along the segments that the walk has not been along."""
        size, node, path = self._block_size, walk.node, walk.path
        length, end, start, edge, first = walk.length, walk.end, walk.start, walk.edge, walk.first
        for segment in segments[len(walk.segments) :]:
            # What follows a segment depends on how long it is, the blocks inside it do not.
            key = (length, segment.content)
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node(self._edge_after(node, start))
            node, length = child, segment.num_tokens
            end += length
            # A block belongs to the segment that holds its last token.
            last = end // size
            while True:
                if node.edge != edge:
                    if first < start:
                        path.append((edge, first, start))
                    edge, first = node.edge, start
                if node.taken_over_at < 0 or last <= node.taken_over_at:
                    break
                start = node.taken_over_at if node.taken_over_at > start else start
                if node.longer is None:
                    node.longer = _Node(self._new_edge())
                node = node.longer
            node.end = max(node.end, last)
            start = last
        walk.node, walk.segments = node, segments
        walk.length, walk.end, walk.start, walk.edge, walk.first = length, end, start, edge, first

    def _edge_after(self, before: _Node, start: int) -> int:
        """The first to follow a segment where it ends goes on along its edge."""
        if before.taken_over_at >= 0 or before.end != start:
            return self._new_edge()
        before.taken_over_at = start
        return before.edge

    def _new_edge(self) -> int:
        self._num_edges += 1
        return self._num_edges


# What one sequence holds of the KV cache, and the spans of blocks that others can find.
#
# Blocks come and go in spans: those that one sequence filled, lie on one edge of the tree of prompts and are held by
# the same sequences. A span is cut where that stops to be true of all its blocks.


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

    def hold_nothing(self) -> None:
        """All its blocks were given back."""
        self.first = [0] * len(self.first)
        self.named = self.length = self.num_states = 0
        self.earlier = []
        self.exported = -1
        self.spans = None

    def moved(self) -> Holding:
        """Another one that holds all its blocks, while it holds nothing."""
        other = Holding(self.index, self.path, self.num_input, len(self.first))
        for name in ("first", "named", "length", "num_states", "earlier", "exported", "spans", "tails"):
            setattr(other, name, getattr(self, name))
        self.hold_nothing()
        return other

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
