"""The shape of a KV cache in blocks, a sequence's block allocation, and block identity by content."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from math import lcm
from typing import Any, NamedTuple, TypeVar

import numpy as np

from infercast.serve.workload.request import Request, Segment

Tokens = TypeVar("Tokens", int, np.ndarray[Any, Any])

STATE_WINDOW = 2  # A state stands for all tokens before it: the next token reads only the block that ends before it
Path = tuple[tuple[int, int, int], ...]  # (edge, first block, end) of each edge, in prompt order


class Ends(NamedTuple):
    """Where reusable states are stored: at the ends of blocks of ``size`` tokens."""

    size: int
    drops: bool = False  # The last block of an attention prefix hit is recomputed, so the state before it is useful
    exports: bool = False  # A step that ends a prompt also stores the last useful state, and need not end there
    ahead: int = 1  # Tokens after a state that are computed again, or belong to its key

    def last(self, num_tokens: int) -> int:
        """Position of the last state that the same tokens, sent again, can start from; 0: none."""
        size = self.size
        return max(0, num_tokens // size * size - size if self.drops else (num_tokens - self.ahead) // size * size)

    def is_left(self, start: int, end: int, place: int) -> bool:
        """True if a step from ``start`` to ``end`` stores the state at ``place`` in between."""
        return self.exports and start % self.size == 0 and start + self.size <= place < end


class StateRules(NamedTuple):
    """How an engine handles aligned states."""

    exports: bool = False  # Kernels store one before the end of a step: see `Ends`
    renews: bool = False  # A prompt's last useful state counts as new in every step that computes with it
    past_attention: bool = False
    """If attention drops the last block of a hit, a state is looked up one block further, and is where it continues."""
    matches_all: bool = False  # Of several groups, the last block of a hit, which is dropped, may hold the last token


class Reach(NamedTuple):
    """Tokens of a sequence that a step computes, including drafts."""

    start: int
    end: int
    prompt_end: int  # End of its prompt, including output before a preemption


class KvShape(NamedTuple):
    """Blocks of ``block_size`` tokens; ``windows`` has one entry per layer group, 0 for full attention."""

    block_size: int = 16  # The smallest block size of any group, in tokens
    windows: tuple[int, ...] = (0,)
    block_sizes: tuple[int, ...] = ()  # Of each group, if they differ: narrow layers put more tokens into equal blocks
    chunked: bool = False  # Windows are chunks (Llama 4): a token attends back to the start of its own chunk
    state_blocks: int = 0  # Blocks every sequence holds whatever its length: recurrent states that cannot be reused
    states: tuple[int, ...] = ()  # Groups of recurrent states, each block being one; their window is `STATE_WINDOW`
    aligned: bool = False  # True: a step stores one state, reusable if it ends with a block. False: every block has one
    rules: StateRules = StateRules()
    retained: int = 0  # Tokens kept before a window: several prediction heads look back that much further
    drafting: int | None = None  # The group that drafts, which with those like it drops the last block of a hit; or all

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.block_sizes or (self.block_size,) * len(self.windows)

    @property
    def num_tables(self) -> int:
        """Block tables of a sequence: one per layer group, including states."""
        return len(self.windows) + self.state_blocks

    @property
    def num_state_groups(self) -> int:
        return self.state_blocks + len(self.states)

    @property
    def of_tokens(self) -> KvShape:
        kept = [number for number in range(len(self.windows)) if number not in self.states]
        return self._replace(
            windows=tuple(self.windows[number] for number in kept),
            block_sizes=tuple(self.block_sizes[number] for number in kept) if self.block_sizes else (), state_blocks=0,
            states=(), aligned=False,
        )  # fmt: skip

    @property
    def common_size(self) -> int:
        """Tokens that fill whole blocks in every group: cached prefixes are multiples of it."""
        return lcm(self.block_size, *self.sizes)

    @property
    def even(self) -> KvShape:
        """The same cache, with ``block_sizes`` dropped if all are equal."""
        return self if len({*self.block_sizes}) != 1 else self._replace(block_size=self.sizes[0], block_sizes=())

    @property
    def of_one_size(self) -> KvShape:
        """About the same cache with one block size; a shorter window becomes the blocks a decoding sequence holds."""
        if not self.block_sizes:
            return self
        size = self.common_size
        short = [number for number, window in enumerate(self.windows) if 0 < window < size > self.sizes[number]]
        kept = [number for number in range(len(self.windows)) if number not in short or number in self.states]
        groups = [number for number in kept for _ in range(size // self.sizes[number])]
        return self._replace(
            block_size=size, windows=tuple(self.windows[number] for number in groups), block_sizes=(), drafting=None,
            states=tuple(place for place, number in enumerate(groups) if number in self.states),
            state_blocks=self.state_blocks + sum(self._most(number, size, 1) for number in short if number not in kept),
        )  # fmt: skip

    def drops(self, group: int) -> bool:
        """True if the last block of a group's hits is dropped, where there are drafts."""
        drafting, kinds = self.drafting, [*zip(self.windows, self.sizes, strict=True)]
        return drafting is None or kinds[group] == kinds[drafting]

    def group(self, number: int) -> KvShape:
        return self._replace(
            block_size=self.sizes[number], windows=(self.windows[number],), block_sizes=(),
            states=(0,) if number in self.states else (), state_blocks=0,
        )  # fmt: skip

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of the smallest size for this many tokens."""
        return -(-num_tokens // self.block_size)

    def first_in_window(self, group: int, computed: int) -> int:
        """The first block still read by the token after ``computed`` ones."""
        window = self.windows[group]
        if not window:
            return 0
        before = 0 if group in self.states else self.retained
        first = computed // window * window if self.chunked else max(0, computed - window + 1 - before)
        return first // (self.block_sizes[group] if self.block_sizes else self.block_size)

    def most_blocks(self, num_tokens: Tokens, chunk: int) -> Tokens:
        """Peak blocks of a sequence of ``num_tokens`` (or of many) computed in steps of at most ``chunk`` tokens."""
        found: Tokens = sum([self._most(number, num_tokens, chunk) for number in range(len(self.windows))])
        return self.state_blocks + found

    def _most(self, group: int, num_tokens: Any, chunk: int) -> Any:
        window, size = self.windows[group], self.sizes[group]
        least = min if isinstance(num_tokens, int) else np.minimum
        whole = -(-num_tokens // size)
        if group in self.states:
            return least(whole, 2 + self.rules.exports) if self.aligned else whole
        if not window:
            return whole
        if self.chunked:
            return least(whole, -(-(window + chunk) // size))
        # A window rarely starts at a block boundary, so it can touch one block more than its length.
        return least(whole, -(-(window - 1 + self.retained + chunk) // size) + 1)


# Block identity without tokens. An engine hashes tokens block by block, each hash chained to the previous one, so two
# requests share a block exactly if all their content up to its end is the same. Here prompts are named segments, so
# they form a tree: they follow the same *edges* until they diverge. A block is identified by its edge and its position,
# and a prompt by its *path*: the few edges it follows, however long it is.


class _Node:
    """One segment after one prefix: its edge, and where another segment continues along that edge."""

    __slots__ = ("ahead", "children", "edge", "end", "longer", "taken_over_at")

    def __init__(self, edge: int) -> None:
        self.edge = edge
        self.children: dict[tuple[int, int], _Node] = {}  # Following segments, by this one's length and their content
        self.end = 0  # Blocks up to here belong to the segment, as far as it was ever seen
        self.taken_over_at = -1  # Where a following segment took the edge over; the segment may be longer elsewhere ...
        self.longer: _Node | None = None  # ... and then continues there.
        self.ahead: tuple[tuple[Segment, ...], int, int] | None = None
        """The only prompt along the edge so far, its next segment and tokens before: a second one makes a node."""


class PrefixPaths:
    def __init__(self, block_size: int, ahead: int = 0) -> None:
        """``ahead``: tokens after a block that belong to its key."""
        self._block_size, self._ahead = block_size, ahead
        self._root = _Node(0)
        self._root.taken_over_at = 0
        self._num_edges = 0

    def path(self, request: Request) -> Path:
        """The blocks entirely within the request's shared prefix, and in its answer if that is named."""
        segments, answer = request.prefix, request.answer
        if answer is not None and sum([segment.num_tokens for segment in segments]) == request.num_input:
            segments = (*segments, Segment(answer, request.num_output))
        is_kept = answer is not None and request.session is not None  # others follow it
        size, ahead, node, path = self._block_size, self._ahead, self._root, list[tuple[int, int, int]]()
        length = end = start = edge = first = 0
        for number, (content, tokens) in enumerate(segments, 1):
            # What follows a segment depends on its length, the blocks inside it do not.
            key = (length, content)
            child, is_new = node.children.get(key), False
            if child is None:
                child = None if node.ahead is None else self._unfolded(node, *node.ahead, key)
                is_new = child is None
                child = node.children[key] = child or self._new_node(node, start)
            node, length = child, tokens
            end += tokens
            # A block belongs to the segment with the last token of its key.
            last = max(0, end - ahead) // size
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
            node.end = last if last > node.end else node.end
            start = last
            if is_new and number < len(segments) and not is_kept:
                node.ahead, node.taken_over_at = (segments, number, end), start
                end += sum([tokens for _, tokens in segments[number:]])
                start = max(0, end - ahead) // size
                break
        return (*path, (edge, first, start)) if first < start else tuple(path)

    def _unfolded(
        self, node: _Node, segments: tuple[Segment, ...], number: int, end: int, key: tuple[int, int]
    ) -> _Node | None:
        """The node of the next segment ahead, which had none; None if that is another one."""
        content, tokens = segments[number]
        if key != (segments[number - 1].num_tokens, content):
            return None
        child, node.ahead = _Node(node.edge), None
        child.end = max(0, end + tokens - self._ahead) // self._block_size
        if number + 1 < len(segments):
            child.ahead, child.taken_over_at = (segments, number + 1, end + tokens), child.end
        return child

    def _new_node(self, before: _Node, start: int) -> _Node:
        """The first to follow a segment where it ends continues along its edge."""
        if before.taken_over_at >= 0 or before.end != start:
            return _Node(self._new_edge())
        before.taken_over_at = start
        return _Node(before.edge)

    def _new_edge(self) -> int:
        self._num_edges += 1
        return self._num_edges


