"""A KV cache organised as a radix tree of token content, with or without a second tier in host memory."""

from __future__ import annotations

import heapq

from infercast.serve.cache.blocks import KvShape
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
"""What distinguishes a page from others after the same prefix."""


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
# that was met least recently first.


class Node:
    """Pages ``start`` to ``end`` of a content, after those of the parent."""

    __slots__ = (
        "children", "content", "end", "hits", "is_queued", "is_queued_there", "locks", "on_gpu", "on_host", "parent",
        "piece", "start", "time",
    )  # fmt: skip

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
        self.on_gpu, self.on_host = True, False
        """Nodes on the GPU come before all others on every path, and so do those with a copy in host memory."""
        self.hits = 0
        """With host pages, how often a request left something there or after it."""
        self.is_queued_there = False
        """Whether it stands in host memory's queue of those to be forgotten."""

    @property
    def has_children_on_gpu(self) -> bool:
        return bool(self.children) and any(child.on_gpu for child in self.children.values())


Met = tuple[Node, int]
"""Where a walk along a content has come to: the last node whose pages are all the content's, and the piece that the
first token after it lies in."""


class RadixTree:
    """Nodes for pages of a fixed number of tokens."""

    def __init__(self, page: int) -> None:
        self.page = page
        self.root = Node(None, (), 0, 0, 0)
        self.root.locks = 1
        self.root.on_host = True
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
        node = Node(before, content, piece, before.end, end)
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
        first = Node(node.parent, node.content, node.piece, node.start, position)
        first.locks, first.time = node.locks, time
        first.on_gpu, first.on_host, first.hits = node.on_gpu, node.on_host, node.hits
        node.parent.children[self._mark(node)] = first
        node.piece = piece_at(node.content, node.piece, position * self.page)
        node.start, node.parent = position, first
        first.children[self._mark(node)] = node
        return first


# Pages in host memory, a second tier of the cache.
#
# What the tree takes in is copied to the host once it was met often enough, parents before their children. Pages that
# are there are not forgotten when the GPU needs room: the node stays, and comes back when a request begins with it. The
# host forgets leaves that are not on the GPU, the one that was met least recently first. Rules as in SGLang 0.5.16
# (mem_cache/hiradix_cache.py, write_through); a copy to the host counts as done when it begins.


LEAST_LOADED = 10
"""Tokens: fewer are not worth a copy."""


class HostPages:
    """``num_blocks`` pages in host memory; pages are copied there once they were met ``copied_at`` times."""

    def __init__(self, num_blocks: int, copied_at: int = 1) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.peak = 0
        """The most pages that were used at the same time."""
        self.num_refused = 0
        """Times when there was no room for a copy."""
        self.loaded: list[int] = []
        """Pages of each copy to the GPU since the last step ..."""
        self.stored: list[int] = []
        """... and of each copy to the host."""
        self.found: dict[int, int] = {}
        """Of each request that found some of its tokens here when it first started, how many."""
        self.new_loads: list[int] = []
        """Requests of the step just planned some of whose pages are brought back."""
        self.num_queried = self.num_hit = 0
        """Tokens that the GPU did not have, of prompts that started, and those of them that were found here."""
        self._copied_at = copied_at
        self._queue: list[tuple[int, int, Node]] = []
        self._num_queued = 0

    def note_start(self, index: int, missing: int, found: int, *, is_first: bool) -> None:
        """A request starts with tokens that were found here, and others that are ``missing``."""
        self.num_queried += missing + found
        self.num_hit += found
        if found and is_first:
            self.found[index] = found
            self.new_loads.append(index)

    def meet(self, node: Node, tree: RadixTree) -> None:
        """A request has left something there: pages that were met often enough are copied, parents first."""
        path: list[Node] = []
        while node.parent is not None:
            path.append(node)
            node = node.parent
        before = node
        for each in reversed(path):
            each.hits += 1
            if not each.on_host and each.hits >= self._copied_at and before.on_host:
                self._copy(each, tree)
            before = each

    def _copy(self, node: Node, tree: RadixTree) -> None:
        count = node.end - node.start
        if self.num_free < count:
            self._forget(count, tree)
        if self.num_free < count:
            self.num_refused += 1
            return
        self.num_free -= count
        self.peak = max(self.peak, self.num_blocks - self.num_free)
        node.on_host = True
        self.stored.append(count)

    def enqueue(self, node: Node) -> None:
        """The host may forget a node when its turn comes."""
        if not (node.is_queued_there or node.children):
            node.is_queued_there = True
            self._num_queued += 1
            heapq.heappush(self._queue, (node.time, self._num_queued, node))

    def _forget(self, count: int, tree: RadixTree) -> None:
        """Make room: leaves that are not on the GPU may be forgotten."""
        queue = self._queue
        while count > 0 and queue:
            time, _, node = heapq.heappop(queue)
            node.is_queued_there = False
            if node.locks or node.children or node.on_gpu:
                continue
            if node.time != time:
                self.enqueue(node)
                continue
            self.num_free += node.end - node.start
            count -= node.end - node.start
            tree.remove(node)
            parent = node.parent
            assert parent is not None
            if parent.parent is not None and not parent.on_gpu and not parent.locks:
                self.enqueue(parent)


