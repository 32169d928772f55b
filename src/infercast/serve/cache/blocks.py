"""The shape of a KV cache in blocks, the blocks that a sequence holds, and which blocks have the same content."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from math import lcm
from typing import NamedTuple

from infercast.serve.workload.request import Request, Segment

STATE_WINDOW = 2
"""A state stands for all tokens before it: the next token looks at the block that ends, or is under way, before it."""


class Ends(NamedTuple):
    """Where states are left that can be found again: at the ends of blocks of ``size`` tokens."""

    size: int
    drops: bool = False
    """The last block of what attention finds is computed again, so the state before it is the one of use."""
    exports: bool = False
    """A step that ends a prompt leaves the last state of use, too, and need not end there."""

    def last(self, num_tokens: int) -> int:
        """Where the last state lies that the same tokens, sent again, can begin with; 0: nowhere."""
        size = self.size
        return max(0, num_tokens // size * size - size) if self.drops else (num_tokens - 1) // size * size

    def is_left(self, start: int, end: int, place: int) -> bool:
        """Whether a step from one token to another leaves the state at a place between them."""
        return self.exports and start % self.size == 0 and start + self.size <= place < end


class StateRules(NamedTuple):
    """How an engine goes about aligned states."""

    exports: bool = False
    """Kernels leave one before the end of a step: see `Ends`."""
    renews: bool = False
    """The last state of use of a prompt counts as new in every step that its sequence computes with it."""
    drop: bool = True
    """Where attention drops the last block of what it finds, groups of states are taken to do so ..."""
    past_attention: bool = False
    """... and a state is looked for a block further, from which a sequence then goes on."""


class Reach(NamedTuple):
    """Tokens that a step computes of a sequence, drafts among them."""

    start: int
    end: int
    prompt_end: int
    """Where its prompt ends, or what it had of its answer before it gave way."""


class KvShape(NamedTuple):
    """Blocks of ``block_size`` tokens; ``windows`` has one entry a group of layers, 0 for full attention."""

    block_size: int = 16
    """The least tokens in a block of any group."""
    windows: tuple[int, ...] = (0,)
    block_sizes: tuple[int, ...] = ()
    """Tokens in a block of each group, where groups differ: narrow layers put more tokens into equal blocks."""
    chunked: bool = False
    """Windows are chunks (Llama 4): a token looks back to the start of its own, and no further."""
    state_blocks: int = 0
    """Blocks that every sequence holds whatever its length: states of recurrent layers that cannot be found again."""
    states: tuple[int, ...] = ()
    """Groups whose blocks are states, each as it is where the block ends; their window is `STATE_WINDOW`."""
    aligned: bool = False
    """A step leaves one state, which can be found again if it ends with a block; or each of its blocks has one."""
    rules: StateRules = StateRules()
    retained: int = 0
    """Tokens before a window that are kept with it: several prediction heads look back as much further."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tokens in a block of each group."""
        return self.block_sizes or (self.block_size,) * len(self.windows)

    @property
    def num_tables(self) -> int:
        """Block tables of a sequence: one a group of layers, those with states among them."""
        return len(self.windows) + self.state_blocks

    @property
    def num_state_groups(self) -> int:
        """Groups of recurrent layers: at the least, blocks that a running sequence has of their states."""
        return self.state_blocks + len(self.states)

    @property
    def of_tokens(self) -> KvShape:
        """The groups that keep something of every token, without those of states."""
        kept = [number for number in range(len(self.windows)) if number not in self.states]
        return self._replace(
            windows=tuple(self.windows[number] for number in kept),
            block_sizes=tuple(self.block_sizes[number] for number in kept) if self.block_sizes else (),
            state_blocks=0,
            states=(),
            aligned=False,
        )

    @property
    def common_size(self) -> int:
        """Tokens that fill whole blocks in every group: what a cached prefix is a multiple of."""
        return lcm(self.block_size, *self.sizes)

    @property
    def even(self) -> KvShape:
        """The same cache; where all groups have blocks of one size, that is said once."""
        return self if len({*self.block_sizes}) != 1 else self._replace(block_size=self.sizes[0], block_sizes=())

    @property
    def of_one_size(self) -> KvShape:
        """About the same cache with blocks of one size: a group whose blocks hold half as many tokens counts as two.

        A window shorter than such a block (those of DeepSeek-V4) is as many blocks as a decoding sequence has of it.
        """
        if not self.block_sizes:
            return self
        size = self.common_size
        short = [number for number, window in enumerate(self.windows) if 0 < window < size > self.sizes[number]]
        kept = [number for number in range(len(self.windows)) if number not in short or number in self.states]
        groups = [number for number in kept for _ in range(size // self.sizes[number])]
        return self._replace(
            block_size=size,
            windows=tuple(self.windows[number] for number in groups),
            block_sizes=(),
            states=tuple(place for place, number in enumerate(groups) if number in self.states),
            state_blocks=self.state_blocks + sum(self._most(number, size, 1) for number in short if number not in kept),
        )

    def group(self, number: int) -> KvShape:
        """One group alone."""
        states = (0,) if number in self.states else ()
        return self._replace(
            block_size=self.sizes[number],
            windows=(self.windows[number],),
            block_sizes=(),
            states=states,
            state_blocks=0,
        )

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of the least size for that many tokens."""
        return -(-num_tokens // self.block_size)

    def first_in_window(self, group: int, computed: int) -> int:
        """The first block that the token after ``computed`` ones still looks at."""
        window = self.windows[group]
        if not window:
            return 0
        first = computed // window * window if self.chunked else max(0, computed - window + 1 - self._before(group))
        return first // (self.block_sizes[group] if self.block_sizes else self.block_size)

    def most_blocks(self, num_tokens: int, chunk: int) -> int:
        """Blocks that a sequence of ``num_tokens`` holds at its largest, computed at most ``chunk`` tokens a step."""
        return self.state_blocks + sum(self._most(number, num_tokens, chunk) for number in range(len(self.windows)))

    def _most(self, group: int, num_tokens: int, chunk: int) -> int:
        window, size = self.windows[group], self.sizes[group]
        whole = -(-num_tokens // size)
        if group in self.states:
            return min(whole, 2 + self.rules.exports) if self.aligned else whole
        if not window:
            return whole
        if self.chunked:
            return min(whole, -(-(window + chunk) // size))
        # A window seldom starts at a block's edge, so it can touch one block more than its length says.
        return min(whole, -(-(window - 1 + self.retained + chunk) // size) + 1)

    def _before(self, group: int) -> int:
        return 0 if group in self.states else self.retained


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
        self.holders: set[BlockAllocation] = set()
        self.bundle: Bundle | None = None
        """Where it waits to be found or overwritten while no sequence holds it."""

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


class BlockAllocation:
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

    def moved(self) -> BlockAllocation:
        """Another one that holds all its blocks, while it holds nothing."""
        other = BlockAllocation(self.index, self.path, self.num_input, len(self.first))
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
