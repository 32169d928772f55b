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

    __slots__ = ("edge", "end", "longer", "taken_over_at")

    def __init__(self, edge: int) -> None:
        self.edge = edge
        self.end = 0
        """Blocks up to here are the segment's own, as far as it was ever seen."""
        self.taken_over_at = -1
        """Where what follows the segment took the edge over; the segment itself may be longer elsewhere ..."""
        self.longer: _Node | None = None
        """... and goes on there then."""


class PrefixPaths:
    """The tree of all prompts that were seen."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._nodes: dict[tuple[_Node | None, int, int], _Node] = {}
        self._num_edges = 0

    def path(self, request: Request) -> Path:
        """The blocks that lie wholly in the request's shared beginning, in its answer too if that has a name."""
        segments = request.prefix
        if request.answer is not None and sum([segment.num_tokens for segment in segments]) == request.num_input:
            segments = (*segments, Segment(request.answer, request.num_output))
        nodes, size = self._nodes, self._block_size
        path: list[tuple[int, int, int]] = []
        before: _Node | None = None
        length = end = start = 0
        for segment in segments:
            # What follows a segment depends on how long it is, the blocks inside it do not.
            node = nodes.get((before, length, segment.content))
            if node is None:
                node = nodes[before, length, segment.content] = _Node(self._edge_after(before, start))
            length = segment.num_tokens
            end += length
            # A block belongs to the segment that holds its last token.
            last = end // size
            while node.taken_over_at >= 0 and last > node.taken_over_at:
                _append(path, node.edge, start, node.taken_over_at)
                start = max(start, node.taken_over_at)
                if node.longer is None:
                    node.longer = _Node(self._new_edge())
                node = node.longer
            _append(path, node.edge, start, last)
            node.end = max(node.end, last)
            before, start = node, last
        return tuple(path)

    def _edge_after(self, before: _Node | None, start: int) -> int:
        """The first to follow a segment where it ends goes on along its edge."""
        if before is None or before.taken_over_at >= 0 or before.end != start:
            return self._new_edge()
        before.taken_over_at = start
        return before.edge

    def _new_edge(self) -> int:
        self._num_edges += 1
        return self._num_edges


def _append(path: list[tuple[int, int, int]], edge: int, start: int, end: int) -> None:
    """Go along an edge up to ``end``; what goes on along the edge before makes that part longer."""
    if end <= start:
        return
    if path and path[-1][0] == edge:
        path[-1] = (edge, path[-1][1], end)
    else:
        path.append((edge, start, end))