# What a sequence computes is its own until the tree takes it in: a prompt when its result is there, a piece of a
# prompt when the next one is planned, an answer when it is complete. Pages of the tree that no running sequence needs
# stay until others ask for room. They are forgotten node by node, so usually more of them than were asked for.


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
    """``num_blocks`` pages on the GPU; without ``caching`` nothing is found again."""

    def __init__(self, num_blocks: int, shape: KvShape, *, caching: bool = True, host: HostPages | None = None) -> None:
        self.num_blocks, self.shape, self.caching, self.host = num_blocks, shape, caching, host
        self.page = shape.block_size
        self.num_groups = 1
        self.num_blank = num_blocks
        """Pages in which nothing can be found."""
        self.num_evictable = 0
        """Pages of the tree that no running sequence needs."""
        self.tree = RadixTree(self.page)
        self._queue: list[tuple[int, int, Node]] = []
        self._num_queued = 0
        self._arriving: list[Node] = []
        """What is being brought back from host memory."""

    @property
    def num_free(self) -> int:
        """Pages that no sequence holds, including findable ones."""
        return self.num_blank + self.num_evictable

    @property
    def num_held(self) -> int:
        """Pages that sequences hold."""
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
        if self.host is not None and 0 < self.num_to_load(lease) * self.page < LEAST_LOADED:
            lease.node = self._on_gpu(lease.node)
            lease.piece = piece_at(lease.content, 0, lease.node.end * self.page)
        return lease.node.end * self.page

    def _on_gpu(self, node: Node) -> Node:
        """The last node up to this one whose pages are on the GPU."""
        while not node.on_gpu:
            assert node.parent is not None
            node = node.parent
        return node

    def num_to_load(self, lease: Lease) -> int:
        """Pages of what was found that are in host memory alone."""
        return lease.node.end - self._on_gpu(lease.node).end

    def load(self, lease: Lease) -> None:
        """Bring what a sequence begins with back to the GPU, for which it is held already."""
        assert self.host is not None
        count, node = self.num_to_load(lease), lease.node
        if self.num_blank < count:
            self._forget(count * self.page)
        self.take(count)
        while not node.on_gpu:
            node.on_gpu = True
            assert node.parent is not None
            node = node.parent
        self._lock(lease.node, self.tree.root)
        self._arriving.append(lease.node)
        self.host.loaded.append(count)

    def settle(self) -> None:
        """What was loaded has arrived: it stays for those alone that hold it."""
        assert self.host is not None
        self.host.new_loads = []
        for node in self._arriving:
            self._unlock(node)
        self._arriving.clear()

    def hold(self, lease: Lease) -> None:
        """A sequence starts with what was found for it."""
        self._lock(lease.node, self.tree.root)
        lease.num_pages = lease.node.end

    def make_room(self, num_tokens: int) -> None:
        """If there are too few blank pages for these tokens, evict nodes for all of them."""
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

    def keep(self, lease: Lease, num_tokens: int, *, is_part: bool = False) -> None:
        """Take what a running sequence has computed into the tree; where that is there already, it uses that.

        Part of a prompt is not copied to host memory yet.
        """
        if not self.caching:
            return
        before = lease.node
        self._insert(lease, num_tokens // self.page)
        self._lock(lease.node, before)
        if self.host is not None and not is_part:
            self.host.meet(lease.node, self.tree)

    def finish(self, lease: Lease, num_tokens: int) -> None:
        """A sequence with all its tokens, so many of which are computed, leaves them behind."""
        if not self.caching:
            self.drop(lease)
            return
        before = lease.node
        self._insert(lease, num_tokens // self.page)
        self.num_blank += lease.num_pages - lease.node.end
        if self.host is not None:
            self.host.meet(lease.node, self.tree)
        if lease.node is not before and not lease.node.has_children_on_gpu:
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
        if self.host is not None:
            self._compute_again(met[0], first)
        if found < last:
            self.num_evictable += last - found
            lease.node = self.tree.add(met, lease.content, last)
            lease.piece = self.tree.piece_after(lease.node)
        else:
            lease.node, lease.piece = met

    def _compute_again(self, node: Node, first: int) -> None:
        """A sequence has computed pages from the first on that host memory alone had: they are on the GPU, too."""
        while node.end > first:
            if not node.on_gpu:
                node.on_gpu = True
                self.num_blank -= node.end - node.start
                self.num_evictable += node.end - node.start
            assert node.parent is not None
            node = node.parent

    def _lock(self, node: Node, above: Node) -> None:
        """One sequence more runs along the nodes from one up to another above it, which is not counted."""
        while node is not above:
            if node.locks == 0 and node.on_gpu:
                self.num_evictable -= node.end - node.start
            node.locks += 1
            assert node.parent is not None
            node = node.parent

    def _unlock(self, node: Node) -> None:
        """One sequence less runs along a node and all above it."""
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                if node.on_gpu:
                    self.num_evictable += node.end - node.start
                    if not node.has_children_on_gpu:
                        self._enqueue(node)
                elif self.host is not None:
                    self.host.enqueue(node)
            node = node.parent

    def _enqueue(self, node: Node) -> None:
        """A node may be forgotten when its turn comes."""
        if not node.is_queued:
            node.is_queued = True
            self._num_queued += 1
            heapq.heappush(self._queue, (node.time, self._num_queued, node))

    def _forget(self, num_tokens: int) -> None:
        """Forget nodes that nothing on the GPU follows, those that were met least recently first."""
        queue, missing = self._queue, -(-num_tokens // self.page)
        while missing > 0 and queue:
            time, _, node = heapq.heappop(queue)
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
            if self.host is not None and node.on_host:
                self.host.enqueue(node)
            else:
                self.tree.remove(node)
            parent = node.parent
            assert parent is not None
            if parent.locks == 0 and not parent.has_children_on_gpu:
                self._enqueue(parent)
