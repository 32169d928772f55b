"""A KV cache whose content is a tree: pages that sequences hold, pages that can be found again, and free ones.

What a sequence computes is its own until the tree takes it in: a prompt when its result is there, a piece of a prompt
when the next one is planned, an answer when it is complete. Pages of the tree that no running sequence needs stay until
others ask for room. They are forgotten node by node, so usually more of them than were asked for.
"""

from __future__ import annotations

import heapq

from infercast.serve.cache.content import Content
from infercast.serve.cache.radix import Node, RadixTree
from infercast.serve.cache.shape import KvShape


class Lease:
    """What one sequence holds: its own pages, after those of a node of the tree that it has locked."""

    __slots__ = ("alone_from", "content", "node", "num_pages", "piece")

    def __init__(self, content: Content, root: Node, alone_from: int) -> None:
        self.content = content
        self.node = root
        self.piece = 0
        """The piece of its content that the first token after the node lies in."""
        self.num_pages = 0
        """All that it uses, those of the tree among them."""
        self.alone_from = alone_from
        """The page from which on the tree can have nothing of it: its own content, unless it left some there itself."""


class RadixCache:
    """``num_blocks`` pages; without ``caching`` nothing is found again."""

    def __init__(self, num_blocks: int, shape: KvShape, *, caching: bool = True) -> None:
        self.num_blocks, self.shape, self.caching = num_blocks, shape, caching
        self.page = shape.block_size
        self.num_groups = 1
        self.num_blank = num_blocks
        """Pages in which nothing can be found."""
        self.num_evictable = 0
        """Pages of the tree that no running sequence needs."""
        self.tree = RadixTree(self.page)
        self._queue: list[tuple[int, int, Node]] = []
        self._num_queued = 0

    @property
    def num_free(self) -> int:
        """Pages that nobody holds, findable ones among them."""
        return self.num_blank + self.num_evictable

    @property
    def num_held(self) -> int:
        """Pages that somebody holds."""
        return self.num_blocks - self.num_blank - self.num_evictable

    def lease(self, content: Content, own: object = None) -> Lease:
        """What a sequence with this content holds at first: nothing. What it calls ``own`` nobody else has."""
        name, start, end = content[-1]
        return Lease(content, self.tree.root, (start if name is own else end) // self.page)

    def match(self, lease: Lease, num_tokens: int) -> int:
        """Tokens of a sequence's beginning, up to ``num_tokens``, that the tree has; they are not held yet."""
        if not (self.caching and lease.alone_from):
            return 0
        lease.node, lease.piece = self.tree.walk(lease.content, num_tokens // self.page)
        return lease.node.end * self.page

    def hold(self, lease: Lease) -> None:
        """A sequence starts with what was found for it."""
        self._lock(lease.node, self.tree.root)
        lease.num_pages = lease.node.end

    def make_room(self, num_tokens: int) -> None:
        """If there are fewer blank pages than for so many tokens, forget nodes for all of these tokens."""
        if self.num_blank * self.page < num_tokens:
            self._forget(num_tokens)

    def take(self, count: int) -> None:
        """Blank pages for sequences."""
        self.num_blank -= count

    def take_for_decoding(self, count: int, num_sequences: int) -> None:
        """Pages that some of the sequences of a step begin; an engine with pages makes room as if all of them did."""
        if self.num_blank < num_sequences:
            self.make_room(count * self.page)
            if self.page > 1:
                self.make_room(num_sequences * self.page)
        self.num_blank -= count

    def keep(self, lease: Lease, num_tokens: int) -> None:
        """Take what a running sequence has computed into the tree; where that is there already, it uses that."""
        if not self.caching:
            return
        before = lease.node
        self._insert(lease, num_tokens // self.page)
        self._lock(lease.node, before)

    def finish(self, lease: Lease, num_tokens: int) -> None:
        """A sequence with all its tokens, so many of which are computed, leaves them behind."""
        if not self.caching:
            self.drop(lease)
            return
        before = lease.node
        self._insert(lease, num_tokens // self.page)
        self.num_blank += lease.num_pages - lease.node.end
        if lease.node is not before and not lease.node.children:
            self._enqueue(lease.node)
        self._unlock(before)
        lease.node, lease.num_pages = self.tree.root, 0

    def drop(self, lease: Lease) -> None:
        """A sequence lets go of everything, and leaves nothing but what the tree has already."""
        self.num_blank += lease.num_pages - lease.node.end
        self._unlock(lease.node)
        lease.node, lease.num_pages, lease.piece = self.tree.root, 0, 0
        lease.alone_from = lease.content[-1][2]  # it may find itself

    def _insert(self, lease: Lease, last: int) -> None:
        """Let the tree have a sequence's pages up to the last; those that it has already become blank."""
        first, met = lease.node.end, (lease.node, lease.piece)
        if first < lease.alone_from:
            met = self.tree.walk(lease.content, last, *met)
        else:
            self.tree.touch(lease.node)
        found = met[0].end
        self.num_blank += found - first
        if found < last:
            self.num_evictable += last - found
            lease.node = self.tree.add(met, lease.content, last)
            lease.piece = self.tree.piece_after(lease.node)
        else:
            lease.node, lease.piece = met

    def _lock(self, node: Node, above: Node) -> None:
        """One sequence more runs along the nodes from one up to another above it, which is not counted."""
        while node is not above:
            if node.locks == 0:
                self.num_evictable -= node.end - node.start
            node.locks += 1
            assert node.parent is not None
            node = node.parent

    def _unlock(self, node: Node) -> None:
        """One sequence less runs along a node and all above it."""
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.num_evictable += node.end - node.start
                if not node.children:
                    self._enqueue(node)
            node = node.parent

    def _enqueue(self, node: Node) -> None:
        """A node may be forgotten when its turn comes."""
        if not node.is_queued:
            node.is_queued = True
            self._num_queued += 1
            heapq.heappush(self._queue, (node.time, self._num_queued, node))

    def _forget(self, num_tokens: int) -> None:
        """Forget nodes that nothing follows, those that were met least recently first."""
        queue, missing = self._queue, -(-num_tokens // self.page)
        while missing > 0 and queue:
            time, _, node = heapq.heappop(queue)
            node.is_queued = False
            if node.locks or node.children:
                continue
            if node.time != time:
                self._enqueue(node)
                continue
            count = node.end - node.start
            missing -= count
            self.num_blank += count
            self.num_evictable -= count
            self.tree.remove(node)
            parent = node.parent
            assert parent is not None
            if parent.locks == 0 and not parent.children:
                self._enqueue(parent)