# A sequence's blocks, and the spans of blocks in the prefix cache. Blocks are handled in spans: filled by one sequence,
# on one edge of the prompt tree, with the same holders. A span is split where that stops being true of all its blocks.


class BlockSpan:
    """Full blocks in the prefix cache: positions ``start`` to ``end`` of one edge, in one group."""

    __slots__ = ("bundle", "end", "holders", "line", "start")

    def __init__(self, line: GroupBlocks, start: int, end: int) -> None:
        self.line, self.start, self.end = line, start, end
        self.holders: set[BlockAllocation] = set()
        self.bundle: BlockRun | None = None  # Its place in the LRU queue while no sequence holds it

    def cut(self, position: int) -> BlockSpan:
        second = BlockSpan(self.line, position, self.end)
        second.holders, second.bundle = {*self.holders}, self.bundle
        self.end = position
        places = [self.line.spans, *(each.spans[self.line.group] for each in self.holders if each.spans is not None)]
        for spans in places if self.bundle is None else [*places, self.bundle.spans]:
            spans.insert(spans.index(self) + 1, second)
        return second


class GroupBlocks:
    """All spans of one edge in one group, oldest first: of several copies of a block, the oldest is found."""

    __slots__ = ("edge", "group", "spans")

    def __init__(self, edge: int, group: int) -> None:
        self.edge, self.group = edge, group
        self.spans: list[BlockSpan] = []

    def at(self, position: int) -> BlockSpan | None:
        """The span with the oldest copy of a block."""
        for span in self.spans:
            if span.start <= position < span.end:
                return span
        return None

    def reach(self, position: int) -> int:
        """How far blocks are contiguously cached from here."""
        before = -1
        while before < position:
            before = position
            for span in self.spans:
                if span.start <= position < span.end:
                    position = span.end
        return position


