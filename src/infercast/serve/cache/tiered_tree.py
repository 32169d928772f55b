"""A tree of what requests have computed whose nodes are on the GPU, in the host's memory, or both."""

from __future__ import annotations

from typing import cast

from infercast.serve.cache.content import Content
from infercast.serve.cache.radix import Met, Node, RadixTree


class TieredNode(Node):
    """A node, and where its pages are. Those on the GPU come before all others on every path, and so do copies."""

    __slots__ = ("hits", "is_queued_there", "on_gpu", "on_host")

    def __init__(self, parent: Node | None, content: Content, piece: int, start: int, end: int) -> None:
        super().__init__(parent, content, piece, start, end)
        self.on_gpu, self.on_host = True, False
        self.hits = 0
        """How often a request left something there or after it."""
        self.is_queued_there = False
        """Whether it stands in the host's queue of those to be forgotten."""

    @property
    def before(self) -> TieredNode:
        """The node whose pages come before."""
        return cast(TieredNode, self.parent)

    @property
    def has_children_on_gpu(self) -> bool:
        """Whether pages on the GPU follow."""
        return any(cast(TieredNode, child).on_gpu for child in self.children.values())


class TieredTree(RadixTree):
    """Nodes for pages of a fixed number of tokens."""

    kind = TieredNode

    def __init__(self, page: int) -> None:
        super().__init__(page)
        cast(TieredNode, self.root).on_host = True

    def add(self, met: Met, content: Content, end: int) -> TieredNode:
        """Pages that follow where a walk has ended."""
        return cast(TieredNode, super().add(met, content, end))

    def _cut(self, node: Node, position: int, time: int) -> Node:
        first = super()._cut(node, position, time)
        both, new = cast(TieredNode, node), cast(TieredNode, first)
        new.on_gpu, new.on_host, new.hits = both.on_gpu, both.on_host, both.hits
        return first
