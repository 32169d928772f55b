"""A KV cache that is a tree, with a second tier in the host's memory.

What the tree takes in is copied to the host once it was met often enough, parents before their children. Pages that are
there are not forgotten when the GPU needs room: the node stays, and comes back when a request begins with it. The host
forgets leaves that are not on the GPU, the one that was met least recently first. Rules as in SGLang 0.5.16
(mem_cache/hiradix_cache.py, write_through); a copy to the host counts as done when it begins.
"""

from __future__ import annotations

import heapq
from typing import cast

from infercast.serve.cache.content import piece_at
from infercast.serve.cache.radix import Node
from infercast.serve.cache.radix_cache import Lease, RadixCache
from infercast.serve.cache.shape import KvShape
from infercast.serve.cache.tiered_tree import TieredNode, TieredTree

LEAST_LOADED = 10
"""Tokens: fewer are not worth a copy."""


class TieredCache(RadixCache):
    """``num_blocks`` pages on the GPU and ``host_blocks`` in the host's memory."""

    def __init__(self, num_blocks: int, shape: KvShape, host_blocks: int, copied_at: int) -> None:
        """``copied_at``: how often pages must have been met before they are copied."""
        super().__init__(num_blocks, shape)
        self.tree = TieredTree(self.page)
        self.host_blocks, self.host_free, self._copied_at = host_blocks, host_blocks, copied_at
        self._host_queue: list[tuple[int, int, TieredNode]] = []
        self._arriving: list[Node] = []
        self.loaded: list[int] = []
        """Pages of each copy to the GPU since somebody looked."""
        self.stored: list[int] = []
        """Pages of each copy to the host since somebody looked."""
        self.num_refused = 0
        """Times when there was no room for a copy."""
        self.host_peak = 0
        self.takes_parts = False
        """Whether what it is given are parts of prompts."""

    def match(self, lease: Lease, num_tokens: int) -> int:
        """Tokens that either tier has; too few of the host's are left there."""
        found = super().match(lease, num_tokens)
        if found and 0 < self.num_to_load(lease) * self.page < LEAST_LOADED:
            while not cast(TieredNode, lease.node).on_gpu:
                lease.node = cast(TieredNode, lease.node).before
            found = lease.node.end * self.page
            lease.piece = piece_at(lease.content, 0, found)
        return found

    def num_to_load(self, lease: Lease) -> int:
        """Pages of what was found that are in the host's memory alone."""
        node = cast(TieredNode, lease.node)
        while not node.on_gpu:
            node = node.before
        return lease.node.end - node.end

    def load(self, lease: Lease) -> int:
        """Bring what a sequence begins with back to the GPU, for which it is held already; returns the pages."""
        count = self.num_to_load(lease)
        if count:
            if self.num_blank < count:
                self._forget(count * self.page)
            self.take(count)
            node = cast(TieredNode, lease.node)
            while not node.on_gpu:
                node.on_gpu = True
                node = node.before
            self._lock(lease.node, self.tree.root)
            self._arriving.append(lease.node)
            self.loaded.append(count)
        return count

    def settle(self) -> None:
        """What was loaded has arrived: it stays for those alone who hold it."""
        for node in self._arriving:
            self._unlock(node)
        self._arriving.clear()

    def keep(self, lease: Lease, num_tokens: int) -> None:
        """Take what a running sequence has computed into the tree; a part of a prompt is not copied yet."""
        super().keep(lease, num_tokens)
        if not self.takes_parts:
            self._meet(lease.node)

    def finish(self, lease: Lease, num_tokens: int) -> None:
        """A sequence with all its tokens, so many of which are computed, leaves them behind."""
        before = lease.node
        self._insert(lease, num_tokens // self.page)
        self.num_blank += lease.num_pages - lease.node.end
        self._meet(lease.node)
        if lease.node is not before and not cast(TieredNode, lease.node).has_children_on_gpu:
            self._enqueue(lease.node)
        self._unlock(before)
        lease.node, lease.num_pages = self.tree.root, 0

    def _insert(self, lease: Lease, last: int) -> None:
        """Let the tree have a sequence's pages up to the last; those that it has on the GPU already become blank."""
        first, met = lease.node.end, (lease.node, lease.piece)
        if first < lease.alone_from:
            met = self.tree.walk(lease.content, last, *met)
        else:
            self.tree.touch(lease.node)
        node = cast(TieredNode, met[0])
        while node.end > first:
            count = node.end - node.start
            if node.on_gpu:
                self.num_blank += count
            else:  # nobody held it, and the sequence has computed it again
                node.on_gpu = True
                self.num_evictable += count
            node = node.before
        lease.node, lease.piece = met
        if lease.node.end < last:
            self.num_evictable += last - lease.node.end
            lease.node = self.tree.add(met, lease.content, last)
            lease.piece = self.tree.piece_after(lease.node)

    def _meet(self, node: Node) -> None:
        """A request has left something there: pages that were met often enough are copied, parents first."""
        path: list[TieredNode] = []
        each = cast(TieredNode, node)
        while each.parent is not None:
            path.append(each)
            each = each.before
        for each in reversed(path):
            each.hits += 1
            if not each.on_host and each.hits >= self._copied_at and each.before.on_host:
                self._copy(each)

    def _copy(self, node: TieredNode) -> None:
        count = node.end - node.start
        if self.host_free < count:
            self._forget_there(count)
        if self.host_free < count:
            self.num_refused += 1
            return
        self.host_free -= count
        self.host_peak = max(self.host_peak, self.host_blocks - self.host_free)
        node.on_host = True
        self.stored.append(count)

    def _lock(self, node: Node, above: Node) -> None:
        """One sequence more runs along the nodes; pages that are not on the GPU were not evictable."""
        while node is not above:
            if node.locks == 0 and cast(TieredNode, node).on_gpu:
                self.num_evictable -= node.end - node.start
            node.locks += 1
            assert node.parent is not None
            node = node.parent

    def _unlock(self, node: Node) -> None:
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                if cast(TieredNode, node).on_gpu:
                    self.num_evictable += node.end - node.start
                    if not cast(TieredNode, node).has_children_on_gpu:
                        self._enqueue(node)
                else:
                    self._enqueue_there(cast(TieredNode, node))
            node = node.parent

    def _forget(self, num_tokens: int) -> None:
        """Make room on the GPU: nodes that no others there follow, those that were met least recently first."""
        queue, missing = self._queue, -(-num_tokens // self.page)
        while missing > 0 and queue:
            time, _, each = heapq.heappop(queue)
            node = cast(TieredNode, each)
            node.is_queued = False
            if node.locks or not node.on_gpu or node.has_children_on_gpu:
                continue
            if node.time != time:
                self._enqueue(node)
                continue
            count = node.end - node.start
            missing -= count
            self.num_blank += count
            self.num_evictable -= count
            node.on_gpu = False
            if node.on_host:
                self._enqueue_there(node)
            else:
                self.tree.remove(node)
            parent = node.before
            if parent.locks == 0 and not parent.has_children_on_gpu:
                self._enqueue(parent)

    def _enqueue_there(self, node: TieredNode) -> None:
        """The host may forget a node when its turn comes."""
        if not (node.is_queued_there or node.children):
            node.is_queued_there = True
            self._num_queued += 1
            heapq.heappush(self._host_queue, (node.time, self._num_queued, node))

    def _forget_there(self, count: int) -> None:
        """Make room in the host's memory, where leaves that are not on the GPU may be forgotten."""
        queue = self._host_queue
        while count > 0 and queue:
            time, _, node = heapq.heappop(queue)
            node.is_queued_there = False
            if node.locks or node.children or node.on_gpu:
                continue
            if node.time != time:
                self._enqueue_there(node)
                continue
            self.host_free += node.end - node.start
            count -= node.end - node.start
            self.tree.remove(node)
            parent = node.before
            if parent.parent is not None and not parent.on_gpu and not parent.locks:
                self._enqueue_there(parent)