class BlockRun:
    """Spans that were freed together; the last block is evicted first."""

    __slots__ = ("spans",)

    def __init__(self, spans: list[BlockSpan]) -> None:
        self.spans = spans
        for span in spans:
            span.bundle = self


class BlockAllocation:
    __slots__ = (
        "beyond", "earlier", "exported", "first", "index", "junction", "left_behind", "length", "named", "num_input",
        "num_output", "num_states", "path", "shared", "spans", "tails", "whole",
    )  # fmt: skip

    def __init__(self, index: int, path: Path, num_input: int, num_groups: int) -> None:
        self.index = index
        self.path = path  # Of the leading blocks that other requests may share ...
        self.shared = path[-1][2] if path else 0  # ... and their number.
        self.num_input, self.num_output = num_input, 0
        self.length = 0  # Blocks of each group up to here are held ...
        self.first = [0] * num_groups  # ... except those that have left a group's window.
        self.num_states = 0  # ``length`` for aligned state groups, which need no blocks for future tokens ...
        self.earlier: list[int] = []  # ... and earlier blocks they hold: the step's initial state, or one stored in it
        self.exported = -1  # One of them, stored before the end of a step; it is held one block longer
        self.named = 0  # Leading blocks that are full with known tokens, up to a common end ...
        self.beyond: tuple[int, ...] = ()  # ... and the groups that have a block beyond that in the prefix cache
        self.spans: list[list[BlockSpan]] | None = (
            None  # Per group, its blocks in the prefix cache, in order; None: none
        )
        self.left_behind = False  # True if blocks of its own may still be cached from before it was preempted
        self.whole = 0  # Of a prefix hit's blocks, those full attention has
        self.junction = 0  # Blocks up to which some layers hit and others have evicted; 0: none beyond the common hit
        self.tails: dict[int, SequenceOf[range]] = {}  # Of some groups: which full blocks are cached; otherwise all

    def hold_nothing(self) -> None:
        self.first = [0] * len(self.first)
        self.named = self.length = self.num_states = 0
        self.earlier = []
        self.beyond = ()
        self.exported = -1
        self.spans = None

    def moved(self) -> BlockAllocation:
        other = BlockAllocation(self.index, self.path, self.num_input, len(self.first))
        kept = "beyond earlier exported first left_behind length named num_states spans tails"
        for name in kept.split():
            setattr(other, name, getattr(self, name))
        self.hold_nothing()
        return other

    @property
    def own_edge(self) -> int:
        return -1 - self.index

    def pieces(self, ratio: int = 1) -> Path:
        """Its path, and its own edge if blocks may be cached there, in units of ``ratio`` blocks."""
        path = (*self.path, (self.own_edge, self.shared, 1 << 60)) if self.left_behind else self.path
        if ratio == 1:
            return path
        return tuple((edge, first // ratio, end // ratio) for edge, first, end in path if first // ratio < end // ratio)

    def kept(self, group: int, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of these blocks that are cached when full."""
        if group not in self.tails:
            return [(start, end)] if start < end else []
        parts: list[tuple[int, int]] = []
        for tail in self.tails[group]:
            begin = max(start, tail.start, parts[-1][1] if parts else 0)
            if begin < min(end, tail.stop):
                parts.append((begin, min(end, tail.stop)))
        return parts
