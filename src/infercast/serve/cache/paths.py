"""Which blocks of two prompts have the same content, told without tokens.

An engine hashes tokens block by block, each hash chained to the one before, so two requests share a block exactly if
all their content up to its end is the same. Here prompts are named segments, so they form a tree: they run along the
same *edges* until they part. A block is known by its edge and its position in the prompt, and a prompt by its *path*:
the few edges that it runs along, however long it is.
"""

from __future__ import annotations

from infercast.serve.workload.request import Request, Segment

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
