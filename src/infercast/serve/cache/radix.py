"""A tree of what requests have computed, in which a beginning is found again.

A node stands for pages of tokens that follow those of its parent. It is cut where a request parts from it. Nodes on
the path of a request that runs are locked; of the others, those without children are forgotten as a whole, the one that
was met least recently first.
"""

from __future__ import annotations

from infercast.serve.cache.content import Content, Mark, mark_of, piece_at, same_until


class Node:
    """Pages ``start`` to ``end`` of a content, after those of the parent."""

    __slots__ = ("children", "content", "end", "is_queued", "locks", "parent", "piece", "start", "time")

    def __init__(self, parent: Node | None, content: Content, piece: int, start: int, end: int) -> None:
        self.parent = parent
        self.content, self.piece = content, piece
        """Tokens of some request, and the piece of them that the node's first one lies in."""
        self.start, self.end = start, end
        self.children: dict[Mark, Node] = {}
        self.locks = 0
        """Requests that run along here."""
        self.time = 0
        """When it was met last."""
        self.is_queued = False
        """Whether it stands in the queue of those to be forgotten."""


Met = tuple[Node, int]
"""Where a walk along a content has come to: the last node whose pages are all the content's, and the piece that the
first token after it lies in."""


class RadixTree:
    """Nodes for pages of a fixed number of tokens."""

    kind = Node

    def __init__(self, page: int) -> None:
        self.page = page
        self.root = self.kind(None, (), 0, 0, 0)
        self.root.locks = 1
        self.clock = 0

    def walk(self, content: Content, end: int, node: Node | None = None, piece: int = 0) -> Met:
        """Follow a content up to page ``end``, from a node on; nodes on the way are met now.

        A node that holds more than what is the same is cut in two.
        """
        page, last, node = self.page, len(content) - 1, node or self.root
        self.touch(node)
        position, time = node.end, self.clock
        while position < end:
            if piece < last:
                piece = piece_at(content, piece, position * page)
            mark = content[piece][:2] if page == 1 else mark_of(content, piece, position * page, page)
            child = node.children.get(mark)
            if child is None:
                break
            child.time = time
            limit = child.end if child.end < end else end
            position = same_until(child.content, child.piece, content, piece, limit * page) // page
            if position < child.end:
                node = self._cut(child, position, time + 1)
                break
            node = child
        return node, piece if piece == last else piece_at(content, piece, node.end * page)

    def touch(self, node: Node) -> None:
        """A node and all before it are met now."""
        self.clock = time = self.clock + 2
        above: Node | None = node
        while above is not None:
            above.time = time
            above = above.parent

    def add(self, met: Met, content: Content, end: int) -> Node:
        """Pages that follow where a walk has ended."""
        before, piece = met
        node = self.kind(before, content, piece, before.end, end)
        node.time = self.clock + 1
        before.children[self._mark(node)] = node
        return node

    def piece_after(self, node: Node) -> int:
        """The piece of a node's content that the first token after it lies in."""
        piece = node.piece
        return piece if piece == len(node.content) - 1 else piece_at(node.content, piece, node.end * self.page)

    def remove(self, node: Node) -> None:
        """Forget a node that nothing follows."""
        assert node.parent is not None
        del node.parent.children[self._mark(node)]

    def _mark(self, node: Node) -> Mark:
        if self.page == 1:
            return node.content[node.piece][:2]
        return mark_of(node.content, node.piece, node.start * self.page, self.page)

    def _cut(self, node: Node, position: int, time: int) -> Node:
        """Two nodes of one; returns the first, which is new."""
        assert node.parent is not None
        first = self.kind(node.parent, node.content, node.piece, node.start, position)
        first.locks, first.time = node.locks, time
        node.parent.children[self._mark(node)] = first
        node.piece = piece_at(node.content, node.piece, position * self.page)
        node.start, node.parent = position, first
        first.children[self._mark(node)] = node
        return first
