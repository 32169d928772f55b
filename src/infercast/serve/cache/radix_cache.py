"""A KV cache organised as a radix tree of token content, with or without a second tier in host memory."""

from __future__ import annotations

import heapq
from typing import cast

from infercast.serve.cache.shape import KvShape
from infercast.serve.workload.request import Request

# What the tokens of a request are, told without tokens: named pieces, one after the other.
#
# Two tokens are the same if they lie in a piece of the same name that begins at the same place. So a prompt of 100,000
# tokens is a few pieces, and where two requests part is found piece by piece.


Piece = tuple[object, int, int]
"""A name, and the tokens from one position to another."""
Content = tuple[Piece, ...]
"""All tokens of a request, prompt and answer."""
Mark = tuple[object, ...]
"""What tells one page from others that follow the same beginning."""


def content_of(request: Request, own: object) -> Content:
    """The shared beginning of a request under its names; whatever nobody else can have is called ``own``.

    An answer has its name where others may go on with it: after a prompt that is shared as a whole.
    """
    end = request.num_input + request.num_output
    if not request.prefix:
        return ((own, 0, end),)
    pieces: list[Piece] = []
    start = 0
    for segment in request.prefix:
        pieces.append((segment.content, start, start + segment.num_tokens))
        start += segment.num_tokens
    is_shared = start == request.num_input and request.answer is not None
    pieces.append((request.answer if is_shared else own, start, end))
    return tuple(pieces)


def same_until(one: Content, here: int, other: Content, there: int, limit: int) -> int:
    """The first position before ``limit`` at which two contents differ.

    They agree up to the pieces with these numbers, in each of which the position to begin with lies.
    """
    if one is other:
        return limit
    position = max(one[here][1], other[there][1])
    while True:
        name, start, end = one[here]
        other_name, other_start, other_end = other[there]
        if start != other_start or name != other_name:
            return position
        if end != other_end:
            position = end if end < other_end else other_end
            return position if position < limit else limit
        if end >= limit:
            return limit
        position = end
        here += 1
        there += 1


def piece_at(content: Content, number: int, position: int) -> int:
    """The number of the piece that a position lies in, looked for from another one on."""
    last = len(content) - 1
    while number < last and content[number][2] <= position:
        number += 1
    return number


def mark_of(content: Content, number: int, position: int, page: int) -> Mark:
    """What tells the page at a position from others there; the position lies in the piece of this number."""
    name, start, end = content[number]
    if end - position >= page:
        return (name, start)
    mark: list[object] = [name, start, end]
    stop = position + page
    while end < stop:
        number += 1
        name, start, end = content[number]
        mark += (name, start, end if end < stop else 0)
    return tuple(mark)


# A tree of what requests have computed, in which a beginning is found again.
#
# A node stands for pages of tokens that follow those of its parent. It is cut where a request parts from it. Nodes on
# the path of a request that runs are locked; of the others, those without children are forgotten as a whole, the one
# that
# was met least recently first.


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


# What a sequence computes is its own until the tree takes it in: a prompt when its result is there, a piece of a
# prompt
# when the next one is planned, an answer when it is complete. Pages of the tree that no running sequence needs stay
# until
# others ask for room. They are forgotten node by node, so usually more of them than were asked for.


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


# A tree of what requests have computed whose nodes are on the GPU, in the host's memory, or both.


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
        return cast("TieredNode", self.parent)

    @property
    def has_children_on_gpu(self) -> bool:
        """Whether pages on the GPU follow."""
        return any(cast("TieredNode", child).on_gpu for child in self.children.values())


class TieredTree(RadixTree):
    """Nodes for pages of a fixed number of tokens."""

    kind = TieredNode

    def __init__(self, page: int) -> None:
        super().__init__(page)
        cast("TieredNode", self.root).on_host = True

    def add(self, met: Met, content: Content, end: int) -> TieredNode:
        """Pages that follow where a walk has ended."""
        return cast("TieredNode", super().add(met, content, end))

    def _cut(self, node: Node, position: int, time: int) -> Node:
        first = super()._cut(node, position, time)
        both, new = cast("TieredNode", node), cast("TieredNode", first)
        new.on_gpu, new.on_host, new.hits = both.on_gpu, both.on_host, both.hits
        return first


# A KV cache that is a tree, with a second tier in the host's memory.
#
# What the tree takes in is copied to the host once it was met often enough, parents before their children. Pages that
# are
# there are not forgotten when the GPU needs room: the node stays, and comes back when a request begins with it. The
# host
# forgets leaves that are not on the GPU, the one that was met least recently first. Rules as in SGLang 0.5.16
# (mem_cache/hiradix_cache.py, write_through); a copy to the host counts as done when it begins.


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
            while not cast("TieredNode", lease.node).on_gpu:
                lease.node = cast("TieredNode", lease.node).before
            found = lease.node.end * self.page
            lease.piece = piece_at(lease.content, 0, found)
        return found

    def num_to_load(self, lease: Lease) -> int:
        """Pages of what was found that are in the host's memory alone."""
        node = cast("TieredNode", lease.node)
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
            node = cast("TieredNode", lease.node)
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
        if lease.node is not before and not cast("TieredNode", lease.node).has_children_on_gpu:
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
        node = cast("TieredNode", met[0])
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
        each = cast("TieredNode", node)
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
            if node.locks == 0 and cast("TieredNode", node).on_gpu:
                self.num_evictable -= node.end - node.start
            node.locks += 1
            assert node.parent is not None
            node = node.parent

    def _unlock(self, node: Node) -> None:
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                if cast("TieredNode", node).on_gpu:
                    self.num_evictable += node.end - node.start
                    if not cast("TieredNode", node).has_children_on_gpu:
                        self._enqueue(node)
                else:
                    self._enqueue_there(cast("TieredNode", node))
            node = node.parent

    def _forget(self, num_tokens: int) -> None:
        """Make room on the GPU: nodes that no others there follow, those that were met least recently first."""
        queue, missing = self._queue, -(-num_tokens // self.page)
        while missing > 0 and queue:
            time, _, each = heapq.heappop(queue)
            node = cast("TieredNode", each)
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
